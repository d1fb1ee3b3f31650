//! The check of one request against one alternative of a scheme. The order of the steps is part of the contract: it
//! decides which word a refusal carries.

use super::challenge::{Challenge, is_token};
use super::key::{Algorithm, Candidates, Encoding, Key, candidate, undecodable};
use super::locator::{Facts, Locator, Place};
use super::refusal::{CheckStep, Refusal, RefusalCode};
use super::template::{Piece, Rendered, Values};
use crate::clock::Timestamp;
use http::HeaderName;
use smallvec::SmallVec;
use std::borrow::Cow;

/// More signatures than this in one request are not looked at.
pub(super) const SIGNATURES_MAX: usize = 64;
/// A longer event id is no id.
pub(super) const ID_BYTES_MAX: usize = 512;

/// A way in which a source's requests may be signed, with the secrets that are for it.
pub(super) struct Alternative {
    pub(super) algorithm: Algorithm,
    /// Each with its number among the source's secrets, from 0.
    pub(super) keys: Vec<(usize, Key)>,
    pub(super) sig: Sig,
    pub(super) vars: Vec<Var>,
    pub(super) signed: Vec<Piece>,
    /// The items of the signature header, for signing.
    pub(super) emit: Option<Vec<Vec<Piece>>>,
    pub(super) time: Option<Time>,
    pub(super) require: Vec<(Locator, Vec<u8>)>,
    /// Where the event's id may stand, and the variable that stands there too.
    pub(super) id: Vec<(Locator, Option<usize>)>,
    pub(super) id_is_word: bool,
    pub(super) event_type: Vec<Locator>,
    pub(super) challenges: Vec<Challenge>,
    /// A challenge of the scheme makes the code of a token by this algorithm. Which alternative it belongs to, what it
    /// checks and whether it is signed does not count: its token is the caller's to choose.
    pub(super) signs_tokens: bool,
    pub(super) covers_body: bool,
    /// Whether the signature covers every place that the dedup key may come from.
    pub(super) covers_key: bool,
}

pub(super) struct Sig {
    pub(super) at: Vec<Locator>,
    /// ASCII, as `pair` is.
    pub(super) split: Option<u8>,
    pub(super) pair: Option<u8>,
    pub(super) take: Vec<String>,
    pub(super) prefix: String,
    /// `None` for tokens, which are compared as they stand.
    pub(super) encoding: Option<Encoding>,
}

pub(super) struct Var {
    pub(super) name: String,
    pub(super) locator: Locator,
    pub(super) optional: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Seconds,
    Millis,
    Rfc3339,
}

pub(super) struct Time {
    /// The variable's index.
    pub(super) var: usize,
    pub(super) unit: Unit,
    pub(super) tolerance_millis: i64,
}

/// Alternatives that look at the same request: those whose header conditions are the same.
pub(super) struct Group {
    /// Any of these headers selects the group; empty: it is for every request.
    pub(super) when: Vec<HeaderName>,
    pub(super) alternatives: Vec<Alternative>,
}

/// What stands in the places of a signature.
type Texts<'r> = SmallVec<[Cow<'r, [u8]>; 2]>;
/// Taken out of there, still encoded.
type Signatures<'t> = SmallVec<[&'t [u8]; 4]>;

/// What is known of a request that passed.
#[derive(Clone, Copy)]
pub(super) struct Passed {
    /// The number of the secret that matched, from 0.
    pub(super) secret: usize,
    pub(super) skew_seconds: Option<i64>,
}

impl Unit {
    /// The time that `text` says, in milliseconds. Digits only, or RFC 3339 with an offset.
    fn read(self, text: &[u8]) -> Option<i64> {
        match self {
            Unit::Seconds => digits(text)?.checked_mul(1000),
            Unit::Millis => digits(text),
            Unit::Rfc3339 => Timestamp::parse_rfc3339(std::str::from_utf8(text).ok()?).map(Timestamp::as_millis),
        }
    }

    pub(super) fn write(self, time: Timestamp) -> String {
        match self {
            Unit::Seconds => time.as_seconds().to_string(),
            Unit::Millis => time.as_millis().to_string(),
            Unit::Rfc3339 => time.to_rfc3339(),
        }
    }
}

impl Alternative {
    /// Leaves the values of the variables in `values`, whatever was in it.
    pub(super) fn check<'r>(&self, facts: &Facts<'r>, values: &mut Values<'r>) -> Result<Passed, Refusal> {
        values.clear();
        let mut texts = Texts::new();
        self.present(facts, values, &mut texts)?;
        let mut signatures = Signatures::new();
        self.structured(&texts, values, &mut signatures)?;
        let skew_seconds = self.in_window(facts.request.received_at, values)?;
        match self.matched(facts, &signatures, values) {
            Ok(secret) => Ok(Passed { secret, skew_seconds }),
            Err(refusal) => Err(Refusal { skew_seconds, ..refusal }),
        }
    }

    /// What has to be there is there, once. Absence goes before repetition, wherever each is.
    fn present<'r>(&self, facts: &Facts<'r>, values: &mut Values<'r>, texts: &mut Texts<'r>) -> Result<(), Refusal> {
        let mut wrong = None;
        for (locator, literal) in &self.require {
            match facts.at(locator) {
                Place::Absent => return Err(Refusal::missing(format!("{locator} is absent or empty"))),
                Place::Repeated => wrong = Some(repeated(locator)),
                Place::Unreadable => wrong = Some(unreadable(locator)),
                Place::Value(value) if *value != **literal => {
                    wrong = Some(format!("{locator} does not hold what the scheme requires"));
                }
                Place::Value(_) => {}
            }
        }
        let mut nothing = true;
        let mut no_json = None;
        for locator in &self.sig.at {
            match facts.at(locator) {
                Place::Absent => {}
                Place::Repeated => {
                    nothing = false;
                    wrong = Some(repeated(locator));
                }
                Place::Unreadable => no_json = Some(unreadable(locator)),
                Place::Value(value) => {
                    nothing = false;
                    texts.push(value);
                }
            }
        }
        if nothing && no_json.is_some() {
            wrong = no_json;
        } else if nothing {
            let places: Vec<String> = self.sig.at.iter().map(Locator::to_string).collect();
            return Err(Refusal::missing(format!("no signature: {} is absent or empty", places.join(" or "))));
        }
        for var in &self.vars {
            let mut value = None;
            match facts.at(&var.locator) {
                // Stands in a header that is not taken apart yet.
                Place::Absent if matches!(var.locator, Locator::Sig(_)) => {}
                Place::Absent if var.optional => {}
                Place::Absent => return Err(Refusal::missing(format!("{} is absent or empty", var.locator))),
                Place::Repeated => wrong = Some(repeated(&var.locator)),
                Place::Unreadable => wrong = Some(unreadable(&var.locator)),
                Place::Value(found) => value = Some(found),
            }
            values.push(value);
        }
        wrong.map_or(Ok(()), |detail| Err(Refusal::malformed(CheckStep::Presence, detail)))
    }

    /// The signatures of accepted versions, still encoded; variables that stand beside them go to `values`.
    fn structured<'t, 'r>(
        &self,
        texts: &'t [Cow<'r, [u8]>],
        values: &mut Values<'r>,
        signatures: &mut Signatures<'t>,
    ) -> Result<(), Refusal> {
        let malformed = |detail: String| Refusal::malformed(CheckStep::Structure, detail);
        for text in texts {
            match text {
                Cow::Borrowed(text) => self.items(text, Cow::Borrowed, signatures, values)?,
                Cow::Owned(text) => self.items(text, |value| Cow::Owned(value.to_vec()), signatures, values)?,
            }
        }
        for (var, value) in self.vars.iter().zip(values.iter()) {
            if matches!(var.locator, Locator::Sig(_)) && value.is_none() && !var.optional {
                return Err(malformed(format!("the signature header has no {}", var.locator)));
            }
        }
        if signatures.is_empty() {
            return Err(malformed(self.no_signature()));
        }
        Ok(())
    }

    /// Takes one signature header apart. `keep` holds on to the value of a variable.
    fn items<'x: 't, 't, 'r>(
        &self,
        text: &'x [u8],
        keep: impl Fn(&'x [u8]) -> Cow<'r, [u8]>,
        signatures: &mut Signatures<'t>,
        values: &mut Values<'r>,
    ) -> Result<(), Refusal> {
        let mut take = |item: &'x [u8]| {
            let signature = match self.sig.pair {
                None => item,
                Some(pair) => match split_once(item, pair) {
                    Some((key, value)) if self.sig.take.iter().any(|take| take.as_bytes() == key) => value,
                    Some((key, b"")) => return self.beside(key, None, values),
                    Some((key, value)) => return self.beside(key, Some(keep(value)), values),
                    None => return Ok(()),
                },
            };
            // A doubled separator is harmless; a prefix is not optional.
            if let Some(signature) = signature.strip_prefix(self.sig.prefix.as_bytes())
                && !item.is_empty()
            {
                if signatures.len() == SIGNATURES_MAX {
                    let detail = format!("more than {SIGNATURES_MAX} signatures in one request");
                    return Err(Refusal::malformed(CheckStep::Structure, detail));
                }
                signatures.push(signature);
            }
            Ok(())
        };
        match self.sig.split {
            Some(split) => {
                let mut rest = text;
                while let Some((item, after)) = split_once(rest, split) {
                    take(trimmed(item))?;
                    rest = after;
                }
                take(trimmed(rest))
            }
            None => take(text),
        }
    }

    /// An item that is no signature: kept where a variable names it.
    fn beside<'r>(&self, key: &[u8], found: Option<Cow<'r, [u8]>>, values: &mut Values<'r>) -> Result<(), Refusal> {
        let named = |var: &Var| matches!(&var.locator, Locator::Sig(name) if name.as_bytes() == key);
        let Some(index) = self.vars.iter().position(named) else { return Ok(()) };
        if found.is_some() && values[index].is_some() {
            let detail = format!("{} is there twice", self.vars[index].locator);
            return Err(Refusal::malformed(CheckStep::Structure, detail));
        }
        values[index] = found.or_else(|| values[index].take());
        Ok(())
    }

    fn no_signature(&self) -> String {
        match (self.sig.pair, self.sig.prefix.as_str()) {
            (Some(_), _) => format!("no signature of an accepted version ({})", self.sig.take.join(", ")),
            (None, "") => "no signature in the list".to_owned(),
            (None, prefix) => format!("the signature does not begin with `{prefix}`"),
        }
    }

    /// The timestamp can be read and lies in the window, whose edges are inside. Gives how old it is.
    fn in_window(&self, now: Timestamp, values: &Values<'_>) -> Result<Option<i64>, Refusal> {
        let Some(time) = &self.time else { return Ok(None) };
        let name = &self.vars[time.var].locator;
        let text = values[time.var].as_deref().unwrap_or_default();
        let Some(at) = time.unit.read(text) else {
            return Err(Refusal::malformed(CheckStep::Structure, format!("{name} is not a timestamp")));
        };
        // Whole seconds are compared with whole seconds: the edge does not depend on our milliseconds.
        let now = match time.unit {
            Unit::Seconds => now.as_seconds().saturating_mul(1000),
            Unit::Millis | Unit::Rfc3339 => now.as_millis(),
        };
        let age = now.saturating_sub(at);
        let skew = age.div_euclid(1000);
        let refusal = |code, detail| {
            Err(Refusal { skew_seconds: Some(skew), ..Refusal::new(code, CheckStep::Timestamp, detail) })
        };
        let window = time.tolerance_millis / 1000;
        if age > time.tolerance_millis {
            return refusal(
                RefusalCode::TimestampTooOld,
                format!("{name} is {skew} s old, at most {window} s are let in"),
            );
        }
        if age < -time.tolerance_millis {
            let ahead = skew.unsigned_abs();
            let detail = format!("{name} is {ahead} s ahead of our clock, at most {window} s are let in");
            return refusal(RefusalCode::TimestampTooNew, detail);
        }
        Ok(Some(skew))
    }

    /// A signature decodes, a secret made it, and the id has the scheme's form.
    fn matched<'r>(&self, facts: &Facts<'r>, signatures: &[&[u8]], values: &Values<'r>) -> Result<usize, Refusal> {
        let decode = |text: &&[u8]| candidate(self.algorithm, self.sig.encoding, text);
        let candidates: Candidates = signatures.iter().filter_map(decode).collect();
        if candidates.is_empty() {
            let detail = undecodable(self.algorithm, self.sig.encoding);
            return Err(Refusal::malformed(CheckStep::Decoding, detail));
        }
        let signed = |key| Rendered { pieces: &self.signed, request: facts.request, values, key };
        let mut matched = None;
        for (number, key) in &self.keys {
            // Every key is tried, so that the time tells nothing about which one it was.
            let hit = key.matches(&signed(key.inline()), &candidates);
            matched = matched.or(hit.then_some(*number));
        }
        let for_anybody = self.signs_tokens && is_token(&signed(None));
        if self.keys.is_empty() {
            let detail = "there is no secret to check it with: the source takes the one that the handshake brings";
            return Err(Refusal::new(RefusalCode::NoSecret, CheckStep::Match, detail));
        }
        let Some(secret) = matched else {
            let detail = "none of the source's secrets made the signature of these bytes";
            return Err(Refusal::new(RefusalCode::SignatureMismatch, CheckStep::Match, detail));
        };
        if for_anybody {
            let detail = "the scheme's handshake makes such a signature for who asks";
            return Err(Refusal::malformed(CheckStep::Match, detail));
        }
        if self.id_is_word
            && let Some((locator, place)) = self.id_places(facts, values).next()
            && !matches!(&place, Place::Value(id) if is_word(id))
        {
            let detail = format!("{locator} is not 1 to 128 of A-Z, a-z, 0-9, `_` and `-`");
            return Err(Refusal::malformed(CheckStep::Id, detail));
        }
        Ok(secret)
    }

    /// What stands where the event's id may stand.
    fn id_places<'r>(&self, facts: &Facts<'r>, values: &Values<'r>) -> impl Iterator<Item = (&Locator, Place<'r>)> {
        let place = |(locator, var): &(Locator, Option<usize>)| {
            let known = var.and_then(|var| values.get(var)?.clone());
            known.map_or_else(|| facts.at(locator), Place::Value)
        };
        let places = self.id.iter().map(move |id| (&id.0, place(id)));
        places.filter(|(_, place)| !matches!(place, Place::Absent))
    }

    /// The event's id.
    pub(super) fn event_id<'r>(&self, facts: &Facts<'r>, values: &Values<'r>) -> Option<Cow<'r, str>> {
        let mut texts = self.id_places(facts, values).filter_map(|(_, place)| place.into_text());
        texts.find(|id| is_readable(id, ID_BYTES_MAX))
    }
}

fn digits(text: &[u8]) -> Option<i64> {
    let digit = |number: i64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    text.iter().try_fold(0, digit).filter(|_| !text.is_empty())
}

/// What stands around the first `at`.
fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = memchr::memchr(at, text)?;
    Some((&text[..index], &text[index + 1..]))
}

/// Without the spaces around it.
fn trimmed(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = text {
        text = rest;
    }
    text
}

fn repeated(locator: &Locator) -> String {
    format!("{locator} is there more than once, or not the same everywhere")
}

fn unreadable(locator: &Locator) -> String {
    format!("{locator} cannot be looked for: the body is not JSON")
}

/// The form of an id where a scheme wants a word.
pub(super) fn is_word(id: &[u8]) -> bool {
    (1..=128).contains(&id.len()) && id.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// Short enough to keep, and nothing that could break a line or a terminal.
pub(super) fn is_readable(text: &str, bytes_max: usize) -> bool {
    // Most are ASCII, whose control characters are told by their bytes.
    let plain = |b: u8| (b' '..0x7f).contains(&b);
    !text.is_empty() && text.len() <= bytes_max && (text.bytes().all(plain) || !text.chars().any(char::is_control))
}
