//! Versions tried on live traffic: what a shadow sees, what a canary judges, and that nothing stays dead by its word.

use super::guests::{Request, Says, classify_says, classify_with, transform_sends, transform_with};
use super::{Gateway, Receiver, Reply, endpoint, until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

fn config(receiver: &Receiver, more: &str) -> String {
    format!(
        "[tenants.acme.plugins.rules]\n{}",
        endpoint("billing", &receiver.url("/"), &format!("plugin = \"rules\"\n{more}"))
    )
}

fn delivers() -> Vec<u8> {
    classify_says(&Says::Delivered { reference: Some("first") })
}

fn ends(code: &str) -> Vec<u8> {
    classify_says(&Says::Terminal { code, message: None })
}

async fn upload(gateway: &Gateway, query: &str, wasm: Vec<u8>) -> String {
    let request = gateway.api("PUT", &format!("plugins/rules{query}")).header("content-type", "application/wasm");
    let answer = gateway.send(request.body(wasm)).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.json()["id"].as_str().unwrap().to_owned()
}

async fn publish(gateway: &Gateway, n: usize) {
    let events: Vec<Value> = (0..n).map(|n| json!({"type": "invoice.paid", "payload": {"n": n}})).collect();
    for event in events {
        let answer = gateway.post("events", &event).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
}

async fn trial(gateway: &Gateway) -> Value {
    gateway.get("plugins/rules").await["trial"].clone()
}

/// The trial once it is as it should be.
async fn until_trial(gateway: &Gateway, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    until(what, || async { Some(trial(gateway).await).filter(|trial| is(trial)) }).await
}

async fn begin(gateway: &Gateway, kind: &str, wish: Value) -> Value {
    let answer = gateway.post(&format!("plugins/rules/{kind}"), &wish).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["trial"].clone()
}

/// Every delivery with its attempts.
async fn deliveries(gateway: &Gateway, n: usize) -> Vec<Value> {
    let mut all = Vec::new();
    for row in gateway.until_deliveries("state=delivered", n).await {
        all.push(gateway.delivery(row["id"].as_str().unwrap()).await);
    }
    all
}

fn versions(delivery: &Value) -> Vec<&str> {
    delivery["attempts"].as_array().unwrap().iter().map(|a| a["plugin_version"].as_str().unwrap_or("none")).collect()
}

#[tokio::test]
async fn a_shadow_is_told_and_nothing_comes_of_it() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&config(&receiver, "")).await;
    let active = upload(&gateway, "?activate=true", delivers()).await;
    let shadow = upload(&gateway, "", ends("suspended")).await;
    let begun = begin(&gateway, "shadow", json!({"version": shadow, "share": "100%"})).await;
    assert_eq!((&begun["state"], &begun["share"], &begun["calls"]), (&"running".into(), &"100%".into(), &0.into()));
    // One after the other, so that there is room for each.
    for n in 1..=5 {
        publish(&gateway, 1).await;
        until_trial(&gateway, "the shadow was asked", |t| t["calls"] == n).await;
    }
    let told = trial(&gateway).await;
    assert_eq!(told["differ"], json!([{"from": "delivered", "to": "terminal", "calls": 5}]), "{told}");
    assert_eq!((&told["same"], &told["requests_differ"], &told["left_out"]), (&0.into(), &0.into(), &0.into()));
    assert_eq!(told["figures"]["shadow"]["terminal_rate"], "100%");
    let rows = told["differences"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    assert_eq!(rows[0]["to"], json!({"verdict": "terminal", "reason": "suspended"}));
    for delivery in deliveries(&gateway, 5).await {
        assert_eq!((&delivery["state"], versions(&delivery)), (&"delivered".into(), vec![active.as_str()]));
        assert!(rows.iter().any(|row| row["delivery"] == delivery["id"] && row["attempt"] == 1));
    }

    // It goes on after a kill, with its figures.
    gateway.kill();
    gateway.boot().await;
    publish(&gateway, 1).await;
    until_trial(&gateway, "it goes on", |t| t["calls"] == 6).await;
    let stopped = gateway.send(gateway.api("DELETE", "plugins/rules/shadow")).await.unwrap();
    let stopped = stopped.json()["trial"].clone();
    assert_eq!((&stopped["state"], &stopped["ended"]["by"]), (&"stopped".into(), &"operator".into()));
    publish(&gateway, 1).await;
    gateway.until_deliveries("state=delivered", 7).await;
    assert_eq!(trial(&gateway).await["calls"], 6);
    assert_eq!(gateway.get("plugins/rules").await["active"], active.as_str());
}

#[tokio::test]
async fn a_shadow_that_makes_another_request_is_found_out_and_sends_nothing() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    let sends = |body| transform_sends(&Request { body, ..Request::default() });
    upload(&gateway, "?activate=true", sends("one")).await;
    let two = upload(&gateway, "", sends("two")).await;
    begin(&gateway, "shadow", json!({"version": two, "share": "100%"})).await;
    publish(&gateway, 1).await;
    let told = until_trial(&gateway, "the shadow was asked", |t| t["calls"] == 1).await;
    assert_eq!((&told["same"], &told["requests_differ"]), (&0.into(), &1.into()), "{told}");
    assert_eq!(told["differ"], json!([]), "the verdict is the same");
    assert_eq!(told["differences"][0]["request_differs"], true);
    let bodies: Vec<_> = receiver.journal().iter().map(|seen| seen.body.to_vec()).collect();
    assert_eq!(bodies, [b"one".to_vec()]);
    let busy = gateway.post("plugins/rules/canary", &json!({"version": two, "share": "1%"})).await;
    assert_eq!((busy.status, busy.code()), (409, "trial_running".into()));
    // Its promotion ends it.
    let promoted = gateway.post("plugins/rules/activate", &json!({"version": two})).await.json();
    assert_eq!((&promoted["active"], &promoted["trial"]["state"]), (&two.into(), &"promoted".into()));
}

#[tokio::test]
async fn the_worst_shadow_costs_no_delivery_and_disables_nothing() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    let active = upload(&gateway, "?activate=true", delivers()).await;
    let spins = upload(&gateway, "", classify_with("", "(loop br 0) unreachable")).await;
    begin(&gateway, "shadow", json!({"version": spins, "share": "100%"})).await;
    publish(&gateway, 60).await;
    let all = deliveries(&gateway, 60).await;
    assert!(all.iter().all(|d| d["state"] == "delivered" && versions(d) == [active.as_str()]));
    let told = until_trial(&gateway, "each was counted", |t| {
        t["calls"].as_u64().unwrap() + t["left_out"].as_u64().unwrap() == 60
    })
    .await;
    assert!(told["left_out"].as_u64().unwrap() > 0, "16 wait at most: {told}");
    assert!(told["figures"]["shadow"]["faults"].as_u64().unwrap() >= 16, "{told}");
    assert_eq!(gateway.metric("hookgate_plugins_disabled_total").await, Some(0.0));
    let rows = gateway.get("plugins/rules").await["versions"].clone();
    assert!(rows.as_array().unwrap().iter().all(|row| row["state"] == "ready"), "{rows}");
}

#[tokio::test]
async fn a_canary_that_ends_everything_goes_back_and_nothing_stays_dead() {
    let receiver = Receiver::start(|_, _| Reply::body(200, "{\"error\":\"suspended\"}")).await;
    let mut gateway = Gateway::start(&config(&receiver, "")).await;
    let active = upload(&gateway, "?activate=true", delivers()).await;
    let bad = upload(&gateway, "", ends("suspended")).await;
    // What died before the canary by the same version is no business of the canary's.
    gateway.post("plugins/rules/activate", &json!({"version": bad})).await;
    publish(&gateway, 1).await;
    let old = gateway.until_deliveries("state=dead", 1).await[0]["id"].clone();
    gateway.post("plugins/rules/rollback", &json!({})).await;

    let begun = begin(&gateway, "canary", json!({"version": bad, "share": "50%", "min_calls": 10})).await;
    assert_eq!(begun["bounds"], json!({"max_fault_rate": "2%", "max_terminal_rate": "10%", "min_calls": 10}));
    publish(&gateway, 60).await;
    let ended = until_trial(&gateway, "it is rolled back", |t| t["state"] == "rolled_back").await;
    let why = ended["ended"]["why"].as_str().unwrap();
    assert!(why.starts_with("terminal rate over 10%: ") && ended["ended"]["by"] == "gateway", "{why}");
    let ended = until_trial(&gateway, "all are put back", |t| t["putting_back"] == false).await;
    let put_back = ended["put_back"].as_u64().unwrap();
    assert!(put_back >= 10, "{ended}");
    let rows = gateway.until_deliveries("state=delivered", 60).await;
    let dead = gateway.until_deliveries("state=dead", 1).await;
    assert_eq!(dead[0]["id"], old);

    let mut redriven = 0;
    for row in &rows {
        let delivery = gateway.delivery(row["id"].as_str().unwrap()).await;
        match versions(&delivery).as_slice() {
            [one] => assert_eq!((one, &delivery["generation"]), (&active.as_str(), &1.into())),
            // Once dead by the canary's word, once put back, and delivered by the version in use with a whole budget.
            [first, second] => {
                assert_eq!((*first, *second), (bad.as_str(), active.as_str()), "{delivery}");
                assert_eq!(delivery["generation"], 2);
                let note = delivery["note"].as_str().unwrap();
                assert!(note.contains(&bad) && note.contains("rolled back (terminal rate over 10%"), "{note}");
                redriven += 1;
            }
            more => panic!("{more:?}"),
        }
    }
    assert_eq!(redriven, put_back);
    // Each was sent under its own id, the ones that were put back twice under the same.
    let mut sends = BTreeMap::<String, u64>::new();
    for seen in receiver.journal() {
        *sends.entry(seen.header("webhook-id").to_owned()).or_default() += 1;
    }
    assert_eq!((sends.len(), sends.values().filter(|n| **n == 2).count() as u64), (61, put_back));
    let metric = "hookgate_plugin_canary_rollbacks_total{tenant=\"acme\",plugin=\"rules\"}";
    assert_eq!(gateway.metric(metric).await, Some(1.0));
    assert!(gateway.log().contains("plugin_canary_rolled_back"));

    // It stays back over a kill, and is shown until there is another.
    gateway.kill();
    gateway.boot().await;
    publish(&gateway, 3).await;
    gateway.until_deliveries("state=delivered", 63).await;
    let plugin = gateway.get("plugins/rules").await;
    assert_eq!((&plugin["active"], &plugin["trial"]["state"]), (&active.as_str().into(), &"rolled_back".into()));
    let listed = gateway.get("plugins").await;
    assert_eq!(listed["items"][0]["trial"]["ended"]["why"], why);
}

#[tokio::test]
async fn faults_in_a_row_roll_a_canary_back_and_spend_no_budget() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    let active = upload(&gateway, "?activate=true", delivers()).await;
    let bad = upload(&gateway, "", transform_with("", "unreachable")).await;
    let wish = json!({
        "version": bad, "share": "100%", "min_calls": 1000, "max_fault_rate": "100%", "max_terminal_rate": "100%",
    });
    begin(&gateway, "canary", wish).await;
    // Each of them has three attempts: what is dead is put back, what waits has its budget back.
    publish(&gateway, 12).await;
    let ended = until_trial(&gateway, "it is rolled back", |t| t["state"] == "rolled_back").await;
    assert_eq!(ended["ended"]["why"], "20 faults in a row");
    let rows = gateway.until_deliveries("state=delivered", 12).await;
    assert_eq!(rows.len(), 12);
    for delivery in deliveries(&gateway, 12).await {
        let all = versions(&delivery);
        assert_eq!(all.last(), Some(&active.as_str()), "{delivery}");
        assert!(all.len() <= 4, "{all:?}");
    }
    let plugin = gateway.get("plugins/rules").await;
    assert_eq!(plugin["active"], active.as_str());
    assert!(plugin["versions"].as_array().unwrap().iter().all(|row| row["state"] == "ready"), "{plugin}");
    assert_eq!(gateway.metric("hookgate_plugins_disabled_total").await, Some(0.0));
    assert_eq!(gateway.get("endpoints/billing").await["status"], "enabled");
}

#[tokio::test]
async fn a_canary_that_is_stopped_or_outrun_leaves_nothing_dead_either() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    let first = upload(&gateway, "?activate=true", classify_says(&Says::Delivered { reference: None })).await;
    let active = upload(&gateway, "?activate=true", delivers()).await;
    let bad = upload(&gateway, "", ends("suspended")).await;
    let wish = json!({"version": bad, "share": "100%", "max_terminal_rate": "100%"});
    begin(&gateway, "canary", wish.clone()).await;
    // A reload changes nothing about it.
    gateway.signal(libc::SIGHUP);
    until("the reload is done", || async { gateway.log().contains("plugins were applied").then_some(()) }).await;
    publish(&gateway, 3).await;
    gateway.until_deliveries("state=dead", 3).await;
    let stopped = gateway.send(gateway.api("DELETE", "plugins/rules/canary")).await.unwrap().json();
    assert_eq!((&stopped["trial"]["state"], &stopped["active"]), (&"stopped".into(), &active.as_str().into()));
    for delivery in deliveries(&gateway, 3).await {
        assert_eq!(versions(&delivery), [bad.as_str(), active.as_str()], "{delivery}");
        assert!(delivery["note"].as_str().unwrap().ends_with("was stopped"), "{delivery}");
    }

    begin(&gateway, "canary", wish).await;
    publish(&gateway, 2).await;
    gateway.until_deliveries("state=dead", 2).await;
    let back = gateway.post("plugins/rules/rollback", &json!({})).await.json();
    assert_eq!((&back["trial"]["state"], &back["active"]), (&"superseded".into(), &first.as_str().into()));
    gateway.until_deliveries("state=delivered", 5).await;
    let told = until_trial(&gateway, "all are put back", |t| t["putting_back"] == false).await;
    assert_eq!((&told["put_back"], &told["figures"]["canary"]["terminal"]), (&2.into(), &2.into()), "{told}");
    let metric = "hookgate_plugin_canary_rollbacks_total{tenant=\"acme\",plugin=\"rules\"}";
    assert_eq!(gateway.metric(metric).await, Some(0.0), "nobody is called for what somebody did");
}

/// Changes the file and has it applied.
async fn reload(gateway: &Gateway, text: &str) {
    let applied = |gateway: &Gateway| gateway.log().matches("plugins were applied").count();
    let before = applied(gateway);
    std::fs::write(gateway.config(), text).unwrap();
    gateway.signal(libc::SIGHUP);
    until("the reload is done", || async { (applied(gateway) > before).then_some(()) }).await;
}

#[tokio::test]
async fn what_a_canary_has_under_way_is_waited_for_over_its_plugins_absence() {
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    let receiver = Receiver::start(move |_, _| Reply::Gated(Arc::clone(&closed), Box::new(Reply::status(204)))).await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    let active = upload(&gateway, "?activate=true", delivers()).await;
    let bad = upload(&gateway, "", ends("suspended")).await;
    begin(&gateway, "canary", json!({"version": bad, "share": "100%", "max_terminal_rate": "100%"})).await;
    publish(&gateway, 2).await;
    receiver.until_count(2).await;
    let with = std::fs::read_to_string(gateway.config()).unwrap();
    let without = with.replace("[tenants.acme.plugins.rules]\n", "").replace("plugin = \"rules\"\n", "");
    reload(&gateway, &without).await;
    let gone = gateway.send(gateway.api("GET", "plugins/rules")).await.unwrap();
    assert_eq!(gone.status, 404, "{}", gone.text);
    reload(&gateway, &with).await;
    assert_eq!(trial(&gateway).await["state"], "running");
    let stopped = gateway.send(gateway.api("DELETE", "plugins/rules/canary")).await.unwrap().json();
    assert_eq!(stopped["trial"]["state"], "stopped", "{stopped}");
    assert_eq!(trial(&gateway).await["putting_back"], true);
    gate.add_permits(1);
    for delivery in deliveries(&gateway, 2).await {
        assert_eq!(versions(&delivery), [bad.as_str(), active.as_str()], "{delivery}");
    }
    let told = until_trial(&gateway, "all are put back", |t| t["putting_back"] == false).await;
    assert_eq!((&told["put_back"], &told["figures"]["canary"]["terminal"]), (&2.into(), &2.into()), "{told}");
}

#[tokio::test]
async fn a_file_supersedes_a_canary_and_leaves_nothing_dead() {
    for restarts in [false, true] {
        let gate = Arc::new(Semaphore::new(0));
        let closed = Arc::clone(&gate);
        let receiver =
            Receiver::start(move |seen, before| match String::from_utf8_lossy(&seen.body).contains(r#""n":2"#) {
                true if before == 0 => Reply::Gated(Arc::clone(&closed), Box::new(Reply::status(204))),
                _ => Reply::status(204),
            })
            .await;
        let mut gateway = Gateway::start(&config(&receiver, "")).await;
        upload(&gateway, "?activate=true", delivers()).await;
        let bad = upload(&gateway, "", ends("suspended")).await;
        begin(&gateway, "canary", json!({"version": bad, "share": "100%", "max_terminal_rate": "100%"})).await;
        // Two are dead, one is under way.
        publish(&gateway, 3).await;
        gateway.until_deliveries("state=dead", 2).await;
        receiver.until_count(3).await;

        let file = gateway.dir.path().join("rules.wasm");
        std::fs::write(&file, classify_says(&Says::Delivered { reference: Some("file") })).unwrap();
        let path = format!("[tenants.acme.plugins.rules]\npath = \"{}\"\n", file.display());
        let text = std::fs::read_to_string(gateway.config()).unwrap();
        let text = text.replace("[tenants.acme.plugins.rules]\n", &path);
        if restarts {
            gateway.kill();
            std::fs::write(gateway.config(), text).unwrap();
            gateway.boot().await;
        } else {
            reload(&gateway, &text).await;
        }
        let plugin = gateway.get("plugins/rules").await;
        let (told, by_file) = (&plugin["trial"], plugin["active"].as_str().unwrap());
        assert_eq!((&plugin["managed_by"], &told["state"]), (&"file".into(), &"superseded".into()), "{plugin}");
        assert_eq!(told["ended"]["why"], "the plugin has a file now");
        gate.add_permits(1);
        for delivery in deliveries(&gateway, 3).await {
            assert_eq!(versions(&delivery).last(), Some(&by_file), "{delivery}");
        }
        let told = until_trial(&gateway, "all are put back", |t| t["putting_back"] == false).await;
        assert_eq!(told["put_back"], if restarts { 2 } else { 3 }, "{told}");
        let refused = gateway.send(gateway.api("DELETE", "plugins/rules/canary")).await.unwrap();
        assert_eq!((refused.status, refused.code()), (409, "managed_by_file".into()));
    }
}

#[tokio::test]
async fn a_good_canary_keeps_its_share_over_retries_and_is_promoted() {
    // Each is refused once and then taken.
    let receiver = Receiver::start(|_, before| Reply::status(if before < 1 { 503 } else { 200 })).await;
    let mut gateway = Gateway::start(&config(&receiver, "")).await;
    let builtin = |body| transform_sends(&Request { body, ..Request::default() });
    let active = upload(&gateway, "?activate=true", builtin("one")).await;
    let good = upload(&gateway, "", builtin("two")).await;
    begin(&gateway, "canary", json!({"version": good, "share": "50%"})).await;
    publish(&gateway, 20).await;
    gateway.kill();
    gateway.boot().await;
    publish(&gateway, 20).await;
    gateway.until_deliveries("state=delivered", 40).await;
    let mut sides = BTreeMap::<String, usize>::new();
    for delivery in deliveries(&gateway, 40).await {
        // The kill may have interrupted one, of which no version is known.
        let mut all = versions(&delivery);
        all.retain(|version| *version != "none");
        all.dedup();
        assert_eq!(all.len(), 1, "always the same version: {delivery}");
        *sides.entry(all[0].to_owned()).or_default() += 1;
    }
    assert_eq!(sides.values().sum::<usize>(), 40);
    assert!(sides.get(&active).is_some_and(|n| *n >= 5) && sides.get(&good).is_some_and(|n| *n >= 5), "{sides:?}");
    let told = until_trial(&gateway, "the figures are in", |t| {
        t["figures"]["canary"]["delivered"].as_u64().unwrap() + t["figures"]["active"]["delivered"].as_u64().unwrap()
            >= 20
    })
    .await;
    assert_eq!((&told["state"], &told["figures"]["canary"]["fault_rate"]), (&"running".into(), &"0%".into()));
    let promoted = gateway.post("plugins/rules/activate", &json!({"version": good})).await.json();
    assert_eq!((&promoted["active"], &promoted["trial"]["state"]), (&good.as_str().into(), &"promoted".into()));
    publish(&gateway, 1).await;
    let newest = gateway.until_deliveries("state=delivered", 41).await.remove(0);
    assert_eq!(versions(&gateway.delivery(newest["id"].as_str().unwrap()).await).last(), Some(&good.as_str()));
}

#[tokio::test]
async fn what_cannot_be_tried_is_refused() {
    let receiver = Receiver::kind().await;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/sms-rules.wasm");
    let filed = format!("[tenants.acme.plugins.filed]\npath = \"{file}\"\n");
    let gateway = Gateway::start(&(filed + &config(&receiver, ""))).await;
    let one = upload(&gateway, "", delivers()).await;
    let unknown = "plg_019b7670607b70018000000000000000";
    let refused = |path: &'static str, wish: Value| {
        let gateway = &gateway;
        async move {
            let answer = gateway.post(path, &wish).await;
            (answer.status, answer.code(), answer.json()["field"].as_str().unwrap_or_default().to_owned())
        }
    };
    let told = |status: u16, code: &str, field: &str| (status, code.to_owned(), field.to_owned());
    let (shadow, canary) = ("plugins/rules/shadow", "plugins/rules/canary");
    let wish = |version: &str, share: &str| json!({"version": version, "share": share});
    assert_eq!(refused(shadow, wish(&one, "10%")).await, told(409, "nothing_in_use", ""));
    gateway.post("plugins/rules/activate", &json!({"version": one})).await;
    let two = upload(&gateway, "", ends("x")).await;
    for share in ["0%", "100.01%", "101%", "-1%", "10", "", "ten%"] {
        assert_eq!(refused(shadow, wish(&two, share)).await, told(422, "invalid", "share"), "{share}");
        assert_eq!(refused(canary, wish(&two, share)).await, told(422, "invalid", "share"), "{share}");
    }
    assert_eq!(refused(shadow, json!({"version": two, "share": 0.1})).await, told(422, "invalid", "share"));
    assert_eq!(refused(shadow, json!({"version": two})).await, told(422, "invalid", "share"));
    assert_eq!(refused(canary, wish(unknown, "10%")).await, told(404, "not_found", ""));
    assert_eq!(refused(canary, wish("plg_1", "10%")).await, told(422, "invalid", "version"));
    assert_eq!(refused(canary, wish(&one, "10%")).await, told(409, "in_use", ""));
    for (field, value) in [
        ("min_calls", json!(0)),
        ("min_calls", json!(1001)),
        ("max_fault_rate", json!("200%")),
        ("max_terminal_rate", json!("1")),
    ] {
        let mut wish = wish(&two, "10%");
        wish[field] = value;
        assert_eq!(refused(canary, wish.clone()).await, told(422, "invalid", field));
        assert_eq!(refused(shadow, wish).await, told(422, "unknown_field", field));
    }
    assert_eq!(refused("plugins/filed/canary", wish(&two, "10%")).await, told(409, "managed_by_file", ""));
    assert_eq!(refused("plugins/nothing/canary", wish(&two, "10%")).await, told(404, "not_found", ""));
    let bad = gateway.api("PUT", "plugins/rules").header("content-type", "application/wasm").body(&b"garbage"[..]);
    let bad = gateway.send(bad).await.unwrap().json()["version"].as_str().unwrap().to_owned();
    assert_eq!(refused(canary, wish(&bad, "10%")).await, told(422, "plugin_rejected", ""));
    let none = gateway.send(gateway.api("DELETE", canary)).await.unwrap();
    assert_eq!((none.status, none.code()), (404, "no_trial".into()));
    begin(&gateway, "shadow", wish(&two, "0.01%")).await;
    assert_eq!(refused(shadow, wish(&two, "10%")).await, told(409, "trial_running", ""));
    let other = gateway.send(gateway.api("DELETE", canary)).await.unwrap();
    assert_eq!((other.status, other.code()), (404, "no_trial".into()), "the shadow runs on");
    assert_eq!(trial(&gateway).await["state"], "running");
}

#[tokio::test]
async fn the_command_line_tries_a_version() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    upload(&gateway, "?activate=true", delivers()).await;
    let two = upload(&gateway, "", ends("suspended")).await;
    let run = |args: &[&str]| {
        let output = gateway.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    assert_eq!(run(&["plugin", "shadow", "acme/rules", &two]).0, 2, "no share");
    assert_eq!(run(&["plugin", "shadow", "acme/rules"]).0, 2, "no version");
    let refused = run(&["plugin", "shadow", "acme/rules", &two, "--share", "0%"]);
    assert!(refused.0 == 2 && refused.2.contains("more than 0%"), "{refused:?}");
    let (exit, shown, _) = run(&["plugin", "shadow", "acme/rules", &two, "--share", "100%"]);
    assert!(exit == 0 && shown.contains("running") && shown.contains("100%"), "{shown}");
    publish(&gateway, 1).await;
    until_trial(&gateway, "the shadow was asked", |t| t["calls"] == 1).await;
    let (_, shown, _) = run(&["plugin", "get", "rules"]);
    for told in ["shadow", "delivered → terminal", "terminal suspended", "100%", "the same"] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
    assert!(run(&["plugin", "list"]).1.contains(&format!("shadow 100% {two}: running")));
    let (exit, stopped, _) = run(&["plugin", "shadow", "rules", "--stop", "--json"]);
    let stopped: Value = serde_json::from_str(&stopped).unwrap();
    assert_eq!((exit, &stopped["state"]), (0, &"stopped".into()));
    assert_eq!(run(&["plugin", "shadow", "rules", "--stop"]).0, 5);

    let args = ["plugin", "canary", "rules", &two, "--share", "100%", "--min-calls", "2", "--max-terminal-rate", "50%"];
    let watch =
        gateway.command(&[&args[..], &["--watch"]].concat()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    until_trial(&gateway, "the canary runs", |t| t["kind"] == "canary").await;
    publish(&gateway, 3).await;
    let watched = tokio::task::spawn_blocking(move || watch.wait_with_output().unwrap()).await.unwrap();
    let lines = String::from_utf8(watched.stdout).unwrap();
    assert_eq!(watched.status.code(), Some(8), "{lines}");
    assert!(lines.contains("canary running") && lines.contains("terminal rate over 50%"), "{lines}");
    gateway.until_deliveries("state=delivered", 4).await;
}
