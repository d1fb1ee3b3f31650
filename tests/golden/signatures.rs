//! Signature cases of the built-in schemes and of `custom`: verdict and reason.

use hookgate::verify::cases;
use std::collections::BTreeMap;

#[test]
fn every_case_agrees() {
    let cases = cases::parse(include_str!("signatures.json")).unwrap();
    let results = cases::run(&cases);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for result in &results {
        *counts.entry(&result.scheme).or_default() += 1;
    }
    for (scheme, count) in &counts {
        println!("{scheme}: {count}");
    }
    let differing: Vec<String> = results
        .iter()
        .filter(|result| !result.agrees())
        .map(|result| format!("{}: expected {}, is {}", result.id, result.expected, result.actual))
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    // A file that lost its cases proves nothing.
    let expected = [
        ("generic-ed25519", 4),
        ("generic-hmac", 19),
        ("generic-token", 3),
        ("github", 34),
        ("shopify", 25),
        ("slack", 36),
        ("standard-webhooks", 64),
        ("stripe", 42),
        ("svix", 5),
    ];
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected);
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
