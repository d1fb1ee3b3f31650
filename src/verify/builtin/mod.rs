//! Schemes that data cannot describe: each is a file of code behind [`Builtin`], named by its scheme's
//! `verify = "builtin:<name>"`. Id and type are still read by the data, where they stand in plain sight.

mod admit;
mod adyen_item;
mod aws_sns;
mod braintree;
mod certificate;
mod contentful;
mod dropbox_sign;
mod form;
mod hook0;
mod jws;
mod mac;
mod mandrill;
mod messagebird_jwt;
mod messagebird_legacy;
mod paypal;
mod plaid;
mod plivo_v3;
mod public;
mod read;
mod rfc9421;
mod time;
mod truelayer;
mod twilio;
mod vonage;

pub(in crate::verify) use admit::{Coded, SignedTime};
pub(in crate::verify) use mac::Macs;

use super::check::is_word;
use super::compile::Make;
use super::keys::{Fetched, KeyAtHand, KeyQuery, KeyUrl, Stop};
use super::locator::{Facts, Locator};
use super::refusal::{CheckStep, Refusal, RefusalCode};
use super::sign::{SignError, SignRequest};
use super::source::ChallengeAnswer;
use http::Method;
use serde_json::Value;

/// The names that stand behind `builtin:`.
const TABLE: [(&str, Entry); 16] = [
    ("adyen-item", adyen_item::ENTRY),
    ("aws-sns", aws_sns::ENTRY),
    ("braintree", braintree::ENTRY),
    ("contentful", contentful::ENTRY),
    ("dropbox-sign", dropbox_sign::ENTRY),
    ("hook0", hook0::ENTRY),
    ("mandrill", mandrill::ENTRY),
    ("messagebird-jwt", messagebird_jwt::ENTRY),
    ("messagebird-legacy", messagebird_legacy::ENTRY),
    ("paypal", paypal::ENTRY),
    ("plaid", plaid::ENTRY),
    ("plivo-v3", plivo_v3::ENTRY),
    ("rfc9421", rfc9421::ENTRY),
    ("truelayer", truelayer::ENTRY),
    ("twilio", twilio::ENTRY),
    ("vonage", vonage::ENTRY),
];

pub(in crate::verify) const PREFIX: &str = "builtin:";

pub(in crate::verify) fn entry(name: &str) -> Option<&'static Entry> {
    const { &TABLE }.iter().find(|(known, _)| *known == name).map(|(_, entry)| entry)
}

/// What the compiler has to know of a built-in before it makes one.
pub(in crate::verify) struct Entry {
    /// What a source says besides, in `params`.
    pub(in crate::verify) params: &'static [Param],
    /// Whether a source may do without secrets, because the provider publishes its keys.
    pub(in crate::verify) publishes_keys: bool,
    /// Headers that carry signatures: not handed on with the event.
    pub(in crate::verify) headers: &'static [&'static str],
    pub(in crate::verify) build: fn(&mut Make<'_>) -> Option<Box<dyn Builtin>>,
    pub(in crate::verify) about: About,
}

/// What the code of a scheme does, for people: as data would say it, in locators where there is one and else in words.
pub(in crate::verify) struct About {
    pub(in crate::verify) algorithm: &'static str,
    pub(in crate::verify) key: &'static str,
    pub(in crate::verify) signature: &'static [&'static str],
    pub(in crate::verify) form: &'static str,
    pub(in crate::verify) signed: &'static str,
    /// What is covered depends on the source's settings.
    pub(in crate::verify) covers_by_settings: bool,
    /// The key that signs is the provider's own, and private.
    pub(in crate::verify) only_verifies: bool,
    /// Where the signed time stands.
    pub(in crate::verify) time: Option<&'static str>,
    /// Ids and types that the code reads itself.
    pub(in crate::verify) id: &'static [&'static str],
    pub(in crate::verify) event_type: &'static [&'static str],
    pub(in crate::verify) handshakes: &'static [&'static str],
    /// What the provider wants to read in the answer to an event.
    pub(in crate::verify) receipt: Option<&'static str>,
}

impl About {
    const BARE: About = About {
        algorithm: "",
        key: "",
        signature: &[],
        form: "",
        signed: "",
        covers_by_settings: false,
        only_verifies: false,
        time: None,
        id: &[],
        event_type: &[],
        handshakes: &[],
        receipt: None,
    };
}

pub(in crate::verify) const TEXT_KEY: &str = "the secret's text as it stands";

/// A setting of a scheme that is code.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    pub kind: ParamKind,
    /// What it is, for people.
    pub about: &'static str,
    /// A value; of a list, its items with commas between.
    pub example: &'static str,
    /// What is wrong with a text, or with an item of a list: the rule and a remedy.
    pub(in crate::verify) wrong: fn(&str) -> Option<String>,
}

/// For names that a provider gives: letters, digits, `-` and `_`.
fn no_name(text: &str) -> Option<String> {
    let told = "holds other characters than letters, digits, `-` and `_`: copy it again from the provider";
    (!is_word(text.as_bytes())).then(|| told.to_owned())
}

fn no_switch(text: &str) -> Option<String> {
    let told = "is neither on nor off: write true, or leave it out";
    (!["true", "false"].contains(&text)).then(|| told.to_owned())
}

impl Param {
    /// Whether no source can do without it.
    pub fn is_needed(&self) -> bool {
        matches!(self.kind, ParamKind::Text | ParamKind::List)
    }

    /// The example as the file has it.
    pub(in crate::verify) fn written(&self) -> String {
        self.value().to_string().replace("\",\"", "\", \"")
    }

    pub(in crate::verify) fn value(&self) -> Value {
        match self.kind {
            ParamKind::List => self.example.split(',').collect(),
            ParamKind::Switch => true.into(),
            ParamKind::Text | ParamKind::OptionalText | ParamKind::UsualText => self.example.into(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamKind {
    Text,
    OptionalText,
    /// May be left out, and mostly is not.
    UsualText,
    /// Has to be written, also when it is empty.
    List,
    /// `true` lets more in than is wise; left out, it is off.
    Switch,
}

/// The code of one scheme, with a source's secrets and settings.
pub(in crate::verify) trait Builtin: Send + Sync {
    /// Checks a request, in the order that every scheme has: presence, structure, time, decoding, match.
    fn check(&self, facts: &Facts<'_>, key: KeyAtHand<'_>) -> Result<Proof, Stop>;

    /// Whether the signature covers what stands at a place, so that nobody who saw a request can change it.
    fn covers(&self, at: &Locator) -> bool;

    fn body(&self) -> BodyCover;

    fn signs_url(&self) -> bool {
        false
    }

    /// The headers that sign a request, the signature's first.
    fn sign(&self, request: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError>;

    /// The method besides POST that its handshake comes by.
    fn greets_by(&self) -> Option<Method> {
        None
    }

    /// The answer to a handshake that carries no signature of ours. It keeps nothing and opens nothing.
    fn greet(&self, _facts: &Facts<'_>) -> Option<ChallengeAnswer> {
        None
    }
}

/// How much of the body is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyCover {
    /// Every byte.
    Bytes,
    /// What the provider puts in it, not how it is written.
    Meaning,
    Not,
}

/// What is known of a request that passed.
pub(in crate::verify) struct Proof {
    /// The number of the secret that matched, from 0. `None`: the key is the provider's.
    pub(in crate::verify) secret: Option<usize>,
    pub(in crate::verify) skew_seconds: Option<i64>,
    /// What tells the signed content from any other.
    pub(in crate::verify) content: [u8; 16],
    /// Read by the code where the data cannot; both are signed.
    pub(in crate::verify) id: Option<String>,
    pub(in crate::verify) event_type: Option<String>,
    pub(in crate::verify) reply: Option<Reply>,
}

/// What a signed request that is no event asks for.
pub(in crate::verify) enum Reply {
    /// To be called once, then answered with 200.
    Confirm(KeyUrl),
}

impl Proof {
    pub(in crate::verify) fn new(secret: Option<usize>, signed: &[&[u8]]) -> Proof {
        Proof { secret, skew_seconds: None, content: read::content(signed), id: None, event_type: None, reply: None }
    }
}

/// The key that a request needs, or the query for it.
fn key_of<'k>(key: KeyAtHand<'k>, query: impl FnOnce() -> KeyQuery) -> Result<&'k Fetched, Stop> {
    match key {
        KeyAtHand::NotAsked => Err(query().into()),
        KeyAtHand::Absent => Err(unknown_key("the provider has no such key").into()),
        KeyAtHand::Fetched(fetched) => Ok(fetched),
    }
}

fn unknown_key(detail: &str) -> Refusal {
    Refusal::new(RefusalCode::UnknownKey, CheckStep::Match, detail)
}

fn untrusted_url() -> Refusal {
    let detail = "a URL in the request is not one of the provider's: nothing is called";
    Refusal::new(RefusalCode::UntrustedKeyUrl, CheckStep::Structure, detail)
}

/// The certificates among a source's secrets, as keys of each kind. They are the operator's word: neither their names
/// nor their dates are looked at.
fn given_certificates<const N: usize>(make: &mut Make<'_>, kinds: [public::Kind; N]) -> [Vec<public::PublicKey>; N] {
    let mut keys = kinds.map(|_| Vec::new());
    let mut bad = Vec::new();
    for (number, secret) in make.secrets().iter().enumerate() {
        let certificate = certificate::Certificate::from_pem(secret.expose());
        for (keys, kind) in keys.iter_mut().zip(kinds) {
            match certificate.as_ref().and_then(|certificate| certificate.key(kind).ok()) {
                Some(key) => keys.push(key.clone()),
                None => bad.push(number),
            }
        }
    }
    bad.dedup();
    for number in bad {
        let message = "is no certificate with an RSA key: give one in PEM, whole, with its line \
                       `-----BEGIN CERTIFICATE-----` and its end, or no secret at all to have it fetched";
        make.problem(&format!("secrets[{number}]"), message);
    }
    keys
}

/// Which of the keys made the signature.
fn verified_by(keys: &[public::PublicKey], message: &[u8], signature: &[u8]) -> Option<usize> {
    keys.iter().position(|key| key.verifies(message, signature))
}
