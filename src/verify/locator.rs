//! Locators: places in a request, and reading what stands there.

use super::pointer::{Found, POINTERS_MAX, Pointer, Value};
use super::source::Request;
use http::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

/// A place in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Locator {
    /// An index into the source's headers, and the name.
    Header(usize, HeaderName),
    Query(String),
    Form(String),
    /// An index into the source's pointers, and the pointer as written.
    Json(usize, String),
    /// An item of the split signature header.
    Sig(String),
}

/// What a source looks for in each request.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) headers: Vec<HeaderName>,
    pub(super) pointers: Vec<Pointer>,
}

impl Wanted {
    /// Its index, which it gets where it has none.
    fn header(&mut self, name: HeaderName) -> Locator {
        let index = self.headers.iter().position(|known| *known == name).unwrap_or(self.headers.len());
        if index == self.headers.len() {
            self.headers.push(name.clone());
        }
        Locator::Header(index, name)
    }
}

impl Locator {
    /// Reads a locator; a header or a JSON pointer is added to what is `wanted`, unless it is there already.
    pub(super) fn parse(text: &str, wanted: &mut Wanted) -> Result<Locator, String> {
        let Some((kind, place)) = text.split_once(':') else {
            return Err(format!(
                "`{text}` is not a locator: write `header:Name`, `query:name`, `form:name` or `json:/pointer`"
            ));
        };
        if place.is_empty() {
            return Err(format!("`{text}` names no place: write one after the colon, such as `header:X-Signature`"));
        }
        match kind {
            "header" => place
                .parse()
                .map(|name| wanted.header(name))
                .map_err(|_| format!("`{place}` is not a header's name: use letters, digits and `-`")),
            "query" => Ok(Locator::Query(place.to_owned())),
            "form" => Ok(Locator::Form(place.to_owned())),
            "sig" => Ok(Locator::Sig(place.to_owned())),
            "json" => {
                let pointer = Pointer::parse(place)?;
                let pointers = &mut wanted.pointers;
                let index = pointers.iter().position(|known| *known == pointer).unwrap_or(pointers.len());
                if index == pointers.len() {
                    if index == POINTERS_MAX {
                        return Err(format!("a source reads at most {POINTERS_MAX} JSON pointers: leave some out"));
                    }
                    pointers.push(pointer);
                }
                Ok(Locator::Json(index, place.to_owned()))
            }
            _ => Err(format!("`{kind}` is not a kind of place: use `header`, `query`, `form` or `json`")),
        }
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Locator::Header(_, name) => write!(f, "header {name}"),
            Locator::Query(name) => write!(f, "query parameter {name}"),
            Locator::Form(name) => write!(f, "form field {name}"),
            Locator::Json(_, pointer) => write!(f, "body field {pointer}"),
            Locator::Sig(key) => write!(f, "signature item {key}"),
        }
    }
}

/// What stands at a place.
pub(super) enum Place<'r> {
    /// Nothing, or an empty value.
    Absent,
    /// Several values where one is meant.
    Repeated,
    /// A field of a body that is no JSON.
    Unreadable,
    Value(Cow<'r, [u8]>),
}

impl<'r> Place<'r> {
    pub(super) fn into_text(self) -> Option<Cow<'r, str>> {
        match self {
            Place::Value(Cow::Borrowed(bytes)) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Place::Value(Cow::Owned(bytes)) => String::from_utf8(bytes).ok().map(Cow::Owned),
            Place::Absent | Place::Repeated | Place::Unreadable => None,
        }
    }
}

/// A request, and what it has of what the source wants. Its body is read once, and only when asked for.
pub(super) struct Facts<'r> {
    pub(super) request: Request<'r>,
    headers: SmallVec<[Seen<'r>; 8]>,
    pointers: &'r [Pointer],
    found: OnceCell<Found<'r>>,
}

/// A header that is wanted.
#[derive(Clone, Copy)]
enum Seen<'r> {
    Never,
    Once(&'r HeaderValue),
    Again,
}

impl<'r> Seen<'r> {
    fn and(self, value: &'r HeaderValue) -> Self {
        if let Seen::Never = self { Seen::Once(value) } else { Seen::Again }
    }

    fn place(self) -> Place<'r> {
        match self {
            Seen::Once(value) if !value.is_empty() => Place::Value(Cow::Borrowed(value.as_bytes())),
            Seen::Never | Seen::Once(_) => Place::Absent,
            Seen::Again => Place::Repeated,
        }
    }
}

impl<'r> Facts<'r> {
    pub(super) fn new(request: Request<'r>, wanted: &'r Wanted) -> Self {
        let headers = SmallVec::from_elem(Seen::Never, wanted.headers.len());
        let mut facts = Facts { request, headers, pointers: &wanted.pointers, found: OnceCell::new() };
        // One look at each of the few that a request has is quicker than the map's hash of each long name.
        for (name, value) in request.headers {
            if let Some(index) = wanted.headers.iter().position(|wanted| wanted == name) {
                facts.headers[index] = facts.headers[index].and(value);
            }
        }
        facts
    }

    /// What stands at `locator`. A signature item is not found here: the signature's parser hands those out.
    pub(super) fn at(&self, locator: &Locator) -> Place<'r> {
        match locator {
            Locator::Header(index, _) => self.headers.get(*index).map_or(Place::Absent, |seen| seen.place()),
            Locator::Query(name) => parameter(url_query(self.request.url).as_bytes(), name),
            Locator::Form(name) => parameter(self.request.body, name),
            Locator::Json(index, _) => {
                let found = self.found.get_or_init(|| Found::read(self.request.body, self.pointers));
                match found.at(*index) {
                    Value::One(Cow::Borrowed(text)) if !text.is_empty() => Place::Value(Cow::Borrowed(text.as_bytes())),
                    Value::One(Cow::Owned(text)) if !text.is_empty() => Place::Value(Cow::Owned(text.into_bytes())),
                    Value::One(_) | Value::Absent => Place::Absent,
                    Value::Several => Place::Repeated,
                    Value::Unreadable => Place::Unreadable,
                }
            }
            Locator::Sig(_) => Place::Absent,
        }
    }

    /// The text at `locator`, where there is one value and it is UTF-8.
    pub(super) fn text_at(&self, locator: &Locator) -> Option<Cow<'r, str>> {
        self.at(locator).into_text()
    }

    /// A header that the request names.
    pub(super) fn header(&self, name: &HeaderName) -> Place<'r> {
        self.request.headers.get_all(name).iter().fold(Seen::Never, Seen::and).place()
    }
}

/// The query of a URL as text, without `?`; empty when there is none.
pub(super) fn url_query(url: &str) -> &str {
    let url = url.split('#').next().unwrap_or(url);
    url.split_once('?').map_or("", |(_, query)| query)
}

/// The URL up to its query.
pub(super) fn url_without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

/// The path of a URL as text: what stands between the authority and the query.
pub(super) fn url_path(url: &str) -> &str {
    let url = url_without_query(url);
    match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => url,
    }
}

/// The value of one parameter in `application/x-www-form-urlencoded` text.
fn parameter<'r>(text: &'r [u8], name: &str) -> Place<'r> {
    let (mut place, mut seen) = (Place::Absent, false);
    for pair in text.split(|b| *b == b'&') {
        let at = pair.iter().position(|b| *b == b'=').unwrap_or(pair.len());
        let (key, value) = (&pair[..at], pair.get(at + 1..).unwrap_or_default());
        if decoded(key).as_ref() != name.as_bytes() {
            continue;
        }
        if seen {
            return Place::Repeated;
        }
        seen = true;
        if !value.is_empty() {
            place = Place::Value(decoded(value));
        }
    }
    place
}

pub(super) fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|b| matches!(b, b'+' | b'%')) {
        return Cow::Borrowed(text);
    }
    let spaced: Vec<u8> = text.iter().map(|b| if *b == b'+' { b' ' } else { *b }).collect();
    Cow::Owned(percent_encoding::percent_decode(&spaced).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_must_be_single() {
        let at = |text: &'static str, name| match parameter(text.as_bytes(), name) {
            Place::Value(value) => String::from_utf8(value.into_owned()).unwrap(),
            Place::Absent => "absent".into(),
            Place::Repeated => "repeated".into(),
            Place::Unreadable => "unreadable".into(),
        };
        assert_eq!(at("a=1&b=x%20y+z&c", "b"), "x y z");
        assert_eq!(at("a=1&%62=2", "b"), "2");
        assert_eq!(at("a=1&a=2", "a"), "repeated");
        assert_eq!(at("a=&b", "a"), "absent");
        assert_eq!(at("a=1", "c"), "absent");
        assert_eq!(at("a=%zz", "a"), "%zz");
    }

    #[test]
    fn urls_are_taken_apart_as_text() {
        for (url, path, query, bare) in [
            ("https://h.test/in/a?x=1&y=?#f", "/in/a", "x=1&y=?", "https://h.test/in/a"),
            ("https://h.test", "/", "", "https://h.test"),
            ("https://h.test/a#f?x", "/a", "", "https://h.test/a"),
            ("", "", "", ""),
        ] {
            assert_eq!((url_path(url), url_query(url), url_without_query(url)), (path, query, bare));
        }
    }

    #[test]
    fn locators_are_checked() {
        let mut wanted = Wanted::default();
        for bad in ["", "header", "header:", "header:a b", "cookie:x", "json:id", "json:", "Header:X"] {
            assert!(Locator::parse(bad, &mut wanted).is_err(), "{bad}");
        }
        let first = Locator::parse("json:/id", &mut wanted).unwrap();
        assert_eq!(Locator::parse("json:/id", &mut wanted).unwrap(), first);
        assert_eq!(wanted.pointers.len(), 1);
    }
}
