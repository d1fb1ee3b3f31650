//! The Structured Fields (RFC 9651) that message signatures are written in. Values of other fields are written anew by
//! the `sfv` crate; the two headers of signatures are also read for how they are written: all of it is signed.

use crate::verify::builtin::read::malformed;
use crate::verify::check::SIGNATURES_MAX;
use crate::verify::refusal::Refusal;
use sfv::{BareItem, Dictionary, FieldType as _, Item, List, ListEntry, Parameters, Parser, StringRef};

const COMPONENTS_MAX: usize = 64;

const DERIVED: [&str; 7] = ["@method", "@target-uri", "@authority", "@scheme", "@path", "@query", "@request-target"];
const QUERY_PARAM: &str = "@query-param";

/// A component: a part of the request that is signed, and how it is written in what is signed.
#[derive(Clone, Debug)]
pub(super) struct Component {
    pub(super) part: Part,
    /// The identifier, in the order that its parameters came in.
    pub(super) written: String,
}

/// The order of parameters does not make another component.
impl PartialEq for Component {
    fn eq(&self, other: &Self) -> bool {
        self.part == other.part
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// By its name, which begins with `@`.
    Derived(&'static str),
    /// One parameter of the query, by its name as it is escaped.
    QueryParam(String),
    Field(String, Form),
}

/// How a header's value is signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Form {
    AsItStands,
    /// `sf`: written anew as the structured field that it is.
    Structured,
    /// `key`: one member of the dictionary that it is.
    Member(String),
    /// `bs`: each of its lines in base64.
    Bytes,
}

/// Why an identifier names no component of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NoComponent {
    #[error("cannot be read")]
    Unread,
    #[error("is not known")]
    Unknown,
    #[error("belongs to a response (`req`, `@status`), and this is a request")]
    OfAResponse,
    #[error("is a trailer (`tr`), and trailers are not read")]
    Trailer,
    #[error("does not name one parameter of the query")]
    Unnamed,
    #[error("has a parameter that means nothing there, or not beside the others")]
    Parameters,
}

impl Component {
    /// From a bare name, or from an identifier as it is written in a request: `"a";sf`.
    pub(super) fn parse(text: &str) -> Result<Component, NoComponent> {
        let item: Item = if text.starts_with('"') {
            Parser::new(text).parse().map_err(|_| NoComponent::Unread)?
        } else {
            Item::new(StringRef::from_str(text).map_err(|_| NoComponent::Unread)?)
        };
        Component::of(&item)
    }

    fn of(item: &Item) -> Result<Component, NoComponent> {
        let BareItem::String(name) = &item.bare_item else { return Err(NoComponent::Unread) };
        let part = part(name.as_str(), &item.params)?;
        Ok(Component { part, written: item.serialize() })
    }

    pub(super) fn is_field(&self, name: &str) -> bool {
        matches!(&self.part, Part::Field(known, _) if known == name)
    }
}

fn part(name: &str, params: &Parameters) -> Result<Part, NoComponent> {
    if params.contains_key("req") || name == "@status" {
        return Err(NoComponent::OfAResponse);
    }
    if params.contains_key("tr") {
        return Err(NoComponent::Trailer);
    }
    if name == QUERY_PARAM {
        let mut all = params.iter().map(|(key, value)| (key.as_str(), value));
        return match (all.next(), all.next()) {
            (Some(("name", BareItem::String(name))), None) => Ok(Part::QueryParam(name.as_str().to_owned())),
            _ => Err(NoComponent::Unnamed),
        };
    }
    if let Some(known) = DERIVED.into_iter().find(|known| *known == name) {
        return if params.is_empty() { Ok(Part::Derived(known)) } else { Err(NoComponent::Parameters) };
    }
    let is_field = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&b));
    if is_field { Ok(Part::Field(name.to_owned(), form(params)?)) } else { Err(NoComponent::Unknown) }
}

fn form(params: &Parameters) -> Result<Form, NoComponent> {
    let mut form = Form::AsItStands;
    for (key, value) in params {
        form = match (key.as_str(), value, form) {
            ("sf", BareItem::Boolean(true), Form::AsItStands) => Form::Structured,
            // A member is written anew in any case.
            ("sf", BareItem::Boolean(true), member @ Form::Member(_)) => member,
            ("key", BareItem::String(name), Form::AsItStands | Form::Structured) => {
                Form::Member(name.as_str().to_owned())
            }
            ("bs", BareItem::Boolean(true), Form::AsItStands) => Form::Bytes,
            _ => return Err(NoComponent::Parameters),
        };
    }
    Ok(form)
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
    /// `("a" "b");created=1;keyid="k"`. It is signed in its canonical form, and has to come in it: so no two readers
    /// see two things in it.
    pub(super) fn parse(raw: &'t str) -> Result<Self, Refusal> {
        let unread = || malformed("the list of signed components cannot be read");
        let list: List = Parser::new(raw).parse().map_err(|_| unread())?;
        if list.serialize().as_deref() != Some(raw) {
            return Err(malformed("the list of signed components is not in its canonical form"));
        }
        let [ListEntry::InnerList(inner)] = list.as_slice() else { return Err(unread()) };
        if inner.items.len() > COMPONENTS_MAX {
            return Err(malformed(format!("more than {COMPONENTS_MAX} components")));
        }
        let mut input = Input { components: Vec::new(), created: None, expires: None, keyid: None, alg: None, raw };
        for item in &inner.items {
            let component = Component::of(item).map_err(|why| malformed(format!("a component {why}")))?;
            if input.components.contains(&component) {
                return Err(malformed("a component is listed twice"));
            }
            input.components.push(component);
        }
        for (key, value) in &inner.params {
            match (key.as_str(), value) {
                ("created", BareItem::Integer(at)) => input.created = Some(i64::from(*at)),
                ("expires", BareItem::Integer(at)) => input.expires = Some(i64::from(*at)),
                ("keyid", BareItem::String(text)) => input.keyid = Some(text.as_str().to_owned()),
                ("alg", BareItem::String(text)) => input.alg = Some(text.as_str().to_owned()),
                ("nonce" | "tag", BareItem::String(_)) => {}
                _ => return Err(unread()),
            }
        }
        if [input.created, input.expires].into_iter().flatten().any(i64::is_negative) {
            return Err(unread());
        }
        Ok(input)
    }
}

/// A field's value written anew. A field of one kind that can be read as another is the same text in both, but for a
/// dictionary of names without values in which one stands twice: that is then refused, for want of a signature of it.
pub(super) fn rewritten(value: &str) -> Option<String> {
    let list = || Parser::new(value).parse::<List>().ok()?.serialize();
    list().or_else(|| Parser::new(value).parse::<Dictionary>().ok()?.serialize())
}

/// One member of a dictionary. The outer `None`: it is no dictionary; the inner: it has no such member.
pub(super) fn member(value: &str, key: &str) -> Option<Option<String>> {
    let mut dictionary: Dictionary = Parser::new(value).parse().ok()?;
    let found = dictionary.swap_remove(key);
    Some(found.and_then(|entry| {
        let alone: List = std::iter::once(entry).collect();
        alone.serialize()
    }))
}

/// A text in quotes. `None`: it has other characters than visible ASCII and spaces.
pub(super) fn quoted(text: &str) -> Option<String> {
    Some(Item::new(StringRef::from_str(text).ok()?).serialize())
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
        let names: Vec<&str> = input.components.iter().map(|component| component.written.as_str()).collect();
        let read = (names.as_slice(), input.created, input.expires);
        assert_eq!(read, (&["\"date\"", "\"@method\""][..], Some(1), Some(2)));
        assert_eq!((input.keyid.as_deref(), input.alg.as_deref()), (Some("a\"b"), Some("x")));
        assert!(Input::parse("()").unwrap().components.is_empty());
        for bad in [
            "",
            "(",
            "(\"a\"",
            "(a)",
            "(\"a\"\"b\")",
            "(\"a\"  \"b\")",
            "( \"a\")",
            " (\"a\")",
            "(\"a\"), (\"b\")",
            "\"a\"",
            "(\"A\")",
            "(\"\")",
            "(\"@nothing\")",
            "(\"a\" \"a\")",
            "(\"a\");created=1;created=2",
            "(\"a\"); created=1",
            "(\"a\");created=01",
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
    fn components_have_parameters_that_mean_something() {
        let part = |text: &str| Component::parse(text).map(|component| component.part);
        let field = |form| Ok(Part::Field("a".to_owned(), form));
        for (text, read) in [
            ("a", field(Form::AsItStands)),
            ("\"a\"", field(Form::AsItStands)),
            ("\"a\";sf", field(Form::Structured)),
            ("\"a\";bs", field(Form::Bytes)),
            ("\"a\";key=\"b\"", field(Form::Member("b".to_owned()))),
            ("\"a\";sf;key=\"b\"", field(Form::Member("b".to_owned()))),
            ("\"a\";key=\"b\";sf", field(Form::Member("b".to_owned()))),
            ("\"@query-param\";name=\"b\"", Ok(Part::QueryParam("b".to_owned()))),
            ("@method", Ok(Part::Derived("@method"))),
            ("\"a\";req", Err(NoComponent::OfAResponse)),
            ("\"@method\";req", Err(NoComponent::OfAResponse)),
            ("\"a\";bs;req", Err(NoComponent::OfAResponse)),
            ("@status", Err(NoComponent::OfAResponse)),
            ("\"a\";tr", Err(NoComponent::Trailer)),
            ("\"a\";bs;tr", Err(NoComponent::Trailer)),
            ("\"a\";bs;sf", Err(NoComponent::Parameters)),
            ("\"a\";sf;bs", Err(NoComponent::Parameters)),
            ("\"a\";bs;key=\"b\"", Err(NoComponent::Parameters)),
            ("\"a\";sf=?0", Err(NoComponent::Parameters)),
            ("\"a\";sf=1", Err(NoComponent::Parameters)),
            ("\"a\";key=b", Err(NoComponent::Parameters)),
            ("\"a\";name=\"b\"", Err(NoComponent::Parameters)),
            ("\"@method\";sf", Err(NoComponent::Parameters)),
            ("@query-param", Err(NoComponent::Unnamed)),
            ("\"@query-param\";name=b", Err(NoComponent::Unnamed)),
            ("\"@query-param\";name=\"b\";sf", Err(NoComponent::Unnamed)),
            ("@nothing", Err(NoComponent::Unknown)),
            ("A", Err(NoComponent::Unknown)),
            ("", Err(NoComponent::Unknown)),
            ("\"a", Err(NoComponent::Unread)),
            ("\"a\" \"b\"", Err(NoComponent::Unread)),
            ("\u{e9}", Err(NoComponent::Unread)),
        ] {
            assert_eq!(part(text), read, "{text}");
        }
        let same = |a: &str, b: &str| Component::parse(a).unwrap() == Component::parse(b).unwrap();
        assert!(same("\"a\";sf;key=\"b\"", "\"a\";key=\"b\";sf") && !same("a", "\"a\";sf"));
        assert!(Input::parse("(\"a\" \"a\";sf \"a\";key=\"b\" \"a\";key=\"c\" \"a\";bs)").is_ok());
        assert!(Input::parse("(\"a\";sf;key=\"b\" \"a\";key=\"b\";sf)").is_err());
    }

    /// RFC 9421, sections 2.1.1 and 2.1.2.
    #[test]
    fn fields_are_written_anew_as_the_standard_shows() {
        let messy = "a=1,    b=2;x=1;y=2,   c=(a   b   c)";
        assert_eq!(rewritten(messy).as_deref(), Some("a=1, b=2;x=1;y=2, c=(a b c)"));
        for (value, again) in [
            ("a,b", Some("a, b")),
            ("1;a=?1", Some("1;a")),
            ("a, a", Some("a, a")),
            ("", None),
            ("?", None),
            ("a=", None),
        ] {
            assert_eq!(rewritten(value).as_deref(), again, "{value}");
        }
        let dictionary = "a=1, b=2;x=1;y=2, c=(a   b    c), d";
        for (key, value) in [("a", "1"), ("d", "?1"), ("b", "2;x=1;y=2"), ("c", "(a b c)")] {
            assert_eq!(member(dictionary, key), Some(Some(value.to_owned())), "{key}");
        }
        assert_eq!(member(dictionary, "e"), Some(None));
        assert_eq!(member("(a b), c", "c"), None);
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
