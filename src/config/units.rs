//! Durations (`500ms`, `30s`, `10m`, `6h`, `7d`) and sizes (`256KiB`, `1MiB`, or a number of bytes).

use std::time::Duration;

const DURATION_UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// A whole number and its unit; `None` when either is missing or the product is too large.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Reads a duration: one whole number with one unit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    quantity(text, &DURATION_UNITS).map(Duration::from_millis)
}

/// Reads a size: a whole number of bytes, or one with a binary unit.
pub fn parse_size(text: &str) -> Option<u64> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok();
    }
    quantity(text, &SIZE_UNITS)
}

/// The largest unit that divides `amount` evenly, as a person would write it.
fn shown(amount: u64, units: &[(&str, u64)]) -> String {
    let fits = units.iter().rev().find(|(_, factor)| amount != 0 && amount.is_multiple_of(*factor));
    let (unit, factor) = fits.unwrap_or(&units[0]);
    format!("{}{unit}", amount / factor)
}

/// Writes a duration so that [`parse_duration`] reads it.
pub fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 { "0s".to_owned() } else { shown(millis, &DURATION_UNITS) }
}

/// Writes a size so that [`parse_size`] reads it.
pub fn show_size(bytes: u64) -> String {
    shown(bytes, &SIZE_UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations() {
        for (text, millis) in
            [("500ms", 500), ("30s", 30_000), ("10m", 600_000), ("6h", 21_600_000), ("7d", 604_800_000), ("0s", 0)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "5", "s", "5 s", "-5s", "1.5s", "5S", "5sec", "1h30m", "99999999999999999999s", "٣s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("0", 0), ("17", 17), ("17B", 17), ("256KiB", 262_144), ("1MiB", 1_048_576)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for bad in ["", "KiB", "1KB", "1MB", "1 MiB", "1.5MiB", "-1", "99999999999GiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(n in 0u64..1 << 50) {
            prop_assert_eq!(parse_size(&show_size(n)), Some(n));
            prop_assert_eq!(parse_duration(&show_duration(Duration::from_millis(n))), Some(Duration::from_millis(n)));
        }
    }
}
