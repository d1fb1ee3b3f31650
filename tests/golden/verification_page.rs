//! `docs/verification.md` says what is so: its configurations compile, its request verifies, its table is complete.

use bytes::Bytes;
use hookgate::clock::Timestamp;
use hookgate::config::{Env, Input, Outside, evaluate};
use hookgate::secret::Secret;
use hookgate::verify::{Admission, CheckStep, Event, RefusalCode, Request, Source, SourceSpec, schemes};
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
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal.code),
    }
}

#[test]
fn the_request_verifies_by_the_scheme_that_is_described() {
    let sources = sources();
    assert_eq!(sources.keys().collect::<Vec<_>>(), ["asana", "github", "parcels", "shop", "topics"]);
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

/// The scheme with a secret of its form.
fn source_of(scheme: &str) -> Source {
    let spec = SourceSpec { scheme: scheme.to_owned(), ..SourceSpec::default() };
    let pem = format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        include_str!("../../src/verify/tests/rsa-sha1.spki").trim()
    );
    let p256 = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEKl+MH/WGEV68lhKXPYBYUo7hp5Pn\
                wt8/JY0GNr+kTsIELDNVUv2tLOKyq2hyIMDQesZ20/SkTVkr0nAi4n8bRA==";
    let texts = [
        "user:a-password-of-tests",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "b5076a8474a832daee4dd5b4040983b6623b5f344aca57d4d6ee4baf3f259e6e",
        "toU64xDDSqVz33NTyTF2MrVMZQ0eprZHs5NV5HtrMjs=",
        p256,
        &pem,
    ];
    let compile = |text: &&str| spec.compile(&"acme".parse().unwrap(), &"a".parse().unwrap(), vec![Secret::new(*text)]);
    texts.iter().find_map(|text| compile(text).ok()).unwrap_or_else(|| panic!("{scheme}: no secret fits"))
}

/// The words for a scheme, each once and in its order.
fn each<T: ToString>(words: impl IntoIterator<Item = T>) -> String {
    let mut all: Vec<String> = Vec::new();
    for word in words {
        let word = word.to_string();
        if !all.contains(&word) {
            all.push(word);
        }
    }
    all.join(", ")
}

/// A scheme's row, read from its data.
fn row(name: &str) -> String {
    let scheme = schemes::builtin(name).unwrap();
    let mut alternatives = scheme.alternatives.clone();
    if alternatives.is_empty() {
        alternatives.push(scheme.clone());
    }
    let quoted = |text: &str| format!("`{}`", text.replace('|', "\\|"));
    let verify: Vec<&str> =
        alternatives.iter().map(|a| a.verify.as_deref().or(scheme.verify.as_deref()).unwrap()).collect();
    let signed = alternatives.iter().zip(&verify).map(|(a, verify)| match (a.signed.as_ref(), *verify) {
        (_, "equal" | "basic") => "nothing".to_owned(),
        (own, _) => quoted(own.or(scheme.signed.as_ref()).map_or("{body}", String::as_str)),
    });
    let window = alternatives.iter().map(|a| {
        let time = a.time.as_ref().or(scheme.time.as_ref());
        time.map_or("none".to_owned(), |time| format!("{} s", time.tolerance))
    });
    let ids: Vec<&String> = scheme.id.iter().chain(alternatives.iter().flat_map(|a| &a.id)).collect();
    let id = each(ids.iter().map(|at| match at.split_once(':').unwrap() {
        ("json", pointer) => format!("`{pointer}` in the body"),
        (_, place) => format!("`{place}`"),
    }));
    let is_signed = match (ids.is_empty(), verify.iter().all(|verify| ["equal", "basic"].contains(verify))) {
        (true, _) => "",
        (false, true) => "a token signs nothing",
        (false, false) if source_of(name).signs_key() => "yes",
        (false, false) => "no",
    };
    let handshakes = scheme.challenge.iter().chain(alternatives.iter().flat_map(|a| &a.challenge)).map(|challenge| {
        let method = challenge.method.as_deref().unwrap_or("POST");
        format!("{method}{}", if challenge.signed == Some(false) { "" } else { ", signed" })
    });
    let how = each(verify.iter().map(|verify| quoted(verify)));
    let cells = [quoted(name), how, each(signed), each(window), id, is_signed.to_owned(), each(handshakes)];
    format!("| {} |", cells.join(" | ")).replace("  ", " ")
}

/// The rows of the table under a heading, as cells.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let chapter = PAGE.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
    let lines = chapter.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    lines.skip(2).map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_table_has_every_scheme_as_its_data_says() {
    let rows: Vec<String> = schemes::names().filter(|name| !is_code(name)).map(row).collect();
    let chapter = PAGE.split("## Built-in schemes").nth(1).unwrap().split("\n## ").next().unwrap();
    let table: Vec<&str> = chapter.lines().filter(|line| line.starts_with('|')).collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let head = table[..2].join("\n");
        let page = PAGE.replace(&table.join("\n"), &format!("{head}\n{}", rows.join("\n")));
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/verification.md"), page).unwrap();
        return;
    }
    assert_eq!(table[2..], rows, "docs/verification.md is out of date: run this test with UPDATE_GOLDEN=1");
}

fn is_code(name: &&str) -> bool {
    schemes::builtin(name).unwrap().verify.unwrap_or_default().starts_with("builtin:")
}

#[test]
fn the_table_of_code_has_every_scheme_with_its_window_and_settings() {
    let rows = rows("## Schemes that are code");
    let listed: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    assert_eq!(listed, schemes::names().filter(is_code).collect::<Vec<_>>());
    for row in rows {
        let name = row[0].trim_matches('`');
        let window = schemes::builtin(name).unwrap().time.map_or(0, |time| time.tolerance);
        let told = if window == 0 { "none".to_owned() } else { format!("{window} s") };
        assert!(row[2].starts_with(&told), "{name}");
        let settings = schemes::settings(name);
        assert!(settings.iter().all(|setting| row[4].contains(&format!("`{}`", setting.name))), "{name}");
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
