//! The console as a browser sees it: signing in, what is refused, and every page with data and without.

use crate::office::{CANARY, Office, TOKEN, office};
use crate::peer::{Reply, ask};
use hookgate::admin::Down;
use serde_json::json;

/// What a browser says of a form that a page of the console made.
const SAME: &str = "sec-fetch-site: same-origin\r\n";

struct Browser<'a> {
    office: &'a Office,
    cookie: String,
    form_token: String,
}

async fn send(office: &Office, method: &str, path: &str, headers: &str, body: &str) -> Reply {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:8081\r\n{headers}content-type: application/x-www-form-urlencoded\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    let reply = ask(office.address, request).await;
    let text = reply.text();
    assert!(!text.contains(CANARY) && !text.contains(TOKEN), "{method} {path} shows a secret: {text}");
    let policy = reply.header("content-security-policy").unwrap_or_default().to_owned();
    assert!(policy.contains("default-src 'none'"), "{method} {path}: {policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    for (name, value) in
        [("x-content-type-options", "nosniff"), ("referrer-policy", "same-origin"), ("x-frame-options", "DENY")]
    {
        assert_eq!(reply.header(name), Some(value), "{method} {path}");
    }
    reply
}

impl Reply {
    fn location(&self) -> &str {
        self.header("location").unwrap_or_default()
    }

    fn cookie(&self) -> String {
        self.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
    }
}

async fn signed_in(office: &Office) -> Browser<'_> {
    let reply = send(office, "POST", "/console/sign-in", SAME, &format!("token={TOKEN}")).await;
    assert_eq!((reply.status, reply.location()), (303, "/console/"), "{reply:?}");
    let mut browser = Browser { office, cookie: reply.cookie(), form_token: String::new() };
    let page = browser.page("/console/system").await;
    let field = page.split("name=\"session\" value=\"").nth(1).unwrap();
    browser.form_token = field.split('"').next().unwrap().to_owned();
    browser
}

impl Browser<'_> {
    async fn get(&self, path: &str) -> Reply {
        send(self.office, "GET", path, &format!("cookie: {}\r\n", self.cookie), "").await
    }

    /// One that there is.
    async fn page(&self, path: &str) -> String {
        let reply = self.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{path}");
        reply.text().to_owned()
    }

    async fn post_as(&self, path: &str, headers: &str, body: &str) -> Reply {
        send(self.office, "POST", path, &format!("cookie: {}\r\n{headers}", self.cookie), body).await
    }

    async fn post(&self, path: &str, body: &str) -> Reply {
        self.post_as(path, SAME, &format!("session={}&{body}", self.form_token)).await
    }
}

#[tokio::test]
async fn the_console_begins_with_a_token() {
    let office = office().await;
    let root = send(&office, "GET", "/", "", "").await;
    assert_eq!((root.status, root.location()), (303, "/console/"));
    let to = send(&office, "GET", "/console/t/acme/dlq?by=endpoint", "", "").await;
    assert_eq!(to.location(), "/console/sign-in?back=%2Fconsole%2Ft%2Facme%2Fdlq%3Fby%3Dendpoint");
    let form = send(&office, "GET", to.location(), "", "").await.text().to_owned();
    assert!(form.contains("name=\"back\" value=\"/console/t/acme/dlq?by=endpoint\""), "{form}");
    let elsewhere = send(&office, "GET", "/console/sign-in?back=//evil.example/", "", "").await.text().to_owned();
    assert!(!elsewhere.contains("evil.example"));
    for token in ["", "wrong", "%00", "a%0d%0ab"] {
        let refused = send(&office, "POST", "/console/sign-in", SAME, &format!("token={token}")).await;
        assert_eq!(refused.status, 401, "{token}");
        assert_eq!(refused.header("set-cookie"), None);
    }
    let back = format!("token={TOKEN}&back=%2Fconsole%2Ft%2Facme%2F");
    let begun = send(&office, "POST", "/console/sign-in", SAME, &back).await;
    assert_eq!(begun.location(), "/console/t/acme/");
    let cookie = begun.header("set-cookie").unwrap();
    assert!(cookie.contains("; Path=/console; HttpOnly; SameSite=Strict"), "{cookie}");
    let secure = format!("{SAME}origin: https://127.0.0.1:8081\r\n");
    let secure = send(&office, "POST", "/console/sign-in", &secure, &format!("token={TOKEN}")).await;
    let cookie = secure.header("set-cookie").unwrap();
    assert!(cookie.starts_with("__Host-hookgate=") && cookie.contains("; Path=/; Secure; HttpOnly; SameSite=Strict"));
}

#[tokio::test]
async fn a_session_ends_when_it_is_told_to() {
    let office = office().await;
    let browser = signed_in(&office).await;
    assert_eq!(browser.get("/console/sign-in").await.location(), "/console/");
    let out = browser.post("/console/sign-out", "").await;
    assert_eq!(out.location(), "/console/sign-in");
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(browser.get("/console/t/acme/").await.status, 303);
    let late = browser.post("/console/t/acme/endpoints/billing/pause", "").await;
    assert_eq!((late.status, late.location()), (303, "/console/sign-in"));
}

#[tokio::test]
async fn what_comes_from_another_site_changes_nothing() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let path = "/console/t/acme/endpoints/billing/pause";
    let body = format!("session={}", browser.form_token);
    for headers in [
        "",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\norigin: http://127.0.0.1:8081\r\n",
        "origin: http://evil.example\r\n",
        "origin: null\r\n",
    ] {
        assert_eq!(browser.post_as(path, headers, &body).await.status, 403, "{headers}");
    }
    for session in ["", "session=", "session=x"] {
        assert_eq!(browser.post_as(path, SAME, session).await.status, 403, "{session}");
    }
    let asked = office.ledger.asked.lock().unwrap().clone().unwrap_or_default();
    assert!(!asked.contains("Pause"), "{asked}");
    let from_here = "origin: http://127.0.0.1:8081\r\n";
    assert_eq!(browser.post_as(path, from_here, &body).await.status, 303);
    // Nor does anybody sign a browser in from elsewhere.
    let foreign = send(&office, "POST", "/console/sign-in", "", &format!("token={TOKEN}")).await;
    assert_eq!((foreign.status, foreign.header("set-cookie")), (403, None));
}

#[tokio::test]
async fn it_is_called_by_a_name_it_knows() {
    let office = office().await;
    for (host, status) in [("evil.example", 421), ("console.example", 200), ("localhost:1", 200)] {
        let request = format!("GET /console/sign-in HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(ask(office.address, request).await.status, status, "{host}");
    }
}

const PAGES: [&str; 14] = [
    "",
    "events",
    "deliveries",
    "deliveries?state=dead&q=order-7",
    "dlq",
    "dlq?by=endpoint",
    "dlq/list",
    "dlq/redrive",
    "dlq/purge",
    "operations",
    "endpoints",
    "sources",
    "rejections",
    "plugins",
];

#[tokio::test]
async fn every_page_is_there_with_data_and_without() {
    let office = office().await;
    let browser = signed_in(&office).await;
    for tenant in ["acme", "globex"] {
        for path in PAGES {
            let text = browser.page(&format!("/console/t/{tenant}/{path}")).await;
            assert!(text.contains("<h1>") && text.ends_with("</html>"), "{tenant} {path}");
            assert!(!text.contains("A part of this page is missing"), "{tenant} {path}: {text}");
        }
    }
    for path in
        ["endpoints/billing", "endpoints/only-github?window=7d", "sources/github", "plugins/rules", "plugins/filed"]
    {
        browser.page(&format!("/console/t/acme/{path}")).await;
    }
    let tenants = browser.page("/console/").await;
    assert!(tenants.contains("/console/t/acme/") && tenants.contains("/console/t/globex/"));
    for asset in tenants.split("/console/assets/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        let reply = send(&office, "GET", &format!("/console/assets/{asset}"), "", "").await;
        assert_eq!(reply.status, 200, "{asset}");
        assert!(reply.header("cache-control").unwrap().contains("immutable"));
    }
    assert_eq!(send(&office, "GET", "/console/assets/nothing.js", "", "").await.status, 404);
}

#[tokio::test]
async fn no_page_has_script_or_style_of_its_own() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let delivery = format!("deliveries/{}", office.deliveries[0]);
    for path in PAGES.into_iter().chain([delivery.as_str(), "endpoints/billing", "plugins/rules"]) {
        let text = browser.page(&format!("/console/t/acme/{path}")).await;
        let scripts: Vec<&str> = text.split("<script").skip(1).collect();
        assert!(scripts.len() == 1 && scripts[0].starts_with(" src=\"/console/assets/"), "{path}: {scripts:?}");
        for inline in ["<style", " style=\"", " onclick=", "javascript:"] {
            assert!(!text.contains(inline), "{path} has {inline}");
        }
    }
}

#[tokio::test]
async fn what_is_of_another_tenant_is_not_there() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let theirs = office.deliveries[3];
    browser.page(&format!("/console/t/globex/deliveries/{theirs}")).await;
    for path in [
        format!("t/acme/deliveries/{theirs}"),
        "t/nobody/".to_owned(),
        "t/nobody/deliveries".to_owned(),
        "t/globex/endpoints/billing".to_owned(),
        "t/acme/nothing".to_owned(),
        "t/acme/deliveries/x/y/z".to_owned(),
        "nothing".to_owned(),
    ] {
        assert_eq!(browser.get(&format!("/console/{path}")).await.status, 404, "{path}");
    }
    let redrive = browser.post(&format!("/console/t/acme/deliveries/{theirs}/redrive"), "").await;
    assert_eq!(redrive.status, 404);
}

#[tokio::test]
async fn what_a_receiver_says_is_text() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let text = browser.page(&format!("/console/t/acme/deliveries/{}", office.deliveries[0])).await;
    assert!(
        text.contains("&lt;script&gt;alert(1)&lt;/script&gt;") || text.contains("&#60;script&#62;alert(1)"),
        "{text}"
    );
    assert!(!text.contains("<script>alert"));
    assert!(text.contains("a dead letter at once: terminal (http_500), which no retry mends"), "{text}");
    let searched = browser.page("/console/t/acme/deliveries?q=%22%3E%3Cscript%3Ealert(2)%3C%2Fscript%3E").await;
    assert!(!searched.contains("<script>alert"));
}

#[tokio::test]
async fn a_payload_is_shown_as_it_was_written() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let event = json!({ "type": "push", "payload": null }).to_string();
    let event = event.replace("null", r#"{"z":1.0e400,"a":12345678901234567890123,"b":"</pre><img>"}"#);
    let id = office.post("/v1/tenants/acme/events", &event).await.json()["event"].as_str().unwrap().to_owned();
    let text = browser.page(&format!("/console/t/acme/events/{id}")).await;
    assert!(text.contains("1.0e400") && text.contains("12345678901234567890123"), "{text}");
    assert!(!text.contains("</pre><img>"));
    let saved = browser.get(&format!("/console/t/acme/events/{id}/body")).await;
    assert_eq!(saved.header("content-disposition"), Some(format!("attachment; filename=\"{id}\"").as_str()));
    assert!(saved.header("content-security-policy").unwrap().contains("sandbox"));
    assert!(saved.text().contains("{\"z\":1.0e400,"));
}

#[tokio::test]
async fn a_filter_that_is_none_is_refused_and_told() {
    let office = office().await;
    let browser = signed_in(&office).await;
    for (path, status) in [
        ("deliveries?stat=dead", 400),
        ("deliveries?state=gone", 422),
        ("dlq/redrive?stat=dead", 422),
        ("dlq/redrive?marked=1", 422),
    ] {
        let reply = browser.get(&format!("/console/t/acme/{path}")).await;
        assert_eq!(reply.status, status, "{path}");
        assert!(reply.text().contains("role=\"alert\""), "{path}");
    }
}

#[tokio::test]
async fn dead_letters_are_redriven_by_what_a_filter_says() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let wizard = browser.page("/console/t/acme/dlq/redrive?reason=http_500&status=500").await;
    assert!(wizard.contains("<strong>1</strong> dead letters match now"), "{wizard}");
    *office.yard.down.lock().unwrap() = vec![Down {
        endpoint: "billing".parse().unwrap(),
        host: "billing.example".to_owned(),
        class: "connect".to_owned(),
        detail: "connection refused".to_owned(),
    }];
    let form = "reason=http_500&status=500&canary=1&rate=7&note=back";
    let refused = browser.post("/console/t/acme/dlq/redrive", &format!("{form}&probe=1&wish=w1")).await;
    let text = refused.text();
    assert_eq!(refused.status, 409, "{text}");
    assert!(
        text.contains("billing (billing.example): connection refused") && text.contains("name=\"force\""),
        "{text}"
    );
    assert!(text.contains("name=\"rate\" inputmode=\"numeric\" placeholder=\"100\" value=\"7\""), "{text}");
    let begun = browser.post("/console/t/acme/dlq/redrive", &format!("{form}&probe=1&force=1&wish=w2")).await;
    assert_eq!(begun.status, 303, "{}", begun.text());
    let operation = begun.location().to_owned();
    assert!(operation.starts_with("/console/t/acme/operations/op_"), "{operation}");
    // Sent twice, it is the same one.
    let again = browser.post("/console/t/acme/dlq/redrive", &format!("{form}&probe=1&force=1&wish=w2")).await;
    assert_eq!(again.location(), operation);
    let page = browser.page(&operation).await;
    assert!(page.contains("role=\"status\"") && page.contains("has begun"), "{page}");
    let bad = browser.post("/console/t/acme/dlq/redrive", "rate=quick&wish=w3").await;
    assert!(bad.status == 422 && bad.text().contains("`rate` is to be a whole number"), "{}", bad.text());
}

#[tokio::test]
async fn what_destroys_wants_the_number_typed() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let path = "/console/t/acme/dlq/purge";
    for count in ["", "2", "all"] {
        let refused = browser.post(path, &format!("count={count}")).await;
        assert!(refused.status == 422 && refused.text().contains("Type <strong>1</strong>"), "{}", refused.text());
    }
    let done = browser.post(path, "count=1").await;
    assert_eq!((done.status, done.location()), (303, "/console/t/acme/dlq"));
}

#[tokio::test]
async fn an_endpoint_is_paused_and_what_is_wrong_is_told() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let path = "/console/t/acme/endpoints/billing/pause";
    let wrong = browser.post(path, "for=soon").await;
    assert!(wrong.status == 422 && wrong.text().contains("is not a duration"), "{}", wrong.text());
    let done = browser.post(path, "for=30m&why=their+maintenance").await;
    assert_eq!((done.status, done.location()), (303, "/console/t/acme/endpoints/billing"));
    let page = browser.page("/console/t/acme/endpoints/billing").await;
    assert!(page.contains("their maintenance"), "{page}");
}

#[tokio::test]
async fn the_look_is_kept_in_a_cookie() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let set = browser.post("/console/look", "theme=dark&back=%2Fconsole%2Fsystem").await;
    assert_eq!(set.location(), "/console/system");
    let cookies = format!("cookie: {}; {}\r\n", browser.cookie, set.cookie());
    let page = send(&office, "GET", "/console/system", &cookies, "").await.text().to_owned();
    assert!(page.contains("data-theme=\"dark\""));
    let away = browser.post("/console/look", "theme=x&back=https%3A%2F%2Fevil.example%2F").await;
    assert_eq!(away.location(), "/console/");
}

#[tokio::test]
async fn a_pasted_request_is_checked_step_by_step() {
    let office = office().await;
    let browser = signed_in(&office).await;
    let path = "/console/t/acme/sources/github/explain";
    let wrong = browser.post(path, "request=X-Hub-Signature-256%3A+x%0D%0A%0D%0A%7B%0D%0A%7D").await.text().to_owned();
    assert!(
        wrong.contains("It does not verify") && wrong.contains("&lt;b&gt;none") | wrong.contains("&#60;b&#62;none"),
        "{wrong}"
    );
    let right = browser.post(path, "request=X-Hub-Signature-256%3A+github%0D%0A%0D%0A%7B%7D").await.text().to_owned();
    assert!(right.contains("It verifies"), "{right}");
    let asked = office.yard.asked.lock().unwrap().clone();
    assert!(asked[0].starts_with("explain acme/github POST None \"{\\n}\" at 2026-01-01T00:00:00.123Z"), "{asked:?}");
    let base64 = browser.post(path, "request=x%3A+1%0D%0A%0D%0A%21&base64=1").await;
    assert!(base64.status == 422 && base64.text().contains("is not base64 with padding"), "{}", base64.text());
}
