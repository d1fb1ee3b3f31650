//! What is printed, and what is written for machines.

use crate::figures::{Figures, Repetition, Row, Run};
use crate::goals::{Bound, GOALS, Goal};
use crate::machine::Machine;
use crate::measure::Plan;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Above this share of one core, others disturb what is measured.
const OTHERS_PERCENT_MAX: f64 = 15.0;

pub(crate) fn text(machine: &Machine, plan: &Plan, run: &Run) -> String {
    let mut out = format!("\n{machine}\n");
    let _ = writeln!(
        out,
        "repetitions: {}, medians told; each row measured for {:.1} s after {:.1} s of warming up; requests of 1 KiB, \
         signed with HMAC-SHA256",
        run.repetitions.len(),
        plan.span.as_secs_f64(),
        plan.warm_up.as_secs_f64(),
    );
    let _ = writeln!(out, "\n{}\n\n{}", figures_table(run), goals_table(run));
    let disturbed = run.median(|r| r.values().filter_map(|f| f.others_percent).reduce(f64::max)).unwrap_or(0.0);
    if disturbed > OTHERS_PERCENT_MAX {
        let _ = writeln!(
            out,
            "\nThe machine was not quiet: other processes took up to {disturbed:.0} % of a core (the last column)."
        );
    }
    for note in &run.notes {
        let _ = writeln!(out, "\n{note}");
    }
    for fault in &run.faults {
        let _ = writeln!(out, "\nINVALID: {fault}");
    }
    out
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn figures_table(run: &Run) -> Table {
    let mut table = table(&[
        "",
        "per second",
        "least … most",
        "p50 µs",
        "p99 µs",
        "max µs",
        "CPU µs/event",
        "MiB",
        "others % of a core",
    ]);
    let rows: BTreeSet<Row> = run.repetitions.iter().flat_map(Repetition::keys).copied().collect();
    for row in rows {
        let median = |of: fn(&Figures) -> Option<f64>| run.median(|r| of(r.get(&row)?));
        let shown = |of: fn(&Figures) -> Option<f64>, digits: usize| {
            median(of).map_or_else(String::new, |value| format!("{value:.digits$}"))
        };
        let range = run.range(|r| Some(r.get(&row)?.per_second));
        table.add_row([
            row.title().to_owned(),
            shown(|f| Some(f.per_second), 0),
            range.map_or_else(String::new, |(least, most)| format!("{least:.0} … {most:.0}")),
            shown(|f| Some(f.p50_us), 0),
            shown(|f| Some(f.p99_us), 0),
            shown(|f| Some(f.max_us), 0),
            shown(|f| f.cpu_us, 1),
            shown(|f| f.memory_mib, 0),
            shown(|f| f.others_percent, 0),
        ]);
    }
    table
}

fn goals_table(run: &Run) -> Table {
    let mut table = table(&["goal", "target", "measured", ""]);
    for goal in GOALS {
        let measured = goal.measured(run);
        table.add_row([
            goal.title.to_owned(),
            match goal.bound {
                Bound::AtLeast(least) => format!("≥ {least} {}", goal.unit),
                Bound::AtMost(most) => format!("≤ {most} {}", goal.unit),
            },
            measured.map_or_else(String::new, |value| format!("{value:.2} {}", goal.unit)),
            verdict(goal, measured).to_owned(),
        ]);
    }
    table
}

fn verdict(goal: &Goal, measured: Option<f64>) -> &'static str {
    match measured {
        Some(value) if goal.is_met(value) => "met",
        Some(_) => "NOT MET",
        None => "not measured",
    }
}

pub(crate) fn json(machine: &Machine, plan: &Plan, run: &Run) -> Value {
    let goals: Vec<_> = GOALS
        .iter()
        .map(|goal| {
            let measured = goal.measured(run);
            json!({"goal": goal.title, "bound": goal.bound, "unit": goal.unit, "over": goal.over, "measured": measured,
                "met": measured.map(|value| goal.is_met(value))})
        })
        .collect();
    json!({
        "machine": machine,
        "span_seconds": plan.span.as_secs_f64(),
        "warm_up_seconds": plan.warm_up.as_secs_f64(),
        "valid": run.faults.is_empty(),
        "faults": run.faults,
        "notes": run.notes,
        "goals": goals,
        "repetitions": run.repetitions,
    })
}
