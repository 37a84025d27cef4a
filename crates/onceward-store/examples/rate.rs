//! Measures how many calls per second the Rust API makes: `rate DIR MODE CALLERS SECONDS`, with MODE `first` or
//! `replay`. The loop is the same as in `bench/peers/bench.py`, for comparison. Prints one JSON line.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints figures and may give up"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onceward::{Attempt, Blocking, Ledger, Operation};
use serde_json::json;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, mode, callers, seconds] = arguments.as_slice() else {
        panic!("rate DIR first|replay CALLERS SECONDS");
    };
    let (callers, seconds): (usize, f64) = (callers.parse().unwrap(), seconds.parse().unwrap());
    let store = onceward_store::open(&format!("sqlite:{folder}/rate.db")).unwrap();
    let ledger = Ledger::new(store).blocking();
    // A replay uses the keys of the first calls.
    let known = if mode == "replay" { count(&ledger) } else { u64::MAX };
    let next = AtomicU64::new(0);
    let started = Instant::now();
    let mut spans: Vec<Duration> = std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..callers)
            .map(|_| scope.spawn(|| caller(&ledger, &next, known, started, Duration::from_secs_f64(seconds))))
            .collect();
        crowd.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    let took = started.elapsed().as_secs_f64();
    spans.sort_unstable();
    let at = |share: usize| spans.get(spans.len() * share / 100).map(|span| span.as_nanos() / 100);
    let tenths = |span: Option<u128>| span.map(|tenths| tenths as f64 / 10.0);
    println!(
        "{}",
        json!({"peer": "onceward (Rust) on SQLite", "mode": mode, "callers": callers, "operations": spans.len(),
               "per_second": (spans.len() as f64 / took * 10.0).round() / 10.0,
               "p50_us": tenths(at(50)), "p99_us": tenths(at(99))})
    );
}

fn caller(
    ledger: &Blocking,
    next: &AtomicU64,
    known: u64,
    started: Instant,
    span: Duration,
) -> Vec<Duration> {
    let mut spans = Vec::new();
    while started.elapsed() < span {
        let number = next.fetch_add(1, Ordering::Relaxed) % known;
        let before = Instant::now();
        let operation = Operation::new("place_order")
            .input(json!({"order": number, "amount": 100}))
            .key_fields(["order"]);
        let act = |attempt: Attempt| Ok(attempt.dispatch()?.created(&json!({"id": "charge-1", "ok": true})));
        ledger.run(operation, act).unwrap();
        spans.push(before.elapsed());
    }
    spans
}

fn count(ledger: &Blocking) -> u64 {
    ledger.admin().counts().unwrap().values().sum()
}
