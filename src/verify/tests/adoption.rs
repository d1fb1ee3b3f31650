//! Secrets that a provider hands over: what is taken, what is not, and by whom.

use super::*;

const BROUGHT: &str = "b537207f20cbfa02357cf448134da559e8bd39d61597dcd5631b8012eae53e81";
const HEADER: &str = "x-hook-secret";

fn waiting() -> Source {
    compile(&builtin("asana"), Vec::new())
}

fn handshake(secret: &str) -> Post {
    Post::new(&[(HEADER, secret)], b"")
}

#[track_caller]
fn adopted(source: &Source, post: &Post) -> (Secret, ChallengeAnswer) {
    match source.admit(post.request()) {
        Ok(Admission::Adopt { secret, answer }) => (secret, answer),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_handshake_brings_the_secret_and_is_answered_with_it() {
    let source = waiting();
    for body in ["", "{}", r#"{"events":[]}"#] {
        let (secret, answer) = adopted(&source, &Post::new(&[(HEADER, BROUGHT)], body.as_bytes()));
        assert!(secret.matches(BROUGHT.as_bytes()));
        assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
        assert_eq!(answer.headers, [(HEADER.parse().unwrap(), BROUGHT.parse().unwrap())]);
        let holding = source.holding(&secret).unwrap();
        let provider = compile(&builtin("asana"), vec![Secret::new(BROUGHT)]);
        event(&holding, &signed(&provider, "", NOW, br#"{"events":[{"action":"added"}]}"#));
    }
    let admission = source.admit(handshake(BROUGHT).request());
    assert!(!format!("{admission:?}").contains(BROUGHT), "{admission:?}");
    let steps = source.explain(handshake(BROUGHT).request());
    let [Step { ok: true, detail, .. }] = steps.as_slice() else { panic!("{steps:?}") };
    assert!(detail.contains("nothing is adopted here") && !detail.contains(BROUGHT), "{detail}");
}

#[test]
fn without_a_secret_nothing_is_an_event() {
    let source = waiting();
    let theirs = compile(&builtin("asana"), vec![Secret::new(BROUGHT)]);
    let refused = source.admit(signed(&theirs, "", NOW, b"{}").request()).unwrap_err();
    assert_eq!((refused.code, refused.step), (RefusalCode::NoSecret, CheckStep::Match));
    assert!(source.verify(signed(&theirs, "", NOW, b"{}").request()).is_err());
    // An empty key signs nothing either.
    let empty = "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad";
    assert_eq!(refusal(&source, &Post::new(&[("x-hook-signature", empty)], b"")), RefusalCode::NoSecret);
    assert_eq!(refusal(&source, &Post::new(&[], b"{}")), RefusalCode::MissingHeader);
    let sign = SignRequest { id: "", event_type: None, timestamp: NOW, url: URL, body: &Bytes::new() };
    assert_eq!(source.sign(sign), Err(SignError::NoSecret));
}

#[test]
fn what_could_be_anything_else_brings_no_secret() {
    let source = waiting();
    let other = |post: Post| refusal(&source, &post);
    // A signature, or what should be one: also an empty one, and one that is there twice.
    let forged = "00".repeat(32);
    assert_eq!(other(handshake(BROUGHT).and("x-hook-signature", forged.as_bytes())), RefusalCode::NoSecret);
    assert_eq!(other(handshake(BROUGHT).and("x-hook-signature", b"zz")), RefusalCode::Malformed);
    assert_eq!(other(handshake(BROUGHT).and("x-hook-signature", b"")), RefusalCode::MissingHeader);
    let twice = handshake(BROUGHT).and("x-hook-signature", b"a").and("x-hook-signature", b"b");
    assert_eq!(other(twice), RefusalCode::Malformed);
    // Another method, a body that may be an event, two secrets, none.
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT] {
        let refused = source.admit(Request { method: &method, ..handshake(BROUGHT).request() }).unwrap_err();
        assert_eq!(refused.code, RefusalCode::MissingHeader, "{method}");
    }
    assert_eq!(other(Post::new(&[(HEADER, BROUGHT)], &[b' '; 257])), RefusalCode::MissingHeader);
    adopted(&source, &Post::new(&[(HEADER, BROUGHT)], &[b' '; 256]));
    assert_eq!(other(handshake(BROUGHT).and(HEADER, BROUGHT.as_bytes())), RefusalCode::MissingHeader);
    assert_eq!(other(handshake("")), RefusalCode::MissingHeader);
}

/// What is asked of the first handshake is asked of each that comes again.
#[test]
fn the_rules_hold_while_the_secret_is_held() {
    for source in
        [waiting().holding(&Secret::new(BROUGHT)).unwrap(), compile(&builtin("asana"), vec![Secret::new(BROUGHT)])]
    {
        let answered = |post: Post| matches!(source.admit(post.request()), Ok(Admission::Challenge(_)));
        assert!(answered(handshake(BROUGHT)));
        assert!(answered(Post::new(&[(HEADER, BROUGHT)], &[b' '; 256])));
        assert!(!answered(Post::new(&[(HEADER, BROUGHT)], &[b' '; 257])));
        assert!(!answered(handshake(BROUGHT).and("x-hook-signature", b"")));
        assert!(!answered(handshake(BROUGHT).and("x-hook-signature", b"a").and("x-hook-signature", b"b")));
    }
}

#[test]
fn a_secret_has_a_form() {
    let source = waiting();
    for fits in ["a".repeat(16), "!".repeat(256)] {
        adopted(&source, &handshake(&fits));
    }
    for bad in ["a".repeat(15), "a".repeat(257), "a secret with spaces".to_owned(), "a\tsecret\twith\ttabs".to_owned()]
    {
        let refused = source.admit(handshake(&bad).request()).unwrap_err();
        assert_eq!((refused.code, refused.step), (RefusalCode::Malformed, CheckStep::Structure), "{bad}");
        assert!(!refused.detail.contains(&bad), "{refused}");
    }
    for bad in
        [&b"a-secret-of-Z\xc3\xbcrich-AG"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
    {
        assert!(source.admit(Post::new(&[], b"").and(HEADER, bad).request()).is_err());
    }
}

/// The same as data in a file, with keys in base64 and a second way that is signed otherwise.
#[test]
fn a_scheme_of_ones_own_may_adopt() {
    let text = r#"
        verify = "hmac-sha256"
        key = "base64"
        sig = { at = ["header:X-Sig", "query:sig"], encoding = "hex" }
        challenge = [{ signed = false, match = { "json:/kind" = "hello" }, check = { at = "json:/secret", adopt = true }, body = "{json:/secret}" }]
    "#;
    let source = compile(&custom(text), Vec::new());
    let hello = |secret: &str| Post::new(&[], format!(r#"{{"kind":"hello","secret":"{secret}"}}"#).as_bytes());
    let (secret, answer) = adopted(&source, &hello("c2VjcmV0LW9mLXBhcnRuZXI="));
    assert_eq!(answer.body, "c2VjcmV0LW9mLXBhcnRuZXI=");
    assert!(!format!("{answer:?}").contains("c2Vj"));
    event(&source.holding(&secret).unwrap(), &signed(&source.holding(&secret).unwrap(), "", NOW, b"{}"));
    // What cannot be a key of the scheme, what is no handshake, and what is signed in any of the places.
    let no_key = "not-base64-at-all-!";
    assert_eq!(refusal(&source, &hello(no_key)), RefusalCode::Malformed);
    assert_eq!(
        refusal(&source, &Post::new(&[], br#"{"secret":"c2VjcmV0LW9mLXBhcnRuZXI="}"#)),
        RefusalCode::MissingHeader
    );
    let mut in_query = hello("c2VjcmV0LW9mLXBhcnRuZXI=");
    in_query.url += "&sig=&sig=";
    assert_eq!(refusal(&source, &in_query), RefusalCode::Malformed);
}

#[test]
fn no_other_scheme_takes_a_secret_from_a_request() {
    let adopts = |name: &&str| schemes::builtin(name).unwrap().adopts();
    assert_eq!(schemes::names().filter(adopts).collect::<Vec<_>>(), ["asana"]);
    for scheme in schemes::names().filter(|name| !adopts(name)) {
        let compiled = builtin(scheme).compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), Vec::new());
        let published = compiled.ok().inspect(|source| assert!(source.waits.is_none(), "{scheme}"));
        assert!(published.is_none() || schemes::publishes_keys(scheme), "{scheme} needs no secret");
    }
    let problems = |challenge: &str| {
        let text =
            format!("verify = \"hmac-sha256\"\nsig = {{ at = [\"header:X\"], encoding = \"hex\" }}\n{challenge}");
        let compiled = custom(&text).compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), vec![text_secret()]);
        compiled.unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let get = problems(r#"challenge = [{ method = "GET", signed = false, check = { at = "query:s", adopt = true } }]"#);
    assert!(get.starts_with("challenge[0].check.adopt: takes a secret from a POST alone"), "{get}");
    let key = problems(r#"challenge = [{ signed = false, check = { at = "query:s", key = "v:", adopt = true } }]"#);
    assert!(key.starts_with("challenge[0].check.adopt: takes the secret that verifies"), "{key}");
    let signed = problems(r#"challenge = [{ check = { at = "query:s", adopt = true } }]"#);
    assert!(signed.starts_with("challenge[0].check: has no effect"), "{signed}");
}
