//! Request bodies: bounded JSON, with every mistake named.

use super::Settings;
use crate::http::{Budget, Connection, Problem, Reservation, collect};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body::Body as HttpBody;
use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// A body, and its share of what may be held at once.
pub(super) struct Body {
    pub(super) bytes: Bytes,
    _room: Reservation,
}

pub(super) async fn body(
    headers: &HeaderMap,
    body: impl HttpBody<Data = Bytes> + Unpin,
    settings: &Settings,
    budget: &Arc<Budget>,
    connection: &Connection,
) -> Result<Body, Problem> {
    let (bytes, room) =
        collect(body, settings.request_bytes_max, budget, connection).await.map_err(crate::http::BodyFault::problem)?;
    if !bytes.is_empty() && !is_json(headers) {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send JSON: `content-type: application/json`",
        ));
    }
    Ok(Body { bytes, _room: room })
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// A body without fields.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Reads a body that may be left out where every field may.
pub(super) fn parse_or_default<'a, T: Deserialize<'a> + Default>(body: &'a [u8]) -> Result<T, Problem> {
    if body.is_empty() { Ok(T::default()) } else { parse(body) }
}

/// A field that is an object, and not an array in its place.
pub(super) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    from.deserialize_map(Object(PhantomData))
}

/// Reads an object. (Left to itself, the reader would take an array for one, field by field.)
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        let IgnoredAny = serde_json::from_slice(body).map_err(|error| told(&error, "."))?;
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "a JSON object is expected here"));
    }
    let mut text = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let path = error.path().to_string();
        told(error.inner(), &path)
    })?;
    text.end().map_err(|error| told(&error, "."))?;
    Ok(value)
}

fn told(error: &serde_json::Error, path: &str) -> Problem {
    let detail = error.to_string();
    match error.classify() {
        Category::Syntax | Category::Eof | Category::Io => {
            Problem::new(StatusCode::BAD_REQUEST, "malformed", format!("the body is not JSON: {detail}"))
                .with("line", error.line())
                .with("column", error.column())
        }
        Category::Data => {
            let code = if detail.starts_with("unknown field") { "unknown_field" } else { "invalid" };
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.clone());
            // A field that is unknown or missing is named in the message alone.
            let named = detail.split('`').nth(1).filter(|_| detail.contains(" field `"));
            match (path, named) {
                (".", None) => problem,
                (".", Some(field)) => problem.with("field", field),
                (path, Some(field)) if !path.ends_with(field) => problem.with("field", format!("{path}.{field}")),
                (path, _) => problem.with("field", path),
            }
        }
    }
}

/// A field whose value breaks a rule.
pub(super) fn invalid(field: &'static str, rule: impl Into<String>) -> Problem {
    let detail = format!("`{field}` {}", rule.into());
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail).with("field", field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[expect(dead_code, reason = "only its reading is tested")]
        inner: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[expect(dead_code, reason = "only its reading is tested")]
        count: u32,
    }

    fn told_of(text: &str) -> (u16, &'static str, serde_json::Value) {
        let problem = parse::<Outer>(text.as_bytes()).unwrap_err();
        (problem.status().as_u16(), problem.code(), problem.to_json())
    }

    #[test]
    fn mistakes_are_named() {
        let (status, code, json) = told_of("{\n \"inner\": ");
        assert_eq!((status, code, &json["line"]), (400, "malformed", &2.into()));
        assert_eq!(told_of("{} x").1, "malformed");
        assert_eq!(told_of("\u{0}").1, "malformed");
        let (status, code, json) = told_of(r#"{"iner": 1}"#);
        assert_eq!((status, code, &json["field"]), (422, "unknown_field", &"iner".into()));
        assert_eq!(told_of(r#"{"inner": {"count": "x"}}"#).2["field"], "inner.count");
        assert_eq!(told_of(r#"{"inner": {}}"#).2["field"], "inner.count");
        assert_eq!(told_of(r#"{"inner": {"count": 1, "more": 2}}"#).2["field"], "inner.more");
        for no_object in ["[]", "[{\"count\": 1}]", "1", "null", " \"x\""] {
            assert_eq!(told_of(no_object).1, "invalid", "{no_object}");
        }
        assert_eq!(told_of("[").1, "malformed");
    }
}
