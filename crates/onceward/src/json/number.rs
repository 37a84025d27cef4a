//! One text for one number.

/// The longest integer, in digits, that is written out.
const MAX_DIGITS: usize = 1_000;

/// The canonical text of a JSON number token, or `None` when no reader could hold the number.
///
/// An integer (also one written `1.0` or `1e0`) is printed with all its digits. Any other number is the double that
/// every JSON reader would make of it, printed as ECMAScript prints it.
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
    // The value is `digits` × 10^shift, and an integer when the shift eats no digit but trailing zeros.
    let shift = exponent.parse::<i64>().ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    let significant = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - significant.len()).ok()?.checked_add(shift)?;
    if zeros < 0 {
        return fraction_text(token);
    }
    let zeros = usize::try_from(zeros).ok()?;
    if significant.len() + zeros > MAX_DIGITS {
        return None;
    }
    let sign = if negative { "-" } else { "" };
    Some(format!("{sign}{significant}{}", "0".repeat(zeros)))
}

fn fraction_text(token: &str) -> Option<String> {
    let double: f64 = token.parse().ok()?;
    if !double.is_finite() {
        return None;
    }
    // So small that a double holds nothing but zero: two such numbers would be one key.
    if double == 0.0 {
        return None;
    }
    let text = ryu_js::Buffer::new().format_finite(double).to_owned();
    // A fraction beyond what a double resolves is an integer, and those are written out.
    if double.fract() == 0.0 { canonical(&text) } else { Some(text) }
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
        check("1000000000000000000000.5", "1000000000000000000000");
        check("1.00000000000000000001", "1");
        check("123456789012345678901234567890", "123456789012345678901234567890");
    }

    #[test]
    fn what_no_reader_holds_is_refused() {
        for token in ["1e999999", "1.5e1400", "1e-400", "1e99999999999999999999"] {
            assert_eq!(canonical(token), None, "{token}");
        }
    }
}
