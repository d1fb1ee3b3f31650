//! A provider that hands its secret over: taken once, kept over restarts, forgotten by an operator, shown to nobody.

use super::{Gateway, Receiver, endpoint};
use futures_util::future::join_all;
use serde_json::{Value, json};

const FIRST: &str = "first-hook-secret-b537207f20cbfa02";
const OTHER: &str = "other-hook-secret-357cf448134da559";
const EVENTS: &str = r#"{"events":[{"action":"changed","resource":{"gid":"1"}}]}"#;

fn signed(gateway: &Gateway, secret: &str, body: &str) -> reqwest::RequestBuilder {
    let signature = super::process::github_signature(secret, body.as_bytes());
    gateway.inlet("asana", body).header("x-hook-signature", signature.strip_prefix("sha256=").unwrap())
}

fn handshake(gateway: &Gateway, secret: &str) -> reqwest::RequestBuilder {
    gateway.inlet("asana", "{}").header("x-hook-secret", secret)
}

/// The status, the code of a refusal, and the secret that came back.
async fn told(gateway: &Gateway, request: reqwest::RequestBuilder) -> (u16, String, Option<String>) {
    let answer = gateway.send(request).await.unwrap();
    let echoed = answer.headers.get("x-hook-secret").map(|value| value.to_str().unwrap().to_owned());
    assert!(!answer.text.contains("hook-secret-"), "{}", answer.text);
    (answer.status, if answer.status == 200 { String::new() } else { answer.code() }, echoed)
}

fn taken(secret: &str) -> (u16, String, Option<String>) {
    (200, String::new(), Some(secret.to_owned()))
}

fn refused(code: &str) -> (u16, String, Option<String>) {
    (401, code.to_owned(), None)
}

fn command(gateway: &Gateway, args: &[&str]) -> (i32, String) {
    let output = gateway.command(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

async fn adoption(gateway: &Gateway) -> (Value, bool) {
    let source = gateway.get("sources/asana").await;
    (source["adoption"].clone(), source["adopted_at"].is_string())
}

#[tokio::test]
async fn a_secret_is_taken_once_and_kept_until_it_is_forgotten() {
    let receiver = Receiver::kind().await;
    let source = "[tenants.acme.sources.asana]\nscheme = \"asana\"\n";
    let mut gateway = Gateway::start(&(source.to_owned() + &endpoint("billing", &receiver.url("/"), ""))).await;
    assert_eq!(told(&gateway, signed(&gateway, FIRST, EVENTS)).await, refused("no_secret"));
    assert_eq!(adoption(&gateway).await, ("awaited".into(), false));

    assert_eq!(told(&gateway, handshake(&gateway, FIRST)).await, taken(FIRST));
    assert_eq!(adoption(&gateway).await, ("held".into(), true));
    let with_header = signed(&gateway, FIRST, EVENTS).header("x-hook-secret", FIRST);
    gateway.accepted(with_header).await;
    let seen = receiver.until_count(1).await.remove(0);
    assert_eq!((&seen.body[..], seen.header("x-hook-secret")), (EVENTS.as_bytes(), ""));
    gateway.until_deliveries("state=delivered", 1).await;

    // A kill takes nothing of what was answered, and neither does a reload.
    gateway.kill();
    gateway.boot().await;
    gateway.signal(libc::SIGHUP);
    super::until("the reload is done", || async { gateway.log().contains("plugins were applied").then_some(()) }).await;
    gateway.accepted(signed(&gateway, FIRST, r#"{"events":[]}"#)).await;
    assert_eq!(told(&gateway, handshake(&gateway, FIRST)).await, taken(FIRST), "a repetition");
    assert_eq!(told(&gateway, handshake(&gateway, OTHER)).await, refused("secret_held"));
    assert_eq!(told(&gateway, signed(&gateway, OTHER, EVENTS)).await, refused("signature_mismatch"));

    let (exit, text) = command(&gateway, &["source", "forget-secret", "asana"]);
    assert!(exit == 2 && text.contains("--yes"), "{text}");
    assert_eq!(adoption(&gateway).await, ("held".into(), true));
    assert_eq!(
        command(&gateway, &["source", "forget-secret", "acme/asana", "--yes"]),
        (0, "asana  awaited\n".to_owned())
    );
    assert_eq!(told(&gateway, signed(&gateway, FIRST, EVENTS)).await, refused("no_secret"));
    assert_eq!(told(&gateway, handshake(&gateway, OTHER)).await, taken(OTHER));
    gateway.accepted(signed(&gateway, OTHER, r#"{"events":[{"action":"added"}]}"#)).await;
    assert_eq!(told(&gateway, signed(&gateway, FIRST, EVENTS)).await, refused("signature_mismatch"));
    gateway.stop().await;
    gateway.boot().await;
    assert_eq!(told(&gateway, handshake(&gateway, FIRST)).await, refused("secret_held"));
    nowhere_shown(&mut gateway).await;
}

/// Neither secret is in anything that a person reads, nor on the disk.
async fn nowhere_shown(gateway: &mut Gateway) {
    let rejections = gateway.get("rejections?limit=200").await;
    let reasons: Vec<&str> =
        rejections["items"].as_array().unwrap().iter().map(|row| row["reason"].as_str().unwrap()).collect();
    assert!(reasons.contains(&"no_secret"), "{reasons:?}");
    let (_, listed) = command(gateway, &["source", "list"]);
    let (_, got) = command(gateway, &["source", "get", "asana"]);
    assert!(listed.contains("held") && got.contains("adopted_at"), "{listed}{got}");
    let mut all = vec![rejections.to_string(), listed, got, gateway.get("events").await.to_string()];
    all.push(gateway.get("deliveries").await.to_string());
    for row in gateway.get("deliveries").await["items"].as_array().unwrap() {
        all.push(gateway.delivery(row["id"].as_str().unwrap()).await.to_string());
    }
    gateway.stop().await;
    gateway.boot().await;
    let kept = gateway.get("rejections?reason=secret_held").await;
    assert_eq!((&kept["items"][0]["step"], kept["items"].as_array().unwrap().len()), (&json!("match"), 2), "{kept}");
    all.extend([kept.to_string(), gateway.log()]);
    for text in all {
        assert!(!text.contains(FIRST) && !text.contains(OTHER), "{text}");
    }
    let mut files = 0;
    for file in std::fs::read_dir(gateway.dir.path().join("data")).unwrap() {
        let path = file.unwrap().path();
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let has = |secret: &str| bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
        assert!(!has(FIRST) && !has(OTHER), "{}", path.display());
        files += 1;
    }
    assert!(files >= 3, "{files}");
}

#[tokio::test]
async fn of_handshakes_at_once_one_wins_for_good() {
    let source = "[tenants.acme.sources.asana]\nscheme = \"asana\"\n";
    let mut gateway = Gateway::start(source).await;
    let secrets: Vec<String> = (0..16).map(|n| format!("{FIRST}-{n}")).collect();
    let answers = join_all(secrets.iter().map(|secret| told(&gateway, handshake(&gateway, secret)))).await;
    let won: Vec<&String> = secrets.iter().zip(&answers).filter(|(_, a)| a.0 == 200).map(|(s, _)| s).collect();
    let [won] = won.as_slice() else { panic!("{answers:?}") };
    for (secret, answer) in secrets.iter().zip(&answers) {
        assert_eq!(*answer, if secret == *won { taken(secret) } else { refused("secret_held") });
    }
    gateway.kill();
    gateway.boot().await;
    for secret in &secrets {
        let expected = if secret == *won { taken(secret) } else { refused("secret_held") };
        assert_eq!(told(&gateway, handshake(&gateway, secret)).await, expected);
    }
}

#[tokio::test]
async fn secrets_of_the_file_count_alone() {
    let without = "[tenants.acme.sources.asana]\nscheme = \"asana\"\n";
    let mut gateway = Gateway::start(without).await;
    assert_eq!(told(&gateway, handshake(&gateway, FIRST)).await, taken(FIRST));
    gateway.stop().await;
    let text = std::fs::read_to_string(gateway.config()).unwrap();
    std::fs::write(gateway.config(), format!("{text}secrets = [\"{OTHER}\"]\n")).unwrap();
    gateway.boot().await;
    assert_eq!(adoption(&gateway).await, ("unused".into(), true));
    assert_eq!(told(&gateway, signed(&gateway, FIRST, EVENTS)).await, refused("signature_mismatch"));
    assert_eq!(told(&gateway, handshake(&gateway, FIRST)).await, refused("secret_held"));
    assert_eq!(told(&gateway, handshake(&gateway, OTHER)).await, taken(OTHER));
    gateway.accepted(signed(&gateway, OTHER, EVENTS)).await;
    assert_eq!(command(&gateway, &["source", "forget-secret", "asana", "-y"]), (0, "asana  forgotten\n".to_owned()));
    let (exit, text) = command(&gateway, &["source", "forget-secret", "asana", "-y"]);
    assert!(exit == 6 && text.contains("managed_by_file"), "{text}");
}
