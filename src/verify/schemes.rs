//! The built-in schemes: data files in the form of `scheme = "custom"`, compiled in. A scheme's name stands in its
//! file's name and here, nowhere else.

use super::SchemeSpec;
use super::builtin::{Entry, PREFIX, Param, entry};

const FILES: [(&str, &str); 22] = [
    ("adyen-item", include_str!("schemes/adyen-item.toml")),
    ("aws-sns", include_str!("schemes/aws-sns.toml")),
    ("braintree", include_str!("schemes/braintree.toml")),
    ("contentful", include_str!("schemes/contentful.toml")),
    ("dropbox-sign", include_str!("schemes/dropbox-sign.toml")),
    ("github", include_str!("schemes/github.toml")),
    ("hook0", include_str!("schemes/hook0.toml")),
    ("mandrill", include_str!("schemes/mandrill.toml")),
    ("messagebird-jwt", include_str!("schemes/messagebird-jwt.toml")),
    ("messagebird-legacy", include_str!("schemes/messagebird-legacy.toml")),
    ("paypal", include_str!("schemes/paypal.toml")),
    ("plaid", include_str!("schemes/plaid.toml")),
    ("plivo-v3", include_str!("schemes/plivo-v3.toml")),
    ("rfc9421", include_str!("schemes/rfc9421.toml")),
    ("shopify", include_str!("schemes/shopify.toml")),
    ("slack", include_str!("schemes/slack.toml")),
    ("standard-webhooks", include_str!("schemes/standard-webhooks.toml")),
    ("stripe", include_str!("schemes/stripe.toml")),
    ("svix", include_str!("schemes/svix.toml")),
    ("truelayer", include_str!("schemes/truelayer.toml")),
    ("twilio", include_str!("schemes/twilio.toml")),
    ("vonage", include_str!("schemes/vonage.toml")),
];

/// The name under which a tenant's own scheme is written.
pub const CUSTOM: &str = "custom";

/// The built-in schemes' names, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// A built-in scheme as data. `None`: there is no such scheme.
pub fn builtin(name: &str) -> Option<SchemeSpec> {
    let (_, text) = FILES.iter().find(|(known, _)| *known == name)?;
    // The files are compiled in, and a test reads each: none of them fails here.
    toml::from_str(text).ok()
}

/// The comments at the head of a scheme's file: links, and what to know of it.
pub fn comments(name: &str) -> impl Iterator<Item = &'static str> {
    let text = FILES.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| *text);
    text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim)
}

/// The settings of a scheme that is code.
pub(super) fn params(scheme: &SchemeSpec) -> impl Iterator<Item = Param> + use<> {
    code(scheme).map(|entry| entry.params).unwrap_or_default().iter().copied()
}

/// The names of a scheme's own settings, which stand in a source's `params`.
pub fn settings(name: &str) -> Vec<&'static str> {
    builtin(name).map(|scheme| params(&scheme).map(|param| param.name).collect()).unwrap_or_default()
}

/// Whether a source of the scheme may do without secrets: the provider publishes its keys.
pub fn publishes_keys(name: &str) -> bool {
    builtin(name).is_some_and(|scheme| code(&scheme).is_some_and(|entry| entry.publishes_keys))
}

fn code(scheme: &SchemeSpec) -> Option<&'static Entry> {
    entry(scheme.verify.as_deref()?.strip_prefix(PREFIX)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_says_where_it_is_from() {
        for (name, text) in FILES {
            assert!(builtin(name).is_some(), "{name}: {:?}", toml::from_str::<SchemeSpec>(text).err());
            assert!(text.starts_with("# https://"), "{name}");
            let fields: toml::Table = toml::from_str(text).unwrap();
            assert!(fields.keys().all(|field| SchemeSpec::FIELDS.contains(&field.as_str())), "{name}");
        }
        assert!(builtin("nothing").is_none());
        assert!(names().is_sorted());
    }
}
