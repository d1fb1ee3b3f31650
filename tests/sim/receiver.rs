//! The other side of the network: it answers by the seed, and keeps a journal of what reached it.

use crate::dice::Dice;
use crate::oracle::{Answer, signer};
use crate::plant::Plant;
use crate::scenario::Temper;
use crate::time::pass;
use crate::world::Sim;
use async_trait::async_trait;
use bytes::Bytes;
use hookgate::clock::Timestamp;
use hookgate::delivery::{Phase, Reason, RetryAfter, TransportKind};
use hookgate::egress::{self, Exchange, Failure, Outbound, Timings, Transport};
use hookgate::ledger::EndpointKey;
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use std::sync::Arc;
use std::time::Duration;

pub struct Receiver {
    pub sim: Arc<Sim>,
}

/// Counts what is on the wire, however it ends.
struct OnWire<'a>(&'a Sim, EndpointKey);

impl<'a> OnWire<'a> {
    fn new(sim: &'a Sim, key: EndpointKey) -> Self {
        sim.oracle.look().on_wire(key);
        OnWire(sim, key)
    }
}

impl Drop for OnWire<'_> {
    fn drop(&mut self) {
        self.0.oracle.look().off_wire(self.1);
    }
}

#[async_trait]
impl Transport for Receiver {
    async fn send(&self, mut outbound: Outbound) -> Exchange {
        self.plant(&mut outbound);
        let exchange = self.exchange(&outbound).await;
        if self.sim.plant == Some(Plant::ClientResends) && matches!(exchange, Exchange::Failed(_)) {
            return self.exchange(&outbound).await;
        }
        exchange
    }
}

impl Receiver {
    fn plant(&self, outbound: &mut Outbound) {
        let set = |outbound: &mut Outbound, name: &'static str, value: String| {
            outbound.headers.insert(name, HeaderValue::try_from(value).unwrap());
        };
        match self.sim.plant {
            Some(Plant::BodyChanged) => {
                outbound.body = Bytes::from_static(b"{}");
                let now = self.sim.oracle.look().now();
                let id = outbound.headers["webhook-id"].to_str().unwrap().to_owned();
                outbound.headers.insert("webhook-signature", signer().headers(&id, now, &outbound.body));
            }
            Some(Plant::IdChanged) if outbound.headers["hookgate-attempt"] != "1" => {
                let other = outbound.headers["hookgate-event"].to_str().unwrap().replace("evt", "dlv");
                set(outbound, "webhook-id", other);
            }
            Some(Plant::StaleStamp) => {
                let at: i64 = outbound.headers["webhook-timestamp"].to_str().unwrap().parse().unwrap();
                set(outbound, "webhook-timestamp", (at - 60).to_string());
            }
            _ => {}
        }
    }

    async fn exchange(&self, outbound: &Outbound) -> Exchange {
        let (sim, key) = (&*self.sim, EndpointKey(outbound.pool));
        sim.effect().await;
        let attempt = sim.oracle.look().request(outbound);
        let Some(attempt) = attempt else {
            return failed(TransportKind::Other, Phase::AfterWrite);
        };
        let bits = attempt.0.as_u128();
        let mut dice = Dice::of(&[sim.seed, 3, u64::try_from(bits >> 64).unwrap(), attempt.1.into()]);
        let fate = if sim.is_quiet() { Fate::Answers(200, None) } else { self.fate(&mut dice, sim.temper(key)) };
        let _wire = OnWire::new(sim, key);
        let short = Duration::from_millis(60);
        let taking = |dice: &mut Dice| {
            let longest = if dice.percent(80) { short } else { outbound.timeout };
            dice.up_to(longest)
        };
        let (wait, answer) = match fate {
            Fate::Answers(status, after) => (taking(&mut dice), Answer::Status(status, after)),
            Fate::Outlives => {
                let longer = outbound.timeout + crate::scenario::LEASE_MARGIN + sim.scenario.poll_every * 2;
                (longer + dice.up_to(longer), Answer::Status(200, None))
            }
            Fate::Unreachable(kind) => (taking(&mut dice), Answer::Failed(kind, Phase::BeforeWrite)),
            Fate::ConnectStalls => (outbound.timeout, Answer::Failed(TransportKind::Timeout, Phase::BeforeWrite)),
            Fate::Resets => (taking(&mut dice), Answer::Failed(TransportKind::Reset, Phase::AfterWrite)),
            Fate::Stalls => (outbound.timeout, Answer::Failed(TransportKind::Timeout, Phase::AfterWrite)),
            Fate::Blocked => (Duration::ZERO, Answer::Blocked),
        };
        pass(wait).await;
        // It has acted by now: the process may end before it knows.
        sim.effect().await;
        sim.oracle.look().answered(attempt, answer);
        match answer {
            Answer::Status(status, after) => Exchange::Answered(egress::Answer {
                status: status.try_into().unwrap(),
                headers: after.map(header).unwrap_or_default(),
                body: Bytes::from_static(b"{\"ok\":true}"),
                body_truncated: dice.percent(5),
                elapsed: wait,
                timings: Timings::default(),
            }),
            Answer::Failed(kind, phase) => failed(kind, phase),
            Answer::Blocked => Exchange::Refused { reason: Reason::POLICY, detail: "denied".to_owned() },
        }
    }

    fn fate(&self, dice: &mut Dice, temper: Temper) -> Fate {
        let roll = dice.next() % 100;
        let mut edge = 0;
        let mut within = |share: u64| {
            edge += share;
            roll < edge
        };
        if within(temper.errs) {
            return Fate::Answers(*dice.pick(&[500, 502, 504, 408, 425, 503]), None);
        }
        if within(temper.throttles) {
            let after = dice.percent(85).then(|| self.retry_after(dice));
            return Fate::Answers(*dice.pick(&[429, 503]), after);
        }
        if within(temper.refuses) {
            let after = dice.percent(20).then(|| self.retry_after(dice));
            return Fate::Answers(*dice.pick(&[400, 404, 422, 301, 500]), after);
        }
        if within(temper.gone) {
            return Fate::Answers(410, None);
        }
        if within(temper.unreachable) {
            return match dice.below(4) {
                0 => Fate::ConnectStalls,
                kind => Fate::Unreachable([TransportKind::Dns, TransportKind::Connect, TransportKind::Tls][kind - 1]),
            };
        }
        if within(temper.resets) {
            return Fate::Resets;
        }
        if within(temper.stalls) {
            return Fate::Stalls;
        }
        if within(temper.outlives) {
            return Fate::Outlives;
        }
        if within(temper.blocked) {
            return Fate::Blocked;
        }
        Fate::Answers(*dice.pick(&[200, 202, 204]), None)
    }

    fn retry_after(&self, dice: &mut Dice) -> RetryAfter {
        let long = self.sim.scenario.unit >= Duration::from_secs(600) && dice.percent(10);
        let wait =
            if long { Duration::from_secs(3 * 86_400) } else { self.sim.scenario.unit * *dice.pick(&[0, 1, 2, 8]) };
        if dice.percent(60) {
            return RetryAfter::Delay(wait);
        }
        let at = self.sim.oracle.look().now().plus(wait);
        RetryAfter::At(Timestamp::from_millis(at.as_seconds() * 1000))
    }
}

enum Fate {
    Answers(u16, Option<RetryAfter>),
    Outlives,
    Unreachable(TransportKind),
    ConnectStalls,
    Resets,
    Stalls,
    Blocked,
}

fn failed(kind: TransportKind, phase: Phase) -> Exchange {
    let (detail, timings) = (kind.as_str().to_owned(), Timings::default());
    Exchange::Failed(Failure { kind, phase, detail, elapsed: Duration::ZERO, timings })
}

fn header(after: RetryAfter) -> HeaderMap {
    let value = match after {
        RetryAfter::Delay(wait) => wait.as_secs().to_string(),
        RetryAfter::At(at) => {
            let since = Duration::from_secs(u64::try_from(at.as_seconds()).unwrap());
            httpdate::fmt_http_date(std::time::UNIX_EPOCH + since)
        }
    };
    HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::try_from(value).unwrap())])
}
