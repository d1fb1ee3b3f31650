//! Signature cases of the schemes that are code: verdict and reason.

use super::signatures::agreeing;

#[test]
fn every_case_agrees() {
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
    let counts = agreeing(include_str!("signatures_code.json"));
    assert_eq!(counts, expected.map(|(scheme, count)| (scheme.to_owned(), count)));
}
