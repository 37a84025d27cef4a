//! The machine's clocks: the wall clock, and the boot-time clock, which cannot be set.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::timer::sleep;
use async_trait::async_trait;
use nix::time::{ClockId, clock_gettime};
use onceward::Clock;

/// The wall clock. It can be set, so persistent ledgers use a better one: see [`crate::sqlite`].
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

/// A moment of the ledger's time that is stored in the ledger, with the machine's time since boot at that moment.
///
/// On the machine that wrote it, during the same boot, it gives the exact ledger time. Everywhere else it is a time
/// that has certainly passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at_ms: i64,
    pub(crate) boot: String,
    pub(crate) since_boot_ms: i64,
}

impl Mark {
    /// Parses a mark; `None` if the text is not a mark.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (at, since) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { at_ms: at, since_boot_ms: since, boot: words.next()?.to_owned() })
    }

    /// The moment in milliseconds since 1970.
    pub(crate) fn at_ms(&self) -> i64 {
        self.at_ms
    }

    /// The time that has certainly passed by now, according to this mark.
    pub(crate) fn passed_ms(&self, here: &Machine) -> i64 {
        if self.is_of(here) {
            self.at_ms + (here.since_boot_ms - self.since_boot_ms).max(0)
        } else {
            self.at_ms
        }
    }
}

impl Mark {
    /// Whether this machine wrote it during the same boot.
    pub(crate) fn is_of(&self, here: &Machine) -> bool {
        self.boot == here.boot && !here.boot.is_empty()
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.at_ms, self.since_boot_ms, self.boot)
    }
}

/// The clocks of this machine, read together.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// The id of the current boot. Empty if it cannot be determined.
    pub(crate) boot: String,
    pub(crate) since_boot_ms: i64,
    pub(crate) wall_ms: i64,
}

impl Machine {
    pub(crate) fn now() -> Self {
        Self {
            boot: boot_id().map(|id| format!("{id:032x}")).unwrap_or_default(),
            since_boot_ms: since_boot_ms() - namespace_offset_ms(),
            wall_ms: wall_ms(),
        }
    }
}

/// The wall clock in milliseconds since 1970.
pub(crate) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The time since boot, including suspend, which cannot be set. In a time namespace it has an offset: see
/// [`namespace_offset_ms`].
pub(crate) fn since_boot_ms() -> i64 {
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(time) => time.tv_sec() * 1000 + time.tv_nsec() / 1_000_000,
        Err(_) => wall_ms(),
    }
}

/// How far the time namespace of this process is ahead of the machine, as in a restored container.
pub(crate) fn namespace_offset_ms() -> i64 {
    // The time namespace of a process never changes. A new one applies to its children.
    static OFFSET_MS: OnceLock<i64> = OnceLock::new();
    *OFFSET_MS.get_or_init(|| {
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        boot_offset_ms(&offsets).unwrap_or(0)
    })
}

/// The id of the current boot.
pub(crate) fn boot_id() -> Option<u128> {
    static ID: OnceLock<Option<u128>> = OnceLock::new();
    *ID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    })
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
    fn the_offset_of_a_time_namespace_is_parsed() {
        let offsets = "monotonic           0         0\nboottime       172800 500000000\n";
        assert_eq!(boot_offset_ms(offsets), Some(172_800_500));
        assert_eq!(boot_offset_ms("boottime      -10         0\n"), Some(-10_000));
        assert_eq!(boot_offset_ms(""), None);
    }
}
