//! What was written: a tree of values that know where they stand. Environment and flags are laid over the file here,
//! so that everything after sees one tree.

use super::Env;
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where a value was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Bytes of the file.
    File(Range<usize>),
    Env(String),
    Flag(&'static str),
}

#[derive(Clone)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
}

#[derive(Clone)]
pub(super) enum Value {
    /// From the environment or a flag: the reader decides what it is.
    Untyped(String),
    String(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    Array(Vec<Node>),
    Table(Fields),
    /// What no key takes, by its name.
    Other(&'static str),
}

impl Value {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Untyped(_) => "a text",
            Value::String(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a number with a fraction",
            Value::Bool(_) => "a boolean",
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
            Value::Other(kind) => kind,
        }
    }
}

#[derive(Clone)]
pub(super) struct Field {
    /// Where the key itself stands.
    pub(super) key: Place,
    pub(super) node: Node,
}

pub(super) type Fields = BTreeMap<String, Field>;

/// A mistake in the file's syntax.
pub(super) struct SyntaxFault {
    pub(super) span: Range<usize>,
    pub(super) message: String,
}

/// Reads the file. What can be read is returned even when there are faults.
pub(super) fn parse(text: &str) -> (Fields, Vec<SyntaxFault>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let faults =
        errors.iter().map(|e| SyntaxFault { span: e.span().unwrap_or(0..0), message: e.message().replace('\n', ", ") });
    (fields(table.get_ref(), &Place::File), faults.collect())
}

fn fields(table: &DeTable<'_>, place: &dyn Fn(Range<usize>) -> Place) -> Fields {
    let field = |key: &Spanned<_>, value| Field { key: place(key.span()), node: node(value, place) };
    table.iter().map(|(key, value)| (key.get_ref().to_string(), field(key, value))).collect()
}

fn node(value: &Spanned<DeValue<'_>>, place: &dyn Fn(Range<usize>) -> Place) -> Node {
    let read = match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(n) => {
            i64::from_str_radix(n.as_str(), n.radix()).map_or(Value::Other("an integer beyond 64 bits"), Value::Integer)
        }
        DeValue::Float(n) => n.as_str().parse().map_or(Value::Other("a strange number"), Value::Float),
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(items) => Value::Array(items.iter().map(|item| node(item, place)).collect()),
        DeValue::Table(table) => Value::Table(fields(table, place)),
    };
    Node { value: read, place: place(value.span()) }
}

/// A text from outside the file. Lists and tables are written as in TOML; everything else stays untyped.
fn untyped(text: &str, place: &Place) -> Node {
    if text.starts_with(['[', '{'])
        && let Ok(value) = DeValue::parse(text)
    {
        return node(&value, &|_| place.clone());
    }
    Node { value: Value::Untyped(text.to_owned()), place: place.clone() }
}

/// Lays one text over the tree at `path`.
pub(super) fn lay_over(root: &mut Fields, path: &[String], text: &str, place: &Place) {
    let [parents @ .., last] = path else { return };
    let mut table = root;
    for part in parents {
        let empty = || Node { value: Value::Table(Fields::new()), place: place.clone() };
        let field = table.entry(part.clone()).or_insert_with(|| Field { key: place.clone(), node: empty() });
        match &mut field.node.value {
            Value::Table(inner) => table = inner,
            // The file has something else here, which is a mistake that is reported where it stands.
            Value::Untyped(_)
            | Value::String(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Other(_) => return,
        }
    }
    table.insert(last.clone(), Field { key: place.clone(), node: untyped(text, place) });
}

/// The prefix of every variable that is ours.
pub(super) const PREFIX: &str = "HOOKGATE_";

/// Variables that are no keys of the file.
pub(super) const OWN_VARIABLES: &[&str] = &[
    "HOOKGATE_ADMIN_TOKEN",
    "HOOKGATE_CONFIG",
    #[cfg(crash_points)]
    "HOOKGATE_CRASH_AT",
    "HOOKGATE_MASTER_KEY",
    "HOOKGATE_TENANT",
    "HOOKGATE_TOKEN",
    "HOOKGATE_URL",
];

/// Tables of a tenant that hold names.
const NAMED: [&str; 3] = ["sources", "endpoints", "plugins"];

/// Lays the environment over the tree; returns the names of variables that name no key.
pub(super) fn lay_environment(root: &mut Fields, env: &Env, sections: &[&str]) -> Vec<String> {
    let mut unknown = Vec::new();
    for (name, text) in env.beginning(PREFIX) {
        if OWN_VARIABLES.contains(&name) || is_service_link(name) {
            continue;
        }
        let mut path: Vec<String> = name[PREFIX.len()..].split("__").map(str::to_ascii_lowercase).collect();
        if path.len() < 2 || path.iter().any(String::is_empty) || !sections.contains(&path[0].as_str()) {
            unknown.push(name.to_owned());
            continue;
        }
        if path[0] == "tenants" {
            // No variable can hold a dash, and no name an underscore.
            let holds_names = path.get(2).is_some_and(|part| NAMED.contains(&part.as_str()));
            for (i, part) in path.iter_mut().enumerate() {
                if i == 1 || i == 3 && holds_names {
                    *part = part.replace('_', "-");
                }
            }
        }
        lay_over(root, &path, text, &Place::Env(name.to_owned()));
    }
    unknown
}

/// Kubernetes sets these for a service that is called hookgate.
fn is_service_link(name: &str) -> bool {
    let rest = &name[PREFIX.len()..];
    rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_HOST") || rest.starts_with("SERVICE_PORT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'a>(root: &'a Fields, path: &[&str]) -> &'a Node {
        let (last, parents) = path.split_last().unwrap();
        let mut table = root;
        for part in parents {
            let Value::Table(inner) = &table[*part].node.value else { panic!("{part} is no table") };
            table = inner;
        }
        &table[*last].node
    }

    #[test]
    fn spans_are_those_of_the_file() {
        let text = "[server]\ningress = \"a\"\n[tenants.acme.plugins.p]\npath = 1\n";
        let (root, faults) = parse(text);
        assert!(faults.is_empty());
        let Place::File(span) = &at(&root, &["tenants", "acme", "plugins", "p", "path"]).place else { panic!() };
        assert_eq!(&text[span.clone()], "1");
    }

    #[test]
    fn what_follows_a_syntax_fault_is_still_read() {
        let (root, faults) = parse("[server]\ningress = \n[limits]\nqueued_max = 3\n");
        assert_eq!(faults.len(), 1);
        assert!(matches!(at(&root, &["limits", "queued_max"]).value, Value::Integer(3)));
    }

    #[test]
    fn the_environment_lies_over_the_file() {
        let (mut root, _) = parse("[tenants.big-co.endpoints.to-erp]\nurl = \"a\"\n");
        let env = Env::from_pairs([
            ("HOOKGATE_TENANTS__BIG_CO__ENDPOINTS__TO_ERP__IDEMPOTENCY_HEADER", "x"),
            ("HOOKGATE_TENANTS__BIG_CO__ENDPOINTS__TO_ERP__SOURCES", r#"["a", "b"]"#),
            ("HOOKGATE_SERVR__INGRESS", "x"),
            ("HOOKGATE_INGRESS", "x"),
            ("HOOKGATE_SERVER__", "x"),
            ("HOOKGATE_URL", "x"),
            ("HOOKGATE_PORT_8080_TCP", "x"),
            ("HOOKGATE_SERVICE_HOST", "x"),
            ("PATH", "x"),
        ]);
        let unknown = lay_environment(&mut root, &env, &["server", "tenants"]);
        assert_eq!(unknown, ["HOOKGATE_INGRESS", "HOOKGATE_SERVER__", "HOOKGATE_SERVR__INGRESS"]);
        let endpoint = ["tenants", "big-co", "endpoints", "to-erp"];
        let field = |key| at(&root, &[&endpoint[..], &[key]].concat()).value.clone();
        assert!(matches!(field("url"), Value::String(_)));
        assert!(matches!(field("idempotency_header"), Value::Untyped(_)));
        assert!(matches!(field("sources"), Value::Array(items) if items.len() == 2));
    }
}
