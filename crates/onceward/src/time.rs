//! Times and durations as text.

use std::time::{Duration, UNIX_EPOCH};

/// A time in RFC 3339.
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0).min(253_402_300_799_000));
    humantime::format_rfc3339_millis(time).to_string()
}

/// A duration in words, with its two largest units.
#[must_use]
pub fn span_in_words(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0 => format!("{} ms", ms.max(0)),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} m", seconds / 60),
        3_600..86_400 => format!("{} h {} m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}
