//! What is wrong, where, and what to do: for a terminal, a log, or a script.

use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity};
use serde::Serialize;
use std::fmt::{self, Write as _};
use std::ops::Range;

/// Where a problem is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(tag = "in", rename_all = "snake_case")]
pub enum Position {
    /// Both from 1; the column counts characters.
    File {
        line: usize,
        column: usize,
    },
    Environment {
        variable: String,
    },
    Flag {
        flag: String,
    },
}

/// One mistake, or one thing to think about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    #[serde(flatten)]
    pub position: Position,
    /// The key's full path; empty for the file as a whole.
    pub field: String,
    /// Which rule is broken.
    pub message: String,
    pub remedy: String,
    /// The bytes of the file to point at.
    #[serde(skip)]
    pub(super) span: Option<Range<usize>>,
}

/// The file's name, and its text with every secret blotted out.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) text: String,
    /// After a fault of syntax it is not known what is a secret: no line is shown.
    pub(super) lines: Lines,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Lines {
    #[default]
    Shown,
    Withheld,
}

/// Line and column of a byte offset.
pub(super) fn position(text: &str, offset: usize) -> Position {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let start = before.rfind('\n').map_or(0, |i| i + 1);
    Position::File { line: before.matches('\n').count() + 1, column: before[start..].chars().count() + 1 }
}

/// Replaces what stands in `masks` by stars, byte for byte, so that offsets stay true.
pub(super) fn blotted(text: &str, masks: &[Range<usize>]) -> String {
    let hidden = |i: usize| masks.iter().any(|m| m.contains(&i));
    let mut out = String::with_capacity(text.len());
    for (i, c) in text.char_indices() {
        if c != '\n' && hidden(i) {
            out.extend(std::iter::repeat_n('*', c.len_utf8()));
        } else {
            out.push(c);
        }
    }
    out
}

impl Problem {
    /// `file:line:column: field: message (remedy)`, on one line.
    pub(super) fn line(&self, file: &str) -> String {
        let place = match &self.position {
            Position::File { line, column } => format!("{file}:{line}:{column}"),
            Position::Environment { variable } => variable.clone(),
            Position::Flag { flag } => flag.clone(),
        };
        let field = if self.field.is_empty() { String::new() } else { format!("{}: ", self.field) };
        format!("{place}: {field}{}; {}", self.message, self.remedy)
    }

    /// A picture of the place, for a terminal.
    pub(super) fn picture(&self, shown: &Shown, severity: Severity, colour: Colour) -> String {
        let position = match &self.position {
            Position::File { line, column } => format!("{}:{line}:{column}", shown.name),
            Position::Environment { variable } => format!("environment variable {variable}"),
            Position::Flag { flag } => format!("flag {flag}"),
        };
        let field = if self.field.is_empty() { String::new() } else { format!("{}: ", self.field) };
        let span = self.span.clone().filter(|_| shown.lines == Lines::Shown);
        let diagnostic = Diagnostic {
            message: match span {
                Some(_) => format!("{field}{}", self.message),
                None => format!("{position}: {field}{}", self.message),
            },
            help: &self.remedy,
            severity,
            source: NamedSource::new(&shown.name, shown.text.clone()),
            span,
        };
        let theme = match colour {
            Colour::On => GraphicalTheme::unicode(),
            Colour::Off => GraphicalTheme::unicode_nocolor(),
        };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(110);
        let mut out = String::new();
        if handler.render_report(&mut out, &diagnostic).is_err() {
            // Rendering into a string fails only on a span outside the text.
            out.clear();
            let _ = writeln!(out, "{}", self.line(&shown.name));
        }
        out
    }
}

/// Whether pictures are coloured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    On,
    Off,
}

struct Diagnostic<'a> {
    message: String,
    help: &'a str,
    severity: Severity,
    source: NamedSource<String>,
    span: Option<Range<usize>>,
}

impl fmt::Debug for Diagnostic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Display for Diagnostic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Diagnostic<'_> {}

impl miette::Diagnostic for Diagnostic<'_> {
    fn severity(&self) -> Option<Severity> {
        Some(self.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.help))
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.span.as_ref().map(|_| &self.source as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.span.clone()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(Some("here".to_owned()), span))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one_and_in_characters() {
        let text = "a = 1\nü = \"x\"\n";
        let at = |offset| match position(text, offset) {
            Position::File { line, column } => (line, column),
            Position::Environment { .. } | Position::Flag { .. } => panic!(),
        };
        assert_eq!((at(0), at(6), at(8), at(7), at(999)), ((1, 1), (2, 1), (2, 2), (2, 1), (3, 1)));
    }

    #[test]
    fn blots_keep_offsets() {
        let text = "s = \"gehëim\"\nt = 1";
        let mask = 4..13;
        let blotted = blotted(text, std::slice::from_ref(&mask));
        assert_eq!(blotted, "s = *********\nt = 1");
        assert_eq!(blotted.len(), text.len());
    }
}
