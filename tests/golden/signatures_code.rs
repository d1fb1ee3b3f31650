//! Signature cases of the schemes that are code: verdict and reason.

use hookgate::verify::cases;
use std::collections::BTreeMap;

#[test]
fn every_case_agrees() {
    let cases = cases::parse(include_str!("signatures_code.json")).unwrap();
    let results = cases::run(&cases);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for result in &results {
        *counts.entry(&result.scheme).or_default() += 1;
    }
    let differing: Vec<String> = results
        .iter()
        .filter(|result| !result.agrees())
        .map(|result| format!("{}: expected {}, is {}", result.id, result.expected, result.actual))
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    // A file that lost its cases proves nothing.
    let expected = [
        ("adyen-item", 11),
        ("aws-sns", 16),
        ("braintree", 5),
        ("contentful", 4),
        ("dropbox-sign", 4),
        ("hook0", 9),
        ("mandrill", 3),
        ("messagebird-jwt", 10),
        ("messagebird-legacy", 6),
        ("paypal", 6),
        ("plaid", 7),
        ("plivo-v3", 9),
        ("rfc9421", 15),
        ("truelayer", 4),
        ("twilio", 30),
        ("vonage", 12),
    ];
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected);
}
