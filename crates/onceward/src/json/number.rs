//! The canonical text of numbers.

/// The maximum number of digits of an integer.
const MAX_DIGITS: usize = 1_000;
/// A fraction with more zeros after its point is printed with an exponent.
const MAX_ZEROS: usize = 20;

/// The canonical text of a JSON number, or `None` if it is out of range.
///
/// Equal numbers have one text, and different numbers have different texts, however many digits they have. An integer
/// (including one written as `1.0` or `1e0`) is printed with all its digits. A fraction that a double holds is printed
/// as ECMAScript prints that double, and any other fraction with all its digits.
pub(super) fn canonical(token: &str) -> Option<String> {
    let (negative, unsigned) = match token.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, token),
    };
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some("0".to_owned());
    }
    // The value is `digits` × 10^shift. It is an integer if a negative shift removes only trailing zeros.
    let shift = exponent.parse::<i64>().ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    let significant = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - significant.len()).ok()?.checked_add(shift)?;
    let sign = if negative { "-" } else { "" };
    if zeros < 0 {
        return fraction_text(sign, significant, zeros);
    }
    let zeros = usize::try_from(zeros).ok()?;
    if significant.len() + zeros > MAX_DIGITS {
        return None;
    }
    Some(format!("{sign}{significant}{}", "0".repeat(zeros)))
}

/// The text of `digits` × 10^shift, where the shift is negative and the last digit is not zero.
fn fraction_text(sign: &str, digits: &str, shift: i64) -> Option<String> {
    let exact = format!("{sign}{digits}e{shift}");
    let double: f64 = exact.parse().ok()?;
    // Smaller and larger numbers are zero and infinite for most readers.
    if !double.is_finite() || double == 0.0 || digits.len() > MAX_DIGITS {
        return None;
    }
    let text = ryu_js::Buffer::new().format_finite(double).to_owned();
    // The shortest text of the double names this number, unless it has more digits than a double holds.
    let shortest = parts(&text);
    if shortest == (digits.to_owned(), shift) {
        return Some(text);
    }
    let places = usize::try_from(shift.unsigned_abs()).ok()?;
    Some(match digits.len().checked_sub(places) {
        Some(whole) if whole > 0 => format!("{sign}{}.{}", &digits[..whole], &digits[whole..]),
        Some(_) | None if places - digits.len() > MAX_ZEROS => exact,
        Some(_) | None => format!("{sign}0.{}{digits}", "0".repeat(places - digits.len())),
    })
}

/// The significant digits of a number that is not zero, and the power of ten by which they are multiplied.
fn parts(text: &str) -> (String, i64) {
    let unsigned = text.trim_start_matches('-');
    let (mantissa, exponent) = unsigned.split_once('e').unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    let zeros = digits.len() - significant.len();
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let places = i64::try_from(fraction.len()).unwrap_or(0) - i64::try_from(zeros).unwrap_or(0);
    (significant.trim_start_matches('0').to_owned(), exponent - places)
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[track_caller]
    fn check(token: &str, expect: &str) {
        assert_eq!(canonical(token).as_deref(), Some(expect), "{token}");
    }

    #[test]
    fn one_number_has_one_text() {
        for token in ["1", "1.0", "1e0", "10e-1", "0.1e1", "1.000"] {
            check(token, "1");
        }
        for token in ["0", "-0", "0.0", "-0.0e7", "0e999999", "0e99999999999999999999"] {
            check(token, "0");
        }
        check("1e3", "1000");
        check("-12.50e1", "-125");
        check("0.1", "0.1");
        check("1.10", "1.1");
        check("1e-7", "1e-7");
        check("0.000001", "0.000001");
    }

    #[test]
    fn integers_keep_every_digit() {
        check("9007199254740993", "9007199254740993");
        check("18446744073709551617", "18446744073709551617");
        check("1e21", "1000000000000000000000");
        check("123456789012345678901234567890", "123456789012345678901234567890");
    }

    #[test]
    fn fractions_keep_every_digit() {
        check("1000000000000000000000.5", "1000000000000000000000.5");
        check("1.00000000000000000001", "1.00000000000000000001");
        check("-1.000000000000000002", "-1.000000000000000002");
        check("123456789012345.6710", "123456789012345.671");
        check("123456789012345.672", "123456789012345.672");
        check("12345678901234567.5e-1", "1234567890123456.75");
        check("0.1000000000000000055", "0.1000000000000000055");
        check("100000000000000000055e-21", "0.100000000000000000055");
        check("1.000000000000000001e-30", "1000000000000000001e-48");
        check("0.30000000000000004", "0.30000000000000004");
        check("5e-324", "5e-324");
        check("1.5e-9", "1.5e-9");
    }

    #[test]
    fn what_no_reader_holds_is_refused() {
        for token in ["1e999999", "1.5e1400", "1e-400", "1e99999999999999999999"] {
            assert_eq!(canonical(token), None, "{token}");
        }
    }
}
