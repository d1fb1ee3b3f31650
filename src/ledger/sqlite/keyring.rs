//! Encryption at rest: a master key, the key-encryption key derived from it, and a data key per tenant, wrapped in the
//! ledger. Everything that a sender, a receiver or a plugin wrote is sealed with XChaCha20-Poly1305 under its tenant's
//! data key, bound to the place where it stands, so that no row can be moved to another.

use super::Fault;
pub(super) use super::xchacha::Unsealable;
use super::xchacha::{KEY_BYTES, NONCE_BYTES, TAG_BYTES, XChaCha20Poly1305};
use crate::entropy::Entropy;
use crate::ledger::{LedgerError, TenantKey};
use crate::secret::Secret;
use hkdf::Hkdf;
use sha2::Sha256;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use zeroize::Zeroizing;

const PRODUCT: &[u8] = b"hookgate";
/// Which data key (4 bytes), then the nonce.
const HEAD_BYTES: usize = 4 + NONCE_BYTES;
/// The one data key a tenant has today; rotation adds others.
const DATA_KEY: u32 = 1;

/// Where a sealed value stands.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    EventContent(&'a [u8; 16]),
    RevisionContent(&'a [u8; 16], u32),
    /// A delivery, and the token of the lease under which the attempt was made.
    AttemptDetail(&'a [u8; 16], u64),
    EndpointSecret(u32),
    SourceSecret(u32),
    /// The digest of the key that its request came with.
    Answer(&'a [u8; 32]),
}

impl Place<'_> {
    fn describe(self, out: &mut SmallVec<[u8; 96]>) {
        let (words, row): (&[u8], SmallVec<[u8; 32]>) = match self {
            Place::EventContent(id) => (b"\0payload\0event\0", SmallVec::from_slice(id)),
            Place::RevisionContent(id, revision) => {
                let mut row = SmallVec::from_slice(id);
                row.extend_from_slice(&revision.to_be_bytes());
                (b"\0payload\0revision\0", row)
            }
            Place::AttemptDetail(id, token) => {
                let mut row = SmallVec::from_slice(id);
                row.extend_from_slice(&token.to_be_bytes());
                (b"\0attempt\0detail\0", row)
            }
            Place::EndpointSecret(id) => (b"\0endpoint\0secret\0", SmallVec::from_slice(&id.to_be_bytes())),
            Place::SourceSecret(id) => (b"\0source\0secret\0", SmallVec::from_slice(&id.to_be_bytes())),
            Place::Answer(request) => (b"\0answer\0content\0", SmallVec::from_slice(request)),
        };
        out.extend_from_slice(words);
        out.extend_from_slice(&row);
    }
}

/// One tenant's data key, ready for use.
pub(super) struct TenantCipher {
    tenant: TenantKey,
    cipher: XChaCha20Poly1305,
}

impl TenantCipher {
    fn bound_to(&self, place: Place<'_>, key: u32) -> SmallVec<[u8; 96]> {
        let mut aad = SmallVec::new();
        aad.extend_from_slice(PRODUCT);
        aad.extend_from_slice(&self.tenant.0.to_be_bytes());
        place.describe(&mut aad);
        aad.extend_from_slice(&key.to_be_bytes());
        aad
    }

    /// Seals what `write` appends. `size_hint` spares a second allocation.
    pub(super) fn seal_with(
        &self,
        place: Place<'_>,
        entropy: &dyn Entropy,
        size_hint: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<u8>, Unsealable> {
        let mut nonce = [0; NONCE_BYTES];
        entropy.fill(&mut nonce);
        let mut out = Vec::with_capacity(HEAD_BYTES + size_hint + TAG_BYTES);
        out.extend_from_slice(&DATA_KEY.to_be_bytes());
        out.extend_from_slice(&nonce);
        write(&mut out);
        let (_, text) = out.split_at_mut(HEAD_BYTES);
        let aad = self.bound_to(place, DATA_KEY);
        let tag = self.cipher.seal(&nonce, &aad, text)?;
        out.extend_from_slice(&tag);
        Ok(out)
    }

    pub(super) fn seal(&self, place: Place<'_>, entropy: &dyn Entropy, plain: &[u8]) -> Result<Vec<u8>, Unsealable> {
        self.seal_with(place, entropy, plain.len(), |out| out.extend_from_slice(plain))
    }

    pub(super) fn open(&self, place: Place<'_>, sealed: &[u8]) -> Result<Vec<u8>, Unsealable> {
        let (head, rest) = sealed.split_at_checked(HEAD_BYTES).ok_or(Unsealable)?;
        let (key, nonce) = head.split_at(4);
        let key = u32::from_be_bytes(key.try_into().map_err(|_| Unsealable)?);
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| Unsealable)?;
        let (text, tag) = rest.split_at_checked(rest.len().wrapping_sub(TAG_BYTES)).ok_or(Unsealable)?;
        let tag: [u8; TAG_BYTES] = tag.try_into().map_err(|_| Unsealable)?;
        if key != DATA_KEY {
            return Err(Unsealable);
        }
        let mut plain = text.to_vec();
        let aad = self.bound_to(place, key);
        self.cipher.open(&nonce, &aad, &mut plain, &tag)?;
        Ok(plain)
    }
}

/// The keys of an open ledger.
pub(super) struct Keyring {
    kek: XChaCha20Poly1305,
    /// Names the key-encryption key without giving it away.
    kek_id: [u8; 8],
    /// What keys for other purposes are derived from.
    root: Zeroizing<[u8; KEY_BYTES]>,
    tenants: RwLock<HashMap<TenantKey, Arc<TenantCipher>>>,
}

impl Keyring {
    /// `master` is 32 bytes.
    pub(super) fn new(master: &Secret) -> Result<Self, LedgerError> {
        let bad = || LedgerError::Open {
            problem: "the master key is not 32 bytes".into(),
            remedy: "set HOOKGATE_MASTER_KEY to 64 hexadecimal digits, or leave it to the file beside the ledger"
                .into(),
        };
        if master.expose().len() != KEY_BYTES {
            return Err(bad());
        }
        let derive = Hkdf::<Sha256>::new(Some(PRODUCT), master.expose());
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let mut kek_id = [0; 8];
        derive.expand(b"key-encryption key", key.as_mut_slice()).map_err(|_| bad())?;
        derive.expand(b"key-encryption key id", &mut kek_id).map_err(|_| bad())?;
        let mut root = Zeroizing::new([0; KEY_BYTES]);
        derive.expand(b"keys for other purposes", root.as_mut_slice()).map_err(|_| bad())?;
        Ok(Keyring { kek: XChaCha20Poly1305::new(key), kek_id, root, tenants: RwLock::default() })
    }

    /// 32 bytes for a purpose outside the ledger: the same from start to start, of no use for anything else.
    pub(super) fn derived(&self, purpose: &str) -> Secret {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        // HKDF gives up to 255 digests; one is asked for.
        let _enough =
            Hkdf::<Sha256>::new(Some(PRODUCT), self.root.as_slice()).expand(purpose.as_bytes(), key.as_mut_slice());
        Secret::new(key.as_slice())
    }

    pub(super) fn kek_id(&self) -> [u8; 8] {
        self.kek_id
    }

    pub(super) fn tenant(&self, tenant: TenantKey) -> Option<Arc<TenantCipher>> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).get(&tenant).cloned()
    }

    pub(super) fn keep(&self, cipher: Arc<TenantCipher>) {
        self.tenants.write().unwrap_or_else(PoisonError::into_inner).insert(cipher.tenant, cipher);
    }

    /// A fresh data key, and how it is kept.
    pub(super) fn new_tenant(
        &self,
        tenant: TenantKey,
        entropy: &dyn Entropy,
    ) -> Result<(u32, Vec<u8>, Arc<TenantCipher>), Unsealable> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        entropy.fill(key.as_mut_slice());
        let wrapped = self.wrap(key.as_slice(), &Self::wrapping_of(tenant, DATA_KEY), entropy)?;
        Ok((DATA_KEY, wrapped, Self::cipher(tenant, key.as_slice())?))
    }

    pub(super) fn unwrap_tenant(&self, tenant: TenantKey, key: u32, wrapped: &[u8]) -> Result<(), Unsealable> {
        let plain = self.unwrap(wrapped, &Self::wrapping_of(tenant, key))?;
        self.keep(Self::cipher(tenant, &plain)?);
        Ok(())
    }

    /// A known text under the key-encryption key: whoever opens it holds the right master key.
    pub(super) fn canary(&self, entropy: &dyn Entropy) -> Result<Vec<u8>, Unsealable> {
        self.wrap(b"canary", b"hookgate canary", entropy)
    }

    pub(super) fn knows(&self, canary: &[u8]) -> bool {
        self.unwrap(canary, b"hookgate canary").is_ok_and(|plain| plain.as_slice() == b"canary")
    }

    fn cipher(tenant: TenantKey, key: &[u8]) -> Result<Arc<TenantCipher>, Unsealable> {
        let key = Zeroizing::new(key.try_into().map_err(|_| Unsealable)?);
        Ok(Arc::new(TenantCipher { tenant, cipher: XChaCha20Poly1305::new(key) }))
    }

    fn wrapping_of(tenant: TenantKey, key: u32) -> Vec<u8> {
        [PRODUCT, b"\0tenant_key\0wrapped\0", &tenant.0.to_be_bytes(), &key.to_be_bytes()].concat()
    }

    fn wrap(&self, plain: &[u8], aad: &[u8], entropy: &dyn Entropy) -> Result<Vec<u8>, Unsealable> {
        let mut nonce = [0; NONCE_BYTES];
        entropy.fill(&mut nonce);
        let mut text = plain.to_vec();
        let tag = self.kek.seal(&nonce, aad, &mut text)?;
        Ok([&nonce[..], &text, &tag].concat())
    }

    fn unwrap(&self, wrapped: &[u8], aad: &[u8]) -> Result<Zeroizing<Vec<u8>>, Unsealable> {
        let (nonce, rest) = wrapped.split_at_checked(NONCE_BYTES).ok_or(Unsealable)?;
        let (text, tag) = rest.split_at_checked(rest.len().wrapping_sub(TAG_BYTES)).ok_or(Unsealable)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| Unsealable)?;
        let tag: [u8; TAG_BYTES] = tag.try_into().map_err(|_| Unsealable)?;
        let mut plain = Zeroizing::new(text.to_vec());
        self.kek.open(&nonce, aad, &mut plain, &tag)?;
        Ok(plain)
    }
}

impl From<Unsealable> for Fault {
    fn from(_: Unsealable) -> Self {
        Fault::Refused(LedgerError::Quarantined("it does not authenticate under this tenant's key".into()))
    }
}

/// The master key: what was handed in, else what the file holds, else a new one in that file. `may_create` is false
/// for a ledger that exists already: a new key could not read it.
pub(super) fn master_key(
    given: Option<&Secret>,
    path: &Path,
    may_create: bool,
    entropy: &dyn Entropy,
) -> Result<Secret, LedgerError> {
    let shown = path.display();
    if let Some(given) = given {
        // Its length is judged where keys are made of it.
        return Ok(given.clone());
    }
    let failed = |what: &str, e: &std::io::Error| LedgerError::Open {
        problem: format!("the master key file {shown} cannot be {what}: {e}"),
        remedy: "make it readable and writable by this user, or set HOOKGATE_MASTER_KEY".into(),
    };
    match fs::File::open(path) {
        Ok(file) => {
            let mode = file.metadata().map_err(|e| failed("read", &e))?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(LedgerError::Open {
                    problem: format!("the master key file {shown} can be read by others (mode {:04o})", mode & 0o7777),
                    remedy: format!("run `chmod 600 {shown}`"),
                });
            }
            let mut text = Zeroizing::new(Vec::new());
            file.take(1024).read_to_end(&mut text).map_err(|e| failed("read", &e))?;
            decode(&text).ok_or_else(|| LedgerError::Open {
                problem: format!("the master key file {shown} does not hold 64 hexadecimal digits"),
                remedy: "restore it from the backup that belongs to this ledger".into(),
            })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && may_create => {
            let mut key = Zeroizing::new([0; KEY_BYTES]);
            entropy.fill(key.as_mut_slice());
            let text = Zeroizing::new(hex::encode(key.as_slice()) + "\n");
            let write = || -> std::io::Result<()> {
                let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
                file.write_all(text.as_bytes())?;
                file.sync_all()
            };
            write().map_err(|e| failed("made", &e))?;
            tracing::info!(path = %shown, "made the ledger's master key; keep a copy apart from the ledger");
            Ok(Secret::new(key.as_slice()))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(LedgerError::Open {
            problem: format!("the ledger is encrypted and its master key is missing: there is no file {shown}"),
            remedy: "restore that file, or set HOOKGATE_MASTER_KEY to the key this ledger was made with".into(),
        }),
        Err(e) => Err(failed("read", &e)),
    }
}

fn decode(text: &[u8]) -> Option<Secret> {
    if text.len() == KEY_BYTES {
        return Some(Secret::new(text));
    }
    let key = Zeroizing::new(hex::decode(text.trim_ascii()).ok()?);
    (key.len() == KEY_BYTES).then(|| Secret::new(key.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SystemEntropy;

    fn ring() -> Keyring {
        Keyring::new(&Secret::new([7; 32])).unwrap()
    }

    #[test]
    fn a_seal_opens_in_its_place_only() {
        let (_, _, cipher) = ring().new_tenant(TenantKey(1), &SystemEntropy).unwrap();
        let (a, b) = ([1; 16], [2; 16]);
        let sealed = cipher.seal(Place::EventContent(&a), &SystemEntropy, b"hello").unwrap();
        assert!(!sealed.windows(5).any(|w| w == b"hello"));
        assert_eq!(cipher.open(Place::EventContent(&a), &sealed), Ok(b"hello".to_vec()));
        assert_eq!(cipher.open(Place::EventContent(&b), &sealed), Err(Unsealable));
        assert_eq!(cipher.open(Place::AttemptDetail(&a, 0), &sealed), Err(Unsealable));
        assert_eq!(cipher.open(Place::RevisionContent(&a, 1), &sealed), Err(Unsealable));
        for at in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[at] ^= 1;
            assert_eq!(cipher.open(Place::EventContent(&a), &bent), Err(Unsealable), "byte {at}");
            assert_eq!(cipher.open(Place::EventContent(&a), &sealed[..at]), Err(Unsealable), "cut at {at}");
        }
    }

    #[test]
    fn a_tenants_key_comes_back_for_that_tenant_only() {
        let ring = ring();
        let (id, wrapped, cipher) = ring.new_tenant(TenantKey(1), &SystemEntropy).unwrap();
        let sealed = cipher.seal(Place::EndpointSecret(3), &SystemEntropy, b"s").unwrap();
        assert!(ring.unwrap_tenant(TenantKey(2), id, &wrapped).is_err());
        ring.unwrap_tenant(TenantKey(1), id, &wrapped).unwrap();
        assert_eq!(ring.tenant(TenantKey(1)).unwrap().open(Place::EndpointSecret(3), &sealed), Ok(b"s".to_vec()));
        let other = Keyring::new(&Secret::new([8; 32])).unwrap();
        assert!(other.unwrap_tenant(TenantKey(1), id, &wrapped).is_err());
        let canary = ring.canary(&SystemEntropy).unwrap();
        assert!(ring.knows(&canary) && !other.knows(&canary) && !ring.knows(b""));
        assert_ne!(ring.kek_id(), other.kek_id());
    }

    #[test]
    fn the_file_is_made_once_and_kept_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("master-key");
        assert!(matches!(master_key(None, &path, false, &SystemEntropy), Err(LedgerError::Open { .. })));
        let made = master_key(None, &path, true, &SystemEntropy).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(master_key(None, &path, true, &SystemEntropy).unwrap().matches(made.expose()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = master_key(None, &path, true, &SystemEntropy).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        let given = Secret::new([7; 32]);
        assert!(master_key(Some(&given), &path, false, &SystemEntropy).unwrap().matches(given.expose()));
        assert!(Keyring::new(&Secret::new("short")).is_err());
    }
}
