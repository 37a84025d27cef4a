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

/// What passes while the machine is up, asleep or not; nobody can set it.
pub(crate) fn since_boot_ms() -> i64 {
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(time) => time.tv_sec() * 1000 + time.tv_nsec() / 1_000_000,
        Err(_) => wall_ms(),
    }
}
