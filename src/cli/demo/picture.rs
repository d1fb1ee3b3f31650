//! What a visitor sees: a line for each step of an event's way, and the attempts as the log has them.

use crate::cli::{Failure, Format, Output};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const GOOD: &str = "32";
const BAD: &str = "31";
const WAIT: &str = "33";
const QUIET: &str = "2";
const LOUD: &str = "1";

/// Wider lines are hard to read, and a recorded terminal is seldom wider.
const WIDTH: usize = 80;
/// Where a fact's value begins.
const INDENT: usize = 14;

/// Draws the tour for people, and keeps it for other programs.
/// Whether the gateway is there to repeat things with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterTour {
    StaysUp,
    Ends,
}

pub(super) struct Picture<'a, 'b> {
    output: &'a mut Output<'b>,
    stages: Vec<Value>,
    urls: Value,
}

/// One step on the way.
struct Step {
    name: &'static str,
    mark: &'static str,
    result: &'static str,
    colour: &'static str,
}

const fn good(name: &'static str) -> Step {
    Step { name, mark: "✓", result: "ok", colour: GOOD }
}

const fn bad(name: &'static str) -> Step {
    Step { name, mark: "✗", result: "failed", colour: BAD }
}

const fn later(name: &'static str) -> Step {
    Step { name, mark: "↻", result: "retried", colour: WAIT }
}

impl<'a, 'b> Picture<'a, 'b> {
    pub(super) fn new(output: &'a mut Output<'b>) -> Self {
        Picture { output, stages: Vec::new(), urls: Value::Null }
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.output.streams.colour { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    /// A line for people; other programs get one document at the end, and the quiet get nothing.
    fn line(&mut self, text: &str) -> Result<(), Failure> {
        match self.output.format {
            Format::Table => self.output.line(text),
            Format::Json | Format::Quiet => Ok(()),
        }
    }

    pub(super) fn opening(&mut self, ingress: &str, admin: &str, receiver: &str) -> Result<(), Failure> {
        self.urls = json!({ "ingress": ingress, "admin": admin, "receiver": receiver });
        let title = self.paint(LOUD, "hookgate demo");
        self.line(&format!("{title}  a gateway, a sample plugin and a moody receiver"))?;
        self.line("")?;
        self.line("  provider ─▶ ingress ─▶ ledger ─▶ plugin ─▶ receiver")?;
        for (name, url) in [("ingress", ingress), ("receiver", receiver), ("admin API", admin)] {
            let name = self.paint(QUIET, &format!("{name:<11}"));
            self.line(&format!("  {name}{url}"))?;
        }
        Ok(())
    }

    fn stage(&mut self, title: &str, steps: &[Step]) -> Result<(), Failure> {
        let way: Vec<Value> =
            steps.iter().map(|Step { name, result, .. }| json!({ "step": name, "result": result })).collect();
        self.stages.push(json!({ "title": title, "way": way, "facts": [] }));
        let title = self.paint(LOUD, &format!("{}  {title}", self.stages.len()));
        self.line("")?;
        self.line(&title)?;
        let way: Vec<String> = steps
            .iter()
            .map(|Step { name, mark, colour, .. }| format!("{name} {}", self.paint(colour, mark)))
            .collect();
        self.line(&format!("   {}", way.join(" ─▶ ")))
    }

    fn fact(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        self.painted_fact(name, value, None)
    }

    /// A fact, one word of which may have a colour.
    fn painted_fact(&mut self, name: &str, value: &str, coloured: Option<(&str, &str)>) -> Result<(), Failure> {
        if let Some(facts) = self.stages.last_mut().and_then(|stage| stage["facts"].as_array_mut()) {
            facts.push(json!({ "name": name, "value": value }));
        }
        let mut name = self.paint(QUIET, &format!("{name:<11}"));
        for line in broken(value, WIDTH - INDENT) {
            let line = match coloured {
                Some((colour, word)) => line.replacen(word, &self.paint(colour, word), 1),
                None => line,
            };
            self.line(&format!("   {name}{line}"))?;
            name = " ".repeat(INDENT - 3);
        }
        Ok(())
    }

    pub(super) fn refused(&mut self, refusal: &Value, kept: usize) -> Result<(), Failure> {
        self.stage("A forged request is refused, and nothing of it is stored", &[good("request"), bad("verify")])?;
        let (status, code) = (&refusal["http"], text(&refusal["code"]));
        self.fact("answer", &format!("{status} {code}: {}", text(&refusal["detail"])))?;
        self.fact("ledger", &format!("{kept} events"))
    }

    pub(super) fn delivered(&mut self, body: &Value, sent: &str, delivery: &Value) -> Result<(), Failure> {
        let way = [good("request"), good("verify"), good("ledger"), good("transform"), good("send"), good("classify")];
        self.stage("A genuine one is delivered, by the tenant's own rules", &way)?;
        self.fact("came in", &body.to_string())?;
        self.fact("went out", sent)?;
        self.attempts(delivery)?;
        self.fact("reference", &format!("{} (from the answer's body, searchable)", text(&delivery["reference"])))
    }

    pub(super) fn retried(&mut self, delivery: &Value) -> Result<(), Failure> {
        let way = [good("verify"), good("ledger"), later("send"), good("send")];
        self.stage("A receiver that is busy is tried again, under the same id", &way)?;
        self.attempts(delivery)
    }

    pub(super) fn dead(&mut self, delivery: &Value, group: &Value) -> Result<(), Failure> {
        let way = [good("verify"), good("ledger"), good("transform"), good("send"), bad("classify")];
        self.stage("A 200 whose body says `suspended`: terminal at once, and a dead letter", &way)?;
        self.attempts(delivery)?;
        let (host, status, reason) = (text(&group["host"]), &group["status"], text(&group["reason"]));
        self.fact("DLQ", &format!("{} × {host} · {status} · {reason}", group["count"]))
    }

    pub(super) fn redriven(&mut self, delivery: &Value) -> Result<(), Failure> {
        let way = [good("redrive"), good("transform"), good("send"), good("classify")];
        self.stage("The account is reinstated; an operator redrives, and it is delivered", &way)?;
        self.attempts(delivery)?;
        self.fact(
            "delivery",
            &format!("{} (the same id, generation {})", text(&delivery["id"]), delivery["generation"]),
        )
    }

    /// The attempts as the log has them.
    fn attempts(&mut self, delivery: &Value) -> Result<(), Failure> {
        for attempt in delivery["attempts"].as_array().map_or(&[][..], Vec::as_slice) {
            let verdict = text(&attempt["verdict"]);
            let colour = match verdict {
                "delivered" => GOOD,
                "retryable" => WAIT,
                _ => BAD,
            };
            let status = attempt["status"].as_u64().map_or("–".to_owned(), |status| status.to_string());
            let plugin = attempt["plugin_ms"].as_f64().map_or(String::new(), |ms| format!(" in {ms:.2} ms"));
            let next = wait(attempt).map_or(String::new(), |wait| format!(" → again after {wait:.1} s"));
            let value = format!(
                "#{} {status}  {verdict:<9} {}, said by {}{plugin}{next}",
                attempt["number"],
                text(&attempt["reason"]),
                text(&attempt["decided_by"]),
            );
            self.painted_fact("attempt", &value, Some((colour, verdict)))?;
        }
        Ok(())
    }

    /// The end of the tour: for other programs, all of it.
    pub(super) fn closing(&mut self, took: Duration) -> Result<(), Failure> {
        if self.output.format == Format::Json {
            let seconds = took.as_secs_f64();
            self.output.document(&json!({ "stages": self.stages, "urls": self.urls, "seconds": seconds }))?;
            return Ok(self.output.streams.out.flush()?);
        }
        self.line("")?;
        let done = self.paint(GOOD, "done");
        self.line(&format!(
            "{done} in {:.1} s: 1 refused, 3 delivered (1 after a retry, 1 after a redrive)",
            took.as_secs_f64()
        ))
    }

    /// What goes on by itself when the gateway stays up. In the demo's folder the configuration tells the rest.
    pub(super) fn by_hand(
        &mut self,
        folder: &Path,
        (ingress, admin): (SocketAddr, SocketAddr),
        dead: &str,
        after: AfterTour,
    ) -> Result<(), Failure> {
        let title = match after {
            AfterTour::StaysUp => "The same by hand",
            AfterTour::Ends => "The same by hand, while a demo is up (start it without --exit)",
        };
        let title = self.paint(LOUD, title);
        self.line("")?;
        self.line(&title)?;
        let inlet = format!("http://{ingress}/in/demo/shop");
        for (remark, commands) in [
            ("", vec![format!("cd {}", folder.display())]),
            (
                "signed, and accepted:",
                vec![
                    format!("hookgate send {inlet} --source demo/shop \\"),
                    "  --type contact.updated --data '{\"id\":8}'".to_owned(),
                ],
            ),
            (
                "forged, and refused:",
                vec![
                    format!("curl -sS -i {inlet} -d '{{}}' \\"),
                    "  -H \"x-hub-signature-256: sha256=$(printf %064d 0)\"".to_owned(),
                ],
            ),
            (
                "what became of it all:",
                vec![
                    "hookgate delivery list".to_owned(),
                    format!("hookgate delivery get {dead}"),
                    "hookgate dlq groups".to_owned(),
                    "hookgate tail".to_owned(),
                ],
            ),
            ("refused, being no dead letter any more:", vec![format!("hookgate delivery redrive {dead}")]),
            ("the configuration of all this:", vec!["hookgate check".to_owned()]),
        ] {
            if !remark.is_empty() {
                let remark = self.paint(QUIET, &format!("# {remark}"));
                self.line(&format!("  {remark}"))?;
            }
            for command in commands {
                self.line(&format!("  {command}"))?;
            }
        }
        if after == AfterTour::StaysUp {
            self.line("")?;
            let title = self.paint(LOUD, "The console");
            self.line(&format!("{title}  http://{admin}/console/"))?;
            self.line(&format!("  sign in with the token in {}", folder.join("ledger/admin-token").display()))?;
            self.line("")?;
            self.line("The gateway stays up. Ctrl-C ends it and removes its files.")?;
        }
        Ok(self.output.streams.out.flush()?)
    }
}

/// In lines of at most `width`, broken between words; a longer word has a line of its own.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let long = |line: &str| line.chars().count() + word.trim_end().chars().count() > width;
        match lines.last_mut() {
            Some(line) if line.is_empty() || !long(line) => line.push_str(word),
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

/// Seconds between the end of an attempt and the next.
fn wait(attempt: &Value) -> Option<f64> {
    let at = |field: &str| crate::clock::Timestamp::parse_rfc3339(attempt[field].as_str()?);
    let ended = at("started_at")?.plus(Duration::from_millis(attempt["duration_ms"].as_u64()?));
    Some(at("next_at")?.since(ended).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_alone() {
        for (text, lines) in [
            ("ab cd ef", &["ab cd", "ef"][..]),
            ("abcdefg hi", &["abcdefg", "hi"]),
            ("abcde fghij", &["abcde", "fghij"]),
            ("", &[""]),
        ] {
            assert_eq!(broken(text, 5), lines, "{text}");
        }
    }
}
