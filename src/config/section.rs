//! Typed reading of the tree. A reader that finds something else records a problem and goes on, so that one run finds
//! everything; it answers `None` for what is absent and for what is wrong alike.

use super::problem::{self, Position, Problem};
use super::report::Expiry;
use super::size;
use super::tree::{Fields, Node, Place, Value};
use super::{Env, Outside};
use crate::clock::Timestamp;
use crate::delivery::Name;
use crate::duration;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::time::Duration;

/// What is collected on the way.
pub(super) struct Walk<'a> {
    pub(super) text: &'a str,
    /// The directory relative paths of the file start from.
    pub(super) base: &'a Path,
    pub(super) env: &'a Env,
    pub(super) outside: Outside,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
    /// Bytes of the file that no message may show.
    pub(super) masks: Vec<Range<usize>>,
    /// Variables that secrets are taken from.
    pub(super) referenced: BTreeSet<String>,
    /// Secrets of sources that have an end.
    pub(super) expiries: Vec<Expiry>,
    /// Every key that was asked for, with `<name>` for names: what the reference must list.
    pub(super) keys: BTreeSet<String>,
}

/// A value, where it was written, and the full path of its key.
#[derive(Clone)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
    pub(super) field: String,
}

impl<T> At<T> {
    pub(super) fn with<U>(&self, value: U) -> At<U> {
        At { value, place: self.place.clone(), field: self.field.clone() }
    }
}

impl Walk<'_> {
    /// Notes when something ends, for who knows the time.
    pub(super) fn expires<T>(&mut self, at: &At<T>, when: Timestamp, is_last: bool) {
        let warning = self.describe(&at.place, &at.field, "", "");
        self.expiries.push(Expiry { warning, when, is_last });
    }

    fn describe(&self, place: &Place, field: &str, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
        let (position, span) = match place {
            Place::File(span) => (problem::position(self.text, span.start), Some(span.clone())),
            Place::Env(variable) => (Position::Environment { variable: variable.clone() }, None),
            Place::Flag(flag) => (Position::Flag { flag: (*flag).to_owned() }, None),
        };
        Problem { position, field: field.to_owned(), message: message.into(), remedy: remedy.into(), span }
    }

    pub(super) fn problem(
        &mut self,
        place: &Place,
        field: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let problem = self.describe(place, field, message, remedy);
        self.problems.push(problem);
    }

    pub(super) fn reject<T>(&mut self, at: &At<T>, message: impl Into<String>, remedy: impl Into<String>) {
        self.problem(&at.place, &at.field, message, remedy);
    }

    pub(super) fn warn<T>(&mut self, at: &At<T>, message: impl Into<String>, remedy: impl Into<String>) {
        let warning = self.describe(&at.place, &at.field, message, remedy);
        self.warnings.push(warning);
    }

    /// Keeps the bytes at `place` out of every message.
    pub(super) fn hide(&mut self, place: &Place) {
        if let Place::File(span) = place {
            self.masks.push(span.clone());
        }
    }

    /// Where relative paths that were written at `place` start: the file's directory, or the working directory.
    pub(super) fn base_of(&self, place: &Place) -> &Path {
        match place {
            Place::File(_) => self.base,
            Place::Env(_) | Place::Flag(_) => Path::new(""),
        }
    }

    fn mismatch(&mut self, node: &Node, field: &str, wanted: &str) {
        // What was found is named by its kind alone: a text may be a secret in the wrong place.
        let found = node.value.kind();
        match &node.value {
            Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::Other(_) => {}
            Value::Untyped(_) | Value::String(_) | Value::Array(_) | Value::Table(_) => self.hide(&node.place),
        }
        self.problem(&node.place, field, format!("expected {wanted}, found {found}"), format!("write {wanted}"));
    }
}

/// The nearest of `known` to what was written, when it is near.
pub(super) fn nearest<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let near = known.into_iter().map(|k| (strsim::damerau_levenshtein(written, k), k)).min()?;
    (near.0 <= 1 + written.len() / 4).then_some(near.1)
}

/// Whether the entries of a list of secrets may be tables.
#[derive(Clone, Copy)]
pub(super) enum Tables {
    Taken,
    Refused,
}

/// A secret as it is written in a list.
pub(super) enum Entry<'t> {
    Text(At<String>),
    Table(Section<'t>),
}

/// Whether a secret is named here, and kept elsewhere.
fn is_elsewhere(node: &Node) -> bool {
    text_of(node).is_some_and(|text| text.starts_with("env:") || text.starts_with("file:"))
}

/// On or off, or a table that says more.
pub(super) enum Switch<'t> {
    Is(bool),
    Table(Section<'t>),
}

/// One table being read.
pub(super) struct Section<'t> {
    fields: &'t Fields,
    pub(super) place: Place,
    path: String,
    /// The path with `<name>` for every name.
    pattern: String,
    known: BTreeSet<&'static str>,
    /// Keys of a later release: refused, and never proposed.
    later: BTreeSet<&'static str>,
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl<'t> Section<'t> {
    pub(super) fn root(fields: &'t Fields) -> Self {
        Section {
            fields,
            place: Place::File(0..0),
            path: String::new(),
            pattern: String::new(),
            known: BTreeSet::new(),
            later: BTreeSet::new(),
        }
    }

    pub(super) fn path(&self, key: &str) -> String {
        joined(&self.path, key)
    }

    /// The section itself as something to point at.
    pub(super) fn at(&self) -> At<()> {
        At { value: (), place: self.place.clone(), field: self.path.clone() }
    }

    fn take(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<&'t Node> {
        self.known.insert(key);
        walk.keys.insert(joined(&self.pattern, key));
        self.fields.get(key).map(|field| &field.node)
    }

    fn found<T>(&self, key: &str, node: &Node, value: T) -> At<T> {
        At { value, place: node.place.clone(), field: self.path(key) }
    }

    /// Where every key in here stands, and every key in the tables in here, by its path from here.
    pub(super) fn places(&self) -> Vec<(String, Place)> {
        fn of(fields: &Fields, path: &str, all: &mut Vec<(String, Place)>) {
            for (key, field) in fields {
                let path = joined(path, key);
                all.push((path.clone(), field.key.clone()));
                if let Value::Table(inner) = &field.node.value {
                    of(inner, &path, all);
                }
            }
        }
        let mut all = Vec::new();
        of(self.fields, "", &mut all);
        all
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.fields.contains_key(key)
    }

    /// Whether there is a key that nobody has asked for and that is near to `key`: it is told as a slip of the pen.
    pub(super) fn has_like(&self, key: &str) -> bool {
        let strange = self.fields.keys().filter(|written| !self.known.contains(written.as_str()));
        strange.into_iter().any(|written| nearest(written, [key]).is_some())
    }

    pub(super) fn string(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<At<String>> {
        let node = self.take(walk, key)?;
        let text = text_of(node);
        if text.is_none() {
            walk.mismatch(node, &self.path(key), "a string, in quotes");
        }
        Some(self.found(key, node, text?.to_owned()))
    }

    /// A list of secrets: only those that say where the secret is may be shown. With `tables`, each may also be a
    /// table with its own keys.
    pub(super) fn secrets(
        &mut self,
        walk: &mut Walk<'_>,
        key: &'static str,
        tables: Tables,
    ) -> Option<At<Vec<Entry<'t>>>> {
        let node = self.take(walk, key)?;
        if let (Tables::Taken, Value::Array(items)) = (tables, &node.value) {
            let each = items.iter().enumerate();
            let read: Vec<_> = each.filter_map(|(i, item)| self.secret(walk, key, i, item)).collect();
            // A list of mistakes alone has been told of, and is no empty one.
            return (read.is_empty() == items.is_empty()).then(|| self.found(key, node, read));
        }
        match &node.value {
            Value::Array(items) => items.iter().filter(|n| !is_elsewhere(n)).for_each(|n| walk.hide(&n.place)),
            Value::Untyped(_)
            | Value::String(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::Table(_)
            | Value::Other(_) => walk.hide(&node.place),
        }
        if let Value::String(text) = &node.value {
            let example = if is_elsewhere(node) { text.as_str() } else { "env:NAME" };
            let remedy = format!("write a list: {key} = [\"{example}\"]");
            walk.problem(&node.place, &self.path(key), "expected a list of strings, found a string", remedy);
            return None;
        }
        let list = self.list(walk, key, node)?;
        Some(At { value: list.value.into_iter().map(Entry::Text).collect(), place: list.place, field: list.field })
    }

    /// One entry of a list of secrets.
    fn secret(&self, walk: &mut Walk<'_>, key: &str, number: usize, item: &'t Node) -> Option<Entry<'t>> {
        let path = format!("{}[{number}]", self.path(key));
        let Value::Table(fields) = &item.value else {
            if !is_elsewhere(item) {
                walk.hide(&item.place);
            }
            let Some(text) = text_of(item) else {
                walk.mismatch(item, &path, "a string, in quotes, or a table with `value`");
                return None;
            };
            return Some(Entry::Text(At { value: text.to_owned(), place: item.place.clone(), field: path }));
        };
        for field in fields.values().filter(|field| !is_elsewhere(&field.node)) {
            walk.hide(&field.node.place);
        }
        Some(Entry::Table(Section {
            fields,
            place: item.place.clone(),
            path,
            pattern: joined(&self.pattern, key),
            known: BTreeSet::new(),
            later: BTreeSet::new(),
        }))
    }

    pub(super) fn strings(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<At<Vec<At<String>>>> {
        let node = self.take(walk, key)?;
        self.list(walk, key, node)
    }

    /// A string, or a list of them.
    pub(super) fn one_or_more(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<At<Vec<At<String>>>> {
        let node = self.take(walk, key)?;
        match &node.value {
            Value::String(text) => Some(self.found(key, node, vec![self.found(key, node, text.clone())])),
            Value::Untyped(_)
            | Value::Array(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::Table(_)
            | Value::Other(_) => self.list(walk, key, node),
        }
    }

    fn list(&self, walk: &mut Walk<'_>, key: &str, node: &Node) -> Option<At<Vec<At<String>>>> {
        let field = self.path(key);
        let items = match &node.value {
            Value::Array(items) => items.iter().enumerate().filter_map(|(i, item)| {
                let field = format!("{field}[{i}]");
                let text = text_of(item);
                if text.is_none() {
                    walk.mismatch(item, &field, "a string, in quotes");
                }
                Some(At { value: text?.to_owned(), place: item.place.clone(), field })
            }),
            Value::Untyped(text) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                let items = parts.map(|part| self.found(key, node, part.to_owned())).collect();
                return Some(self.found(key, node, items));
            }
            Value::String(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::Table(_)
            | Value::Other(_) => {
                walk.mismatch(node, &field, "a list of strings, e.g. [\"a\", \"b\"]");
                return None;
            }
        };
        let items = items.collect();
        Some(self.found(key, node, items))
    }

    /// Whole seconds: a number, or a duration.
    pub(super) fn seconds(
        &mut self,
        walk: &mut Walk<'_>,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Option<At<u32>> {
        let Some(text) = self.fields.get(key).and_then(|field| text_of(&field.node)).map(str::trim) else {
            return self.integer(walk, key, range);
        };
        if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
            return self.integer(walk, key, range);
        }
        let node = self.take(walk, key)?;
        let span = duration::parse(text).ok().filter(|span| span.subsec_nanos() == 0);
        let seconds = span.and_then(|span| u32::try_from(span.as_secs()).ok()).filter(|n| range.contains(n));
        match seconds {
            Some(seconds) => Some(self.found(key, node, seconds)),
            None => {
                let remedy = format!("write seconds from {} to {}, as in 300 or \"5m\"", range.start(), range.end());
                walk.problem(&node.place, &self.path(key), "not a number of seconds", remedy);
                None
            }
        }
    }

    pub(super) fn integer(
        &mut self,
        walk: &mut Walk<'_>,
        key: &'static str,
        range: RangeInclusive<u32>,
    ) -> Option<At<u32>> {
        let node = self.take(walk, key)?;
        let read = match &node.value {
            Value::Integer(n) => Some(*n),
            Value::Untyped(text) => text.trim().parse().ok(),
            Value::String(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Table(_)
            | Value::Other(_) => None,
        };
        let Some(n) = read else {
            walk.mismatch(node, &self.path(key), "a whole number");
            return None;
        };
        match u32::try_from(n).ok().filter(|n| range.contains(n)) {
            Some(n) => Some(self.found(key, node, n)),
            None => {
                let (low, high) = (range.start(), range.end());
                let field = self.path(key);
                walk.problem(
                    &node.place,
                    &field,
                    format!("{n} is out of range"),
                    format!("write a number from {low} to {high}"),
                );
                None
            }
        }
    }

    pub(super) fn number(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<At<f64>> {
        let node = self.take(walk, key)?;
        let read = match &node.value {
            // Settings are far below 2^53.
            #[expect(clippy::cast_precision_loss, reason = "no setting is that large")]
            Value::Integer(n) => Some(*n as f64),
            Value::Float(n) => Some(*n),
            Value::Untyped(text) => text.trim().parse().ok(),
            Value::String(_) | Value::Bool(_) | Value::Array(_) | Value::Table(_) | Value::Other(_) => None,
        };
        if read.is_none() {
            walk.mismatch(node, &self.path(key), "a number");
        }
        Some(self.found(key, node, read?))
    }

    pub(super) fn boolean(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<At<bool>> {
        let node = self.take(walk, key)?;
        let read = match &node.value {
            Value::Bool(b) => Some(*b),
            Value::Untyped(text) => text.trim().parse().ok(),
            Value::String(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Array(_)
            | Value::Table(_)
            | Value::Other(_) => None,
        };
        if read.is_none() {
            walk.mismatch(node, &self.path(key), "`true` or `false`");
        }
        Some(self.found(key, node, read?))
    }

    /// Whether `key` is switched off in so many words.
    pub(super) fn is_off(&self, key: &str) -> bool {
        match self.fields.get(key).map(|field| &field.node.value) {
            Some(Value::Bool(on)) => !on,
            Some(Value::Untyped(text)) => text.trim() == "false",
            _ => false,
        }
    }

    /// On, off, or on with a table of its own.
    pub(super) fn switch(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<Switch<'t>> {
        match self.fields.get(key).map(|field| &field.node) {
            Some(Node { value: Value::Table(_), .. }) => self.table(walk, key).map(Switch::Table),
            Some(Node { value: Value::Bool(_) | Value::Untyped(_), .. }) | None => {
                self.boolean(walk, key).map(|at| Switch::Is(at.value))
            }
            Some(node) => {
                self.take(walk, key);
                walk.mismatch(node, &self.path(key), "`true`, `false` or a table");
                None
            }
        }
    }

    pub(super) fn duration(
        &mut self,
        walk: &mut Walk<'_>,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<At<Duration>> {
        let at = match self.take(walk, key)? {
            Node { value: Value::Integer(n), place } => {
                walk.problem(
                    place,
                    &self.path(key),
                    format!("{n} has no unit"),
                    format!("write a duration such as \"{n}s\" or \"{n}ms\""),
                );
                return None;
            }
            node => match text_of(node) {
                Some(text) => self.found(key, node, text.to_owned()),
                None => {
                    walk.mismatch(node, &self.path(key), "a duration such as \"30s\"");
                    return None;
                }
            },
        };
        duration(walk, &at, range)
    }

    pub(super) fn size(
        &mut self,
        walk: &mut Walk<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<At<u64>> {
        let node = self.take(walk, key)?;
        let field = self.path(key);
        let read = match &node.value {
            Value::Integer(n) => u64::try_from(*n).ok(),
            Value::String(text) | Value::Untyped(text) => size::parse(text),
            Value::Float(_) | Value::Bool(_) | Value::Array(_) | Value::Table(_) | Value::Other(_) => {
                walk.mismatch(node, &field, "a size such as \"256KiB\"");
                return None;
            }
        };
        let Some(bytes) = read else {
            walk.problem(
                &node.place,
                &field,
                "not a size",
                "write a whole number with B, KiB, MiB or GiB, e.g. \"256KiB\", or a number of bytes",
            );
            return None;
        };
        if !range.contains(&bytes) {
            let (low, high) = (size::show(*range.start()), size::show(*range.end()));
            walk.problem(
                &node.place,
                &field,
                format!("{} is out of range", size::show(bytes)),
                format!("write a size from {low} to {high}"),
            );
            return None;
        }
        Some(self.found(key, node, bytes))
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        walk: &mut Walk<'_>,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<At<T>> {
        let at = self.string(walk, key)?;
        match words.iter().find(|(word, _)| *word == at.value) {
            Some((_, value)) => Some(at.with(*value)),
            None => {
                let all: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
                walk.reject(&at, format!("`{}` is not a choice here", at.value), format!("write {}", all.join(" or ")));
                None
            }
        }
    }

    /// A table within this one.
    pub(super) fn table(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<Section<'t>> {
        let node = self.take(walk, key)?;
        let Value::Table(fields) = &node.value else {
            walk.mismatch(node, &self.path(key), "a table");
            return None;
        };
        let (path, pattern) = (self.path(key), joined(&self.pattern, key));
        Some(Section {
            fields,
            place: self.fields[key].key.clone(),
            path,
            pattern,
            known: BTreeSet::new(),
            later: BTreeSet::new(),
        })
    }

    /// A table of tables by name.
    pub(super) fn named(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Vec<(Name, Section<'t>)> {
        let Some(outer) = self.table(walk, key) else { return Vec::new() };
        let mut all = Vec::new();
        for (written, field) in outer.fields {
            let path = outer.path(written);
            let Ok(name) = written.parse::<Name>() else {
                walk.problem(
                    &field.key,
                    &path,
                    format!("`{written}` is not a name"),
                    "use 1 to 63 of a-z, 0-9 and `-`, beginning with a letter or digit",
                );
                continue;
            };
            let Value::Table(fields) = &field.node.value else {
                walk.mismatch(&field.node, &path, "a table");
                continue;
            };
            let pattern = joined(&outer.pattern, "<name>");
            all.push((
                name,
                Section {
                    fields,
                    place: field.key.clone(),
                    path,
                    pattern,
                    known: BTreeSet::new(),
                    later: BTreeSet::new(),
                },
            ));
        }
        all
    }

    /// A table of strings.
    pub(super) fn map(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Vec<(String, String)> {
        let Some(inner) = self.table(walk, key) else { return Vec::new() };
        let mut all = Vec::new();
        for (name, field) in inner.fields {
            match text_of(&field.node) {
                Some(text) => all.push((name.clone(), text.to_owned())),
                None => walk.mismatch(&field.node, &inner.path(name), "a string, in quotes"),
            }
        }
        all
    }

    /// Anything, as JSON. It is somebody else's business and may hold secrets: never shown.
    pub(super) fn json(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<At<serde_json::Value>> {
        let node = self.take(walk, key)?;
        walk.hide(&node.place);
        let field = self.path(key);
        let Value::Table(fields) = &node.value else {
            walk.mismatch(node, &field, "a table, e.g. { region = \"eu\" }");
            return None;
        };
        let mut object = serde_json::Map::new();
        for (name, inner) in fields {
            walk.hide(&inner.node.place);
            object.insert(name.clone(), json_of(walk, &inner.node, &joined(&field, name))?);
        }
        Some(self.found(key, node, object.into()))
    }

    /// A list of anything, as JSON.
    pub(super) fn json_list(&mut self, walk: &mut Walk<'_>, key: &'static str) -> Option<At<serde_json::Value>> {
        let node = self.take(walk, key)?;
        let field = self.path(key);
        if !matches!(node.value, Value::Array(_)) {
            walk.mismatch(node, &field, "a list of tables");
            return None;
        }
        let list = json_of(walk, node, &field)?;
        Some(self.found(key, node, list))
    }

    /// A key that a later release will know. Refused, so that nobody relies on it in vain.
    pub(super) fn not_yet(&mut self, walk: &mut Walk<'_>, key: &'static str, remedy: &str) {
        self.refuse(walk, key, "is not supported by this release", remedy);
    }

    /// A key that has no place here, and why.
    pub(super) fn refuse(&mut self, walk: &mut Walk<'_>, key: &'static str, why: &str, remedy: &str) {
        self.later.insert(key);
        if let Some(found) = self.fields.get(key) {
            let field = self.path(key);
            walk.hide(&found.node.place);
            walk.problem(&found.key, &field, format!("`{key}` {why}"), remedy);
        }
    }

    /// The text of a key, if it has one.
    pub(super) fn written(&self, key: &str) -> Option<&'t str> {
        text_of(&self.fields.get(key)?.node)
    }

    /// To be called when everything known was asked for: what is left is a mistake.
    pub(super) fn close(self, walk: &mut Walk<'_>) {
        for (key, field) in self.fields {
            if self.known.contains(key.as_str()) || self.later.contains(key.as_str()) {
                continue;
            }
            // A misspelt `secrets` is still a secret.
            walk.hide(&field.node.place);
            let remedy = match nearest(key, self.known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    let known: Vec<&str> = self.known.iter().copied().collect();
                    format!("remove it; known here: {}", known.join(", "))
                }
            };
            walk.problem(&field.key, &self.path(key), format!("unknown key `{key}`"), remedy);
        }
    }
}

fn text_of(node: &Node) -> Option<&str> {
    match &node.value {
        Value::String(text) | Value::Untyped(text) => Some(text),
        Value::Integer(_) | Value::Float(_) | Value::Bool(_) | Value::Array(_) | Value::Table(_) | Value::Other(_) => {
            None
        }
    }
}

fn json_of(walk: &mut Walk<'_>, node: &Node, field: &str) -> Option<serde_json::Value> {
    Some(match &node.value {
        Value::String(text) | Value::Untyped(text) => text.clone().into(),
        Value::Integer(n) => (*n).into(),
        Value::Float(n) if n.is_finite() => (*n).into(),
        Value::Bool(b) => (*b).into(),
        Value::Array(items) => {
            let read = |(i, item)| json_of(walk, item, &format!("{field}[{i}]"));
            items.iter().enumerate().map(read).collect::<Option<Vec<_>>>()?.into()
        }
        Value::Table(fields) => {
            let mut object = serde_json::Map::new();
            for (name, inner) in fields {
                object.insert(name.clone(), json_of(walk, &inner.node, &joined(field, name))?);
            }
            object.into()
        }
        Value::Float(_) | Value::Other(_) => {
            walk.mismatch(node, field, "something that JSON has too (a date goes in quotes)");
            return None;
        }
    })
}

/// Reads a duration within a range.
pub(super) fn duration(walk: &mut Walk<'_>, at: &At<String>, range: RangeInclusive<Duration>) -> Option<At<Duration>> {
    let read = match duration::parse(&at.value) {
        Ok(read) => read,
        Err(message) => {
            let (rule, remedy) = message.split_once(": ").unwrap_or((&message, "write e.g. `30s`"));
            walk.reject(at, rule, remedy);
            return None;
        }
    };
    if !range.contains(&read) {
        let (low, high) = (duration::show(*range.start()), duration::show(*range.end()));
        walk.reject(at, format!("{} is out of range", at.value), format!("write a duration from {low} to {high}"));
        return None;
    }
    Some(at.with(read))
}
