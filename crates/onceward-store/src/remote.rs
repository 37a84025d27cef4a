//! What the server-based stores share: the ledger's clock, owner tokens, and a runtime thread.
//!
//! The ledger works with any async runtime or none, but the clients of the servers need one. So a store runs its own,
//! on one thread: callers submit requests and wait for the replies, and requests that wait at the same time are sent
//! together.

pub(crate) mod recent;
pub(crate) mod url;

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::timer::sleep;
use async_trait::async_trait;
use onceward::{Clock, Dispatch, OwnerLock, StoreError, WriteMode};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

pub(crate) use crate::clock::Mark;
use crate::clock::{Machine, namespace_offset_ms, since_boot_ms};

/// How often an open store checks its server, unless its options say otherwise.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a deferred write lets other writes go first.
const DEFER: Duration = Duration::from_millis(20);
/// How fast the ledger's time catches up with clocks that are ahead: by at most a tenth of the elapsed time.
const CATCH_UP: i64 = 10;

/// The time of a ledger on a server. A clock that is set wrong cannot make it jump, and so cannot end a lease, a
/// quarantine or a retention period early.
///
/// It follows this machine's boot-time clock, which cannot be set. Its start is given by the mark in the ledger. If
/// no store has measured the time since the mark was written, two clocks must agree that time has passed: the
/// ledger's time starts at the earlier of the server's and this machine's. If both clocks are ahead, it catches up
/// slowly.
#[derive(Debug, Default)]
pub(crate) struct LedgerClock {
    /// The ledger's time minus the time since boot.
    offset_ms: AtomicI64,
    /// The server's clock minus the ledger's time, at the last reading.
    server_ahead_ms: AtomicI64,
    /// The time since boot at the last reading.
    read_ms: AtomicI64,
}

impl LedgerClock {
    /// Starts the clock from the server's clock and the mark in the ledger.
    pub(crate) fn begin(&self, server_ms: i64, mark: Option<&Mark>) {
        self.begin_on(&Machine::now(), server_ms, mark);
    }

    /// Adjusts the clock by another reading of the server's clock and, if given, the mark.
    pub(crate) fn read(&self, server_ms: i64, mark: Option<&Mark>) {
        self.read_on(&Machine::now(), server_ms, mark);
    }

    /// How far the server's clock is ahead of the ledger's time, for health reports.
    pub(crate) fn server_ahead_ms(&self) -> i64 {
        self.server_ahead_ms.load(Ordering::Relaxed)
    }

    /// The mark to store in the ledger, so that other stores continue from here.
    pub(crate) fn mark(&self) -> Mark {
        let here = Machine::now();
        Mark { at_ms: self.now_on(&here), boot: here.boot, since_boot_ms: here.since_boot_ms }
    }

    fn begin_on(&self, here: &Machine, server_ms: i64, mark: Option<&Mark>) {
        let agreed_ms = server_ms.min(here.wall_ms);
        let begins_ms = match mark {
            Some(mark) if mark.is_of(here) => elapsed_ms(mark, here, server_ms),
            Some(mark) => mark.at_ms().max(agreed_ms),
            None => agreed_ms,
        };
        self.offset_ms.store(begins_ms - here.since_boot_ms, Ordering::Relaxed);
        self.read_ms.store(here.since_boot_ms, Ordering::Relaxed);
        self.server_ahead_ms.store(server_ms - begins_ms, Ordering::Relaxed);
    }

    fn read_on(&self, here: &Machine, server_ms: i64, mark: Option<&Mark>) {
        let now_ms = self.now_on(here);
        let passed_ms = mark.map_or(now_ms, |mark| elapsed_ms(mark, here, server_ms)).max(now_ms);
        let waited_ms =
            (here.since_boot_ms - self.read_ms.swap(here.since_boot_ms, Ordering::Relaxed)).max(0);
        let behind_ms = (server_ms.min(here.wall_ms) - passed_ms).max(0);
        let next_ms = passed_ms + behind_ms.min(waited_ms / CATCH_UP);
        self.offset_ms.fetch_max(next_ms - here.since_boot_ms, Ordering::Relaxed);
        self.server_ahead_ms.store(server_ms - next_ms, Ordering::Relaxed);
    }

    fn now_on(&self, here: &Machine) -> i64 {
        here.since_boot_ms + self.offset_ms.load(Ordering::Relaxed)
    }
}

/// The time that has passed since the mark, by this machine's boot-time clock if the mark is its own. If a process
/// sees a manipulated clock, as with `faketime`, the server's clock is the limit, unless that is behind the mark and
/// so certainly wrong.
fn elapsed_ms(mark: &Mark, here: &Machine, server_ms: i64) -> i64 {
    let elapsed_ms = mark.passed_ms(here);
    if server_ms < mark.at_ms() { elapsed_ms } else { elapsed_ms.min(server_ms) }
}

#[async_trait]
impl Clock for LedgerClock {
    fn now_ms(&self) -> i64 {
        since_boot_ms() - namespace_offset_ms() + self.offset_ms.load(Ordering::Relaxed)
    }

    async fn sleep(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }
}

/// Delays a deferred write, so that the next call's intent does not wait behind a note about the last call.
pub(crate) async fn yield_if_deferred(mode: WriteMode) {
    match mode {
        WriteMode::Deferred => sleep(DEFER).await,
        WriteMode::Blocking | WriteMode::Async => {}
    }
}

/// The token of an owner. Another machine cannot see whether the owner is alive, so its lease decides.
#[derive(Debug)]
pub(crate) struct Token(u64);

impl Token {
    pub(crate) fn new() -> Result<Self, StoreError> {
        let random = getrandom::u64().map_err(|error| StoreError::because("no random numbers", error))?;
        // Small enough for every JSON reader to represent exactly.
        Ok(Self(random >> 11))
    }

    /// The token of an owner of a ledger whose other owners hold kernel locks.
    pub(crate) fn leased() -> Result<Self, StoreError> {
        Self::new().map(|token| Self(token.0 | onceward::Owner::LEASED))
    }
}

impl OwnerLock for Token {
    fn token(&self) -> u64 {
        self.0
    }

    fn note_dispatch(&self, _dispatch: Dispatch) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A thread that runs an async runtime. It ends when this value is dropped.
pub(crate) struct RuntimeThread {
    handle: Handle,
    stop: Option<oneshot::Sender<std::convert::Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl RuntimeThread {
    pub(crate) fn start(name: &str) -> Result<Self, StoreError> {
        let cannot =
            |error| StoreError::because("cannot start the thread that talks to the ledger's server", error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            // Nothing is ever sent. The channel closes when the owner is dropped.
            drop(runtime.block_on(stopped));
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(cannot)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// A handle to the runtime, to start tasks on it.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Starts a task on the thread.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// Runs a task on the thread and blocks until it is done. For opening a store.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        self.handle.spawn(async move { drop(answer.send(task.await)) });
        answered
            .recv()
            .unwrap_or_else(|_| Err(StoreError::unavailable("the store's runtime thread has stopped")))
    }
}

impl Drop for RuntimeThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic on the thread does not matter any more.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn machine(boot: &str, since_boot_ms: i64, wall_ms: i64) -> Machine {
        Machine { boot: boot.to_owned(), since_boot_ms, wall_ms }
    }

    fn started(here: &Machine, server_ms: i64, mark: Option<&Mark>) -> LedgerClock {
        let clock = LedgerClock::default();
        clock.begin_on(here, server_ms, mark);
        clock
    }

    fn mark_of(clock: &LedgerClock, here: &Machine) -> Mark {
        let at_ms = clock.now_on(here);
        Mark { at_ms, boot: here.boot.clone(), since_boot_ms: here.since_boot_ms }
    }

    #[test]
    fn a_mark_round_trips() {
        let mark = Mark { at_ms: 12, boot: "b-1".to_owned(), since_boot_ms: 3 };
        assert_eq!(Mark::parse(&mark.to_string()), Some(mark));
        assert_eq!(Mark::parse("nonsense"), None);
    }

    #[test]
    fn a_new_ledger_begins_at_the_earlier_clock() {
        let here = machine("a", 10, 1_000_000);
        assert_eq!(started(&here, 900_000, None).now_on(&here), 900_000);
        assert_eq!(started(&here, 1_900_000, None).now_on(&here), 1_000_000);
    }

    #[test]
    fn a_step_of_the_servers_clock_affects_neither_open_ledgers_nor_new_processes() {
        for step in [20_000, HOUR, 25 * HOUR, 32 * 24 * HOUR] {
            let here = machine("a", 10, 1_000_000);
            let clock = started(&here, 1_000_000, None);
            let later = machine("a", 1_010, 1_001_000);
            clock.read_on(&later, 1_001_000 + step, None);
            assert_eq!(clock.now_on(&later), 1_001_000, "{step}");
            // The same machine, or another one whose own clock is right.
            let mark = mark_of(&clock, &later);
            for new in [machine("a", 2_010, 1_002_000), machine("b", 77, 1_002_000)] {
                assert_eq!(started(&new, 1_002_000 + step, Some(&mark)).now_on(&new), 1_002_000, "{step}");
            }
        }
    }

    #[test]
    fn a_step_of_every_clock_of_one_machine_has_no_effect() {
        let here = machine("a", 10, 1_000_000);
        let mark = mark_of(&started(&here, 1_000_000, None), &here);
        let new = machine("a", 1_010, 1_000_000 + 25 * HOUR);
        assert_eq!(started(&new, new.wall_ms, Some(&mark)).now_on(&new), 1_001_000);
    }

    #[test]
    fn a_manipulated_boot_clock_is_limited_by_the_server() {
        let here = machine("a", 10, 1_000_000);
        let mark = mark_of(&started(&here, 1_000_000, None), &here);
        let faked = machine("a", 10 + 48 * HOUR, 1_000_000 + 48 * HOUR);
        assert_eq!(started(&faked, 1_005_000, Some(&mark)).now_on(&faked), 1_005_000);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_stop_the_ledgers_time() {
        let here = machine("a", 10, 10 * HOUR);
        let clock = started(&here, 10 * HOUR, None);
        let later = machine("a", 60_010, 9 * HOUR);
        clock.read_on(&later, 9 * HOUR, None);
        assert_eq!(clock.now_on(&later), 10 * HOUR + 60_000);
        let new = machine("b", 5, 9 * HOUR);
        let mark = mark_of(&clock, &later);
        assert_eq!(started(&new, 9 * HOUR, Some(&mark)).now_on(&new), 10 * HOUR + 60_000);
    }

    #[test]
    fn unmeasured_time_counts_if_both_clocks_agree() {
        let here = machine("a", 10, 1_000_000);
        let mark = mark_of(&started(&here, 1_000_000, None), &here);
        let new = machine("b", 5, 1_000_000 + 30 * HOUR);
        assert_eq!(started(&new, 1_000_000 + 30 * HOUR, Some(&mark)).now_on(&new), 1_000_000 + 30 * HOUR);
    }

    #[test]
    fn the_ledger_catches_up_by_a_tenth_of_the_elapsed_time() {
        let here = machine("a", 0, 0);
        let clock = started(&here, 0, None);
        let later = machine("a", 100_000, 100_000 + HOUR);
        clock.read_on(&later, 100_000 + HOUR, None);
        assert_eq!(clock.now_on(&later), 110_000);
    }

    #[test]
    fn the_most_advanced_store_is_followed() {
        let here = machine("a", 0, 500);
        let clock = started(&here, 500, None);
        let mark = Mark { at_ms: 90_000, boot: "b".to_owned(), since_boot_ms: 7 };
        clock.read_on(&here, 500, Some(&mark));
        assert_eq!(clock.now_on(&here), 90_000);
    }
}
