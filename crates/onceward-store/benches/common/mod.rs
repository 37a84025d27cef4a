//! What the benchmarks share: calls of a ledger, and their timings.
#![allow(
    dead_code,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "each benchmark uses its part, and prints figures"
)]

use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use onceward::{Attempt, Blocking, Done, Failure, Ledger, Operation};

/// The allocator of the `once` binary, for plain SQLite too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub(crate) const ROUND: Duration = Duration::from_secs(4);
pub(crate) struct Figures {
    pub(crate) seconds: f64,
    pub(crate) micros: Vec<f64>,
}

pub(crate) fn print_line(peer: &str, mode: &str, callers: usize, round: usize, figures: &Figures) {
    let mut micros = figures.micros.clone();
    micros.sort_by(f64::total_cmp);
    let at = |share: f64| micros[((micros.len() - 1) as f64 * share) as usize];
    println!(
        "{{\"peer\":\"{peer}\",\"mode\":\"{mode}\",\"callers\":{callers},\"round\":{round},\"operations\":{},\
         \"per_second\":{:.0},\"p50_us\":{:.1},\"p99_us\":{:.1}}}",
        micros.len(),
        micros.len() as f64 / figures.seconds,
        at(0.5),
        at(0.99)
    );
}

/// Measures the duration of each call.
pub(crate) fn timed(items: impl Iterator<Item = u64>, mut act: impl FnMut(u64)) -> Figures {
    let begun = Instant::now();
    let mut micros = Vec::new();
    for item in items {
        let start = Instant::now();
        act(item);
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Figures { seconds: begun.elapsed().as_secs_f64(), micros }
}

/// Concurrent calls of a ledger for one round.
pub(crate) fn many_callers(ledger: &Ledger, callers: usize) -> Figures {
    many_callers_from(ledger, callers, 0)
}

/// The same, with operation numbers from `first` on.
pub(crate) fn many_callers_from(ledger: &Ledger, callers: usize, first: u64) -> Figures {
    let begun = Instant::now();
    let end = begun + ROUND;
    let mut next = first;
    let mut micros = Vec::new();
    let mut tasks = FuturesUnordered::new();
    pollster::block_on(async {
        loop {
            while tasks.len() < callers && Instant::now() < end {
                let number = next;
                next += 1;
                tasks.push(async move {
                    let start = Instant::now();
                    ledger
                        .run(operation(number), |attempt| std::future::ready(nothing(&attempt)))
                        .await
                        .expect("a receipt");
                    start.elapsed().as_secs_f64() * 1e6
                });
            }
            match tasks.next().await {
                Some(took) => micros.push(took),
                None => return,
            }
        }
    });
    Figures { seconds: begun.elapsed().as_secs_f64(), micros }
}

/// Creates records through the ledger itself, with many concurrent callers.
pub(crate) fn fill(ledger: &Ledger, from: u64, to: u64) {
    let mut tasks = FuturesUnordered::new();
    let mut next = from;
    pollster::block_on(async {
        loop {
            while tasks.len() < 512 && next < to {
                tasks.push(ledger.run(operation(next), |attempt| std::future::ready(nothing(&attempt))));
                next += 1;
            }
            match tasks.next().await {
                Some(receipt) => drop(receipt.expect("a record")),
                None => return,
            }
        }
    });
}

pub(crate) fn call(ledger: &Blocking, number: u64) {
    drop(ledger.run(operation(number), |attempt| nothing(&attempt)).expect("a receipt"));
}

pub(crate) fn nothing(attempt: &Attempt) -> Result<Done, Failure> {
    Ok(attempt.dispatch()?.created(&serde_json::json!({"id": 42})))
}

pub(crate) fn operation(number: u64) -> Operation {
    Operation::new("charge_payment")
        .input(serde_json::json!({"customer": number, "amount": 100, "currency": "EUR"}))
}

pub(crate) fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096 / (1024 * 1024)
}
