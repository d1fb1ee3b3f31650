//! What must hold, asked at every step: a shadow of the ledger that is fed by what the verbs asked and were answered,
//! the receiver's journal, and the callers' journal. It knows the rules and none of the code that keeps them.

use crate::scenario::EndpointPlan;
use crate::time::SimClock;
use bytes::Bytes;
use hookgate::clock::{Clock as _, Timestamp};
use hookgate::delivery::{
    Backoff, Decision, DeliveryId, DeliveryState, Disposition, EndpointEffect, EndpointStatus, EventId, Jitter, Name,
    OnAmbiguous, OnPluginFault, Phase, RetryAfter, Terms, TransportKind, Verdict,
};
use hookgate::egress::Outbound;
use hookgate::ledger::{
    Accept, Accepted, Cancelled, Claimed, EndpointChange, EndpointKey, Lease, Redrive, Redriven, ResolveAs, Resolved,
    Settled, Settlement, TenantKey,
};
use hookgate::plugin::Exports;
use hookgate::verify::standard::Signer;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The invariant that does not hold, by its name in the reliability contract, and what was seen.
#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

/// An endpoint as it was declared, and what the ledger has said of it since.
pub struct Endpoint {
    pub tenant: TenantKey,
    pub name: Name,
    pub terms: Terms,
    pub concurrency: u32,
    pub classifies: bool,
    pub transforms: bool,
    pub status: EndpointStatus,
    wire: u32,
}

pub struct Event {
    pub id: EventId,
    pub key: Option<String>,
    pub body: Bytes,
    pub expires_at: Option<Timestamp>,
    remembered_until: Timestamp,
    /// The caller was told.
    pub acked: bool,
}

/// What the receiver did with one request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Answer {
    Status(u16, Option<RetryAfter>),
    Failed(TransportKind, Phase),
    Blocked,
}

struct Sent {
    answer: Option<Answer>,
}

/// One delivery.
pub struct Row {
    pub event: usize,
    pub endpoint: EndpointKey,
    pub id: Option<DeliveryId>,
    pub state: DeliveryState,
    /// Resolved as not sent: it may be redriven after all.
    unsent: bool,
    /// Not before; and not after, as long as there is a slot for it.
    due: Timestamp,
    due_by: Timestamp,
    /// The wait that was decided, whatever the clock was set to since.
    wait: Duration,
    lease_until: Timestamp,
    token: u64,
    pub number: u32,
    pub generation: u32,
    pub revision: u32,
    counted: u32,
    interrupted: u32,
    began_at: Timestamp,
    body: Bytes,
    redrives: HashMap<String, (Option<Bytes>, Redriven)>,
    sent: BTreeMap<u32, Sent>,
    /// Attempts that have ended: outcome and disposition.
    pub ended: BTreeMap<u32, (&'static str, &'static str)>,
    /// Terminal states, by generation.
    terminal: BTreeMap<u32, u32>,
    sequence: Option<u64>,
}

#[derive(Default)]
pub struct Model {
    clock: Arc<SimClock>,
    pub endpoints: HashMap<EndpointKey, Endpoint>,
    pub caps: (u32, u32),
    pub events: Vec<Event>,
    by_event: HashMap<EventId, usize>,
    pub rows: Vec<Row>,
    by_pair: HashMap<(usize, EndpointKey), usize>,
    by_id: HashMap<DeliveryId, usize>,
    keys: HashMap<(TenantKey, String), usize>,
    /// Attempts that the process under way may make, with their tokens.
    handed: HashMap<(DeliveryId, u32), u64>,
    /// What plugins made of events; `None`: no request.
    made: HashMap<(EventId, EndpointKey, u32), Option<Bytes>>,
    /// What plugins made of answers; `None`: they faulted.
    judged: HashMap<(EventId, EndpointKey, u32), Option<Verdict>>,
    wire: u32,
    pub draining: bool,
    pub stopped: bool,
    jumped_at: Option<u64>,
    pub violation: Option<Violation>,
    /// How often what happened: a simulation in which nothing goes wrong proves nothing.
    pub seen: BTreeMap<&'static str, u64>,
    pub trace: Option<Vec<String>>,
}

pub struct Oracle(Mutex<Model>);

/// Notes a line if somebody reads them.
macro_rules! note {
    ($model:expr, $($text:tt)*) => {
        if $model.trace.is_some() {
            let line = format!($($text)*);
            $model.line(&line);
        }
    };
}
pub(crate) use note;

pub fn signer() -> Signer {
    Signer::new(&[hookgate::secret::Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]).unwrap()
}

impl Endpoint {
    pub fn new(tenant: TenantKey, plan: &EndpointPlan, status: EndpointStatus) -> Self {
        let has = |which: fn(Exports) -> bool| plan.plugin.is_some_and(which);
        Endpoint {
            tenant,
            name: plan.name.clone(),
            terms: plan.terms.clone(),
            concurrency: plan.concurrency,
            classifies: has(|exports| exports.classify),
            transforms: has(|exports| exports.transform),
            status,
            wire: 0,
        }
    }
}

impl Oracle {
    pub fn new(clock: Arc<SimClock>, traced: bool) -> Self {
        Oracle(Mutex::new(Model { clock, trace: traced.then(Vec::new), ..Model::default() }))
    }

    pub fn look(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn header<'a>(outbound: &'a Outbound, name: &str) -> &'a str {
    outbound.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

impl Model {
    pub fn line(&mut self, text: &str) {
        let at = self.clock.passed();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9}.{:03} {text}", at / 1000, at % 1000));
        }
    }

    pub fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The first counts: what follows may follow from it.
    pub fn broken(&mut self, invariant: &'static str, what: String) {
        note!(self, "BROKEN {invariant}: {what}");
        self.violation.get_or_insert(Violation { invariant, what });
    }

    fn require(&mut self, holds: bool, invariant: &'static str, what: impl FnOnce() -> String) -> bool {
        if !holds {
            self.broken(invariant, what());
        }
        holds
    }

    /// The process has ended: nothing that it held may be used any more.
    pub fn life_over(&mut self) {
        self.handed.clear();
        self.draining = false;
        self.stopped = false;
    }

    pub fn jumped(&mut self) {
        self.jumped_at = Some(self.clock.passed());
    }

    pub fn row_of(&self, id: DeliveryId) -> Option<&Row> {
        self.by_id.get(&id).map(|at| &self.rows[*at])
    }

    /// Whether the shadow knows which delivery this is.
    pub fn knows(&self, id: DeliveryId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// A delivery is seen for the first time: it belongs to its event and endpoint from now on.
    pub fn name(&mut self, id: DeliveryId, event: EventId, endpoint: EndpointKey) {
        if self.by_id.contains_key(&id) {
            return;
        }
        let found = self.by_event.get(&event).and_then(|event| self.by_pair.get(&(*event, endpoint))).copied();
        let Some(at) = found else {
            return self.broken("I4", format!("{id} is of no event and endpoint that were accepted together"));
        };
        let before = self.rows[at].id.replace(id);
        self.require(before.is_none(), "I4", || format!("{id} and {before:?} are of one event and one endpoint"));
        self.by_id.insert(id, at);
    }

    fn at(&mut self, id: DeliveryId) -> Option<usize> {
        let found = self.by_id.get(&id).copied();
        self.require(found.is_some(), "I4", || format!("{id} is not a delivery that was accepted"));
        found
    }

    // What verbs were asked and answered.

    pub fn accepted(&mut self, asked: &AcceptFacts, answer: Accepted) {
        let now = asked.now;
        let known = asked.key.as_ref().and_then(|key| self.keys.get(&(asked.tenant, key.clone()))).copied();
        note!(self, "accept {:?} -> {answer:?}", asked.key);
        match answer {
            Accepted::TooLateAt(at) => {
                self.require(false, "I4", || format!("nothing is coalesced until {at:?}"));
            }
            Accepted::New(id) => {
                if let Some(first) = known {
                    let holds = now >= self.events[first].remembered_until;
                    self.require(holds, "I3", || format!("{id} is another event of key {:?}", asked.key));
                }
                self.saw("accepted");
                let event = self.events.len();
                self.events.push(Event {
                    id,
                    key: asked.key.clone(),
                    body: asked.body.clone(),
                    expires_at: asked.expires_at,
                    remembered_until: now.plus(asked.window),
                    acked: false,
                });
                let fresh = self.by_event.insert(id, event).is_none();
                self.require(fresh, "I10", || format!("{id} was minted twice"));
                if let Some(key) = &asked.key {
                    self.keys.insert((asked.tenant, key.clone()), event);
                }
                let due = asked.deliver_at.map_or(now, |at| at.max(now));
                for endpoint in &asked.endpoints {
                    let row = Row {
                        event,
                        endpoint: *endpoint,
                        id: None,
                        state: DeliveryState::Pending,
                        unsent: false,
                        due,
                        due_by: due,
                        wait: due.since(now),
                        lease_until: Timestamp::ZERO,
                        token: 0,
                        number: 0,
                        generation: 1,
                        revision: 1,
                        counted: 0,
                        interrupted: 0,
                        began_at: now,
                        body: asked.body.clone(),
                        redrives: HashMap::new(),
                        sent: BTreeMap::new(),
                        ended: BTreeMap::new(),
                        terminal: BTreeMap::new(),
                        sequence: None,
                    };
                    self.by_pair.insert((event, *endpoint), self.rows.len());
                    self.rows.push(row);
                }
            }
            Accepted::Duplicate(id) | Accepted::KeyReused(id) => {
                let first = known.map(|first| &self.events[first]);
                let same = first.is_some_and(|first| first.body == asked.body);
                let holds =
                    first.is_some_and(|first| first.id == id) && same == matches!(answer, Accepted::Duplicate(_));
                self.require(holds, "I3", || format!("{answer:?} for key {:?}", asked.key));
                let until = known.map_or(Timestamp::ZERO, |first| self.events[first].remembered_until);
                let unsure = self.jumped_at.is_some_and(|at| self.clock.passed() < at + 3_600_000);
                self.require(now < until || unsure, "I3", || format!("{answer:?} long after its window"));
                self.saw(if same { "duplicate" } else { "key reused" });
            }
        }
    }

    /// The caller was told so.
    pub fn acknowledged(&mut self, id: EventId) {
        match self.by_event.get(&id).copied() {
            Some(event) => self.events[event].acked = true,
            None => self.broken("I1", format!("{id} was acknowledged and never committed")),
        }
    }

    /// A delivery that was accepted under way.
    pub fn born(&mut self, claimed: &Claimed) {
        self.saw("born leased");
        self.begun(claimed, true);
    }

    pub fn claimed(&mut self, claimed: &Claimed) {
        self.saw("claimed");
        self.begun(claimed, false);
    }

    fn begun(&mut self, claimed: &Claimed, born: bool) {
        let Claimed { lease, sequence, event, idempotency_key, .. } = claimed;
        let id = lease.delivery;
        self.name(id, event.id, lease.endpoint);
        let Some(at) = self.at(id) else { return };
        note!(self, "{} {id} number {} token {}", if born { "born" } else { "claim" }, lease.number, lease.token);
        let now = lease.started_at;
        let row = &self.rows[at];
        let (state, due, closed) = (row.state, row.due, self.endpoints[&lease.endpoint].status.clone());
        match state {
            DeliveryState::Pending => {}
            DeliveryState::Delivered => self.broken("I6", format!("{id} is begun after it was delivered")),
            DeliveryState::InFlight => self.broken("I12", format!("{id} is begun while it is under way")),
            _ => self.broken("I5", format!("{id} is begun from {state:?}")),
        }
        self.require(due <= now, "I16", || format!("{id} is begun at {now:?}, and due at {due:?}"));
        self.require(closed.is_open(now), closed_rule(&closed), || {
            format!("{id} is begun, its endpoint is {closed:?}")
        });
        self.check_lease(at, lease, born);
        let row = &mut self.rows[at];
        row.state = DeliveryState::InFlight;
        row.token = lease.token;
        row.number = lease.number;
        row.lease_until = lease.until;
        let same_sequence = row.sequence.replace(*sequence).is_none_or(|before| before == *sequence);
        let body = row.body.clone();
        let first = &self.events[self.rows[at].event];
        let key = first.key.clone().unwrap_or_else(|| first.id.to_string());
        self.require(same_sequence, "I10", || format!("{id} has another sequence {sequence}"));
        self.require(key == **idempotency_key, "I10", || format!("{id} has idempotency key {idempotency_key}"));
        self.require(body == event.body, "I9", || format!("{id} is begun with another body"));
    }

    /// What a lease says of the row's history.
    fn check_lease(&mut self, at: usize, lease: &Lease, born: bool) {
        let row = &self.rows[at];
        let said = (lease.number, lease.history.counted, lease.history.interrupted_before);
        let known = (row.number + 1, row.counted + 1, row.interrupted);
        let times = (lease.generation, lease.revision, lease.history.began_at, lease.history.expires_at);
        let known_times = (row.generation, row.revision, row.began_at, self.events[row.event].expires_at);
        let fenced = born || lease.token > row.token;
        let id = lease.delivery;
        self.require(said == known, "I8", || format!("{id} begins number, count, row {said:?} and not {known:?}"));
        self.require(times == known_times, "I13", || format!("{id} begins {times:?} and not {known_times:?}"));
        self.require(fenced, "I12", || format!("{id} is given token {} again", lease.token));
    }

    /// From now on the process may send it.
    pub fn hand_over(&mut self, lease: &Lease) {
        self.handed.insert((lease.delivery, lease.number), lease.token);
    }

    pub fn settled(&mut self, asked: &Settlement, answer: Settled) {
        let Settlement { lease, record, decision, now, pulse: _ } = asked;
        let id = lease.delivery;
        let Some(at) = self.at(id) else { return };
        note!(self, "settle {id} number {} {} {:?} -> {answer:?}", lease.number, record.outcome, decision);
        let row = &self.rows[at];
        let holds = row.state == DeliveryState::InFlight && row.token == lease.token;
        if answer == Settled::LeaseLost {
            self.saw("lease lost");
            self.require(!holds, "I12", || format!("{id} is held by token {} and was refused", lease.token));
            return;
        }
        let (stands, number) = ((row.state, row.token), row.number);
        if !self.require(holds, "I12", || format!("{id} was settled with token {} at {stands:?}", lease.token)) {
            return;
        }
        self.require(lease.number == number, "I8", || format!("{id} settles number {} of {number}", lease.number));
        self.check_record(at, asked);
        self.saw(record.outcome);
        self.saw(decision.disposition.as_str());
        let released = matches!(decision.disposition, Disposition::Released { .. });
        let row = &mut self.rows[at];
        if !released {
            row.counted += 1;
            row.interrupted = if record.outcome == "interrupted" { row.interrupted + 1 } else { 0 };
        }
        row.ended.insert(number, (record.outcome, decision.disposition.as_str()));
        match &decision.disposition {
            Disposition::RetryAt { due, .. } | Disposition::Released { due, .. } => {
                row.state = DeliveryState::Pending;
                (row.due, row.due_by, row.wait) = (*due, *due, due.since(*now));
            }
            Disposition::Delivered { .. } => self.over(at, DeliveryState::Delivered),
            Disposition::Skipped(_) => self.over(at, DeliveryState::Skipped),
            Disposition::Dead(reason) => {
                self.require(!reason.as_str().is_empty(), "I15", || format!("{id} is dead without a reason"));
                if ["crash_loop", "ambiguous", "plugin_fault"].contains(&reason.as_str()) {
                    self.saw(match reason.as_str() {
                        "crash_loop" => "dead: crash_loop",
                        "ambiguous" => "dead: ambiguous",
                        _ => "dead: plugin_fault",
                    });
                }
                self.over(at, DeliveryState::Dead);
            }
            Disposition::Expired(_) => self.over(at, DeliveryState::Expired),
        }
        self.affect(lease.endpoint, decision.endpoint.as_ref(), *now);
    }

    fn over(&mut self, at: usize, state: DeliveryState) {
        let row = &mut self.rows[at];
        row.state = state;
        let times = row.terminal.entry(row.generation).or_default();
        *times += 1;
        // A resolution closes what was dead: the one transition between two terminal states.
        let holds = *times == 1 || state == DeliveryState::Resolved;
        let (id, generation) = (row.id, row.generation);
        self.require(holds, "I26", || format!("{id:?} ended twice in generation {generation}"));
    }

    /// A pause shortens no longer one, and what is disabled stays so.
    fn affect(&mut self, endpoint: EndpointKey, effect: Option<&EndpointEffect>, _now: Timestamp) {
        let Some(effect) = effect else { return };
        let Some(endpoint) = self.endpoints.get_mut(&endpoint) else { return };
        let before = match &endpoint.status {
            EndpointStatus::Enabled => Timestamp::ZERO,
            EndpointStatus::Paused { until, .. } => until.unwrap_or(Timestamp::MAX),
            EndpointStatus::Disabled { .. } => return,
        };
        match effect {
            EndpointEffect::Disable { why } => {
                endpoint.status = EndpointStatus::Disabled { why: why.to_string() };
                self.saw("disabled by an answer");
            }
            EndpointEffect::PauseUntil { until, why } if *until > before => {
                endpoint.status = EndpointStatus::Paused { until: Some(*until), why: why.to_string() };
                self.saw("paused by an answer");
            }
            EndpointEffect::PauseUntil { .. } => {}
        }
    }

    /// What was decided, held against what happened.
    fn check_record(&mut self, at: usize, asked: &Settlement) {
        let Settlement { lease, record, decision, now, pulse: _ } = asked;
        let row = &self.rows[at];
        let id = lease.delivery;
        let sent = row.sent.get(&lease.number).map(|sent| sent.answer);
        let tried = matches!(record.outcome, "answered" | "unreachable" | "timed_out" | "refused");
        let unsent = matches!(record.outcome, "released" | "skipped" | "faulted");
        self.require(!tried || sent.is_some(), "I7", || format!("{id} ends {} without a request", record.outcome));
        self.require(!unsent || sent.is_none(), "I8", || format!("{id} ends {} after its request", record.outcome));
        let (event, expires_at) = (self.events[self.rows[at].event].id, self.events[self.rows[at].event].expires_at);
        let endpoint = &self.endpoints[&lease.endpoint];
        let (terms, classifies) = (endpoint.terms.clone(), endpoint.classifies);
        let by_age = terms.retry.max_age.map(|age| self.rows[at].began_at.plus(age));
        let end = [by_age, expires_at].into_iter().flatten().min();
        if matches!(decision.disposition, Disposition::Expired(_)) {
            self.require(end.is_some_and(|end| end <= *now), "I5", || {
                format!("{id} expires at {now:?} and not {end:?}")
            });
            return;
        }
        let counted = self.rows[at].counted + 1;
        let again = matches!(decision.disposition, Disposition::RetryAt { .. });
        let max = terms.retry.max_attempts;
        self.require(!again || counted < max, "I8", || format!("{id} is tried again after {counted} of {max}"));
        if record.outcome == "interrupted" && self.rows[at].interrupted + 1 >= 3 {
            self.require(!again, "I8", || format!("{id} is tried again after three interruptions in a row"));
        }
        let Some(Some(answer)) = sent.filter(|_| tried) else { return };
        let judged = self.judged.get(&(event, lease.endpoint, lease.number)).cloned();
        let meaning = meaning(answer, judged.filter(|_| classifies), terms.on_plugin_fault);
        let case = Case { answer, meaning, terms: &terms, counted, now: *now, end };
        if let Err((invariant, wanted)) = case.agrees(decision, record.status) {
            self.broken(invariant, format!("{id} after {answer:?}: {decision:?}, and not {wanted}"));
        }
    }

    /// Leases that were taken over: by then their time must have been over.
    pub fn rescued(&mut self, expired_by: Timestamp, leases: &[Lease]) {
        for lease in leases {
            let Some(at) = self.at(lease.delivery) else { continue };
            note!(self, "rescue {} number {} token {}", lease.delivery, lease.number, lease.token);
            self.saw("rescued");
            let row = &self.rows[at];
            let (state, until, token) = (row.state, row.lease_until, row.token);
            let id = lease.delivery;
            self.require(state == DeliveryState::InFlight, "I12", || format!("{id} was rescued from {state:?}"));
            self.require(until <= expired_by, "I12", || {
                format!("{id} was taken over, its lease lasts until {until:?}")
            });
            self.require(lease.token > token, "I12", || format!("{id} was rescued under its old token {token}"));
            let row = &mut self.rows[at];
            row.token = lease.token;
            row.lease_until = lease.until;
        }
    }

    /// Pending deliveries that were leased in order to end them.
    pub fn ended_unsent(&mut self, leases: &[Lease], now: Timestamp) {
        for lease in leases {
            let Some(at) = self.at(lease.delivery) else { continue };
            note!(self, "overdue {} number {} token {}", lease.delivery, lease.number, lease.token);
            self.saw("overdue");
            let state = self.rows[at].state;
            let id = lease.delivery;
            self.require(state == DeliveryState::Pending, "I5", || {
                format!("{id} was overdue at {now:?} from {state:?}")
            });
            self.check_lease(at, lease, false);
            let row = &mut self.rows[at];
            row.state = DeliveryState::InFlight;
            row.token = lease.token;
            row.number = lease.number;
            row.lease_until = lease.until;
        }
    }

    pub fn reanchored(&mut self, leases_until: Timestamp, longest: &[(EndpointKey, Duration)], now: Timestamp) {
        for row in &mut self.rows {
            if row.state == DeliveryState::InFlight {
                row.lease_until = leases_until;
            }
            if let Some((_, longest)) = longest.iter().find(|(endpoint, _)| *endpoint == row.endpoint) {
                row.due = row.due.min(now.plus(*longest));
                row.due_by = row.due_by.min(now.plus(row.wait.max(*longest)));
            }
        }
    }

    pub fn redriven(&mut self, asked: &Redrive, now: Timestamp, answer: Redriven) {
        let id = asked.delivery;
        let Some(at) = self.at(id) else { return };
        note!(self, "redrive {id} {:?} -> {answer:?}", asked.request);
        let row = &self.rows[at];
        let request = asked.request.as_ref().map(|request| request.as_str().to_owned());
        let with = asked.payload.is_some();
        if let Some((payload, before)) = request.as_ref().and_then(|request| row.redrives.get(request)).cloned() {
            self.saw("redrive repeated");
            let wanted = if payload == asked.payload { before } else { Redriven::RequestReused };
            self.require(answer == wanted, "I13", || format!("{id}: {answer:?} to a repeated request, not {wanted:?}"));
            return;
        }
        let (state, generation, revision, unsent) = (row.state, row.generation, row.revision, row.unsent);
        let expired = self.events[row.event].expires_at.is_some_and(|at| at <= now);
        let wanted = match state {
            DeliveryState::Resolved if !unsent => Redriven::NotDead(state),
            DeliveryState::Dead | DeliveryState::Resolved if expired => Redriven::Expired,
            DeliveryState::Dead | DeliveryState::Resolved => {
                Redriven::Done { generation: generation + 1, revision: revision + u32::from(with) }
            }
            state => Redriven::NotDead(state),
        };
        let holds =
            self.require(answer == wanted, "I13", || format!("{id}: {answer:?} from {state:?}, not {wanted:?}"));
        if let Redriven::Done { generation, revision } = answer
            && holds
        {
            self.saw("redriven");
            let row = &mut self.rows[at];
            row.state = DeliveryState::Pending;
            (row.generation, row.revision) = (generation, revision);
            (row.counted, row.interrupted) = (0, 0);
            (row.began_at, row.due, row.due_by, row.wait) = (now, now, now, Duration::ZERO);
            if let Some(body) = &asked.payload {
                row.body = body.clone();
            }
            if let Some(request) = request {
                row.redrives.insert(request, (asked.payload.clone(), answer));
            }
        }
    }

    pub fn cancelled(&mut self, id: DeliveryId, answer: Cancelled) {
        let Some(at) = self.at(id) else { return };
        note!(self, "cancel {id} -> {answer:?}");
        let state = self.rows[at].state;
        let wanted = if state == DeliveryState::Pending { Cancelled::Done } else { Cancelled::NotPending(state) };
        if self.require(answer == wanted, "I5", || format!("{id}: cancel from {state:?} is {answer:?}"))
            && answer == Cancelled::Done
        {
            self.saw("cancelled");
            self.over(at, DeliveryState::Cancelled);
        }
    }

    pub fn resolved(&mut self, id: DeliveryId, how: ResolveAs, answer: Resolved) {
        let Some(at) = self.at(id) else { return };
        note!(self, "resolve {id} -> {answer:?}");
        let state = self.rows[at].state;
        let wanted = if state == DeliveryState::Dead { Resolved::Done } else { Resolved::NotDead(state) };
        if self.require(answer == wanted, "I5", || format!("{id}: resolve from {state:?} is {answer:?}"))
            && answer == Resolved::Done
        {
            self.saw("resolved");
            self.rows[at].unsent = how == ResolveAs::NotSent;
            self.over(at, DeliveryState::Resolved);
        }
    }

    pub fn changed(&mut self, key: EndpointKey, change: &EndpointChange, answer: &EndpointStatus) {
        note!(self, "endpoint {} {change:?} -> {answer:?}", key.0);
        let Some(endpoint) = self.endpoints.get_mut(&key) else { return };
        let disabled = matches!(endpoint.status, EndpointStatus::Disabled { .. });
        let wanted = match change {
            EndpointChange::Pause { .. } | EndpointChange::Resume if disabled => endpoint.status.clone(),
            EndpointChange::Pause { until, why } => EndpointStatus::Paused { until: *until, why: why.clone() },
            EndpointChange::Disable { why } => EndpointStatus::Disabled { why: why.clone() },
            EndpointChange::Resume | EndpointChange::Enable => EndpointStatus::Enabled,
        };
        endpoint.status = wanted.clone();
        self.require(*answer == wanted, "I5", || format!("endpoint {}: {answer:?} and not {wanted:?}", key.0));
    }

    // What plugins said.

    pub fn transformed(&mut self, event: EventId, endpoint: EndpointKey, number: u32, body: Option<Bytes>) {
        self.saw(if body.is_some() { "transformed" } else { "not transformed" });
        self.made.insert((event, endpoint, number), body);
    }

    pub fn classified(&mut self, event: EventId, endpoint: EndpointKey, number: u32, verdict: Option<Verdict>) {
        self.judged.insert((event, endpoint, number), verdict);
    }

    // What reached the network.

    /// A request begins. Gives its delivery and number, if it is one that may be.
    pub fn request(&mut self, outbound: &Outbound) -> Option<(DeliveryId, u32)> {
        self.saw("request");
        let now = self.now();
        let key = EndpointKey(outbound.pool);
        let event: EventId = header(outbound, "hookgate-event").parse().ok()?;
        let number: u32 = header(outbound, "hookgate-attempt").parse().ok()?;
        note!(self, "request {} of {event} number {number}", header(outbound, "webhook-id"));
        let pair = self.by_event.get(&event).and_then(|event| self.by_pair.get(&(*event, key))).copied();
        let Some((at, id)) = pair.and_then(|at| Some((at, self.rows[at].id?))) else {
            self.broken("I23", format!("a request for {event} to endpoint {}, which no commit backs", key.0));
            return None;
        };
        let row = &self.rows[at];
        let (state, current, token) = (row.state, row.number, row.token);
        let body = row.body.clone();
        let first = &self.events[row.event];
        let idempotency = first.key.clone().unwrap_or_else(|| first.id.to_string());
        let (expires, began, sequence) = (first.expires_at, row.began_at, row.sequence);
        let again = row.sent.contains_key(&number);
        let handed = self.handed.get(&(id, number)).copied();
        self.require(!again, "I7", || format!("{id} number {number} makes a second request"));
        self.require(state != DeliveryState::Delivered, "I6", || format!("{id} is sent after it was delivered"));
        self.require(state == DeliveryState::InFlight, "I7", || format!("{id} is sent, and is {state:?}"));
        self.require(handed.is_some(), "I23", || {
            format!("{id} number {number} is sent, its start was never confirmed")
        });
        let held = (current, Some(token)) == (number, handed);
        self.require(held || handed.is_none(), "I12", || format!("{id} is sent by token {handed:?}, {token} holds it"));
        let id_sent = header(outbound, "webhook-id");
        self.require(id_sent == id.to_string(), "I10", || format!("{id} is sent as {id_sent}"));
        let key_sent = header(outbound, "idempotency-key");
        self.require(key_sent == idempotency, "I10", || format!("{id} is sent under key {key_sent}"));
        let sequence_sent = header(outbound, "hookgate-sequence").parse().ok();
        self.require(sequence_sent == sequence, "I10", || format!("{id} is sent with sequence {sequence_sent:?}"));
        let stamp = header(outbound, "webhook-timestamp").to_owned();
        self.require(stamp == now.as_seconds().to_string(), "I11", || format!("{id} is stamped {stamp} at {now:?}"));
        let signature = signer().headers(id_sent, now, &outbound.body);
        let same = outbound.headers.get("webhook-signature") == Some(&signature);
        self.require(same, "I11", || format!("{id} has a signature that is not of this attempt"));
        let endpoint = &self.endpoints[&key];
        let (status, transforms) = (endpoint.status.clone(), endpoint.transforms);
        let age = endpoint.terms.retry.max_age;
        self.require(status.is_open(now), closed_rule(&status), || format!("{id} is sent, its endpoint is {status:?}"));
        let over = [expires, age.map(|age| began.plus(age))].into_iter().flatten().min();
        self.require(over.is_none_or(|over| now < over), "I5", || format!("{id} is sent after its end at {over:?}"));
        let made = if transforms { self.made.get(&(event, key, number)).cloned() } else { Some(Some(body)) };
        let same = made.is_some_and(|made| made.is_some_and(|body| body == outbound.body));
        self.require(same, "I9", || format!("{id} number {number} is sent with a body that is not its own"));
        self.require(!self.draining, "I23", || format!("{id} is sent while the process ends"));
        self.require(!self.stopped, "I25", || format!("{id} is sent after the ledger has stopped"));
        self.rows[at].sent.insert(number, Sent { answer: None });
        Some((id, number))
    }

    /// A request is on the wire from here on.
    pub fn on_wire(&mut self, key: EndpointKey) {
        self.wire += 1;
        let Some(endpoint) = self.endpoints.get_mut(&key) else { return };
        endpoint.wire += 1;
        let (wire, cap, tenant) = (endpoint.wire, endpoint.concurrency, endpoint.tenant);
        let of_tenant: u32 = self.endpoints.values().filter(|e| e.tenant == tenant).map(|e| e.wire).sum();
        let (caps, total) = (self.caps, self.wire);
        let holds = wire <= cap && of_tenant <= caps.0 && total <= caps.1;
        self.require(holds, "I19", || {
            format!("{wire} of {cap} on the wire to endpoint {}, {of_tenant} and {total} of {caps:?}", key.0)
        });
    }

    pub fn off_wire(&mut self, key: EndpointKey) {
        self.wire -= 1;
        if let Some(endpoint) = self.endpoints.get_mut(&key) {
            endpoint.wire -= 1;
        }
    }

    pub fn answered(&mut self, (id, number): (DeliveryId, u32), answer: Answer) {
        note!(self, "answer {id} number {number} {answer:?}");
        self.saw(match answer {
            Answer::Status(200..=299, _) => "2xx",
            Answer::Status(_, Some(_)) => "retry-after",
            Answer::Status(410, _) => "410",
            Answer::Status(..) => "other status",
            Answer::Failed(TransportKind::Timeout, Phase::AfterWrite) => "stalled",
            Answer::Failed(_, Phase::AfterWrite) => "reset",
            Answer::Failed(_, Phase::BeforeWrite) => "unreachable before a byte",
            Answer::Blocked => "blocked",
        });
        let at = self.by_id[&id];
        if let Some(sent) = self.rows[at].sent.get_mut(&number) {
            sent.answer = Some(answer);
        }
    }

    /// At rest.
    pub fn check_rest(&mut self) {
        for at in 0..self.rows.len() {
            let row = &self.rows[at];
            let id = row.id;
            let delivered = |number: &u32| row.ended.get(number).is_some_and(|(_, what)| *what == "delivered");
            let last = row.sent.keys().last().copied();
            let bad = row.sent.keys().find(|number| delivered(number) && Some(**number) != last).copied();
            let numbers: Vec<u32> = row.ended.keys().copied().collect();
            let open = u32::from(row.state == DeliveryState::InFlight);
            let gapless = numbers == (1..=row.number - open).collect::<Vec<_>>();
            let generations: BTreeSet<u32> = row.terminal.keys().copied().collect();
            let whole = !row.state.is_terminal() || generations == (1..=row.generation).collect();
            let (generation, state) = (row.generation, row.state);
            self.require(bad.is_none(), "I24", || format!("{id:?} was sent after number {bad:?} was a success"));
            self.require(gapless, "I8", || format!("{id:?} has attempts {numbers:?}"));
            self.require(whole, "I26", || format!("{id:?} is {state:?} in {generation}, ended in {generations:?}"));
        }
    }

    /// Deliveries that are not at their end, and requests that are not.
    pub fn under_way(&self) -> (usize, u32) {
        (self.rows.iter().filter(|row| !row.state.is_terminal()).count(), self.wire)
    }

    /// The latest that anything pending is due at.
    pub fn latest(&self) -> Option<Timestamp> {
        let pending = self.rows.iter().filter(|row| row.state == DeliveryState::Pending);
        pending.map(|row| row.due_by).max()
    }
}

/// What is asked of an acceptance, taken before the verb consumes it.
pub struct AcceptFacts {
    pub tenant: TenantKey,
    pub key: Option<String>,
    pub body: Bytes,
    pub endpoints: Vec<EndpointKey>,
    pub window: Duration,
    pub deliver_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub now: Timestamp,
}

impl AcceptFacts {
    pub fn of(accept: &Accept) -> Self {
        let event = &accept.event;
        AcceptFacts {
            tenant: accept.tenant,
            key: event.key.clone(),
            body: event.body.clone(),
            endpoints: accept.deliveries.iter().map(|new| new.endpoint).collect(),
            window: event.dedup.as_ref().map_or(Duration::ZERO, |dedup| dedup.window),
            deliver_at: event.deliver_at,
            expires_at: event.expires_at,
            now: accept.now,
        }
    }
}

/// Which rule a request to a closed endpoint breaks.
fn closed_rule(status: &EndpointStatus) -> &'static str {
    match status {
        EndpointStatus::Disabled { .. } => "I17",
        EndpointStatus::Enabled | EndpointStatus::Paused { .. } => "I16",
    }
}

/// What an answer means, by the contract.
enum Meaning {
    Delivered,
    Dead,
    /// With the wait that a plugin wished for.
    Again(Option<Duration>),
}

fn meaning(answer: Answer, judged: Option<Option<Verdict>>, on_fault: OnPluginFault) -> Meaning {
    let builtin = match answer {
        Answer::Status(200..=299, _) => Meaning::Delivered,
        Answer::Status(408 | 425 | 429 | 500..=599, _) | Answer::Failed(..) => Meaning::Again(None),
        Answer::Status(..) | Answer::Blocked => Meaning::Dead,
    };
    match (answer, judged) {
        (Answer::Blocked, _) | (_, None) => builtin,
        (_, Some(Some(Verdict::Delivered { .. }))) => Meaning::Delivered,
        (_, Some(Some(Verdict::Terminal(_)))) => Meaning::Dead,
        (_, Some(Some(Verdict::Retryable(hint)))) => Meaning::Again(hint.after),
        (_, Some(None)) => match on_fault {
            OnPluginFault::Default => builtin,
            OnPluginFault::Retry => Meaning::Again(None),
            OnPluginFault::Dead => Meaning::Dead,
        },
    }
}

/// One decision, looked at from the contract's side.
struct Case<'a> {
    answer: Answer,
    meaning: Meaning,
    terms: &'a Terms,
    /// With this attempt.
    counted: u32,
    now: Timestamp,
    end: Option<Timestamp>,
}

const DAY: Duration = Duration::from_secs(86_400);

impl Case<'_> {
    fn agrees(&self, decision: &Decision, status: Option<u16>) -> Result<(), (&'static str, &'static str)> {
        let Case { answer, meaning, terms, counted, now, end } = self;
        let told = match answer {
            Answer::Status(status, _) => Some(*status),
            Answer::Failed(..) | Answer::Blocked => None,
        };
        if told != status {
            return Err(("I7", "the status that was answered"));
        }
        let ambiguous = matches!(answer, Answer::Failed(_, Phase::AfterWrite));
        let asked = match answer {
            Answer::Status(429 | 503, Some(RetryAfter::Delay(wait))) => Some(*wait),
            Answer::Status(429 | 503, Some(RetryAfter::At(at))) => Some(at.since(*now)),
            Answer::Status(..) | Answer::Failed(..) | Answer::Blocked => None,
        };
        let asked = asked.map(|wait| wait.min(DAY)).filter(|wait| !wait.is_zero());
        match (meaning, &decision.disposition) {
            (Meaning::Delivered, Disposition::Delivered { .. }) => return Ok(()),
            (Meaning::Delivered, _) => return Err(("I24", "delivered")),
            (Meaning::Dead, Disposition::Dead(_)) => {}
            (Meaning::Dead, _) => return Err(("I5", "dead")),
            (Meaning::Again(_), Disposition::Dead(reason)) if ambiguous && terms.on_ambiguous == OnAmbiguous::Hold => {
                return if reason.as_str() == "ambiguous" { Ok(()) } else { Err(("I15", "ambiguous")) };
            }
            (Meaning::Again(_), _) if ambiguous && terms.on_ambiguous == OnAmbiguous::Hold => {
                return Err(("I5", "held, since it may have been received"));
            }
            (Meaning::Again(_), Disposition::Dead(_)) if *counted >= terms.retry.max_attempts => {}
            (Meaning::Again(after), Disposition::RetryAt { due, .. }) => {
                let step = match &terms.retry.backoff {
                    Backoff::Ladder(waits) => {
                        let rung = usize::try_from(*counted - 1).unwrap().min(waits.len() - 1);
                        waits[rung]
                    }
                    Backoff::Exponential { base, factor, cap } => {
                        base.mul_f64(factor.powi(i32::try_from(*counted - 1).unwrap())).min(*cap)
                    }
                };
                let least = match terms.retry.jitter {
                    Jitter::None => step,
                    Jitter::Equal => step / 2,
                    Jitter::Full => Duration::ZERO,
                };
                let week = DAY * 7;
                let (least, most) = after.map_or((least, step), |after| (after.min(week), after.min(week)));
                let floor = asked.unwrap_or_default();
                let cut = |at: Timestamp| end.map_or(at, |end| at.min(end.max(*now)));
                // Waits are cut to whole milliseconds.
                let earliest = cut(now.plus(least.max(floor))).minus(Duration::from_millis(1));
                if *due < earliest || *due > cut(now.plus(most.max(floor))) {
                    return Err(("I16", "due at the later of its step and what was asked for"));
                }
            }
            (Meaning::Again(_), _) => return Err(("I5", "another try")),
        }
        let gone = matches!((answer, meaning), (Answer::Status(410, _), Meaning::Dead));
        match (gone, asked, &decision.endpoint) {
            (true, _, Some(EndpointEffect::Disable { .. })) | (false, None, _) => Ok(()),
            (true, ..) => Err(("I17", "the endpoint disabled")),
            (false, Some(wait), Some(EndpointEffect::PauseUntil { until, .. })) if *until >= now.plus(wait) => Ok(()),
            // A plugin that pauses the endpoint has said until when.
            (false, Some(_), Some(EndpointEffect::PauseUntil { .. })) if matches!(meaning, Meaning::Again(Some(_))) => {
                Ok(())
            }
            (false, Some(_), _) => Err(("I16", "the endpoint paused")),
        }
    }
}
