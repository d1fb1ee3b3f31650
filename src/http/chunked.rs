//! Where a chunked body ends: RFC 9112 section 7.1, read strictly. The content is left to the HTTP library.

/// Bytes of chunk extensions, and of trailers, that one body may have.
const EXTRAS_MAX: usize = 4096;
/// Hexadecimal digits of a chunk's size: more than any body that is let in.
const DIGITS_MAX: u8 = 15;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Size { digits: u8, size: u64 },
    BeforeExtension { size: u64 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
}

/// How far a chunked body has been read.
#[derive(Debug)]
pub(super) struct Chunked {
    state: State,
    extras: usize,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// All of the bytes belong to the body, and it goes on.
    More,
    /// The body ends after this many of the bytes.
    End(usize),
    /// The byte at this place breaks the rules.
    Bad(usize),
}

impl Default for Chunked {
    fn default() -> Self {
        Chunked { state: State::Size { digits: 0, size: 0 }, extras: 0 }
    }
}

impl Chunked {
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Step {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            if let State::Data { left } = self.state {
                let here = u64::try_from(bytes.len() - at).unwrap_or(u64::MAX).min(left);
                at += usize::try_from(here).unwrap_or(usize::MAX);
                self.state = if here == left { State::DataCr } else { State::Data { left: left - here } };
                continue;
            }
            let Some(next) = self.step(*byte) else {
                return Step::Bad(at);
            };
            at += 1;
            match next {
                Some(state) => self.state = state,
                None => return Step::End(at),
            }
        }
        Step::More
    }

    /// The state after `byte`: `None` when it breaks the rules, `Some(None)` when the body ends with it.
    fn step(&mut self, byte: u8) -> Option<Option<State>> {
        let next = match (self.state, byte) {
            (State::Size { digits, size }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if digits < DIGITS_MAX => {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                State::Size { digits: digits + 1, size: size * 16 + digit }
            }
            (State::Size { digits: 1.., size } | State::Extension { size }, b'\r') => State::SizeLf { size },
            (State::Size { digits: 1.., size } | State::BeforeExtension { size }, b';') => State::Extension { size },
            (State::Size { digits: 1.., size } | State::BeforeExtension { size }, b' ' | b'\t') => {
                self.extra()?;
                State::BeforeExtension { size }
            }
            (State::Extension { size }, b'\t' | b' '..=b'~' | 0x80..) => {
                self.extra()?;
                State::Extension { size }
            }
            (State::SizeLf { size: 0 } | State::TrailerLf, b'\n') => State::TrailerStart,
            (State::SizeLf { size }, b'\n') => State::Data { left: size },
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size { digits: 0, size: 0 },
            (State::TrailerStart, b'\r') => State::EndLf,
            (State::EndLf, b'\n') => return Some(None),
            (State::TrailerStart, b'!'..=b'~') | (State::Trailer, b'\t' | b' '..=b'~' | 0x80..) => {
                self.extra()?;
                State::Trailer
            }
            (State::Trailer, b'\r') => State::TrailerLf,
            (_, _) => return None,
        };
        Some(Some(next))
    }

    fn extra(&mut self) -> Option<()> {
        self.extras += 1;
        (self.extras <= EXTRAS_MAX).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_end_where_they_end_however_they_are_cut() {
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "A;name=\"v\"\r\n0123456789\r\n00 ;x\r\n\r\n",
            "1\r\n\n\r\n0\r\nx-sum: 1\r\ny: 2\r\n\r\n",
        ] {
            let text = format!("{body}GET");
            assert_eq!(Chunked::default().scan(text.as_bytes()), Step::End(body.len()), "{body:?}");
            let mut chunked = Chunked::default();
            for (i, byte) in body.bytes().enumerate() {
                let expected = if i + 1 == body.len() { Step::End(1) } else { Step::More };
                assert_eq!(chunked.scan(&[byte]), expected, "{body:?} at {i}");
            }
        }
    }

    #[test]
    fn what_breaks_the_rules_is_named_by_its_place() {
        for (body, at) in [
            ("\r\n", 0),
            ("x\r\n", 0),
            ("-1\r\n", 0),
            ("5\nhello", 1),
            ("5 \r\nhello", 2),
            ("5;a\0", 3),
            ("5;a\n", 3),
            ("5\r\nhelloX", 8),
            ("5\r\nhello\n", 8),
            ("5\r\nhello\r0", 9),
            ("0\r\n x: y\r\n\r\n", 3),
            ("0\r\nx: y\n", 7),
            ("0\r\nx: \0", 6),
            ("0\r\n\rx", 4),
            ("1234567890abcdef0\r\n", 15),
        ] {
            assert_eq!(Chunked::default().scan(body.as_bytes()), Step::Bad(at), "{body:?}");
        }
        let endless = format!("5;{}", "a".repeat(EXTRAS_MAX + 1));
        assert_eq!(Chunked::default().scan(endless.as_bytes()), Step::Bad(2 + EXTRAS_MAX));
    }
}
