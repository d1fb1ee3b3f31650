//! The little of Structured Fields (RFC 8941) that message signatures are written in.

use crate::verify::builtin::read::malformed;
use crate::verify::check::SIGNATURES_MAX;
use crate::verify::refusal::Refusal;

const COMPONENTS_MAX: usize = 64;

/// A component, as its name and as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Component {
    pub(super) name: String,
    pub(super) written: String,
}

impl Component {
    /// From a bare name. Derived components with parameters of their own are not supported.
    pub(super) fn parse_bare(name: &str) -> Option<Component> {
        let derived =
            ["@method", "@target-uri", "@authority", "@scheme", "@path", "@query", "@request-target"].contains(&name);
        let is_field = !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&b));
        (derived || is_field).then(|| Component { name: name.to_owned(), written: format!("\"{name}\"") })
    }
}

/// One signature's components and parameters.
pub(super) struct Input<'t> {
    pub(super) components: Vec<Component>,
    pub(super) created: Option<i64>,
    pub(super) expires: Option<i64>,
    pub(super) keyid: Option<String>,
    pub(super) alg: Option<String>,
    /// As it was received: it is signed itself.
    pub(super) raw: &'t str,
}

impl<'t> Input<'t> {
    /// `("a" "b");created=1;keyid="k"`.
    pub(super) fn parse(raw: &'t str) -> Result<Self, Refusal> {
        let unread = || malformed("the list of signed components cannot be read");
        let mut input = Input { components: Vec::new(), created: None, expires: None, keyid: None, alg: None, raw };
        let mut rest = raw.strip_prefix('(').ok_or_else(unread)?;
        loop {
            rest = rest.trim_start_matches(' ');
            if let Some(after) = rest.strip_prefix(')') {
                rest = after;
                break;
            }
            let (name, after) = string(rest).ok_or_else(unread)?;
            if after.starts_with(';') {
                return Err(malformed("a component has parameters, and none is supported"));
            }
            if !after.starts_with([' ', ')']) {
                return Err(unread());
            }
            let component = Component::parse_bare(&name).ok_or_else(|| malformed("a component is not known"))?;
            if input.components.contains(&component) {
                return Err(malformed("a component is listed twice"));
            }
            if input.components.len() == COMPONENTS_MAX {
                return Err(malformed(format!("more than {COMPONENTS_MAX} components")));
            }
            input.components.push(component);
            rest = after;
        }
        while let Some(after) = rest.strip_prefix(';') {
            let after = after.trim_start_matches(' ');
            let end = after.find(['=', ';']).unwrap_or(after.len());
            let name = &after[..end];
            let Some(value) = after[end..].strip_prefix('=') else { return Err(unread()) };
            rest = match name {
                "created" => number(value, &mut input.created),
                "expires" => number(value, &mut input.expires),
                "keyid" => text(value, &mut input.keyid),
                "alg" => text(value, &mut input.alg),
                "nonce" | "tag" => text(value, &mut None),
                _ => None,
            }
            .ok_or_else(unread)?;
        }
        if rest.is_empty() { Ok(input) } else { Err(unread()) }
    }
}

fn number<'t>(value: &'t str, slot: &mut Option<i64>) -> Option<&'t str> {
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (digits, rest) = value.split_at(end);
    (digits.len() <= 15 && slot.replace(digits.parse().ok()?).is_none()).then_some(rest)
}

fn text<'t>(value: &'t str, slot: &mut Option<String>) -> Option<&'t str> {
    let (text, rest) = string(value)?;
    slot.replace(text).is_none().then_some(rest)
}

/// A string in quotes, and what follows it.
fn string(text: &str) -> Option<(String, &str)> {
    let mut chars = text.strip_prefix('"')?.char_indices();
    let mut value = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 2..])),
            '\\' => value.push(chars.next().map(|(_, c)| c).filter(|c| matches!(c, '"' | '\\'))?),
            ' '..='~' => value.push(c),
            _ => return None,
        }
    }
    None
}

pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

/// The members of a dictionary, their values as they are written. Two of one name are a mistake.
pub(super) fn members(text: &str) -> Result<Vec<(&str, &str)>, Refusal> {
    let mut members: Vec<(&str, &str)> = Vec::new();
    for member in split(text) {
        let (name, value) =
            member.trim_matches([' ', '\t']).split_once('=').ok_or_else(|| malformed("a dictionary cannot be read"))?;
        let is_key = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.*".contains(&b);
        if name.is_empty() || !name.bytes().all(is_key) {
            return Err(malformed("a dictionary cannot be read"));
        }
        if members.len() == SIGNATURES_MAX {
            return Err(malformed(format!("more than {SIGNATURES_MAX} signatures in one request")));
        }
        if members.iter().any(|(known, _)| *known == name) {
            return Err(malformed("a name is there twice in a dictionary"));
        }
        members.push((name, value));
    }
    Ok(members)
}

/// At the commas that stand outside of quotes.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |c: char| {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => return true,
            _ => {}
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_read_strictly() {
        let input = Input::parse(r#"("date" "@method");created=1;expires=2;keyid="a\"b";alg="x";nonce="n""#).unwrap();
        let names: Vec<&str> = input.components.iter().map(|component| component.name.as_str()).collect();
        assert_eq!((names.as_slice(), input.created, input.expires), (&["date", "@method"][..], Some(1), Some(2)));
        assert_eq!((input.keyid.as_deref(), input.alg.as_deref()), (Some("a\"b"), Some("x")));
        assert!(Input::parse("()").unwrap().components.is_empty());
        for bad in [
            "",
            "(",
            "(\"a\"",
            "(a)",
            "(\"a\"\"b\")",
            "(\"A\")",
            "(\"@nothing\")",
            "(\"@query-param\";name=\"a\")",
            "(\"a\" \"a\")",
            "(\"a\");created=1;created=2",
            "(\"a\");created=-1",
            "(\"a\");created=1.5",
            "(\"a\");created=9999999999999999",
            "(\"a\");created",
            "(\"a\");keyid=a",
            "(\"a\");keyid=\"a",
            "(\"a\");keyid=\"\u{e9}\"",
            "(\"a\");other=1",
            "(\"a\") x",
        ] {
            assert!(Input::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dictionaries_are_split_outside_of_quotes() {
        let all = members("a=(\"x\");keyid=\"1,2\\\",3\", b=:AA==:").unwrap();
        assert_eq!(all, [("a", "(\"x\");keyid=\"1,2\\\",3\""), ("b", ":AA==:")]);
        for bad in ["", "a", "A=1", "a=1,a=2", "=1", "a=1,,b=2"] {
            assert!(members(bad).is_err(), "{bad}");
        }
        assert!(members(&(0..65).map(|n| format!("a{n}=1")).collect::<Vec<_>>().join(",")).is_err());
    }
}
