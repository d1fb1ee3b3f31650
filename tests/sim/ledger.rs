//! The real ledger, between the engine and the oracle: verbs are slow, fail, or fail after their commit; what was asked
//! and what was really answered goes to the oracle; below that, one rule may be broken on purpose.
//!
//! The ledger's threads run in real time, the simulation in its own. So a verb is waited for by standing still: nothing
//! moves between its start and its end, and what it sets off comes in one order.

use crate::dice::Dice;
use crate::oracle::AcceptFacts;
use crate::plant::Plant;
use crate::support::{publication, verified};
use crate::time::pass;
use crate::world::Sim;
use async_trait::async_trait;
use hookgate::clock::Timestamp;
use hookgate::delivery::{
    AlertId, DeliveryId, Disposition, EndpointEffect, EndpointStatus, EventId, History as Past_, Name, OperationId,
    PluginVersionId, Reason, TrialId,
};
use hookgate::ledger::sqlite::SqliteLedger;
use hookgate::ledger::*;
use hookgate::secret::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::mpsc;

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Stands still until it is done.
pub fn block_on<F: Future>(future: F) -> F::Output {
    // Without tokio's budget, which would have it wait for a turn of the runtime.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

pub struct SimLedger {
    inner: Arc<SqliteLedger>,
    sim: Arc<Sim>,
    slots: Arc<Slots>,
    births: Mutex<mpsc::UnboundedReceiver<Claimed>>,
    born: mpsc::UnboundedSender<Claimed>,
    fates: Mutex<Dice>,
}

/// What follows a commit.
struct Then {
    wait: Duration,
    unknown: bool,
}

fn unavailable(why: &str) -> LedgerError {
    LedgerError::Unavailable(why.to_owned())
}

impl SimLedger {
    /// The receiver gives what is born, as the ledger's own would.
    pub fn new(
        inner: Arc<SqliteLedger>,
        births: mpsc::UnboundedReceiver<Claimed>,
        slots: Arc<Slots>,
        sim: Arc<Sim>,
        life: u64,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Claimed>) {
        let (born, arrivals) = mpsc::unbounded_channel();
        let fates = Mutex::new(Dice::of(&[sim.seed, 2, life]));
        let ledger = SimLedger { inner, sim, slots, births: Mutex::new(births), born, fates };
        (Arc::new(ledger), arrivals)
    }

    /// The ledger itself.
    pub fn real(&self) -> &SqliteLedger {
        &self.inner
    }

    fn is(&self, plant: Plant) -> bool {
        self.sim.plant == Some(plant)
    }

    /// A bug that strikes now and then.
    fn strikes(&self, plant: Plant) -> bool {
        self.is(plant) && self.fates.lock().unwrap().percent(50)
    }

    /// Before a verb: it takes its time, and may be refused.
    async fn begin(&self) -> Result<Then, LedgerError> {
        let (before, after, refused, unknown) = {
            let mut dice = self.fates.lock().unwrap();
            let faults = self.sim.ledger_faults();
            let wait = |dice: &mut Dice| match dice.percent(faults.slow) {
                true if dice.percent(10) => dice.up_to(Duration::from_secs(8)),
                true => dice.up_to(Duration::from_millis(80)),
                false => Duration::ZERO,
            };
            let waits = (wait(&mut dice), wait(&mut dice));
            (waits.0, waits.1, dice.percent(faults.refused), dice.percent(faults.unknown))
        };
        pass(before).await;
        self.sim.effect().await;
        if refused {
            return Err(unavailable("refused"));
        }
        Ok(Then { wait: after, unknown })
    }

    /// After its commit: what was born goes on its way, and the answer may be lost.
    async fn end(&self, then: Then) -> Result<(), LedgerError> {
        self.send_births();
        self.sim.effect().await;
        pass(then.wait).await;
        if then.unknown {
            self.sim.oracle.look().saw("unknown commit");
            return Err(unavailable("the connection was lost at the commit"));
        }
        Ok(())
    }

    fn send_births(&self) {
        let mut births = self.births.lock().unwrap();
        while let Ok(claimed) = births.try_recv() {
            let mut model = self.sim.oracle.look();
            model.born(&claimed);
            model.hand_over(&claimed.lease);
            // A dispatcher that has ended takes nothing more.
            let _ = self.born.send(claimed);
        }
    }

    /// Tells the oracle of which event and endpoint these are, if it has not seen them yet.
    fn introduce(&self, ids: impl Iterator<Item = (TenantKey, DeliveryId, EndpointKey)>) {
        for (tenant, id, endpoint) in ids {
            if !self.sim.oracle.look().knows(id)
                && let Ok(Some(detail)) = block_on(self.inner.delivery(tenant, id))
            {
                self.sim.oracle.look().name(id, detail.delivery.event, endpoint);
            }
        }
    }

    /// By the id alone: an operator knows no more.
    fn introduce_by_name(&self, tenant: TenantKey, id: DeliveryId) {
        if self.sim.oracle.look().knows(id) {
            return;
        }
        if let Ok(Some(detail)) = block_on(self.inner.delivery(tenant, id)) {
            let mut model = self.sim.oracle.look();
            let of = |(key, e): (&EndpointKey, &crate::oracle::Endpoint)| {
                (e.tenant == tenant && e.name == detail.delivery.endpoint).then_some(*key)
            };
            if let Some(endpoint) = model.endpoints.iter().find_map(of) {
                model.name(id, detail.delivery.event, endpoint);
            }
        }
    }

    fn accept_planted(&self, mut accept: Accept) -> Result<Accepted, LedgerError> {
        if accept.deliveries.len() > 1 && self.strikes(Plant::FanOutDropped) {
            accept.deliveries.pop();
        }
        if self.strikes(Plant::AckWithoutCommit) {
            let id = u128::from(self.fates.lock().unwrap().next());
            return Ok(Accepted::New(EventId::from_u128(id)));
        }
        if self.is(Plant::DedupForgotten) {
            let event = &*accept.event;
            let mut again = publication(&event.event_type, event.key.as_deref(), event.body.to_vec());
            (again.deliver_at, again.expires_at) = (event.deliver_at, event.expires_at);
            let tenant = self.sim.tenant_name(accept.tenant);
            accept.event = verified(&tenant, again, Duration::ZERO, accept.now);
        }
        block_on(self.inner.accept(accept))
    }

    /// What no commit backs goes on its way.
    fn send_uncommitted(&self, accept: Accept) {
        let event = accept.event.into_inner();
        let bits = u128::from(self.fates.lock().unwrap().next()) | 7 << 76 | 2 << 62;
        let id = EventId::from_u128(bits);
        for new in accept.deliveries {
            let Some(slot) = new.slot else { continue };
            let lease = Lease {
                tenant: accept.tenant,
                delivery: DeliveryId::from_u128(bits + 1),
                endpoint: new.endpoint,
                token: 0,
                until: accept.now.plus(Duration::from_secs(60)),
                generation: 1,
                revision: 1,
                number: 1,
                started_at: accept.now,
                eligible_at: accept.now,
                history: Past_ { counted: 1, interrupted_before: 0, began_at: accept.now, expires_at: None },
            };
            let content = EventContent {
                id,
                source: None,
                event_type: event.event_type.clone(),
                content_type: event.content_type.clone(),
                headers: Vec::new(),
                body: event.body.clone(),
                key: None,
                accepted_at: accept.now,
            };
            let (event, idempotency_key) = (Arc::new(content), id.to_string().into());
            let _ = self.born.send(Claimed { lease, sequence: 1, idempotency_key, event, slot });
        }
    }

    fn plant_claims(&self, claims: &mut Claims, now: Timestamp) {
        if self.is(Plant::NumberGap) {
            claims.started.iter_mut().for_each(|claimed| claimed.lease.number += 1);
        }
        if self.is(Plant::ClaimedTwice)
            && let Some(first) = claims.started.first()
            && let Taken::Slot(slot) = self.slots.take_for_backlog(first.lease.endpoint, now)
        {
            let (event, idempotency_key) = (Arc::clone(&first.event), Arc::clone(&first.idempotency_key));
            let again = Claimed { lease: first.lease, sequence: first.sequence, idempotency_key, event, slot };
            claims.started.push(again);
        }
    }

    fn settle_planted(&self, settlement: &Arc<Settlement>) -> Result<Settled, LedgerError> {
        let mut planted = Settlement::clone(settlement);
        let now = planted.now;
        let retry = |due| Disposition::RetryAt { due, reason: Reason::word("planted") };
        let disposition = &mut planted.decision.disposition;
        let interrupted = planted.record.outcome == "interrupted";
        match (self.sim.plant, &*disposition) {
            (Some(Plant::DeliveredAgain), Disposition::Delivered { .. })
            | (Some(Plant::DueIgnored), Disposition::RetryAt { .. }) => *disposition = retry(now),
            (Some(Plant::ReleasedCounted), Disposition::Released { due, .. }) => *disposition = retry(*due),
            (Some(Plant::InterruptedUncounted), Disposition::RetryAt { due, reason }) if interrupted => {
                *disposition = Disposition::Released { due: *due, reason: reason.clone() };
            }
            (Some(Plant::Forgotten), Disposition::RetryAt { .. }) => {
                *disposition = retry(now.plus(Duration::from_secs(5 * 86_400)));
            }
            (Some(Plant::DeadWithoutReason), Disposition::Dead(_)) => {
                *disposition = Disposition::Dead(Reason::word(""));
            }
            _ => {}
        }
        if self.is(Plant::PauseForgotten)
            && matches!(planted.decision.endpoint, Some(EndpointEffect::PauseUntil { .. }))
        {
            planted.decision.endpoint = None;
        }
        let settled = block_on(self.inner.settle(Arc::new(planted)));
        match settled {
            Ok(Settled::LeaseLost) if self.is(Plant::LostLeaseStored) => Ok(Settled::Stored),
            settled => settled,
        }
    }
}

#[async_trait]
impl Queue for SimLedger {
    async fn declare(&self, declaration: Declaration, now: Timestamp) -> Result<Directory, LedgerError> {
        block_on(self.inner.declare(declaration, now))
    }

    async fn accept(&self, accept: Accept) -> Result<Accepted, LedgerError> {
        let then = match self.begin().await {
            Err(error) => {
                if self.is(Plant::SentUncommitted) {
                    self.send_uncommitted(accept);
                }
                return Err(error);
            }
            Ok(then) => then,
        };
        let asked = AcceptFacts::of(&accept);
        let accepted = self.accept_planted(accept)?;
        self.sim.oracle.look().accepted(&asked, accepted);
        self.end(then).await?;
        Ok(accepted)
    }

    async fn claim(&self, slots: Vec<Slot>, now: Timestamp) -> Result<Claims, LedgerError> {
        let then = self.begin().await?;
        let mut claims = block_on(self.inner.claim(slots, now))?;
        self.plant_claims(&mut claims, now);
        claims.started.iter().for_each(|claimed| self.sim.oracle.look().claimed(claimed));
        self.end(then).await?;
        claims.started.iter().for_each(|claimed| self.sim.oracle.look().hand_over(&claimed.lease));
        Ok(claims)
    }

    async fn settle(&self, settlement: Arc<Settlement>) -> Result<Settled, LedgerError> {
        let then = self.begin().await?;
        let settled = self.settle_planted(&settlement)?;
        self.sim.oracle.look().settled(&settlement, settled);
        self.end(then).await?;
        Ok(settled)
    }

    async fn rescue(&self, expired_by: Timestamp, limit: usize, now: Timestamp) -> Result<Vec<Lease>, LedgerError> {
        let then = self.begin().await?;
        let planted = if self.is(Plant::LeaseStolen) { Timestamp::MAX } else { expired_by };
        let leases = block_on(self.inner.rescue(planted, limit, now))?;
        self.introduce(leases.iter().map(|lease| (lease.tenant, lease.delivery, lease.endpoint)));
        self.sim.oracle.look().rescued(expired_by, &leases);
        self.end(then).await?;
        Ok(leases)
    }

    async fn overdue(&self, after: Timestamp, limit: usize, now: Timestamp) -> Result<Vec<Lease>, LedgerError> {
        let then = self.begin().await?;
        let leases = block_on(self.inner.overdue(after, limit, now))?;
        self.introduce(leases.iter().map(|lease| (lease.tenant, lease.delivery, lease.endpoint)));
        self.sim.oracle.look().ended_unsent(&leases, now);
        self.end(then).await?;
        Ok(leases)
    }

    async fn outlived(
        &self,
        began_by: Vec<(EndpointKey, Timestamp)>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Lease>, LedgerError> {
        let then = self.begin().await?;
        let leases = block_on(self.inner.outlived(began_by, limit, now))?;
        self.introduce(leases.iter().map(|lease| (lease.tenant, lease.delivery, lease.endpoint)));
        self.sim.oracle.look().ended_unsent(&leases, now);
        self.end(then).await?;
        Ok(leases)
    }

    async fn reanchor(
        &self,
        leases_until: Timestamp,
        longest_waits: &[(EndpointKey, Duration)],
        now: Timestamp,
    ) -> Result<u64, LedgerError> {
        let then = self.begin().await?;
        let moved = block_on(self.inner.reanchor(leases_until, longest_waits, now))?;
        self.sim.oracle.look().reanchored(leases_until, longest_waits, now);
        self.end(then).await?;
        Ok(moved)
    }

    async fn backlog(&self) -> Result<BTreeMap<EndpointKey, Timestamp>, LedgerError> {
        let then = self.begin().await?;
        let backlog = block_on(self.inner.backlog())?;
        self.end(then).await?;
        Ok(backlog)
    }

    async fn close(&self) -> Result<(), LedgerError> {
        block_on(self.inner.close())
    }
}

#[async_trait]
impl Operations for SimLedger {
    async fn redrive(&self, redrive: Redrive, now: Timestamp) -> Result<Redriven, LedgerError> {
        let then = self.begin().await?;
        self.introduce_by_name(redrive.tenant, redrive.delivery);
        let mut planted = redrive.clone();
        if self.is(Plant::RedriveTwice) {
            planted.request = None;
        }
        let redriven = block_on(self.inner.redrive(planted, now))?;
        self.sim.oracle.look().redriven(&redrive, now, redriven);
        self.end(then).await?;
        Ok(redriven)
    }

    async fn cancel(&self, tenant: TenantKey, id: DeliveryId, now: Timestamp) -> Result<Cancelled, LedgerError> {
        let then = self.begin().await?;
        self.introduce_by_name(tenant, id);
        let cancelled = block_on(self.inner.cancel(tenant, id, now))?;
        self.sim.oracle.look().cancelled(id, cancelled);
        self.end(then).await?;
        Ok(cancelled)
    }

    async fn resolve(
        &self,
        tenant: TenantKey,
        id: DeliveryId,
        how: ResolveAs,
        note: Option<String>,
        now: Timestamp,
    ) -> Result<Resolved, LedgerError> {
        let then = self.begin().await?;
        self.introduce_by_name(tenant, id);
        let resolved = block_on(self.inner.resolve(tenant, id, how, note, now))?;
        self.sim.oracle.look().resolved(id, how, resolved);
        self.end(then).await?;
        Ok(resolved)
    }

    async fn change_endpoint(
        &self,
        tenant: TenantKey,
        endpoint: &Name,
        change: EndpointChange,
        now: Timestamp,
    ) -> Result<Option<EndpointStatus>, LedgerError> {
        let then = self.begin().await?;
        let status = match &change {
            EndpointChange::Disable { why } if self.is(Plant::DisableIgnored) => {
                Some(EndpointStatus::Disabled { why: why.clone() })
            }
            _ => block_on(self.inner.change_endpoint(tenant, endpoint, change.clone(), now))?,
        };
        let key = self.sim.endpoint_key(tenant, endpoint);
        if let (Some(status), Some(key)) = (&status, key) {
            self.sim.oracle.look().changed(key, &change, status);
        }
        self.end(then).await?;
        Ok(status)
    }

    async fn prune(&self, retention: &Retention, now: Timestamp) -> Result<Pruned, LedgerError> {
        block_on(self.inner.prune(retention, now))
    }
}

#[async_trait]
impl Records for SimLedger {
    async fn events(
        &self,
        tenant: TenantKey,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRow>, LedgerError> {
        block_on(self.inner.events(tenant, filter, page))
    }

    async fn event(&self, tenant: TenantKey, id: EventId) -> Result<Option<EventRow>, LedgerError> {
        block_on(self.inner.event(tenant, id))
    }

    async fn event_body(&self, tenant: TenantKey, id: EventId) -> Result<Option<Option<BodyRow>>, LedgerError> {
        block_on(self.inner.event_body(tenant, id))
    }

    async fn deliveries(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, LedgerError> {
        block_on(self.inner.deliveries(tenant, filter, page))
    }

    async fn delivery(&self, tenant: TenantKey, id: DeliveryId) -> Result<Option<DeliveryDetail>, LedgerError> {
        let found = block_on(self.inner.delivery(tenant, id))?;
        if found.is_none() && self.is(Plant::ForeignRead) {
            let all = self.sim.tenant_keys();
            return Ok(all.into_iter().find_map(|tenant| block_on(self.inner.delivery(tenant, id)).ok().flatten()));
        }
        Ok(found)
    }

    async fn delivery_body(
        &self,
        tenant: TenantKey,
        id: DeliveryId,
        revision: Option<u32>,
    ) -> Result<Option<Option<BodyRow>>, LedgerError> {
        block_on(self.inner.delivery_body(tenant, id, revision))
    }

    async fn endpoints(&self, tenant: TenantKey, now: Timestamp) -> Result<Vec<EndpointState>, LedgerError> {
        block_on(self.inner.endpoints(tenant, now))
    }

    fn gauges(&self) -> Gauges {
        let gauges = self.inner.gauges();
        let drift = u64::from(self.is(Plant::GaugeDrifts));
        Gauges { dead: gauges.dead + drift, ..gauges }
    }

    async fn probe(&self) -> Result<(), LedgerError> {
        block_on(self.inner.probe())
    }
}

/// What the simulated engine never asks for goes to the ledger as it is.
macro_rules! passed_on {
    ($($topic:ident { $($verb:ident($($arg:ident: $of:ty),*) -> $answer:ty;)* })*) => {$(
        #[async_trait]
        impl $topic for SimLedger {
            $(async fn $verb(&self, $($arg: $of),*) -> Result<$answer, LedgerError> {
                block_on(self.inner.$verb($($arg),*))
            })*
        }
    )*};
}

passed_on! {
    DeadLetters {
        dead_letters(tenant: TenantKey, filter: &DeadFilter, page: &PageRequest) -> Page<DeliveryRow>;
        count_dead(tenant: TenantKey, filter: &DeadFilter) -> u64;
        dead_groups(tenant: TenantKey, filter: &DeadFilter, by: DeadBy) -> Vec<DeadGroup>;
        dead_destinations(tenant: TenantKey, filter: &DeadFilter) -> Vec<DeadDestination>;
        purge_dead(tenant: TenantKey, filter: &DeadFilter, from: Option<PurgePlace>, now: Timestamp) -> Purged;
        begin_operation(new: NewOperation, now: Timestamp) -> BegunOperation;
        begun_before(new: &NewOperation) -> Option<BegunOperation>;
        operation(tenant: TenantKey, id: OperationId) -> Option<OperationRow>;
        operations(tenant: TenantKey, page: &PageRequest) -> Page<OperationRow>;
        open_operations() -> Vec<OperationRow>;
        change_operation(tenant: TenantKey, id: OperationId, change: OperationChange, now: Timestamp) -> OperationChanged;
        start_operation(tenant: TenantKey, id: OperationId, now: Timestamp) -> bool;
        advance_operation(tenant: TenantKey, id: OperationId, limit: u32, now: Timestamp) -> Advanced;
        wave_results(tenant: TenantKey, id: OperationId, wave: u8) -> Vec<WaveResult>;
        widen_operation(tenant: TenantKey, id: OperationId, after: u8, size: u64) -> ();
        stop_by_canary(tenant: TenantKey, id: OperationId, why: String, now: Timestamp) -> ();
    }
    Again {
        resend(resend: Resend, now: Timestamp) -> Resent;
        rehearse_replay(tenant: TenantKey, replay: &Replay, samples: u32, now: Timestamp) -> Option<ReplayRehearsed>;
    }
    Sweeps {
        resolve_many(resolve: &ResolveMany, from: Option<PurgePlace>, now: Timestamp) -> Swept<PurgePlace>;
        pending(tenant: TenantKey, filter: &DeliveryFilter, samples: u32) -> (u64, Vec<DeliveryRow>);
        cancel_many(tenant: TenantKey, filter: &DeliveryFilter, up_to: Option<DeliveryId>, now: Timestamp) -> Swept<DeliveryId>;
    }
    Pull {
        consume(consume: Consume, now: Timestamp) -> Consumed;
        held(tenant: TenantKey, endpoint: EndpointKey, receipts: Vec<Receipt>) -> Vec<Result<Held, Lapsed>>;
        extend(tenant: TenantKey, endpoint: EndpointKey, extensions: Vec<Extension>) -> Vec<bool>;
        renew_consumers(which: Strayed, now: Timestamp) -> u64;
    }
    Answers {
        kept_answer(tenant: TenantKey, request: &RequestId, now: Timestamp) -> Option<KeptAnswer>;
        keep_answer(tenant: TenantKey, request: &RequestId, answer: KeptAnswer, now: Timestamp) -> ();
    }
    Stats {
        stats(asked: &StatsQuery, now: Timestamp) -> Option<TenantStats>;
    }
    Rejections {
        keep_rejections(batch: Vec<Rejected>) -> ();
        rejections(tenant: TenantKey, filter: &RejectionFilter, page: &PageRequest) -> Page<RejectionRow>;
    }
    Past {
        past_attempts(tenant: TenantKey, filter: &PastFilter, from: Option<PastPlace>, room: PastRoom) -> PastPage;
        count_past(tenant: TenantKey, filter: &PastFilter, max: u32) -> u32;
    }
    Plugins {
        plugin_version(tenant: TenantKey, plugin: &Name, digest: [u8; 32], now: Timestamp) -> PluginVersionId;
        upload_version(upload: Upload, now: Timestamp) -> Uploaded;
        judge_version(tenant: TenantKey, version: PluginVersionId, judgement: Judgement) -> Option<VersionRow>;
        activate_version(activate: Activate, now: Timestamp) -> Activated;
        disable_version(disable: Disable, now: Timestamp) -> bool;
        plugin_history(tenant: TenantKey, plugin: &Name) -> History;
        needed_contents() -> Vec<[u8; 32]>;
        pause_for_plugins(held: Vec<(EndpointKey, String)>, freed: Vec<EndpointKey>, now: Timestamp) -> ();
    }
    Trials {
        begin_trial(trial: NewTrial, now: Timestamp) -> Begun;
        note_trial(tenant: TenantKey, trial: TrialId, noted: Noted) -> ();
        end_trial(end: EndTrial, now: Timestamp) -> Option<TrialRow>;
        newest_trial(tenant: TenantKey, plugin: &Name) -> Option<TrialRow>;
        differences(tenant: TenantKey, trial: TrialId) -> Vec<Difference>;
        unsettled_trials() -> Vec<TrialRow>;
        put_back(trial: &TrialRow, held: BTreeSet<Name>, since: Timestamp, now: Timestamp) -> PutBack;
        settle_trial(tenant: TenantKey, trial: TrialId) -> ();
    }
}

#[async_trait]
impl Adoptions for SimLedger {
    fn adopted(&self, source: SourceKey) -> Option<Arc<AdoptedSecret>> {
        self.inner.adopted(source)
    }

    async fn adopt(
        &self,
        tenant: TenantKey,
        source: SourceKey,
        secret: Secret,
        now: Timestamp,
    ) -> Result<Adopted, LedgerError> {
        block_on(self.inner.adopt(tenant, source, secret, now))
    }

    async fn forget(&self, tenant: TenantKey, source: SourceKey) -> Result<bool, LedgerError> {
        block_on(self.inner.forget(tenant, source))
    }
}

#[async_trait]
impl Alerts for SimLedger {
    async fn alert_facts(&self, question: AlertQuestion) -> Result<KnownFacts, LedgerError> {
        block_on(self.inner.alert_facts(question))
    }

    async fn deadlines(&self, question: DeadlineQuestion) -> Result<DeadlinePage, LedgerError> {
        block_on(self.inner.deadlines(question))
    }

    fn disk_free_bytes(&self) -> Option<u64> {
        self.inner.disk_free_bytes()
    }

    async fn open_alerts(&self) -> Result<Vec<AlertRow>, LedgerError> {
        block_on(self.inner.open_alerts())
    }

    async fn note_alerts(&self, notes: AlertNotes, now: Timestamp) -> Result<Vec<AlertRow>, LedgerError> {
        block_on(self.inner.note_alerts(notes, now))
    }

    async fn note_told(&self, alert: AlertId, by: Option<EventId>) -> Result<(), LedgerError> {
        block_on(self.inner.note_told(alert, by))
    }

    async fn alerts(
        &self,
        tenant: Option<TenantKey>,
        which: WhichAlerts,
        page: &PageRequest,
    ) -> Result<Page<AlertRow>, LedgerError> {
        block_on(self.inner.alerts(tenant, which, page))
    }
}
