//! One signature per item of the body, over eight of its fields; all of them have to be right.

use super::read::{malformed, mismatch};
use super::{About, BodyCover, Builtin, Entry, Macs, Proof};
use crate::verify::check::SIGNATURES_MAX;
use crate::verify::compile::Make;
use crate::verify::key::{Algorithm, Encoding, KeyForm};
use crate::verify::keys::{KeyAtHand, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::Refusal;
use crate::verify::sign::{SignError, SignRequest};
use serde::Deserialize;
use serde_json::value::RawValue;

pub(super) const ENTRY: Entry = Entry {
    params: &[],
    publishes_keys: false,
    headers: &[],
    build,
    about: About {
        algorithm: "hmac-sha256",
        key: "the secret, decoded from hexadecimal",
        signature: &["json:/notificationItems/*/NotificationRequestItem/additionalData/hmacSignature"],
        form: "base64, one for each item, and all have to be right",
        signed: "of each item, with `:` between: pspReference, originalReference, merchantAccountCode, \
                 merchantReference, value and currency of amount, eventCode, success",
        id: &["pspReference, eventCode and success, where there is one item"],
        receipt: Some("[accepted]"),
        ..About::BARE
    },
};

struct AdyenItem {
    macs: Macs,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let macs = make.macs(Algorithm::HmacSha256, Encoding::Base64, KeyForm::Hex)?;
    Some(Box::new(AdyenItem { macs }))
}

/// A field that is there twice is a mistake: two readers could see two values.
#[derive(Deserialize)]
struct Notification<'b> {
    #[serde(rename = "notificationItems", borrow)]
    items: Vec<Item<'b>>,
}

#[derive(Deserialize)]
struct Item<'b> {
    #[serde(rename = "NotificationRequestItem", borrow)]
    item: Fields<'b>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'b> {
    #[serde(borrow)]
    psp_reference: Option<&'b RawValue>,
    original_reference: Option<&'b RawValue>,
    merchant_account_code: Option<&'b RawValue>,
    merchant_reference: Option<&'b RawValue>,
    amount: Option<Amount<'b>>,
    event_code: Option<&'b RawValue>,
    success: Option<&'b RawValue>,
    additional_data: Option<Additional<'b>>,
}

#[derive(Deserialize)]
struct Amount<'b> {
    #[serde(borrow)]
    value: Option<&'b RawValue>,
    currency: Option<&'b RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Additional<'b> {
    #[serde(borrow)]
    hmac_signature: Option<&'b RawValue>,
}

/// A scalar as text; what is absent is empty.
fn text(raw: Option<&RawValue>) -> Result<String, Refusal> {
    let Some(raw) = raw.map(RawValue::get) else { return Ok(String::new()) };
    match raw.as_bytes().first() {
        Some(b'"') => serde_json::from_str(raw).map_err(|_| malformed("a signed field is not text")),
        Some(b'{' | b'[') => Err(malformed("a signed field is not a scalar")),
        _ if raw == "null" => Ok(String::new()),
        _ => Ok(raw.to_owned()),
    }
}

/// Where merchantReference stands among the signed fields.
const OWN_REFERENCE: usize = 3;

impl Fields<'_> {
    /// The eight fields, without any escaping.
    fn signed(&self) -> Result<String, Refusal> {
        let (value, currency) = self.amount.as_ref().map_or((None, None), |amount| (amount.value, amount.currency));
        let fields = [
            self.psp_reference,
            self.original_reference,
            self.merchant_account_code,
            self.merchant_reference,
            value,
            currency,
            self.event_code,
            self.success,
        ];
        let fields = fields.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
        // The merchant's own reference may hold the mark that stands between the fields. With one in another, too,
        // nobody could say where each begins.
        if fields.iter().enumerate().any(|(at, field)| at != OWN_REFERENCE && field.contains(':')) {
            return Err(malformed("a signed field other than merchantReference holds a `:`"));
        }
        Ok(fields.join(":"))
    }
}

impl Builtin for AdyenItem {
    fn check(&self, facts: &Facts<'_>, _: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let told: Notification<'_> = serde_json::from_slice(facts.request.body)
            .map_err(|_| malformed("the body is no list of notification items"))?;
        if told.items.is_empty() {
            return Err(Refusal::missing("the body has no notification item").into());
        }
        if told.items.len() > SIGNATURES_MAX {
            return Err(malformed(format!("more than {SIGNATURES_MAX} signatures in one request")).into());
        }
        let mut signatures = Vec::with_capacity(told.items.len());
        let mut signed = Vec::with_capacity(told.items.len());
        for Item { item } in &told.items {
            let signature = text(item.additional_data.as_ref().and_then(|data| data.hmac_signature))?;
            if signature.is_empty() {
                return Err(Refusal::missing("an item's hmacSignature is absent or empty").into());
            }
            signatures.push(signature);
            signed.push(item.signed()?);
        }
        let mut secret = None;
        let mut candidates = Vec::with_capacity(signatures.len());
        for signature in &signatures {
            candidates.push(self.macs.decode(signature)?);
        }
        for (candidate, signed) in candidates.into_iter().zip(&signed) {
            secret = Some(self.macs.prove(&[signed.as_bytes()], &[candidate])?);
        }
        let secret = secret.ok_or_else(mismatch)?;
        let id = match told.items.as_slice() {
            [Item { item }] => {
                let parts = [text(item.psp_reference)?, text(item.event_code)?, text(item.success)?];
                Some(parts.join(":"))
            }
            _ => None,
        };
        let all: Vec<&[u8]> = signed.iter().flat_map(|signed| [signed.as_bytes(), b"\n"]).collect();
        Ok(Proof { id, ..Proof::new(Some(secret), &all) })
    }

    /// Of each item some fields are signed, and not which item it is.
    fn covers(&self, _: &Locator) -> bool {
        false
    }

    fn body(&self) -> BodyCover {
        BodyCover::Not
    }

    fn sign(&self, _: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        Err(SignError::NotAHeader("field of the body".to_owned()))
    }
}
