//! What a visitor sees: a line for each step of an event's way, and the attempts as the log has them.

use super::Commands;
use crate::cli::{Failure, Output};
use serde_json::Value;
use std::time::Duration;

const GOOD: &str = "32";
const BAD: &str = "31";
const WAIT: &str = "33";
const QUIET: &str = "2";
const LOUD: &str = "1";

pub(super) struct Picture<'a, 'b> {
    output: &'a mut Output<'b>,
    stage: u32,
}

/// One step on the way.
struct Step {
    name: &'static str,
    mark: &'static str,
    colour: &'static str,
}

const fn good(name: &'static str) -> Step {
    Step { name, mark: "✓", colour: GOOD }
}

const fn bad(name: &'static str) -> Step {
    Step { name, mark: "✗", colour: BAD }
}

const fn later(name: &'static str) -> Step {
    Step { name, mark: "↻", colour: WAIT }
}

impl<'a, 'b> Picture<'a, 'b> {
    pub(super) fn new(output: &'a mut Output<'b>) -> Self {
        Picture { output, stage: 0 }
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.output.streams.colour { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.output.line(text)
    }

    pub(super) fn opening(&mut self, ingress: &str, admin: &str, receiver: &str) -> Result<(), Failure> {
        let title = self.paint(LOUD, "hookgate demo");
        self.line(&format!("{title}  a gateway on an embedded ledger, a sample plugin, a moody receiver"))?;
        self.line("")?;
        self.line(&format!("  provider ──▶ ingress {ingress} ──▶ ledger ──▶ plugin ──▶ receiver {receiver}"))?;
        let aside = self.paint(QUIET, &format!("admin API {admin}"));
        self.line(&format!("               {aside}"))
    }

    fn stage(&mut self, title: &str, steps: &[Step]) -> Result<(), Failure> {
        self.stage += 1;
        let title = self.paint(LOUD, &format!("{}  {title}", self.stage));
        self.line("")?;
        self.line(&title)?;
        let way: Vec<String> =
            steps.iter().map(|Step { name, mark, colour }| format!("{name} {}", self.paint(colour, mark))).collect();
        self.line(&format!("   {}", way.join(" ──▶ ")))
    }

    fn fact(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        let name = self.paint(QUIET, &format!("{name:<11}"));
        self.line(&format!("   {name}{value}"))
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
            let verdict = self.paint(colour, &format!("{verdict:<9}"));
            let status = attempt["status"].as_u64().map_or("–".to_owned(), |status| status.to_string());
            let plugin = attempt["plugin_ms"].as_f64().map_or(String::new(), |ms| format!(" in {ms:.2} ms"));
            let next = wait(attempt).map_or(String::new(), |wait| format!(" → again after {wait:.1} s"));
            let value = format!(
                "#{} {status}  {verdict} {}, said by {}{plugin}{next}",
                attempt["number"],
                text(&attempt["reason"]),
                text(&attempt["decided_by"]),
            );
            self.fact("attempt", &value)?;
        }
        Ok(())
    }

    pub(super) fn closing(&mut self, took: Duration) -> Result<(), Failure> {
        self.line("")?;
        let done = self.paint(GOOD, "done");
        self.line(&format!(
            "{done} in {:.1} s: 1 refused, 3 delivered, 1 of them after a retry, 1 after a redrive",
            took.as_secs_f64()
        ))
    }

    pub(super) fn by_hand(&mut self, commands: &Commands<'_>) -> Result<(), Failure> {
        let Commands { ingress, admin, config, token_file, dead } = commands;
        let title = self.paint(LOUD, "The same by hand");
        self.line("")?;
        self.line(&title)?;
        for command in [
            format!(
                "export HOOKGATE_URL=http://{admin} HOOKGATE_TENANT=demo HOOKGATE_TOKEN=$(cat {})",
                token_file.display()
            ),
            format!(
                "hookgate send http://{ingress}/in/demo/shop --scheme github --secret {} -H 'x-github-event: contact.updated' --data '{{\"id\":8}}'",
                super::SOURCE_SECRET
            ),
            format!("curl -i http://{ingress}/in/demo/shop -H 'x-hub-signature-256: sha256=00' -d '{{}}'   # forged"),
            "hookgate delivery list".to_owned(),
            format!("hookgate delivery get {dead}"),
            "hookgate dlq groups".to_owned(),
            format!("hookgate delivery redrive {dead} --yes   # refused: it is no dead letter any more"),
            format!("hookgate check {}", config.display()),
        ] {
            self.line(&format!("  {command}"))?;
        }
        Ok(())
    }

    pub(super) fn waiting(&mut self) -> Result<(), Failure> {
        self.line("")?;
        self.line("The gateway stays up. Ctrl-C ends it and removes its files.")
    }
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
