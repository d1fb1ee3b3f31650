//! Closing many at once: asked first, then done call by call, each of which works for a bounded time.

use super::{Client, Consent, Context, Exit, Failure, Format};
use serde_json::{Map, Value, json};

#[derive(clap::Args, Debug, Clone, Copy)]
pub(super) struct Sweeping {
    /// Only say how many, and show some
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// What is closed, and what is said of it.
pub(super) struct Sweep {
    /// The request, whose `filter` says which.
    pub body: Value,
    pub verb: &'static str,
    pub noun: &'static str,
    pub warning: &'static str,
    /// The counts of an answer, each with its words; the first is how many were closed.
    pub counts: &'static [(&'static str, &'static str)],
    /// Shows what a dry run found.
    pub rehearsed: fn(&Value, &mut Context<'_>) -> Result<Exit, Failure>,
}

pub(super) async fn run(
    sweep: Sweep,
    sweeping: Sweeping,
    client: &mut Client,
    path: &str,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let Sweep { body, verb, noun, warning, counts, rehearsed } = sweep;
    if sweeping.dry_run || !sweeping.yes {
        let mut dry = body.clone();
        dry["dry_run"] = json!(true);
        let found = client.post(path, &dry).await?;
        if sweeping.dry_run {
            return rehearsed(&found, context);
        }
        let question = format!("{verb} {} {noun}? {warning}", super::output::text(&found["count"]));
        context.output.confirm(&question, Consent::ToBeAsked)?;
    }
    let mut sums: Vec<u64> = vec![0; counts.len()];
    let first = |sums: &[u64]| sums.first().copied().unwrap_or(0);
    let broke = loop {
        let answer = match client.post(path, &body).await {
            Ok(answer) => answer,
            Err(failure) if first(&sums) == 0 => return Err(failure),
            Err(failure) => break Some(failure),
        };
        for (sum, (field, _)) in sums.iter_mut().zip(counts) {
            *sum += answer[*field].as_u64().unwrap_or(0);
        }
        if answer["more"] != json!(true) {
            break None;
        }
        context.output.say(&format!("{} so far", first(&sums)));
    };
    let output = &mut context.output;
    match output.format {
        Format::Json => {
            let fields = counts.iter().zip(&sums).map(|((field, _), sum)| ((*field).to_owned(), json!(sum)));
            output.document(&Value::Object(fields.collect::<Map<_, _>>()))?;
        }
        Format::Quiet => output.line(&first(&sums).to_string())?,
        Format::Table => {
            let words: Vec<String> =
                counts.iter().zip(&sums).map(|((_, words), sum)| format!("{sum} {words}")).collect();
            output.line(&words.join(", "))?;
        }
    }
    match broke {
        None => Ok(Exit::Done),
        Some(failure) => {
            let _ = writeln!(output.streams.err, "error: {failure}");
            Ok(Exit::Partly)
        }
    }
}
