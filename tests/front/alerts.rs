//! The routes of alerts.

use crate::office::{NOW, assert_golden, office};
use hookgate::delivery::{AlertId, AlertKind, EventId, Mint, Reading, Subject};
use hookgate::ledger::{AlertRow, AlertTold, LedgerError, TenantKey};
use serde_json::Value;
use std::time::Duration;

const ACME: &str = "/v1/tenants/acme/alerts";

fn rows() -> Vec<AlertRow> {
    let mint = Mint::default();
    let id = || AlertId::from(mint.mint(NOW, &crate::fake_ledger::Fixed));
    let half_an_hour = Duration::from_secs(1_800);
    let reading = |kind, subject| Reading {
        kind,
        subject,
        value: 1_800_000,
        threshold: 1_800_000,
        since: Some(NOW),
        due: None,
        sample: None,
    };
    let paused = AlertRow {
        id: id(),
        tenant: Some((TenantKey(1), "acme".parse().unwrap())),
        reading: reading(AlertKind::EndpointPaused, Subject::Endpoint("billing".parse().unwrap())),
        fired_at: NOW.plus(half_an_hour),
        cleared_at: Some(NOW.plus(half_an_hour + Duration::from_secs(60))),
        told: AlertTold::By(EventId::from(mint.mint(NOW, &crate::fake_ledger::Fixed))),
    };
    let own = AlertRow {
        id: id(),
        tenant: None,
        reading: reading(AlertKind::DiskFree, Subject::Disk),
        cleared_at: None,
        told: AlertTold::NotYet,
        ..paused.clone()
    };
    vec![paused, own]
}

#[tokio::test]
async fn reading_alerts() {
    let office = office().await;
    *office.ledger.alerts.lock().unwrap() = rows();
    assert_golden("alerts", &office.get(ACME).await);
    assert_eq!(office.asked(), "Some(TenantKey(1)) All PageRequest { limit: 50, cursor: None }");
    let all = office.get("/v1/alerts?state=firing&limit=7&cursor=c1").await.json();
    assert_eq!(office.asked(), "None Firing PageRequest { limit: 7, cursor: Some(Cursor(\"c1\")) }");
    let own = &all["items"][0];
    assert_eq!(
        (all["items"].as_array().unwrap().len(), &own["tenant"], &own["event"]),
        (1, &Value::Null, &Value::Null)
    );
    assert_eq!((&own["kind"], &own["state"], &own["unit"]), (&"disk_free".into(), &"firing".into(), &"bytes".into()));
    let theirs = office.get("/v1/tenants/globex/alerts").await.json();
    assert_eq!(theirs["items"].as_array().unwrap().len(), 0, "another tenant's");
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused() {
    let office = office().await;
    for path in [ACME, "/v1/alerts"] {
        assert_eq!(office.get(&format!("{path}?state=loud")).await.status, 422);
        assert_eq!(office.get(&format!("{path}?kind=x")).await.status, 400);
    }
    assert_eq!(office.get("/v1/tenants/nobody/alerts").await.status, 404);
    *office.ledger.fault.lock().unwrap() = Some(LedgerError::Unavailable("full".to_owned()));
    assert_eq!(office.get(ACME).await.status, 503);
}
