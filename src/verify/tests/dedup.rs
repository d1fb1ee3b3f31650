//! What makes a second request the same as a first, and that nobody who saw a request can make a new event of it.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

const BODY: &[u8] = br#"{"id":"evt_1","type":"order.paid","n":1.5}"#;
const HMAC: &str = "verify = \"hmac-sha256\"\nsig = { at = [\"header:X-Sig\"], encoding = \"hex\" }\n";
const TIMED: &str = "vars = { t = \"header:X-Time\" }\nsigned = \"{t}.{body}\"\n\
                     time = { var = \"t\", unit = \"s\", tolerance = 300 }\n";

fn after(seconds: u64) -> Timestamp {
    NOW.plus(Duration::from_secs(seconds))
}

fn dedup(source: &Source, post: &Post) -> Dedup {
    event(source, post).dedup.unwrap()
}

fn hmac(more: &str) -> Source {
    compile(&custom(&format!("{HMAC}{more}")), vec![text_secret()])
}

fn chosen(dedup: &str, spec: SourceSpec, secret: Secret) -> Source {
    compile(&SourceSpec { dedup: Some(dedup.to_owned()), ..spec }, vec![secret])
}

#[derive(PartialEq, Eq, Debug)]
enum Answer {
    New,
    Duplicate,
    KeyReused,
}

/// The ledger's rule, without windows.
#[derive(Default)]
struct Memory(HashMap<[u8; 16], [u8; 16]>);

impl Memory {
    fn accept(&mut self, source: &Source, post: &Post) -> Answer {
        let event = event(source, post);
        let Some(dedup) = event.dedup else { return Answer::New };
        if let Some(body) = self.0.get(&dedup.digest) {
            return if *body == event.body_digest { Answer::Duplicate } else { Answer::KeyReused };
        }
        if dedup.content.is_some_and(|content| self.0.contains_key(&content)) {
            return Answer::Duplicate;
        }
        for digest in std::iter::once(dedup.digest).chain(dedup.content) {
            self.0.insert(digest, event.body_digest);
        }
        Answer::New
    }
}

#[test]
fn a_covered_id_is_the_key_and_stands_alone() {
    for (scheme, secret) in
        [("standard-webhooks", standard_secret()), ("svix", standard_secret()), ("stripe", text_secret())]
    {
        let source = compile(&builtin(scheme), vec![secret]);
        let first = dedup(&source, &signed(&source, "msg_1", NOW, BODY));
        assert_eq!(first.content, None, "{scheme}");
        // Signed anew later, even over another body: the same key. The ledger tells the bodies apart.
        let later = signed(&source, "msg_1", after(60), br#"{"id":"evt_1"}"#).at(after(60));
        assert_eq!(dedup(&source, &later), first, "{scheme}");
        let other = signed(&source, "msg_2", NOW, br#"{"id":"evt_2"}"#);
        assert_ne!(dedup(&source, &other).digest, first.digest, "{scheme}");
    }
}

#[test]
fn an_id_that_is_not_covered_has_the_content_beside_it() {
    for scheme in ["github", "shopify"] {
        let source = compile(&builtin(scheme), vec![text_secret()]);
        let of = |id, body| dedup(&source, &signed(&source, id, NOW, body));
        let (first, other_id, other_body) = (of("a", BODY), of("b", BODY), of("a", b"other"));
        assert_eq!(first, of("a", BODY), "{scheme}");
        assert!(first.content.is_some(), "{scheme}");
        assert_ne!(other_id.digest, first.digest, "{scheme}");
        assert_eq!(other_id.content, first.content, "{scheme}");
        assert_eq!(other_body.digest, first.digest, "{scheme}");
        assert_ne!(other_body.content, first.content, "{scheme}");
    }
}

#[test]
fn the_content_of_a_timed_scheme_has_its_time() {
    let source = hmac(&format!("{TIMED}id = [\"header:X-Id\"]"));
    let of = |id, at| dedup(&source, &signed(&source, id, at, BODY));
    let first = of("a", NOW);
    // The provider tries again under the same id.
    assert_eq!(of("a", after(5)).digest, first.digest);
    // What is signed anew is no replay.
    assert_ne!(of("b", after(5)).content, first.content);
    assert_eq!(of("b", NOW).content, first.content);
}

#[test]
fn the_content_is_what_is_signed_and_not_how_it_is_cut() {
    let source = hmac("vars = { n = \"header:X-N\" }\nsigned = \"{n}.{body}\"\nid = [\"header:X-Id\"]");
    let signature = {
        let whole = hmac("");
        signed(&whole, "", NOW, b"one.two.three").headers["x-sig"].as_bytes().to_vec()
    };
    let post = |n: &str, body: &[u8]| Post::new(&[("x-n", n), ("x-id", "a")], body).and("x-sig", &signature);
    let cut = [post("one", b"two.three"), post("one.two", b"three")].map(|post| dedup(&source, &post).content.unwrap());
    assert_eq!(cut[0], cut[1]);
}

#[test]
fn without_an_id_the_content_is_the_key() {
    let source = hmac(TIMED);
    let of = |post: &Post| dedup(&source, post);
    let first = of(&signed(&source, "", NOW, BODY));
    assert_eq!(first.content, None);
    assert_eq!(of(&signed(&source, "", NOW, BODY).with("x-id", b"new")), first);
    // Signed at another time, it is another event.
    assert_ne!(of(&signed(&source, "", after(1), BODY)).digest, first.digest);
    assert_ne!(of(&signed(&source, "", NOW, b"other")).digest, first.digest);

    // An id can be taken off as well as changed: what is left meets the content of the first.
    let github = compile(&builtin("github"), vec![text_secret()]);
    let whole = signed(&github, "a", NOW, BODY);
    let bare = dedup(&github, &whole.clone().without("x-github-delivery"));
    assert_eq!((Some(bare.digest), bare.content), (dedup(&github, &whole).content, None));
}

#[test]
fn a_token_vouches_for_whatever_its_holder_writes() {
    let token = "verify = \"equal\"\nsig = { at = [\"header:X-Key\"] }\n";
    let source = compile(&custom(token), vec![text_secret()]);
    assert!(event(&source, &signed(&source, "", NOW, BODY)).dedup.is_none());
    let source = compile(&custom(&format!("{token}id = [\"header:X-Id\"]")), vec![text_secret()]);
    let first = dedup(&source, &signed(&source, "a", NOW, BODY));
    assert_eq!(first.content, None);
    assert_eq!(dedup(&source, &signed(&source, "a", NOW, b"other")), first);
}

#[test]
fn a_body_that_is_not_signed_makes_no_new_event() {
    let source = hmac("signed = \"{url}\"");
    let first = signed(&source, "", NOW, BODY);
    let other_body = Post { body: Bytes::from_static(b"other"), ..first.clone() };
    let mut memory = Memory::default();
    assert_eq!(memory.accept(&source, &first), Answer::New);
    assert_eq!(memory.accept(&source, &first), Answer::Duplicate);
    assert_eq!(memory.accept(&source, &other_body), Answer::KeyReused);
    let moved = Post { url: "https://hooks.example.test/elsewhere".to_owned(), ..first };
    assert_eq!(refusal(&source, &moved), RefusalCode::SignatureMismatch);

    let by_body = SourceSpec { dedup: Some("body".to_owned()), ..custom(&format!("{HMAC}signed = \"{{url}}\"")) };
    let source = compile(&by_body, vec![text_secret()]);
    let mut memory = Memory::default();
    assert_eq!(memory.accept(&source, &other_body), Answer::New);
    assert_eq!(memory.accept(&source, &signed(&source, "", NOW, BODY)), Answer::Duplicate);
}

#[test]
fn dedup_can_be_chosen() {
    let body = chosen("body", builtin("standard-webhooks"), standard_secret());
    let first = dedup(&body, &signed(&body, "msg_1", NOW, BODY));
    assert_eq!(first.content, None);
    assert_eq!(dedup(&body, &signed(&body, "msg_2", after(9), BODY)), first);
    assert_ne!(dedup(&body, &signed(&body, "msg_1", NOW, b"other")).digest, first.digest);

    let none = chosen("none", builtin("stripe"), text_secret());
    assert!(event(&none, &signed(&none, "", NOW, BODY)).dedup.is_none());
    let none = chosen("none", builtin("github"), text_secret());
    assert!(event(&none, &signed(&none, "a", NOW, BODY)).dedup.is_none());

    // In a body that is signed.
    let json = chosen("json:/type", builtin("github"), text_secret());
    let first = dedup(&json, &signed(&json, "a", NOW, BODY));
    assert_eq!(first.content, None);
    assert_eq!(dedup(&json, &signed(&json, "b", NOW, br#"{"type":"order.paid"}"#)), first);

    // In a header that is not.
    let header = chosen("header:X-Key", builtin("stripe"), text_secret());
    let of = |key: &[u8], at, body| dedup(&header, &signed(&header, "", at, body).with("x-key", key));
    let first = of(b"k", NOW, BODY);
    assert!(first.content.is_some());
    assert_eq!(of(b"k", after(5), b"other").digest, first.digest);
    assert_eq!(of(b"l", NOW, BODY).content, first.content);
    assert_ne!(of(b"l", NOW, BODY).digest, first.digest);
    // Nothing stands there: the content is the key.
    let bare = dedup(&header, &signed(&header, "", NOW, BODY));
    assert_eq!((Some(bare.digest), bare.content), (first.content, None));

    // A query is covered where the URL is.
    let url = |signed: &str| custom(&format!("{HMAC}signed = \"{signed}\""));
    let covered = chosen("query:b", url("{url}{body}"), text_secret());
    assert_eq!(dedup(&covered, &signed(&covered, "", NOW, BODY)).content, None);
    let query = chosen("query:b", url("{body}"), text_secret());
    let post = signed(&query, "", NOW, BODY);
    let other = Post { url: "https://h.test/?b=3".to_owned(), ..post.clone() };
    assert_ne!(dedup(&query, &post).digest, dedup(&query, &other).digest);
    assert_eq!(dedup(&query, &post).content, dedup(&query, &other).content);

    let window = SourceSpec { dedup_window: Some("36h".to_owned()), ..builtin("github") };
    let source = compile(&window, vec![text_secret()]);
    assert_eq!(dedup(&source, &signed(&source, "a", NOW, BODY)).window, Duration::from_secs(36 * 3600));
}

#[test]
fn keys_of_two_sources_do_not_meet() {
    let source = compile(&builtin("github"), vec![text_secret()]);
    let other = builtin("github").compile(&"acme".parse().unwrap(), &"two".parse().unwrap(), vec![text_secret()]);
    let post = signed(&source, "a", NOW, BODY);
    let (one, two) = (dedup(&source, &post), dedup(&other.unwrap(), &post));
    assert_ne!(one.digest, two.digest);
    assert_ne!(one.content, two.content);
}

/// Each of these looks for its key where one request can be made to show another, or none.
#[test]
fn no_choice_between_places_opens_a_door() {
    let cases = [
        // An unsigned place goes before a signed one.
        ("id = [\"header:X-Id\", \"json:/id\"]", "x-id"),
        // An unsigned header chooses the alternative.
        (
            "[[alternatives]]\nwhen = \"header:X-New\"\nid = [\"header:X-New\"]\n[[alternatives]]\nid = [\"json:/id\"]",
            "x-new",
        ),
        ("[[alternatives]]\nwhen = \"header:X-New\"\n[[alternatives]]\nid = [\"json:/id\"]", "x-new"),
        // The group that would cover the id is left out with the other variable.
        (
            "vars = { n = \"header?:X-N\", i = \"header?:X-Id\" }\nsigned = \"[{n}{i}]{body}\"\n\
             id = [\"header:X-Id\", \"json:/id\"]",
            "x-id",
        ),
    ];
    for (more, header) in cases {
        let source = hmac(more);
        let bare = Post::new(&[("x-sig", signed(&hmac(""), "", NOW, BODY).headers["x-sig"].to_str().unwrap())], BODY);
        let (one, two) = (bare.clone().with(header, b"one"), bare.clone().with(header, b"two"));
        for order in [[&bare, &one, &two], [&one, &bare, &two], [&two, &one, &bare]] {
            let mut memory = Memory::default();
            let answers = order.map(|post| memory.accept(&source, post));
            assert_eq!(answers, [Answer::New, Answer::Duplicate, Answer::Duplicate], "{more}");
        }
    }
}

#[test]
fn a_time_that_may_go_unsigned_is_not_compiled() {
    let spec = custom(&format!(
        "{HMAC}vars = {{ n = \"header?:X-N\", t = \"header:X-Time\" }}\nsigned = \"[{{n}}{{t}}]{{body}}\"\n\
         time = {{ var = \"t\", unit = \"s\", tolerance = 300 }}"
    ));
    let problems =
        spec.compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), vec![text_secret()]).map(|_| ()).unwrap_err();
    assert_eq!(problems.iter().map(|p| p.field.as_str()).collect::<Vec<_>>(), ["time.var"]);
}

/// Sources whose ids are not covered, by the header that carries them.
fn uncovered() -> Vec<(Source, &'static str)> {
    vec![
        (compile(&builtin("github"), vec![text_secret()]), "x-github-delivery"),
        (compile(&builtin("shopify"), vec![text_secret()]), "x-shopify-event-id"),
        (hmac(&format!("{TIMED}id = [\"header:X-Id\"]")), "x-id"),
        (chosen("header:X-Key", builtin("stripe"), text_secret()), "x-key"),
        (chosen("header:X-Key", builtin("standard-webhooks"), standard_secret()), "x-key"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_id_a_replay_carries_it_is_the_first_event(
        body in prop::collection::vec(any::<u8>(), 0..200),
        ids in prop::collection::vec(prop::option::of("[ -~]{0,40}"), 1..6),
    ) {
        for (source, header) in uncovered() {
            let captured = signed(&source, "first", NOW, &body).with(header, b"first");
            let mut memory = Memory::default();
            prop_assert_eq!(memory.accept(&source, &captured), Answer::New);
            for id in &ids {
                let replayed = match id {
                    Some(id) => captured.clone().with(header, id.as_bytes()),
                    None => captured.clone().without(header),
                };
                prop_assert_eq!(memory.accept(&source, &replayed), Answer::Duplicate, "{:?} {:?}", source, id);
            }
        }
    }

    #[test]
    fn a_replay_takes_no_id_away(one in "[a-z]{1,9}", two in "[A-Z]{1,9}", body in "[a-z]{1,20}") {
        for (source, header) in uncovered() {
            let post = |id: &str, body: &str| {
                signed(&source, "sent", NOW, body.as_bytes()).with(header, id.as_bytes())
            };
            let mut memory = Memory::default();
            prop_assert_eq!(memory.accept(&source, &post(&one, &body)), Answer::New);
            // Somebody guesses the id of what comes next.
            prop_assert_eq!(memory.accept(&source, &post(&two, &body)), Answer::Duplicate);
            let next = format!("{body}!");
            prop_assert_eq!(memory.accept(&source, &post(&two, &next)), Answer::New);
            prop_assert_eq!(memory.accept(&source, &post(&one, &next)), Answer::KeyReused);
        }
    }

    #[test]
    fn the_same_unsigned_id_carries_one_body(id in "[a-z]{1,9}", one in "[a-z]{1,20}", two in "[A-Z]{1,20}") {
        for (source, header) in uncovered() {
            let post = |body: &str| signed(&source, "sent", NOW, body.as_bytes()).with(header, id.as_bytes());
            let mut memory = Memory::default();
            prop_assert_eq!(memory.accept(&source, &post(&one)), Answer::New);
            prop_assert_eq!(memory.accept(&source, &post(&two)), Answer::KeyReused);
            prop_assert_eq!(memory.accept(&source, &post(&one)), Answer::Duplicate);
        }
    }
}
