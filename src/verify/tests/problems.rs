//! Every mistake in a source is named, all in one go.

use super::*;

fn problems(spec: &SourceSpec, secrets: Vec<Secret>) -> Vec<SpecProblem> {
    match spec.compile(&"acme".parse().unwrap(), &"src".parse().unwrap(), secrets) {
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    }
}

const SIG: &str = "sig = { at = [\"header:X-Sig\"], encoding = \"hex\" }\n";

#[test]
fn each_mistake_names_its_field() {
    let hmac = |rest: &str| format!("verify = \"hmac-sha256\"\n{SIG}{rest}");
    let sig = |sig: &str| format!("verify = \"hmac-sha256\"\nsig = {{ {sig} }}");
    let timed = |vars: &str, signed: &str, time: &str| {
        hmac(&format!("vars = {{ {vars} }}\nsigned = '{signed}'\ntime = {{ {time} }}"))
    };
    let challenge = |rest: &str| hmac(&format!("[[challenge]]\n{rest}"));
    let cases = [
        ("verify", SIG.to_owned()),
        ("verify", format!("verify = \"md5\"\n{SIG}")),
        ("key", hmac("key = \"pem\"")),
        ("sig", "verify = \"hmac-sha256\"".to_owned()),
        ("sig.at", sig("encoding = \"hex\"")),
        ("sig.at[0]", sig("at = [\"X-Sig\"], encoding = \"hex\"")),
        ("sig.at[1]", sig("at = [\"header:a\", \"header:b c\"], encoding = \"hex\"")),
        ("sig.at[0]", sig("at = [\"sig:v1\"], encoding = \"hex\"")),
        ("sig.encoding", sig("at = [\"header:a\"]")),
        ("sig.encoding", sig("at = [\"header:a\"], encoding = \"base32\"")),
        ("sig.encoding", "verify = \"equal\"\nsig = { at = [\"header:a\"], encoding = \"hex\" }".to_owned()),
        ("sig.split", sig("at = [\"header:a\"], encoding = \"hex\", split = \"\"")),
        ("sig.pair", sig("at = [\"header:a\"], encoding = \"hex\", pair = \"\", take = [\"v1\"]")),
        ("sig.take", sig("at = [\"header:a\"], encoding = \"hex\", pair = \"=\"")),
        ("sig.take", sig("at = [\"header:a\"], encoding = \"hex\", take = [\"v1\"]")),
        ("vars.T", hmac("vars = { T = \"header:x\" }")),
        ("vars.body", hmac("vars = { body = \"header:x\" }")),
        ("vars.t", hmac("vars = { t = \"sig:t\" }")),
        ("vars.t", hmac("vars = { t = \"nowhere:t\" }")),
        ("signed", hmac("signed = \"{body\"")),
        ("signed", hmac("signed = \"{nonce}{body}\"")),
        ("signed", hmac("signed = \"fixed\"")),
        ("signed", hmac("signed = \"[x]{body}\"")),
        ("signed", hmac("vars = { n = \"header?:x\" }\nsigned = \"{n}{body}\"")),
        ("signed", "verify = \"equal\"\nsigned = \"{body}\"\nsig = { at = [\"header:a\"] }".to_owned()),
        ("time.unit", timed("t = \"header:t\"", "{t}{body}", "var = \"t\", unit = \"min\", tolerance = 1")),
        ("time.var", timed("t = \"header:t\"", "{t}{body}", "var = \"u\", unit = \"s\", tolerance = 1")),
        ("time.var", timed("t = \"header:t\"", "{body}", "var = \"t\", unit = \"s\", tolerance = 1")),
        ("time.var", timed("t = \"header?:t\"", "[{t}]{body}", "var = \"t\", unit = \"s\", tolerance = 1")),
        ("time.tolerance", timed("t = \"header:t\"", "{t}{body}", "var = \"t\", unit = \"s\", tolerance = 604801")),
        ("require.\"header:v\"", hmac("require = { \"header:v\" = \"\" }")),
        ("require.\"v\"", hmac("require = { v = \"1\" }")),
        ("id[1]", hmac("id = [\"header:a\", \"b\"]")),
        ("id_form", hmac("id = [\"header:a\"]\nid_form = \"uuid\"")),
        ("id_form", hmac("id_form = \"word\"")),
        ("type[0]", hmac("type = [\"json:type\"]")),
        ("when[0]", hmac("when = \"method:GET\"")),
        ("challenge[0].match", challenge("body = \"x\"")),
        ("challenge[0].match.\"json:/t\"", challenge("match = { \"json:/t\" = \"\" }")),
        ("challenge[0].method", challenge("match = { \"json:/t\" = \"1\" }\nmethod = \"P T\"")),
        ("challenge[0].method", challenge("match = { \"json:/t\" = \"1\" }\nmethod = \"post\"")),
        ("challenge[0].method", challenge("match = { \"json:/t\" = \"1\" }\nmethod = \"DELETE\"")),
        ("challenge[0].body", challenge("match = { \"json:/t\" = \"1\" }\nstatus = 204\nbody = \"x\"")),
        ("challenge[0].match", challenge("match = { \"header:Host\" = \"*\" }")),
        ("challenge[0].match", challenge("match = { \"json:/t\" = \"*\" }\nbody = \"{json:/t}\"")),
        ("challenge[0].match", challenge("match = { \"header:Content-Type\" = \"application/json\" }")),
        ("challenge[0].match", challenge("body = \"{json:/challenge}\"")),
        ("challenge[0].status", challenge("match = { \"json:/t\" = \"1\" }\nstatus = 302")),
        ("challenge[0].content_type", challenge("match = { \"json:/t\" = \"1\" }\ncontent_type = \"a\\nb\"")),
        ("challenge[0].body", challenge("match = { \"json:/t\" = \"1\" }\nbody = \"{nothing}\"")),
        ("challenge[0].request_body", challenge("request_body = \"a=#&b=#\"")),
        ("challenge[0].match", challenge("request_body = \"\"")),
        ("answers", hmac("answers = \"none\"")),
        ("answers", hmac("[[alternatives]]\nanswers = \"empty\"")),
        ("answers", "verify = \"builtin:dropbox-sign\"\nanswers = \"empty\"".to_owned()),
        ("key", format!("verify = \"ed25519\"\n{SIG}")),
        ("key", format!("verify = \"rsa-sha256\"\nkey = \"hex\"\n{SIG}")),
        ("key", "verify = \"basic\"\nkey = \"base64\"\nsig = { at = [\"header:a\"] }".to_owned()),
        ("sig.encoding", format!("verify = \"basic\"\n{SIG}")),
        ("signed", format!("verify = \"hash-sha256\"\n{SIG}")),
        ("signed", format!("verify = \"hash-sha1\"\n{SIG}signed = \"{{t}}{{body}}\"\nvars = {{ t = \"header:t\" }}")),
        ("signed", format!("verify = \"hash-sha1\"\n{SIG}signed = \"{{key}}\"")),
        ("signed", hmac("signed = \"{key}{body}\"")),
        ("signed", hmac("signed = \"{body|md5}\"")),
        ("signed", hmac("signed = \"{body|hubspot}\"")),
        ("signed", hmac("signed = \"{url|sha256hex}\"")),
        ("signed", hmac("signed = \"{body|hmac-hex}\"")),
        ("vars.key", hmac("vars = { key = \"header:x\" }")),
        ("vars.sig", hmac("vars = { sig = \"header:x\" }")),
        ("emit", hmac("emit = \"v1\"")),
        ("emit", hmac("emit = \"{sig}{t}\"")),
        ("challenge[0].match", challenge("signed = false\nmethod = \"GET\"")),
        ("challenge[0].body", challenge("signed = false\nbody = \"[{query:a}]\"")),
        ("challenge[0].body", challenge("body = \"{query:a|sha256hex}\"")),
        ("challenge[0].body", challenge("body = \"{sig:a|hmac-hex}\"")),
        (
            "challenge[0].body",
            "verify = \"equal\"\nsig = { at = [\"header:a\"] }\n[[challenge]]\nbody = \"{query:a|hmac-hex}\""
                .to_owned(),
        ),
        (
            "challenge[0].headers.Set-Cookie",
            challenge("match = { \"json:/t\" = \"1\" }\nheaders = { Set-Cookie = \"a\" }"),
        ),
        ("challenge[0].headers.X-A", challenge("match = { \"json:/t\" = \"1\" }\nheaders = { X-A = \"a\\nb\" }")),
        ("challenge[0].headers.a b", challenge("match = { \"json:/t\" = \"1\" }\nheaders = { \"a b\" = \"a\" }")),
        (
            "challenge[0].content_type",
            challenge("signed = false\nmethod = \"GET\"\nbody = \"{query:a}\"\ncontent_type = \"text/html\""),
        ),
        (
            "challenge[0].check",
            challenge("match = { \"json:/t\" = \"1\" }\ncheck = { at = \"query:a\", key = \"v:\" }"),
        ),
        ("challenge[0].check.at", challenge("signed = false\ncheck = { at = \"a\", key = \"v:\" }")),
        ("challenge[0].check.at", challenge("signed = false\ncheck = { at = \"header:X-Sig\", key = \"v:\" }")),
        ("challenge[0].check.at", challenge("signed = false\ncheck = { at = \"header:X-Sig\", adopt = true }")),
        ("challenge[0].check.at", challenge("signed = false\ncheck = { at = \"header:Host\", adopt = true }")),
        (
            "challenge[0].check.at",
            challenge("signed = false\nrequest_body = \"\"\ncheck = { at = \"json:/s\", adopt = true }"),
        ),
        (
            "challenge[0].body",
            challenge("signed = false\nbody = \"{query:a|hmac-hex}\"\ncheck = { at = \"header:X-S\", adopt = true }"),
        ),
        ("id[0]", hmac("id = [\"json:/~2\"]")),
        ("id[0]", hmac("id = [\"json:/a/~\"]")),
        ("challenge[0].check.key", challenge("signed = false\ncheck = { at = \"query:a\", key = \"\" }")),
        (
            "alternatives[1].sig.encoding",
            format!(
                "verify = \"hmac-sha256\"\n[[alternatives]]\n{SIG}[[alternatives]]\nsig = {{ at = [\"header:a\"] }}"
            ),
        ),
        ("alternatives[0].when[0]", format!("verify = \"hmac-sha256\"\n[[alternatives]]\nwhen = \"x\"\n{SIG}")),
        ("when", format!("when = \"header:a\"\nverify = \"hmac-sha256\"\n[[alternatives]]\n{SIG}")),
        ("alternatives", format!("verify = \"hmac-sha256\"\n{SIG}[[alternatives]]\n[[alternatives.alternatives]]\n")),
    ];
    for (field, text) in cases {
        let found = problems(&custom(&text), vec![text_secret()]);
        let fields: Vec<&str> = found.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, [field], "{text}\n{found:?}");
        assert!(found[0].message.len() > 15, "{found:?}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let mut spec = custom("verify = \"md5\"\nsig = { encoding = \"x\" }\nid = [\"y\"]");
    spec.tolerance = Some(5);
    spec.dedup = Some("z".to_owned());
    spec.dedup_window = Some("1 week".to_owned());
    let mut fields: Vec<String> = problems(&spec, Vec::new()).into_iter().map(|problem| problem.field).collect();
    fields.sort();
    assert_eq!(fields, ["dedup", "dedup_window", "id[0]", "secrets", "sig.at", "sig.encoding", "tolerance", "verify"]);
}

#[test]
fn mistakes_outside_the_scheme() {
    let field = |spec: &SourceSpec, secrets: Vec<Secret>| {
        let fields: Vec<String> = problems(spec, secrets).into_iter().map(|problem| problem.field).collect();
        fields.join(" ")
    };
    let one = || vec![text_secret()];
    assert_eq!(field(&builtin("githup"), one()), "scheme");
    assert_eq!(field(&builtin("custom"), one()), "verify");
    let mixed = SourceSpec { custom: custom("verify = \"equal\"").custom, ..builtin("github") };
    assert_eq!(field(&mixed, one()), "scheme");
    assert_eq!(field(&SourceSpec { tolerance: Some(60), ..builtin("github") }, one()), "tolerance");
    assert_eq!(field(&SourceSpec { tolerance: Some(604_801), ..builtin("stripe") }, one()), "tolerance");
    for window in ["0s", "91d", "soon", ""] {
        let spec = SourceSpec { dedup_window: Some(window.to_owned()), ..builtin("github") };
        assert_eq!(field(&spec, one()), "dedup_window", "{window}");
    }
    for dedup in ["header", "sig:t", "json:id", "cookie:a", ""] {
        let spec = SourceSpec { dedup: Some(dedup.to_owned()), ..builtin("github") };
        assert_eq!(field(&spec, one()), "dedup", "{dedup}");
    }
    assert_eq!(field(&builtin("github"), vec![]), "secrets");
    assert_eq!(field(&builtin("github"), vec![text_secret(), Secret::new("")]), "secrets[1]");
    assert_eq!(field(&builtin("github"), vec![text_secret(); 17]), "secrets");
    assert_eq!(field(&builtin("standard-webhooks"), vec![Secret::new("whsec_not base64!")]), "secrets[0]");
    assert_eq!(field(&builtin("standard-webhooks"), vec![Secret::new("whsec_")]), "secrets[0]");
    assert_eq!(field(&builtin("standard-webhooks"), vec![Secret::new("whpk_AAAA")]), "secrets[0]");
    assert_eq!(field(&builtin("svix"), vec![Secret::new("whpk_AAAA")]), "secrets[0]");
    assert_eq!(field(&builtin("basic-auth"), one()), "secrets[0]");
    assert_eq!(field(&builtin("sendgrid"), one()), "secrets[0]");
    assert_eq!(field(&builtin("adobe-commerce"), one()), "secrets[0]");
    assert_eq!(field(&builtin("meta"), vec![Secret::new("verify:a-token-of-ours")]), "secrets");
    for empty in ["verify:", "verify: \t"] {
        assert_eq!(field(&builtin("meta"), vec![text_secret(), Secret::new(empty)]), "secrets[1]");
    }
    for blank in [" ", "\t\r\n", "                    "] {
        assert_eq!(field(&builtin("github"), vec![text_secret(), Secret::new(blank)]), "secrets[1]");
        assert_eq!(field(&builtin("standard-webhooks"), vec![standard_secret(), Secret::new(blank)]), "secrets[1]");
    }
    assert_eq!(field(&builtin("basic-auth"), vec![Secret::new(":")]), "secrets[0]");
    let only_keyed = custom(&format!("[[alternatives]]\nwhen = \"key:a_\"\nverify = \"hmac-sha256\"\n{SIG}"));
    assert_eq!(field(&only_keyed, one()), "secrets[0]");
    let pointers: String = (0..40).map(|i| format!("\"json:/{i}\",")).collect();
    let many = custom(&format!("verify = \"hmac-sha256\"\n{SIG}id = [{pointers}]"));
    assert!(field(&many, one()).starts_with("id[32]"));
    let vars: String = (0..17).map(|i| format!("v{i} = \"header:v\",")).collect();
    let many = custom(&format!("verify = \"hmac-sha256\"\n{SIG}vars = {{ {vars} }}"));
    assert_eq!(field(&many, one()), "vars");
    let many = custom(&format!("verify = \"hmac-sha256\"\n{}", format!("[[alternatives]]\n{SIG}").repeat(9)));
    assert_eq!(field(&many, one()), "alternatives");
}

/// What is wrong with a key is told with the form that the scheme wants.
#[test]
fn a_key_of_another_form_is_told_which_is_wanted() {
    let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_key = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
    let whsec = "`whsec_` and the base64 of 24 to 64 bytes, without spaces";
    let ed25519 = "an Ed25519 public key as 64 hexadecimal digits, without spaces";
    let p256 =
        "an ECDSA public key of P-256 (SPKI) in base64: what stands between the lines of its PEM, without spaces";
    let pem = |key| format!("{key} (SPKI) in PEM: whole, with its line `-----BEGIN PUBLIC KEY-----` and its end");
    let rsa = pem("an RSA public key of 2048 to 8192 bits");
    let of = |scheme: &str| builtin(scheme);
    let with = |scheme: &str, params: serde_json::Value| SourceSpec {
        params: params.as_object().unwrap().clone().into_iter().collect(),
        ..builtin(scheme)
    };
    let ours = custom(&format!("verify = \"ed25519\"\nkey = \"pem\"\n{SIG}"));
    let signatures = |alg: &str| {
        with("rfc9421", serde_json::json!({ "alg": alg, "keyid": "k", "required_components": ["content-digest"] }))
    };
    let cases = [
        (of("standard-webhooks"), "whsec_not base64", "is not base64", whsec),
        (of("standard-webhooks"), "whsec_", "holds no key", whsec),
        (
            of("standard-webhooks"),
            "whpk_AAAA",
            "has 3 bytes and is no Ed25519 key",
            "`whpk_` and the base64 of an Ed25519 public key: of its 32 bytes, without spaces",
        ),
        (of("discord"), "abc", "is not hexadecimal", ed25519),
        (of("discord"), "abcd", "has 2 bytes and is no Ed25519 key", ed25519),
        (of("telnyx"), "?", "is not base64", "the base64 of an Ed25519 public key: of its 32 bytes, without spaces"),
        (of("adyen-header"), "xyz", "is not hexadecimal", "hexadecimal digits, two for each byte, without spaces"),
        (of("adyen-item"), "xyz", "is not hexadecimal", "hexadecimal digits, two for each byte, without spaces"),
        (of("sendgrid"), "a secret", "is not base64", p256),
        (of("sendgrid"), "AAAA", "is no ECDSA key of P-256", p256),
        (of("adobe-commerce"), "a secret", "is not PEM", &rsa),
        (of("adobe-commerce"), certificate, "is another kind of PEM", &rsa),
        (of("adobe-commerce"), no_key, "is no RSA key of 2048 to 8192 bits", &rsa),
        (ours, no_key, "is no Ed25519 key", &pem("an Ed25519 public key")),
        (of("basic-auth"), "no-colon", "is not a user and a password", "`user:password`"),
        (signatures("hmac-sha256"), "a b", "is not base64", "the base64 of 24 to 64 bytes, without spaces"),
        (
            signatures("ed25519"),
            "AAAA",
            "is no public key for ed25519",
            "it (SPKI) in PEM, or what stands between the lines of its PEM",
        ),
    ];
    for (spec, secret, rule, wanted) in cases {
        let found = problems(&spec, vec![Secret::new(secret)]);
        let told: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(told, [format!("secrets[0]: {rule}: give {wanted}")], "{}", spec.scheme);
    }
    let not_utf8 = problems(&of("easypost"), vec![Secret::new([0xff; 20])]);
    assert_eq!(not_utf8[0].message, "is not text in UTF-8: give the text that the provider shows, in UTF-8");
    for (scheme, params, wanted) in [
        ("aws-sns", serde_json::json!({ "topic_arns": [] }), "-----BEGIN CERTIFICATE-----"),
        ("truelayer", serde_json::json!({}), "P-521 (SPKI) in PEM"),
        ("plaid", serde_json::json!({}), "{\"keys\":[…]}"),
    ] {
        let found = problems(&with(scheme, params), vec![Secret::new("{\"not\":\"a key\"}")]);
        assert!(found.len() == 1 && found[0].message.contains(wanted), "{scheme}: {found:?}");
    }
}

#[test]
fn problems_and_warnings_show_no_secret() {
    let found = problems(&builtin("standard-webhooks"), vec![Secret::new("whsec_hunter2 hunter2")]);
    assert!(!format!("{found:?}").contains("hunter2"));
    let source = compile(&builtin("github"), vec![Secret::new("hunter2"), text_secret()]);
    assert_eq!(source.warnings().len(), 1);
    assert!(source.warnings()[0].starts_with("secrets[0]: has 7 bytes"));
    assert!(!format!("{source:?} {:?}", source.warnings()).contains("hunter2"));
}

#[test]
fn a_signature_that_leaves_out_the_body_is_warned_of() {
    let source = compile(&custom(&format!("verify = \"hmac-sha256\"\n{SIG}signed = \"{{url}}\"")), vec![text_secret()]);
    assert!(source.warnings()[0].starts_with("signed: "));
    assert!(source.signs_url());
    assert!(compile(&builtin("github"), vec![text_secret()]).warnings().is_empty());
}

#[test]
fn unknown_fields_in_an_alternative_are_mistakes() {
    let error = toml::from_str::<SchemeSpec>("[[alternatives]]\nsigned_by = \"x\"").unwrap_err();
    assert!(error.to_string().contains("signed_by"), "{error}");
    assert!(toml::from_str::<SchemeSpec>("sig = { att = [] }").is_err());
    assert!(toml::from_str::<SchemeSpec>("time = { units = \"s\" }").is_err());
    assert!(toml::from_str::<SchemeSpec>("[[challenge]]\nanswer = \"s\"").is_err());
    assert!(toml::from_str::<SchemeSpec>("[[challenge]]\ncheck = { place = \"s\" }").is_err());
}

/// Nobody who calls has our answer set a header that means something to a browser or a proxy.
#[test]
fn answers_hold_headers_of_the_provider_alone() {
    let told = |name: &str, value: &str| {
        let text = format!(
            "verify = \"hmac-sha256\"\n{SIG}[[challenge]]\nsigned = false\nmethod = \"GET\"\n\
             match = {{ \"query:q\" = \"*\" }}\nheaders = {{ \"{name}\" = \"{value}\" }}"
        );
        problems(&custom(&text), vec![text_secret()]).iter().map(|problem| problem.field.clone()).collect::<String>()
    };
    for (name, value) in
        [("X-Hook-Secret", "{query:q}"), ("WebHook-Allowed-Origin", "{query:q}"), ("X-Fixed", "1"), ("Allow", "POST")]
    {
        assert_eq!(told(name, value), "", "{name}");
    }
    assert_eq!(told("Allow", "{query:q}"), "challenge[0].headers.Allow");
    for name in [
        "Refresh",
        "Clear-Site-Data",
        "Strict-Transport-Security",
        "Content-Encoding",
        "Content-Disposition",
        "Content-Type",
        "Access-Control-Allow-Origin",
        "Date",
        "Trailer",
        "Upgrade",
        "WWW-Authenticate",
        "Location",
        "Set-Cookie",
        "X-Accel-Redirect",
        "X-Sendfile",
        "X-Content-Type-Options",
        "X-Frame-Options",
    ] {
        for value in ["{query:q}", "fixed"] {
            assert_eq!(told(name, value), format!("challenge[0].headers.{name}"));
        }
    }
}

#[test]
fn a_secret_on_one_line_has_no_line_end() {
    for end in ["\n", "\r\n", "\n\n"] {
        let found = problems(&builtin("github"), vec![Secret::new(format!("a-secret-of-a-variable{end}"))]);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("secrets[0]: ends in a line end"), "{found:?}");
    }
    let verify = vec![text_secret(), Secret::new("verify:our-own-word\n")];
    assert_eq!(problems(&builtin("meta"), verify)[0].field, "secrets[1]");
}

#[test]
fn a_window_that_outlasts_the_memory_is_warned_of() {
    let of = |scheme: &str, tolerance: Option<u64>, window: &str, dedup: Option<&str>| {
        let window = Some(window.to_owned());
        let spec = SourceSpec { tolerance, dedup_window: window, dedup: dedup.map(str::to_owned), ..builtin(scheme) };
        let source = compile(&spec, vec![text_secret()]);
        let of_the_window = source.warnings().iter().filter(|warning| warning.starts_with("dedup_window"));
        of_the_window.cloned().collect::<Vec<_>>().join("\n")
    };
    for scheme in ["stripe", "hook0"] {
        assert!(of(scheme, None, "299s", None).starts_with("dedup_window: is shorter"), "{scheme}");
        assert!(of(scheme, Some(3_600), "59m", None).starts_with("dedup_window: is shorter"), "{scheme}");
        assert_eq!(of(scheme, None, "300s", None), "");
        assert_eq!(of(scheme, Some(60), "1m", None), "");
        assert_eq!(of(scheme, None, "1m", Some("none")), "");
    }
}
