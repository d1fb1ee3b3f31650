//! Death between a canary's rollback and the end of putting back what it left dead.

use super::guests::{Says, classify_says};
use super::journals::by_delivery;
use super::points::built_in::{VARIABLE, dies};
use super::{Gateway, Receiver, Reply, until};
use serde_json::{Value, json};

async fn upload(gateway: &Gateway, query: &str, says: &Says<'_>) -> String {
    let request = gateway.api("PUT", &format!("plugins/rules{query}")).header("content-type", "application/wasm");
    let answer = gateway.send(request.body(classify_says(says))).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.json()["id"].as_str().unwrap().to_owned()
}

/// `T1`: the rollback is durable, and nothing is put back. `T2`: a step is put back.
#[tokio::test]
async fn a_death_after_the_rollback_leaves_nothing_dead() {
    const EVENTS: usize = 40;
    for at in ["T1", "T2"] {
        let receiver = Receiver::start(|_, _| Reply::body(200, "{\"error\":\"suspended\"}")).await;
        let mut gateway = Gateway::stopped(&format!(
            "[tenants.acme.plugins.rules]\n[tenants.acme.endpoints.billing]\nurl = \"{}\"\nplugin = \"rules\"\n\
             retry = {{ max_attempts = 3, delays = [\"20ms\"], jitter = \"none\" }}\n",
            receiver.url("/")
        ));
        gateway.env.insert(VARIABLE, at.to_owned());
        gateway.boot().await;
        let active = upload(&gateway, "?activate=true", &Says::Delivered { reference: None }).await;
        let bad = upload(&gateway, "", &Says::Terminal { code: "suspended", message: None }).await;
        let wish = json!({"version": bad, "share": "100%", "min_calls": 20});
        assert_eq!(gateway.post("plugins/rules/canary", &wish).await.status, 200);
        let event = json!({"type": "invoice.paid", "payload": 1});
        let answer = gateway.post("events", &json!({"events": vec![event; EVENTS]})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        dies(&mut gateway, at).await;

        gateway.env.remove(VARIABLE);
        gateway.boot().await;
        let rows = gateway.until_deliveries("state=delivered", EVENTS).await;
        let trial = until("all are put back", || async {
            let trial = gateway.get("plugins/rules").await["trial"].clone();
            (trial["putting_back"] == false).then_some(trial)
        })
        .await;
        assert_eq!(trial["state"], "rolled_back", "{at}: {trial}");
        let (mut put_back, sends) = (0, by_delivery(receiver.journal()));
        assert_eq!((rows.len(), sends.len()), (EVENTS, EVENTS), "{at}: each under its own webhook-id");
        for row in &rows {
            let delivery = gateway.delivery(row["id"].as_str().unwrap()).await;
            let attempts = delivery["attempts"].as_array().unwrap();
            let by_canary = |a: &&Value| a["plugin_version"] == bad.as_str();
            assert_eq!(attempts.last().unwrap()["plugin_version"], active.as_str(), "{at}: {delivery}");
            let judged = attempts.iter().filter(by_canary).count();
            assert!(judged <= 1, "{at}: {delivery}");
            assert_eq!(delivery["generation"], judged + 1, "{at}: put back once, and no more: {delivery}");
            put_back += judged;
        }
        assert_eq!(trial["put_back"], put_back, "{at}");
        assert!(put_back >= 20, "{at}: {put_back}");
        assert!(gateway.get("deliveries?state=dead").await["items"].as_array().unwrap().is_empty(), "{at}");
        assert!(gateway.stop().await.success(), "{at}");
    }
}
