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
    let expected = [("twilio", 30)];
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected);
}
