//! A ledger in memory: true to the traits where the front looks, silent where it does not.

#[path = "fake_again.rs"]
mod fake_again;
#[path = "fake_dead.rs"]
mod fake_dead;

use async_trait::async_trait;
use hookgate::clock::Timestamp;
use hookgate::delivery::{
    AlertId, DeliveryId, DeliveryState, EndpointStatus, EventId, Mint, Name, PluginVersionId, TrialId,
};
use hookgate::entropy::Entropy;
use hookgate::ledger::*;
use hookgate::secret::Secret;
use hookgate::verify::Event;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

/// Chance that always falls alike, so that answers can be compared with golden ones.
pub struct Fixed;

impl Entropy for Fixed {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

/// The first event with a dedup key, and its body's digest.
type First = (EventId, [u8; 16]);

/// What was accepted, with the endpoints it goes to and whether each came with a slot.
pub struct Stored {
    pub id: EventId,
    pub tenant: TenantKey,
    pub source: Option<SourceKey>,
    pub event: Event,
    pub deliveries: Vec<(EndpointKey, bool)>,
    pub orders: Vec<Option<OrderingKey>>,
}

#[derive(Default)]
pub struct FakeLedger {
    mint: Mint,
    pub stored: Mutex<Vec<Stored>>,
    /// Keys and contents.
    dedup: Mutex<HashMap<[u8; 16], First>>,
    /// What the next verbs answer instead.
    pub fault: Mutex<Option<LedgerError>>,
    /// While this is held, `accept` and `adopt` wait.
    pub hold: tokio::sync::RwLock<()>,
    waiting: std::sync::atomic::AtomicUsize,
    pub rows: Mutex<Vec<(TenantKey, DeliveryDetail)>>,
    pub endpoints: Mutex<Vec<(TenantKey, EndpointState)>>,
    /// The last filter and page a list was asked for, as it prints.
    pub asked: Mutex<Option<String>>,
    pub redriven_with: Mutex<Option<Redrive>>,
    pub redrive_answers: Mutex<Option<Redriven>>,
    pub resend_answer: Mutex<Option<Resent>>,
    /// Pages of deliveries that were read, and whether there is always one more.
    pub pages: std::sync::atomic::AtomicUsize,
    pub is_endless: std::sync::atomic::AtomicBool,
    pub erased: Mutex<bool>,
    pub gauges: Mutex<Gauges>,
    pub rejected: Mutex<Vec<Rejected>>,
    pub held: Mutex<HashMap<SourceKey, Arc<AdoptedSecret>>>,
    pub histories: Mutex<HashMap<(TenantKey, Name), History>>,
    /// The newest of each plugin.
    pub trials: Mutex<Vec<TrialRow>>,
    pub differences: Mutex<Vec<Difference>>,
    /// Newest first.
    pub alerts: Mutex<Vec<AlertRow>>,
    /// The first tenant's.
    pub stats: Mutex<TenantStats>,
    /// Kept answers, and what keeping the next one answers instead.
    pub kept: Mutex<HashMap<(TenantKey, RequestId), (KeptAnswer, Timestamp)>>,
    pub keeps_no_answer: Mutex<bool>,
    pub operations: Mutex<Vec<OperationRow>>,
    pub begin_answer: Mutex<Option<BegunOperation>>,
}

impl FakeLedger {
    /// How many wait for `hold`.
    pub fn waiting(&self) -> usize {
        self.waiting.load(std::sync::atomic::Ordering::SeqCst)
    }

    async fn open(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.waiting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let open = self.hold.read().await;
        self.waiting.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        open
    }

    fn check(&self) -> Result<(), LedgerError> {
        self.fault.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn row(&self, tenant: TenantKey, id: DeliveryId) -> Option<DeliveryDetail> {
        let rows = self.rows.lock().unwrap();
        rows.iter().find(|(owner, row)| *owner == tenant && row.delivery.id == id).map(|(_, row)| row.clone())
    }

    fn set_state(&self, id: DeliveryId, state: DeliveryState, note: Option<&str>) {
        for (_, row) in self.rows.lock().unwrap().iter_mut().filter(|(_, row)| row.delivery.id == id) {
            row.delivery.state = state;
            row.delivery.note = note.map(str::to_owned);
        }
    }
}

#[async_trait]
impl Queue for FakeLedger {
    async fn declare(&self, _: Declaration, _: Timestamp) -> Result<Directory, LedgerError> {
        Ok(Directory::default())
    }

    async fn accept(&self, accept: Accept) -> Result<Accepted, LedgerError> {
        let _open = self.open().await;
        self.check()?;
        let event = accept.event.into_inner();
        let id = EventId::from(self.mint.mint(accept.now, &Fixed));
        if let Some(dedup) = event.dedup {
            let mut known = self.dedup.lock().unwrap();
            if let Some((first, body)) = known.get(&dedup.digest) {
                let same = *body == event.body_digest;
                return Ok(if same { Accepted::Duplicate(*first) } else { Accepted::KeyReused(*first) });
            }
            if let Some((first, _)) = dedup.content.and_then(|content| known.get(&content)) {
                return Ok(Accepted::Duplicate(*first));
            }
            for digest in [Some(dedup.digest), dedup.content].into_iter().flatten() {
                known.insert(digest, (id, event.body_digest));
            }
        }
        let orders = accept.deliveries.iter().map(|d| d.order).collect();
        let deliveries = accept.deliveries.iter().map(|d| (d.endpoint, d.slot.is_some())).collect();
        let (tenant, source) = (accept.tenant, accept.source);
        self.stored.lock().unwrap().push(Stored { id, tenant, source, event, deliveries, orders });
        Ok(Accepted::New(id))
    }

    async fn claim(&self, _: Vec<Slot>, _: Timestamp) -> Result<Claims, LedgerError> {
        Ok(Claims::default())
    }

    async fn settle(&self, _: Arc<Settlement>) -> Result<Settled, LedgerError> {
        Ok(Settled::LeaseLost)
    }

    async fn rescue(&self, _: Timestamp, _: usize, _: Timestamp) -> Result<Vec<Lease>, LedgerError> {
        Ok(Vec::new())
    }

    async fn overdue(&self, _: Timestamp, _: usize, _: Timestamp) -> Result<Vec<Lease>, LedgerError> {
        Ok(Vec::new())
    }

    async fn outlived(
        &self,
        _: Vec<(EndpointKey, Timestamp)>,
        _: usize,
        _: Timestamp,
    ) -> Result<Vec<Lease>, LedgerError> {
        Ok(Vec::new())
    }

    async fn reanchor(
        &self,
        _: Timestamp,
        _: &[(EndpointKey, std::time::Duration)],
        _: Timestamp,
    ) -> Result<u64, LedgerError> {
        Ok(0)
    }

    async fn backlog(&self) -> Result<BTreeMap<EndpointKey, Timestamp>, LedgerError> {
        Ok(BTreeMap::new())
    }

    async fn close(&self) -> Result<(), LedgerError> {
        Ok(())
    }
}

/// Consumers of the front do not come as far as this.
#[async_trait]
impl Pull for FakeLedger {
    async fn consume(&self, _: Consume, _: Timestamp) -> Result<Consumed, LedgerError> {
        Ok(Consumed { items: Vec::new(), status: EndpointStatus::Enabled, next_due: None })
    }

    async fn held(
        &self,
        _: TenantKey,
        _: EndpointKey,
        receipts: Vec<Receipt>,
    ) -> Result<Vec<Result<Held, Lapsed>>, LedgerError> {
        Ok(receipts.iter().map(|_| Err(Lapsed::Unknown)).collect())
    }

    async fn extend(&self, _: TenantKey, _: EndpointKey, all: Vec<Extension>) -> Result<Vec<bool>, LedgerError> {
        Ok(all.iter().map(|_| false).collect())
    }

    async fn renew_consumers(&self, _: Strayed, _: Timestamp) -> Result<u64, LedgerError> {
        Ok(0)
    }
}

#[async_trait]
impl Records for FakeLedger {
    async fn events(
        &self,
        tenant: TenantKey,
        filter: &EventFilter,
        page: &PageRequest,
    ) -> Result<Page<EventRow>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{filter:?} {page:?}"));
        let stored = self.stored.lock().unwrap();
        let items = stored.iter().filter(|stored| stored.tenant == tenant).map(|stored| event_row(stored, None));
        Ok(Page { items: items.collect(), next: Some(Cursor("c2".to_owned())) })
    }

    async fn event(&self, tenant: TenantKey, id: EventId) -> Result<Option<EventRow>, LedgerError> {
        self.check()?;
        let stored = self.stored.lock().unwrap();
        let found = stored.iter().find(|stored| stored.tenant == tenant && stored.id == id);
        let id = |at: &Stored| DeliveryId::from(self.mint.mint(at.event.received_at, &Fixed));
        Ok(found.map(|stored| event_row(stored, Some(stored.deliveries.iter().map(|_| id(stored)).collect()))))
    }

    async fn event_body(&self, tenant: TenantKey, id: EventId) -> Result<Option<Option<BodyRow>>, LedgerError> {
        self.check()?;
        let erased = *self.erased.lock().unwrap();
        let stored = self.stored.lock().unwrap();
        let found = stored.iter().find(|stored| stored.tenant == tenant && stored.id == id);
        Ok(found.map(|Stored { event, .. }| {
            (!erased).then(|| BodyRow { content_type: event.content_type.clone(), body: event.body.clone() })
        }))
    }

    async fn deliveries(
        &self,
        tenant: TenantKey,
        filter: &DeliveryFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{filter:?} {page:?}"));
        if page.cursor.as_ref().is_some_and(|cursor| cursor.0 == "bad") {
            return Err(LedgerError::BadCursor);
        }
        let rows = self.rows.lock().unwrap();
        let wanted = |row: &DeliveryRow| filter.state.is_none_or(|state| state == row.state);
        let items = rows.iter().filter(|(owner, row)| *owner == tenant && wanted(&row.delivery));
        let next = self.is_endless.load(std::sync::atomic::Ordering::SeqCst).then(|| Cursor("more".to_owned()));
        self.pages.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(Page { items: items.map(|(_, row)| row.delivery.clone()).collect(), next })
    }

    async fn delivery(&self, tenant: TenantKey, id: DeliveryId) -> Result<Option<DeliveryDetail>, LedgerError> {
        self.check()?;
        Ok(self.row(tenant, id))
    }

    async fn delivery_body(
        &self,
        tenant: TenantKey,
        id: DeliveryId,
        revision: Option<u32>,
    ) -> Result<Option<Option<BodyRow>>, LedgerError> {
        self.check()?;
        let erased = *self.erased.lock().unwrap();
        let body = BodyRow { content_type: "application/json".to_owned(), body: format!("{revision:?}").into() };
        Ok(self.row(tenant, id).filter(|_| revision.is_none_or(|n| n <= 2)).map(|_| (!erased).then_some(body)))
    }

    async fn endpoints(&self, tenant: TenantKey, _: Timestamp) -> Result<Vec<EndpointState>, LedgerError> {
        self.check()?;
        let endpoints = self.endpoints.lock().unwrap();
        Ok(endpoints.iter().filter(|(owner, _)| *owner == tenant).map(|(_, state)| state.clone()).collect())
    }

    fn gauges(&self) -> Gauges {
        *self.gauges.lock().unwrap()
    }

    async fn probe(&self) -> Result<(), LedgerError> {
        self.check()
    }
}

#[async_trait]
impl Stats for FakeLedger {
    async fn stats(&self, asked: &StatsQuery, _: Timestamp) -> Result<Option<TenantStats>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{asked:?}"));
        let mut stats = self.stats.lock().unwrap().clone();
        if asked.tenant != TenantKey(1) {
            stats = TenantStats::default();
        }
        if let Some(name) = &asked.endpoint {
            stats.endpoints.retain(|endpoint| endpoint.state.name == *name);
            stats.sources.clear();
        }
        Ok((asked.endpoint.is_none() || !stats.endpoints.is_empty()).then_some(stats))
    }
}

#[async_trait]
impl Rejections for FakeLedger {
    async fn keep_rejections(&self, batch: Vec<Rejected>) -> Result<(), LedgerError> {
        self.check()?;
        self.rejected.lock().unwrap().extend(batch);
        Ok(())
    }

    async fn rejections(
        &self,
        tenant: TenantKey,
        filter: &RejectionFilter,
        page: &PageRequest,
    ) -> Result<Page<RejectionRow>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{filter:?} {page:?}"));
        let rejected = self.rejected.lock().unwrap();
        let row = |r: &Rejected| RejectionRow {
            key: [0; 16],
            at: r.at,
            source: "github".parse().unwrap(),
            reason: r.reason.to_owned(),
            step: r.step.map(str::to_owned),
            detail: r.detail.clone(),
            skew_seconds: r.skew_seconds,
            peer: r.peer.to_string(),
            body_bytes: r.body.map(|body| body.bytes),
            body_digest: r.body.map(|body| hex::encode(body.digest)),
        };
        Ok(Page { items: rejected.iter().filter(|r| r.tenant == tenant).map(row).collect(), next: None })
    }
}

#[async_trait]
impl Adoptions for FakeLedger {
    fn adopted(&self, source: SourceKey) -> Option<Arc<AdoptedSecret>> {
        self.held.lock().unwrap().get(&source).cloned()
    }

    async fn adopt(
        &self,
        _: TenantKey,
        source: SourceKey,
        secret: Secret,
        at: Timestamp,
    ) -> Result<Adopted, LedgerError> {
        let _open = self.open().await;
        self.check()?;
        let mut held = self.held.lock().unwrap();
        let kept = held.entry(source).or_insert_with(|| Arc::new(AdoptedSecret { secret: secret.clone(), at }));
        Ok(if kept.secret.matches(secret.expose()) { Adopted::Held } else { Adopted::Other })
    }

    async fn forget(&self, _: TenantKey, source: SourceKey) -> Result<bool, LedgerError> {
        self.check()?;
        Ok(self.held.lock().unwrap().remove(&source).is_some())
    }
}

#[async_trait]
impl Answers for FakeLedger {
    async fn kept_answer(
        &self,
        tenant: TenantKey,
        request: &RequestId,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, LedgerError> {
        self.check()?;
        let kept = self.kept.lock().unwrap();
        let found = kept.get(&(tenant, request.clone()));
        Ok(found.filter(|(_, at)| now.since(*at) < ANSWERS_KEPT_FOR).map(|(answer, _)| answer.clone()))
    }

    async fn keep_answer(
        &self,
        tenant: TenantKey,
        request: &RequestId,
        answer: KeptAnswer,
        now: Timestamp,
    ) -> Result<(), LedgerError> {
        self.check()?;
        if *self.keeps_no_answer.lock().unwrap() {
            return Err(LedgerError::Unavailable("the process has died by now".to_owned()));
        }
        self.kept.lock().unwrap().insert((tenant, request.clone()), (answer, now));
        Ok(())
    }
}

/// The front only reads.
#[async_trait]
impl Plugins for FakeLedger {
    async fn plugin_version(
        &self,
        _: TenantKey,
        _: &Name,
        _: [u8; 32],
        now: Timestamp,
    ) -> Result<PluginVersionId, LedgerError> {
        Ok(self.mint.mint(now, &Fixed).into())
    }

    async fn upload_version(&self, _: Upload, _: Timestamp) -> Result<Uploaded, LedgerError> {
        Ok(Uploaded::TooMany)
    }

    async fn judge_version(
        &self,
        _: TenantKey,
        _: PluginVersionId,
        _: Judgement,
    ) -> Result<Option<VersionRow>, LedgerError> {
        Ok(None)
    }

    async fn activate_version(&self, _: Activate, _: Timestamp) -> Result<Activated, LedgerError> {
        Ok(Activated::NotFound)
    }

    async fn disable_version(&self, _: Disable, _: Timestamp) -> Result<bool, LedgerError> {
        Ok(false)
    }

    async fn plugin_history(&self, tenant: TenantKey, plugin: &Name) -> Result<History, LedgerError> {
        self.check()?;
        Ok(self.histories.lock().unwrap().get(&(tenant, plugin.clone())).cloned().unwrap_or_default())
    }

    async fn needed_contents(&self) -> Result<Vec<[u8; 32]>, LedgerError> {
        Ok(Vec::new())
    }

    async fn pause_for_plugins(
        &self,
        _: Vec<(EndpointKey, String)>,
        _: Vec<EndpointKey>,
        _: Timestamp,
    ) -> Result<(), LedgerError> {
        Ok(())
    }
}

/// The front only reads.
#[async_trait]
impl Trials for FakeLedger {
    async fn begin_trial(&self, _: NewTrial, _: Timestamp) -> Result<Begun, LedgerError> {
        Ok(Begun::NotFound)
    }

    async fn note_trial(&self, _: TenantKey, _: TrialId, _: Noted) -> Result<(), LedgerError> {
        Ok(())
    }

    async fn end_trial(&self, _: EndTrial, _: Timestamp) -> Result<Option<TrialRow>, LedgerError> {
        Ok(None)
    }

    async fn newest_trial(&self, tenant: TenantKey, plugin: &Name) -> Result<Option<TrialRow>, LedgerError> {
        self.check()?;
        let trials = self.trials.lock().unwrap();
        Ok(trials.iter().find(|row| row.tenant == tenant && row.plugin == *plugin).cloned())
    }

    async fn differences(&self, _: TenantKey, _: TrialId) -> Result<Vec<Difference>, LedgerError> {
        Ok(self.differences.lock().unwrap().clone())
    }

    async fn unsettled_trials(&self) -> Result<Vec<TrialRow>, LedgerError> {
        Ok(Vec::new())
    }

    async fn put_back(
        &self,
        _: &TrialRow,
        _: BTreeSet<Name>,
        _: Timestamp,
        _: Timestamp,
    ) -> Result<PutBack, LedgerError> {
        Ok(PutBack::default())
    }

    async fn settle_trial(&self, _: TenantKey, _: TrialId) -> Result<(), LedgerError> {
        Ok(())
    }
}

/// What is in the list, and nothing to judge.
#[async_trait]
impl Alerts for FakeLedger {
    async fn alert_facts(&self, _: AlertQuestion) -> Result<KnownFacts, LedgerError> {
        Ok(KnownFacts::default())
    }

    async fn deadlines(&self, _: DeadlineQuestion) -> Result<DeadlinePage, LedgerError> {
        Ok(DeadlinePage::default())
    }

    fn disk_free_bytes(&self) -> Option<u64> {
        None
    }

    async fn open_alerts(&self) -> Result<Vec<AlertRow>, LedgerError> {
        Ok(Vec::new())
    }

    async fn note_alerts(&self, _: AlertNotes, _: Timestamp) -> Result<Vec<AlertRow>, LedgerError> {
        Ok(Vec::new())
    }

    async fn note_told(&self, _: AlertId, _: Option<EventId>) -> Result<(), LedgerError> {
        Ok(())
    }

    async fn alerts(
        &self,
        tenant: Option<TenantKey>,
        which: WhichAlerts,
        page: &PageRequest,
    ) -> Result<Page<AlertRow>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{tenant:?} {which:?} {page:?}"));
        let is_asked = |row: &&AlertRow| {
            let of = row.tenant.as_ref().map(|(key, _)| *key);
            (tenant.is_none() || of == tenant) && (which == WhichAlerts::All || row.cleared_at.is_none())
        };
        let items = self.alerts.lock().unwrap().iter().filter(is_asked).cloned().collect();
        Ok(Page { items, next: None })
    }
}

/// Nothing was ever tried.
#[async_trait]
impl Past for FakeLedger {
    async fn past_attempts(
        &self,
        _: TenantKey,
        _: &PastFilter,
        _: Option<PastPlace>,
        _: PastRoom,
    ) -> Result<PastPage, LedgerError> {
        self.check()?;
        Ok(PastPage::default())
    }

    async fn count_past(&self, _: TenantKey, _: &PastFilter, _: u32) -> Result<u32, LedgerError> {
        self.check()?;
        Ok(0)
    }
}

#[async_trait]
impl Operations for FakeLedger {
    async fn redrive(&self, redrive: Redrive, _: Timestamp) -> Result<Redriven, LedgerError> {
        self.check()?;
        let Some(row) = self.row(redrive.tenant, redrive.delivery) else {
            return Ok(Redriven::NotFound);
        };
        if let Some(answer) = *self.redrive_answers.lock().unwrap() {
            return Ok(answer);
        }
        if row.delivery.state != DeliveryState::Dead {
            return Ok(Redriven::NotDead(row.delivery.state));
        }
        self.set_state(redrive.delivery, DeliveryState::Pending, redrive.note.as_deref());
        *self.redriven_with.lock().unwrap() = Some(redrive);
        Ok(Redriven::Done { generation: 2, revision: 1 })
    }

    async fn cancel(&self, tenant: TenantKey, id: DeliveryId, _: Timestamp) -> Result<Cancelled, LedgerError> {
        self.check()?;
        Ok(match self.row(tenant, id).map(|row| row.delivery.state) {
            None => Cancelled::NotFound,
            Some(DeliveryState::Pending) => {
                self.set_state(id, DeliveryState::Cancelled, None);
                Cancelled::Done
            }
            Some(other) => Cancelled::NotPending(other),
        })
    }

    async fn resolve(
        &self,
        tenant: TenantKey,
        id: DeliveryId,
        how: ResolveAs,
        note: Option<String>,
        _: Timestamp,
    ) -> Result<Resolved, LedgerError> {
        self.check()?;
        Ok(match self.row(tenant, id).map(|row| row.delivery.state) {
            None => Resolved::NotFound,
            Some(DeliveryState::Dead) => {
                let note = format!("{}: {}", how.as_str(), note.unwrap_or_default());
                self.set_state(id, DeliveryState::Resolved, Some(&note));
                Resolved::Done
            }
            Some(other) => Resolved::NotDead(other),
        })
    }

    async fn change_endpoint(
        &self,
        tenant: TenantKey,
        endpoint: &Name,
        change: EndpointChange,
        _: Timestamp,
    ) -> Result<Option<EndpointStatus>, LedgerError> {
        self.check()?;
        let mut endpoints = self.endpoints.lock().unwrap();
        let found = endpoints.iter_mut().find(|(owner, state)| *owner == tenant && state.name == *endpoint);
        Ok(found.map(|(_, state)| {
            state.status = match change {
                EndpointChange::Pause { until, why } => EndpointStatus::Paused { until, why },
                EndpointChange::Disable { why } => EndpointStatus::Disabled { why },
                EndpointChange::Resume | EndpointChange::Enable => EndpointStatus::Enabled,
            };
            state.status.clone()
        }))
    }

    async fn prune(&self, _: &Retention, _: Timestamp) -> Result<Pruned, LedgerError> {
        Ok(Pruned::default())
    }
}

fn event_row(stored: &Stored, deliveries: Option<Vec<DeliveryId>>) -> EventRow {
    let event = &stored.event;
    EventRow {
        id: stored.id,
        event_type: event.event_type.clone(),
        key: event.key.clone(),
        source: None,
        provider_id: event.provider_id.clone(),
        content_type: event.content_type.clone(),
        body_bytes: event.body.len() as u64,
        body_erased: false,
        accepted_at: event.received_at,
        deliver_at: event.deliver_at,
        expires_at: event.expires_at,
        deadline: event.deadline,
        ordering_key: event.ordering_key().map(str::to_owned),
        coalesce_key: event.coalesce().map(|coalesce| coalesce.key.clone()),
        superseded_by: None,
        deliveries,
    }
}
