//! A version on trial, as attempts meet it: who is asked, and what is counted of it.

use super::InUse;
use super::adviser::{Asked, Seen};
use super::shadow::{self, Job};
use crate::clock::Timestamp;
use crate::delivery::{
    Bounds, Counts, DeliveryId, FaultKind, Judged, Outcome, PluginVersionId, Reason, Recent, Said, Share, TrialId,
    Verdict, Why, Window, judge,
};
use crate::dispatch::Use;
use crate::ledger::{Noted, Told};
use crate::plugin::Rules;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Attempts that wait for a shadow; further ones are left out.
const SHADOW_JOBS_MAX: usize = 16;
/// Events with larger bodies are left out: a shadow holds on to nothing large.
const SHADOW_BODY_BYTES_MAX: usize = 1 << 20;

/// A version on trial beside the one in use.
pub struct Trial {
    pub id: TrialId,
    pub version: PluginVersionId,
    pub share: Share,
    way: Way,
}

enum Way {
    Shadow(Shadow),
    Canary(Canary),
}

/// Asked after the fact, and nothing comes of it.
struct Shadow {
    jobs: mpsc::Sender<Box<Job>>,
    notes: Arc<Mutex<shadow::Notes>>,
}

/// In use for its share.
struct Canary {
    in_use: Arc<InUse>,
    bounds: Bounds,
    notes: Mutex<CanaryNotes>,
    /// From here on no attempt takes it.
    over: AtomicBool,
    under_way: TaskTracker,
    alarm: Arc<Notify>,
}

#[derive(Default)]
struct CanaryNotes {
    recent: Recent,
    canary: Counts,
    active: Counts,
    judged: Option<Why>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which trial it is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub id: TrialId,
    pub version: PluginVersionId,
    pub share: Share,
}

impl Trial {
    /// `rules` are called beside the traffic, one call at a time.
    pub fn shadow(Identity { id, version, share }: Identity, rules: Arc<dyn Rules>) -> Arc<Self> {
        let (jobs, waiting) = mpsc::channel(SHADOW_JOBS_MAX);
        let notes = Arc::default();
        tokio::spawn(shadow::run(waiting, rules, Arc::clone(&notes)));
        Arc::new(Trial { id, version, share, way: Way::Shadow(Shadow { jobs, notes }) })
    }

    /// `alarm` is told when it is to be rolled back; `window` is what it was judged by so far.
    pub fn canary(
        Identity { id, version, share }: Identity,
        rules: Arc<dyn Rules>,
        (bounds, window): (Bounds, Window),
        alarm: Arc<Notify>,
    ) -> Arc<Self> {
        let canary = Canary {
            in_use: Arc::new(InUse { rules, version: Some(version) }),
            bounds,
            notes: Mutex::new(CanaryNotes { recent: Recent::resumed(window), ..CanaryNotes::default() }),
            over: AtomicBool::new(false),
            under_way: TaskTracker::new(),
            alarm,
        };
        Arc::new(Trial { id, version, share, way: Way::Canary(canary) })
    }

    /// What was counted since the last time; `None`: nothing.
    pub fn take(&self) -> Option<Noted> {
        match &self.way {
            Way::Shadow(shadow) => {
                let notes = std::mem::take(&mut *locked(&shadow.notes));
                let any = notes.more.calls() > 0 || notes.more.left_out > 0;
                any.then(|| Noted::Shadow { more: notes.more, differences: notes.differences.into() })
            }
            Way::Canary(canary) => {
                let mut notes = locked(&canary.notes);
                let (of_canary, active) = (std::mem::take(&mut notes.canary), std::mem::take(&mut notes.active));
                let any = of_canary.calls() > 0 || active.calls() > 0;
                any.then(|| Noted::Canary { canary: of_canary, active, window: notes.recent.window() })
            }
        }
    }

    /// What could not be written down, for the next time.
    pub fn give_back(&self, noted: Noted) {
        match (&self.way, noted) {
            (Way::Shadow(shadow), Noted::Shadow { more, differences }) => {
                let mut notes = locked(&shadow.notes);
                notes.more.add(&more);
                for difference in differences.into_iter().rev() {
                    notes.differences.push_front(difference);
                }
            }
            (Way::Canary(canary), Noted::Canary { canary: of_canary, active, .. }) => {
                let mut notes = locked(&canary.notes);
                notes.canary.add_all(&of_canary);
                notes.active.add_all(&active);
            }
            (Way::Shadow(_), Noted::Canary { .. }) | (Way::Canary(_), Noted::Shadow { .. }) => {}
        }
    }

    /// Why it is to be rolled back, once it is.
    pub fn judged(&self) -> Option<Why> {
        match &self.way {
            Way::Shadow(_) => None,
            Way::Canary(canary) => locked(&canary.notes).judged,
        }
    }

    /// No attempt takes it from here on; resolves when those under way are settled.
    pub async fn end(&self) {
        if let Way::Canary(canary) = &self.way {
            canary.over.store(true, Ordering::SeqCst);
            canary.under_way.close();
            canary.under_way.wait().await;
        }
    }

    fn note(&self, side: Side, said: Said) {
        let Way::Canary(canary) = &self.way else { return };
        let mut notes = locked(&canary.notes);
        match side {
            Side::Active => notes.active.add(said, 1),
            Side::Canary => {
                notes.canary.add(said, 1);
                notes.recent.note(said);
                if let (None, Judged::RollBack(why)) = (notes.judged, judge(&notes.recent.window(), &canary.bounds)) {
                    notes.judged = Some(why);
                    canary.over.store(true, Ordering::SeqCst);
                    canary.alarm.notify_one();
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Active,
    Canary,
}

/// What an attempt has to do with a trial.
pub(super) enum Part {
    None,
    /// A canary's trial, judged by the version in use.
    Active(Arc<Trial>),
    /// Judged by the canary.
    Canary(Arc<Trial>, TaskTrackerToken),
    /// Judged by the version in use, and by a shadow afterwards.
    Shadowed(Arc<Trial>),
}

impl Part {
    /// Who judges the attempt.
    pub(super) fn of(used: &Use, delivery: DeliveryId) -> (Arc<InUse>, Part) {
        let active = Arc::clone(&used.active);
        let Some(trial) = &used.trial else { return (active, Part::None) };
        let takes = trial.share.takes(trial.id, delivery);
        match &trial.way {
            Way::Shadow(_) if takes => (active, Part::Shadowed(Arc::clone(trial))),
            Way::Shadow(_) => (active, Part::None),
            Way::Canary(canary) if takes => {
                // First counted, then asked: whoever ends it waits for this attempt, or this one sees the end.
                let token = canary.under_way.token();
                if canary.over.load(Ordering::SeqCst) {
                    return (active, Part::None);
                }
                (Arc::clone(&canary.in_use), Part::Canary(Arc::clone(trial), token))
            }
            Way::Canary(_) => (active, Part::Active(Arc::clone(trial))),
        }
    }

    /// What a shadow will want to see of the attempt.
    pub(super) fn witness(&self) -> Option<Box<Seen>> {
        matches!(self, Part::Shadowed(_)).then(Box::default)
    }

    /// The attempt is settled. Nothing here waits.
    pub(super) fn settled(self, delivery: DeliveryId, after: After) {
        let After { told: Some(told), asked, seen, now } = after else { return };
        match self {
            Part::None => {}
            Part::Active(trial) => trial.note(Side::Active, told.said),
            Part::Canary(trial, _token) => trial.note(Side::Canary, told.said),
            Part::Shadowed(trial) => {
                let (Way::Shadow(shadow), Some(seen)) = (&trial.way, seen) else { return };
                let fits = asked.event.body.len() <= SHADOW_BODY_BYTES_MAX;
                let job = Box::new(Job { at: now, delivery, asked, told, seen: *seen });
                if !fits || shadow.jobs.try_send(job).is_err() {
                    locked(&shadow.notes).more.left_out += 1;
                }
            }
        }
    }
}

/// What is left of an attempt that a plugin was asked about.
pub(super) struct After {
    /// `None`: no version had its say.
    pub(super) told: Option<Told>,
    pub(super) asked: Asked,
    pub(super) seen: Option<Box<Seen>>,
    pub(super) now: Timestamp,
}

/// What the version that was asked came to; `None`: it was not the one to say, or could not be asked.
pub(super) fn told(outcome: &Outcome, fault: Option<FaultKind>) -> Option<Told> {
    if let Some(kind) = fault {
        return of_fault(kind);
    }
    match outcome {
        Outcome::Answered { verdict, .. } | Outcome::Unreachable { verdict, .. } | Outcome::TimedOut { verdict, .. } => {
            Some(of_verdict(verdict))
        }
        Outcome::Skipped(reason) => Some(Told { said: Said::Skipped, why: Some(reason.0.to_string()) }),
        Outcome::Faulted(fault) => of_fault(fault.kind),
        Outcome::Refused(_) | Outcome::Interrupted | Outcome::Released(_) => None,
    }
}

pub(super) fn of_verdict(verdict: &Verdict) -> Told {
    let why = |reason: &Reason| Some(reason.to_string());
    match verdict {
        Verdict::Delivered { reason, .. } => Told { said: Said::Delivered, why: reason.as_ref().and_then(why) },
        Verdict::Retryable(hint) => Told { said: Said::Retryable, why: why(&hint.reason) },
        Verdict::Terminal(reason) => Told { said: Said::Terminal, why: why(reason) },
    }
}

/// `None`: not the version's doing.
pub(super) fn of_fault(kind: FaultKind) -> Option<Told> {
    match kind {
        FaultKind::Unavailable | FaultKind::InputTooLarge => None,
        FaultKind::Trap
        | FaultKind::Deadline
        | FaultKind::Memory
        | FaultKind::OutputTooLarge
        | FaultKind::BadOutput
        | FaultKind::Plugin => Some(Told { said: Said::Fault, why: Some(kind.as_str().to_owned()) }),
    }
}
