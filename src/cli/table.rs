//! Tables for people: what must be read whole is never broken, and what matters least goes first where room is short.

use super::output::text;
use crate::clock::Timestamp;
use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table, Width};
use serde_json::Value;

/// The blank on either side of a cell.
const PADDING: usize = 2;
/// A column that may be broken is spared for so much, at the cost of lesser ones.
const SPARED: usize = 24;
/// And keeps so much in any case.
const BROKEN_MIN: usize = 10;

/// One column: its heading, the row's field, and how much it may give way.
#[derive(Clone, Copy)]
pub(super) struct Column {
    heading: &'static str,
    field: &'static str,
    fit: Fit,
    kind: Kind,
    /// Left out where room is short, the highest first; 0: never.
    lesser: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// An id or a word: broken, it could neither be copied nor found.
    Whole,
    Breakable,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Time,
    /// A state or a verdict.
    State,
}

impl Column {
    pub(super) const fn whole(heading: &'static str, field: &'static str) -> Self {
        Column { heading, field, fit: Fit::Whole, kind: Kind::Plain, lesser: 0 }
    }

    pub(super) const fn breakable(heading: &'static str, field: &'static str) -> Self {
        Column { fit: Fit::Breakable, ..Column::whole(heading, field) }
    }

    pub(super) const fn time(heading: &'static str, field: &'static str) -> Self {
        Column { kind: Kind::Time, ..Column::whole(heading, field) }
    }

    pub(super) const fn state(heading: &'static str, field: &'static str) -> Self {
        Column { kind: Kind::State, ..Column::whole(heading, field) }
    }

    pub(super) const fn lesser(self, rank: u8) -> Self {
        Column { lesser: rank, ..self }
    }

    fn cell(&self, row: &Value, paper: &Paper) -> String {
        match self.kind {
            Kind::Time => paper.time(&row[self.field]),
            Kind::Plain | Kind::State => text(&row[self.field]),
        }
    }
}

/// What is written on: a terminal's width, and what the reader's eye is spared.
pub(super) struct Paper {
    pub(super) width: Option<u16>,
    pub(super) short_times: bool,
    pub(super) colour: bool,
    pub(super) now: Timestamp,
}

impl Paper {
    /// A time: on a terminal its hour today, else its day and hour; whole for other programs.
    pub(super) fn time(&self, value: &Value) -> String {
        let whole = text(value);
        let Some(at) = Timestamp::parse_rfc3339(&whole).filter(|_| self.short_times) else { return whole };
        shortened(at, self.now).unwrap_or(whole)
    }

    /// A state's or a verdict's word in its colour.
    pub(super) fn state(&self, word: &str) -> String {
        let code = match colour_of(word).filter(|_| self.colour) {
            Some(Color::DarkGreen) => "32",
            Some(Color::DarkYellow) => "33",
            Some(_) => "31",
            None => return word.to_owned(),
        };
        format!("\u{1b}[{code}m{word}\u{1b}[0m")
    }
}

/// In UTC, as everything else that is told.
fn shortened(at: Timestamp, now: Timestamp) -> Option<String> {
    let told = |at: Timestamp, form: &str| {
        Some(jiff::Timestamp::from_millisecond(at.as_millis()).ok()?.strftime(form).to_string())
    };
    let same = |form: &str| told(at, form) == told(now, form);
    let form = match (same("%F"), same("%Y")) {
        (true, _) => "%H:%M:%S",
        (false, true) => "%b %d %H:%M",
        (false, false) => "%Y-%m-%d %H:%M",
    };
    told(at, form)
}

fn colour_of(word: &str) -> Option<Color> {
    match word.trim() {
        "delivered" | "enabled" => Some(Color::DarkGreen),
        "pending" | "in_flight" | "retryable" | "retry_at" | "paused" => Some(Color::DarkYellow),
        "dead" | "expired" | "terminal" | "disabled" | "firing" => Some(Color::DarkRed),
        _ => None,
    }
}

/// The lines of a table, headings first.
pub(super) fn lines(columns: &[Column], rows: &[Value], paper: &Paper) -> Vec<String> {
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|column| column.cell(row, paper)).collect()).collect();
    let widths: Vec<usize> = columns.iter().enumerate().map(|(i, column)| widest(column, i, &cells)).collect();
    let shown = fitting(columns, &widths, paper.width);
    let mut table = Table::new();
    table.load_style(NOTHING).force_no_tty().set_header(shown.iter().map(|i| columns[*i].heading));
    if paper.colour {
        table.enforce_styling();
    }
    for row in &cells {
        table.add_row(shown.iter().map(|i| {
            let cell = Cell::new(&row[*i]);
            match colour_of(&row[*i]).filter(|_| paper.colour && columns[*i].kind == Kind::State) {
                Some(colour) => cell.fg(colour),
                None => cell,
            }
        }));
    }
    if let Some(width) = paper.width {
        table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
        for (place, i) in shown.iter().enumerate() {
            let constraint = match columns[*i].fit {
                Fit::Whole => ColumnConstraint::ContentWidth,
                Fit::Breakable => {
                    let least = widths[*i].min(BROKEN_MIN) + PADDING;
                    ColumnConstraint::LowerBoundary(Width::Fixed(u16::try_from(least).unwrap_or(u16::MAX)))
                }
            };
            if let Some(column) = table.column_mut(place) {
                column.set_constraint(constraint);
            }
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

fn widest(column: &Column, i: usize, cells: &[Vec<String>]) -> usize {
    let cells = cells.iter().map(|row| row[i].chars().count());
    cells.chain([column.heading.len()]).max().unwrap_or(0)
}

/// The columns that there is room for.
fn fitting(columns: &[Column], widths: &[usize], room: Option<u16>) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let Some(room) = room else { return shown };
    let least = |i: &usize| match columns[*i].fit {
        Fit::Whole => widths[*i] + PADDING,
        Fit::Breakable => widths[*i].min(SPARED) + PADDING,
    };
    while shown.iter().map(least).sum::<usize>() > usize::from(room) {
        let lesser = shown.iter().copied().filter(|i| columns[*i].lesser > 0);
        let Some(least) = lesser.max_by_key(|i| columns[*i].lesser) else { break };
        shown.retain(|i| *i != least);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const COLUMNS: [Column; 5] = [
        Column::whole("ID", "id"),
        Column::state("STATE", "state"),
        Column::breakable("TYPE", "type"),
        Column::whole("TRIES", "tries").lesser(1),
        Column::time("CREATED", "at").lesser(2),
    ];

    fn paper(width: Option<u16>, colour: bool) -> Paper {
        let now = Timestamp::parse_rfc3339("2026-11-30T20:00:00Z").unwrap();
        Paper { width, short_times: width.is_some(), colour, now }
    }

    fn row() -> Value {
        json!({"id": "dlv_01a22c30c0f870008114eb4fe6826dac", "state": "delivered",
               "type": "customer.subscription.updated", "tries": 3, "at": "2026-11-30T12:13:59.123Z"})
    }

    #[test]
    fn lesser_columns_go_before_anything_firm_is_broken() {
        for (width, headings) in [
            (200, "ID STATE TYPE TRIES CREATED"),
            (84, "ID STATE TYPE TRIES"),
            (64, "ID STATE TYPE"),
            (20, "ID STATE TYPE"),
        ] {
            let lines = lines(&COLUMNS, &[row()], &paper(Some(width), false));
            assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>().join(" "), headings, "{width}");
            assert!(lines[1].contains("dlv_01a22c30c0f870008114eb4fe6826dac  delivered"), "{lines:?}");
            if width >= 64 {
                assert!(lines.iter().all(|line| line.chars().count() <= usize::from(width)), "{lines:?}");
            }
        }
        let piped = lines(&COLUMNS, &[row()], &paper(None, false));
        assert_eq!(piped.len(), 2);
        assert!(piped[1].ends_with("2026-11-30T12:13:59.123Z"), "{piped:?}");
    }

    #[test]
    fn times_are_as_short_as_they_can_be() {
        let paper = paper(Some(80), false);
        for (at, told) in [
            ("2026-11-30T12:13:59.123Z", "12:13:59"),
            ("2026-11-29T12:13:59Z", "Nov 29 12:13"),
            ("2025-11-29T12:13:59Z", "2025-11-29 12:13"),
            ("soon", "soon"),
        ] {
            assert_eq!(paper.time(&json!(at)), told);
        }
        assert_eq!(paper.time(&Value::Null), "");
    }

    #[test]
    fn states_have_colours_where_colours_are_wanted() {
        let coloured = lines(&COLUMNS, &[row()], &paper(Some(100), true)).join("\n");
        assert!(coloured.contains('\u{1b}'), "{coloured}");
        assert!(!lines(&COLUMNS, &[row()], &paper(Some(100), false)).join("\n").contains('\u{1b}'));
        for (word, code) in
            [("delivered", "32"), ("pending", "33"), ("retryable", "33"), ("dead", "31"), ("terminal", "31")]
        {
            assert_eq!(paper(None, true).state(word), format!("\u{1b}[{code}m{word}\u{1b}[0m"));
            assert_eq!(paper(None, false).state(word), word);
        }
        assert_eq!(paper(None, true).state("skipped"), "skipped");
    }
}
