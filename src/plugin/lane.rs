//! Where long calls run: beside the traffic, and behind it.
//!
//! A guest that is done within a millisecond or two is called where it is asked for; nothing is faster. One that is
//! not would hold up others there, however often it yields. It goes on the lane: threads of the lowest class that the
//! system has, which run when nobody else wants to, a slice of a tick at a time, by turns of the tenants. Time there
//! is the guest's own CPU time: that others had the processor is no fault of a plugin's.
//!
//! A machine that never rests would starve them. So one thread of ordinary class, the reserve, looks every
//! [`LOOK`] whether the lane comes on. When it does not, the reserve runs one slice, and rests twice as long. A
//! call that the lane is stuck in it makes again from the beginning, which can be told by nobody.
//!
//! Time that comes to nothing is bounded: a tenant whose calls have wasted more than [`WASTE_BURST`] in faults rests here
//! until that is paid back. Even the idle class is felt: a thread that wakes where it runs may wait for the next tick.
//!
//! A thread of the lane may be preempted with a lock in its hand. While anybody waits for that lock, the processor has
//! nothing better to do than to run it.

use crate::delivery::Name;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A call that takes this much of a processor is a long one. Without optimisation everything takes ten times as much.
pub(super) const QUICK_MAX: Duration = Duration::from_micros(if cfg!(debug_assertions) { 5_000 } else { 500 });

/// So many quick calls in a row bring a plugin back from the lane.
pub(super) const QUICK_AGAIN_AFTER: u32 = 50;

/// Calls on the lane that have been begun and hold an instance; the others wait.
pub(super) const BEGUN_MAX: u32 = 16;

/// Threads of the lane, however many cores there are.
const THREADS_MAX: usize = 8;

/// A lane that has ended no slice in this time is starved: it ends several when it has a processor.
const LOOK: Duration = Duration::from_millis(5);

/// A slice that has lasted so long runs on a thread that gets no processor, and is made again elsewhere.
const STUCK: Duration = Duration::from_millis(20);

/// How many times what it took the reserve rests: at most a third of a core is taken from others.
const REST: u32 = 2;

/// What a tenant's calls may waste at once: more than a version can until its faults in a row disable it.
const WASTE_BURST: Duration = Duration::from_secs(3);
/// Paid back in so many times the time that was wasted: two percent of a core.
const WASTE_PAID_IN: u32 = 50;

/// A call that was begun may take so many times its CPU time until it is given up.
const STRETCH: u32 = 20;

/// Where a plugin's next call is made, by what its calls took.
#[derive(Debug)]
pub(super) struct Pace {
    /// Quick calls that are missing until it is trusted again.
    owed: AtomicU32,
}

impl Pace {
    /// Of a plugin that nobody has called yet: its first calls are made on the lane.
    pub(super) const fn unknown() -> Self {
        Pace { owed: AtomicU32::new(2) }
    }

    pub(super) fn is_quick(&self) -> bool {
        self.owed.load(Ordering::Relaxed) == 0
    }

    /// A call on the lane has taken `spent`.
    pub(super) fn note(&self, spent: Duration) {
        if spent >= QUICK_MAX {
            self.owed.store(QUICK_AGAIN_AFTER, Ordering::Relaxed);
        } else {
            // At zero already: it stays.
            let _ = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| owed.checked_sub(1));
        }
    }
}

/// CPU time of the calling thread.
pub(super) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The CPU time of one call, over its slices and the threads that ran them.
#[derive(Debug, Default)]
pub(super) struct Meter {
    nanos: AtomicU64,
    /// The running slice's beginning, by its thread's own clock.
    slice_began: AtomicU64,
}

impl Meter {
    /// To be asked within a slice, by the thread that runs it.
    pub(super) fn spent(&self) -> Duration {
        let began = Duration::from_nanos(self.slice_began.load(Ordering::Relaxed));
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed)) + thread_cpu().saturating_sub(began)
    }

    fn slice<T>(&self, run: impl FnOnce() -> T) -> T {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.slice_began.store(nanos(thread_cpu()), Ordering::Relaxed);
        let result = run();
        self.nanos.store(nanos(self.spent()), Ordering::Relaxed);
        result
    }
}

/// Why the lane has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failed {
    /// Its time to wait was over before it was done.
    NoTurn,
    /// The call broke its thread's stack of frames; the thread goes on.
    Panicked,
}

/// What somebody waits for. It can be made more than once, and the first that is done is told.
trait Errand: Send + Sync {
    fn begin(self: Arc<Self>) -> Box<dyn Run>;
    fn is_wanted(&self) -> bool;
    fn give_up(&self);
}

/// One making of it.
trait Run: Send {
    /// One slice; `true`: it is done, one way or the other.
    fn slice(&mut self) -> bool;
}

struct Asked<T, M> {
    make: M,
    answer: Mutex<Option<Answer<T>>>,
}

/// Where the answer goes, and the tenant's turn that is over with it.
type Answer<T> = (oneshot::Sender<Result<T, Failed>>, OwnedSemaphorePermit);

impl<T, M> Asked<T, M> {
    fn answer(&self) -> MutexGuard<'_, Option<Answer<T>>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, result: Result<T, Failed>) {
        let answer = self.answer().take();
        if let Some((answer, turn)) = answer {
            drop(turn);
            // Who asked may have gone.
            let _ = answer.send(result);
        }
    }
}

impl<T, M, F> Errand for Asked<T, M>
where
    T: Send + 'static,
    M: Fn(Arc<Meter>) -> F + Send + Sync + 'static,
    F: Future<Output = T> + Send + 'static,
{
    fn begin(self: Arc<Self>) -> Box<dyn Run> {
        let meter = Arc::new(Meter::default());
        Box::new(Making { call: Box::pin((self.make)(Arc::clone(&meter))), meter, asked: self })
    }

    fn is_wanted(&self) -> bool {
        self.answer().as_ref().is_some_and(|(answer, _)| !answer.is_closed())
    }

    fn give_up(&self) {
        self.tell(Err(Failed::NoTurn));
    }
}

struct Making<T, M, F> {
    call: Pin<Box<F>>,
    meter: Arc<Meter>,
    asked: Arc<Asked<T, M>>,
}

impl<T, M, F> Run for Making<T, M, F>
where
    T: Send,
    M: Send + Sync,
    F: Future<Output = T> + Send,
{
    fn slice(&mut self) -> bool {
        let Making { call, meter, asked } = self;
        // What a call waits for is its next tick alone: it is asked again in its turn.
        let mut context = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| meter.slice(|| call.as_mut().poll(&mut context))));
        match polled {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(result)) => asked.tell(Ok(result)),
            Err(_) => asked.tell(Err(Failed::Panicked)),
        }
        true
    }
}

/// A call in the queue.
struct Job {
    tenant: Name,
    errand: Arc<dyn Errand>,
    /// Once it is begun.
    run: Option<Box<dyn Run>>,
    give_up_at: Instant,
    /// What is added to that when it begins.
    stretch: Duration,
}

impl Job {
    /// One slice; gives it back if there is more.
    fn slice(mut self) -> Option<Self> {
        if !self.errand.is_wanted() {
            return None;
        }
        if Instant::now() >= self.give_up_at {
            self.errand.give_up();
            return None;
        }
        self.give_up_at += std::mem::take(&mut self.stretch);
        let run = self.run.get_or_insert_with(|| Arc::clone(&self.errand).begin());
        if run.slice() { None } else { Some(self) }
    }

    /// The same, from its beginning.
    fn again(&self) -> Self {
        Job {
            tenant: self.tenant.clone(),
            errand: Arc::clone(&self.errand),
            run: None,
            give_up_at: self.give_up_at,
            stretch: self.stretch,
        }
    }
}

/// What waits of one tenant, in the order of asking; what was begun stands in front.
struct Line {
    tenant: Name,
    jobs: VecDeque<Job>,
}

/// Time of a tenant's calls that came to nothing, as of a moment.
struct Waste {
    wasted: Duration,
    at: Instant,
}

impl Waste {
    fn left(&self, now: Instant) -> Duration {
        self.wasted.saturating_sub(now.saturating_duration_since(self.at) / WASTE_PAID_IN)
    }

    /// How long its calls rest; `None`: they do not.
    fn rest(&self, now: Instant) -> Option<Duration> {
        let beyond = self.left(now).saturating_sub(WASTE_BURST);
        if beyond.is_zero() { None } else { Some(beyond * WASTE_PAID_IN) }
    }
}

#[derive(Default)]
struct Queue {
    /// Whose turn it is stands in front. None is empty.
    lines: VecDeque<Line>,
    /// What each tenant's calls have wasted and not paid back.
    wastes: HashMap<Name, Waste>,
    /// Calls that the reserve makes again, since the lane is stuck in them.
    again: VecDeque<Job>,
    /// What each thread of the lane is at, and since when; nothing, when the reserve has taken it over.
    at: Vec<Option<(Instant, Job)>>,
    /// Taken and not yet done: each may hold an instance.
    begun: u32,
    closed: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.again.is_empty() && self.at.iter().all(Option::is_none)
    }

    fn line(&mut self, tenant: &Name) -> &mut VecDeque<Job> {
        let at = self.lines.iter().position(|line| line.tenant == *tenant).unwrap_or_else(|| {
            self.lines.push_back(Line { tenant: tenant.clone(), jobs: VecDeque::new() });
            self.lines.len() - 1
        });
        &mut self.lines[at].jobs
    }

    /// The first of the first line that may run; its tenant's next turn is after all others'.
    fn take(&mut self) -> Option<Job> {
        let now = Instant::now();
        self.wastes.retain(|_, waste| !waste.left(now).is_zero());
        let room = self.begun < BEGUN_MAX;
        let fits = |job: &Job| job.run.is_some() || room;
        let rests = |tenant: &Name| self.wastes.get(tenant).is_some_and(|waste| waste.rest(now).is_some());
        let may = |line: &Line| line.jobs.front().is_some_and(fits) && !rests(&line.tenant);
        let at = self.lines.iter().position(may)?;
        let mut line = self.lines.remove(at)?;
        let job = line.jobs.pop_front()?;
        if !line.jobs.is_empty() {
            self.lines.push_back(line);
        }
        self.begun += u32::from(job.run.is_none());
        Some(job)
    }

    /// How long nothing can be taken, if somebody rests.
    fn next_after(&self) -> Option<Duration> {
        let now = Instant::now();
        self.wastes.values().filter_map(|waste| waste.rest(now)).min()
    }

    /// For the reserve: what it has begun itself, what the lane is stuck in, what else waits.
    fn take_late(&mut self) -> Option<Job> {
        let stuck = self.at.iter_mut().filter(|at| at.as_ref().is_some_and(|(since, _)| since.elapsed() > STUCK));
        if self.begun < BEGUN_MAX
            && let Some((_, job)) = stuck.min_by_key(|at| at.as_ref().map(|(since, _)| *since)).and_then(Option::take)
        {
            self.begun += 1;
            self.again.push_back(job);
        }
        self.again.pop_front().or_else(|| self.take())
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Slices that the threads of the lowest class have ended.
    slices: AtomicU64,
    /// For those threads.
    work: Condvar,
    /// For the reserve.
    late: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self, index: usize) {
        if let Err(error) = lowest_class() {
            tracing::warn!(%error, "long plugin calls cannot have the idle class and get the lowest priority instead");
        }
        let mut queue = self.queue();
        while !queue.closed {
            let Some(job) = queue.take() else {
                queue = match queue.next_after().filter(|_| !queue.lines.is_empty()) {
                    Some(rest) => self.work.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner).0,
                    None => self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
                };
                continue;
            };
            queue.at[index] = Some((Instant::now(), job.again()));
            drop(queue);
            let left = job.slice();
            self.slices.fetch_add(1, Ordering::Relaxed);
            queue = self.queue();
            let copy = queue.at[index].take();
            match left {
                Some(job) if copy.is_some() => queue.line(&job.tenant.clone()).push_front(job),
                left => {
                    queue.begun -= 1;
                    drop(queue);
                    // They go with all that they hold, which may be the host itself, beside the lock.
                    drop((left, copy));
                    queue = self.queue();
                }
            }
        }
    }

    fn reserve(&self) {
        let mut queue = self.queue();
        while !queue.closed {
            if queue.is_empty() {
                queue = self.late.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if queue.again.is_empty() {
                drop(queue);
                let ended = self.slices.load(Ordering::Relaxed);
                std::thread::sleep(LOOK);
                queue = self.queue();
                if self.slices.load(Ordering::Relaxed) != ended {
                    continue;
                }
            }
            let Some(job) = queue.take_late() else { continue };
            drop(queue);
            let began = thread_cpu();
            let left = job.slice();
            let rest = thread_cpu().saturating_sub(began) * REST;
            queue = self.queue();
            match left {
                Some(job) => queue.again.push_back(job),
                None => queue.begun -= 1,
            }
            drop(queue);
            self.work.notify_one();
            std::thread::sleep(rest);
            queue = self.queue();
        }
    }
}

/// The threads, and their queue. They end when this is dropped.
pub(super) struct Lane {
    shared: Arc<Shared>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let waiting = {
            let mut queue = self.shared.queue();
            queue.closed = true;
            (std::mem::take(&mut queue.lines), std::mem::take(&mut queue.again))
        };
        drop(waiting);
        self.shared.work.notify_all();
        self.shared.late.notify_all();
    }
}

impl Lane {
    /// One thread fewer than there are cores, and at least one; and the reserve.
    pub(super) fn start() -> std::io::Result<Self> {
        let lane = Lane { shared: Arc::default() };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = cores.saturating_sub(1).clamp(1, THREADS_MAX);
        lane.shared.queue().at.resize_with(threads, || None);
        for index in 0..threads {
            let shared = Arc::clone(&lane.shared);
            std::thread::Builder::new().name("plugin-long".into()).spawn(move || shared.lane(index))?;
        }
        let shared = Arc::clone(&lane.shared);
        std::thread::Builder::new().name("plugin-reserve".into()).spawn(move || shared.reserve())?;
        Ok(lane)
    }

    /// A call of the tenant's took `spent` and came to nothing.
    pub(super) fn waste(&self, tenant: &Name, spent: Duration) {
        let now = Instant::now();
        let mut queue = self.shared.queue();
        let left = queue.wastes.get(tenant).map_or(Duration::ZERO, |waste| waste.left(now));
        queue.wastes.insert(tenant.clone(), Waste { wasted: left + spent, at: now });
    }

    /// Runs what `make` makes in slices; it must be pending for nothing but its next slice, and do no harm when it is
    /// made twice. What is not begun within `wait_max` is given up; so is what was kept waiting for [`STRETCH`] times
    /// its `time_max`, and what nobody waits for any more.
    pub(super) async fn run<T, F>(
        &self,
        (tenant, turn): (&Name, OwnedSemaphorePermit),
        (wait_max, time_max): (Duration, Duration),
        make: impl Fn(Arc<Meter>) -> F + Send + Sync + 'static,
    ) -> Result<T, Failed>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (answer, told) = oneshot::channel();
        let errand = Arc::new(Asked { make, answer: Mutex::new(Some((answer, turn))) });
        let (give_up_at, stretch) = (Instant::now() + wait_max, time_max * STRETCH);
        let job = Job { tenant: tenant.clone(), errand, run: None, give_up_at, stretch };
        self.shared.queue().line(tenant).push_back(job);
        self.shared.work.notify_one();
        self.shared.late.notify_one();
        told.await.unwrap_or(Err(Failed::NoTurn))
    }
}

/// The calling thread runs from here on only where a processor would rest; where the system does not let it, at the
/// lowest priority, and the reason is given.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn lowest_class() -> std::io::Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads one `sched_param` from a valid reference; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    // SAFETY: no memory is in its contract. On Linux it is the calling thread's alone.
    let _ = unsafe { libc::nice(19) };
    Err(error)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn lowest_class() -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    async fn turn() -> OwnedSemaphorePermit {
        Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap()
    }

    const TIMES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(60));

    #[test]
    fn one_long_call_is_paid_for_by_fifty_quick_ones() {
        let pace = Pace::unknown();
        assert!(!pace.is_quick());
        (0..2).for_each(|_| pace.note(Duration::ZERO));
        assert!(pace.is_quick());
        pace.note(Duration::ZERO);
        assert!(pace.is_quick());
        pace.note(QUICK_MAX);
        for _ in 0..QUICK_AGAIN_AFTER {
            assert!(!pace.is_quick());
            pace.note(QUICK_MAX / 2);
        }
        assert!(pace.is_quick());
    }

    #[test]
    fn waste_is_paid_back_at_two_percent() {
        let (at, second) = (Instant::now(), Duration::from_secs(1));
        let waste = |seconds: u32| Waste { wasted: second * seconds, at };
        for (wasted, after, left, rest) in [
            (1, 0, 1, None),
            (3, 0, 3, None),
            (4, 0, 4, Some(50)),
            (4, 25 * 2, 3, None),
            (5, 50, 4, Some(50)),
            (1, 50, 0, None),
            (1, 500, 0, None),
        ] {
            let now = at + second * after;
            assert_eq!(waste(wasted).left(now), second * left, "{wasted} s, {after} s later");
            assert_eq!(waste(wasted).rest(now), rest.map(|rest| second * rest), "{wasted} s, {after} s later");
        }
    }

    #[tokio::test]
    async fn a_panic_is_told_and_the_lane_goes_on() {
        let lane = Lane::start().unwrap();
        let tenant = "acme".parse().unwrap();
        let bad = lane.run((&tenant, turn().await), TIMES, |_| async { panic!("meant") });
        assert_eq!(bad.await.map(|(): ()| ()), Err(Failed::Panicked));
        assert_eq!(lane.run((&tenant, turn().await), TIMES, |_| async { 1 }).await, Ok(1));
    }

    #[tokio::test]
    async fn what_is_pending_is_asked_again_until_its_time_is_over() {
        let lane = Lane::start().unwrap();
        let tenant = "acme".parse().unwrap();
        let three = |_| {
            let mut asked = 0;
            std::future::poll_fn(move |_| {
                asked += 1;
                if asked < 3 { Poll::Pending } else { Poll::Ready(asked) }
            })
        };
        assert_eq!(lane.run((&tenant, turn().await), TIMES, three).await, Ok(3));
        let times = (Duration::from_millis(5), Duration::from_millis(1));
        let never = lane.run((&tenant, turn().await), times, |_| std::future::pending::<()>());
        assert_eq!(never.await, Err(Failed::NoTurn));
    }

    /// As under a machine that never rests: the thread of the lane holds the call and does not come on.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_call_that_is_stuck_on_the_lane_is_made_again() {
        let lane = Lane::start().unwrap();
        let tenant = "acme".parse().unwrap();
        let (made, (go, stuck)) = (Arc::new(AtomicU32::new(0)), std::sync::mpsc::channel::<()>());
        let (count, stuck) = (Arc::clone(&made), Mutex::new(Some(stuck)));
        let turns = Arc::new(Semaphore::new(1));
        let call = lane.run((&tenant, Arc::clone(&turns).acquire_owned().await.unwrap()), TIMES, move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            let stuck = stuck.lock().unwrap().take();
            std::future::poll_fn(move |_| {
                if let Some(stuck) = &stuck {
                    let _ = stuck.recv();
                }
                Poll::Ready(number)
            })
        });
        assert_eq!(call.await, Ok(1));
        assert_eq!((made.load(Ordering::SeqCst), turns.available_permits()), (2, 1));
        drop(go);
        // The thread is back.
        assert_eq!(lane.run((&tenant, turn().await), TIMES, |_| async { 7 }).await, Ok(7));
    }

    #[tokio::test]
    async fn tenants_take_turns_slice_by_slice() {
        let queue = &mut Queue::default();
        struct Nothing;
        impl Errand for Nothing {
            fn begin(self: Arc<Self>) -> Box<dyn Run> {
                Box::new(Nothing)
            }
            fn is_wanted(&self) -> bool {
                true
            }
            fn give_up(&self) {}
        }
        impl Run for Nothing {
            fn slice(&mut self) -> bool {
                false
            }
        }
        for name in ["a", "a", "a", "b", "c"] {
            let tenant: Name = name.parse().unwrap();
            let job = Job {
                tenant: tenant.clone(),
                errand: Arc::new(Nothing),
                run: None,
                give_up_at: Instant::now() + TIMES.0,
                stretch: Duration::ZERO,
            };
            queue.line(&tenant).push_back(job);
        }
        let mut order = String::new();
        for _ in 0..7 {
            let job = queue.take().unwrap().slice().unwrap();
            order += job.tenant.as_str();
            queue.line(&job.tenant.clone()).push_front(job);
        }
        assert_eq!((order.as_str(), queue.begun), ("abcabca", 3));
        queue.begun = BEGUN_MAX;
        // What is begun goes on; nothing further begins.
        assert!(queue.take().is_some_and(|job| job.run.is_some()));
        queue.begun = 0;
        // Who has wasted too much is passed by.
        let wasted = WASTE_BURST + Duration::from_secs(1);
        let waste = |name: &str| (name.parse().unwrap(), Waste { wasted, at: Instant::now() });
        queue.wastes = ["a", "b"].map(waste).into();
        assert_eq!(queue.take().map(|job| job.tenant.to_string()).as_deref(), Some("c"));
        assert!(queue.take().is_none() && queue.next_after().is_some_and(|rest| !rest.is_zero()));
        queue.wastes.values_mut().for_each(|waste| waste.wasted = WASTE_BURST);
        assert!(queue.take().is_some());
    }
}
