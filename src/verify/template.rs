//! Templates of the signed bytes and of challenge answers: parsed once, rendered as a list of slices so that the body
//! is never copied.

use super::locator::{Locator, url_path, url_query, url_without_query};
use super::source::Request;
use smallvec::SmallVec;
use std::borrow::Cow;

/// The values of an alternative's variables, by index; `None` for an optional one that is absent.
pub(super) type Values<'r> = SmallVec<[Option<Cow<'r, [u8]>>; 4]>;

/// Slices that, one after the other, are the rendered text.
pub(super) type Parts<'a> = SmallVec<[&'a [u8]; 12]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(Vec<u8>),
    Body,
    Method,
    Url,
    UrlWithoutQuery,
    Path,
    Query,
    /// A variable, by its index.
    Var(usize),
    /// Left out as a whole when a variable in it is absent.
    Group(Vec<Piece>),
    /// A place in the request, in answers only.
    Place(Locator),
}

/// Parses a template. `resolve` says what a `{name}` is.
pub(super) fn parse(text: &str, resolve: &mut dyn FnMut(&str) -> Result<Piece, String>) -> Result<Vec<Piece>, String> {
    let mut outer = Vec::new();
    let mut group: Option<Vec<Piece>> = None;
    let mut literal = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let piece = match c {
            '\\' => {
                match rest.next() {
                    Some('n') => literal.push(b'\n'),
                    Some(c @ ('\\' | '{' | '}' | '[' | ']')) => literal.push(c as u8),
                    Some(_) | None => return Err(r"after `\` comes one of `n`, `\`, `{`, `}`, `[`, `]`".to_owned()),
                }
                continue;
            }
            '{' => {
                let Some((name, after)) = rest.as_str().split_once('}') else {
                    return Err(r"a `{` is not closed: add `}`, or write `\{` for the character".to_owned());
                };
                let piece = resolve(name)?;
                rest = after.chars();
                Some(piece)
            }
            '[' if group.is_none() => None,
            ']' if group.is_some() => None,
            '}' | '[' | ']' => return Err(format!(r"a stray `{c}`: write `\{c}` for the character")),
            _ => {
                literal.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        let level = group.as_mut().unwrap_or(&mut outer);
        if !literal.is_empty() {
            level.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        match piece {
            Some(piece) => level.push(piece),
            None => match group.take() {
                Some(pieces) => outer.push(Piece::Group(pieces)),
                None => group = Some(Vec::new()),
            },
        }
    }
    if group.is_some() {
        return Err(r"a `[` is not closed: add `]`, or write `\[` for the character".to_owned());
    }
    if !literal.is_empty() {
        outer.push(Piece::Literal(literal));
    }
    Ok(outer)
}

/// Renders `pieces` for one request.
pub(super) fn parts<'a>(pieces: &'a [Piece], request: Request<'a>, values: &'a Values<'_>) -> Parts<'a> {
    let mut parts = Parts::new();
    for piece in pieces {
        if let Piece::Group(group) = piece {
            let absent = |i: usize| values.get(i).is_none_or(Option::is_none);
            if !variables(group).any(absent) {
                parts.extend(group.iter().filter_map(|piece| part(piece, request, values)));
            }
        } else {
            parts.extend(part(piece, request, values));
        }
    }
    parts
}

fn part<'a>(piece: &'a Piece, request: Request<'a>, values: &'a Values<'_>) -> Option<&'a [u8]> {
    match piece {
        Piece::Literal(bytes) => Some(bytes),
        Piece::Body => Some(request.body),
        Piece::Method => Some(request.method.as_str().as_bytes()),
        Piece::Url => Some(request.url.as_bytes()),
        Piece::UrlWithoutQuery => Some(url_without_query(request.url).as_bytes()),
        Piece::Path => Some(url_path(request.url).as_bytes()),
        Piece::Query => Some(url_query(request.url).as_bytes()),
        Piece::Var(index) => values.get(*index)?.as_deref(),
        // Groups do not nest, and only answers, which are rendered as text, hold places.
        Piece::Group(_) | Piece::Place(_) => None,
    }
}

/// The variables that `pieces` name, those in groups included.
pub(super) fn variables(pieces: &[Piece]) -> impl Iterator<Item = usize> {
    pieces
        .iter()
        .flat_map(|piece| match piece {
            Piece::Group(group) => group.as_slice(),
            Piece::Literal(_)
            | Piece::Body
            | Piece::Method
            | Piece::Url
            | Piece::UrlWithoutQuery
            | Piece::Path
            | Piece::Query
            | Piece::Var(_)
            | Piece::Place(_) => std::slice::from_ref(piece),
        })
        .filter_map(|piece| if let Piece::Var(index) = piece { Some(*index) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use bytes::Bytes;
    use http::{HeaderMap, Method};

    fn resolve(name: &str) -> Result<Piece, String> {
        match name {
            "body" => Ok(Piece::Body),
            "path" => Ok(Piece::Path),
            "a" => Ok(Piece::Var(0)),
            "b" => Ok(Piece::Var(1)),
            _ => Err(format!("`{name}` is not known")),
        }
    }

    fn rendered(template: &str, a: Option<&'static str>) -> String {
        let pieces = parse(template, &mut resolve).unwrap();
        let values = Values::from_iter([a.map(|a| Cow::Borrowed(a.as_bytes())), Some(Cow::Borrowed(&b"B"[..]))]);
        let (headers, body) = (HeaderMap::new(), Bytes::from_static(b"{}"));
        let request = Request {
            method: &Method::POST,
            url: "https://h.test/p?q",
            headers: &headers,
            body: &body,
            received_at: Timestamp::ZERO,
        };
        String::from_utf8(parts(&pieces, request, &values).concat()).unwrap()
    }

    #[test]
    fn rendering() {
        assert_eq!(rendered("v0:{b}:{body}", None), "v0:B:{}");
        assert_eq!(rendered(r"{path}\n\{\}\[\]\\ü", None), "/p\n{}[]\\ü");
        assert_eq!(rendered("[id:{a};]t:{b};", Some("1")), "id:1;t:B;");
        assert_eq!(rendered("[id:{a};]t:{b};", None), "t:B;");
        assert_eq!(rendered("[{a}{b}]{b}", None), "B");
        assert_eq!(rendered("", None), "");
    }

    #[test]
    fn mistakes_are_named() {
        for bad in ["{body", "}", "]", "[", "[[{a}]]", r"\x", "\\", "{c}", "{}"] {
            assert!(parse(bad, &mut resolve).is_err(), "{bad}");
        }
    }
}
