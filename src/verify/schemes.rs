//! The built-in schemes: data files in the form of `scheme = "custom"`, compiled in. A scheme's name is its file's name,
//! and stands nowhere else in the code: `build.rs` lists the directory.

use super::SchemeSpec;

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
