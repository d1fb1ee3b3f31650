//! A request from a file: as JSON, in the form of the cases file too, as a curl command, or as it went over the wire.

use super::Failure;
use super::curl::{self, Fault, ReadFile};
use super::output::plain;
use crate::verify::cases::{CaseRequest, HeaderValues, add_header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A request that was read.
#[derive(Debug)]
pub struct Recorded {
    pub method: Method,
    pub target: Target,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// What the request says about where it went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Url(String),
    /// What stands on the wire: a proxy may have changed the host, and the rest of the URL is not told.
    Path {
        host: Option<String>,
        path: String,
    },
}

impl Target {
    /// The URL that the provider called. `public_url` is what the configuration says of it; `None`: nobody knows.
    pub fn url(&self, public_url: Option<&str>) -> Option<String> {
        match (self, public_url) {
            (Target::Url(url), _) => Some(url.clone()),
            (Target::Path { path, .. }, Some(base)) => Some(format!("{base}{path}")),
            (Target::Path { host: Some(host), path }, None) => Some(format!("https://{host}{path}")),
            (Target::Path { host: None, .. }, None) => None,
        }
    }
}

/// Reads a request: what it is shows in how it begins. `file` names it in messages; `read` gives the files that a curl
/// command names.
pub fn parse(bytes: &[u8], file: &str, read: ReadFile<'_>) -> Result<Recorded, Failure> {
    // What an editor or a paste leaves in front is no part of it.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    if bytes.first() == Some(&b'{') {
        parse_json(bytes).map_err(|why| {
            Failure::usage(
                format!("`{file}` is JSON, but no request: {}", plain(&why)),
                "write {\"method\": …, \"url\": …, \"headers\": {…}, \"body\": …}, or \"body_base64\" for the last",
            )
        })
    } else if curl::is_command(bytes) {
        curl::parse(bytes, read).map_err(|fault| match fault {
            Fault::File(failure) => failure,
            Fault::Told(why) => Failure::usage(
                format!("`{file}` is a curl command, but {}", plain(&why)),
                "write e.g. curl https://hooks.example/in/acme/github -H 'Name: value' --data-raw '…'",
            ),
        })
    } else {
        let marked = matches!(bytes, [b'*' | b'>', b' ', ..]);
        let read = if marked { unmarked(bytes).and_then(|bytes| parse_raw(&bytes)) } else { parse_raw(bytes) };
        read.map_err(|why| {
            Failure::usage(
                format!("`{file}` is not an HTTP request: {}", plain(&why)),
                "write a request line such as `POST /in/acme/github HTTP/1.1`, the headers, an empty line, and the \
                 body; a curl command; or JSON",
            )
        })
    }
}

/// A request as JSON. What is left out of it is left out of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default = "post")]
    method: String,
    url: Option<String>,
    #[serde(default)]
    headers: Value,
    body: Option<Value>,
    body_base64: Option<String>,
}

fn post() -> String {
    "POST".to_owned()
}

fn parse_json(bytes: &[u8]) -> Result<Recorded, String> {
    let mut value: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    // A whole case is taken as well.
    if value["request"].is_object() {
        value = value["request"].take();
    }
    let written: Written = serde_json::from_value(value).map_err(|e| e.to_string())?;
    let headers = written_headers(written.headers)?;
    let body_base64 = match (written.body, written.body_base64) {
        (None, encoded) => encoded.unwrap_or_default(),
        (Some(Value::String(text)), None) => STANDARD.encode(text),
        (Some(Value::String(_)), Some(_)) => return Err("it has `body` and `body_base64`: leave one out".to_owned()),
        (Some(_), _) => {
            return Err("`body` is not a text: the signature is over the bytes as they came, so write them as text \
                        in quotes, or as `body_base64`"
                .to_owned());
        }
    };
    let target = match written.url {
        None => Target::Path { host: None, path: "/".to_owned() },
        Some(url) => Target::Url(url),
    };
    let request = CaseRequest { method: written.method, url: String::new(), headers, body_base64 };
    let (method, headers, body) = request.parts()?;
    Ok(Recorded { method, target, headers, body })
}

/// An object, or a list of pairs, as HAR (`name`) and Postman (`key`) have it.
fn written_headers(value: Value) -> Result<BTreeMap<String, HeaderValues>, String> {
    let pairs = match value {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Array(pairs) => pairs,
        other => return serde_json::from_value(other).map_err(|e| format!("`headers`: {e}")),
    };
    let mut all: BTreeMap<String, HeaderValues> = BTreeMap::new();
    for (number, pair) in pairs.iter().enumerate() {
        let name = pair["name"].as_str().or_else(|| pair["key"].as_str());
        let (Some(name), Some(value)) = (name, pair["value"].as_str()) else {
            return Err(format!("`headers[{number}]` is not {{\"name\": …, \"value\": …}} with two texts"));
        };
        let more = match all.remove(&name.to_ascii_lowercase()) {
            None => HeaderValues::One(value.to_owned()),
            Some(HeaderValues::One(first)) => HeaderValues::Many(vec![first, value.to_owned()]),
            Some(HeaderValues::Many(mut values)) => {
                values.push(value.to_owned());
                HeaderValues::Many(values)
            }
        };
        all.insert(name.to_ascii_lowercase(), more);
    }
    Ok(all)
}

/// What `curl -v` shows of a request, without the marks in front: its head, then what was put behind it as its body.
fn unmarked(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let (mut head, mut rest) = (Vec::new(), bytes);
    while let [b'*' | b'>', ..] = rest {
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
        let (line, after) = rest.split_at(end);
        rest = after;
        if let Some(line) = line.strip_prefix(b">") {
            head.extend_from_slice(line.strip_prefix(b" ").unwrap_or(line));
            if line.trim_ascii().is_empty() {
                break;
            }
        }
    }
    match rest {
        [b'*' | b'<' | b'{' | b'}', b' ', ..] => {
            Err("its body is not what `curl -v` shows: put the body behind the line `>`, and nothing else".to_owned())
        }
        body => Ok([&head, body].concat()),
    }
}

/// Lines may end with or without a carriage return, as editors and terminals leave them.
fn parse_raw(bytes: &[u8]) -> Result<Recorded, String> {
    let mut rest = bytes;
    let mut next = || -> Option<&[u8]> {
        let end = memchr::memchr(b'\n', rest);
        let line = &rest[..end.unwrap_or(rest.len())];
        rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
        Some(line.strip_suffix(b"\r").unwrap_or(line)).filter(|line| !line.is_empty())
    };
    let first = next().ok_or("it is empty")?;
    let (method, target) = request_line(first).map_err(|why| match header_line(first) {
        Some(_) => "line 1 is a header, and no request line stands before it".to_owned(),
        None => why,
    })?;
    let mut headers = HeaderMap::new();
    for number in 2.. {
        let Some(line) = next() else { break };
        let (name, value) = header_line(line).ok_or_else(|| format!("line {number} is not a header"))?;
        add_header(&mut headers, name, value)?;
    }
    let body = body(rest, &headers)?;
    let target = match target.authority() {
        Some(_) => Target::Url(target.to_string()),
        None => {
            let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
            Target::Path { host, path: target.to_string() }
        }
    };
    Ok(Recorded { method, target, headers, body: Bytes::copy_from_slice(body) })
}

fn request_line(line: &[u8]) -> Result<(Method, Uri), String> {
    let wrong = || "line 1 is not a request line".to_owned();
    let text = std::str::from_utf8(line).map_err(|_| wrong())?;
    let mut words = text.split(' ');
    let (Some(method), Some(target), version, None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(wrong());
    };
    if version.is_some_and(|version| !version.starts_with("HTTP/")) {
        return Err(wrong());
    }
    let target: Uri = target.parse().map_err(|_| format!("`{target}` is neither a path nor a URL"))?;
    Ok((method.parse().map_err(|_| wrong())?, target))
}

fn header_line(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = memchr::memchr(b':', line)?;
    let name = HeaderName::from_bytes(&line[..colon]).ok()?;
    Some((name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?))
}

/// The body: what follows the head, but for a line end that an editor put behind it.
fn body<'a>(rest: &'a [u8], headers: &HeaderMap) -> Result<&'a [u8], String> {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Err("its body is sent in pieces (`transfer-encoding`): join them, and remove that header".to_owned());
    }
    let Some(length) = headers.get(header::CONTENT_LENGTH) else { return Ok(rest) };
    let length = length.to_str().ok().and_then(|text| text.parse::<usize>().ok());
    let length = length.ok_or("`content-length` is not a number")?;
    match rest.split_at_checked(length) {
        Some((body, b"" | b"\n" | b"\r\n")) => Ok(body),
        Some(_) | None => Err(format!("`content-length` says {length} bytes, and the body has {}", rest.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Recorded, Failure> {
        parse(bytes, "f", &mut |_| Err(Failure::usage("no file", "none")))
    }

    fn raw(text: &str) -> Result<Recorded, String> {
        read(text.as_bytes()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn raw_requests_are_read_byte_for_byte() {
        let request =
            raw("POST /in/a/b?c=d HTTP/1.1\r\nHost: h.example\r\nX-A:  1 \r\nx-a: 2\r\n\r\n{\"a\":\r\n1}\n").unwrap();
        assert_eq!(request.method, Method::POST);
        assert_eq!(request.target.url(None).unwrap(), "https://h.example/in/a/b?c=d");
        assert_eq!(request.target.url(Some("https://p.example")).unwrap(), "https://p.example/in/a/b?c=d");
        assert_eq!(request.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        let pasted = raw("\u{feff}\r\n\nPOST /in/a/b HTTP/1.1\nHost: h.example\n\n \nx").unwrap();
        assert_eq!(pasted.body, " \nx", "what stands in front goes, the body stays");
        assert_eq!(request.body, "{\"a\":\r\n1}\n");
        let request = raw("GET https://x.example/p\nA: b\n\n").unwrap();
        assert_eq!((request.target, request.body.len()), (Target::Url("https://x.example/p".to_owned()), 0));
        let request = raw("POST /p HTTP/2\n\n\n\nbody").unwrap();
        assert_eq!((request.target.url(None), &request.body[..]), (None, &b"\n\nbody"[..]));
        assert!(raw("POST /p HTTP/1.1").unwrap().body.is_empty());
        assert_eq!(read(b"POST / HTTP/1.1\n\n\xff\x00").unwrap().body, &b"\xff\x00"[..]);
    }

    #[test]
    fn a_declared_length_tells_an_editors_line_end_from_the_body() {
        for (body, read) in
            [("ab", Some("ab")), ("ab\n", Some("ab")), ("ab\r\n", Some("ab")), ("a", None), ("abc", None)]
        {
            let request = raw(&format!("POST / HTTP/1.1\ncontent-length: 2\n\n{body}"));
            assert_eq!(request.ok().map(|r| r.body), read.map(Bytes::from), "{body:?}");
        }
    }

    /// More headers than the map itself can hold.
    fn many(before: &str, header: impl Fn(usize) -> String, after: &str) -> String {
        before.to_owned() + &(0..30_000).map(header).collect::<String>() + after
    }

    #[test]
    fn what_is_no_request_is_told_why() {
        for (text, why) in [
            ("", "it is empty"),
            ("\u{feff}\n \n", "it is empty"),
            ("hello", "line 1 is not a request line"),
            ("POST / HTTP/1.1 x", "line 1 is not a request line"),
            ("POST / x", "line 1 is not a request line"),
            ("P{ST / HTTP/1.1", "line 1 is not a request line"),
            ("POST /\u{1b} HTTP/1.1", "`/\\u{1b}` is neither a path nor a URL"),
            ("X-A: b\n\nbody", "line 1 is a header, and no request line stands before it"),
            ("> POST / HTTP/1.1\n> A: b\n>\n< HTTP/1.1 200 OK", "put the body behind the line `>`"),
            ("> POST / HTTP/1.1\n> A: b\n>\n* upload completely sent off", "put the body behind the line `>`"),
            ("{\"headers\":[{\"name\":\"a\",\"value\":\"b\"},{\"name\":\"a\"}]}", "`headers[1]` is not {"),
            ("{\"headers\":5}", "`headers`: invalid type"),
            ("POST / HTTP/1.1\nA: b\nno header\n\n", "line 3 is not a header"),
            ("POST / HTTP/1.1\n folded: x\n\n", "line 2 is not a header"),
            ("POST / HTTP/1.1\ntransfer-encoding: chunked\n\n0\r\n\r\n", "sent in pieces"),
            ("POST / HTTP/1.1\ncontent-length: many\n\n", "not a number"),
            ("POST / HTTP/1.1\ncontent-length: 5\n\nab", "says 5 bytes, and the body has 2"),
            ("{", "is JSON, but no request: EOF"),
            ("{\"methd\":\"POST\"}", "unknown field `methd`"),
            ("{\"body\":{\"a\":1}}", "`body` is not a text"),
            ("{\"body\":\"\",\"body_base64\":\"\"}", "leave one out"),
            ("curl h -F a=b", "is a curl command, but what `-F` makes curl send"),
            (r#"{"method":"P ST","url":"u","headers":{},"body_base64":""}"#, "the method is not one"),
            (r#"{"method":"POST","url":"u","headers":{},"body_base64":"?"}"#, "`body_base64` is not base64"),
            (r#"{"method":"POST","url":"u","headers":{"a b":"c"},"body_base64":""}"#, "`a b` is not a header's name"),
            (&many("POST / HTTP/1.1\n", |n| format!("a{n}: b\n"), "\n"), "more than 1000 headers"),
            (&many("POST / HTTP/1.1\n", |_| "a: b\n".to_owned(), "\n"), "more than 1000 headers"),
            (&many("curl h.example/p", |n| format!(" -H a{n}:b"), ""), "more than 1000 headers"),
            (
                &many("{\"body\":\"\",\"headers\":{", |n| format!("\"a{n}\":\"b\","), "\"a\":\"b\"}}"),
                "more than 1000 headers",
            ),
        ] {
            let told = raw(text).unwrap_err();
            assert!(told.contains(why) && told.contains("help: write"), "{text:?}: {told}");
        }
    }

    #[test]
    fn json_is_a_request_or_a_case_with_one() {
        let request =
            r#"{"method":"POST","url":"https://h.example/","headers":{"a":["1","2"],"b":"3"},"body_base64":"aGk="}"#;
        for text in [request.to_owned(), format!("\n{{\"id\":\"x\",\"request\":{request}}}")] {
            let read = raw(&text).unwrap();
            assert_eq!((read.headers.len(), &read.body[..]), (3, &b"hi"[..]));
            assert_eq!(read.target.url(Some("https://p.example")).unwrap(), "https://h.example/");
        }
        let har =
            raw(r#"{"headers":[{"name":"A","value":"1"},{"key":"a","value":"2"},{"name":"B","value":"3"}]}"#).unwrap();
        assert_eq!(har.headers.get_all("a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(har.headers["b"], "3");
        let shown = raw("*   Trying 127.0.0.1\n> POST /p HTTP/1.1\r\n> Host: h\r\n> A: b\r\n>\r\n{\"a\":1}").unwrap();
        assert_eq!((&shown.headers["a"], &shown.body[..]), (&"b".parse::<HeaderValue>().unwrap(), &b"{\"a\":1}"[..]));
        let read = raw(r#"{"headers":{"a":"b"},"body":"{\"a\": 1}"}"#).unwrap();
        assert_eq!((read.method, &read.body[..]), (Method::POST, &b"{\"a\": 1}"[..]));
        assert_eq!(read.target.url(None), None);
        assert_eq!(raw("curl h.example/p").unwrap().target.url(None).unwrap(), "http://h.example/p");
    }
}
