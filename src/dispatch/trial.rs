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
        let recent = Recent::resumed(window);
        // The process before may have ended between the judgement and the rollback.
        let judged = match judge(&recent.window(), &bounds) {
            Judged::Go => None,
            Judged::RollBack(why) => Some(why),
        };
        let canary = Canary {
            in_use: Arc::new(InUse { rules, version: Some(version) }),
            bounds,
            notes: Mutex::new(CanaryNotes { recent, judged, ..CanaryNotes::default() }),
            over: AtomicBool::new(judged.is_some()),
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
        Outcome::Answered { verdict, .. }
        | Outcome::Unreachable { verdict, .. }
        | Outcome::TimedOut { verdict, .. }
        | Outcome::Told(verdict) => Some(of_verdict(verdict)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::{Fault, PauseScope, RetryHint, SkipReason};
    use crate::plugin::{Absent, Exports};

    #[test]
    fn a_version_is_judged_by_what_it_said_itself() {
        let answered = |verdict| Outcome::Answered { status: 200, verdict, retry_after: None };
        let word = Reason::word;
        let hint = RetryHint { reason: word("busy"), after: None, scope: PauseScope::Delivery };
        let terminal = || Verdict::Terminal(word("suspended"));
        let faulted = |kind| Outcome::Faulted(Fault { kind, detail: String::new() });
        for (outcome, fault, expected) in [
            (answered(Verdict::Delivered { reference: None, reason: None }), None, Some((Said::Delivered, None))),
            (answered(Verdict::Retryable(hint)), None, Some((Said::Retryable, Some("busy")))),
            (answered(terminal()), None, Some((Said::Terminal, Some("suspended")))),
            // What stood in for it is not its word.
            (answered(terminal()), Some(FaultKind::Trap), Some((Said::Fault, Some("trap")))),
            (answered(terminal()), Some(FaultKind::Unavailable), None),
            (Outcome::Skipped(SkipReason(word("not_ours"))), None, Some((Said::Skipped, Some("not_ours")))),
            (faulted(FaultKind::Memory), Some(FaultKind::Memory), Some((Said::Fault, Some("memory")))),
            // Its request led away from the endpoint's host: no call faulted.
            (faulted(FaultKind::BadOutput), None, Some((Said::Fault, Some("bad_output")))),
            (faulted(FaultKind::InputTooLarge), Some(FaultKind::InputTooLarge), None),
            (Outcome::Refused(word("blocked")), None, None),
            (Outcome::Interrupted, None, None),
            (Outcome::Released(Reason::SHUTDOWN), None, None),
        ] {
            let told = told(&outcome, fault).map(|told| (told.said, told.why));
            assert_eq!(told, expected.map(|(said, why)| (said, why.map(str::to_owned))), "{outcome:?} {fault:?}");
        }
    }

    fn version(n: u128) -> InUse {
        let exports = Exports { transform: true, classify: true };
        let rules = Arc::new(Absent { exports, why: String::new() });
        InUse { rules, version: Some(PluginVersionId::from_u128(n)) }
    }

    fn canary(alarm: &Arc<Notify>) -> Arc<Trial> {
        resumed(alarm, Window::default())
    }

    fn resumed(alarm: &Arc<Notify>, window: Window) -> Arc<Trial> {
        let share = "50%".parse().ok().and_then(Share::new).unwrap();
        let identity = Identity { id: TrialId::from_u128(1), version: PluginVersionId::from_u128(2), share };
        Trial::canary(identity, version(2).rules, (Bounds::default(), window), Arc::clone(alarm))
    }

    #[tokio::test]
    async fn a_canary_is_taken_by_its_share_until_it_is_judged() {
        let alarm = Arc::default();
        let trial = canary(&alarm);
        let used = Use { active: Arc::new(version(1)), trial: Some(Arc::clone(&trial)) };
        let by = |delivery: u128| {
            let (asked, part) = Part::of(&used, DeliveryId::from_u128(delivery));
            (asked.version.map(PluginVersionId::as_u128), part)
        };
        for delivery in 0..200 {
            match by(delivery) {
                (Some(1), Part::Active(_)) => assert!(!trial.share.takes(trial.id, DeliveryId::from_u128(delivery))),
                (Some(2), Part::Canary(..)) => assert!(trial.share.takes(trial.id, DeliveryId::from_u128(delivery))),
                (version, _) => panic!("{version:?}"),
            }
        }
        for _ in 0..19 {
            trial.note(Side::Canary, Said::Fault);
            // What the others do is not its doing, and does not break its row.
            trial.note(Side::Active, Said::Delivered);
        }
        assert_eq!(trial.judged(), None);
        trial.note(Side::Canary, Said::Fault);
        assert_eq!(trial.judged(), Some(Why::FaultsInARow(20)));
        alarm.notified().await;
        assert!((0..200).all(|delivery| by(delivery).0 == Some(1)), "no attempt takes it from here on");
        let Some(Noted::Canary { canary, active, window }) = trial.take() else { panic!("nothing noted") };
        assert_eq!((canary.faults, active.delivered, window.faults_in_a_row), (20, 19, 20));
        assert!(trial.take().is_none(), "once");
        trial.give_back(Noted::Canary { canary, active, window });
        assert!(matches!(trial.take(), Some(Noted::Canary { canary: again, .. }) if again == canary));
    }

    #[tokio::test]
    async fn one_that_had_left_its_bounds_does_not_begin_anew() {
        let window = Window { calls: 50, faults: 0, terminal: 6, faults_in_a_row: 0 };
        let trial = resumed(&Arc::default(), window);
        assert!(matches!(trial.judged(), Some(Why::TerminalRate { terminal: 6, calls: 50, .. })));
        let used = Use { active: Arc::new(version(1)), trial: Some(trial) };
        let taken = |id: u128| matches!(Part::of(&used, DeliveryId::from_u128(id)).1, Part::Canary(..));
        assert!(!(0..200).any(taken));
    }

    #[tokio::test]
    async fn the_end_waits_for_what_is_under_way() {
        let trial = canary(&Arc::default());
        let used = Use { active: Arc::new(version(1)), trial: Some(Arc::clone(&trial)) };
        let taken = (0..).map(DeliveryId::from_u128).find(|id| trial.share.takes(trial.id, *id)).unwrap();
        let (_, part) = Part::of(&used, taken);
        let ending = tokio::spawn(async move { trial.end().await });
        // poll: until the end has begun, attempts still take it.
        while matches!(Part::of(&used, taken).1, Part::Canary(..)) {
            tokio::task::yield_now().await;
        }
        assert!(!ending.is_finished());
        drop(part);
        ending.await.unwrap();
    }
}
