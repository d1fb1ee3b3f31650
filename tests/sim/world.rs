//! One seed from its beginning to its end: processes that live and die on one ledger, what people and providers do to
//! them, and the end, at which all faults have stopped and everything must come to rest.

use crate::audit;
use crate::dice::Dice;
use crate::ledger::{SimLedger, block_on};
use crate::oracle::{Endpoint, Oracle, Violation, note, signer};
use crate::plant::Plant;
use crate::receiver::Receiver;
use crate::rules::Script;
use crate::scenario::{LedgerFaults, Scenario, Temper};
use crate::support::{SeededEntropy, name, publication, verified};
use crate::time::{SimClock, pass};
use bytes::Bytes;
use hookgate::clock::{Clock as _, ClockWatch, Timestamp};
use hookgate::delivery::{DeliveryId, DeliveryState, EndpointStatus, Name, Order};
use hookgate::dispatch::{
    Advice, Crew, Dispatcher, InUse, Live, Settings, Stop, Tally, Target, Targets, Way, requeue_interrupted,
};
use hookgate::ledger::sqlite;
use hookgate::ledger::{
    Accept, Accepted, Declaration, DeclaredEndpoint, DeclaredTenant, DeliveryFilter, EndpointCaps, EndpointChange,
    EndpointKey, Ledger, NewDelivery, Operations as _, PageRequest, Queue as _, Records as _, Redrive, RequestId,
    ResolveAs, Slots, TenantKey, Wakes,
};
use hookgate::secret::Secret;
use http::HeaderName;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// More verbs and requests than any scenario needs: whoever goes on beyond runs in a circle.
const EFFECTS_MAX: u64 = 30_000;

/// What everybody in one simulation shares.
pub struct Sim {
    pub seed: u64,
    pub scenario: Scenario,
    pub plant: Option<Plant>,
    pub clock: Arc<SimClock>,
    pub oracle: Oracle,
    pub crash: Notify,
    faults: Mutex<Faults>,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Faults {
    quiet: bool,
    /// The ledger takes nothing before that.
    outage_until: u64,
    /// So many effects are left until the process ends.
    left: Option<u64>,
    dead: bool,
    effects: u64,
}

/// Keys by the places in the scenario.
#[derive(Default)]
struct Names {
    tenants: Vec<TenantKey>,
    endpoints: Vec<EndpointKey>,
}

fn tenant_name(tenant: usize) -> Name {
    name(&format!("tenant-{tenant}"))
}

impl Sim {
    fn new(seed: u64, plant: Option<Plant>, traced: bool) -> Arc<Self> {
        let clock = Arc::<SimClock>::default();
        Arc::new(Sim {
            seed,
            scenario: Scenario::of(seed),
            plant,
            oracle: Oracle::new(Arc::clone(&clock), traced),
            clock,
            crash: Notify::new(),
            faults: Mutex::default(),
            names: Mutex::default(),
        })
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.faults.lock().unwrap()
    }

    pub fn is_quiet(&self) -> bool {
        self.faults().quiet
    }

    pub fn ledger_faults(&self) -> LedgerFaults {
        let faults = self.faults();
        if faults.quiet {
            LedgerFaults::default()
        } else if self.clock.passed() < faults.outage_until {
            LedgerFaults { refused: 100, ..self.scenario.ledger }
        } else {
            self.scenario.ledger
        }
    }

    /// Something happens that cannot be taken back: here the process may end.
    pub async fn effect(&self) {
        let dies = {
            let mut faults = self.faults();
            faults.effects += 1;
            let circle = faults.effects > EFFECTS_MAX;
            if circle {
                self.oracle.look().broken("liveness", format!("more than {EFFECTS_MAX} verbs and requests"));
            }
            let now = circle || faults.left == Some(0);
            faults.left = faults.left.map(|left| left.saturating_sub(1));
            if now && !faults.dead {
                faults.dead = true;
                self.crash.notify_one();
            }
            faults.dead
        };
        if dies {
            std::future::pending::<()>().await;
        }
    }

    pub fn temper(&self, key: EndpointKey) -> Temper {
        let at = self.names.lock().unwrap().endpoints.iter().position(|known| *known == key).unwrap();
        self.scenario.endpoints[at].temper
    }

    pub fn tenant_keys(&self) -> Vec<TenantKey> {
        self.names.lock().unwrap().tenants.clone()
    }

    pub fn tenant_name(&self, key: TenantKey) -> String {
        let at = self.tenant_keys().iter().position(|known| *known == key).unwrap();
        tenant_name(at).to_string()
    }

    pub fn endpoint_key(&self, tenant: TenantKey, called: &Name) -> Option<EndpointKey> {
        let names = self.names.lock().unwrap();
        let of = |at: &usize| {
            let plan = &self.scenario.endpoints[*at];
            names.tenants[plan.tenant] == tenant && plan.name == *called
        };
        (0..self.scenario.endpoints.len()).find(of).map(|at| names.endpoints[at])
    }

    fn is_broken(&self) -> bool {
        self.oracle.look().violation.is_some()
    }
}

/// What came of a seed.
pub struct Outcome {
    pub violation: Option<Violation>,
    pub seen: BTreeMap<&'static str, u64>,
    pub trace: Vec<String>,
}

/// Runs one seed.
pub fn run(seed: u64, plant: Option<Plant>, traced: bool) -> Outcome {
    let sim = Sim::new(seed, plant, traced);
    let home = tempfile::Builder::new().prefix("hookgate-sim").tempdir_in(memory()).unwrap();
    let path = home.path().join("data/ledger.db");
    make_ledger(&path);
    let mut driver = Driver {
        dice: Dice::of(&[seed, 6]),
        left: sim.scenario.steps,
        lives: sim.scenario.lives,
        path,
        published: Vec::new(),
        redriven: Vec::new(),
        serial: 0,
        sim: Arc::clone(&sim),
    };
    for life in 0.. {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let end = runtime.block_on(driver.life(life));
        sim.clock.end_life();
        // With it goes every task of the process, wherever it stands.
        drop(runtime);
        sim.oracle.look().life_over();
        let mut faults = sim.faults();
        faults.left = None;
        faults.dead = false;
        faults.outage_until = 0;
        drop(faults);
        if matches!(end, End::Over) || sim.is_broken() {
            break;
        }
    }
    let mut model = sim.oracle.look();
    Outcome {
        violation: model.violation.take(),
        seen: std::mem::take(&mut model.seen),
        trace: model.trace.take().unwrap_or_default(),
    }
}

/// Files in memory where there is such a place: what a flush costs is not the question here.
fn memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() }
}

fn ledger_settings(path: &Path) -> sqlite::Settings {
    let master_key = Some(Secret::new([7; 32]));
    let dedup_in_memory_max = 512;
    sqlite::Settings { master_key, ballast_bytes: 0, readers: 1, dedup_in_memory_max, ..sqlite::Settings::new(path) }
}

/// A ledger of the newest schema, made once: to migrate an empty one takes longer than most of what follows.
fn make_ledger(path: &Path) {
    static TEMPLATE: OnceLock<Vec<u8>> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("data/ledger.db");
        let clock = Arc::new(ClockWatch::new(Arc::<SimClock>::default()));
        let slots = Arc::new(Slots::new(Arc::default()));
        let entropy = Arc::new(SeededEntropy::new(1));
        let (ledger, _births) = sqlite::open(ledger_settings(&path), slots, Arc::default(), entropy, clock).unwrap();
        block_on(ledger.close()).unwrap();
        drop(ledger);
        std::fs::read(path).unwrap()
    });
    std::fs::DirBuilder::new().mode(0o700).create(path.parent().unwrap()).unwrap();
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    std::io::Write::write_all(&mut file, template).unwrap();
}

enum End {
    /// The process ended without any warning.
    Crashed,
    /// It was told to stop, and did.
    Stopped,
    /// The seed has been played to its end.
    Over,
}

/// A process at work.
struct Process {
    ledger: Arc<SimLedger>,
    slots: Arc<Slots>,
    stop: Stop,
    dispatcher: JoinHandle<()>,
}

/// What was published under a key, to be sent again.
#[derive(Clone)]
struct Published {
    tenant: usize,
    key: String,
    body: Bytes,
}

struct Driver {
    sim: Arc<Sim>,
    dice: Dice,
    /// Steps that are left.
    left: usize,
    /// Processes that may still end before their time.
    lives: usize,
    path: PathBuf,
    published: Vec<Published>,
    redriven: Vec<Redrive>,
    serial: u64,
}

impl Driver {
    async fn life(&mut self, life: u64) -> End {
        let sim = Arc::clone(&self.sim);
        sim.clock.begin_life();
        note!(sim.oracle.look(), "process {life} begins");
        tokio::select! {
            biased;
            () = sim.crash.notified() => {
                let mut model = sim.oracle.look();
                model.saw("crash");
                note!(model, "the process ends");
                End::Crashed
            }
            end = self.live(life) => end,
        }
    }

    async fn live(&mut self, life: u64) -> End {
        let Some(process) = self.start(life).await else { return End::Crashed };
        while self.left > 0 && !self.sim.is_broken() {
            self.left -= 1;
            if self.dice.percent(60) {
                pass(self.dice.up_to(self.sim.scenario.unit * 3)).await;
            }
            if self.step(&process) {
                return self.stop(process).await;
            }
        }
        if self.sim.is_broken() {
            return End::Over;
        }
        self.rest(process).await;
        End::Over
    }

    /// As the assembly does it: open, declare, caps, what was interrupted, and then the dispatcher.
    async fn start(&mut self, life: u64) -> Option<Process> {
        let sim = &self.sim;
        let wakes = Arc::new(Wakes::default());
        let slots = Arc::new(Slots::new(Arc::clone(&wakes)));
        let watch = Arc::new(ClockWatch::new(Arc::<SimClock>::clone(&sim.clock)));
        let chance = |what: u64| Arc::new(SeededEntropy::new(Dice::of(&[sim.seed, what, life]).next()));
        let opened = sqlite::open(
            ledger_settings(&self.path),
            Arc::clone(&slots),
            Arc::clone(&wakes),
            chance(7),
            Arc::clone(&watch),
        );
        let (inner, births) = opened.unwrap();
        let (ledger, births) = SimLedger::new(inner, births, Arc::clone(&slots), Arc::clone(sim), life);
        let targets = Arc::new(Targets::default());
        declare(sim, &ledger, &slots, &targets);
        let crew = Crew {
            settings: Settings { poll_every: sim.scenario.poll_every, ..Settings::default() },
            ledger: Arc::clone(&ledger) as Arc<dyn Ledger>,
            slots: Arc::clone(&slots),
            wakes,
            targets,
            transport: Arc::new(Receiver { sim: Arc::clone(sim) }),
            clock: watch,
            entropy: chance(8),
            tally: Tally::default(),
        };
        // A start that fails is a process that ends.
        requeue_interrupted(&crew, Timestamp::MAX).await.ok()?;
        let stop = Stop::default();
        let dispatcher = tokio::spawn(Dispatcher::new(crew, stop.clone()).run(births));
        Some(Process { ledger, slots, stop, dispatcher })
    }

    /// One thing that people, providers or fate do. `true`: the process is told to stop.
    fn step(&mut self, process: &Process) -> bool {
        let sim = Arc::clone(&self.sim);
        let may_end = self.lives > 0;
        let (crashes, clock_steps) = (sim.scenario.crashes, sim.scenario.clock_steps);
        if may_end && self.dice.percent(crashes) {
            self.lives -= 1;
            sim.faults().left = Some(self.dice.between(0, 12));
            return false;
        }
        if may_end && self.dice.percent(crashes / 2) {
            self.lives -= 1;
            return true;
        }
        if self.dice.percent(clock_steps) {
            let longest = if self.dice.percent(50) { 172_800_000 } else { 60_000 };
            let by = i64::try_from(self.dice.between(0, 2 * longest)).unwrap() - i64::try_from(longest).unwrap();
            sim.clock.set_by(by);
            let mut model = sim.oracle.look();
            model.saw("clock set");
            model.jumped();
            note!(model, "the clock is set by {by} ms");
            return false;
        }
        match self.dice.next() % 100 {
            0..=49 => self.publish(process, false),
            50..=60 => self.publish(process, true),
            61..=73 => self.change_endpoint(process),
            74..=85 => self.redrive(process),
            86..=90 => self.cancel_or_resolve(process),
            91..=93 if sim.scenario.ledger.refused > 0 => {
                let until =
                    sim.clock.passed() + u64::try_from(self.dice.up_to(sim.scenario.unit * 4).as_millis()).unwrap();
                sim.faults().outage_until = until;
            }
            _ => self.peek(process),
        }
        false
    }

    /// Publishes something new, or what was published before.
    fn publish(&mut self, process: &Process, again: bool) {
        let sim = Arc::clone(&self.sim);
        self.serial += 1;
        let unit = sim.scenario.unit;
        let repeated =
            if again && !self.published.is_empty() { Some(self.dice.pick(&self.published).clone()) } else { None };
        let published = match repeated {
            Some(before) if self.dice.percent(30) => {
                Published { body: Bytes::from(format!("other {}", self.serial)), ..before }
            }
            Some(before) => before,
            None => Published {
                tenant: self.dice.below(sim.scenario.tenants),
                key: format!("key-{}", self.serial),
                body: Bytes::from(format!("{{\"n\":{}}}", self.serial)),
            },
        };
        let keyed = again || self.dice.percent(60);
        if keyed && !again {
            self.published.push(published.clone());
        }
        let mut event = publication("order.paid", keyed.then_some(published.key.as_str()), published.body.to_vec());
        let deliver_after = self.dice.percent(15).then(|| self.dice.up_to(unit * 10));
        let expires_after = self.dice.percent(15).then(|| unit + self.dice.up_to(unit * 20));
        let window = if self.dice.percent(70) { Duration::from_secs(7 * 86_400) } else { unit * 10 };
        let of_tenant: Vec<usize> = sim.scenario.of_tenant(published.tenant).collect();
        let mut endpoints: Vec<usize> = of_tenant.iter().copied().filter(|_| self.dice.percent(70)).collect();
        if endpoints.is_empty() {
            endpoints.push(of_tenant[0]);
        }
        let comes_again = self.dice.percent(60);
        let (ledger, slots) = (Arc::clone(&process.ledger), Arc::clone(&process.slots));
        let waits = [self.dice.up_to(unit), self.dice.up_to(unit * 2)];
        tokio::spawn(async move {
            for wait in [Duration::ZERO].into_iter().chain(waits) {
                pass(wait).await;
                let (tenant, keys) = {
                    let names = sim.names.lock().unwrap();
                    let keys: Vec<EndpointKey> = endpoints.iter().map(|at| names.endpoints[*at]).collect();
                    (names.tenants[published.tenant], keys)
                };
                let now = sim.clock.now();
                let deliveries = keys.into_iter().map(|endpoint| {
                    let slot = slots.take_for_arrival(endpoint, now);
                    NewDelivery { endpoint, slot, order: None }
                });
                event.deliver_at = deliver_after.map(|after| now.plus(after));
                event.expires_at = expires_after.map(|after| now.plus(after));
                let verified = verified(tenant_name(published.tenant).as_str(), event.clone(), window, now);
                let deliveries = deliveries.collect();
                let accept = Accept { tenant, source: None, event: verified, deliveries, now };
                match ledger.accept(accept).await {
                    Ok(Accepted::New(id) | Accepted::Duplicate(id)) => {
                        return sim.oracle.look().acknowledged(id);
                    }
                    // Nothing is promised: whoever has a key may send it again.
                    Err(_) if comes_again && event.key.is_some() => {}
                    Ok(Accepted::KeyReused(_) | Accepted::TooLateAt(_)) | Err(_) => return,
                }
            }
        });
    }

    fn change_endpoint(&mut self, process: &Process) {
        let sim = Arc::clone(&self.sim);
        let at = self.dice.below(sim.scenario.endpoints.len());
        let plan = &sim.scenario.endpoints[at];
        let tenant = sim.tenant_keys()[plan.tenant];
        let why = || "operator".to_owned();
        let until = self.dice.percent(60).then(|| sim.clock.now().plus(self.dice.up_to(sim.scenario.unit * 6)));
        let change = match self.dice.below(8) {
            0..=2 => EndpointChange::Pause { until, why: why() },
            3 => EndpointChange::Disable { why: why() },
            4..=5 => EndpointChange::Resume,
            _ => EndpointChange::Enable,
        };
        let (ledger, called) = (Arc::clone(&process.ledger), plan.name.clone());
        tokio::spawn(async move {
            let now = sim.clock.now();
            let _ = ledger.change_endpoint(tenant, &called, change, now).await;
        });
    }

    /// Some delivery in this state, as somebody would find it in a list.
    fn find(&mut self, process: &Process, state: DeliveryState) -> Option<(TenantKey, DeliveryId)> {
        let tenant = *self.dice.pick(&self.sim.tenant_keys());
        let filter = DeliveryFilter { state: Some(state), ..DeliveryFilter::default() };
        let page = PageRequest { limit: 20, cursor: None };
        let found = block_on(process.ledger.deliveries(tenant, &filter, &page)).ok()?.items;
        if found.is_empty() { None } else { Some((tenant, self.dice.pick(&found).id)) }
    }

    fn redrive(&mut self, process: &Process) {
        let repeated = !self.redriven.is_empty() && self.dice.percent(40);
        let redrive = if repeated {
            let before = self.dice.pick(&self.redriven).clone();
            let other = self.dice.percent(20);
            Redrive {
                payload: if other { Some(Bytes::from_static(b"another")) } else { before.payload.clone() },
                ..before
            }
        } else {
            let Some((tenant, delivery)) = self.find(process, DeliveryState::Dead) else { return };
            self.serial += 1;
            let request = self.dice.percent(70).then(|| RequestId::new(&format!("request-{}", self.serial)).unwrap());
            let payload = self.dice.percent(25).then(|| Bytes::from(format!("corrected {}", self.serial)));
            Redrive { tenant, delivery, note: None, payload, request }
        };
        if redrive.request.is_some() && !repeated {
            self.redriven.push(redrive.clone());
        }
        let (ledger, sim) = (Arc::clone(&process.ledger), Arc::clone(&self.sim));
        let twice = self.dice.percent(30);
        tokio::spawn(async move {
            for _ in 0..=u32::from(twice) {
                let _ = ledger.redrive(redrive.clone(), sim.clock.now()).await;
            }
        });
    }

    fn cancel_or_resolve(&mut self, process: &Process) {
        let cancel = self.dice.percent(50);
        let state = if cancel { DeliveryState::Pending } else { DeliveryState::Dead };
        let Some((tenant, id)) = self.find(process, state) else { return };
        let (ledger, sim) = (Arc::clone(&process.ledger), Arc::clone(&self.sim));
        let how = *self.dice.pick(&[ResolveAs::Sent, ResolveAs::NotSent]);
        tokio::spawn(async move {
            let now = sim.clock.now();
            if cancel {
                let _ = ledger.cancel(tenant, id, now).await;
            } else {
                let _ = ledger.resolve(tenant, id, how, None, now).await;
            }
        });
    }

    /// Somebody looks: at counts, and at what is another's.
    fn peek(&mut self, process: &Process) {
        audit::counts(&self.sim, &process.ledger);
        let Some((tenant, id)) = self.find(process, DeliveryState::Delivered) else { return };
        audit::foreign(&self.sim, &process.ledger, tenant, id);
    }

    /// The drain, the cut after the grace, and the close.
    async fn stop(&mut self, process: Process) -> End {
        let sim = Arc::clone(&self.sim);
        let Process { ledger, stop, mut dispatcher, .. } = process;
        note!(sim.oracle.look(), "the process is told to stop");
        sim.oracle.look().draining = true;
        sim.faults().outage_until = 0;
        stop.drain.cancel();
        let grace = self.dice.up_to(Duration::from_secs(25));
        if tokio::time::timeout(grace, &mut dispatcher).await.is_err() {
            sim.oracle.look().saw("cut");
            stop.cut.cancel();
            let after = tokio::time::timeout(Duration::from_secs(180), dispatcher).await;
            if after.is_err() {
                sim.oracle.look().broken("liveness", "the dispatcher does not end after the cut".to_owned());
            }
        }
        sim.oracle.look().saw("stop");
        let _ = ledger.close().await;
        End::Stopped
    }

    /// All faults stop: everything must come to its end within the horizon, and then be as it is said to be.
    async fn rest(&mut self, process: Process) {
        let sim = Arc::clone(&self.sim);
        sim.faults().quiet = true;
        note!(sim.oracle.look(), "all faults stop");
        // What began before may still end as it began.
        let begun = sim.scenario.endpoints.iter().map(|plan| plan.timeout).max().unwrap_or_default();
        pass(begun + Duration::from_secs(12)).await;
        // The clock may have been set since the last look at the ledger.
        pass(sim.scenario.poll_every).await;
        for plan in &sim.scenario.endpoints {
            let tenant = sim.tenant_keys()[plan.tenant];
            process.ledger.change_endpoint(tenant, &plan.name, EndpointChange::Enable, sim.clock.now()).await.unwrap();
        }
        let horizon = self.horizon();
        let began = sim.clock.passed();
        loop {
            if sim.is_broken() {
                return;
            }
            let (unfinished, wire) = sim.oracle.look().under_way();
            if unfinished == 0 && wire == 0 {
                break;
            }
            if Duration::from_millis(sim.clock.passed() - began) > horizon {
                // What is missing in the ledger cannot end.
                audit::all(&sim, &process.ledger, &mut self.dice);
                let mut model = sim.oracle.look();
                let first = model.rows.iter().find(|row| !row.state.is_terminal());
                let told = first.map(|row| format!("{:?} is {:?} in attempt {}", row.id, row.state, row.number));
                model.broken("liveness", format!("{unfinished} not at their end after {horizon:?}: {told:?}"));
                return;
            }
            pass(sim.scenario.poll_every / 2).await;
        }
        self.stop_at_rest(process).await;
    }

    async fn stop_at_rest(&mut self, process: Process) {
        let sim = Arc::clone(&self.sim);
        audit::all(&sim, &process.ledger, &mut self.dice);
        let Process { ledger, stop, dispatcher, slots } = process;
        sim.oracle.look().draining = true;
        stop.drain.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(5), dispatcher).await;
        let held = slots.in_flight();
        if ended.is_err() || held > 0 {
            sim.oracle.look().broken("liveness", format!("a stop at rest does not end, {held} slots are held"));
        }
        let _ = ledger.close().await;
    }

    /// The latest due time, the longest lease that a clock which was set may have left, and room for each to be made.
    fn horizon(&self) -> Duration {
        let model = self.sim.oracle.look();
        let due = model.latest().map_or(Duration::ZERO, |due| due.since(model.now()));
        let each = Duration::from_secs(3) * u32::try_from(model.rows.len()).unwrap();
        // After a jump, leases last ten minutes, and one that only ends something a minute.
        let leases = Duration::from_secs(600 + 60);
        due + leases + self.sim.scenario.poll_every * 4 + each
    }
}

fn declare(sim: &Arc<Sim>, ledger: &SimLedger, slots: &Slots, targets: &Targets) {
    let scenario = &sim.scenario;
    let tenants = (0..scenario.tenants).map(|tenant| DeclaredTenant {
        name: tenant_name(tenant),
        sources: Vec::new(),
        endpoints: scenario
            .of_tenant(tenant)
            .map(|at| DeclaredEndpoint {
                name: scenario.endpoints[at].name.clone(),
                host: format!("host-{at}.example"),
                generated_secret: None,
                scrub: false,
            })
            .collect(),
    });
    let directory = block_on(ledger.declare(Declaration { tenants: tenants.collect() }, sim.clock.now())).unwrap();
    let tenant_of = |tenant: usize| &directory.tenants[&tenant_name(tenant)];
    let keys: Vec<EndpointKey> =
        scenario.endpoints.iter().map(|plan| tenant_of(plan.tenant).endpoints[&plan.name].key).collect();
    *sim.names.lock().unwrap() =
        Names { tenants: (0..scenario.tenants).map(|tenant| tenant_of(tenant).key).collect(), endpoints: keys.clone() };
    let wider = if sim.plant == Some(Plant::CapIgnored) { 3 } else { 0 };
    let caps = scenario.endpoints.iter().zip(&keys).map(|(plan, key)| EndpointCaps {
        endpoint: *key,
        tenant: tenant_of(plan.tenant).key,
        concurrency: plan.concurrency + wider,
        lease_for: plan.lease_for(),
        rate: None,
    });
    slots.configure(caps.collect(), scenario.per_tenant, scenario.total);
    let mut model = sim.oracle.look();
    model.caps = (scenario.per_tenant, scenario.total);
    let mut all = HashMap::new();
    for (plan, key) in scenario.endpoints.iter().zip(&keys) {
        let said = tenant_of(plan.tenant).endpoints[&plan.name].status.clone();
        let known = model.endpoints.get(key).map(|endpoint| endpoint.status.clone());
        if known.as_ref().unwrap_or(&EndpointStatus::Enabled) != &said {
            model.broken("I5", format!("after the start endpoint {} is {said:?}, it was {known:?}", key.0));
        }
        model.endpoints.insert(*key, Endpoint::new(tenant_of(plan.tenant).key, plan, said));
        let advice = match plan.plugin {
            None => Advice::Builtin,
            Some(exports) => {
                let rules = Arc::new(Script { sim: Arc::clone(sim), endpoint: *key, exports });
                Advice::Plugin { live: Arc::new(Live::new(InUse { rules, version: None })), config: "{}".into() }
            }
        };
        let target = Target {
            tenant: tenant_name(plan.tenant),
            name: plan.name.clone(),
            url: format!("https://host-{}.example/in", key.0).parse().unwrap(),
            timeout: plan.timeout,
            terms: plan.terms.clone(),
            order: Order::Free,
            signer: signer(),
            idempotency_header: HeaderName::from_static("idempotency-key"),
            advice,
        };
        all.insert(*key, Way::Push(Arc::new(target)));
    }
    targets.replace(all, HashMap::new());
}
