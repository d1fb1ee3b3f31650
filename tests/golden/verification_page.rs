//! `docs/verification.md` says what is so: its configurations compile, its request verifies, its table is complete.

use bytes::Bytes;
use hookgate::clock::Timestamp;
use hookgate::config::{Env, Input, Outside, evaluate};
use hookgate::secret::Secret;
use hookgate::verify::{Admission, CheckStep, Event, RefusalCode, Request, SignRequest, Source, SourceSpec, schemes};
use http::{HeaderMap, HeaderName, Method};
use std::collections::BTreeMap;
use std::path::Path;

const PAGE: &str = include_str!("../../docs/verification.md");

/// The fenced blocks of a language, in order.
fn blocks(language: &str) -> Vec<&'static str> {
    let open = format!("```{language}\n");
    PAGE.split(open.as_str()).skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect()
}

/// The words of the text that stand between backquotes, as in "the secret `word`".
fn quoted_after(words: &str) -> &'static str {
    PAGE.split(words).nth(1).unwrap().trim_start().trim_start_matches('`').split('`').next().unwrap()
}

/// Every source on the page, by its name.
fn sources() -> BTreeMap<String, Source> {
    let text = blocks("toml").join("\n");
    let secret = quoted_after("With the secret");
    let env = Env::from_pairs([
        ("GITHUB_WEBHOOK_SECRET", "a-secret-for-github"),
        ("PARCELS_SECRET", secret),
        ("SHOP_NEW", "a-new-secret-for-the-shop"),
        ("SHOP_OLD", "an-old-secret-for-the-shop"),
    ]);
    let path = Path::new("docs/verification.md");
    let report = evaluate(&Input { text: &text, path, env: &env, flags: &[], outside: Outside::Look });
    assert!(report.problems.is_empty(), "{}", report.lines());
    let tenant = "acme".parse().unwrap();
    let sources = &report.settings.unwrap().tenants[&tenant].sources;
    let compiled = sources.iter().map(|(name, source)| {
        let secrets = source.secrets.iter().map(|secret| secret.resolve(&env).unwrap()).collect();
        let source = source.spec.compile(&tenant, name, secrets).unwrap();
        assert_eq!(source.warnings(), [""; 0], "{name}");
        (name.to_string(), source)
    });
    compiled.collect()
}

/// The request on the page.
fn request() -> (HeaderMap, Bytes) {
    let blocks = blocks("http");
    let [text] = blocks.as_slice() else { panic!("one request") };
    let (head, body) = text.split_once("\n\n").unwrap();
    let headers = head.lines().skip(1).map(|line| line.split_once(": ").unwrap());
    let headers = headers.map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
    (headers.collect(), Bytes::from(body))
}

fn admit(source: &Source, (headers, body): &(HeaderMap, Bytes), now: i64) -> Result<Event, RefusalCode> {
    let received_at = Timestamp::from_millis(now * 1000);
    let request = Request { method: &Method::POST, url: "https://a.test/in/acme/parcels", headers, body, received_at };
    match source.admit(request) {
        Ok(Admission::Event(event)) => Ok(event.into_inner()),
        Ok(Admission::Challenge(_) | Admission::Confirm(_)) => panic!("a challenge"),
        Err(refusal) => Err(refusal.code),
    }
}

#[test]
fn the_request_verifies_by_the_scheme_that_is_described() {
    let sources = sources();
    assert_eq!(sources.keys().collect::<Vec<_>>(), ["github", "parcels", "shop", "topics"]);
    let parcels = &sources["parcels"];
    let now: i64 = quoted_after("this request is valid at").split(' ').next().unwrap().parse().unwrap();
    let sent = request();
    let event = admit(parcels, &sent, now).unwrap();
    assert_eq!((event.provider_id.as_deref(), event.event_type.as_str()), (Some("d-42"), "parcel.delivered"));
    // Its id is signed.
    assert_eq!(event.dedup.unwrap().content, None);
    admit(parcels, &sent, now + 300).unwrap();
    assert_eq!(admit(parcels, &sent, now + 301).unwrap_err(), RefusalCode::TimestampTooOld);
    assert_eq!(admit(parcels, &sent, now - 301).unwrap_err(), RefusalCode::TimestampTooNew);
    let other_body = (sent.0.clone(), Bytes::from_static(b"{}"));
    assert_eq!(admit(parcels, &other_body, now).unwrap_err(), RefusalCode::SignatureMismatch);
    let mut other_number = sent.clone();
    other_number.0.insert("x-parcel-delivery", "d-43".parse().unwrap());
    assert_eq!(admit(parcels, &other_number, now).unwrap_err(), RefusalCode::SignatureMismatch);
}

/// Whether an event of the scheme is known by its id alone.
fn signs_id(scheme: &str) -> bool {
    let spec = SourceSpec { scheme: scheme.to_owned(), ..SourceSpec::default() };
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let source = spec.compile(&"acme".parse().unwrap(), &"a".parse().unwrap(), vec![secret]).unwrap();
    let (body, now) = (Bytes::from_static(br#"{"id":"e1","event_id":"e1"}"#), 1_767_225_600);
    let timestamp = Timestamp::from_millis(now * 1000);
    let sign = SignRequest { id: "e1", event_type: None, timestamp, url: "https://a.test/", body: &body };
    let headers = source.sign(sign).unwrap();
    let headers = headers.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
    let event = admit(&source, &(headers.collect(), body.clone()), now).unwrap();
    assert_eq!(event.provider_id.as_deref(), Some("e1"));
    event.dedup.unwrap().content.is_none()
}

/// The rows of the table under a heading, as cells.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let chapter = PAGE.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
    let lines = chapter.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    lines.skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_table_has_every_scheme_with_its_window() {
    let rows = rows("## Built-in schemes");
    let listed: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    let is_data = |name: &&str| !schemes::builtin(name).unwrap().verify.unwrap_or_default().starts_with("builtin:");
    assert_eq!(listed, schemes::names().filter(is_data).collect::<Vec<_>>());
    for row in rows {
        let scheme = schemes::builtin(row[0].trim_matches('`')).unwrap();
        let window = scheme.time.map_or("none".to_owned(), |time| format!("{} s", time.tolerance));
        assert_eq!(row[2], window, "{}", row[0]);
        let named = scheme.id.iter().chain(scheme.alternatives.iter().flat_map(|a| &a.id));
        for place in named.map(|at| at.trim_start_matches("header:").trim_start_matches("json:/")) {
            assert!(row[3].contains(&format!("`{place}`")), "{} {place}", row[0]);
        }
        assert_eq!(row[4], if signs_id(row[0].trim_matches('`')) { "yes" } else { "no" }, "{}", row[0]);
    }
}

#[test]
fn the_table_of_code_has_every_scheme_with_its_window_and_settings() {
    let rows = rows("## Schemes that are code");
    let listed: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    let is_code = |name: &&str| schemes::builtin(name).unwrap().verify.unwrap_or_default().starts_with("builtin:");
    assert_eq!(listed, schemes::names().filter(is_code).collect::<Vec<_>>());
    for row in rows {
        let name = row[0].trim_matches('`');
        let window = schemes::builtin(name).unwrap().time.map_or(0, |time| time.tolerance);
        let told = if window == 0 { "none".to_owned() } else { format!("{window} s") };
        assert!(row[2].starts_with(&told), "{name}");
        let settings = schemes::settings(name);
        assert!(settings.iter().all(|setting| row[4].contains(&format!("`{setting}`"))), "{name}");
        assert_eq!(row[4].is_empty(), settings.is_empty(), "{name}");
        assert_eq!(row[3].starts_with("none"), schemes::publishes_keys(name) && name != "rfc9421", "{name}");
    }
    let published: Vec<&str> =
        self::rows("## Keys that providers publish").iter().map(|row| row[0].trim_matches('`')).collect();
    let ours = schemes::names().filter(|name| schemes::publishes_keys(name) || *name == "plaid");
    assert_eq!(published, {
        let mut ours: Vec<&str> = ours.collect();
        ours.sort_by_key(|name| {
            ["aws-sns", "paypal", "plaid", "truelayer", "rfc9421"].iter().position(|known| known == name)
        });
        ours
    });
}

#[test]
fn the_steps_are_in_their_order() {
    let steps: Vec<&str> = rows("## The order of checks").iter().map(|row| row[0]).collect();
    assert_eq!(steps, CheckStep::ALL.map(CheckStep::as_str));
}
