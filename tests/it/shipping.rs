//! Plugins that the API manages, end to end: uploaded, put into use, exchanged, taken back, and worn out.

use super::guests::{Request, classify_with, component, module, transform_answer, transform_sends, transform_with};
use super::process::Answer;
use super::{Gateway, Receiver, endpoint, until};
use serde_json::{Value, json};

const RULES: &str = "[tenants.acme.plugins.rules]\n";

pub(super) fn config(receiver: &Receiver, more: &str) -> String {
    format!("{RULES}{}", endpoint("billing", &receiver.url("/"), &format!("plugin = \"rules\"\n{more}")))
}

pub(super) fn sends(body: &str) -> Vec<u8> {
    transform_sends(&Request { body, ..Request::default() })
}

/// What `sends` makes, beside a function that takes the compiler seconds: nested loops over many locals.
fn slow(body: &str) -> Vec<u8> {
    let deep = if cfg!(debug_assertions) { 350 } else { 1_200 };
    let mut code = format!("(local {})", "i64 ".repeat(deep));
    for n in 0..deep {
        code += &format!("(loop (local.set {n} (local.get {}))", (n * 7 + 1) % deep);
    }
    for n in 0..deep {
        code += &format!("(br_if 0 (i64.eqz (local.get {}))))", (n * 13) % deep);
    }
    transform_with(
        &format!("(func {code}){}", transform_answer(&Request { body, ..Request::default() })),
        "i32.const 16",
    )
}

/// Waits for a compiling process of the gateway's that is of the idle class.
async fn compiles_behind_the_traffic(gateway: &Gateway) {
    let parent = gateway.pid().to_string();
    let is_one = |dir: &std::path::Path| {
        let stat = std::fs::read_to_string(dir.join("stat")).ok()?;
        // From the state on, which is the third field: parent the fourth, scheduling class the 41st.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
        Some(fields.get(1) == Some(&parent.as_str()) && fields.get(38) == Some(&"5"))
    };
    until("a child of the idle class", || async {
        let mut processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        processes.any(|dir| is_one(&dir) == Some(true)).then_some(())
    })
    .await;
}

async fn upload(gateway: &Gateway, query: &str, wasm: Vec<u8>) -> Answer {
    let request = gateway.api("PUT", &format!("plugins/rules{query}")).header("content-type", "application/wasm");
    gateway.send(request.body(wasm)).await.unwrap()
}

/// Uploads it and gives the version's id.
pub(super) async fn shipped(gateway: &Gateway, query: &str, wasm: Vec<u8>) -> String {
    let answer = upload(gateway, query, wasm).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    assert_eq!(answer.json()["state"], "ready");
    answer.json()["id"].as_str().unwrap().to_owned()
}

pub(super) async fn publish(gateway: &Gateway) {
    let answer = gateway.post("events", &json!({"type": "invoice.paid", "payload": {"n": 1}})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

pub(super) async fn activate(gateway: &Gateway, version: &str) -> Value {
    let answer = gateway.post("plugins/rules/activate", &json!({ "version": version })).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

/// The newest delivery's last attempt, once `n` are delivered.
async fn last_attempt(gateway: &Gateway, n: usize) -> Value {
    let newest = gateway.until_deliveries("state=delivered", n).await.remove(0);
    let attempts = gateway.delivery(newest["id"].as_str().unwrap()).await["attempts"].clone();
    attempts.as_array().unwrap().last().unwrap().clone()
}

async fn status(gateway: &Gateway) -> (String, String) {
    let billing = gateway.get("endpoints/billing").await;
    let text = |field: &str| billing[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("why"))
}

#[tokio::test]
async fn a_version_is_exchanged_taken_back_and_kept_over_a_kill() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&config(&receiver, "")).await;
    let one = shipped(&gateway, "", sends("first rules")).await;
    assert_eq!(gateway.get("plugins/rules").await["active"], Value::Null, "ready is not in use");
    assert_eq!(activate(&gateway, &one).await["active"], one.as_str());
    publish(&gateway).await;
    assert_eq!(last_attempt(&gateway, 1).await["plugin_version"], one.as_str());

    let two = shipped(&gateway, "?activate=true", sends("second rules")).await;
    assert_ne!(one, two);
    publish(&gateway).await;
    assert_eq!(last_attempt(&gateway, 2).await["plugin_version"], two.as_str());

    let back = gateway.post("plugins/rules/rollback", &json!({})).await;
    assert_eq!((back.status, &back.json()["active"]), (200, &one.as_str().into()), "{}", back.text);
    publish(&gateway).await;
    assert_eq!(last_attempt(&gateway, 3).await["plugin_version"], one.as_str());
    assert_eq!(gateway.post("plugins/rules/rollback", &json!({})).await.code(), "nothing_before");
    let compilations = async |gateway: &Gateway| gateway.metric("hookgate_plugin_compilations_total").await;
    assert_eq!(compilations(&gateway).await, Some(2.0), "each once, however often it comes into use");

    // A kill, a reload and a start without anything compiled: still the first.
    gateway.kill();
    std::fs::remove_dir_all(gateway.dir.path().join("data/plugin-cache")).unwrap();
    gateway.boot().await;
    gateway.signal(libc::SIGHUP);
    until("the reload is done", || async { gateway.log().contains("plugins were applied").then_some(()) }).await;
    publish(&gateway).await;
    assert_eq!(last_attempt(&gateway, 4).await["plugin_version"], one.as_str());
    assert_eq!(compilations(&gateway).await, Some(1.0), "once after the cache was lost, and not at the reload");
    let bodies: Vec<_> = receiver.journal().iter().map(|seen| String::from_utf8(seen.body.to_vec()).unwrap()).collect();
    assert_eq!(bodies, ["first rules", "second rules", "first rules", "first rules"]);

    let again = upload(&gateway, "", sends("first rules")).await;
    assert_eq!((again.status, &again.json()["id"]), (200, &one.as_str().into()), "the same bytes are the same version");
    let history = gateway.get("plugins/rules").await;
    let whats: Vec<&str> =
        history["activations"].as_array().unwrap().iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["rollback", "activate", "activate"]);
    assert_eq!(history["activations"][0]["by"], "operator");
    assert_eq!((history["versions"].as_array().unwrap().len(), &history["endpoints"][0]), (2, &"billing".into()));
}

#[tokio::test]
async fn without_a_version_events_are_kept_and_sent_once_there_is_one() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&config(&receiver, "")).await;
    for _ in 0..3 {
        publish(&gateway).await;
    }
    let (state, why) = status(&gateway).await;
    assert!(state == "paused" && why.starts_with("plugin_not_ready: upload and activate"), "{state} {why}");
    gateway.stop().await;
    gateway.boot().await;
    let resumed = gateway.post("endpoints/billing/resume", &json!({})).await;
    assert_eq!(resumed.status, 200);
    // Whoever resumes it without a version learns that nothing is sent, and no budget is spent.
    until("an attempt was handed back", || async { (status(&gateway).await.1 == "plugin_unavailable").then_some(()) })
        .await;
    assert_eq!(receiver.count(), 0);
    let waits = gateway.until_deliveries("state=pending", 3).await;
    for row in &waits {
        for attempt in gateway.delivery(row["id"].as_str().unwrap()).await["attempts"].as_array().unwrap() {
            assert_eq!((&attempt["disposition"], &attempt["plugin_version"]), (&"released".into(), &Value::Null));
        }
    }
    let one = shipped(&gateway, "?activate=true", sends("rules")).await;
    assert_eq!(last_attempt(&gateway, 3).await["plugin_version"], one.as_str());
    assert_eq!((status(&gateway).await, receiver.count()), (("enabled".to_owned(), String::new()), 3));
}

#[tokio::test]
async fn faults_in_a_row_disable_a_version_for_the_one_before() {
    let receiver = Receiver::kind().await;
    let retry = "retry = { max_attempts = 60, delays = [\"10ms\"], jitter = \"none\" }\n";
    let text = config(&receiver, "")
        .replace("retry = { max_attempts = 3, delays = [\"50ms\", \"100ms\"], jitter = \"none\" }\n", retry);
    assert!(text.contains("60"), "{text}");
    let mut gateway = Gateway::start(&text).await;
    let one = shipped(&gateway, "?activate=true", sends("rules")).await;
    let bad = shipped(&gateway, "?activate=true", transform_with("", "unreachable")).await;
    publish(&gateway).await;
    assert_eq!(last_attempt(&gateway, 1).await["plugin_version"], one.as_str(), "the one before has taken over");
    let row = gateway.until_deliveries("state=delivered", 1).await.remove(0);
    let attempts = gateway.delivery(row["id"].as_str().unwrap()).await["attempts"].clone();
    let faulted = |attempt: &&Value| attempt["outcome"] == "faulted" && attempt["reason"] == "plugin_fault";
    let faults: Vec<&Value> = attempts.as_array().unwrap().iter().filter(faulted).collect();
    assert_eq!(faults.len(), 20);
    assert!(faults.iter().all(|attempt| attempt["plugin_version"] == bad.as_str()));
    assert_eq!(gateway.metric("hookgate_plugins_disabled_total").await, Some(1.0));
    gateway.kill();
    gateway.boot().await;
    let plugin = gateway.get("plugins/rules").await;
    assert_eq!((&plugin["active"], &plugin["versions"][0]["state"]), (&one.as_str().into(), &"disabled".into()));
    assert_eq!(plugin["versions"][0]["fault"], json!({"kind": "trap", "in_a_row": 20}));
    assert_eq!(
        (&plugin["activations"][0]["what"], &plugin["activations"][0]["by"]),
        (&"disable".into(), &"gateway".into())
    );
    // Who asks for it by name gives it another try.
    activate(&gateway, &bad).await;
    assert_eq!(gateway.get("plugins/rules").await["versions"][0]["state"], "ready");
}

#[tokio::test]
async fn with_nothing_to_fall_back_to_a_transform_waits_and_a_classify_falls_back() {
    let receiver = Receiver::kind().await;
    let retry = "retry = { max_attempts = 60, delays = [\"10ms\"], jitter = \"none\" }\n";
    let text = config(&receiver, "")
        .replace("retry = { max_attempts = 3, delays = [\"50ms\", \"100ms\"], jitter = \"none\" }\n", retry);
    let gateway = Gateway::start(&text).await;
    shipped(&gateway, "?activate=true", transform_with("", "unreachable")).await;
    publish(&gateway).await;
    until("the endpoint waits for another version", || async {
        status(&gateway).await.1.contains("disabled by its faults").then_some(())
    })
    .await;
    gateway.until_deliveries("state=pending", 1).await;
    assert_eq!(receiver.count(), 0, "nothing goes out untransformed");
    shipped(&gateway, "?activate=true", classify_with("", "unreachable")).await;
    // Its verdicts are the built-in ones from the first fault on: 20 of them, and more once it is disabled.
    gateway.until_deliveries("state=delivered", 1).await;
    for n in 2..=22 {
        publish(&gateway).await;
        gateway.until_deliveries("state=delivered", n).await;
    }
    until("it is disabled", || async { (gateway.get("plugins/rules").await["active"] == Value::Null).then_some(()) })
        .await;
    publish(&gateway).await;
    let last = last_attempt(&gateway, 23).await;
    assert_eq!((&last["decided_by"], &last["plugin_version"]), (&"host".into(), &Value::Null), "{last}");
    assert_eq!(status(&gateway).await.0, "enabled");
}

#[tokio::test]
async fn what_is_no_plugin_is_refused_with_its_rule() {
    let receiver = Receiver::kind().await;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/sms-rules.wasm");
    let filed = format!("[tenants.acme.plugins.filed]\npath = \"{file}\"\n[tenants.globex]\n");
    let gateway = Gateway::start(&(filed + &config(&receiver, ""))).await;
    let empty = component(
        "transform-only",
        &module(&format!("(func (export \"{}\") (type $call) i32.const 16)", super::guests::TRANSFORM)),
    );
    let mut cut = empty.clone();
    cut.truncate(empty.len() / 2);
    for (wasm, rule) in [(b"garbage".to_vec(), "format"), (Vec::new(), "format"), (cut, "format")] {
        let answer = upload(&gateway, "", wasm).await;
        let problem = answer.json();
        assert_eq!((answer.status, answer.code(), &problem["rule"]), (422, "plugin_rejected".into(), &rule.into()));
        assert!(problem["finding"].is_string() && problem["remedy"].is_string(), "{problem}");
        let plugin = gateway.get("plugins/rules").await;
        let version =
            plugin["versions"].as_array().unwrap().iter().find(|row| row["id"] == problem["version"]).unwrap();
        assert_eq!((&version["state"], &version["rejection"]["rule"]), (&"rejected".into(), &rule.into()));
        let activated = gateway.post("plugins/rules/activate", &json!({ "version": problem["version"] })).await;
        assert_eq!((activated.status, activated.code()), (422, "plugin_rejected".into()));
    }
    let large = upload(&gateway, "", vec![0; (4 << 20) + 1]).await;
    assert_eq!((large.status, large.code()), (413, "body_too_large".into()));
    let unknown = json!({"version": "plg_019b7670607b70018000000000000000"});
    assert_eq!(gateway.post("plugins/rules/activate", &unknown).await.status, 404);

    let put = |path: &str| gateway.api("PUT", path).header("content-type", "application/wasm").body(sends("x"));
    let of_the_file = gateway.send(put("plugins/filed")).await.unwrap();
    assert_eq!((of_the_file.status, of_the_file.code()), (409, "managed_by_file".into()));
    let filed = gateway.get("plugins/filed").await;
    assert_eq!((&filed["managed_by"], &filed["versions"][0]["uploaded_by"]), (&"file".into(), &"file".into()));
    assert!(filed["active"].is_string());
    let theirs = gateway.send(put("../globex/plugins/rules")).await.unwrap();
    assert_eq!((theirs.status, theirs.code()), (404, "not_found".into()));
    let none = gateway.get("plugins").await;
    assert_eq!(none["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn deliveries_go_on_while_a_version_is_compiled_and_a_kill_only_begins_it_anew() {
    let receiver = Receiver::kind().await;
    let mut gateway = Gateway::start(&config(&receiver, "")).await;
    let one = shipped(&gateway, "?activate=true", sends("one")).await;
    let answer = upload(&gateway, "?wait=false&activate=true", slow("two")).await;
    let two = answer.json()["id"].clone();
    assert_eq!((answer.status, &answer.json()["state"]), (202, &"compiling".into()), "{}", answer.text);
    for n in 1..=5 {
        publish(&gateway).await;
        assert_eq!(last_attempt(&gateway, n).await["plugin_version"], one.as_str());
    }
    assert_eq!(gateway.get("plugins/rules").await["versions"][0]["state"], "compiling", "all of that took less time");
    compiles_behind_the_traffic(&gateway).await;
    let early = gateway.post("plugins/rules/activate", &json!({ "version": two })).await;
    assert_eq!((early.status, early.code()), (409, "not_ready".into()));
    gateway.kill();
    gateway.boot().await;
    compiles_behind_the_traffic(&gateway).await;
    publish(&gateway).await;
    assert_eq!(last_attempt(&gateway, 6).await["plugin_version"], one.as_str());
    let ready = until("the version is ready", || async {
        let version = gateway.get("plugins/rules").await["versions"][0].clone();
        (version["state"] != "compiling").then_some(version)
    })
    .await;
    assert_eq!((&ready["id"], &ready["state"], &ready["exports"]), (&two, &"ready".into(), &json!(["transform"])));
    activate(&gateway, two.as_str().unwrap()).await;
    publish(&gateway).await;
    assert_eq!(last_attempt(&gateway, 7).await["plugin_version"], two);
    assert_eq!(&receiver.journal()[6].body[..], b"two");
}

#[tokio::test]
async fn the_command_line_ships_a_plugin() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    for (file, wasm) in [("one.wasm", sends("one")), ("two.wasm", sends("two")), ("bad.wasm", b"garbage".to_vec())] {
        std::fs::write(gateway.dir.path().join(file), wasm).unwrap();
    }
    let run = |args: &[&str]| {
        let output = gateway.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let checked = run(&["check", gateway.config().to_str().unwrap()]);
    assert!(checked.0 == 0 && checked.1.contains("hookgate plugin upload acme/rules FILE"), "{checked:?}");
    let (exit, one, _) = run(&["plugin", "upload", "acme/rules", "one.wasm", "--quiet"]);
    let one = one.trim();
    assert!(exit == 0 && one.starts_with("plg_"), "{one}");
    assert_eq!(
        run(&["plugin", "activate", "rules", one]),
        (0, format!("rules: in use now: {one} (before: none)\n"), String::new())
    );
    let (exit, two, _) = run(&["plugin", "push", "rules", "two.wasm", "--activate", "--json"]);
    let two: Value = serde_json::from_str(&two).unwrap();
    assert_eq!((exit, &two["active"], &two["state"]), (0, &true.into(), &"ready".into()));
    publish(&gateway).await;
    assert_eq!(last_attempt(&gateway, 1).await["plugin_version"], two["id"]);
    let told = format!("rules: in use now: {one} (before: {})\n", two["id"].as_str().unwrap());
    assert_eq!(run(&["plugin", "rollback", "rules"]), (0, told, String::new()));
    assert_eq!(run(&["plugin", "rollback", "rules"]).0, 6);
    let refused = run(&["plugin", "upload", "rules", "bad.wasm"]);
    assert!(
        refused.0 == 2 && refused.2.contains("plugin_rejected") && refused.2.contains("help: build it"),
        "{refused:?}"
    );
    assert_eq!(run(&["plugin", "upload", "nothing", "one.wasm"]).0, 5);
    let (_, shown, _) = run(&["plugin", "get", "rules"]);
    for told in [one, "rejected", "format: not WebAssembly", "in use; transform", "rollback", "operator"] {
        assert!(shown.contains(told), "{told}: {shown}");
    }
    assert!(run(&["plugin", "list"]).1.contains(one));
}

#[tokio::test]
async fn uploads_that_find_no_room_are_told_when_to_come_again() {
    let receiver = Receiver::kind().await;
    let gateway = Gateway::start(&config(&receiver, "")).await;
    for n in 0..8 {
        assert_eq!(upload(&gateway, "?wait=false", slow(&format!("{n}"))).await.status, 202, "{n}");
    }
    let busy = upload(&gateway, "", sends("one more")).await;
    assert_eq!((busy.status, busy.code()), (503, "busy".into()), "{}", busy.text);
    assert_eq!(busy.headers["retry-after"], "5");
    let versions = gateway.get("plugins/rules").await["versions"].as_array().unwrap().len();
    assert_eq!(versions, 8, "nothing is left of it");
}
