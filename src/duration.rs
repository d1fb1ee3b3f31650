//! Spans of time as people write them: a whole number and one unit.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads `500ms`, `30s`, `10m`, `6h` or `7d`. The error names the rule and a remedy, not the field.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration: write a whole number and one of ms, s, m, h, d, such as `30s`");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, millis) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    if number.is_empty() {
        return Err(wrong());
    }
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(millis))
        .map(Duration::from_millis)
        .ok_or_else(|| format!("`{text}` is longer than can be counted: write a smaller number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_read() {
        for (text, millis) in [("500ms", 500), ("0s", 0), ("30s", 30_000), ("10m", 600_000), ("6h", 21_600_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("7d"), Ok(Duration::from_secs(604_800)));
    }

    #[test]
    fn anything_else_is_refused_with_a_remedy() {
        for bad in ["", "s", "30", "-1s", "+1s", "1.5s", "30 s", " 30s", "30S", "1h30m", "99999999999999999999s", "٣s"]
        {
            let message = parse(bad).unwrap_err();
            assert!(message.contains("write a"), "{bad}: {message}");
        }
        assert!(parse("18446744073709551615d").is_err());
    }
}
