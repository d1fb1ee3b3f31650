//! HTTP Message Signatures: the request lists which of its parts are signed, the source which have to be.

mod structured;

use super::form::pairs;
use super::public::{KeySet, Kind, PublicKey};
use super::read::{base64, differs, header, malformed, mismatch, undecodable};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Macs, Param, ParamKind, Proof, key_of, unknown_key};
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, KeyQuery, KeyUrl, Stop};
use crate::verify::locator::{Facts, Locator, url_path, url_query};
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use crate::verify::sign::{SignError, SignRequest};
use crate::verify::source::Request;
use ::base64::Engine as _;
use ::base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use sha2::{Digest as _, Sha256, Sha512};
use structured::{Component, Form, Input, Part};

const INPUT: &str = "signature-input";
const SIGNATURE: &str = "signature";
const DIGEST: &str = "content-digest";
/// What a source has to name for its signatures to mean something.
const REQUIRED_EXAMPLE: &str = "@method,@target-uri,content-digest";

pub(super) const ENTRY: Entry = Entry {
    params: &[
        Param {
            name: "alg",
            kind: ParamKind::Text,
            about: "the one algorithm that is taken",
            example: "ed25519",
            wrong: no_algorithm,
        },
        Param {
            name: "keyid",
            kind: ParamKind::OptionalText,
            about: "the name that the key has to have",
            example: "key-1",
            wrong: no_keyid,
        },
        Param {
            name: "required_components",
            kind: ParamKind::List,
            about: "what every signature has to cover, at least",
            example: REQUIRED_EXAMPLE,
            wrong: no_component,
        },
        Param {
            name: "jwks_url",
            kind: ParamKind::UsualText,
            about: "where the partner publishes its keys, instead of `secrets`",
            example: "https://partner.example/jwks",
            wrong: no_key_url,
        },
    ],
    publishes_keys: true,
    headers: &[SIGNATURE, INPUT],
    build,
    about: About {
        algorithm: "as `alg` says",
        key: "the secret, decoded from base64, or a public key, as `alg` needs; or the one at \
              `jwks_url` that the request names",
        signature: &["header:Signature"],
        form: "base64 between colons, under the label whose `keyid` is ours",
        signed: "what header:Signature-Input lists, and no less than `required_components`; the body by \
                 its Content-Digest",
        covers_by_settings: true,
        time: Some("created in header:Signature-Input in s"),
        ..About::BARE
    },
};

/// The algorithms of RFC 9421, with the names that key sets have for them.
const KINDS: [(&str, Kind, &str); 5] = [
    ("ecdsa-p256-sha256", Kind::EcdsaP256, "ES256"),
    ("ecdsa-p384-sha384", Kind::EcdsaP384, "ES384"),
    ("ed25519", Kind::Ed25519, "EdDSA"),
    ("rsa-pss-sha512", Kind::RsaPssSha512, "PS512"),
    ("rsa-v1_5-sha256", Kind::RsaSha256, "RS256"),
];
const HMAC: &str = "hmac-sha256";

fn no_algorithm(text: &str) -> Option<String> {
    let names: Vec<&str> = KINDS.iter().map(|(name, ..)| *name).collect();
    let known = text == HMAC || names.contains(&text);
    (!known).then(|| format!("`{text}` is not known: use {HMAC}, {}", names.join(", ")))
}

fn no_keyid(text: &str) -> Option<String> {
    let told = "holds other characters than visible ASCII and spaces, and no `keyid` can: copy it again";
    (!text.bytes().all(|b| (b' '..=b'~').contains(&b))).then(|| told.to_owned())
}

fn no_component(text: &str) -> Option<String> {
    let why = Component::parse(text).err()?;
    Some(format!(
        "`{text}` {why}: write a header's name in lower case, or e.g. @method or \"@query-param\";name=\"id\""
    ))
}

fn no_key_url(text: &str) -> Option<String> {
    let told = "is not a plain https URL: leave out port, user name and fragment";
    KeyUrl::configured(text).is_none().then(|| told.to_owned())
}

struct MessageSignatures {
    alg: String,
    keyid: Option<String>,
    keys: Keys,
    required: Vec<Component>,
    window: Window,
}

enum Keys {
    Shared(Macs),
    Public(Kind, Vec<PublicKey>),
    Published(Kind, &'static str, KeyUrl),
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let mut required: Vec<Component> = Vec::new();
    for (i, text) in make.list("required_components").iter().enumerate() {
        let Ok(component) = Component::parse(text) else { continue };
        if required.contains(&component) {
            make.problem(
                &format!("params.required_components[{i}]"),
                "is a component that stands here twice: remove one of the two",
            );
        }
        required.push(component);
    }
    if !required.iter().any(binds_body) {
        make.warn(format!("params.required_components: without {DIGEST} the body need not be signed: name it"));
    }
    let alg = make.text("alg")?;
    let keyid = make.text("keyid");
    let keys = keys(make, &alg, keyid.as_deref())?;
    Some(Box::new(MessageSignatures { alg, keyid, keys, required, window: Window(make.tolerance_millis()) }))
}

fn keys(make: &mut Make<'_>, alg: &str, keyid: Option<&str>) -> Option<Keys> {
    let known = KINDS.into_iter().find(|(name, ..)| *name == alg);
    let place = make.text("jwks_url");
    if alg != HMAC && known.is_none() {
        return None;
    }
    if let Some(place) = place {
        let url = KeyUrl::configured(&place);
        let mistake = match (known, &url) {
            (None, _) => {
                Some(("params.jwks_url", "holds no shared secrets: remove it, or use an algorithm with public keys"))
            }
            (_, None) => None,
            (..) if keyid.is_some() => Some(("params.keyid", "has no effect, the request names its key: remove it")),
            (..) if !make.secrets().is_empty() => {
                Some(("secrets", "have no effect beside `jwks_url`: remove one of the two"))
            }
            (Some(_), Some(_)) => None,
        };
        if let Some((field, message)) = mistake {
            make.problem(field, message);
        }
        return known.zip(url).map(|((_, kind, name), url)| Keys::Published(kind, name, url));
    }
    if make.secrets().is_empty() {
        make.problem("secrets", "without a key nothing can be verified: give one, or `jwks_url` in `params`");
    }
    if keyid.is_none() {
        make.problem(
            "params.keyid",
            "is missing: write the name that the sender gives the key, e.g. keyid = \"key-1\"",
        );
    }
    let Some((_, kind, _)) = known else {
        return make.macs(Algorithm::HmacSha256, Encoding::Base64, KeyForm::Base64).map(Keys::Shared);
    };
    let mut all = Vec::new();
    let mut bad = Vec::new();
    for (number, secret) in make.secrets().iter().enumerate() {
        let der = || PublicKey::from_der(kind, &STANDARD.decode(secret.expose().trim_ascii()).ok()?);
        match PublicKey::from_pem(kind, secret.expose()).or_else(der) {
            Some(key) => all.push(key),
            None => bad.push(number),
        }
    }
    for number in bad {
        let message =
            format!("is no public key for {alg}: give it (SPKI) in PEM, or what stands between the lines of its PEM");
        make.problem(&format!("secrets[{number}]"), message);
    }
    Some(Keys::Public(kind, all))
}

impl Builtin for MessageSignatures {
    fn check(&self, facts: &Facts<'_>, key: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let signatures = structured::members(header(request, SIGNATURE)?)?;
        let inputs = structured::members(header(request, INPUT)?)?;
        let mut chosen = None;
        for (label, raw) in inputs {
            let input = Input::parse(raw)?;
            let is_ours = self.keyid.is_none() || input.keyid == self.keyid;
            if is_ours && chosen.replace((label, input)).is_some() {
                return Err(malformed("several signatures are by the source's key").into());
            }
        }
        let Some((label, input)) = chosen else {
            let detail = "no signature is by the source's key";
            return Err(Refusal::new(RefusalCode::UnknownKey, CheckStep::Structure, detail).into());
        };
        let signature = signatures.into_iter().find(|(name, _)| *name == label).map(|(_, value)| value);
        let signature = signature.ok_or_else(|| malformed("the two headers name different signatures"))?;
        let signature = signature.strip_prefix(':').and_then(|text| text.strip_suffix(':'));
        let signature = signature.ok_or_else(|| malformed("the signature is no sequence of bytes"))?;
        if input.alg.as_ref().is_some_and(|alg| *alg != self.alg) {
            let detail = format!("the signature's algorithm is not {}", self.alg);
            return Err(Refusal::new(RefusalCode::UnsupportedAlgorithm, CheckStep::Structure, detail).into());
        }
        if let Some(missing) = self.required.iter().find(|needed| !input.components.contains(needed)) {
            let detail = format!("the signature does not cover {}", missing.written);
            return Err(Refusal::new(RefusalCode::InsufficientCoverage, CheckStep::Structure, detail).into());
        }
        let base = base(request, &input)?;
        let skew = self.skew(request, &input)?;
        let refused = |refusal: Refusal| Refusal { skew_seconds: skew, ..refusal };
        let secret = self.verified(&input, key, (base.as_bytes(), signature)).map_err(|stop| match stop {
            Stop::Refused(refusal) => Stop::Refused(refused(refusal)),
            needs @ Stop::NeedsKey(_) => needs,
        })?;
        if input.components.iter().any(|component| component.is_field(DIGEST)) {
            let told = header(request, DIGEST)?;
            if !is_digest(told, request.body).map_err(refused)? {
                return Err(refused(differs("the body")).into());
            }
        }
        Ok(Proof { skew_seconds: skew, ..Proof::new(secret, &[base.as_bytes()]) })
    }

    fn covers(&self, at: &Locator) -> bool {
        let needs = |part: &Part| self.required.iter().any(|component| component.part == *part);
        let field = |form: Form, name: &HeaderName| Part::Field(name.as_str().to_owned(), form);
        match at {
            // What is written anew may stand otherwise in the request.
            Locator::Header(_, name) => {
                [Form::AsItStands, Form::Bytes].into_iter().any(|form| needs(&field(form, name)))
            }
            Locator::Query(name) => {
                ["@target-uri", "@query", "@request-target"].into_iter().any(|url| needs(&Part::Derived(url)))
                    || needs(&Part::QueryParam(escaped(name.as_bytes())))
            }
            Locator::Form(_) | Locator::Json(..) => self.required.iter().any(binds_body),
            Locator::Sig(_) => false,
        }
    }

    fn body(&self) -> BodyCover {
        if self.required.iter().any(binds_body) { BodyCover::Bytes } else { BodyCover::Not }
    }

    fn signs_url(&self) -> bool {
        let of_url = |component: &Component| match &component.part {
            Part::Derived(name) => *name != "@method",
            Part::QueryParam(_) => true,
            Part::Field(..) => false,
        };
        self.required.iter().any(of_url)
    }

    fn sign(&self, sign: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        let Keys::Shared(macs) = &self.keys else { return Err(SignError::NoSigningKey) };
        let digest = format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(sign.body)));
        let mut headers = HeaderMap::new();
        headers.insert(
            HeaderName::from_static(DIGEST),
            HeaderValue::try_from(&digest).map_err(|_| SignError::NoSigningKey)?,
        );
        let (method, body) = (Method::POST, Bytes::new());
        let (url, received_at) = (sign.url, sign.timestamp);
        let request = Request { method: &method, url, headers: &headers, body: &body, received_at };
        let mut components = self.required.clone();
        if !components.iter().any(binds_body) {
            components.extend(Component::parse(DIGEST));
        }
        let listed: Vec<String> = components.iter().map(|component| component.written.clone()).collect();
        let keyid = self.keyid.as_deref().and_then(structured::quoted);
        let keyid = keyid.map(|id| format!(";keyid={id}")).unwrap_or_default();
        let raw = format!("({});created={}{keyid}", listed.join(" "), sign.timestamp.as_seconds());
        let unread = |refusal: Refusal| SignError::UnknownValue(refusal.detail);
        let input = Input::parse(&raw).map_err(unread)?;
        let signature = macs.sign(&[base(request, &input).map_err(unread)?.as_bytes()])?;
        Ok(vec![
            (SIGNATURE.to_owned(), format!("sig=:{signature}:")),
            (INPUT.to_owned(), format!("sig={raw}")),
            (DIGEST.to_owned(), digest),
        ])
    }
}

impl MessageSignatures {
    /// Where a window is set, the time of signing has to be told: all parameters are signed.
    fn skew(&self, request: Request<'_>, input: &Input<'_>) -> Result<Option<i64>, Refusal> {
        let now = request.received_at;
        if let Some(expires) = input.expires {
            Window(Some(0)).not_after(now, expires, "the signature's end")?;
        }
        match input.created {
            Some(created) => {
                let at = (created.saturating_mul(1_000), Told::Seconds);
                self.window.holds(now, at, "the signature").map(Some)
            }
            None if self.window == Window(None) => Ok(None),
            None => {
                let detail = "the signature does not say when it was made";
                Err(Refusal::new(RefusalCode::InsufficientCoverage, CheckStep::Structure, detail))
            }
        }
    }

    /// The number of the secret that verifies; none for a published key.
    fn verified(
        &self,
        input: &Input<'_>,
        key: KeyAtHand<'_>,
        (base, text): (&[u8], &str),
    ) -> Result<Option<usize>, Stop> {
        let kind = match &self.keys {
            Keys::Shared(macs) => {
                let candidate = macs.decode(text)?;
                return Ok(Some(macs.prove(&[base], &[candidate])?));
            }
            Keys::Public(kind, _) | Keys::Published(kind, ..) => *kind,
        };
        let signature = base64(text)?;
        kind.fits(&signature)?;
        let secret = match &self.keys {
            Keys::Public(_, keys) => super::verified_by(keys, base, &signature).map(Some),
            Keys::Published(kind, name, url) => {
                let query = || KeyQuery::get(url.clone());
                let kid = input.keyid.as_deref().ok_or_else(|| unknown_key("the signature does not name its key"))?;
                let fetched = key_of(key, query)?;
                let set = fetched.found.read_as(KeySet::read);
                let set = set.ok_or_else(|| unknown_key("what stands at jwks_url is no key set"))?;
                match set.named(kid).and_then(|key| key.public_key(*kind, name)) {
                    None if fetched.may_be_outdated() => return Err(query().again().into()),
                    None => return Err(unknown_key("the key set has not the signature's key").into()),
                    Some(key) => key.verifies(base, &signature).then_some(None),
                }
            }
            Keys::Shared(_) => None,
        };
        Ok(secret.ok_or_else(mismatch)?)
    }
}

/// What is signed (RFC 9421, section 2.5): a line for each component, and the parameters as they were received.
fn base(request: Request<'_>, input: &Input<'_>) -> Result<String, Refusal> {
    let mut base = String::new();
    for (index, component) in input.components.iter().enumerate() {
        // By its number: what it is called is the sender's text.
        let named =
            |refusal: Refusal| Refusal { detail: format!("component {} {}", index + 1, refusal.detail), ..refusal };
        let value = value(request, component).map_err(named)?;
        base.push_str(&format!("{}: {value}\n", component.written));
    }
    base.push_str(&format!("\"@signature-params\": {}", input.raw));
    Ok(base)
}

/// Whether it binds the body: the digest of it, or one that we know in a list of them.
fn binds_body(component: &Component) -> bool {
    match &component.part {
        Part::Field(name, Form::Member(key)) => name == DIGEST && ["sha-256", "sha-512"].contains(&key.as_str()),
        Part::Field(name, Form::AsItStands | Form::Structured | Form::Bytes) => name == DIGEST,
        Part::Derived(_) | Part::QueryParam(_) => false,
    }
}

fn value(request: Request<'_>, component: &Component) -> Result<String, Refusal> {
    let url = request.url;
    let query = || format!("?{}", url_query(url));
    let path = || Some(url_path(url)).filter(|path| !path.is_empty()).unwrap_or("/").to_owned();
    let bare = || url.split('#').next().unwrap_or(url);
    Ok(match &component.part {
        Part::Derived("@method") => request.method.as_str().to_owned(),
        Part::Derived("@target-uri") => bare().to_owned(),
        Part::Derived("@scheme") => {
            url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase()).unwrap_or_default()
        }
        Part::Derived("@authority") => authority(url),
        Part::Derived("@request-target") if bare().contains('?') => path() + &query(),
        Part::Derived("@path" | "@request-target") => path(),
        Part::Derived("@query") => query(),
        Part::Derived(_) => return Err(malformed("is not known")),
        Part::QueryParam(name) => query_param(url, name)?,
        Part::Field(name, form) => field(request.headers, name, form)?,
    })
}

/// What a query's names and values keep when they are written anew.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');

fn escaped(text: &[u8]) -> String {
    percent_encode(text, ESCAPED).to_string()
}

/// The one parameter of that name, both decoded and written anew.
fn query_param(url: &str, name: &str) -> Result<String, Refusal> {
    let pairs = pairs(url_query(url).as_bytes())?;
    let mut found = pairs.iter().filter(|(key, _)| escaped(key) == name).map(|(_, value)| escaped(value));
    match (found.next(), found.next()) {
        (Some(value), None) => Ok(value),
        (None, _) => Err(Refusal::missing("is a parameter that the query does not have")),
        (Some(_), Some(_)) => {
            Err(Refusal::malformed(CheckStep::Presence, "is a parameter that the query has more than once"))
        }
    }
}

/// The host in lower case, with its port where that is not the scheme's own.
fn authority(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default().to_ascii_lowercase();
    let own = if scheme.eq_ignore_ascii_case("http") { ":80" } else { ":443" };
    authority.strip_suffix(own).unwrap_or(&authority).to_owned()
}

/// A header's lines, trimmed, in the form that is signed.
fn field(headers: &HeaderMap, name: &str, form: &Form) -> Result<String, Refusal> {
    let mut lines = Vec::new();
    for value in headers.get_all(name) {
        if *form == Form::Bytes {
            lines.push(format!(":{}:", STANDARD.encode(value.as_bytes().trim_ascii())));
            continue;
        }
        let text = std::str::from_utf8(value.as_bytes()).ok().filter(|text| !text.contains(['\r', '\n']));
        lines.push(text.ok_or_else(|| malformed("is a header that is not text"))?.trim().to_owned());
    }
    if lines.is_empty() {
        return Err(Refusal::missing("is a header that is absent"));
    }
    let joined = lines.join(", ");
    match form {
        Form::AsItStands | Form::Bytes => Ok(joined),
        Form::Structured => structured::rewritten(&joined)
            .ok_or_else(|| malformed("is a header that is no structured field, and is signed as one")),
        Form::Member(key) => structured::member(&joined, key)
            .ok_or_else(|| malformed("is a header that is no dictionary, and a member of it is signed"))?
            .ok_or_else(|| Refusal::missing("is a member that its header does not have")),
    }
}

/// Whether every digest of a known kind is the body's, and there is one (RFC 9530).
fn is_digest(told: &str, body: &[u8]) -> Result<bool, Refusal> {
    let mut all = true;
    let mut known = 0;
    for (name, value) in structured::members(told)? {
        let expected = match name {
            "sha-256" => Sha256::digest(body).to_vec(),
            "sha-512" => Sha512::digest(body).to_vec(),
            _ => continue,
        };
        let text = value.strip_prefix(':').and_then(|text| text.strip_suffix(':'));
        known += 1;
        all &= base64(text.ok_or_else(undecodable)?)? == expected;
    }
    Ok(all && known > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    /// What is signed of a request, without the line of the parameters.
    fn lines(url: &str, headers: &[(&str, &str)], components: &[&str]) -> Result<Vec<String>, Refusal> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        let (method, body, received_at) = (Method::POST, Bytes::new(), Timestamp::ZERO);
        let request = Request { method: &method, url, headers: &all, body: &body, received_at };
        let raw = format!("({})", components.join(" "));
        let base = base(request, &Input::parse(&raw)?)?;
        let lines = base.strip_suffix(&format!("\"@signature-params\": {raw}")).unwrap();
        Ok(lines.lines().map(str::to_owned).collect())
    }

    const URL: &str = "https://www.example.com/path";

    /// RFC 9421, section 2.1.
    #[test]
    fn fields_are_signed_as_the_standard_shows() {
        let headers = [
            ("host", "www.example.com"),
            ("date", "Tue, 20 Apr 2021 02:07:56 GMT"),
            ("x-ows-header", "   Leading and trailing whitespace.   "),
            ("cache-control", "max-age=60"),
            ("cache-control", "   must-revalidate"),
            ("example-dict", "  a=1,    b=2;x=1;y=2,   c=(a   b   c), d"),
            ("empty-header", ""),
        ];
        let signed = [
            r#""host": www.example.com"#,
            r#""date": Tue, 20 Apr 2021 02:07:56 GMT"#,
            r#""x-ows-header": Leading and trailing whitespace."#,
            r#""cache-control": max-age=60, must-revalidate"#,
            r#""cache-control";sf: max-age=60, must-revalidate"#,
            r#""example-dict": a=1,    b=2;x=1;y=2,   c=(a   b   c), d"#,
            r#""example-dict";sf: a=1, b=2;x=1;y=2, c=(a b c), d"#,
            r#""example-dict";key="a": 1"#,
            r#""example-dict";key="d": ?1"#,
            r#""example-dict";key="b": 2;x=1;y=2"#,
            r#""example-dict";key="c": (a b c)"#,
            r#""empty-header": "#,
        ];
        let components: Vec<&str> = signed.iter().map(|line| line.split_once(": ").unwrap().0).collect();
        assert_eq!(lines(URL, &headers, &components).unwrap(), signed);
        for (component, code) in [
            (r#""example-dict";key="e""#, RefusalCode::MissingHeader),
            (r#""x-ows-header";key="a""#, RefusalCode::Malformed),
            (r#""x-ows-header";sf"#, RefusalCode::Malformed),
            (r#""absent";sf"#, RefusalCode::MissingHeader),
            (r#""absent";bs"#, RefusalCode::MissingHeader),
        ] {
            assert_eq!(lines(URL, &headers, &[component]).unwrap_err().code, code, "{component}");
        }
    }

    /// RFC 9421, section 2.1.3.
    #[test]
    fn lines_that_are_wrapped_are_told_apart() {
        let two = [("example-header", "value, with, lots"), ("example-header", "of, commas")];
        let one = [("example-header", "value, with, lots, of, commas")];
        for (headers, wrapped) in [
            (&two[..], ":dmFsdWUsIHdpdGgsIGxvdHM=:, :b2YsIGNvbW1hcw==:"),
            (&one[..], ":dmFsdWUsIHdpdGgsIGxvdHMsIG9mLCBjb21tYXM=:"),
        ] {
            let signed = lines(URL, headers, &[r#""example-header""#, r#""example-header";bs"#]).unwrap();
            let plain = r#""example-header": value, with, lots, of, commas"#.to_owned();
            assert_eq!(signed, [plain, format!(r#""example-header";bs: {wrapped}"#)]);
        }
    }

    /// RFC 9421, section 2.2.8.
    #[test]
    fn parameters_of_the_query_are_signed_one_by_one() {
        let url = "https://www.example.com/path?param=value&foo=bar&baz=batman&qux=";
        let signed = [
            r#""@query-param";name="baz": batman"#,
            r#""@query-param";name="qux": "#,
            r#""@query-param";name="param": value"#,
        ];
        let components =
            [r#""@query-param";name="baz""#, r#""@query-param";name="qux""#, r#""@query-param";name="param""#];
        assert_eq!(lines(url, &[], &components).unwrap(), signed);
        let url = "https://www.example.com/parameters?var=this%20is%20a%20big%0Amultiline%20value&\
                   bar=with+plus+whitespace&fa%C3%A7ade%22%3A%20=something";
        let signed = [
            r#""@query-param";name="var": this%20is%20a%20big%0Amultiline%20value"#,
            r#""@query-param";name="bar": with%20plus%20whitespace"#,
            r#""@query-param";name="fa%C3%A7ade%22%3A%20": something"#,
        ];
        let components: Vec<&str> = signed.iter().map(|line| line.split_once(": ").unwrap().0).collect();
        assert_eq!(lines(url, &[], &components).unwrap(), signed);
        for (query, code) in [
            ("?a=1&a=2", RefusalCode::Malformed),
            ("?a=1&%61=2", RefusalCode::Malformed),
            ("?b=1", RefusalCode::MissingHeader),
            ("", RefusalCode::MissingHeader),
        ] {
            let refused = lines(&format!("{URL}{query}"), &[], &[r#""@query-param";name="a""#]).unwrap_err();
            assert_eq!(refused.code, code, "{query}");
        }
    }

    #[test]
    fn what_belongs_to_a_response_is_refused_by_its_name() {
        for (component, told) in [
            (r#""date";req"#, "belongs to a response (`req`, `@status`)"),
            (r#""@method";req"#, "belongs to a response (`req`, `@status`)"),
            (r#""@status""#, "belongs to a response (`req`, `@status`)"),
            (r#""expires";tr"#, "is a trailer (`tr`)"),
            (r#""date";bs;sf"#, "means nothing there, or not beside the others"),
            (r#""@query-param""#, "does not name one parameter of the query"),
        ] {
            let refused = lines(URL, &[], &[component]).unwrap_err();
            assert_eq!((refused.code, refused.step), (RefusalCode::Malformed, CheckStep::Structure), "{component}");
            assert!(refused.detail.contains(told), "{component}: {refused}");
        }
    }
}
