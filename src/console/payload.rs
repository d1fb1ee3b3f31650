//! Bytes from outside, for people: as text, laid out, in hexadecimal, and compared. Laying out touches white space
//! alone: every number and every key stays as it was written, in its place.

use serde::de::IgnoredAny;
use std::fmt::Write as _;

/// More than this is to be downloaded.
pub(super) const SHOWN_BYTES_MAX: usize = 64 * 1024;
const HEX_BYTES_MAX: usize = 4 * 1024;
const DIFF_LINES_MAX: usize = 2_000;

/// A payload in the forms in which it can be read.
pub(super) struct Payload {
    pub(super) bytes: u64,
    /// The text, if it is text.
    pub(super) raw: Option<String>,
    /// Laid out, if it is JSON.
    pub(super) pretty: Option<String>,
    pub(super) hex: String,
    /// Only its beginning is shown.
    pub(super) is_cut: bool,
    pub(super) hex_is_cut: bool,
}

impl Payload {
    pub(super) fn of(body: &[u8]) -> Self {
        let shown = body.get(..SHOWN_BYTES_MAX).unwrap_or(body);
        let is_cut = shown.len() < body.len();
        let raw = match std::str::from_utf8(shown) {
            Ok(text) => Some(text.to_owned()),
            // Cut within a character.
            Err(error) if is_cut && error.error_len().is_none() => {
                shown.get(..error.valid_up_to()).map(|text| String::from_utf8_lossy(text).into_owned())
            }
            Err(_) => None,
        };
        let pretty = if is_cut { None } else { std::str::from_utf8(body).ok().and_then(laid_out) };
        let head = body.get(..HEX_BYTES_MAX).unwrap_or(body);
        Payload {
            bytes: body.len() as u64,
            raw,
            pretty,
            hex: hex_dump(head),
            is_cut,
            hex_is_cut: head.len() < body.len(),
        }
    }

    /// As it is best read.
    pub(super) fn best(&self) -> Option<&str> {
        self.pretty.as_deref().or(self.raw.as_deref())
    }
}

/// JSON with white space of ours between its tokens, each as it was written; `None`: it is no JSON.
pub(super) fn laid_out(text: &str) -> Option<String> {
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len() * 2);
    let (mut depth, mut at) = (0_usize, 0);
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    // The next byte that is no white space.
    let next = |from: usize| bytes.get(from..)?.iter().position(|b| !b.is_ascii_whitespace()).map(|skip| from + skip);
    while let Some(start) = next(at) {
        let byte = *bytes.get(start)?;
        at = start + 1;
        match byte {
            b'{' | b'[' => {
                out.push(char::from(byte));
                let end = next(at)?;
                if matches!(bytes.get(end), Some(b'}' | b']')) {
                    out.push(char::from(*bytes.get(end)?));
                    at = end + 1;
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(char::from(byte));
            }
            b',' => {
                out.push(',');
                line(&mut out, depth);
            }
            b':' => out.push_str(": "),
            b'"' => {
                let mut escaped = false;
                let length = bytes.get(at..)?.iter().position(|b| {
                    let ends = *b == b'"' && !escaped;
                    escaped = *b == b'\\' && !escaped;
                    ends
                })?;
                at += length + 1;
                out.push_str(text.get(start..at)?);
            }
            _ => {
                let rest = bytes.get(start..)?;
                let length = rest
                    .iter()
                    .position(|b| b.is_ascii_whitespace() || matches!(b, b',' | b'}' | b']' | b':'))
                    .unwrap_or(rest.len());
                at = start + length;
                out.push_str(text.get(start..at)?);
            }
        }
    }
    Some(out)
}

/// Sixteen bytes a line: where, what, and as characters.
fn hex_dump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (line, chunk) in bytes.chunks(16).enumerate() {
        let _ = write!(out, "{:08x}  ", line * 16);
        for at in 0..16 {
            match chunk.get(at) {
                Some(byte) => {
                    let _ = write!(out, "{byte:02x} ");
                }
                None => out.push_str("   "),
            }
            if at == 7 {
                out.push(' ');
            }
        }
        out.push(' ');
        out.extend(chunk.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' }));
        out.push('\n');
    }
    out
}

/// A line of a comparison.
pub(super) struct DiffLine {
    /// `+`, `-`, or a space for what both have.
    pub(super) sign: char,
    pub(super) text: String,
}

impl DiffLine {
    pub(super) fn class(&self) -> &'static str {
        match self.sign {
            '+' => "added",
            '-' => "removed",
            _ => "same",
        }
    }
}

/// Both laid out, line by line, with three lines around each change; `None`: they read the same.
pub(super) fn difference(before: &str, after: &str) -> Option<Vec<DiffLine>> {
    if before == after {
        return None;
    }
    let diff = similar::TextDiff::from_lines(before, after);
    let mut lines = Vec::new();
    for (number, group) in diff.grouped_ops(3).iter().enumerate() {
        if number > 0 {
            lines.push(DiffLine { sign: ' ', text: "⋯".to_owned() });
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            if lines.len() >= DIFF_LINES_MAX {
                lines.push(DiffLine { sign: ' ', text: "⋯ more differs; download both to see it".to_owned() });
                return Some(lines);
            }
            let sign = match change.tag() {
                similar::ChangeTag::Insert => '+',
                similar::ChangeTag::Delete => '-',
                similar::ChangeTag::Equal => ' ',
            };
            lines.push(DiffLine { sign, text: change.value().trim_end_matches('\n').to_owned() });
        }
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_and_keys_stay_as_they_were_written() {
        let text = r#"{"z":1.0e400,"a":12345678901234567890123, "a" : [ ], "o":{},"s":"a\"},[ \\","t":[1,-0.10,null]}"#;
        let pretty = laid_out(text).unwrap();
        assert_eq!(
            pretty,
            "{\n  \"z\": 1.0e400,\n  \"a\": 12345678901234567890123,\n  \"a\": [],\n  \"o\": {},\n  \
             \"s\": \"a\\\"},[ \\\\\",\n  \"t\": [\n    1,\n    -0.10,\n    null\n  ]\n}"
        );
        for (text, shown) in
            [(" 1.50 ", Some("1.50")), ("\"x\"", Some("\"x\"")), ("{", None), ("", None), ("a=b", None)]
        {
            assert_eq!(laid_out(text).as_deref(), shown, "{text}");
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".*".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::hash_map(".*", inner, 0..6).prop_map(|all| all.into_iter().collect()),
            ]
        })
    }

    proptest! {
        /// Outside of strings nothing but white space comes and goes.
        #[test]
        fn laying_out_is_white_space_alone(value in json()) {
            let (text, pretty) = (value.to_string(), laid_out(&value.to_string()).unwrap());
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&pretty).unwrap(), value);
            let bare = |text: &str| text.chars().filter(|c| !c.is_ascii_whitespace()).collect::<String>();
            prop_assert_eq!(bare(&pretty), bare(&text));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_in_hexadecimal() {
        let payload = Payload::of(&[0xff, 0x00, b'a']);
        assert!(payload.raw.is_none() && payload.pretty.is_none() && payload.best().is_none());
        assert_eq!(payload.hex, format!("00000000  ff 00 61 {}  ..a\n", " ".repeat(39)));
        let long = Payload::of("é".repeat(SHOWN_BYTES_MAX).as_bytes());
        assert!(long.is_cut && long.hex_is_cut && long.raw.unwrap().len() == SHOWN_BYTES_MAX);
    }

    #[test]
    fn what_differs_is_signed() {
        let lines = difference("{\n  \"a\": 1\n}", "{\n  \"a\": 2\n}").unwrap();
        let told: Vec<String> = lines.iter().map(|line| format!("{}{}", line.sign, line.text)).collect();
        assert_eq!(told, [" {", "-  \"a\": 1", "+  \"a\": 2", " }"]);
        assert!(difference("a", "a").is_none());
    }
}
