//! The dead letters of the fake ledger: all of its dead rows, whatever the filter; operations do nothing by themselves.

use super::FakeLedger;
use async_trait::async_trait;
use hookgate::clock::Timestamp;
use hookgate::delivery::{DeliveryState, EndpointStatus, OperationId};
use hookgate::ledger::{
    Advanced, BegunOperation, Cursor, DeadBy, DeadDestination, DeadFilter, DeadGroup, DeadLetters, DeliveryRow,
    EndpointKey, LedgerError, NewOperation, OperationChange, OperationChanged, OperationRow, OperationState, Page,
    PageRequest, PurgePlace, Purged, Results, Skipped, TenantKey, Wave, WaveResult, Work,
};

impl FakeLedger {
    fn dead(&self, tenant: TenantKey) -> Vec<DeliveryRow> {
        self.in_state(tenant, DeliveryState::Dead)
    }

    pub(super) fn in_state(&self, tenant: TenantKey, state: DeliveryState) -> Vec<DeliveryRow> {
        let rows = self.rows.lock().unwrap();
        let those = rows.iter().filter(|(owner, row)| *owner == tenant && row.delivery.state == state);
        those.map(|(_, row)| row.delivery.clone()).collect()
    }
}

#[async_trait]
impl DeadLetters for FakeLedger {
    async fn dead_letters(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
        page: &PageRequest,
    ) -> Result<Page<DeliveryRow>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{filter:?} {page:?}"));
        if page.cursor == Some(Cursor("bad".to_owned())) {
            return Err(LedgerError::BadCursor);
        }
        Ok(Page { items: self.dead(tenant), next: None })
    }

    async fn count_dead(&self, tenant: TenantKey, _: &DeadFilter) -> Result<u64, LedgerError> {
        self.check()?;
        Ok(self.dead(tenant).len() as u64)
    }

    async fn dead_groups(
        &self,
        tenant: TenantKey,
        filter: &DeadFilter,
        by: DeadBy,
    ) -> Result<Vec<DeadGroup>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{filter:?} by {by:?}"));
        let group = |row: DeliveryRow| DeadGroup {
            endpoint: (by != DeadBy::Destination).then_some(row.endpoint),
            plugin_version: None,
            newest_at: row.created_at,
            host: row.host,
            status: row.last_status,
            reason: row.reason.unwrap_or_default(),
            count: 1,
            oldest_at: row.created_at,
            sample: row.id,
        };
        Ok(self.dead(tenant).into_iter().map(group).collect())
    }

    async fn dead_destinations(&self, tenant: TenantKey, _: &DeadFilter) -> Result<Vec<DeadDestination>, LedgerError> {
        self.check()?;
        let to = |row: DeliveryRow| DeadDestination {
            key: EndpointKey(1),
            endpoint: row.endpoint,
            host: row.host,
            status: EndpointStatus::Enabled,
            count: 1,
        };
        Ok(self.dead(tenant).into_iter().map(to).collect())
    }

    /// In two batches.
    async fn purge_dead(
        &self,
        tenant: TenantKey,
        _: &DeadFilter,
        from: Option<PurgePlace>,
        now: Timestamp,
    ) -> Result<Purged, LedgerError> {
        self.check()?;
        let dead = self.dead(tenant);
        let Some(first) = dead.first() else { return Ok(Purged::default()) };
        if from.is_none() {
            return Ok(Purged { next: Some(PurgePlace { died_by: now, below: first.id }), ..Purged::default() });
        }
        for row in &dead {
            self.set_state(row.id, DeliveryState::Cancelled, None);
        }
        Ok(Purged { purged: dead.len() as u64, payloads_erased: 1, next: None })
    }

    async fn begin_operation(&self, new: NewOperation, now: Timestamp) -> Result<BegunOperation, LedgerError> {
        self.check()?;
        if let Some(answer) = self.begin_answer.lock().unwrap().clone() {
            return Ok(answer);
        }
        let row = OperationRow {
            id: OperationId::from(self.mint.mint(now, &super::Fixed)),
            tenant: new.tenant,
            state: OperationState::Queued,
            died_by: matches!(new.work, Work::Redrive(_)).then_some(now),
            work: new.work,
            total: Some(41),
            max: new.max,
            rate: new.rate,
            wave: new.canary.then_some(Wave { number: 1, size: 1, left: 1 }),
            done: 0,
            skipped: Skipped::default(),
            results: Results::default(),
            old_reasons: [].into(),
            note: new.note,
            by: new.by,
            began_at: now,
            started_at: None,
            ended_at: None,
            why: None,
        };
        self.operations.lock().unwrap().push(row.clone());
        Ok(BegunOperation::Done(Box::new(row)))
    }

    async fn begun_before(&self, _: &NewOperation) -> Result<Option<BegunOperation>, LedgerError> {
        self.check()?;
        Ok(None)
    }

    async fn operation(&self, tenant: TenantKey, id: OperationId) -> Result<Option<OperationRow>, LedgerError> {
        self.check()?;
        Ok(self.operations.lock().unwrap().iter().find(|row| row.tenant == tenant && row.id == id).cloned())
    }

    async fn operations(&self, tenant: TenantKey, page: &PageRequest) -> Result<Page<OperationRow>, LedgerError> {
        self.check()?;
        *self.asked.lock().unwrap() = Some(format!("{page:?}"));
        let all = self.operations.lock().unwrap();
        Ok(Page { items: all.iter().filter(|row| row.tenant == tenant).cloned().collect(), next: None })
    }

    async fn open_operations(&self) -> Result<Vec<OperationRow>, LedgerError> {
        Ok(Vec::new())
    }

    async fn change_operation(
        &self,
        tenant: TenantKey,
        id: OperationId,
        change: OperationChange,
        now: Timestamp,
    ) -> Result<OperationChanged, LedgerError> {
        self.check()?;
        let mut all = self.operations.lock().unwrap();
        let Some(row) = all.iter_mut().find(|row| row.tenant == tenant && row.id == id) else {
            return Ok(OperationChanged::NotFound);
        };
        if row.state.has_ended() {
            return Ok(OperationChanged::Ended(row.state));
        }
        row.state = match change {
            OperationChange::Stop => OperationState::Stopped,
            OperationChange::Pause => OperationState::Paused,
            OperationChange::Resume => OperationState::Queued,
        };
        row.ended_at = row.state.has_ended().then_some(now);
        Ok(OperationChanged::Done(Box::new(row.clone())))
    }

    async fn start_operation(&self, _: TenantKey, _: OperationId, _: Timestamp) -> Result<bool, LedgerError> {
        Ok(false)
    }

    async fn advance_operation(
        &self,
        _: TenantKey,
        _: OperationId,
        _: u32,
        _: Timestamp,
    ) -> Result<Advanced, LedgerError> {
        Ok(Advanced::default())
    }

    async fn wave_results(&self, _: TenantKey, _: OperationId, _: u8) -> Result<Vec<WaveResult>, LedgerError> {
        Ok(Vec::new())
    }

    async fn widen_operation(&self, _: TenantKey, _: OperationId, _: u8, _: u64) -> Result<(), LedgerError> {
        Ok(())
    }

    async fn stop_by_canary(&self, _: TenantKey, _: OperationId, _: String, _: Timestamp) -> Result<(), LedgerError> {
        Ok(())
    }
}
