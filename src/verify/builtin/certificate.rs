//! X.509 certificates that providers publish beside their requests.

use super::public::{Kind, PublicKey};
use crate::clock::Timestamp;
use crate::verify::keys::Fetched;
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::time::Duration;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::time::ASN1Time;

/// The longest chain that is looked at.
const CHAIN_MAX: usize = 8;

/// A certificate, and those that came with it.
pub(super) struct Certificate {
    chain: Vec<CertificateDer<'static>>,
}

fn bad(detail: &str) -> Refusal {
    Refusal::new(RefusalCode::UnknownKey, CheckStep::Match, format!("the provider's certificate {detail}"))
}

impl Certificate {
    pub(super) fn from_pem(text: &[u8]) -> Option<Certificate> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).take(CHAIN_MAX + 1).collect();
        let chain = chain.ok().filter(|chain| (1..=CHAIN_MAX).contains(&chain.len()))?;
        let certificate = Certificate { chain };
        certificate.parsed().is_some().then_some(certificate)
    }

    /// What was fetched; the refusal says what is wrong with it.
    pub(super) fn fetched(fetched: &Fetched) -> Result<Certificate, Refusal> {
        Certificate::from_pem(&fetched.bytes).ok_or_else(|| bad("is not one in PEM"))
    }

    fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.chain.first()
    }

    fn parsed(&self) -> Option<X509Certificate<'_>> {
        X509Certificate::from_der(self.leaf()?)
            .ok()
            .filter(|(rest, _)| rest.is_empty())
            .map(|(_, certificate)| certificate)
    }

    pub(super) fn key(&self, kind: Kind) -> Result<PublicKey, Refusal> {
        let parsed = self.parsed().ok_or_else(|| bad("cannot be read"))?;
        PublicKey::from_der(kind, parsed.public_key().raw).ok_or_else(|| bad("holds a key of another kind"))
    }

    /// That it is in force, and issued to one of these names.
    pub(super) fn is_of(&self, names: &[&str], now: Timestamp) -> Result<(), Refusal> {
        let parsed = self.parsed().ok_or_else(|| bad("cannot be read"))?;
        let at = ASN1Time::from_timestamp(now.as_seconds()).map_err(|_| bad("cannot be placed in time"))?;
        if at > parsed.validity().not_after {
            return Err(bad("has expired"));
        }
        if at < parsed.validity().not_before {
            return Err(bad("is not in force yet"));
        }
        let leaf =
            self.leaf().and_then(|der| EndEntityCert::try_from(der).ok()).ok_or_else(|| bad("cannot be read"))?;
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
