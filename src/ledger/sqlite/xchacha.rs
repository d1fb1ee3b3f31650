//! XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03) over AWS-LC's ChaCha20-Poly1305: HChaCha20 makes a key for each
//! message of the long nonce's first 16 bytes, the last 8 are the short nonce. AWS-LC's assembly takes a fraction of the
//! time that portable code needs for messages of about a kilobyte.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use chacha20::{R20, hchacha};
use zeroize::{Zeroize as _, Zeroizing};

pub(super) const KEY_BYTES: usize = 32;
pub(super) const NONCE_BYTES: usize = 24;
pub(super) const TAG_BYTES: usize = 16;

/// Does not authenticate: another key, another place, or damage.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unsealable;

pub(super) struct XChaCha20Poly1305 {
    key: Zeroizing<[u8; KEY_BYTES]>,
}

impl XChaCha20Poly1305 {
    pub(super) fn new(key: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        XChaCha20Poly1305 { key }
    }

    /// Encrypts in place and gives the tag.
    pub(super) fn seal(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], Unsealable> {
        let (key, nonce) = self.for_message(nonce)?;
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), text).map_err(|_| Unsealable)?;
        tag.as_ref().try_into().map_err(|_| Unsealable)
    }

    /// Decrypts in place. What does not authenticate is left in no state to be used.
    pub(super) fn open(
        &self,
        nonce: &[u8; NONCE_BYTES],
        aad: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Unsealable> {
        let (key, nonce) = self.for_message(nonce)?;
        key.open_in_place_separate_tag(nonce, Aad::from(aad), tag, text).map(|_| ()).map_err(|_| Unsealable)
    }

    fn for_message(&self, nonce: &[u8; NONCE_BYTES]) -> Result<(LessSafeKey, Nonce), Unsealable> {
        let (first, last) = nonce.split_first_chunk::<16>().ok_or(Unsealable)?;
        let mut own = hchacha::<R20>((&*self.key).into(), first.into());
        let key = UnboundKey::new(&CHACHA20_POLY1305, &own).map_err(|_| Unsealable);
        own.as_mut_slice().zeroize();
        let mut short = [0; NONCE_LEN];
        short.iter_mut().skip(4).zip(last).for_each(|(to, from)| *to = *from);
        Ok((LessSafeKey::new(key?), Nonce::assume_unique_for_key(short)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appendix A.3.1 of the draft.
    #[test]
    fn the_drafts_vector() {
        let key: [u8; 32] = std::array::from_fn(|i| 0x80 + u8::try_from(i).unwrap());
        let nonce: [u8; 24] = std::array::from_fn(|i| 0x40 + u8::try_from(i).unwrap());
        let aad = hex::decode("50515253c0c1c2c3c4c5c6c7").unwrap();
        let plain = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, \
                      sunscreen would be it.";
        let sealed = hex::decode(concat!(
            "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa6440bf3a82f4eda7e39",
            "ae64c6708c54c216cb96b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9",
            "21f9664c97637da9768812f615c68b13b52e",
        ))
        .unwrap();
        let cipher = XChaCha20Poly1305::new(Zeroizing::new(key));
        let mut text = plain.to_vec();
        let tag = cipher.seal(&nonce, &aad, &mut text).unwrap();
        assert_eq!(text, sealed);
        assert_eq!(hex::encode(tag), "c0875924c1c7987947deafd8780acf49");
        cipher.open(&nonce, &aad, &mut text, &tag).unwrap();
        assert_eq!(text, plain);
        let mut other = nonce;
        other[23] ^= 1;
        let mut text = sealed;
        assert_eq!(cipher.open(&other, &aad, &mut text, &tag), Err(Unsealable));
    }
}
