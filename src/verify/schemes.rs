//! The built-in schemes: data files in the form of `scheme = "custom"`, compiled in. A scheme's name is its file's name,
//! and stands nowhere else in the code: `build.rs` lists the directory.

use super::SchemeSpec;
use super::builtin::{Entry, PREFIX, Param, ParamKind, entry};

const FILES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/schemes.rs"));

/// The name under which a tenant's own scheme is written.
pub const CUSTOM: &str = "custom";

/// More names than this are no hint.
const NEAR_MAX: usize = 4;

/// The built-in schemes' names, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// A built-in scheme as data. `None`: there is no such scheme.
pub fn builtin(name: &str) -> Option<SchemeSpec> {
    let (_, text) = FILES.iter().find(|(known, _)| *known == name)?;
    // The files are compiled in, and a test reads each: none of them fails here.
    toml::from_str(text).ok()
}

/// Why `name` is no scheme that a source may have: the rule that it breaks, and what to write instead.
pub fn unknown(name: &str) -> Option<(String, String)> {
    if name == CUSTOM || names().any(|known| known == name) {
        return None;
    }
    let near: Vec<String> = near(name).iter().map(|near| format!("`{near}`")).collect();
    let all = "`hookgate source list-schemes` has all, and `custom` describes one of your own";
    let remedy = match near.as_slice() {
        [] => all.to_owned(),
        near => format!("did you mean {}? {all}", near.join(" or ")),
    };
    Some((format!("`{name}` is not a scheme"), remedy))
}

/// The names that may have been meant: written in another way, a part of a name, or a name with something around it;
/// else the nearest by letters.
fn near(name: &str) -> Vec<&'static str> {
    let written = name.to_ascii_lowercase();
    let word = |text: &str| text.bytes().filter(u8::is_ascii_alphanumeric).collect::<Vec<u8>>();
    let same: Vec<_> = names().filter(|known| word(known) == word(&written)).collect();
    if !same.is_empty() {
        return same;
    }
    let part = |whole: &str, part: &str| whole.split(['-', '_', ' ', '.']).any(|piece| piece == part);
    let parts: Vec<_> = names().filter(|known| part(known, &written) || part(&written, known)).collect();
    if (1..=NEAR_MAX).contains(&parts.len()) {
        return parts;
    }
    let mut near: Vec<_> = names().map(|known| (strsim::damerau_levenshtein(&written, known), known)).collect();
    near.retain(|(distance, _)| *distance <= 1 + written.len() / 4);
    let least = near.iter().map(|(distance, _)| *distance).min();
    near.retain(|(distance, _)| Some(*distance) == least);
    near.into_iter().take(NEAR_MAX).map(|(_, known)| known).collect()
}

/// The comments at the head of a scheme's file: links, and what to know of it.
pub fn comments(name: &str) -> impl Iterator<Item = &'static str> {
    let text = FILES.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| *text);
    text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim)
}

/// The settings of a scheme that is code.
pub(super) fn params(scheme: &SchemeSpec) -> impl Iterator<Item = Param> + use<> {
    code(scheme).map(|entry| entry.params).unwrap_or_default().iter().copied()
}

/// A scheme's own settings, which stand in a source's `params`.
pub fn settings(name: &str) -> Vec<Param> {
    builtin(name).map(|scheme| params(&scheme).collect()).unwrap_or_default()
}

/// The settings that a source of the scheme mostly has.
pub(super) fn usual(scheme: &SchemeSpec) -> impl Iterator<Item = Param> + use<> {
    params(scheme).filter(|param| !matches!(param.kind, ParamKind::OptionalText | ParamKind::Switch))
}

/// Whether a source of the scheme may do without secrets: the provider publishes its keys.
pub fn publishes_keys(name: &str) -> bool {
    builtin(name).is_some_and(|scheme| code(&scheme).is_some_and(|entry| entry.publishes_keys))
}

/// Whether nobody but the provider can sign: the key is its own, and private.
pub fn only_verifies(name: &str) -> bool {
    builtin(name).is_some_and(|scheme| code(&scheme).is_some_and(|entry| entry.about.only_verifies))
}

/// The code behind a scheme that is code.
pub(super) fn code(scheme: &SchemeSpec) -> Option<&'static Entry> {
    entry(scheme.verify.as_deref()?.strip_prefix(PREFIX)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_says_where_it_is_from() {
        for (name, text) in FILES {
            assert!(builtin(name).is_some(), "{name}: {:?}", toml::from_str::<SchemeSpec>(text).err());
            assert!(text.starts_with("# https://"), "{name}");
            let fields: toml::Table = toml::from_str(text).unwrap();
            assert!(fields.keys().all(|field| SchemeSpec::FIELDS.contains(&field.as_str())), "{name}");
        }
        assert!(builtin("nothing").is_none());
        assert!(names().is_sorted());
    }

    #[test]
    fn a_name_that_is_none_is_told_with_those_that_are_near() {
        for (written, near) in [
            ("sns", &["aws-sns"][..]),
            ("Github", &["github"]),
            ("gitub", &["github"]),
            ("aws_sns", &["aws-sns"]),
            ("standard_webhooks", &["standard-webhooks"]),
            ("stripe-webhooks", &["stripe"]),
            ("messagebird", &["messagebird-jwt", "messagebird-legacy"]),
            ("nothing-of-the-kind", &[]),
            ("", &[]),
        ] {
            assert_eq!(super::near(written), near, "{written}");
        }
        for name in names().chain([CUSTOM]) {
            assert_eq!(unknown(name), None, "{name}");
        }
        let (rule, remedy) = unknown("sns").unwrap();
        assert_eq!(rule, "`sns` is not a scheme");
        assert!(remedy.starts_with("did you mean `aws-sns`? `hookgate source list-schemes`"), "{remedy}");
        assert!(unknown("nothing-of-the-kind").unwrap().1.starts_with("`hookgate source list-schemes`"));
    }
}
