//! Which headers of a request go on with the event: end-to-end ones that carry no credential.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Headers of the one hop, or of the exchange with us, and the usual carriers of credentials.
const DROPPED: [HeaderName; 13] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::HOST,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::AUTHORIZATION,
    header::COOKIE,
    header::SET_COOKIE,
];

const DROPPED_BY_NAME: [&str; 3] = ["keep-alive", "proxy-connection", "http2-settings"];

/// A name that contains one of these is taken to carry a credential.
const WORDS: [&str; 7] = ["signature", "token", "secret", "api-key", "apikey", "password", "authorization"];

/// The headers to keep. `own` are those that the scheme reads its signatures from.
pub(super) fn end_to_end(headers: &HeaderMap, own: &[HeaderName]) -> Vec<(HeaderName, HeaderValue)> {
    let mut kept = Vec::with_capacity(headers.len());
    let names_hops = headers.contains_key(header::CONNECTION);
    for (name, value) in headers {
        let dropped = own.contains(name) || is_dropped(name) || names_hops && is_named_by_connection(headers, name);
        if !dropped {
            kept.push((name.clone(), value.clone()));
        }
    }
    kept
}

fn is_dropped(name: &HeaderName) -> bool {
    DROPPED.contains(name) || DROPPED_BY_NAME.contains(&name.as_str()) || is_credential(name.as_str())
}

/// Names are in lower case already.
fn is_credential(name: &str) -> bool {
    let name = name.as_bytes();
    (0..name.len()).any(|at| {
        let rest = &name[at..];
        matches!(rest[0], b's' | b't' | b'a' | b'p') && WORDS.iter().any(|word| rest.starts_with(word.as_bytes()))
    })
}

fn is_named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    let mut options = headers.get_all(header::CONNECTION).iter().flat_map(|v| v.as_bytes().split(|b| *b == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_and_what_goes() {
        let all = [
            ("content-type", true),
            ("user-agent", true),
            ("x-github-event", true),
            ("x-github-delivery", true),
            ("content-encoding", true),
            ("traceparent", true),
            ("x-passport", true),
            ("host", false),
            ("content-length", false),
            ("expect", false),
            ("connection", false),
            ("keep-alive", false),
            ("transfer-encoding", false),
            ("te", false),
            ("upgrade", false),
            ("x-hop", false),
            ("x-hop-2", false),
            ("cookie", false),
            ("authorization", false),
            ("proxy-authorization", false),
            ("x-authorization-extra", false),
            ("x-hub-signature", false),
            ("x-gitlab-token", false),
            ("x-hook-secret", false),
            ("my-api-key-2", false),
            ("x-apikey", false),
            ("x-password", false),
            ("x-own-hmac", false),
        ];
        let mut headers = HeaderMap::new();
        for (name, _) in all {
            headers.insert(name, HeaderValue::from_static("v"));
        }
        headers.insert("connection", HeaderValue::from_static("close, X-Hop"));
        headers.append("connection", HeaderValue::from_static("x-hop-2"));
        let kept = end_to_end(&headers, &[HeaderName::from_static("x-own-hmac")]);
        for (name, stays) in all {
            assert_eq!(kept.iter().any(|(kept, _)| kept == name), stays, "{name}");
        }
    }

    #[test]
    fn repeated_headers_and_bytes_are_kept_as_they_are() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_bytes(b"\xff").unwrap());
        headers.append("x-a", HeaderValue::from_static("2"));
        let kept = end_to_end(&headers, &[]);
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[0].1.as_bytes(), b"\xff");
    }
}
