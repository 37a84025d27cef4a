//! The ledger's time. A clock that is set wrong cannot make it jump, and so cannot expire a result or end a
//! quarantine early.
//!
//! While the machine is up, time follows its boot-time clock, which cannot be set. After a restart only the wall
//! clock knows how long the machine was off. It is not trusted at once: the ledger continues from the latest time
//! that it knows, and adds the difference when the wall clock has been stable for an hour, which gives the machine
//! time to correct it.

use crate::clock::Machine;

/// How long the wall clock must be stable after a restart before the ledger trusts it.
pub(super) const STABLE_MS: i64 = 60 * 60 * 1_000;
/// A wall clock that moves relative to the boot-time clock by more than this has been set.
const STEP_MS: i64 = 60_000;

/// The size of an anchor in the `…-live` file.
pub(super) const ANCHOR_BYTES: usize = 96;
/// The size of an anchor in older builds.
const OLD_BYTES: usize = 32;
/// The offset of the bytes that older builds did not write. The bytes in between are locked but never written.
const NEW_AT: usize = 80;

/// One moment on three clocks: time since boot, the wall clock, and the ledger's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Anchor {
    boot: u128,
    boot_ms: i64,
    wall_ms: i64,
    ledger_ms: i64,
    trust: ClockTrust,
}

/// Whether the ledger's time follows the wall clock of this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockTrust {
    /// It does.
    Trusted,
    /// The machine was restarted, and the wall clock has not been stable for long enough.
    Pending,
}

impl Anchor {
    /// The first anchor after a boot. `before` is the anchor of an earlier boot, and `known_ms` the latest time that
    /// the ledger knows.
    pub(super) fn first(here: &Machine, before: Option<&Self>, known_ms: Option<i64>) -> Self {
        // A wall clock reading of an earlier boot that this boot does not contradict has survived a restart.
        let stood_ms = before.map(|before| before.wall_ms).filter(|wall_ms| *wall_ms <= here.wall_ms);
        let before_ms = before.map(|before| before.ledger_ms);
        let known_ms = known_ms.into_iter().chain(stood_ms).chain(before_ms).max();
        Self {
            boot: boot_of(here),
            boot_ms: here.since_boot_ms,
            wall_ms: here.wall_ms,
            ledger_ms: known_ms.unwrap_or(here.wall_ms),
            trust: if known_ms.is_some() { ClockTrust::Pending } else { ClockTrust::Trusted },
        }
    }

    /// The next anchor, if it is due.
    pub(super) fn next(&self, here: &Machine) -> Option<Self> {
        let (boot_ms, wall_ms) = (here.since_boot_ms - self.boot_ms, here.wall_ms - self.wall_ms);
        if self.trust == ClockTrust::Trusted || boot_ms < 0 {
            return None;
        }
        let ledger_ms = self.time_ms(here);
        let here = Self { boot_ms: here.since_boot_ms, wall_ms: here.wall_ms, ledger_ms, ..*self };
        if (wall_ms - boot_ms).abs() > STEP_MS {
            // The clock was set meanwhile, so the waiting time starts again.
            return Some(here);
        }
        let stood = boot_ms >= STABLE_MS;
        stood.then(|| Self { ledger_ms: ledger_ms.max(here.wall_ms), trust: ClockTrust::Trusted, ..here })
    }

    /// The ledger's time. Two clocks tell how long ago the anchor was set, and the shorter duration counts, because a
    /// clock that is ahead must not expire a result. Only if both are wrong is there harm; a clock that is behind
    /// only delays.
    pub(super) fn time_ms(&self, here: &Machine) -> i64 {
        let passed_ms = (here.since_boot_ms - self.boot_ms).min(here.wall_ms - self.wall_ms);
        self.ledger_ms + passed_ms.max(0)
    }

    pub(super) fn trust(&self) -> ClockTrust {
        self.trust
    }

    /// Whether the anchor was set during this boot.
    pub(super) fn is_of(&self, here: &Machine) -> bool {
        self.boot == boot_of(here)
    }

    pub(super) fn to_bytes(self) -> [u8; ANCHOR_BYTES] {
        let mut bytes = [0; ANCHOR_BYTES];
        bytes[..16].copy_from_slice(&self.boot.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.boot_ms.to_le_bytes());
        bytes[24..OLD_BYTES].copy_from_slice(&self.wall_ms.to_le_bytes());
        bytes[NEW_AT..NEW_AT + 8].copy_from_slice(&self.ledger_ms.to_le_bytes());
        bytes[NEW_AT + 8] = u8::from(self.trust == ClockTrust::Pending);
        bytes
    }

    /// Decodes an anchor; `None` if none was set yet.
    pub(super) fn from_bytes(bytes: &[u8; ANCHOR_BYTES]) -> Option<Self> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            i64::from_le_bytes(number)
        };
        let mut boot = [0; 16];
        boot.copy_from_slice(&bytes[..16]);
        let wall_ms = number(24);
        // Older builds wrote only the wall clock, which was the ledger's time.
        let ledger_ms = Some(number(NEW_AT)).filter(|time_ms| *time_ms != 0).unwrap_or(wall_ms);
        let trust = if bytes[NEW_AT + 8] == 0 { ClockTrust::Trusted } else { ClockTrust::Pending };
        let anchor = Self { boot: u128::from_be_bytes(boot), boot_ms: number(16), wall_ms, ledger_ms, trust };
        (wall_ms != 0).then_some(anchor)
    }
}

fn boot_of(here: &Machine) -> u128 {
    u128::from_str_radix(&here.boot, 16).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;
    const NOON: i64 = 1_000 * DAY;

    fn machine(boot: u128, since_boot_ms: i64, wall_ms: i64) -> Machine {
        Machine { boot: format!("{boot:032x}"), since_boot_ms, wall_ms }
    }

    /// An anchor of a boot that began to use the ledger at noon.
    fn at_noon() -> Anchor {
        Anchor::first(&machine(1, 5_000, NOON), None, None)
    }

    #[test]
    fn an_anchor_round_trips() {
        for anchor in [at_noon(), Anchor::first(&machine(2, 1, NOON + DAY), Some(&at_noon()), Some(7))] {
            assert_eq!(Anchor::from_bytes(&anchor.to_bytes()), Some(anchor));
        }
        assert_eq!(Anchor::from_bytes(&[0; ANCHOR_BYTES]), None);
        let mut old = [0; ANCHOR_BYTES];
        old[..OLD_BYTES].copy_from_slice(&at_noon().to_bytes()[..OLD_BYTES]);
        assert_eq!(Anchor::from_bytes(&old), Some(at_noon()));
    }

    #[test]
    fn a_clock_that_is_ahead_expires_nothing() {
        for ahead in [2 * DAY, -2 * DAY] {
            let anchor = at_noon();
            let time = |boot_ms, wall_ms| anchor.time_ms(&machine(1, boot_ms, wall_ms)) - NOON;
            assert_eq!(time(6_000, NOON + 1_000), 1_000, "both agree");
            assert!(time(6_000 + ahead, NOON + 1_000) <= 1_000, "the machine's count is off");
            assert!(time(6_000, NOON + 1_000 + ahead) <= 1_000, "the wall clock is off");
        }
    }

    #[test]
    fn a_wall_clock_that_is_ahead_after_a_restart_is_trusted_after_an_hour() {
        let known = NOON + HOUR;
        let first = Anchor::first(&machine(2, 10_000, NOON + 2 * DAY), Some(&at_noon()), Some(known));
        assert_eq!(first.time_ms(&machine(2, 10_000, NOON + 2 * DAY)), known);
        let after = |ms: i64| machine(2, 10_000 + ms, NOON + 2 * DAY + ms);
        assert_eq!(first.time_ms(&after(HOUR / 2)), known + HOUR / 2, "time passes");
        assert_eq!(first.next(&after(HOUR / 2)), None);
        let next = first.next(&after(HOUR)).expect("it was stable for an hour");
        assert_eq!((next.time_ms(&after(HOUR)), next.trust()), (NOON + 2 * DAY + HOUR, ClockTrust::Trusted));
        assert_eq!(next.next(&after(2 * HOUR)), None);
    }

    #[test]
    fn a_wall_clock_corrected_within_the_hour_has_no_effect() {
        let first = Anchor::first(&machine(2, 0, NOON + 2 * DAY), None, Some(NOON));
        let right = |ms: i64| machine(2, ms, NOON + HOUR + ms);
        let next = first.next(&right(HOUR / 4)).expect("it was set");
        assert_eq!(next.time_ms(&right(HOUR / 4)), NOON, "the wall clock went back");
        assert_eq!(next.next(&right(HOUR)), None, "it was not stable for an hour");
        let last = next.next(&right(HOUR / 4 + HOUR)).expect("now it has");
        assert_eq!(last.time_ms(&right(HOUR / 4 + HOUR)), NOON + HOUR + HOUR / 4 + HOUR);
    }

    #[test]
    fn time_never_goes_back_over_a_restart() {
        let here = machine(2, 0, NOON - DAY);
        assert_eq!(Anchor::first(&here, Some(&at_noon()), Some(NOON + HOUR)).time_ms(&here), NOON + HOUR);
    }

    /// A machine that is on for a few minutes each day is never up for an hour, but its days must still count.
    #[test]
    fn a_wall_clock_that_survives_a_restart_is_trusted() {
        let day = |run: i64| machine(1 + run.unsigned_abs() as u128, 60_000, NOON + run * DAY);
        let mut anchor = at_noon();
        for run in 1..5 {
            anchor = Anchor::first(&day(run), Some(&anchor), None);
            assert_eq!(anchor.time_ms(&day(run)), NOON + (run - 1) * DAY);
        }
    }
}
