//! The end of an attempt.

use super::births::{FIRST_TOKEN, Needs};
use super::codec::{int, state_code};
use super::fault::Fault;
use super::ordering::{HELD, HELD_BY_KEY, Leaving};
use super::writer::{Verb, Writer};
use crate::clock::Timestamp;
use crate::delivery::{
    DeliveryState, Disposition, EndpointEffect, EndpointStatus, KeptBody, Measured, PluginVersionId, Reason,
};
use crate::ledger::{AttemptRecord, EndpointKey, LogRecord, RequestRecord, ResponseRecord, Settled, Settlement};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

pub(super) struct SettleAttempt {
    pub settlement: Arc<Settlement>,
    /// The sealed part of the record, if there is any.
    pub detail: Option<Vec<u8>>,
}

/// What a disposition makes of the row.
struct Next<'a> {
    state: DeliveryState,
    due: Option<Timestamp>,
    reason: Option<&'a Reason>,
    reference: Option<&'a str>,
}

fn next(disposition: &Disposition) -> Next<'_> {
    let terminal = |state, reason| Next { state, due: None, reason, reference: None };
    match disposition {
        Disposition::Delivered { reference } => {
            Next { reference: reference.as_deref(), ..terminal(DeliveryState::Delivered, None) }
        }
        Disposition::Skipped(reason) => terminal(DeliveryState::Skipped, Some(reason)),
        Disposition::Dead(reason) => terminal(DeliveryState::Dead, Some(reason)),
        Disposition::Expired(reason) => terminal(DeliveryState::Expired, Some(reason)),
        Disposition::RetryAt { due, reason } | Disposition::Released { due, reason } => {
            Next { state: DeliveryState::Pending, due: Some(*due), reason: Some(reason), reference: None }
        }
    }
}

impl Verb for SettleAttempt {
    type Done = Settled;

    fn needs(&self) -> Needs {
        Needs::None
    }

    fn apply(&mut self, w: &mut Writer<'_>) -> Result<Settled, Fault> {
        let Settlement { lease, record, decision, now, .. } = &*self.settlement;
        let mut next = next(&decision.disposition);
        let released = matches!(decision.disposition, Disposition::Released { .. });
        let before = &lease.history;
        let interrupted = match (released, record.outcome) {
            (true, _) => before.interrupted_before,
            (false, "interrupted") => before.interrupted_before.saturating_add(1),
            (false, _) => 0,
        };
        let id = lease.delivery.to_bytes();
        // On what the row has: a canary's attempts may have been taken off it meanwhile.
        let counted = u32::from(!released);
        let finished_at = match next.state {
            DeliveryState::Dead => Some(w.death_time(lease.tenant, *now)?),
            state => state.is_terminal().then_some(*now),
        };
        let birth = if lease.token == FIRST_TOKEN { w.take_birth(lease.delivery) } else { None };
        let born = birth.is_some();
        if !born && next.due.is_some() && w.is_held(lease.tenant, lease.delivery, lease.endpoint)? {
            (next.due, next.reason) = (Some(HELD), Some(&HELD_BY_KEY));
        }
        let held = match birth {
            Some(birth) => w.sql.insert_settled.execute(rusqlite::params![
                lease.tenant.0,
                id,
                birth.event.to_bytes(),
                lease.endpoint.0,
                w.endpoints.get(&lease.endpoint).map(|e| e.host),
                int(birth.sequence),
                state_code(next.state),
                counted,
                interrupted,
                birth.began_at.as_millis(),
                next.due.map(Timestamp::as_millis),
                next.reason.map(Reason::as_str),
                record.status,
                next.reference,
                finished_at.map(Timestamp::as_millis),
            ])?,
            None => w.sql.settle.execute(rusqlite::params![
                lease.tenant.0,
                id,
                int(lease.token),
                state_code(next.state),
                next.due.map(Timestamp::as_millis),
                counted,
                interrupted,
                next.reason.map(Reason::as_str),
                record.status,
                next.reference,
                finished_at.map(Timestamp::as_millis),
            ])?,
        };
        if held == 0 {
            return Ok(Settled::LeaseLost);
        }
        let ended_well = matches!(next.state, DeliveryState::Delivered | DeliveryState::Skipped);
        let scrubs = ended_well && w.scrubs(lease.endpoint);
        w.sql.insert_attempt.execute(rusqlite::params![
            lease.tenant.0,
            id,
            lease.number,
            int(lease.token),
            lease.generation,
            lease.revision,
            lease.started_at.as_millis(),
            millis(record.duration),
            record.outcome,
            record.status,
            record.verdict,
            record.reason.as_str(),
            record.decided_by.as_str(),
            decision.disposition.as_str(),
            decision.disposition.next_at().map(Timestamp::as_millis),
            decision.clamped_from.map(millis),
            record.ambiguous,
            record.plugin_version.map(PluginVersionId::to_bytes),
            record.plugin_took.map(|t| i64::try_from(t.as_micros()).unwrap_or(i64::MAX)),
            record.plugin_log_dropped,
            self.detail.as_ref().filter(|_| !scrubs),
        ])?;
        if scrubs {
            w.scrub(lease.tenant, lease.delivery)?;
        }
        w.effects.settles += 1;
        w.effects.in_flight -= 1;
        w.tallies.settled(&self.settlement);
        if let Some(effect) = &decision.endpoint {
            apply_effect(w, lease.endpoint, effect, *now)?;
        }
        if let Some(pulse) = &self.settlement.pulse {
            w.feel(lease, pulse, *now)?;
        }
        if let Some(due) = next.due {
            w.effects.pending += 1;
            w.wake(lease.endpoint, due, *now);
        }
        if next.state == DeliveryState::Dead {
            w.effects.dead += 1;
            w.effects.dead_since.extend(finished_at);
        }
        if !born && next.state.is_terminal() {
            let leaving = if next.state == DeliveryState::Dead { Leaving::Dead } else { Leaving::Ended };
            w.leave_line(lease.tenant, lease.delivery, lease.endpoint, leaving, *now)?;
        }
        Ok(Settled::Stored)
    }
}

pub(super) fn millis(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// A pause shortens no longer one and opens nothing; what is disabled stays so.
pub(super) fn apply_effect(
    w: &mut Writer<'_>,
    key: EndpointKey,
    effect: &EndpointEffect,
    now: Timestamp,
) -> Result<(), Fault> {
    let Some(endpoint) = w.endpoints.get(&key) else { return Ok(()) };
    let until_when = match &endpoint.status {
        EndpointStatus::Enabled => None,
        EndpointStatus::Paused { until, .. } => Some(until.unwrap_or(Timestamp::MAX)),
        EndpointStatus::Disabled { .. } => return Ok(()),
    };
    let status = match effect {
        EndpointEffect::Disable { why } => EndpointStatus::Disabled { why: why.to_string() },
        EndpointEffect::PauseUntil { until, .. } if until_when >= Some(*until) => return Ok(()),
        EndpointEffect::PauseUntil { until, why } => {
            EndpointStatus::Paused { until: Some(*until), why: why.to_string() }
        }
    };
    w.set_status(key, status)?;
    if let EndpointEffect::PauseUntil { until, .. } = effect {
        w.wake(key, *until, now);
    }
    Ok(())
}

/// The sealed part of an attempt: a JSON head, then the two bodies as they are.
#[derive(Serialize, Deserialize, Default)]
struct DetailHead<'a> {
    #[serde(default, skip_serializing_if = "slice_is_empty")]
    log: Cow<'a, [LogRecord]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<RequestHead<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<ResponseHead<'a>>,
}

fn slice_is_empty(log: &[LogRecord]) -> bool {
    log.is_empty()
}

#[derive(Serialize, Deserialize)]
struct RequestHead<'a> {
    method: Cow<'a, str>,
    path: Option<Cow<'a, str>>,
    headers: Cow<'a, [(String, String)]>,
    /// Of a body that is not kept whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    measured: Option<(u64, [u8; 32])>,
}

#[derive(Serialize, Deserialize)]
struct ResponseHead<'a> {
    headers: Cow<'a, [(String, String)]>,
    truncated: bool,
}

/// What is read back of an attempt's sealed part.
#[derive(Default)]
pub(super) struct Detail {
    pub log: Vec<LogRecord>,
    pub detail: Option<String>,
    pub request: Option<RequestRecord>,
    pub response: Option<ResponseRecord>,
}

/// Whether there is anything to seal.
pub(super) fn has_detail(record: &AttemptRecord) -> bool {
    !record.plugin_log.is_empty() || record.detail.is_some() || record.request.is_some() || record.response.is_some()
}

pub(super) fn detail_bytes_hint(record: &AttemptRecord) -> usize {
    let request = record.request.as_ref().map_or(0, |r| r.body.whole().map_or(256, |body| body.len() + 256));
    let response = record.response.as_ref().map_or(0, |r| r.body.len() + 512);
    request + response + 128
}

pub(super) fn write_detail(record: &AttemptRecord, out: &mut Vec<u8>) {
    let head = DetailHead {
        log: Cow::Borrowed(&record.plugin_log),
        detail: record.detail.as_deref().map(Cow::Borrowed),
        request: record.request.as_ref().map(|r| RequestHead {
            method: Cow::Borrowed(&r.method),
            path: r.path_and_query.as_deref().map(Cow::Borrowed),
            headers: Cow::Borrowed(&r.headers),
            measured: match &r.body {
                KeptBody::Whole(_) => None,
                KeptBody::Measured(of) => Some((of.bytes, of.sha256)),
            },
        }),
        response: record
            .response
            .as_ref()
            .map(|r| ResponseHead { headers: Cow::Borrowed(&r.headers), truncated: r.body_truncated }),
    };
    let at = out.len();
    out.extend_from_slice(&[0; 8]);
    // Text in, memory out: neither side can fail.
    let _ = serde_json::to_writer(&mut *out, &head);
    let head_bytes = u32::try_from(out.len() - at - 8).unwrap_or(u32::MAX);
    let sent = record.request.as_ref().and_then(|r| r.body.whole()).map_or(&[][..], |body| body);
    let sent_bytes = u32::try_from(sent.len()).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&head_bytes.to_le_bytes());
    out[at + 4..at + 8].copy_from_slice(&sent_bytes.to_le_bytes());
    out.extend_from_slice(sent);
    if let Some(response) = &record.response {
        out.extend_from_slice(&response.body);
    }
}

/// `None`: not what [`write_detail`] wrote.
pub(super) fn read_detail(bytes: Vec<u8>) -> Option<Detail> {
    let bytes = bytes::Bytes::from(bytes);
    let length = |at: usize| -> Option<usize> {
        usize::try_from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)).ok()
    };
    let (head_bytes, sent_bytes) = (length(0)?, length(4)?);
    let sent_at = head_bytes.checked_add(8)?;
    let answer_at = sent_at.checked_add(sent_bytes)?;
    let head: DetailHead<'_> = serde_json::from_slice(bytes.get(8..sent_at)?).ok()?;
    if answer_at > bytes.len() {
        return None;
    }
    Some(Detail {
        log: head.log.into_owned(),
        detail: head.detail.map(Cow::into_owned),
        request: head.request.map(|r| RequestRecord {
            method: r.method.into_owned(),
            path_and_query: r.path.map(Cow::into_owned),
            headers: r.headers.into_owned(),
            body: match r.measured {
                Some((bytes, sha256)) => KeptBody::Measured(Measured { bytes, sha256 }),
                None => KeptBody::Whole(bytes.slice(sent_at..answer_at)),
            },
        }),
        response: head.response.map(|r| ResponseRecord {
            headers: r.headers.into_owned(),
            body: bytes.slice(answer_at..),
            body_truncated: r.truncated,
        }),
    })
}
