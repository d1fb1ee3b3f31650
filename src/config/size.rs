//! Sizes as people write them: `256KiB`, `1MiB`, or a number of bytes.

const UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Reads a whole number of bytes, or one with a binary unit.
pub(super) fn parse(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" => 1,
        unit => UNITS.into_iter().find(|(name, _)| *name == unit)?.1,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// Writes a size in the largest unit that divides it, so that [`parse`] reads it.
pub(super) fn show(bytes: u64) -> String {
    let fits = UNITS.into_iter().rev().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor));
    let (unit, factor) = fits.unwrap_or(UNITS[0]);
    format!("{}{unit}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [("0", 0), ("17", 17), ("17B", 17), ("256KiB", 262_144), ("1MiB", 1_048_576)] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for bad in ["", "KiB", "1KB", "1MB", "1 MiB", "1.5MiB", "-1", "+1", "99999999999GiB", "٣"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(bytes in 0u64..1 << 50) {
            prop_assert_eq!(parse(&show(bytes)), Some(bytes));
        }
    }
}
