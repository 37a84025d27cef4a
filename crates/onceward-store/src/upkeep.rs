//! Expires results while a ledger is open, without calls of `once gc`.
//!
//! A store that is open for more than a minute sweeps due records in small steps that let callers go first. Several
//! stores on one ledger share the work, because each finds only what is still due.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use onceward::{Ledger, Left};

use crate::Backend;

/// How long a ledger is open before its first sweep, and the pause after each sweep.
const INTERVAL: Duration = Duration::from_secs(60);
/// How often to check whether the ledger was closed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Sweeps for as long as the ledger is open. If no thread can be started, only `once gc` sweeps.
pub(crate) fn start_sweeping(store: &Arc<dyn Backend>) {
    let store = Arc::downgrade(store);
    drop(thread::Builder::new().name("once-gc".to_owned()).spawn(move || sweep_while_open(&store)));
}

fn sweep_while_open(store: &Weak<dyn Backend>) {
    loop {
        let until = Instant::now() + INTERVAL;
        while Instant::now() < until {
            thread::sleep(POLL_INTERVAL);
            if store.strong_count() == 0 {
                return;
            }
        }
        // If the ledger cannot be used now, the next sweep tries again.
        drop(sweep(store));
    }
}

/// One sweep. It releases the ledger after each step and pauses for as long as the step took.
fn sweep(store: &Weak<dyn Backend>) -> Result<(), onceward::Error> {
    loop {
        let Some(store) = store.upgrade() else { return Ok(()) };
        let ledger = Ledger::new(store).patient();
        let begun = Instant::now();
        let (_, left) = ledger.blocking().wait_for(ledger.admin().sweep_some())?;
        if left == Left::Nothing {
            return ledger.blocking().wait_for(ledger.admin().record_doubts()).map(drop);
        }
        drop(ledger);
        thread::sleep(begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use onceward::{ManualClock, MemoryStore, Operation, State};

    use super::*;

    #[test]
    fn due_records_expire_while_the_ledger_is_open() {
        let clock = Arc::new(ManualClock::at(1_000));
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new(Arc::clone(&clock)));
        let ledger = Ledger::new(store.clone()).blocking();
        for key in 0..2_500 {
            let operation = Operation::new("pay").key(key.to_string());
            ledger.run(operation, |attempt| Ok(attempt.dispatch()?.created(&key))).expect("it is done");
        }
        clock.advance(25 * 3_600_000);
        sweep(&Arc::downgrade(&store)).expect("the ledger can be written");
        let counts = ledger.wait_for(store.counts(&onceward::Filter::default())).expect("it can be read");
        assert_eq!(counts.get(&State::Expired), Some(&2_500));
        assert_eq!(counts.get(&State::Done), None);
    }

    #[test]
    fn a_closed_ledger_is_not_swept() {
        let store: Arc<dyn Backend> = Arc::new(MemoryStore::new(ManualClock::at(0)));
        let closed = Arc::downgrade(&store);
        drop(store);
        sweep_while_open(&closed);
    }
}
