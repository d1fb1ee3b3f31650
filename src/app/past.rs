//! Versions of plugins on what was recorded: what one would have said of it, and the calls that were made. Nothing is
//! sent, nothing is written, and no fault counts against a version.
//!
//! The calls take turns like live ones, one at a time for a whole run, so that a tenant's deliveries keep the others.

mod call;
mod fixtures;
mod tally;

use super::shipping::{Shipping, Ware};
use crate::admin::{DryRun, DryRunPage, Refusal, Rehearsal, Replay, ReplayedPage, Unheard};
use crate::clock::Clock;
use crate::delivery::classify::{after_fault, builtin};
use crate::delivery::{Fault, FaultKind, KeptBody, Name, PluginVersionId, Verdict};
use crate::dispatch::{Target, Targets};
use crate::ledger::{EndpointKey, Ledger, PastAttempt, PastRoom, VersionRow, VersionState};
use crate::plugin::compare::{Making, Request, Ruling, Told};
use crate::plugin::{Call, Limits, Plugin, Rules as _, Transformed};
use async_trait::async_trait;
use bytes::Bytes;
use call::{Recorded, Silent};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tally::Tally;

/// Dry runs at once, over all tenants.
const RUNS_MAX: usize = 4;
/// After so long a page ends where it is.
const PAGE_TIME_MAX: Duration = Duration::from_secs(2);
/// And when the rows that differ have so many bytes.
const ROWS_BYTES_MAX: usize = 4 << 20;
/// Attempts that are held at once, and their bytes.
const READ_ATTEMPTS: u32 = 64;
const READ_BYTES: usize = 4 << 20;

pub(super) struct Rehearsals {
    ledger: Arc<dyn Ledger>,
    shipping: Arc<Shipping>,
    targets: Arc<Targets>,
    clock: Arc<dyn Clock>,
    /// The most of an answer that a live `classify` is given.
    response_read_bytes_max: usize,
    running: Arc<Mutex<HashSet<Name>>>,
}

impl Rehearsals {
    pub(super) fn new(
        ledger: Arc<dyn Ledger>,
        shipping: Arc<Shipping>,
        targets: Arc<Targets>,
        clock: Arc<dyn Clock>,
        response_read_bytes_max: usize,
    ) -> Self {
        Rehearsals { ledger, shipping, targets, clock, response_read_bytes_max, running: Arc::default() }
    }

    /// The version to be tried, and the plugin as it is in use.
    async fn version(&self, run: &DryRun) -> Result<(VersionRow, Arc<Ware>), Unheard> {
        let ware = self.shipping.find(&run.tenant, &run.plugin).ok_or(Refusal::NotFound)?;
        let history = self.ledger.plugin_history(run.key, &run.plugin).await?;
        let row = history.version(run.version).cloned().ok_or(Refusal::NoSuchVersion)?;
        match &row.state {
            VersionState::Ready | VersionState::Disabled(_) if row.uploaded.is_some() => Ok((row, ware)),
            VersionState::Rejected(_) => Err(Refusal::Rejected(row).into()),
            VersionState::Ready | VersionState::Disabled(_) | VersionState::Compiling => {
                Err(Refusal::NotReady(row).into())
            }
        }
    }

    fn targets_of(&self, endpoints: &[EndpointKey]) -> HashMap<EndpointKey, Arc<Target>> {
        endpoints.iter().filter_map(|key| Some((*key, self.targets.endpoint(*key)?))).collect()
    }

    async fn page(&self, run: &DryRun, stage: &Stage) -> Result<DryRunPage, Unheard> {
        let ends_at = self.clock.monotonic() + PAGE_TIME_MAX;
        let mut tally = Tally::default();
        let (mut items, mut items_bytes): (Vec<Value>, _) = (Vec::new(), 0);
        let (mut scanned, mut from) = (0, run.from);
        let end = |from, scanned, tally: Tally, items: Vec<Value>| {
            let (verdicts, requests) = tally.told();
            let (tenant, plugin, version) = (&run.tenant, &run.plugin, run.version);
            tracing::info!(%tenant, %plugin, %version, scanned, differ = items.len(), "a page of a dry run is done");
            let active = stage.active.as_ref().map(|(version, _)| *version);
            Ok(DryRunPage { active, scanned, verdicts, requests, items, next: from })
        };
        loop {
            let attempts = READ_ATTEMPTS.min(run.limit - scanned);
            let room = PastRoom { attempts, bytes: READ_BYTES, payloads: true };
            let read = self.ledger.past_attempts(run.key, &run.filter, from, room).await?;
            let read_here = read.attempts.len();
            for (n, attempt) in read.attempts.iter().enumerate() {
                let over = self.clock.monotonic() >= ends_at || items_bytes >= ROWS_BYTES_MAX;
                if over && scanned > 0 {
                    return end(from, scanned, tally, items);
                }
                match stage.attempt(attempt, &mut tally).await {
                    Ok(None) => {}
                    Ok(Some(row)) => {
                        items_bytes += row.to_string().len();
                        items.push(row);
                    }
                    Err(NoTurn) if scanned == 0 => return Err(Unheard::NoTurn),
                    Err(NoTurn) => return end(from, scanned, tally, items),
                }
                scanned += 1;
                from = Some(attempt.place());
                if n + 1 == read_here && !read.more {
                    return end(None, scanned, tally, items);
                }
                // A call that is quickly done gives way to nobody by itself.
                tokio::task::yield_now().await;
            }
            if read.attempts.is_empty() {
                return end(None, scanned, tally, items);
            }
            if scanned >= run.limit {
                return end(from, scanned, tally, items);
            }
        }
    }
}

/// A tenant's one run.
struct Place {
    running: Arc<Mutex<HashSet<Name>>>,
    tenant: Name,
}

impl Place {
    fn take(running: &Arc<Mutex<HashSet<Name>>>, tenant: &Name) -> Option<Self> {
        let mut all = running.lock().unwrap_or_else(PoisonError::into_inner);
        let free = all.len() < RUNS_MAX && all.insert(tenant.clone());
        free.then(|| Place { running: Arc::clone(running), tenant: tenant.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.tenant);
    }
}

#[async_trait]
impl Rehearsal for Rehearsals {
    async fn dry_run(&self, run: DryRun) -> Result<DryRunPage, Unheard> {
        let (row, ware) = self.version(&run).await?;
        let _place = Place::take(&self.running, &run.tenant).ok_or(Unheard::Running)?;
        let candidate = self.shipping.load(&run.tenant, row.digest).await.map_err(|rejected| {
            let (rule, finding, remedy) = (rejected.rule, rejected.finding, rejected.remedy);
            Refusal::NotLoaded { rule, finding, remedy }
        })?;
        let stage = Stage {
            candidate,
            active: ware.in_use(),
            targets: self.targets_of(&run.filter.endpoints),
            limits: self.shipping.limits(&run.tenant),
            response_read_bytes_max: self.response_read_bytes_max,
        };
        self.page(&run, &stage).await
    }

    async fn replayed(&self, replay: Replay) -> Result<ReplayedPage, Unheard> {
        let room = PastRoom { attempts: replay.limit, bytes: READ_BYTES, payloads: true };
        let read = self.ledger.past_attempts(replay.key, &replay.filter, replay.from, room).await?;
        let targets = self.targets_of(&replay.filter.endpoints);
        let next = read.attempts.last().map(PastAttempt::place).filter(|_| read.more);
        let limits = self.shipping.limits(&replay.tenant);
        let items = read.attempts.iter().filter_map(|attempt| {
            let recorded = Recorded::new(attempt, targets.get(&attempt.endpoint)?)?;
            Some(fixtures::of(&recorded, self.response_read_bytes_max, &limits))
        });
        Ok(ReplayedPage { items: items.collect(), next })
    }
}

/// What the attempts of one page are tried with.
struct Stage {
    candidate: Plugin,
    active: Option<(PluginVersionId, Arc<Plugin>)>,
    targets: HashMap<EndpointKey, Arc<Target>>,
    limits: Limits,
    response_read_bytes_max: usize,
}

/// Live calls had every turn.
struct NoTurn;

/// The answer of a call that came to run.
fn ran<T>(call: Result<Call<T>, Fault>) -> Result<Result<T, Fault>, NoTurn> {
    match call.and_then(|call| call.result) {
        Err(Fault { kind: FaultKind::Unavailable, .. }) => Err(NoTurn),
        answer => Ok(answer),
    }
}

impl Stage {
    /// Tries one attempt; gives its row if anything differs.
    async fn attempt(&self, attempt: &PastAttempt, tally: &mut Tally) -> Result<Option<Value>, NoTurn> {
        // The endpoint may have been changed in the file a moment ago.
        let target = self.targets.get(&attempt.endpoint);
        let Some(recorded) = target.and_then(|target| Recorded::new(attempt, target)) else { return Ok(None) };
        let verdict = self.verdict(&recorded).await?;
        let request = self.request(&recorded).await?;
        let mut row = recorded.row();
        let mut differs = false;
        match verdict {
            Err(silent) => tally.verdicts.left_out(silent.as_str()),
            Ok((before, after)) => {
                let changed = before.differences(&after);
                tally.verdicts.pair(before.verdict, after.verdict, !changed.is_empty());
                if !changed.is_empty() {
                    differs = true;
                    row["verdict"] = json!({ "changed": changed, "recorded": before, "candidate": after });
                }
            }
        }
        match request {
            Err(why) => tally.requests.left_out(why),
            Ok((before, after, of)) => {
                let difference = before.difference(&after);
                tally.requests.pair(before.as_str(), after.as_str(), difference.is_some());
                if let Some(mut difference) = difference {
                    differs = true;
                    difference["before_is"] = json!(of);
                    row["request"] = difference;
                }
            }
        }
        Ok(differs.then_some(row))
    }

    /// What was recorded, and what the candidate says.
    async fn verdict(&self, recorded: &Recorded<'_>) -> Result<Result<(Ruling, Ruling), Silent>, NoTurn> {
        let heard = match recorded.heard(&self.limits, self.response_read_bytes_max) {
            Ok(heard) => heard,
            Err(silent) => return Ok(Err(silent)),
        };
        let otherwise = heard.reason();
        let candidate = if self.candidate.exports().classify {
            let call = self.candidate.try_classify(recorded.endpoint(), recorded.call(), heard.view()).await;
            match ran(call)? {
                Ok(verdict) => Ruling::of(&verdict, &otherwise),
                Err(fault) => {
                    let stands_in = after_fault(recorded.target.terms.on_plugin_fault, heard.observed());
                    Ruling::of_fault(&fault, Some(stands_in.as_str()))
                }
            }
        } else {
            Ruling::of(&builtin(heard.observed()), &otherwise)
        };
        let mut before = recorded.ruling(&heard);
        let retryable = |ruling: &Ruling| ruling.verdict == "retryable";
        if retryable(&before) && retryable(&candidate) {
            // When it wished to be tried again is not kept, but what it is asked the same it answers the same.
            if let Some(verdict) = self.asked_again(recorded, &heard).await? {
                let again = Ruling::of(&verdict, &otherwise);
                if before.differences(&again).is_empty() {
                    (before.after_ms, before.scope) = (again.after_ms, again.scope);
                }
            }
        }
        Ok(Ok((before, candidate)))
    }

    /// The verdict again of the version that made it, where that is the one in use.
    async fn asked_again(&self, recorded: &Recorded<'_>, heard: &call::Heard<'_>) -> Result<Option<Verdict>, NoTurn> {
        let Some((version, active)) = &self.active else { return Ok(None) };
        let made_it = recorded.by_plugin() && recorded.attempt.plugin_version == Some(*version);
        if !made_it || !active.exports().classify {
            return Ok(None);
        }
        let call = active.try_classify(recorded.endpoint(), recorded.call(), heard.view()).await;
        Ok(ran(call)?.ok())
    }

    /// What was sent, or would be by the version in use where that is not known, and what the candidate makes.
    async fn request(
        &self,
        recorded: &Recorded<'_>,
    ) -> Result<Result<(Making, Making, &'static str), &'static str>, NoTurn> {
        let transforms = self.candidate.exports().transform;
        if !transforms && recorded.went_as_it_came() {
            // Neither makes anything of it: it need not be there any more.
            let event = || Making::as_it_came(Bytes::new());
            return Ok(Ok((event(), event(), "recorded")));
        }
        let before = recorded.making();
        let Some(event) = recorded.event() else { return Ok(Err("erased")) };
        let (before, of) = match before {
            Some(before) => (before, "recorded"),
            None => match &self.active {
                Some((_, active)) => (self.made(active, recorded, event).await?, "computed"),
                None => return Ok(Err("not_recorded")),
            },
        };
        Ok(Ok((before, self.made(&self.candidate, recorded, event).await?, of)))
    }

    async fn made(
        &self,
        plugin: &Plugin,
        recorded: &Recorded<'_>,
        event: crate::plugin::EventView<'_>,
    ) -> Result<Making, NoTurn> {
        if !plugin.exports().transform {
            return Ok(Making::as_it_came(event.payload.clone()));
        }
        let call = plugin.try_transform(event, recorded.endpoint(), recorded.call()).await;
        Ok(match ran(call)? {
            Ok(Transformed::Skip(reason)) => Making::Skip(reason.to_string()),
            Ok(Transformed::Send { method, path_and_query, headers, body }) => {
                let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
                let headers = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
                let body = KeptBody::Whole(body);
                Making::Send(Request { method: method.to_string(), path_and_query, headers, body })
            }
            Err(fault) => Making::Fault(Told::Known(Some(fault.kind.as_str())), fault.detail),
        })
    }
}
