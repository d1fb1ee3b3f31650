//! Signature cases of the built-in schemes and of `custom`: verdict and reason.

use hookgate::verify::cases;
use std::collections::BTreeMap;

/// Runs a file of cases, all of which have to agree, and counts them by scheme.
pub(crate) fn agreeing(text: &str) -> Vec<(String, usize)> {
    let results = cases::run(&cases::parse(text).unwrap());
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for result in &results {
        *counts.entry(result.scheme.clone()).or_default() += 1;
    }
    let differing: Vec<String> = results
        .iter()
        .filter(|result| !result.agrees())
        .map(|result| format!("{}: expected {}, is {}", result.id, result.expected, result.actual))
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    counts.into_iter().collect()
}

#[test]
fn every_case_agrees() {
    // A file that lost its cases proves nothing.
    let expected = [
        ("adyen-header", 4),
        ("asana", 4),
        ("atlassian", 4),
        ("basic-auth", 7),
        ("box", 13),
        ("calendly", 5),
        ("circleci", 7),
        ("cloudinary-sha1", 5),
        ("cloudinary-sha256", 1),
        ("coinbase-commerce", 7),
        ("convoy-advanced", 9),
        ("discord", 33),
        ("docusign", 3),
        ("dropbox", 4),
        ("easypost", 7),
        ("finch", 2),
        ("generic-ed25519", 4),
        ("generic-hmac", 19),
        ("generic-token", 3),
        ("gitea", 4),
        ("github", 34),
        ("github-sha1", 6),
        ("gitlab-token", 5),
        ("gocardless", 5),
        ("helpscout", 4),
        ("hubspot-v1", 3),
        ("hubspot-v2", 4),
        ("hubspot-v3", 35),
        ("intercom", 4),
        ("lemonsqueezy", 4),
        ("line", 6),
        ("linear", 5),
        ("mailgun", 4),
        ("mercadopago", 6),
        ("meta", 6),
        ("modern-treasury", 6),
        ("ms-graph", 3),
        ("mux", 5),
        ("okta", 5),
        ("onfido", 7),
        ("paddle", 35),
        ("pagerduty", 9),
        ("paystack", 4),
        ("plivo-v2", 2),
        ("postmark", 3),
        ("quickbooks", 4),
        ("razorpay", 5),
        ("sanity", 4),
        ("sendgrid", 10),
        ("sentry", 4),
        ("shopify", 25),
        ("sinch", 2),
        ("slack", 36),
        ("square", 28),
        ("standard-webhooks", 64),
        ("stripe", 42),
        ("svix", 5),
        ("telegram", 5),
        ("telnyx", 5),
        ("trello", 3),
        ("typeform", 4),
        ("vercel", 4),
        ("webflow", 5),
        ("woocommerce", 4),
        ("workos", 5),
        ("x-twitter", 4),
        ("xero", 4),
        ("zendesk", 5),
        ("zoom", 5),
    ];
    assert_eq!(agreeing(include_str!("signatures.json")), expected.map(|(scheme, count)| (scheme.to_owned(), count)));
}

#[test]
fn a_case_of_an_unknown_scheme_fails() {
    let mut cases = cases::parse(include_str!("signatures.json")).unwrap();
    cases.truncate(1);
    cases[0].scheme = "nobody".to_owned();
    let results = cases::run(&cases);
    assert!(!results[0].agrees());
    assert_eq!(results[0].actual.to_string(), "not run: unknown scheme `nobody`");
}
