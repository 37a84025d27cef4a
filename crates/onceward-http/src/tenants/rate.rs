//! The rate of a tenant's requests: a token bucket.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A bucket that fills at a rate, up to a burst. Each request takes one from it.
pub(super) struct Bucket {
    per_second: f64,
    burst: f64,
    level: Mutex<(f64, Instant)>,
}

impl Bucket {
    pub(super) fn new(per_second: f64, burst: f64, now: Instant) -> Self {
        Self { per_second, burst, level: Mutex::new((burst, now)) }
    }

    /// Takes one, or returns after how many milliseconds there will be one.
    pub(super) fn take(&self, now: Instant) -> Result<(), u64> {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, since) = *level;
        let left =
            (left + now.saturating_duration_since(since).as_secs_f64() * self.per_second).min(self.burst);
        if left >= 1.0 {
            *level = (left - 1.0, now);
            return Ok(());
        }
        *level = (left, now);
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_only_the_rate() {
        let begun = Instant::now();
        let bucket = Bucket::new(10.0, 3.0, begun);
        for _ in 0..3 {
            bucket.take(begun).unwrap();
        }
        assert_eq!(bucket.take(begun), Err(100));
        assert_eq!(bucket.take(begun + Duration::from_millis(60)), Err(40));
        bucket.take(begun + Duration::from_millis(100)).unwrap();
        assert_eq!(bucket.take(begun + Duration::from_millis(100)), Err(100));
        // An idle tenant saves up no more than its burst.
        let later = begun + Duration::from_secs(3_600);
        (0..3).for_each(|_| bucket.take(later).unwrap());
        assert!(bucket.take(later).is_err());
    }
}
