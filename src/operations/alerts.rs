//! Alerts: looks every few seconds, has what fires and clears made durable, then tells of it: in the log, in a metric,
//! and by an event to the endpoint that the tenant, or the operator, has named.
//!
//! Authoritative is the ledger's list of what fires. An alert is durable before it is sent, and is sent under its own
//! id as the key, so that a process that ends between the two sends it once all the same.

use crate::clock::{ClockWatch, Timestamp};
use crate::delivery::{
    AlertChange, AlertKind, AtRisk, FailingFacts, GatewayFacts, GatewayThresholds, Name, Reading, TenantFacts,
    Thresholds, alert_readings, gateway_readings, going, judge_alerts, may_be_sent,
};
use crate::ledger::{
    Accept, Accepted, AlertNotes, AlertQuestion, AlertRow, AlertShown, AlertTold, DeadlinePlace, DeadlineQuestion,
    EndpointKey, Ledger, LedgerError, NewDelivery, TenantKey, ToTell,
};
use crate::telemetry::{ALERTS_FIRING, EVENTS_ACCEPTED};
use crate::verify::{ALERT_TYPE, announcement};
use arc_swap::ArcSwap;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pages of deadlines that are looked at of one tenant before the others have their turn.
const PAGES_MAX: usize = 20;

/// Where alerts go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlertRoute {
    pub tenant: (TenantKey, Name),
    pub endpoint: (EndpointKey, Name),
}

/// What an alert's receiver reads.
#[derive(Serialize)]
struct Sent {
    #[serde(rename = "type")]
    event_type: &'static str,
    #[serde(flatten)]
    alert: AlertShown,
}

/// What is watched of one tenant.
#[derive(Clone, Debug)]
pub struct WatchedTenant {
    pub key: TenantKey,
    pub name: Name,
    pub thresholds: Thresholds,
    /// How long its payloads are kept.
    pub payloads: Duration,
    /// What is declared, with after how long a failure it is disabled: of the others nothing is told but their dead
    /// letters.
    pub endpoints: BTreeMap<Name, Option<Duration>>,
    pub plugins: BTreeSet<Name>,
    pub route: Option<AlertRoute>,
}

#[derive(Clone, Debug)]
pub struct Watched {
    /// Between two looks.
    pub every: Duration,
    pub gateway: GatewayThresholds,
    /// For the gateway's own alerts.
    pub route: Option<AlertRoute>,
    pub tenants: Vec<WatchedTenant>,
}

impl Default for Watched {
    fn default() -> Self {
        Watched {
            every: Duration::from_secs(5),
            gateway: GatewayThresholds::default(),
            route: None,
            tenants: Vec::new(),
        }
    }
}

/// Deadlines as far as they have been looked through.
#[derive(Default)]
struct Sweep {
    /// Where the next page begins; `None`: from the front.
    at: Option<DeadlinePlace>,
    /// What this round has found, and what the whole round before it found.
    found: BTreeMap<Name, AtRisk>,
    before: BTreeMap<Name, AtRisk>,
}

impl Sweep {
    fn add(&mut self, risk: AtRisk) {
        match self.found.get_mut(&risk.endpoint) {
            // Pages come in the order of deadlines: the first is the nearest.
            Some(known) => known.count += risk.count,
            None => {
                self.found.insert(risk.endpoint.clone(), risk);
            }
        }
    }

    /// What is known now. Until a round is over, what the one before it found still holds.
    fn told(&mut self) -> Vec<AtRisk> {
        if self.at.is_none() {
            self.before = std::mem::take(&mut self.found);
            return self.before.values().cloned().collect();
        }
        let mut all = self.before.clone();
        for (name, risk) in &self.found {
            if all.get(name).is_none_or(|known| known.count < risk.count) {
                all.insert(name.clone(), risk.clone());
            }
        }
        all.into_values().collect()
    }
}

/// The one that watches.
pub struct Watch {
    ledger: Arc<dyn Ledger>,
    clock: Arc<ClockWatch>,
    watched: ArcSwap<Watched>,
}

impl Watch {
    pub fn new(ledger: Arc<dyn Ledger>, clock: Arc<ClockWatch>) -> Self {
        Watch { ledger, clock, watched: ArcSwap::default() }
    }

    /// From the next look on, this is what is watched.
    pub fn replace(&self, watched: Watched) {
        self.watched.store(Arc::new(watched));
    }

    /// Runs until `stop` is cancelled. While the date is in doubt, nothing fires and nothing clears.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut sweeps = HashMap::new();
        let mut failing = false;
        loop {
            let watched = self.watched.load_full();
            if self.clock.is_settled() {
                let looked = self.look(&watched, &mut sweeps).await;
                if let Err(error) = looked.as_ref()
                    && !failing
                {
                    // Said once: the same is likely to go on for a while.
                    tracing::warn!(%error, "alerts could not be judged; it is tried again");
                }
                failing = looked.is_err();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(watched.every) => {}
            }
        }
    }

    /// One look at everything.
    async fn look(&self, watched: &Watched, sweeps: &mut HashMap<TenantKey, Sweep>) -> Result<(), LedgerError> {
        let mut open: BTreeMap<Option<TenantKey>, Vec<AlertRow>> = BTreeMap::new();
        for row in self.ledger.open_alerts().await? {
            open.entry(row.tenant.as_ref().map(|(key, _)| *key)).or_default().push(row);
        }
        sweeps.retain(|key, _| watched.tenants.iter().any(|tenant| tenant.key == *key));
        let mut firing: BTreeMap<AlertKind, u32> = BTreeMap::new();
        // One tenant's trouble takes nothing from the others' alerts.
        let mut first_error = None;
        for tenant in &watched.tenants {
            let now = self.clock.now();
            let known = open.remove(&Some(tenant.key)).unwrap_or_default();
            let looked = match self.readings(tenant, sweeps.entry(tenant.key).or_default(), now).await {
                Ok(readings) => self.note(Some(tenant.key), readings, known, tenant.route.as_ref(), now).await,
                Err(error) => Err(error),
            };
            match looked {
                Ok(kinds) => kinds.into_iter().for_each(|kind| *firing.entry(kind).or_default() += 1),
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        let facts = GatewayFacts {
            ledger_bytes: self.ledger.gauges().ledger_bytes,
            disk_free_bytes: self.ledger.disk_free_bytes(),
        };
        let readings = gateway_readings(&facts, &watched.gateway);
        let known = open.remove(&None).unwrap_or_default();
        let noted = self.note(None, readings, known, watched.route.as_ref(), self.clock.now()).await;
        // What was watched once, and is not declared any more.
        for (tenant, known) in open {
            self.note(tenant, Vec::new(), known, None, self.clock.now()).await?;
        }
        match (noted, first_error) {
            (Ok(kinds), None) => {
                kinds.into_iter().for_each(|kind| *firing.entry(kind).or_default() += 1);
                for kind in AlertKind::ALL {
                    let count = firing.get(&kind).copied().unwrap_or(0);
                    metrics::gauge!(ALERTS_FIRING, "kind" => kind.as_str()).set(f64::from(count));
                }
                Ok(())
            }
            (Err(error), _) | (Ok(_), Some(error)) => Err(error),
        }
    }

    async fn readings(
        &self,
        tenant: &WatchedTenant,
        sweep: &mut Sweep,
        now: Timestamp,
    ) -> Result<Vec<Reading>, LedgerError> {
        let thresholds = &tenant.thresholds;
        let question = AlertQuestion {
            tenant: tenant.key,
            told_by: tenant.route.as_ref().map(|route| route.endpoint.0),
            going: going(tenant.payloads, thresholds.erasure_margin, now),
            closings_since: now.minus(thresholds.flapping_window),
            ended_since: now.minus(thresholds.terminal_window),
        };
        let known = self.ledger.alert_facts(question).await?;
        for _ in 0..PAGES_MAX {
            let question =
                DeadlineQuestion { tenant: tenant.key, margin: thresholds.deadline_margin, now, after: sweep.at };
            let page = self.ledger.deadlines(question).await?;
            page.at_risk.into_iter().for_each(|risk| sweep.add(risk));
            sweep.at = page.next;
            if sweep.at.is_none() {
                break;
            }
        }
        let failing = known.failing.into_iter().filter_map(|(name, failing)| {
            let disable_after = *tenant.endpoints.get(&name)?;
            FailingFacts::of(name, failing, disable_after, now)
        });
        let mut facts = TenantFacts {
            dead: known.dead,
            undelivered: known.undelivered,
            at_risk: sweep.told(),
            endpoints: known.endpoints,
            failing: failing.collect(),
            plugins: known.plugins,
        };
        facts.endpoints.retain(|endpoint| tenant.endpoints.contains_key(&endpoint.name));
        facts.plugins.retain(|plugin| tenant.plugins.contains(&plugin.name));
        Ok(alert_readings(&facts, thresholds, tenant.payloads, now))
    }

    /// What the readings change becomes durable, then is told. Gives what fires.
    async fn note(
        &self,
        tenant: Option<TenantKey>,
        readings: Vec<Reading>,
        known: Vec<AlertRow>,
        route: Option<&AlertRoute>,
        now: Timestamp,
    ) -> Result<Vec<AlertKind>, LedgerError> {
        let (mut stand, mut untold): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
        for row in &known {
            if row.cleared_at.is_none() {
                stand.push(row.standing());
            }
            if row.told == AlertTold::NotYet {
                untold.push(row.clone());
            }
        }
        let mut notes = AlertNotes { tenant, ..AlertNotes::default() };
        for change in judge_alerts(readings, &stand) {
            match change {
                AlertChange::Fires(reading) => {
                    let goes = route.is_some_and(|to| may_be_sent(reading.kind, &reading.subject, &to.endpoint.1));
                    notes.fires.push((reading, if goes { ToTell::Yes } else { ToTell::No }));
                }
                AlertChange::Moves(id, reading) => notes.moves.push((id, reading)),
                AlertChange::Clears(id) => notes.clears.push(id),
            }
        }
        let cleared = notes.clears.clone();
        let mut firing: Vec<AlertKind> =
            stand.iter().filter(|alert| !cleared.contains(&alert.id)).map(|alert| alert.kind).collect();
        if !notes.is_empty() {
            for row in self.ledger.note_alerts(notes, now).await? {
                say_fired(&row);
                firing.push(row.kind());
                if row.told == AlertTold::NotYet {
                    untold.push(row);
                }
            }
            known.iter().filter(|row| cleared.contains(&row.id)).for_each(say_cleared);
        }
        for row in untold {
            self.tell(&row, route, now).await?;
        }
        Ok(firing)
    }

    async fn tell(&self, row: &AlertRow, route: Option<&AlertRoute>, now: Timestamp) -> Result<(), LedgerError> {
        let reading = &row.reading;
        let route = route.filter(|to| may_be_sent(reading.kind, &reading.subject, &to.endpoint.1));
        let Some(AlertRoute { tenant: (tenant, name), endpoint: (endpoint, _) }) = route else {
            return self.ledger.note_told(row.id, None).await;
        };
        // Our fields are text and numbers: writing them does not fail.
        let body = serde_json::to_vec(&Sent { event_type: ALERT_TYPE, alert: row.shown() }).unwrap_or_default();
        let accept = Accept {
            tenant: *tenant,
            source: None,
            event: announcement(name, row.id.to_string(), body.into(), now),
            deliveries: vec![NewDelivery { endpoint: *endpoint, slot: None, order: None }],
            now,
        };
        let event = match self.ledger.accept(accept).await? {
            Accepted::New(event) => {
                metrics::counter!(EVENTS_ACCEPTED).increment(1);
                event
            }
            // Sent before, by a process that ended before it could say so; since then the count may have moved.
            Accepted::Duplicate(event) | Accepted::KeyReused(event) => event,
            // No key coalesces it.
            Accepted::TooLateAt(_) => return Ok(()),
        };
        self.ledger.note_told(row.id, Some(event)).await
    }
}

fn say_fired(row: &AlertRow) {
    let shown = row.shown();
    let tenant = shown.tenant.as_ref().map_or("", Name::as_str);
    tracing::warn!(
        alert = %row.id, kind = shown.kind, %tenant, subject = %shown.subject, value = shown.value,
        threshold = shown.threshold, next_step = %shown.next_step, "alert: {}", shown.summary
    );
}

fn say_cleared(row: &AlertRow) {
    let tenant = row.tenant.as_ref().map_or("", |(_, name)| name.as_str());
    tracing::info!(
        alert = %row.id, kind = row.kind().as_str(), %tenant, subject = %row.reading.subject, "alert cleared"
    );
}
