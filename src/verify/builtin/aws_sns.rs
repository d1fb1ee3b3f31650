//! RSA over named fields of the body, with the key of a certificate whose place the body names. A subscription is
//! confirmed by calling a URL that the body names too.

use super::certificate::Certificate;
use super::public::{Kind, PublicKey};
use super::read::{base64, malformed, mismatch};
use super::time::{Told, Window};
use super::{About, BodyCover, Builtin, Entry, Param, ParamKind, Proof, Reply, key_of, unknown_key, untrusted_url};
use crate::verify::compile::Make;
use crate::verify::keys::{KeyAtHand, KeyQuery, KeyUrl, Stop};
use crate::verify::locator::{Facts, Locator};
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use crate::verify::sign::{SignError, SignRequest};
use serde::Deserialize;
use std::borrow::Cow;

pub(super) const ENTRY: Entry = Entry {
    params: &[Param {
        name: "topic_arns",
        kind: ParamKind::List,
        about: "the topics that may send; `[]` lets any topic of any AWS account send",
        example: "arn:aws:sns:us-east-1:123456789012:orders",
        wrong: no_topic,
    }],
    publishes_keys: true,
    headers: &[],
    build,
    about: About {
        algorithm: "rsa-sha1 or rsa-sha256, as SignatureVersion says",
        key: "the certificate at SigningCertURL, on sns.<region>.amazonaws.com or .com.cn, in force \
              and issued to SNS; or one in PEM as a secret",
        signature: &["json:/Signature"],
        form: "base64",
        signed: "name and value of Message, MessageId, Subject where there is one, Timestamp, TopicArn \
                 and Type, a line each; of a confirmation SubscribeURL and Token too",
        time: Some("json:/Timestamp in rfc3339"),
        handshakes: &["POST with json:/Type = SubscriptionConfirmation, signed: confirmed by calling its SubscribeURL"],
        only_verifies: true,
        ..About::BARE
    },
};

const TOPIC_NAME_MAX: usize = 256;

struct AwsSns {
    /// Empty: any topic of anybody.
    topics: Vec<String>,
    /// Certificates that are believed as they are, as keys for both versions. Empty: the provider's are fetched.
    given: [Vec<PublicKey>; 2],
    window: Window,
}

#[expect(clippy::unnecessary_wraps, reason = "the table's form")]
fn build(make: &mut Make<'_>) -> Option<Box<dyn Builtin>> {
    let topics = make.list("topic_arns");
    if topics.is_empty() {
        make.warn("params.topic_arns: is empty, so any topic of any AWS account may send: name yours");
    }
    let given = super::given_certificates(make, [Kind::RsaSha1, Kind::RsaSha256]);
    Some(Box::new(AwsSns { topics, given, window: Window(make.tolerance_millis()) }))
}

/// `arn:PARTITION:sns:REGION:ACCOUNT:NAME`.
fn no_topic(text: &str) -> Option<String> {
    let is_label = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    let is_topic = match text.split(':').collect::<Vec<_>>().as_slice() {
        ["arn", partition, "sns", region, account, name] => {
            let bare = name.strip_suffix(".fifo").unwrap_or(name);
            is_label(partition)
                && is_label(region)
                && account.len() == 12
                && account.bytes().all(|b| b.is_ascii_digit())
                && name.len() <= TOPIC_NAME_MAX
                && !bare.is_empty()
                && bare.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        }
        _ => false,
    };
    let told = "is no topic's ARN: write arn:PARTITION:sns:REGION:ACCOUNT:NAME, e.g. \
                arn:aws:sns:us-east-1:123456789012:orders";
    (!is_topic).then(|| told.to_owned())
}

/// The region of `sns.<region>.amazonaws.com` or `sns.<region>.amazonaws.com.cn`.
fn region(host: &str) -> Option<&str> {
    let rest = host.strip_prefix("sns.")?;
    let region = rest.strip_suffix(".amazonaws.com").or_else(|| rest.strip_suffix(".amazonaws.com.cn"))?;
    let fits = region.len() >= 3 && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    fits.then_some(region)
}

fn is_listed(host: &str) -> bool {
    region(host).is_some()
}

/// A field that is there twice is a mistake: two readers could see two values.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Message<'b> {
    #[serde(borrow)]
    r#type: Option<Cow<'b, str>>,
    #[serde(borrow)]
    message_id: Option<Cow<'b, str>>,
    #[serde(borrow)]
    topic_arn: Option<Cow<'b, str>>,
    #[serde(borrow)]
    subject: Option<Cow<'b, str>>,
    #[serde(borrow)]
    message: Option<Cow<'b, str>>,
    #[serde(borrow)]
    timestamp: Option<Cow<'b, str>>,
    #[serde(borrow)]
    token: Option<Cow<'b, str>>,
    #[serde(rename = "SubscribeURL", borrow)]
    subscribe_url: Option<Cow<'b, str>>,
    #[serde(borrow)]
    signature_version: Option<Cow<'b, str>>,
    #[serde(borrow)]
    signature: Option<Cow<'b, str>>,
    #[serde(rename = "SigningCertURL", borrow)]
    signing_cert_url: Option<Cow<'b, str>>,
}

fn there<'m>(field: &'m Option<Cow<'_, str>>, name: &str) -> Result<&'m str, Refusal> {
    let text = field.as_deref().filter(|text| !text.is_empty());
    text.ok_or_else(|| Refusal::missing(format!("body field {name} is absent or empty")))
}

impl Message<'_> {
    /// What is signed: name and value of each field, a line each.
    fn signed(&self, is_notification: bool) -> Result<String, Refusal> {
        let mut signed = String::new();
        // A message may be of several lines. With another value that is, too, nobody could say where each begins.
        let whole =
            [&self.message_id, &self.subject, &self.subscribe_url, &self.timestamp, &self.token, &self.topic_arn];
        if whole.into_iter().flatten().any(|value| value.contains('\n')) {
            return Err(malformed("a signed field other than Message is of several lines"));
        }
        let mut field = |name: &str, value: &str| {
            signed.push_str(name);
            signed.push('\n');
            signed.push_str(value);
            signed.push('\n');
        };
        field("Message", self.message.as_deref().ok_or_else(|| Refusal::missing("body field Message is absent"))?);
        field("MessageId", there(&self.message_id, "MessageId")?);
        if is_notification {
            // A subject of null is none.
            if let Some(subject) = self.subject.as_deref() {
                field("Subject", subject);
            }
        } else {
            field("SubscribeURL", there(&self.subscribe_url, "SubscribeURL")?);
        }
        field("Timestamp", there(&self.timestamp, "Timestamp")?);
        if !is_notification {
            field("Token", there(&self.token, "Token")?);
        }
        field("TopicArn", there(&self.topic_arn, "TopicArn")?);
        field("Type", there(&self.r#type, "Type")?);
        Ok(signed)
    }
}

impl Builtin for AwsSns {
    fn check(&self, facts: &Facts<'_>, key: KeyAtHand<'_>) -> Result<Proof, Stop> {
        let request = facts.request;
        let message: Message<'_> =
            serde_json::from_slice(request.body).map_err(|_| malformed("the body is no message"))?;
        let kind = there(&message.r#type, "Type")?;
        let text = there(&message.signature, "Signature")?;
        let version = there(&message.signature_version, "SignatureVersion")?;
        let place = there(&message.signing_cert_url, "SigningCertURL")?;
        let signed = match kind {
            "Notification" => message.signed(true)?,
            "SubscriptionConfirmation" | "UnsubscribeConfirmation" => message.signed(false)?,
            _ => return Err(malformed("body field Type is of no known kind").into()),
        };
        let (algorithm, given) = match version {
            "1" => (Kind::RsaSha1, &self.given[0]),
            "2" => (Kind::RsaSha256, &self.given[1]),
            _ => {
                let detail = "body field SignatureVersion is neither 1 nor 2";
                return Err(Refusal::new(RefusalCode::UnsupportedAlgorithm, CheckStep::Structure, detail).into());
            }
        };
        let url = KeyUrl::named(place, is_listed);
        let url = url.filter(|url| url.url().path().ends_with(".pem") && url.url().query().is_none());
        let url = url.ok_or_else(untrusted_url)?;
        let topic = there(&message.topic_arn, "TopicArn")?;
        if topic.split(':').nth(3) != url.url().host_str().and_then(region) {
            return Err(untrusted_url().into());
        }
        let at = Told::Rfc3339.read(there(&message.timestamp, "Timestamp")?, "body field Timestamp")?;
        let now = request.received_at;
        let skew = self.window.holds(now, (at, Told::Rfc3339), "body field Timestamp")?;
        let refused = |refusal: Refusal| Refusal { skew_seconds: Some(skew), ..refusal };
        let signature = base64(text).map_err(refused)?;
        algorithm.fits(&signature).map_err(refused)?;
        // Before anything is fetched: who knows none of the topics makes us ask nobody.
        if !self.topics.is_empty() && !self.topics.iter().any(|known| known == topic) {
            return Err(refused(unknown_key("body field TopicArn is none of the source's `topic_arns`")).into());
        }
        let secret = if given.is_empty() {
            let own = format!("sns.{}.amazonaws.com", url.url().host_str().and_then(region).unwrap_or_default());
            let fetched = key_of(key, || KeyQuery::get(url))?;
            let certificate = Certificate::fetched(fetched)?;
            certificate.is_of(&["sns.amazonaws.com", &own, &format!("{own}.cn")], now).map_err(refused)?;
            certificate.key(algorithm)?.verifies(signed.as_bytes(), &signature).then_some(None)
        } else {
            super::verified_by(given, signed.as_bytes(), &signature).map(Some)
        };
        let secret = secret.ok_or_else(|| refused(mismatch()))?;
        let reply = if kind == "SubscriptionConfirmation" {
            let place = there(&message.subscribe_url, "SubscribeURL")?;
            let url = KeyUrl::named(place, is_listed).filter(|url| {
                let asks =
                    |(name, value): (Cow<'_, str>, Cow<'_, str>)| name == "Action" && value == "ConfirmSubscription";
                url.url().path() == "/" && url.url().query_pairs().any(asks)
            });
            Some(Reply::Confirm(url.ok_or_else(|| refused(untrusted_url()))?))
        } else {
            None
        };
        Ok(Proof { skew_seconds: Some(skew), reply, ..Proof::new(secret, &[signed.as_bytes()]) })
    }

    /// The fields that are signed depend on the type.
    fn covers(&self, _: &Locator) -> bool {
        false
    }

    fn body(&self) -> BodyCover {
        BodyCover::Meaning
    }

    fn sign(&self, _: SignRequest<'_>) -> Result<Vec<(String, String)>, SignError> {
        Err(SignError::NoSigningKey)
    }
}

#[cfg(test)]
mod tests {
    use super::{Message, is_listed, no_topic};

    #[test]
    fn topics_have_an_arn() {
        for good in [
            "arn:aws:sns:us-east-1:123456789012:orders",
            "arn:aws-cn:sns:cn-north-1:123456789012:Orders_2.fifo",
            "arn:aws-us-gov:sns:us-gov-west-1:123456789012:a-b",
        ] {
            assert_eq!(no_topic(good), None, "{good}");
        }
        let long = format!("arn:aws:sns:us-east-1:123456789012:{}", "a".repeat(257));
        for bad in [
            "nonsense",
            "arn:aws:sqs:us-east-1:123456789012:orders",
            "arn:aws:sns:us-east-1:1234:orders",
            "arn:aws:sns:us-east-1:12345678901a:orders",
            "arn:aws:sns::123456789012:orders",
            "arn::sns:us-east-1:123456789012:orders",
            "arn:aws:sns:us-east-1:123456789012:",
            "arn:aws:sns:us-east-1:123456789012:.fifo",
            "arn:aws:sns:us-east-1:123456789012:*",
            "arn:aws:sns:us-east-1:123456789012:orders:4f1a3f3e-0000-4b1e-8c1d-000000000000",
            " arn:aws:sns:us-east-1:123456789012:orders",
            &long,
        ] {
            assert!(no_topic(bad).unwrap().contains(": write arn:"), "{bad}");
        }
    }

    /// Else the same signed text could be a message and a subject, or a longer message.
    #[test]
    fn only_the_message_has_lines() {
        let signed = |name: &str, value: &str| {
            let mut fields = serde_json::json!({
                "Type": "Notification", "MessageId": "1", "TopicArn": "t", "Subject": "s", "Message": "m",
                "Timestamp": "2026-01-01T00:00:00Z", "Token": "k", "SubscribeURL": "u",
            });
            fields[name] = value.into();
            let text = fields.to_string();
            let message: Message<'_> = serde_json::from_str(&text).unwrap();
            [true, false].map(|is_notification| message.signed(is_notification).is_ok())
        };
        assert_eq!(signed("Message", "a\nMessageId\nb"), [true, true]);
        for name in ["MessageId", "TopicArn", "Subject", "Timestamp", "Token", "SubscribeURL"] {
            assert_eq!(signed(name, "a\nTimestamp\nb"), [false, false], "{name}");
        }
    }

    #[test]
    fn hosts_of_the_service_and_no_others() {
        for host in ["sns.us-east-1.amazonaws.com", "sns.cn-north-1.amazonaws.com.cn"] {
            assert!(is_listed(host), "{host}");
        }
        for host in [
            "sns.amazonaws.com",
            "sns..amazonaws.com",
            "sns.us.east.amazonaws.com",
            "sns.us-east-1.amazonaws.com.evil.test",
            "evil-sns.us-east-1.amazonaws.com",
            "bucket.s3.amazonaws.com",
            "sns.us-east-1.amazonaws.co",
            "sns.us_east.amazonaws.com",
        ] {
            assert!(!is_listed(host), "{host}");
        }
    }
}
