//! The rate of a tenant's requests: a token bucket.

use std::sync::Mutex;

use crate::locks::lock;

/// A bucket that fills at a rate, up to a burst. Each request takes one from it.
pub(crate) struct Bucket {
    per_second: f64,
    burst: f64,
    /// The level at this time of the ledger.
    level: Mutex<(f64, i64)>,
}

impl Bucket {
    pub(super) fn new(per_second: f64, burst: f64, now_ms: i64) -> Self {
        Self { per_second, burst, level: Mutex::new((burst, now_ms)) }
    }

    /// Takes one, or returns after how many milliseconds there will be one.
    pub(crate) fn take(&self, now_ms: i64) -> Result<(), u64> {
        let mut level = lock(&self.level);
        let (left, since_ms) = *level;
        #[expect(clippy::cast_precision_loss, reason = "years of milliseconds are exact")]
        let passed_ms = now_ms.saturating_sub(since_ms).max(0) as f64;
        let left = (left + passed_ms / 1_000.0 * self.per_second).min(self.burst);
        if left >= 1.0 {
            *level = (left - 1.0, now_ms);
            return Ok(());
        }
        *level = (left, now_ms);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a wait of less than a month"
        )]
        Err(((1.0 - left) / self.per_second * 1_000.0).ceil().clamp(1.0, 2e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_only_the_rate() {
        let begun = 1_000;
        let bucket = Bucket::new(10.0, 3.0, begun);
        for _ in 0..3 {
            bucket.take(begun).unwrap();
        }
        assert_eq!(bucket.take(begun), Err(100));
        assert_eq!(bucket.take(begun + 60), Err(40));
        bucket.take(begun + 100).unwrap();
        assert_eq!(bucket.take(begun + 100), Err(100));
        // An idle tenant saves up no more than its burst.
        let later = begun + 3_600_000;
        (0..3).for_each(|_| bucket.take(later).unwrap());
        assert!(bucket.take(later).is_err());
    }
}
