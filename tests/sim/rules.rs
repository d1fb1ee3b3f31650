//! A plugin that says what the seed says: it makes requests, skips, judges, faults in every way, and cannot be had.

use crate::dice::Dice;
use crate::time::pass;
use crate::world::Sim;
use async_trait::async_trait;
use bytes::Bytes;
use hookgate::delivery::{EventId, Fault, FaultKind, PauseScope, Reason, RetryHint, Verdict};
use hookgate::ledger::EndpointKey;
use hookgate::plugin::{AttemptView, Call, EndpointView, EventView, Exports, OutcomeView, Rules, Transformed};
use http::{HeaderMap, Method};
use std::sync::Arc;
use std::time::Duration;

pub struct Script {
    pub sim: Arc<Sim>,
    pub endpoint: EndpointKey,
    pub exports: Exports,
}

fn call<T>(result: Result<T, Fault>) -> Call<T> {
    Call { result, took: Duration::ZERO, memory_bytes: 0, log: Vec::new(), log_lines_dropped: 0 }
}

fn fault<T>(kind: FaultKind) -> Result<T, Fault> {
    Err(Fault { kind, detail: "by the seed".to_owned() })
}

const TRANSFORM_FAULTS: [FaultKind; 5] =
    [FaultKind::Trap, FaultKind::Plugin, FaultKind::BadOutput, FaultKind::InputTooLarge, FaultKind::Unavailable];
const CLASSIFY_FAULTS: [FaultKind; 3] = [FaultKind::Trap, FaultKind::Deadline, FaultKind::Unavailable];

impl Script {
    fn dice(&self, what: u64, attempt: AttemptView<'_>) -> (EventId, Dice) {
        let event: EventId = attempt.event_id.parse().unwrap();
        let bits = u64::try_from(event.as_u128() >> 64).unwrap();
        let parts = [self.sim.seed, what, bits, self.endpoint.0.into(), attempt.number.into()];
        (event, Dice::of(&parts))
    }

    async fn thinks(&self, dice: &mut Dice) {
        if dice.percent(30) && !self.sim.is_quiet() {
            pass(dice.up_to(Duration::from_secs(2))).await;
        }
    }
}

#[async_trait]
impl Rules for Script {
    fn exports(&self) -> Exports {
        self.exports
    }

    async fn transform(
        &self,
        event: EventView<'_>,
        _to: EndpointView<'_>,
        attempt: AttemptView<'_>,
    ) -> Call<Transformed> {
        let (id, mut dice) = self.dice(4, attempt);
        self.thinks(&mut dice).await;
        let body = if dice.percent(50) {
            event.payload.clone()
        } else {
            Bytes::from(format!("{{\"made\":{},\"of\":{}}}", attempt.number, event.payload.len()))
        };
        let path_and_query = dice.percent(30).then(|| "/made?by=plugin".to_owned());
        let sends =
            Transformed::Send { method: Method::POST, path_and_query, headers: HeaderMap::new(), body: body.clone() };
        let result = match dice.next() % 100 {
            _ if self.sim.is_quiet() => Ok(sends),
            0..=5 => Ok(Transformed::Skip(Reason::word("not_ours"))),
            6..=17 => fault(*dice.pick(&TRANSFORM_FAULTS)),
            _ => Ok(sends),
        };
        let made = matches!(result, Ok(Transformed::Send { .. })).then_some(body);
        self.sim.oracle.look().transformed(id, self.endpoint, attempt.number, made);
        call(result)
    }

    async fn classify(
        &self,
        _to: EndpointView<'_>,
        attempt: AttemptView<'_>,
        outcome: OutcomeView<'_>,
    ) -> Call<Verdict> {
        let (id, mut dice) = self.dice(5, attempt);
        self.thinks(&mut dice).await;
        let good = matches!(outcome, OutcomeView::Response { status: 200..=299, .. });
        let after = dice.percent(50).then(|| self.sim.scenario.unit * *dice.pick(&[0, 1, 5]));
        let scope = *dice.pick(&[PauseScope::Delivery, PauseScope::Delivery, PauseScope::Endpoint]);
        let again = Verdict::Retryable(RetryHint { reason: Reason::word("busy"), after, scope });
        let delivered = Verdict::Delivered { reference: Some(format!("ref-{id}")), reason: None };
        let result = match dice.next() % 100 {
            _ if self.sim.is_quiet() && good => Ok(delivered),
            0..=11 => fault(*dice.pick(&CLASSIFY_FAULTS)),
            12..=19 => Ok(Verdict::Terminal(Reason::word("no_such_number"))),
            20..=34 => Ok(again),
            _ if good => Ok(delivered),
            _ => Ok(again),
        };
        self.sim.oracle.look().classified(id, self.endpoint, attempt.number, result.as_ref().ok().cloned());
        call(result)
    }
}
