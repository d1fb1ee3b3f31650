//! The ledger read back, as a person would, and held against what the oracle knows.

use crate::dice::Dice;
use crate::ledger::{SimLedger, block_on};
use crate::world::Sim;
use hookgate::delivery::{DeliveryId, DeliveryState, EventId};
use hookgate::ledger::{
    DeliveryFilter, DeliveryRow, EventFilter, Operations as _, PageRequest, Records as _, Redrive, Redriven, TenantKey,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Deliveries of one seed whose attempts are read one by one.
const DETAILS: usize = 4;

const PAGE: u32 = 200;

fn deliveries(ledger: &SimLedger, tenant: TenantKey) -> Vec<DeliveryRow> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = PageRequest { limit: PAGE, cursor };
        let page = block_on(ledger.deliveries(tenant, &DeliveryFilter::default(), &page)).unwrap();
        all.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return all;
        }
    }
}

/// I14: what is counted is what a query counts.
pub fn counts(sim: &Sim, ledger: &SimLedger) {
    let rows: Vec<DeliveryRow> = sim.tenant_keys().into_iter().flat_map(|tenant| deliveries(ledger, tenant)).collect();
    let count = |state| u64::try_from(rows.iter().filter(|row| row.state == state).count()).unwrap();
    let queried = (count(DeliveryState::Pending), count(DeliveryState::InFlight), count(DeliveryState::Dead));
    let gauges = ledger.gauges();
    let told = (gauges.pending, gauges.in_flight, gauges.dead);
    if told != queried {
        sim.oracle
            .look()
            .broken("I14", format!("pending, in flight and dead are {queried:?}, the gauges say {told:?}"));
    }
}

/// I21: what is not yours is not there.
pub fn foreign(sim: &Sim, ledger: &SimLedger, owner: TenantKey, id: DeliveryId) {
    for tenant in sim.tenant_keys().into_iter().filter(|tenant| *tenant != owner) {
        let found = block_on(ledger.delivery(tenant, id)).unwrap();
        if found.is_some() {
            sim.oracle.look().broken("I21", format!("tenant {} reads {id} of tenant {}", tenant.0, owner.0));
        }
        sim.oracle.look().saw("foreign look");
    }
}

/// Everything, at rest.
pub fn all(sim: &Sim, ledger: &SimLedger, dice: &mut Dice) {
    counts(sim, ledger);
    let mut seen: HashSet<(EventId, u32)> = HashSet::new();
    let mut events: HashSet<EventId> = HashSet::new();
    let mut ids = Vec::new();
    for tenant in sim.tenant_keys() {
        let mut cursor = None;
        loop {
            let page = PageRequest { limit: PAGE, cursor };
            let page = block_on(ledger.events(tenant, &EventFilter::default(), &page)).unwrap();
            events.extend(page.items.iter().map(|event| event.id));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let mut sequences: HashMap<u32, BTreeSet<u64>> = HashMap::new();
        for row in deliveries(ledger, tenant) {
            let Some(key) = sim.endpoint_key(tenant, &row.endpoint) else { continue };
            let mut model = sim.oracle.look();
            model.name(row.id, row.event, key);
            if !seen.insert((row.event, key.0)) {
                model.broken("I4", format!("{} has two deliveries to endpoint {}", row.event, key.0));
            }
            if !sequences.entry(key.0).or_default().insert(row.sequence) {
                model.broken("I10", format!("two deliveries to endpoint {} have sequence {}", key.0, row.sequence));
            }
            if row.state == DeliveryState::Dead && row.reason.as_deref().is_none_or(str::is_empty) {
                model.broken("I15", format!("{} is dead without a reason", row.id));
            }
            let known = model.row_of(row.id).map(|row| (row.state, row.generation, row.revision, row.number));
            let told = (row.state, row.generation, row.revision, row.attempt_count);
            if known.is_some_and(|known| known != told) {
                let delivered = known.is_some_and(|known| known.0 == DeliveryState::Delivered);
                let rule = if delivered { "I6" } else { "I5" };
                model.broken(rule, format!("{} is {told:?} in the ledger, and {known:?} by its verbs", row.id));
            }
            ids.push((tenant, row.id));
        }
    }
    let mut model = sim.oracle.look();
    let missing = model.events.iter().find(|event| !events.contains(&event.id)).map(|event| (event.id, event.acked));
    if let Some((id, acked)) = missing {
        model.broken("I1", format!("{id} is not in the ledger; acknowledged: {acked}"));
    }
    let ours: HashSet<EventId> = model.events.iter().map(|event| event.id).collect();
    if let Some(id) = events.iter().find(|id| !ours.contains(id)) {
        model.broken("I23", format!("{id} is in the ledger, and no verb said so"));
    }
    let lacks = model.rows.iter().find_map(|row| {
        let event = model.events[row.event].id;
        (!seen.contains(&(event, row.endpoint.0))).then_some((event, row.endpoint))
    });
    if let Some((event, endpoint)) = lacks {
        model.broken("I4", format!("{event} has no delivery to endpoint {}", endpoint.0));
    }
    model.check_rest();
    drop(model);
    for _ in 0..DETAILS.min(ids.len()) {
        let (tenant, id) = *dice.pick(&ids);
        attempts(sim, ledger, tenant, id);
    }
    if let Some((owner, id)) = ids.first() {
        foreign(sim, ledger, *owner, *id);
        foreign_change(sim, ledger, *owner, *id);
    }
}

/// I21 for verbs.
fn foreign_change(sim: &Sim, ledger: &SimLedger, owner: TenantKey, id: DeliveryId) {
    for tenant in sim.tenant_keys().into_iter().filter(|tenant| *tenant != owner) {
        let redrive = Redrive { tenant, delivery: id, note: None, payload: None, request: None };
        let answer = block_on(ledger.real().redrive(redrive, sim.oracle.look().now())).unwrap();
        if answer != Redriven::NotFound {
            sim.oracle.look().broken("I21", format!("tenant {} redrives {id} of tenant {}", tenant.0, owner.0));
        }
    }
}

/// I8 as the rows have it: every attempt, numbered without a gap, and as it was settled.
fn attempts(sim: &Sim, ledger: &SimLedger, tenant: TenantKey, id: DeliveryId) {
    let Ok(Some(detail)) = block_on(ledger.delivery(tenant, id)) else {
        return sim.oracle.look().broken("I1", format!("{id} is listed, and is not there"));
    };
    let mut model = sim.oracle.look();
    let told: Vec<(u32, String, String)> = detail
        .attempts
        .iter()
        .filter_map(|attempt| Some((attempt.number, attempt.outcome.clone()?, attempt.disposition.clone()?)))
        .collect();
    let Some(row) = model.row_of(id) else { return };
    let known: Vec<(u32, String, String)> = row
        .ended
        .iter()
        .map(|(number, (outcome, disposition))| (*number, (*outcome).to_owned(), (*disposition).to_owned()))
        .collect();
    if told != known {
        model.broken("I8", format!("{id} has attempts {told:?}, and {known:?} were settled"));
    }
}
