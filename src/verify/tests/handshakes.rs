//! Handshakes of the built-in schemes: what is answered, and what is not.

use super::*;

/// A request of any method.
struct Asked {
    method: Method,
    post: Post,
}

fn ask(method: &str, query: &str, headers: &[(&str, &str)], body: &str) -> Asked {
    let url = format!("https://hooks.example.test/in/acme/src{query}");
    Asked { method: method.parse().unwrap(), post: Post { url, ..Post::new(headers, body.as_bytes()) } }
}

fn answered(source: &Source, asked: &Asked) -> Option<ChallengeAnswer> {
    let request = Request { method: &asked.method, ..asked.post.request() };
    let steps = source.explain(request);
    match source.admit(request) {
        Ok(Admission::Challenge(answer)) => {
            assert!(steps.iter().all(|step| step.ok), "{steps:?}");
            Some(answer)
        }
        Ok(Admission::Event(_) | Admission::Confirm(_) | Admission::Adopt { .. }) => {
            assert_eq!(asked.method, Method::POST, "only what is posted may be an event");
            None
        }
        Err(_) => {
            assert!(!steps.last().unwrap().ok);
            None
        }
    }
}

#[track_caller]
fn says(source: &Source, asked: &Asked, status: u16, content_type: &str, body: &str) {
    let answer = answered(source, asked).expect("an answer");
    let told = (answer.status.as_u16(), answer.content_type.to_str().unwrap(), std::str::from_utf8(&answer.body));
    assert_eq!(told, (status, content_type, Ok(body)));
}

/// It looks like a handshake, and who asks is told that it is none of ours.
#[track_caller]
fn is_refused(source: &Source, asked: &Asked) {
    let request = Request { method: &asked.method, ..asked.post.request() };
    let refused = source.admit(request).expect_err("a refusal");
    assert_eq!((refused.code, refused.step), (RefusalCode::HandshakeRefused, CheckStep::Match), "{refused}");
    assert!(source.explain(request).last().unwrap().detail.starts_with("handshake_refused"));
}

#[track_caller]
fn is_none(source: &Source, asked: &Asked) {
    assert_eq!(answered(source, asked), None);
}

/// A body that the scheme's own secret signed.
fn signed_by(source: &Source, body: &str, headers: &[(&str, &str)]) -> Asked {
    let mut post = signed(source, "id-1", NOW, body.as_bytes());
    for (name, value) in headers {
        post = post.with(name, value.as_bytes());
    }
    Asked { method: Method::POST, post }
}

fn of(scheme: &str) -> Source {
    compile(&builtin(scheme), vec![text_secret()])
}

#[test]
fn slack_and_twitch_want_the_challenge_back() {
    let slack = of("slack");
    let body = r#"{"type":"url_verification","challenge":"3eZbrw1a"}"#;
    says(&slack, &signed_by(&slack, body, &[]), 200, "text/plain", "3eZbrw1a");
    is_none(&slack, &ask("POST", "", &[], body));
    let twitch = of("twitch");
    let kind = ("twitch-eventsub-message-type", "webhook_callback_verification");
    let body = r#"{"challenge":"pogchamp-kappa-360noscope-vohiyo","subscription":{"type":"channel.follow"}}"#;
    says(&twitch, &signed_by(&twitch, body, &[kind]), 200, "text/plain", "pogchamp-kappa-360noscope-vohiyo");
    is_none(&twitch, &ask("POST", "", &[kind], body));
    let notification = signed_by(&twitch, body, &[(kind.0, "notification")]);
    assert_eq!(event(&twitch, &notification.post).event_type, "channel.follow");
}

#[test]
fn zoom_wants_the_code_of_its_token() {
    let zoom = of("zoom");
    let body = r#"{"payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"},"event":"endpoint.url_validation"}"#;
    let code = "2482ea1194748b7505c597915d33fe159a9c43b5c1695cb8641afd02cf06156e";
    let answer = format!(r#"{{"plainToken":"qgg8vlvZRS6UYooatFL8Aw","encryptedToken":"{code}"}}"#);
    says(&zoom, &signed_by(&zoom, body, &[]), 200, "application/json", &answer);
    is_none(&zoom, &ask("POST", "", &[], body));
    // The secret that signed makes the code.
    let rotating = compile(&builtin("zoom"), vec![Secret::new("another-secret-of-ours"), text_secret()]);
    says(&rotating, &signed_by(&zoom, body, &[]), 200, "application/json", &answer);
}

#[test]
fn x_wants_the_code_of_its_token_and_gives_nobody_a_signature() {
    let x = of("x-twitter");
    let answer = r#"{"response_token":"sha256=oWSQBlKao5Ck79t5+n6VwhK5fmFAXRtfu5IqkmHdRFk="}"#;
    says(&x, &ask("GET", "?crc_token=challenge_string", &[], ""), 200, "application/json", answer);
    for query in ["", "?crc_token=", "?crc_token=a&crc_token=b", "?crc_token=%7B%22a%22:1%7D", "?crc_token=a%20b"] {
        is_none(&x, &ask("GET", query, &[], ""));
    }
    is_none(&x, &ask("GET", &format!("?crc_token={}", "a".repeat(257)), &[], ""));
    is_none(&x, &ask("POST", "?crc_token=a", &[], ""));
    // What anybody may have asked for is no signature of an event.
    let code = [("x-twitter-webhooks-signature", "sha256=oWSQBlKao5Ck79t5+n6VwhK5fmFAXRtfu5IqkmHdRFk=")];
    let forged = ask("POST", "", &code, "challenge_string");
    assert_eq!(refusal(&x, &forged.post), RefusalCode::Malformed);
    event(&x, &signed(&x, "", NOW, br#"{"for_user_id":"1"}"#));
}

#[test]
fn meta_is_answered_by_who_knows_the_verify_token() {
    let meta = compile(&builtin("meta"), vec![text_secret(), Secret::new("verify:our-verify-token")]);
    let query = |token: &str| format!("?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token={token}");
    says(&meta, &ask("GET", &query("our-verify-token"), &[], ""), 200, "text/plain", "1158201444");
    for token in ["our-verify-toke", "", "verify:our-verify-token", "hookgate-test-secret", "a&hub.verify_token=b"] {
        is_refused(&meta, &ask("GET", &query(token), &[], ""));
    }
    is_refused(&meta, &ask("GET", "?hub.mode=subscribe&hub.challenge=1", &[], ""));
    let none = |method, query: &str| {
        let asked = ask(method, query, &[], "");
        is_none(&meta, &asked);
        assert_eq!(refusal_of(&meta, &asked), RefusalCode::MissingHeader, "{method} {query}");
    };
    none("GET", "?hub.mode=unsubscribe&hub.challenge=1&hub.verify_token=our-verify-token");
    none("GET", "?hub.mode=subscribe&hub.verify_token=our-verify-token");
    none("GET", "?hub.challenge=1&hub.verify_token=wrong");
    none("POST", &query("our-verify-token"));
    none("POST", &query("wrong"));
    none("HEAD", &query("our-verify-token"));
    // Without a token nobody is answered, and no token signs.
    is_refused(&of("meta"), &ask("GET", &query(""), &[], ""));
    let by_token = of_secret("meta", "our-verify-token");
    assert_eq!(refusal(&meta, &signed(&by_token, "", NOW, b"{}")), RefusalCode::SignatureMismatch);
    event(&meta, &signed(&of("meta"), "", NOW, b"{}"));
}

/// Who reads it knows what to mend.
#[test]
fn a_handshake_that_is_refused_says_why() {
    let meta = compile(&builtin("meta"), vec![text_secret(), Secret::new("verify:our-verify-token")]);
    let told = |source: &Source, query: &str| {
        let asked = ask("GET", query, &[], "");
        let request = Request { method: &asked.method, ..asked.post.request() };
        let steps = source.explain(request);
        assert_eq!(steps.len(), 1, "no step is told that was not taken: {steps:?}");
        let refusal = source.admit(request).unwrap_err();
        assert_eq!(steps[0].detail, refusal.to_string());
        refusal.detail
    };
    let subscribe = "?hub.mode=subscribe&hub.challenge=1";
    let other = format!("{subscribe}&hub.verify_token=other");
    let long = format!("?hub.mode=subscribe&hub.verify_token=our-verify-token&hub.challenge={}", "1".repeat(2049));
    for (source, query, why) in [
        (&meta, other.as_str(), "parameter hub.verify_token is not what the source's secret for it says"),
        (&meta, subscribe, "parameter hub.verify_token is absent or empty"),
        (&of("meta"), &other, "the source has nothing to compare"),
        (&of("meta"), &other, "none of its secrets begins with `verify:`"),
        (&meta, "", "GET is for the scheme's handshake alone, and query parameter hub.mode is absent or empty"),
        (&meta, "?hub.mode=unsubscribe", "hub.mode is not `subscribe`"),
        (&meta, "?hub.mode=subscribe&hub.verify_token=our-verify-token", "hub.challenge is absent or empty"),
        (
            &meta,
            "?hub.mode=subscribe&hub.verify_token=our-verify-token&hub.challenge=1&hub.challenge=2",
            "hub.challenge is there more than once",
        ),
        (&meta, &long, "hub.challenge is longer than 2048 bytes"),
        (
            &of("x-twitter"),
            "?crc_token=%7B%7D",
            "GET is for the scheme's handshake alone, and it does not have that form",
        ),
    ] {
        let detail = told(source, query);
        assert!(detail.contains(why), "{query}: {detail}");
    }
    assert!(meta.warnings().is_empty(), "{:?}", meta.warnings());
    let warnings = of("meta").warnings().join("; ");
    assert!(
        warnings.starts_with("secrets: none begins with `verify:`, so the scheme's handshake is refused"),
        "{warnings}"
    );
    for (scheme, methods) in
        [("meta", &["GET"][..]), ("github", &[]), ("cloudevents", &["OPTIONS"]), ("trello", &["HEAD"])]
    {
        assert_eq!(of(scheme).greeting_methods().into_iter().collect::<Vec<_>>(), methods, "{scheme}");
    }
}

fn refusal_of(source: &Source, asked: &Asked) -> RefusalCode {
    source.admit(Request { method: &asked.method, ..asked.post.request() }).unwrap_err().code
}

fn of_secret(scheme: &str, secret: &str) -> Source {
    compile(&builtin(scheme), vec![Secret::new(secret)])
}

#[test]
fn echoes_of_what_is_not_signed_are_short_text() {
    let dropbox = of("dropbox");
    says(&dropbox, &ask("GET", "?challenge=%3Cscript%3E", &[], ""), 200, "text/plain", "<script>");
    is_none(&dropbox, &ask("GET", "?challenge=", &[], ""));
    is_none(&dropbox, &ask("GET", "", &[], ""));
    is_none(&dropbox, &ask("GET", &format!("?challenge={}", "a".repeat(2049)), &[], ""));
    is_none(&dropbox, &ask("POST", "?challenge=a", &[], ""));
    is_none(&dropbox, &ask("OPTIONS", "?challenge=a", &[], ""));

    let websub = of("websub");
    let query = "?hub.mode=subscribe&hub.topic=https%3A%2F%2Fa.test%2Ffeed&hub.challenge=abc";
    says(&websub, &ask("GET", query, &[], ""), 200, "text/plain", "abc");
    says(&websub, &ask("GET", &query.replace("subscribe", "unsubscribe"), &[], ""), 200, "text/plain", "abc");
    is_none(&websub, &ask("GET", &query.replace("subscribe", "denied"), &[], ""));
    is_none(&websub, &ask("GET", "?hub.mode=subscribe&hub.challenge=abc", &[], ""));

    let graph = of("ms-graph");
    says(&graph, &ask("POST", "?validationToken=Val%3A+a%20b", &[], ""), 200, "text/plain", "Val: a b");
    says(&graph, &ask("POST", "?validationToken=%3Cb%3E", &[], ""), 200, "text/plain", "<b>");
    is_none(&graph, &ask("POST", "", &[], ""));
    is_none(&graph, &ask("POST", "?validationToken=", &[], ""));
    is_none(&graph, &ask("POST", "?validationToken=a&validationToken=b", &[], ""));
    for method in ["GET", "HEAD", "OPTIONS"] {
        is_none(&graph, &ask(method, "?validationToken=a", &[], ""));
    }
    // Its body is empty, to the byte.
    for body in ["{}", " ", "\n", r#"{"value":[]}"#] {
        is_none(&graph, &ask("POST", "?validationToken=a", &[], body));
    }
    // A notification is verified, whatever its URL says.
    let body = r#"{"value":[{"id":"1","clientState":"hookgate-test-secret","changeType":"created"}]}"#;
    event(&graph, &ask("POST", "?validationToken=a", &[], body).post);
    let wrong = ask("POST", "?validationToken=a", &[], &body.replace("test", "rest"));
    assert_eq!(refusal(&graph, &wrong.post), RefusalCode::SignatureMismatch);
}

#[test]
fn okta_wants_its_header_back_in_json() {
    let okta = of("okta");
    let challenge = ("x-okta-verification-challenge", "a\"b");
    says(&okta, &ask("GET", "", &[challenge], ""), 200, "application/json", r#"{"verification":"a\"b"}"#);
    let authorized = [challenge, ("authorization", "hookgate-test-secret")];
    says(&okta, &ask("GET", "", &authorized, ""), 200, "application/json", r#"{"verification":"a\"b"}"#);
    is_none(&okta, &ask("GET", "", &[], ""));
    is_none(&okta, &ask("POST", "", &[challenge], ""));
    event(&okta, &ask("POST", "", &authorized, r#"{"eventId":"1"}"#).post);
}

#[test]
fn event_grid_validates_by_its_code_or_by_cloud_events() {
    let grid = of("azure-event-grid");
    let kind = ("aeg-event-type", "SubscriptionValidation");
    let body = r#"[{"id":"1","eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"512d38b6"}}]"#;
    let code = "?code=hookgate-test-secret";
    says(&grid, &ask("POST", code, &[kind], body), 200, "application/json", r#"{"validationResponse":"512d38b6"}"#);
    is_none(&grid, &ask("POST", "?code=guessed", &[kind], body));
    is_none(&grid, &ask("POST", "", &[kind], body));
    assert_eq!(
        event(&grid, &ask("POST", code, &[(kind.0, "Notification")], body).post).provider_id.as_deref(),
        Some("1")
    );
    let origin = ("webhook-request-origin", "eventgrid.azure.net");
    let answer = answered(&grid, &ask("OPTIONS", code, &[origin], "")).unwrap();
    assert_eq!(shown(&answer), allowed("eventgrid.azure.net"));
    let rate = ("webhook-request-rate", "120");
    assert_eq!(shown(&answered(&grid, &ask("OPTIONS", code, &[origin, rate], "")).unwrap()), shown(&answer));
    is_none(&grid, &ask("OPTIONS", "", &[origin], ""));
}

/// An answer's headers, in the order of their names.
fn shown(answer: &ChallengeAnswer) -> Vec<String> {
    let mut shown: Vec<String> =
        answer.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    shown.sort();
    shown
}

/// What CloudEvents wants to be told.
fn allowed(origin: &str) -> [String; 3] {
    ["allow: POST".to_owned(), format!("webhook-allowed-origin: {origin}"), "webhook-allowed-rate: *".to_owned()]
}

#[test]
fn cloud_events_lets_origins_in() {
    let source = of("cloudevents");
    let answer = answered(&source, &ask("OPTIONS", "", &[("webhook-request-origin", "a.test")], "")).unwrap();
    assert_eq!(shown(&answer), allowed("a.test"));
    assert!(answer.body.is_empty());
    is_none(&source, &ask("OPTIONS", "", &[], ""));
    is_none(&source, &ask("POST", "", &[("webhook-request-origin", "a.test")], ""));
    event(&source, &ask("POST", "", &[("authorization", "Bearer hookgate-test-secret")], "{}").post);
    event(&source, &ask("POST", "?access_token=hookgate-test-secret", &[], "{}").post);
    // The header wins where it is there.
    let both = ask("POST", "?access_token=hookgate-test-secret", &[("authorization", "Bearer guessed")], "{}");
    assert_eq!(refusal(&source, &both.post), RefusalCode::SignatureMismatch);
}

#[test]
fn discord_pings_in_two_ways_and_its_events_are_no_ping() {
    let (private, public) = ed25519_secrets();
    let hex = |secret: &Secret| {
        use base64::Engine as _;
        let text = std::str::from_utf8(&secret.expose()[5..]).unwrap().to_owned();
        Secret::new(hex::encode(base64::engine::general_purpose::STANDARD.decode(text).unwrap()))
    };
    let provider = compile(&builtin("discord"), vec![hex(&private)]);
    let discord = compile(&builtin("discord"), vec![hex(&public)]);
    let interaction = r#"{"type":1,"version":1,"id":"1","token":"t","application_id":"2"}"#;
    says(&discord, &signed_by(&provider, interaction, &[]), 200, "application/json", r#"{"type":1}"#);
    let ping = r#"{"type":0,"version":1,"application_id":"2"}"#;
    says(&discord, &signed_by(&provider, ping, &[]), 204, "text/plain", "");
    let happened = r#"{"type":1,"version":1,"application_id":"2","event":{"type":"APPLICATION_AUTHORIZED"}}"#;
    assert_eq!(event(&discord, &signed_by(&provider, happened, &[]).post).event_type, "APPLICATION_AUTHORIZED");
    let command = interaction.replace("\"type\":1", "\"type\":2");
    assert_eq!(event(&discord, &signed_by(&provider, &command, &[]).post).event_type, "2");
    is_none(&discord, &ask("POST", "", &[], ping));
    // Discord plants wrong signatures and wants them refused.
    let planted = signed_by(&provider, ping, &[("x-signature-timestamp", "1700000001")]);
    assert_eq!(refusal(&discord, &planted.post), RefusalCode::SignatureMismatch);
}

#[test]
fn a_head_request_is_enough_for_trello_and_intercom() {
    for scheme in ["trello", "intercom"] {
        let source = of(scheme);
        says(&source, &ask("HEAD", "", &[], ""), 200, "text/plain", "");
        is_none(&source, &ask("GET", "", &[], ""));
        is_none(&source, &ask("POST", "", &[], ""));
    }
    is_none(&of("github"), &ask("HEAD", "", &[], ""));
}

#[test]
fn woocommerce_tries_a_new_webhook_with_a_form() {
    let shop = of("woocommerce");
    let form = ("content-type", "application/x-www-form-urlencoded");
    says(&shop, &ask("POST", "", &[form], "webhook_id=17"), 200, "text/plain", "");
    is_none(&shop, &ask("POST", "", &[("content-type", "application/json")], "webhook_id=17"));
    let charset = ("content-type", "application/x-www-form-urlencoded; charset=UTF-8");
    says(&shop, &ask("POST", "", &[charset], "webhook_id=17"), 200, "text/plain", "");
    is_none(&shop, &ask("POST", "", &[], "webhook_id=17"));
    for body in [
        "webhook=17",
        "webhook_id=",
        "webhook_id=a",
        "webhook_id=17a",
        "webhook_id=17&a=b",
        "a=b&webhook_id=17",
        "webhook_id=17&webhook_id=18",
        "webhook_id=17\n",
        "webhook_id=+17",
        "webhook_id=123456789012345678901",
        "",
    ] {
        is_none(&shop, &ask("POST", "", &[form], body));
    }
    is_none(&shop, &ask("GET", "", &[form], "webhook_id=17"));
    // With a signature it is an event, or refused.
    event(&shop, &signed(&shop, "1", NOW, b"webhook_id=17").with(form.0, form.1.as_bytes()));
    let forged = ask("POST", "", &[form, ("x-wc-webhook-signature", "AAAA")], "webhook_id=17");
    assert_eq!(refusal(&shop, &forged.post), RefusalCode::Malformed);
}

#[test]
fn xero_is_answered_without_a_body() {
    let xero = of("xero");
    let intent = r#"{"events":[],"firstEventSequence":0,"lastEventSequence":0,"entropy":"S0m3r4Nd0mt3xt"}"#;
    says(&xero, &signed_by(&xero, intent, &[]), 200, "text/plain", "");
    assert_eq!(xero.answers(), Answers::Empty);
    let mut wrong = signed_by(&xero, intent, &[]);
    wrong.post.body = Bytes::from(intent.replace("S0m3", "S0me"));
    assert_eq!(refusal(&xero, &wrong.post), RefusalCode::SignatureMismatch);
    let events = r#"{"events":[{"eventType":"UPDATE"}],"firstEventSequence":1,"lastEventSequence":1}"#;
    assert_eq!(event(&xero, &signed_by(&xero, events, &[]).post).event_type, "UPDATE");
}

#[test]
fn asana_is_confirmed_only_the_secret_that_is_held() {
    let waiting = compile(&builtin("asana"), Vec::new());
    for asana in [of("asana"), waiting.holding(&text_secret()).unwrap()] {
        let answer = answered(&asana, &ask("POST", "", &[("x-hook-secret", "hookgate-test-secret")], "")).unwrap();
        assert_eq!(answer.headers, [("x-hook-secret".parse().unwrap(), "hookgate-test-secret".parse().unwrap())]);
        let other = ask("POST", "", &[("x-hook-secret", "one-of-somebody-else")], "");
        is_none(&asana, &other);
        let refused = asana.admit(other.post.request()).unwrap_err();
        assert_eq!((refused.code, refused.step), (RefusalCode::SecretHeld, CheckStep::Match));
        assert_eq!(refusal(&asana, &ask("POST", "", &[], "").post), RefusalCode::MissingHeader);
        assert!(asana.holding(&text_secret()).is_none(), "it has one");
        let both = signed(&asana, "", NOW, br#"{"events":[]}"#).with("x-hook-secret", b"hookgate-test-secret");
        assert!(event(&asana, &both).headers.is_empty(), "a secret is no header of the event");
    }
}

#[test]
fn every_handshake_has_its_test() {
    let tested = [
        "asana",
        "azure-event-grid",
        "cloudevents",
        "discord",
        "dropbox",
        "intercom",
        "meta",
        "ms-graph",
        "okta",
        "slack",
        "trello",
        "twitch",
        "websub",
        "woocommerce",
        "x-twitter",
        "xero",
        "zoom",
    ];
    let with = |name: &&str| !schemes::builtin(name).unwrap().challenge.is_empty();
    assert_eq!(schemes::names().filter(with).collect::<Vec<_>>(), tested);
}
