//! Where a request's head ends and what its body is: RFC 9112, read strictly, one pass, resumable.

use super::gate::Refused;
use super::listener::Limits;

/// What follows the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Framing {
    Sized(u64),
    Chunked,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Scan {
    /// The head is not all there yet.
    More,
    /// The head's length, and what follows it.
    Complete(usize, Framing),
    Refused(Refused),
}

/// How far a head has been read. Offsets count from its first byte.
#[derive(Default, Debug)]
pub(super) struct Head {
    searched: usize,
    line_start: usize,
    blank_lines: u8,
    has_request_line: bool,
    is_http_10: bool,
    header_count: usize,
    host_count: usize,
    length: Option<u64>,
    chunked: bool,
}

impl Head {
    /// Reads on. `head` is everything from the head's first byte on, and only ever grows between calls.
    pub(super) fn scan(&mut self, head: &[u8], limits: &Limits) -> Scan {
        loop {
            let rest = head.get(self.searched..).unwrap_or_default();
            let Some(found) = memchr::memchr3(b'\r', b'\n', 0, rest) else {
                self.searched = head.len();
                return self.check_size(head.len(), limits).map_or(Scan::More, Scan::Refused);
            };
            let at = self.searched + found;
            match (rest.get(found), rest.get(found + 1)) {
                (Some(b'\r'), Some(b'\n')) => {}
                (Some(b'\r'), None) => {
                    self.searched = at;
                    return self.check_size(head.len(), limits).map_or(Scan::More, Scan::Refused);
                }
                (Some(b'\r'), Some(_)) => return Scan::Refused(Refused::Malformed("a CR stands alone")),
                (Some(b'\n'), _) => return Scan::Refused(Refused::Malformed("a line ends without CR")),
                (_, _) => return Scan::Refused(Refused::Malformed("a NUL byte stands in the head")),
            }
            let end = at + 2;
            if let Some(refused) = self.check_size(end, limits) {
                return Scan::Refused(refused);
            }
            let line = head.get(self.line_start..at).unwrap_or_default();
            self.line_start = end;
            self.searched = end;
            match self.line(line, limits) {
                Ok(false) => {}
                Ok(true) => {
                    let framing =
                        if self.chunked { Framing::Chunked } else { Framing::Sized(self.length.unwrap_or(0)) };
                    return Scan::Complete(end, framing);
                }
                Err(refused) => return Scan::Refused(refused),
            }
        }
    }

    fn check_size(&self, bytes: usize, limits: &Limits) -> Option<Refused> {
        // A request line holds a method and a version beside its URI.
        let line_max = limits.uri_bytes_max.saturating_add(64);
        if !self.has_request_line && bytes.saturating_sub(self.line_start) > line_max {
            return Some(Refused::UriTooLong);
        }
        (bytes > limits.head_bytes_max).then_some(Refused::HeadTooLarge)
    }

    /// `true`: that was the last line.
    fn line(&mut self, line: &[u8], limits: &Limits) -> Result<bool, Refused> {
        if !self.has_request_line {
            return self.request_line(line, limits).map(|()| false);
        }
        if line.is_empty() {
            return if self.host_count == 0 && !self.is_http_10 {
                Err(Refused::Malformed("there is no Host header"))
            } else {
                Ok(true)
            };
        }
        self.header_count += 1;
        if self.header_count > limits.headers_max {
            return Err(Refused::TooManyHeaders);
        }
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Err(Refused::Malformed("a header is folded over lines"));
        }
        let colon = memchr::memchr(b':', line).ok_or(Refused::Malformed("a header line has no colon"))?;
        let (name, value) = line.split_at(colon);
        if matches!(name.last(), None | Some(b' ' | b'\t')) {
            return Err(Refused::Malformed("white space or nothing stands before a header's colon"));
        }
        if !name.iter().all(|b| is_token(*b)) {
            return Err(Refused::Malformed("a header's name is not a token"));
        }
        let mut value = value.get(1..).unwrap_or_default();
        while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
            value = rest;
        }
        if value.iter().any(|b| (*b < b' ' && *b != b'\t') || *b == 0x7f) {
            return Err(Refused::Malformed("a control character stands in a header's value"));
        }
        self.header(name, value)
    }

    fn request_line(&mut self, line: &[u8], limits: &Limits) -> Result<(), Refused> {
        if line.is_empty() {
            // One blank line may precede a request: some clients end a body with a superfluous CRLF.
            self.blank_lines += 1;
            return if self.blank_lines > 1 {
                Err(Refused::Malformed("blank lines precede the request"))
            } else {
                Ok(())
            };
        }
        self.has_request_line = true;
        let mut parts = line.split(|b| *b == b' ');
        let (method, target, version) = (parts.next(), parts.next(), parts.next());
        if parts.next().is_some() {
            return Err(Refused::Malformed("the request line has more than three parts"));
        }
        match version {
            Some(b"HTTP/1.1") => {}
            Some(b"HTTP/1.0") => self.is_http_10 = true,
            Some(_) | None => return Err(Refused::Malformed("the request line does not end in HTTP/1.1 or HTTP/1.0")),
        }
        if method.is_none_or(<[u8]>::is_empty) || target.is_none_or(<[u8]>::is_empty) {
            return Err(Refused::Malformed("the request line has an empty part"));
        }
        if method.is_some_and(|method| !method.iter().all(|b| is_token(*b))) {
            return Err(Refused::Malformed("the method is not a token"));
        }
        // The forms of RFC 9112 section 3.2: a path, a whole URI, or `*`.
        let target_begins = |begins: &[u8]| target.is_some_and(|target| target.starts_with(begins));
        if !(target_begins(b"/") || target_begins(b"http://") || target_begins(b"https://") || target == Some(b"*")) {
            return Err(Refused::Malformed("the target is neither a path nor a URI"));
        }
        if target.is_some_and(|target| !target.iter().all(u8::is_ascii_graphic)) {
            return Err(Refused::Malformed("the target has a character that no URI has"));
        }
        if target.is_some_and(|target| target.len() > limits.uri_bytes_max) {
            return Err(Refused::UriTooLong);
        }
        Ok(())
    }

    fn header(&mut self, name: &[u8], value: &[u8]) -> Result<bool, Refused> {
        // By length first: most names need no comparison.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                self.host_count += 1;
                if self.host_count > 1 {
                    return Err(Refused::Malformed("there is more than one Host header"));
                }
                if value.iter().any(|b| matches!(b, b' ' | b'\t' | b',' | b'/' | b'@' | b'?' | b'#' | b'\\')) {
                    return Err(Refused::Malformed("the Host header is not a host"));
                }
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if self.length.is_some() {
                    return Err(Refused::Malformed("there is more than one Content-Length header"));
                }
                if self.chunked {
                    return Err(Refused::Malformed("Content-Length stands with Transfer-Encoding"));
                }
                if !(1..=18).contains(&value.len()) || !value.iter().all(u8::is_ascii_digit) {
                    return Err(Refused::Malformed("Content-Length is not a number of bytes"));
                }
                self.length = Some(value.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')));
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.length.is_some() {
                    return Err(Refused::Malformed("Content-Length stands with Transfer-Encoding"));
                }
                if self.is_http_10 {
                    return Err(Refused::Malformed("HTTP/1.0 has no Transfer-Encoding"));
                }
                if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Refused::Malformed("Transfer-Encoding is something else than one `chunked`"));
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(false)
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric()
        || matches!(b, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Scan {
        Head::default().scan(text.as_bytes(), &Limits::default())
    }

    fn is_malformed(text: &str) -> bool {
        matches!(scan(text), Scan::Refused(Refused::Malformed(_)))
    }

    #[test]
    fn a_head_says_what_follows() {
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(scan(get), Scan::Complete(get.len(), Framing::Sized(0)));
        let sized = "POST / HTTP/1.1\r\nhost:a:80\r\nContent-Length:  12 \r\n\r\n";
        assert_eq!(scan(&format!("{sized}hello")), Scan::Complete(sized.len(), Framing::Sized(12)));
        let chunked = "\r\nPOST / HTTP/1.1\r\nHOST: a\r\ntransfer-encoding: Chunked\r\n\r\n";
        assert_eq!(scan(chunked), Scan::Complete(chunked.len(), Framing::Chunked));
        let old = "GET / HTTP/1.0\r\n\r\n";
        assert_eq!(scan(old), Scan::Complete(old.len(), Framing::Sized(0)));
    }

    #[test]
    fn a_head_in_pieces_reads_like_a_whole_one() {
        let text = "POST /in/a/b HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nx: y\r\n\r\n";
        let mut head = Head::default();
        for n in 0..text.len() {
            assert_eq!(head.scan(&text.as_bytes()[..n], &Limits::default()), Scan::More, "{n}");
        }
        assert_eq!(head.scan(text.as_bytes(), &Limits::default()), Scan::Complete(text.len(), Framing::Sized(3)));
    }

    #[test]
    fn what_the_rfc_calls_an_error_is_refused() {
        for bad in [
            "GET / HTTP/1.1\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx: a\rb\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n",
            "GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a, b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n: y\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nxy\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n",
            "GET / HTTP/1.1\r\n host: a\r\n\r\n",
            "GET  / HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1 \r\nhost: a\r\n\r\n",
            "GET / HTTP/2.0\r\nhost: a\r\n\r\n",
            "GET /\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0x1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9999999999999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
        ] {
            assert!(is_malformed(bad), "{bad:?} gave {:?}", scan(bad));
        }
    }

    #[test]
    fn sizes_are_bounded_before_the_head_is_complete() {
        let uri = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(8 * 1024));
        assert_eq!(scan(&uri), Scan::Refused(Refused::UriTooLong));
        assert_eq!(scan(&"a".repeat(9 * 1024)), Scan::Refused(Refused::UriTooLong));
        let start = "GET / HTTP/1.1\r\nhost: a\r\n";
        let many = format!("{start}{}\r\n", "x: y\r\n".repeat(64));
        assert_eq!(scan(&many), Scan::Refused(Refused::TooManyHeaders));
        let as_many = format!("{start}{}\r\n", "x: y\r\n".repeat(63));
        assert_eq!(scan(&as_many), Scan::Complete(as_many.len(), Framing::Sized(0)));
        let large = format!("{start}x: {}", "y".repeat(32 * 1024));
        assert_eq!(scan(&large), Scan::Refused(Refused::HeadTooLarge));
    }
}
