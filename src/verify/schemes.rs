//! The built-in schemes: data files in the form of `scheme = "custom"`, compiled in. A scheme's name is its file's name,
//! and stands nowhere else in the code: `build.rs` lists the directory.

use super::SchemeSpec;
use super::builtin::{Entry, PREFIX, Param, ParamKind, entry};

const FILES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/schemes.rs"));

/// The name under which a tenant's own scheme is written.
pub const CUSTOM: &str = "custom";

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
    params(scheme).filter(|param| param.kind != ParamKind::OptionalText)
}

/// Whether a source of the scheme may do without secrets: the provider publishes its keys.
pub fn publishes_keys(name: &str) -> bool {
    builtin(name).is_some_and(|scheme| code(&scheme).is_some_and(|entry| entry.publishes_keys))
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
}
