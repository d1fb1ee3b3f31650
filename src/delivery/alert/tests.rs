//! When an alert fires, and when it clears.

use super::*;
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn ago(span: Duration) -> Timestamp {
    NOW.minus(span)
}

fn id(n: u128) -> DeliveryId {
    DeliveryId::from_u128(n)
}

fn dead(count: u64, oldest: Duration) -> DeadFacts {
    DeadFacts { count, oldest: Some((id(1), ago(oldest))), ..DeadFacts::default() }
}

fn endpoint(status: EndpointStatus, since: Duration, closings: u64) -> Vec<EndpointFacts> {
    vec![EndpointFacts { name: name("e"), status, since: Some(ago(since)), closings, ended: EndedFacts::default() }]
}

fn paused(until: Option<Timestamp>) -> EndpointStatus {
    EndpointStatus::Paused { until, why: "operator".into() }
}

fn disabled() -> EndpointStatus {
    EndpointStatus::Disabled { why: "http_410".into() }
}

fn fired(facts: &TenantFacts, thresholds: &Thresholds) -> Vec<&'static str> {
    let changes = judge(readings(facts, thresholds, 14 * DAY, NOW), &[]);
    let kind = |change: AlertChange| match change {
        AlertChange::Fires(reading) => reading.kind.as_str(),
        AlertChange::Moves(..) | AlertChange::Clears(_) => panic!("nothing stands"),
    };
    changes.into_iter().map(kind).collect()
}

fn of_ended(dead: u64, all: u64) -> TenantFacts {
    let mut endpoints = endpoint(EndpointStatus::Enabled, DAY, 0);
    endpoints[0].ended = EndedFacts { all, dead };
    TenantFacts { endpoints, ..TenantFacts::default() }
}

fn of_failing(alerted_at: Option<Timestamp>, disable_after: Option<Duration>) -> TenantFacts {
    let failing = Failing { since: ago(3 * DAY), failures: std::num::NonZeroU32::MIN, alerted_at };
    let failing = FailingFacts::of(name("e"), failing, disable_after, NOW).into_iter().collect();
    TenantFacts { failing, ..TenantFacts::default() }
}

#[test]
fn every_threshold_acts() {
    let none = TenantFacts::default();
    let open = || EndpointStatus::Enabled;
    let plugin = |age| vec![PluginFacts { name: name("p"), disabled_at: ago(age) }];
    let d = Thresholds::default();
    let risk = AtRisk { endpoint: name("e"), count: 1, deadline: NOW.plus(SECOND), sample: id(2) };
    let going = DeadFacts { going: 1, first_going: Some((id(3), ago(13 * DAY))), ..dead(1, SECOND) };
    let of = |facts: TenantFacts| facts;
    // One arrival in the DLQ alone is no alarm.
    assert_eq!(fired(&of(TenantFacts { dead: dead(1, SECOND), ..none.clone() }), &d), [""; 0]);
    for (facts, thresholds, kinds) in [
        (TenantFacts { dead: dead(99, SECOND), ..none.clone() }, d.clone(), vec![]),
        (TenantFacts { dead: dead(100, SECOND), ..none.clone() }, d.clone(), vec!["dlq_depth"]),
        (
            TenantFacts { dead: dead(3, SECOND), ..none.clone() },
            Thresholds { dlq_depth: 3, ..d.clone() },
            vec!["dlq_depth"],
        ),
        (TenantFacts { dead: dead(1, DAY - SECOND), ..none.clone() }, d.clone(), vec![]),
        (TenantFacts { dead: dead(1, DAY), ..none.clone() }, d.clone(), vec!["dlq_oldest_age"]),
        (
            TenantFacts { dead: dead(1, 2 * SECOND), ..none.clone() },
            Thresholds { dlq_oldest_age: SECOND, ..d.clone() },
            vec!["dlq_oldest_age"],
        ),
        (TenantFacts { dead: going, ..none.clone() }, d.clone(), vec!["dlq_erasure"]),
        (TenantFacts { undelivered: dead(1, SECOND), ..none.clone() }, d.clone(), vec!["alerts_undelivered"]),
        (TenantFacts { at_risk: vec![risk.clone()], ..none.clone() }, d.clone(), vec!["deadline_risk"]),
        (
            TenantFacts { at_risk: vec![risk], ..none.clone() },
            Thresholds { off: [AlertKind::DeadlineRisk].into(), ..d.clone() },
            vec![],
        ),
        (TenantFacts { endpoints: endpoint(paused(None), 29 * 60 * SECOND, 1), ..none.clone() }, d.clone(), vec![]),
        (
            TenantFacts { endpoints: endpoint(paused(None), 30 * 60 * SECOND, 1), ..none.clone() },
            d.clone(),
            vec!["endpoint_paused"],
        ),
        (
            TenantFacts { endpoints: endpoint(paused(None), SECOND, 1), ..none.clone() },
            Thresholds { paused_for: SECOND, ..d.clone() },
            vec!["endpoint_paused"],
        ),
        // A pause that has run out is over.
        (TenantFacts { endpoints: endpoint(paused(Some(NOW)), DAY, 1), ..none.clone() }, d.clone(), vec![]),
        (
            TenantFacts { endpoints: endpoint(disabled(), Duration::ZERO, 1), ..none.clone() },
            d.clone(),
            vec!["endpoint_disabled"],
        ),
        (
            TenantFacts { endpoints: endpoint(disabled(), SECOND, 1), ..none.clone() },
            Thresholds { disabled_for: 2 * SECOND, ..d.clone() },
            vec![],
        ),
        (TenantFacts { endpoints: endpoint(open(), DAY, 5), ..none.clone() }, d.clone(), vec![]),
        (TenantFacts { endpoints: endpoint(open(), DAY, 6), ..none.clone() }, d.clone(), vec!["endpoint_flapping"]),
        (
            TenantFacts { endpoints: endpoint(open(), DAY, 2), ..none.clone() },
            Thresholds { flapping_times: 2, ..d.clone() },
            vec!["endpoint_flapping"],
        ),
        (of_ended(10, 50), d.clone(), vec!["terminal_rate"]),
        (of_ended(9, 50), d.clone(), vec![]),
        (of_ended(200, 1_001), d.clone(), vec![]),
        (of_ended(49, 49), d.clone(), vec![]),
        (of_ended(0, 0), d.clone(), vec![]),
        (
            of_ended(1, 3),
            Thresholds { terminal_rate: "33.33%".parse().unwrap(), terminal_min_count: 3, ..d.clone() },
            vec!["terminal_rate"],
        ),
        (of_ended(49, 49), Thresholds { terminal_min_count: 49, ..d.clone() }, vec!["terminal_rate"]),
        (of_failing(Some(ago(DAY)), Some(4 * DAY)), d.clone(), vec!["endpoint_failing"]),
        (of_failing(None, Some(4 * DAY)), d.clone(), vec![]),
        // It is not disabled for failing any more.
        (of_failing(Some(ago(DAY)), None), d.clone(), vec![]),
        (
            of_failing(Some(ago(DAY)), Some(4 * DAY)),
            Thresholds { off: [AlertKind::EndpointFailing].into(), ..d.clone() },
            vec![],
        ),
        (TenantFacts { plugins: plugin(Duration::ZERO), ..none.clone() }, d.clone(), vec!["plugin_disabled"]),
        (
            TenantFacts { plugins: plugin(SECOND), ..none.clone() },
            Thresholds { plugin_disabled_for: 2 * SECOND, ..d.clone() },
            vec![],
        ),
    ] {
        assert_eq!(fired(&facts, &thresholds), kinds, "{facts:?}\n{thresholds:?}");
    }
}

#[test]
fn the_gateways_own() {
    let fired = |facts, thresholds: &GatewayThresholds| judge(gateway_readings(&facts, thresholds), &[]).len();
    let most = GatewayThresholds { ledger_bytes: 10, disk_free_bytes: 100, off: BTreeSet::new() };
    for (ledger_bytes, disk_free_bytes, count) in
        [(9, Some(100), 0), (10, Some(100), 1), (9, Some(99), 1), (10, Some(0), 2), (9, None, 0)]
    {
        assert_eq!(fired(GatewayFacts { ledger_bytes, disk_free_bytes }, &most), count, "{ledger_bytes}");
    }
    let off = GatewayThresholds { off: [AlertKind::LedgerSize].into(), ..most };
    assert_eq!(fired(GatewayFacts { ledger_bytes: 10, disk_free_bytes: Some(0) }, &off), 1);
}

#[test]
fn a_value_that_wobbles_is_one_episode() {
    for (kind, threshold, values) in [
        (AlertKind::DlqDepth, 100, [(99, false), (100, true), (99, true), (80, true), (79, false), (99, false)]),
        (AlertKind::DlqDepth, 1, [(0, false), (1, true), (2, true), (1, true), (0, false), (0, false)]),
        (AlertKind::DlqDepth, 2, [(1, false), (2, true), (1, true), (2, true), (0, false), (1, false)]),
        (AlertKind::EndpointFlapping, 6, [(5, false), (6, true), (5, true), (4, false), (5, false), (6, true)]),
        (
            AlertKind::TerminalRate,
            2_000,
            [(1_999, false), (2_000, true), (1_600, true), (1_599, false), (1_999, false), (2_000, true)],
        ),
        // Nothing is waited for: what is there fires, and stands at any age.
        (AlertKind::EndpointDisabled, 0, [(0, true), (0, true), (5, true), (0, true), (1, true), (0, true)]),
        (AlertKind::DiskFree, 100, [(100, false), (99, true), (100, true), (124, true), (125, false), (100, false)]),
    ] {
        let mut stands = false;
        for (value, expected) in values {
            stands = kind.holds(value, threshold, stands);
            assert_eq!(stands, expected, "{kind:?} at {value} of {threshold}");
        }
    }
}

/// Less traffic is no recovery: what fires goes on with as many dead as would have fired, and ends without any.
#[test]
fn a_share_of_too_few_fires_nothing_and_ends_nothing() {
    let d = Thresholds::default();
    let mut stands: Vec<Standing> = Vec::new();
    for (dead, all, expected) in
        [(49, 49, false), (12, 60, true), (12, 12, true), (9, 49, true), (8, 20, true), (7, 20, false), (20, 20, false)]
    {
        for change in judge(readings(&of_ended(dead, all), &d, DAY, NOW), &stands) {
            match change {
                AlertChange::Fires(r) => {
                    let id = AlertId::from_u128(1);
                    stands.push(Standing { id, kind: r.kind, subject: r.subject, value: r.value });
                }
                AlertChange::Moves(..) => panic!("a share is not followed"),
                AlertChange::Clears(_) => stands.clear(),
            }
        }
        assert_eq!(!stands.is_empty(), expected, "{dead} of {all}");
    }
}

#[test]
fn a_long_failure_is_told_with_when_it_ends() {
    let found = readings(&of_failing(Some(ago(DAY)), Some(4 * DAY)), &Thresholds::default(), DAY, NOW);
    let reading = found.iter().find(|reading| reading.kind == AlertKind::EndpointFailing).unwrap();
    assert_eq!((reading.since, reading.due), (Some(ago(3 * DAY)), Some(NOW.plus(DAY))));
    assert_eq!((reading.value, reading.threshold), (millis(3 * DAY), millis(2 * DAY)));
    let words = reading.in_words(Some(&name("acme"))).summary;
    assert!(words.starts_with("e has done nothing but fail for 3d; it is disabled at 20"), "{words}");
}

#[test]
fn the_margin_is_at_most_half_of_the_time_there_was() {
    let deadline = NOW.plus(100 * SECOND);
    for (margin, at, risk) in [(30, 69, false), (30, 70, true), (500, 49, false), (500, 50, true), (500, 200, true)] {
        let now = NOW.plus(at * SECOND);
        assert_eq!(is_at_risk(NOW, deadline, margin * SECOND, now), risk, "{margin} {at}");
    }
    assert_eq!(going(14 * DAY, 2 * DAY, NOW), (ago(14 * DAY), ago(12 * DAY)));
    assert_eq!(going(DAY, 2 * DAY, NOW), (ago(DAY), ago(DAY / 2)));
}

#[test]
fn an_endpoints_own_trouble_is_not_sent_through_it() {
    let (ops, billing) = (name("ops"), name("billing"));
    assert!(may_be_sent(AlertKind::EndpointPaused, &Subject::Endpoint(billing), &ops));
    assert!(may_be_sent(AlertKind::DlqDepth, &Subject::Dlq, &ops));
    for kind in [AlertKind::EndpointPaused, AlertKind::EndpointDisabled, AlertKind::EndpointFlapping] {
        assert!(!may_be_sent(kind, &Subject::Endpoint(ops.clone()), &ops));
    }
    assert!(!may_be_sent(AlertKind::AlertsUndelivered, &Subject::Dlq, &ops));
}

#[test]
fn words_are_read_back_and_every_alert_says_what_to_do() {
    let subjects =
        [Subject::Dlq, Subject::Ledger, Subject::Disk, Subject::Endpoint(name("e")), Subject::Plugin(name("p"))];
    for subject in &subjects {
        assert_eq!(Subject::parse(&subject.to_string()).as_ref(), Some(subject));
    }
    for bad in ["", "x", "endpoint/", "endpoint/A", "host/e"] {
        assert_eq!(Subject::parse(bad), None, "{bad}");
    }
    for kind in AlertKind::ALL {
        assert_eq!(AlertKind::parse(kind.as_str()), Some(kind));
        let subject = match kind {
            AlertKind::LedgerSize => Subject::Ledger,
            AlertKind::DiskFree => Subject::Disk,
            AlertKind::PluginDisabled => Subject::Plugin(name("rules")),
            _ => Subject::Endpoint(name("billing")),
        };
        let reading = Reading { due: Some(NOW), sample: Some(id(7)), ..Reading::new(kind, subject, 61_000, 60_000) };
        let tenant = name("acme");
        let InWords { summary, next_step } = reading.in_words(Some(&tenant).filter(|_| !kind.is_of_the_gateway()));
        assert!(!summary.is_empty() && next_step.len() > 20, "{kind:?}");
        assert!(kind.is_of_the_gateway() || next_step.contains("--tenant acme"), "{next_step}");
    }
    assert_eq!((about(999), about(61_500), about(3_661_000)), ("999ms".into(), "61s".into(), "61m".into()));
}

proptest! {
    /// Over any run of values: a fire is followed by a clear before the next, the last step's own state follows from
    /// the rule alone, and looking twice changes nothing.
    #[test]
    fn each_episode_fires_once(
        values in prop::collection::vec((0u64..12, 0u64..12), 1..60),
        threshold in 1u64..10,
    ) {
        let kinds = [(AlertKind::DlqDepth, Subject::Dlq), (AlertKind::DiskFree, Subject::Disk)];
        let mut standing: Vec<Standing> = Vec::new();
        let mut holds = [false; 2];
        let mut next = 0u128;
        for (a, b) in values {
            let now: Vec<Reading> = kinds
                .iter()
                .zip([a, b])
                .map(|((kind, subject), value)| Reading::new(*kind, subject.clone(), value, threshold))
                .collect();
            for change in judge(now.clone(), &standing) {
                match change {
                    AlertChange::Fires(r) => {
                        prop_assert!(!standing.iter().any(|s| s.kind == r.kind && s.subject == r.subject));
                        next += 1;
                        let id = AlertId::from_u128(next);
                        standing.push(Standing { id, kind: r.kind, subject: r.subject, value: r.value });
                    }
                    AlertChange::Moves(id, r) => {
                        let alert = standing.iter_mut().find(|s| s.id == id);
                        prop_assert!(alert.as_ref().is_some_and(|s| s.value != r.value));
                        alert.unwrap().value = r.value;
                    }
                    AlertChange::Clears(id) => {
                        prop_assert!(standing.iter().any(|s| s.id == id));
                        standing.retain(|s| s.id != id);
                    }
                }
            }
            for (at, ((kind, _), value)) in kinds.iter().zip([a, b]).enumerate() {
                holds[at] = kind.holds(value, threshold, holds[at]);
                prop_assert_eq!(standing.iter().any(|s| s.kind == *kind), holds[at]);
            }
            prop_assert_eq!(judge(now, &standing), vec![]);
        }
        let ids: Vec<AlertId> = standing.iter().map(|s| s.id).collect();
        let gone: Vec<AlertChange> = ids.into_iter().map(AlertChange::Clears).collect();
        prop_assert_eq!(judge(Vec::new(), &standing), gone, "nothing to speak of any more");
    }
}
