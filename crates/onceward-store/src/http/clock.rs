//! The ledger's time, as its server reports it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onceward::Clock;

use crate::clock::{namespace_offset_ms, since_boot_ms};
use crate::timer::sleep;

/// The time of a ledger on a server: a reading, and what this machine's boot-time clock has counted since. Every reply
/// has a reading; the first one starts the clock.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    /// The ledger's time minus the time since boot.
    offset_ms: AtomicI64,
}

/// When a request was sent, by the boot-time clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent(i64);

impl Sent {
    pub(super) fn now() -> Self {
        Self(machine_ms())
    }
}

impl ServerClock {
    /// Corrects the clock by a reading that was made between the request and now. Within that time the clock keeps
    /// its own count, so that it does not jump with the delays of the network.
    pub(super) fn read(&self, server_ms: i64, sent: Sent) {
        let offset_ms = self.offset_ms.load(Ordering::Relaxed);
        let corrected_ms = corrected(offset_ms, server_ms, sent.0, machine_ms());
        if corrected_ms != offset_ms {
            self.offset_ms.store(corrected_ms, Ordering::Relaxed);
        }
    }
}

/// The offset at which the clock agrees with the reading: at the time of the request it is not ahead of it, and now not
/// behind it.
fn corrected(offset_ms: i64, server_ms: i64, sent_ms: i64, now_ms: i64) -> i64 {
    let (earliest, latest) = (server_ms - now_ms, server_ms - sent_ms);
    // The clocks count whole milliseconds, so a reading is exact to one.
    offset_ms.clamp(earliest - 1, latest.max(earliest) + 1)
}

fn machine_ms() -> i64 {
    since_boot_ms() - namespace_offset_ms()
}

#[async_trait]
impl Clock for ServerClock {
    fn now_ms(&self) -> i64 {
        machine_ms() + self.offset_ms.load(Ordering::Relaxed)
    }

    async fn sleep(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reply_moves_nothing_and_a_step_is_followed() {
        // The server's clock is 1,000 ahead of the boot clock.
        let offset = 1_000;
        assert_eq!(corrected(offset, 1_550, 500, 600), offset, "read in the middle of a slow request");
        assert_eq!(corrected(offset, 1_500, 500, 600), offset, "read at its start");
        assert_eq!(corrected(offset, 1_600, 500, 600), offset, "read at its end");
        assert_eq!(corrected(offset, 9_550, 500, 600), 8_949, "the server has moved ahead");
        assert_eq!(corrected(offset, 1_450, 500, 600), 951, "this machine's clock is too fast");
    }
}
