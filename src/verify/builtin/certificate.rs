//! X.509 certificates that providers publish beside their requests.

use super::public::{Kind, PublicKey};
use crate::clock::Timestamp;
use crate::verify::keys::Fetched;
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

/// The longest chain that is looked at.
const CHAIN_MAX: usize = 8;

/// A certificate, and those that came with it: taken apart once, its keys made when they are first needed.
pub(super) struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    /// SPKI.
    key: Vec<u8>,
    /// Seconds since 1970.
    in_force: RangeInclusive<i64>,
    keys: [OnceLock<Option<PublicKey>>; Kind::COUNT],
}

fn bad(detail: &str) -> Refusal {
    Refusal::new(RefusalCode::UnknownKey, CheckStep::Match, format!("the provider's certificate {detail}"))
}

impl Certificate {
    pub(super) fn from_pem(text: &[u8]) -> Option<Certificate> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).take(CHAIN_MAX + 1).collect();
        let chain = chain.ok().filter(|chain| (1..=CHAIN_MAX).contains(&chain.len()))?;
        let (rest, parsed) = X509Certificate::from_der(chain.first()?).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let key = parsed.public_key().raw.to_vec();
        let in_force = parsed.validity().not_before.timestamp()..=parsed.validity().not_after.timestamp();
        Some(Certificate { chain, key, in_force, keys: Default::default() })
    }

    /// What was fetched; the refusal says what is wrong with it.
    pub(super) fn fetched(fetched: &Fetched) -> Result<Arc<Certificate>, Refusal> {
        fetched.found.read_as(Certificate::from_pem).ok_or_else(|| bad("is not one in PEM"))
    }

    pub(super) fn key(&self, kind: Kind) -> Result<&PublicKey, Refusal> {
        let made = || PublicKey::from_der(kind, &self.key);
        self.keys[kind as usize].get_or_init(made).as_ref().ok_or_else(|| bad("holds a key of another kind"))
    }

    /// That it is in force, and issued to one of these names.
    pub(super) fn is_of(&self, names: &[&str], now: Timestamp) -> Result<(), Refusal> {
        let at = now.as_seconds();
        if at > *self.in_force.end() {
            return Err(bad("has expired"));
        }
        if at < *self.in_force.start() {
            return Err(bad("is not in force yet"));
        }
        let leaf = self.chain.first().and_then(|der| EndEntityCert::try_from(der).ok());
        let leaf = leaf.ok_or_else(|| bad("cannot be read"))?;
        let is_for = |name: &&str| {
            ServerName::try_from(*name).is_ok_and(|name| leaf.verify_is_valid_for_subject_name(&name).is_ok())
        };
        if names.iter().any(is_for) { Ok(()) } else { Err(bad("was issued to another name")) }
    }

    /// That one of those we believe vouches for it, over the certificates that came with it.
    pub(super) fn is_vouched_for(&self, fetched: &Fetched, now: Timestamp) -> Result<(), Refusal> {
        let unread = || bad("cannot be read");
        let (leaf, others) = self.chain.split_first().ok_or_else(unread)?;
        let seconds = u64::try_from(now.as_seconds()).map_err(|_| unread())?;
        let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let leaf = EndEntityCert::try_from(leaf).map_err(|_| unread())?;
        let (algorithms, usage) = (webpki::ALL_VERIFICATION_ALGS, KeyUsage::server_auth());
        leaf.verify_for_usage(algorithms, &fetched.anchors, others, at, usage, None, None)
            .map(|_| ())
            .map_err(|_| bad("is not vouched for by an authority that is believed here"))
    }
}
