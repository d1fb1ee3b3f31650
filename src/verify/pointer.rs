//! JSON pointers, read from a body that stays bytes: no tree is built, and nothing is allocated that grows with the
//! body. What cannot be parsed is absent.

use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;

/// How deep a body may nest; a deeper one has no readable value.
const DEPTH_MAX: usize = 64;
/// Names in a pointer.
const TOKENS_MAX: usize = 16;
/// Pointers of one source: a bit of a [`Mask`] each.
pub(super) const POINTERS_MAX: usize = 32;
/// The longest value that is read, as written (quotes and escapes included).
const VALUE_BYTES_MAX: usize = 4096;

type Mask = u32;

/// Where a value stands (RFC 6901); the name `*` is every element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    tokens: Vec<String>,
}

const EVERY: &str = "*";

impl Pointer {
    pub(super) fn parse(text: &str) -> Result<Pointer, String> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("`{text}` is not a JSON pointer: begin with `/`, such as `/data/id`"));
        };
        if path.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
            return Err(format!("`{text}` is not a JSON pointer: write `~0` for a `~` in a name, and `~1` for a `/`"));
        }
        let tokens: Vec<String> = path.split('/').map(|t| t.replace("~1", "/").replace("~0", "~")).collect();
        if tokens.len() > TOKENS_MAX {
            return Err(format!("`{text}` is too deep: a pointer has at most {TOKENS_MAX} names"));
        }
        Ok(Pointer { tokens })
    }
}

/// What stands at a pointer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value<'b> {
    /// Nothing, `null`, a container, or what is too long; or one of the elements of `*` has nothing there.
    Absent,
    /// The text of a string, or a number or boolean as written.
    One(Cow<'b, str>),
    /// The elements of `*` do not agree.
    Several,
    /// The body is no JSON, or nests too deeply.
    Unreadable,
}

/// The scalars that stand at a source's pointers, as they are written in the body.
pub(super) struct Found<'b> {
    slots: SmallVec<[Slot<'b>; 8]>,
    readable: bool,
}

/// What was met at one pointer.
#[derive(Clone, Copy, Default)]
struct Slot<'b> {
    raw: Option<&'b str>,
    /// How often a scalar was met.
    hits: u32,
    /// A `*` led to something else, too.
    differs: bool,
    /// An element of `*` has nothing there.
    gap: bool,
}

impl<'b> Found<'b> {
    pub(super) fn read(body: &'b [u8], pointers: &[Pointer]) -> Found<'b> {
        let mut walk = Walk { pointers, slots: SmallVec::from_elem(Slot::default(), pointers.len()) };
        let all = pointers.iter().enumerate().fold(0, |mask, (i, _)| mask | bit(i));
        let readable = nests_within(body, DEPTH_MAX) && walk.container(body, all, 0).is_ok();
        Found { slots: walk.slots, readable }
    }

    pub(super) fn at(&self, index: usize) -> Value<'b> {
        let Some(slot) = self.slots.get(index).filter(|_| self.readable) else { return Value::Unreadable };
        let Some(raw) = slot.raw.filter(|_| !slot.gap) else { return Value::Absent };
        if slot.differs {
            return Value::Several;
        }
        let text = match raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(inner) if !inner.contains('\\') => Some(Cow::Borrowed(inner)),
            Some(_) => serde_json::from_str(raw).ok().map(Cow::Owned),
            None => Some(Cow::Borrowed(raw)),
        };
        text.map_or(Value::Absent, Value::One)
    }
}

fn bit(index: usize) -> Mask {
    1 << index
}

/// Whether brackets outside strings nest at most `depth_max` deep.
fn nests_within(body: &[u8], depth_max: usize) -> bool {
    // Most bodies have so few brackets that they need not be followed. Counted in bytes, as wide as the machine can.
    let brackets = |chunk: &[u8]| chunk.iter().map(|b| u8::from(matches!(b, b'{' | b'['))).sum::<u8>();
    if body.chunks(255).map(|chunk| usize::from(brackets(chunk))).sum::<usize>() <= depth_max {
        return true;
    }
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &b in body {
        if in_string {
            match b {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match b {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > depth_max {
                    return false;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    true
}

struct Walk<'p, 'b> {
    pointers: &'p [Pointer],
    slots: SmallVec<[Slot<'b>; 8]>,
}

impl<'b> Walk<'_, 'b> {
    /// Walks one object or array. A scalar holds nothing for pointers that lead further.
    fn container(&mut self, text: &'b [u8], active: Mask, depth: usize) -> Result<(), serde_json::Error> {
        let level = Level { walk: self, active, depth };
        let mut json = serde_json::Deserializer::from_slice(text);
        match text.iter().find(|b| !b.is_ascii_whitespace()) {
            Some(b'{') => json.deserialize_map(level)?,
            Some(b'[') => json.deserialize_seq(level)?,
            Some(_) | None => {
                json.deserialize_any(IgnoredAny)?;
            }
        }
        json.end()
    }

    /// The pointers among `active` whose name at `depth` is `name`.
    fn named(&self, name: &str, active: Mask, depth: usize) -> Mask {
        let mut mask = 0;
        for (i, pointer) in self.pointers.iter().enumerate() {
            if active & bit(i) != 0 && pointer.tokens.get(depth).is_some_and(|token| token == name) {
                mask |= bit(i);
            }
        }
        mask
    }

    /// Takes in the value at which the pointers of `mask` have arrived or through which they lead.
    fn value(&mut self, raw: &'b RawValue, mask: Mask, depth: usize) -> Result<(), serde_json::Error> {
        let text = raw.get();
        let scalar = !text.starts_with(['{', '[']) && text != "null" && text.len() <= VALUE_BYTES_MAX;
        let mut further = 0;
        for (i, pointer) in self.pointers.iter().enumerate() {
            if mask & bit(i) == 0 {
                continue;
            }
            let arrived = pointer.tokens.len() == depth + 1;
            let slot = &mut self.slots[i];
            if pointer.tokens.iter().take(depth + 1).any(|token| token == EVERY) {
                // Beside other elements: all of them count.
                if arrived && scalar {
                    slot.differs |= slot.raw.is_some_and(|other| other != text);
                    slot.raw = Some(text);
                }
            } else {
                // A name that comes again replaces what the first one held, as in most parsers.
                *slot = Slot { raw: (arrived && scalar).then_some(text), hits: slot.hits, ..Slot::default() };
            }
            slot.hits += u32::from(arrived && scalar);
            if !arrived {
                further |= bit(i);
            }
        }
        if further == 0 { Ok(()) } else { self.container(text.as_bytes(), further, depth + 1) }
    }

    /// Takes in one element of a list, the others of which count as well for the pointers of `every`.
    fn element(
        &mut self,
        raw: &'b RawValue,
        (mask, every): (Mask, Mask),
        depth: usize,
    ) -> Result<(), serde_json::Error> {
        if every == 0 {
            return self.value(raw, mask, depth);
        }
        let hits: SmallVec<[u32; 8]> = self.slots.iter().map(|slot| slot.hits).collect();
        self.value(raw, mask | every, depth)?;
        for (i, slot) in self.slots.iter_mut().enumerate() {
            slot.gap |= every & bit(i) != 0 && slot.hits == hits[i];
        }
        Ok(())
    }
}

struct Level<'w, 'p, 'b> {
    walk: &'w mut Walk<'p, 'b>,
    active: Mask,
    depth: usize,
}

impl<'b> Visitor<'b> for Level<'_, '_, 'b> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut map: A) -> Result<(), A::Error> {
        // Names are taken raw too: an escaped one is decoded only when it is short enough to be looked for.
        while let Some(raw) = map.next_key::<&'b RawValue>()? {
            let quoted = raw.get();
            let mask = match quoted.get(1..quoted.len().saturating_sub(1)) {
                Some(name) if !name.contains('\\') => self.walk.named(name, self.active, self.depth),
                Some(_) if quoted.len() <= VALUE_BYTES_MAX => {
                    let name: String = serde_json::from_str(quoted).map_err(A::Error::custom)?;
                    self.walk.named(&name, self.active, self.depth)
                }
                Some(_) | None => 0,
            };
            if mask == 0 {
                map.next_value::<IgnoredAny>()?;
            } else {
                let value = map.next_value::<&'b RawValue>()?;
                self.walk.value(value, mask, self.depth).map_err(A::Error::custom)?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'b>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0usize;
        let every = self.walk.named(EVERY, self.active, self.depth);
        while let Some(value) = seq.next_element::<&'b RawValue>()? {
            // Only the first elements can be named by their number.
            let mask = if index < 1_000 { self.walk.named(&index.to_string(), self.active, self.depth) } else { 0 };
            if mask | every != 0 {
                self.walk.element(value, (mask, every), self.depth).map_err(A::Error::custom)?;
            }
            index += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'b>(body: &'b [u8], pointer: &str) -> Value<'b> {
        Found::read(body, &[Pointer::parse(pointer).unwrap()]).at(0)
    }

    fn at(body: &[u8], pointer: &str) -> Option<String> {
        if let Value::One(text) = value(body, pointer) { Some(text.into_owned()) } else { None }
    }

    #[test]
    fn scalars_are_read_where_they_stand() {
        let body =
            br#" {"skip":{"id":[1,{"id":"no"}]},"id":"a","n":-1.5e3,"t":true,"z":null,"o":{"id":"b","l":["x","y"]},
            "e\u0073c":"q\"\u00e9","a/b":"s","":"empty"} "#;
        let cases = [
            ("/id", Some("a")),
            ("/n", Some("-1.5e3")),
            ("/t", Some("true")),
            ("/z", None),
            ("/o", None),
            ("/o/id", Some("b")),
            ("/o/l/1", Some("y")),
            ("/o/l/2", None),
            ("/esc", Some("q\"é")),
            ("/a~1b", Some("s")),
            ("/", Some("empty")),
            ("/id/x", None),
        ];
        for (pointer, expected) in cases {
            assert_eq!(at(body, pointer).as_deref(), expected, "{pointer}");
        }
    }

    #[test]
    fn one_pass_answers_all_pointers() {
        let pointers: Vec<_> = ["/a", "/a/b", "/c"].iter().map(|p| Pointer::parse(p).unwrap()).collect();
        let found = Found::read(br#"{"c":1,"a":{"b":2}}"#, &pointers);
        assert_eq!(found.at(0), Value::Absent);
        assert_eq!(found.at(1), Value::One("2".into()));
        assert_eq!(found.at(2), Value::One("1".into()));
    }

    #[test]
    fn the_last_of_two_names_counts() {
        assert_eq!(at(br#"{"id":"a","id":"b"}"#, "/id").as_deref(), Some("b"));
        assert_eq!(at(br#"{"a":{"id":"x"},"a":{}}"#, "/a/id"), None);
        assert_eq!(at(br#"{"id":"a","id":null}"#, "/id"), None);
    }

    #[test]
    fn all_elements_have_to_agree() {
        let one = || Value::One("a".into());
        let cases = [
            (r#"{"v":[{"c":"a"},{"c":"a"}]}"#, one()),
            (r#"{"v":[{"c":"a"}]}"#, one()),
            (r#"{"v":[{"c":"a"},{"c":"b"}]}"#, Value::Several),
            (r#"{"v":[{"c":"b"},{"c":"a"},{"c":"a"}]}"#, Value::Several),
            (r#"{"v":[{"c":"a"},{}]}"#, Value::Absent),
            (r#"{"v":[{},{"c":"a"}]}"#, Value::Absent),
            (r#"{"v":[{"c":"a"},3]}"#, Value::Absent),
            (r#"{"v":[{"c":"a"},{"c":["a"]}]}"#, Value::Absent),
            (r#"{"v":[{"c":"a"},{"c":null}]}"#, Value::Absent),
            (r#"{"v":[]}"#, Value::Absent),
            (r#"{"v":{"c":"a"}}"#, Value::Absent),
            (r#"{"v":{"*":{"c":"a"}}}"#, one()),
            (r#"{"v":[{"c":"b"}],"v":[{"c":"a"}]}"#, one()),
            ("{", Value::Unreadable),
        ];
        for (body, expected) in cases {
            assert_eq!(value(body.as_bytes(), "/v/*/c"), expected, "{body}");
        }
        assert_eq!(value(br#"{"v":["a","a"]}"#, "/v/*"), one());
        assert_eq!(value(br#"{"v":[{"w":[{"c":1},{"c":1}]},{"w":[{"c":1}]}]}"#, "/v/*/w/*/c"), Value::One("1".into()));
        assert_eq!(value(br#"{"v":[{"w":[{"c":1}]},{"w":[]}]}"#, "/v/*/w/*/c"), Value::Absent);
        let many = format!("[{}{{\"c\":2}}]", "{\"c\":1},".repeat(2_000));
        assert_eq!(value(many.as_bytes(), "/*/c"), Value::Several);
    }

    #[test]
    fn what_cannot_be_parsed_is_absent() {
        let bodies: [&[u8]; 9] = [
            b"",
            b"{",
            b"{\"id\":\"a\"",
            b"{\"id\":\"a\"} x",
            b"{\"id\":\"\xff\"}",
            b"{\"id\":\"a\",}",
            b"\"id\"",
            b"\xef\xbb\xbf{\"id\":\"a\"}",
            b"id=a",
        ];
        for body in bodies {
            assert_eq!(at(body, "/id"), None, "{body:?}");
        }
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let deep = |n: usize| format!(r#"{{"d":{}{},"id":"a"}}"#, "[".repeat(n), "]".repeat(n)).into_bytes();
        assert_eq!(at(&deep(63), "/id").as_deref(), Some("a"));
        assert_eq!(at(&deep(64), "/id"), None);
        assert_eq!(at(&"[".repeat(1_000_000).into_bytes(), "/0/0"), None);
        let brackets_in_strings = format!(r#"{{"s":"{}\"[","id":"a"}}"#, "[".repeat(1000)).into_bytes();
        assert_eq!(at(&brackets_in_strings, "/id").as_deref(), Some("a"));
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(VALUE_BYTES_MAX)).into_bytes();
        assert_eq!(at(&long, "/id"), None);
    }

    #[test]
    fn pointers_are_checked() {
        for bad in ["", "id", &"/a".repeat(TOKENS_MAX + 1)] {
            assert!(Pointer::parse(bad).is_err(), "{bad}");
        }
    }
}
