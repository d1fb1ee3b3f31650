//! RSA over ids and a checksum of the body, with the key of a certificate whose place the request names.

use super::certificate::Certificate;
use super::public::{Kind, PublicKey};
use super::read::{base64, header, mismatch};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Param, ParamKind, Proof, key_of, no_name, untrusted_url};
use crate::verify::compile::Make;
use crate::verify::keys::{KeyAtHand, KeyQuery, KeyUrl, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use crate::verify::sign::{SignError, SignRequest};

const SIGNATURE: &str = "paypal-transmission-sig";
const ID: &str = "paypal-transmission-id";
const TIME: &str = "paypal-transmission-time";
const ALGORITHM: &str = "paypal-auth-algo";
const CERTIFICATE: &str = "paypal-cert-url";
const ISSUED_TO: [&str; 2] = ["messageverificationcerts.paypal.com", "messageverificationcerts.sandbox.paypal.com"];
const KIND: Kind = Kind::RsaSha256;

pub(super) const ENTRY: Entry = Entry {
    params: &[Param {
        name: "webhook_id",
        kind: ParamKind::Text,
        about: "the webhook's id at PayPal, which is signed with each event",
        example: "8PT597110X687430LKGECATA",
        wrong: no_name,
    }],
    publishes_keys: true,
    headers: &[SIGNATURE],
    build,
    about: About {
        algorithm: "rsa-sha256",
        key: "the certificate at PAYPAL-CERT-URL, on *.paypal.com, in force, issued to PayPal and \
              vouched for by an authority of this machine; or one in PEM as a secret",
        signature: &["header:PAYPAL-TRANSMISSION-SIG"],
        form: "base64",
        signed: "id and time of the transmission, `webhook_id`, the CRC-32 of the body: with `|` between",
        time: Some("header:PAYPAL-TRANSMISSION-TIME in rfc3339"),
        only_verifies: true,
        ..About::BARE
    },
};

struct PayPal {
    webhook_id: String,
    /// Certificates that are believed as they are. Empty: the provider's are fetched.
    given: Vec<PublicKey>,
    window: Window,
}

fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let [given] = super::given_certificates(make, [KIND]);
    let window = Window(make.tolerance_millis());
    Some(Box::new(PayPal { webhook_id: make.text("webhook_id")?, given, window }))
}

/// `*.paypal.com`, label by label.
fn is_listed(host: &str) -> bool {
    let labels = host.strip_suffix(".paypal.com");
    labels.is_some_and(|labels| {
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        labels.split('.').all(is_label)
    })
}

impl Builtin for PayPal {
    fn check(&self, facts: &Facts<'_>, key: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let text = header(request, SIGNATURE)?;
        let id = header(request, ID)?;
        let time = header(request, TIME)?;
        let algorithm = header(request, ALGORITHM)?;
        let place = header(request, CERTIFICATE)?;
        if algorithm != "SHA256withRSA" {
            let detail = format!("{ALGORITHM} is not SHA256withRSA");
            return Err(Refusal::new(RefusalCode::UnsupportedAlgorithm, CheckStep::Structure, detail).into());
        }
        let url = KeyUrl::named(place, is_listed).ok_or_else(untrusted_url)?;
        let at = Told::Rfc3339.read(time, TIME)?;
        let now = request.received_at;
        let skew = self.window.holds(now, (at, Told::Rfc3339), TIME)?;
        let refused = |refusal: Refusal| Refusal { skew_seconds: Some(skew), ..refusal };
        let signature = base64(text).map_err(refused)?;
        KIND.fits(&signature).map_err(refused)?;
        let sum = crc32fast::hash(request.body);
        let signed = format!("{id}|{time}|{}|{sum}", self.webhook_id);
        let secret = if self.given.is_empty() {
            let fetched = key_of(key, || KeyQuery::get(url))?;
            let certificate = Certificate::fetched(fetched)?;
            certificate.is_of(&ISSUED_TO, now).map_err(refused)?;
            certificate.is_vouched_for(fetched, now).map_err(refused)?;
            certificate.key(KIND)?.verifies(signed.as_bytes(), &signature).then_some(None)
        } else {
            super::verified_by(&self.given, signed.as_bytes(), &signature).map(Some)
        };
        let secret = secret.ok_or_else(|| refused(mismatch()))?;
        Ok(Proof { skew_seconds: Some(skew), ..Proof::new(secret, &[signed.as_bytes()]) })
    }

    fn covers(&self, at: &Locator) -> bool {
        matches!(at, Locator::Header(_, name) if [ID, TIME].contains(&name.as_str()))
    }

    /// Of the body only a checksum is signed, and bodies of the same sum are easily made.
    fn body(&self) -> BodyCover {
        BodyCover::Not
    }

    fn sign(&self, _: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        Err(SignError::NoSigningKey)
    }
}

#[cfg(test)]
mod tests {
    use super::is_listed;

    #[test]
    fn hosts_are_compared_label_by_label() {
        for host in ["api.paypal.com", "api.sandbox.paypal.com", "api-m.paypal.com"] {
            assert!(is_listed(host), "{host}");
        }
        for host in [
            "paypal.com",
            ".paypal.com",
            "a..paypal.com",
            "api.paypal.com.evil.test",
            "evilpaypal.com",
            "a_b.paypal.com",
        ] {
            assert!(!is_listed(host), "{host}");
        }
    }
}
