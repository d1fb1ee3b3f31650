//! The environment, handed in: nothing but [`Env::process`] touches the process's own.

use std::collections::BTreeMap;
use std::fmt;

/// Variables by name. Values may be secrets: `Debug` shows the names alone.
#[derive(Clone, Default)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// The process's environment. Variables that are not UTF-8 are left out: none of ours is.
    pub fn process() -> Self {
        Env(std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect())
    }

    pub fn from_pairs<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Env(pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The variables whose names begin with `prefix`.
    pub fn beginning<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.iter().filter(move |(k, _)| k.starts_with(prefix)).map(|(k, v)| (k.as_str(), v.as_str()))
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
