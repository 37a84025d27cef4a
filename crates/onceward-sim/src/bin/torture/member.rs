//! One process of a fleet: calls every key once and prints the answers.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use onceward_sim::random::Random;

use crate::Trouble;
use crate::fleet::{Caller, CallerAnswer};

/// The first argument that makes this program a member of a fleet.
pub(crate) const ROLE: &str = "member";

/// How many threads of the process make calls at once, on one handle.
const THREADS: usize = 4;
/// No process is killed here, so the lease is long: a silent attempt is only waiting for a processor.
const LEASE_MS: u64 = 60_000;
const WAIT_MS: u64 = 120_000;

/// `member URL EFFECTS KEYS SEED`. An even seed takes the keys in order, an odd one in a random order.
pub(crate) fn call_all(words: impl Iterator<Item = String>) -> ExitCode {
    let words: Vec<String> = words.collect();
    let [url, effects, keys, seed] = &words[..] else { return ExitCode::from(2) };
    let (Ok(keys), Ok(seed)) = (keys.parse(), seed.parse()) else { return ExitCode::from(2) };
    match call_on(url, effects.into(), keys, seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            drop(writeln!(std::io::stderr(), "{trouble}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line for each key: the key, and the result or the error.
fn call_on(url: &str, effects: PathBuf, keys: usize, seed: u64) -> Result<(), Trouble> {
    let caller = Caller::open(url, &effects)?.patient(LEASE_MS, WAIT_MS);
    let order = order(keys, seed);
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), Trouble> {
        while let Some(key) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let heard = caller.call(key);
            let line = match heard.answer {
                CallerAnswer::Done(result) => format!("done\t{key}\t{}\t{result}\n", u8::from(heard.ran)),
                CallerAnswer::Refused { code, words, .. } => format!("refused\t{key}\t{code}\t{words}\n"),
            };
            std::io::stdout().lock().write_all(line.as_bytes())?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Trouble::from("a thread of the member panicked"))?
        })
    })
}

fn order(keys: usize, seed: u64) -> Vec<String> {
    let mut order: Vec<String> = (0..keys).map(|number| format!("key-{number}")).collect();
    if seed % 2 == 1 {
        let mut random = Random::seeded(seed);
        for at in (1..order.len()).rev() {
            order.swap(at, random.index(at + 1));
        }
    }
    order
}
