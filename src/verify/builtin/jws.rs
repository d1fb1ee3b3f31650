//! Signed tokens: taken apart strictly, and never asked how they want to be verified.

use super::read::{base64url, malformed};
use crate::verify::refusal::{CheckStep, Refusal, RefusalCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;

const TOKEN_BYTES_MAX: usize = 8 << 10;

/// A token's three parts, still encoded.
pub(super) struct Token<'t> {
    /// What is signed: head and payload.
    pub(super) signed: &'t str,
    pub(super) head: &'t str,
    pub(super) payload: &'t str,
    signature: &'t str,
}

/// Unknown fields are left alone; a field that is there twice is a mistake.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) alg: String,
    pub(super) kid: Option<String>,
    crit: Option<serde_json::Value>,
}

impl<'t> Token<'t> {
    pub(super) fn split(text: &'t str) -> Result<Self, Refusal> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err(malformed(format!("the token is longer than {TOKEN_BYTES_MAX} bytes")));
        }
        let parts = text.rsplit_once('.').and_then(|(signed, signature)| {
            let (head, payload) = signed.split_once('.')?;
            (!head.is_empty() && !payload.contains('.')).then_some(Token { signed, head, payload, signature })
        });
        parts.ok_or_else(|| malformed("the token has not three parts"))
    }

    /// Its head. The algorithm has to be one of those that the scheme allows, whatever the token says.
    pub(super) fn head(&self, allowed: &[&str]) -> Result<Head, Refusal> {
        let head: Head = json(self.head, "head")?;
        if !allowed.contains(&head.alg.as_str()) {
            let detail = format!("the token's algorithm is not {}", allowed.join(" or "));
            return Err(Refusal::new(RefusalCode::UnsupportedAlgorithm, CheckStep::Structure, detail));
        }
        if head.crit.is_some() {
            return Err(malformed("the token has critical extensions, and none is known"));
        }
        Ok(head)
    }

    /// What a scheme of its own reads in the head.
    pub(super) fn head_as<H: DeserializeOwned>(&self) -> Result<H, Refusal> {
        json(self.head, "head")
    }

    pub(super) fn claims<C: DeserializeOwned>(&self) -> Result<C, Refusal> {
        json(self.payload, "payload")
    }

    pub(super) fn signature(&self) -> &'t str {
        self.signature
    }

    /// The signature's bytes, where there are as many as there have to be.
    pub(super) fn signature_bytes(&self, length: usize) -> Result<Vec<u8>, Refusal> {
        base64url(self.signature).ok().filter(|bytes| bytes.len() == length).ok_or_else(super::read::undecodable)
    }
}

fn json<T: DeserializeOwned>(text: &str, part: &str) -> Result<T, Refusal> {
    let bytes = base64url(text).map_err(|_| malformed(format!("the token's {part} is not base64url")))?;
    serde_json::from_slice(&bytes).map_err(|_| malformed(format!("the token's {part} cannot be read")))
}

/// Head and payload of a token to sign.
pub(super) fn unsigned(head: &serde_json::Value, payload: &serde_json::Value) -> String {
    let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(head), part(payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> RefusalCode {
        let head = Token::split(text).and_then(|token| token.head(&["ES256"]));
        head.err().map_or(RefusalCode::UnknownKey, |refusal| refusal.code)
    }

    #[test]
    fn tokens_are_read_strictly() {
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let good = encode(r#"{"alg":"ES256","kid":"a","x":[1]}"#);
        assert_eq!(refused(&format!("{good}.{good}.")), RefusalCode::UnknownKey);
        for bad in
            ["", ".", "..", "a", "a.b", "a.b.c.d", "e30.e30.x", &format!("={good}.e30.x"), &format!("{good}=.e30.x")]
        {
            assert_eq!(refused(bad), RefusalCode::Malformed, "{bad}");
        }
        for head in [
            r#"{"alg":"ES256","alg":"none"}"#,
            r#"{"alg":"ES256","crit":["b64"]}"#,
            r#"{"alg":["ES256"]}"#,
            "[]",
            &"[".repeat(5_000),
        ] {
            assert_eq!(refused(&format!("{}.e30.x", encode(head))), RefusalCode::Malformed, "{head}");
        }
        for alg in ["none", "None", "HS256", "es256", ""] {
            let head = encode(&format!(r#"{{"alg":"{alg}"}}"#));
            assert_eq!(refused(&format!("{head}.e30.")), RefusalCode::UnsupportedAlgorithm, "{alg}");
        }
        assert_eq!(refused(&format!("{good}.{}.x", "a".repeat(TOKEN_BYTES_MAX))), RefusalCode::Malformed);
    }
}
