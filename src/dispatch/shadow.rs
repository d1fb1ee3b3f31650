//! A shadow's calls: after the attempts they are about, one at a time, beside the traffic.

use super::adviser::{Asked, Seen};
use super::draft::{Draft, Unmade};
use super::trial::{of_fault, of_verdict};
use crate::clock::Timestamp;
use crate::delivery::classify::builtin;
use crate::delivery::{DeliveryId, FaultKind, Said};
use crate::ledger::{Compared, DIFFERENCES_MAX, Difference, Told};
use crate::plugin::Rules;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// A settled attempt: what the version in use was told, made and said, and what came of it.
pub(super) struct Job {
    pub(super) at: Timestamp,
    pub(super) delivery: DeliveryId,
    pub(super) asked: Asked,
    pub(super) told: Told,
    pub(super) seen: Seen,
}

/// What was found out and is not written down yet.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) more: Compared,
    /// The newest.
    pub(super) differences: VecDeque<Difference>,
}

/// Ends when nobody can bring more.
pub(super) async fn run(mut jobs: mpsc::Receiver<Box<Job>>, rules: Arc<dyn Rules>, notes: Arc<Mutex<Notes>>) {
    while let Some(job) = jobs.recv().await {
        let came = compare(&job, rules.as_ref()).await;
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Compare { told, request }) = came else {
            notes.more.left_out += 1;
            continue;
        };
        *notes.more.pairs.entry((job.told.said, told.said)).or_default() += 1;
        notes.more.requests += u64::from(request);
        if job.told.said == told.said && !request {
            notes.more.same += 1;
            continue;
        }
        if notes.differences.len() >= DIFFERENCES_MAX {
            notes.differences.pop_front();
        }
        let Job { at, delivery, asked, told: from, .. } = *job;
        notes.differences.push_back(Difference { at, delivery, attempt: asked.number, from, to: told, request });
    }
}

struct Compare {
    told: Told,
    /// The requests differ.
    request: bool,
}

/// `None`: it could not be asked.
async fn compare(job: &Job, rules: &dyn Rules) -> Option<Compare> {
    let fault = |kind: FaultKind| of_fault(kind).map(|told| Compare { told, request: false });
    let Job { asked, seen, .. } = job;
    let draft = if rules.exports().transform {
        let made = asked.transform(rules).await.result.map_err(Unmade::Fault);
        match made.and_then(|made| Draft::of(made, &asked.target)) {
            Ok(draft) => draft,
            Err(Unmade::Skip(reason)) => {
                let told = Told { said: Said::Skipped, why: Some(reason.to_string()) };
                return Some(Compare { told, request: false });
            }
            Err(Unmade::Fault(failed)) => return fault(failed.kind),
        }
    } else {
        Draft::as_it_came(&asked.event, &asked.target)
    };
    let request = seen.draft.as_ref().is_some_and(|sent| !sent.is_same(&draft));
    let Some(outcome) = &seen.outcome else {
        return Some(Compare { told: Told { said: Said::Sent, why: None }, request });
    };
    if !rules.exports().classify {
        return Some(Compare { told: of_verdict(&builtin(outcome.observed())), request });
    }
    match asked.classify(rules, outcome.view()).await.result {
        Ok(verdict) => Some(Compare { told: of_verdict(&verdict), request }),
        Err(failed) => of_fault(failed.kind).map(|told| Compare { told, request }),
    }
}
