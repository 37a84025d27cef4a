//! The machine's clocks: the one on the wall, and the one that nobody can set.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::timer::sleep;
use async_trait::async_trait;
use nix::time::{ClockId, clock_gettime};
use onceward::Clock;

/// The wall clock. It can be set, so a ledger that lasts has a better one: see [`crate::sqlite`].
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        wall_ms()
    }

    async fn sleep(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }
}

/// The wall clock's time in milliseconds since 1970.
pub(crate) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// What passes while the machine is up, asleep or not; nobody can set it. In a time namespace it is off by an offset:
/// see [`namespace_offset_ms`].
pub(crate) fn since_boot_ms() -> i64 {
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(time) => time.tv_sec() * 1000 + time.tv_nsec() / 1_000_000,
        Err(_) => wall_ms(),
    }
}

/// By how much the time namespace of this process, as that of a restored container, is ahead of the machine.
pub(crate) fn namespace_offset_ms() -> i64 {
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    boot_offset_ms(&offsets).unwrap_or(0)
}

fn boot_offset_ms(offsets: &str) -> Option<i64> {
    let mut words = offsets.lines().find_map(|line| line.trim().strip_prefix("boottime"))?.split_whitespace();
    let (seconds, nanos): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(seconds * 1000 + nanos / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let offsets = "monotonic           0         0\nboottime       172800 500000000\n";
        assert_eq!(boot_offset_ms(offsets), Some(172_800_500));
        assert_eq!(boot_offset_ms("boottime      -10         0\n"), Some(-10_000));
        assert_eq!(boot_offset_ms(""), None);
    }
}
