//! Templates of the signed bytes and of challenge answers: parsed once, rendered piece by piece so that the body is
//! never copied.

use super::key::{self, Message};
use super::locator::{Locator, url_path, url_query, url_without_query};
use super::source::Request;
use smallvec::SmallVec;
use std::borrow::Cow;

/// The values of an alternative's variables, by index; `None` for an optional one that is absent.
pub(super) type Values<'r> = SmallVec<[Option<Cow<'r, [u8]>>; 4]>;

/// What a template can make of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Sha256Hex,
    Base64,
    Crc32,
    /// HubSpot decodes some escapes of the URL before it signs.
    HubSpot,
    /// The secret's code of it, in answers only.
    HmacHex,
    HmacBase64,
}

impl Function {
    pub(super) fn parse(name: &str) -> Option<Function> {
        Some(match name {
            "sha256hex" => Function::Sha256Hex,
            "base64" => Function::Base64,
            "crc32" => Function::Crc32,
            "hubspot" => Function::HubSpot,
            "hmac-hex" => Function::HmacHex,
            "hmac-base64" => Function::HmacBase64,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Literal(Vec<u8>),
    Body,
    Method,
    Url,
    UrlWithoutQuery,
    Path,
    Query,
    /// The secret, where it is hashed with the rest.
    Key,
    /// A variable, by its index.
    Var(usize),
    Call(Function, Box<Piece>),
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

/// What a template says for one request.
pub(super) struct Rendered<'a, 'v> {
    pub(super) pieces: &'a [Piece],
    pub(super) request: Request<'a>,
    pub(super) values: &'a Values<'v>,
    /// What stands for the secret.
    pub(super) key: Option<&'a [u8]>,
}

impl Rendered<'_, '_> {
    /// What stands in the request itself. `None`: absent, or what has no place in a template of signed bytes.
    #[inline]
    fn plain<'p>(&'p self, piece: &'p Piece) -> Option<&'p [u8]> {
        let request = self.request;
        Some(match piece {
            Piece::Literal(bytes) => bytes,
            Piece::Body => request.body,
            Piece::Var(index) => self.values.get(*index)?.as_deref()?,
            Piece::Method => request.method.as_str().as_bytes(),
            Piece::Url => request.url.as_bytes(),
            Piece::UrlWithoutQuery => url_without_query(request.url).as_bytes(),
            Piece::Path => url_path(request.url).as_bytes(),
            Piece::Query => url_query(request.url).as_bytes(),
            Piece::Key => self.key?,
            // Groups and calls do not nest, and only answers, which are rendered as text, hold places.
            Piece::Group(_) | Piece::Call(..) | Piece::Place(_) => return None,
        })
    }

    fn called<'p>(&'p self, function: Function, inner: &'p Piece) -> Option<Cow<'p, [u8]>> {
        let text = self.plain(inner)?;
        Some(match function {
            Function::Sha256Hex => Cow::Owned(key::sha256_hex(text).into_bytes()),
            Function::Base64 => Cow::Owned(key::base64_text(text).into_bytes()),
            Function::Crc32 => Cow::Owned(key::crc32(text).into_bytes()),
            Function::HubSpot => hubspot_decoded(text),
            Function::HmacHex | Function::HmacBase64 => return None,
        })
    }

    fn render(&self, pieces: &[Piece], take: &mut impl FnMut(&[u8])) {
        for piece in pieces {
            if let Some(bytes) = self.plain(piece) {
                take(bytes);
            } else if let Piece::Call(function, inner) = piece {
                if let Some(bytes) = self.called(*function, inner) {
                    take(&bytes);
                }
            } else if let Piece::Group(group) = piece
                && self.is_whole(group)
            {
                self.render(group, take);
            }
        }
    }

    fn is_whole(&self, group: &[Piece]) -> bool {
        variables(group).all(|i| self.values.get(i).is_some_and(Option::is_some))
    }
}

impl Message for Rendered<'_, '_> {
    fn each(&self, mut take: impl FnMut(&[u8])) {
        self.render(self.pieces, &mut take);
    }

    fn joined(&self) -> Cow<'_, [u8]> {
        match self.pieces {
            [Piece::Body] => Cow::Borrowed(self.request.body),
            _ => Cow::Owned(self.copied()),
        }
    }
}

/// The escapes that HubSpot decodes: of `: / ? @ ! $ ' ( ) * , ;`, and no others.
fn hubspot_decoded(url: &[u8]) -> Cow<'_, [u8]> {
    if !url.contains(&b'%') {
        return Cow::Borrowed(url);
    }
    let mut decoded = Vec::with_capacity(url.len());
    let mut rest = url;
    while let [first, tail @ ..] = rest {
        let character = match rest {
            [b'%', high, low, ..] => match [*high, low.to_ascii_uppercase()] {
                [b'3', b'A'] => Some(b':'),
                [b'2', b'F'] => Some(b'/'),
                [b'3', b'F'] => Some(b'?'),
                [b'4', b'0'] => Some(b'@'),
                [b'2', b'1'] => Some(b'!'),
                [b'2', b'4'] => Some(b'$'),
                [b'2', b'7'] => Some(b'\''),
                [b'2', b'8'] => Some(b'('),
                [b'2', b'9'] => Some(b')'),
                [b'2', b'A'] => Some(b'*'),
                [b'2', b'C'] => Some(b','),
                [b'3', b'B'] => Some(b';'),
                _ => None,
            },
            _ => None,
        };
        decoded.push(character.unwrap_or(*first));
        rest = if character.is_some() { &tail[2..] } else { tail };
    }
    Cow::Owned(decoded)
}

impl Piece {
    /// What it is made of, without what a function does with it.
    pub(super) fn inner(&self) -> &Piece {
        if let Piece::Call(_, inner) = self { inner } else { self }
    }
}

/// The variables that `pieces` name, those in groups included.
pub(super) fn variables(pieces: &[Piece]) -> impl Iterator<Item = usize> {
    flat(pieces).filter_map(|piece| if let Piece::Var(index) = piece { Some(*index) } else { None })
}

/// The pieces, those in groups included, without functions.
pub(super) fn flat<'a>(pieces: &'a [Piece]) -> impl Iterator<Item = &'a Piece> {
    let members =
        |piece: &'a Piece| if let Piece::Group(group) = piece { group.as_slice() } else { std::slice::from_ref(piece) };
    pieces.iter().flat_map(members).map(Piece::inner)
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
            "key" => Ok(Piece::Key),
            "body|sha256hex" => Ok(Piece::Call(Function::Sha256Hex, Box::new(Piece::Body))),
            "a|crc32" => Ok(Piece::Call(Function::Crc32, Box::new(Piece::Var(0)))),
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
        let rendered = Rendered { pieces: &pieces, request, values: &values, key: Some(b"K") };
        String::from_utf8(rendered.joined().into_owned()).unwrap()
    }

    #[test]
    fn rendering() {
        assert_eq!(rendered("v0:{b}:{body}", None), "v0:B:{}");
        assert_eq!(rendered(r"{path}\n\{\}\[\]\\ü", None), "/p\n{}[]\\ü");
        assert_eq!(rendered("[id:{a};]t:{b};", Some("1")), "id:1;t:B;");
        assert_eq!(rendered("[id:{a};]t:{b};", None), "t:B;");
        assert_eq!(rendered("[{a}{b}]{b}", None), "B");
        assert_eq!(rendered("", None), "");
        assert_eq!(rendered("{key}{b}", None), "KB");
        let hash = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(rendered("{body|sha256hex}[|{a|crc32}]", Some("123456789")), format!("{hash}|3421780262"));
        assert_eq!(rendered("{body|sha256hex}[|{a|crc32}]", None), hash);
    }

    #[test]
    fn hubspot_decodes_twelve_escapes() {
        let decoded = |url: &str| String::from_utf8(hubspot_decoded(url.as_bytes()).into_owned()).unwrap();
        let all = "%3A%2F%3F%40%21%24%27%28%29%2A%2C%3B";
        assert_eq!(decoded(all), ":/?@!$'()*,;");
        assert_eq!(decoded(&all.to_ascii_lowercase()), ":/?@!$'()*,;");
        assert_eq!(decoded("a%20%253A%2"), "a%20%253A%2");
        assert_eq!(decoded("%"), "%");
    }

    #[test]
    fn mistakes_are_named() {
        for bad in ["{body", "}", "]", "[", "[[{a}]]", r"\x", "\\", "{c}", "{}"] {
            assert!(parse(bad, &mut resolve).is_err(), "{bad}");
        }
    }
}
