//! Data on standard output, talk on standard error. What came from outside is shown as text: no control character of
//! a sender, receiver or plugin reaches the terminal.

use super::exit::Failure;
use super::table::{Column, Paper, lines};
use serde_json::Value;
use std::io::{BufRead, Write};

/// The process's streams, or a test's.
pub struct Streams<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
    pub input: &'a mut dyn BufRead,
    pub out_is_terminal: bool,
    pub err_is_terminal: bool,
    pub input_is_terminal: bool,
    /// Whether what is written may be coloured.
    pub colour: bool,
    /// Columns of the terminal, where there is one.
    pub width: Option<u16>,
}

/// How data is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Aligned columns; on a terminal within its width.
    Table,
    /// One JSON document.
    Json,
    /// Ids (or names) alone, one a line.
    Quiet,
}

pub struct Output<'a> {
    pub streams: Streams<'a>,
    pub format: Format,
}

impl Output<'_> {
    /// A line of data.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        Ok(writeln!(self.streams.out, "{text}")?)
    }

    /// A line of talk. Nobody needs it, so nobody is told when it cannot be written.
    pub fn say(&mut self, text: &str) {
        if self.format != Format::Quiet {
            let _ = writeln!(self.streams.err, "{text}");
        }
    }

    pub fn document(&mut self, value: &Value) -> Result<(), Failure> {
        let text = if self.streams.out_is_terminal {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        self.line(&text.unwrap_or_default())
    }

    /// A list: a table, the document itself, or each row's `key`.
    pub(super) fn list(&mut self, document: &Value, columns: &[Column], key: &str) -> Result<(), Failure> {
        let rows = document["items"].as_array().map_or(&[][..], Vec::as_slice);
        match self.format {
            Format::Json => self.document(document),
            Format::Quiet => rows.iter().try_for_each(|row| self.line(&text(&row[key]))),
            Format::Table if rows.is_empty() => {
                self.say("nothing there");
                Ok(())
            }
            Format::Table => self.table(columns, rows),
        }
    }

    pub(super) fn table(&mut self, columns: &[Column], rows: &[Value]) -> Result<(), Failure> {
        let table = lines(columns, rows, &self.paper());
        table.iter().try_for_each(|line| self.line(line))
    }

    /// What a table is written on.
    pub(super) fn paper(&self) -> Paper {
        Paper {
            width: self.streams.width.filter(|_| self.streams.out_is_terminal),
            short_times: self.streams.out_is_terminal,
            colour: self.streams.colour,
            now: super::keys::now(),
        }
    }

    /// One thing: its fields in a column, the document itself, or its `key`.
    pub fn one(&mut self, document: &Value, fields: &[&str], key: &str) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.document(document),
            Format::Quiet => self.line(&text(&document[key])),
            Format::Table => {
                let there = fields.iter().filter(|field| !document[**field].is_null());
                let rows: Vec<(&str, String)> = there.map(|field| (*field, text(&document[*field]))).collect();
                let widest = rows.iter().map(|(field, _)| field.len()).max().unwrap_or(0);
                rows.iter().try_for_each(|(field, value)| self.line(&format!("{field:<widest$}  {value}")))
            }
        }
    }

    /// Bytes from outside as they are; on a terminal, as text that does nothing to it.
    pub(super) fn body(&mut self, body: &[u8]) -> Result<(), Failure> {
        if self.streams.out_is_terminal {
            return String::from_utf8_lossy(body).lines().try_for_each(|line| self.line(&plain(line)));
        }
        Ok(self.streams.out.write_all(body)?)
    }

    /// Asks before something that cannot be undone. Off a terminal there is nobody to ask: `yes` must be given.
    pub fn confirm(&mut self, question: &str, yes: Consent) -> Result<(), Failure> {
        if yes == Consent::Given {
            return Ok(());
        }
        if !self.streams.input_is_terminal {
            return Err(Failure::usage(format!("{question} Nobody can be asked"), "not a terminal: add --yes"));
        }
        write!(self.streams.err, "{question} [y/N] ")?;
        self.streams.err.flush()?;
        let mut answer = String::new();
        self.streams.input.read_line(&mut answer)?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Failure::new(super::Exit::Failed, "nothing was done")),
        }
    }
}

/// Whether `--yes` was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consent {
    Given,
    ToBeAsked,
}

impl From<bool> for Consent {
    fn from(yes: bool) -> Self {
        if yes { Consent::Given } else { Consent::ToBeAsked }
    }
}

/// A value as a cell: nothing for what is absent, a string without quotes, else JSON.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => plain(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => plain(&value.to_string()),
    }
}

/// Text from outside without what a terminal would act on: control characters, and marks that turn the direction of
/// writing.
pub(super) fn plain(text: &str) -> String {
    let acts = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_from_outside_acts_on_the_terminal() {
        assert_eq!(plain("a\u{1b}[31m\r\nb\u{202e}ü"), "a\\u{1b}[31m\\r\\nb\\u{202e}ü");
        assert_eq!(text(&json!("x\u{7}")), "x\\u{7}");
        assert_eq!(text(&Value::Null), "");
        assert_eq!(text(&json!(5)), "5");
    }
}
