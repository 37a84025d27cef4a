//! Measures agent-effects on SQLite with the settings its `open` chooses.
//!
//! `first` runs an action that does nothing under keys 0, 1, 2, …; `replay` calls the same keys again in
//! the same directory. One JSON line goes to stdout. `bench.py` is the same loop for the Python peers.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent_effects::{EffectFailure, EffectOutcome, Runtime};
use agent_effects_sqlite::SqliteStore;
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use tokio::sync::Barrier;

/// The version that Cargo.toml pins.
const VERSION: &str = "0.2.0";

/// Measure agent-effects
#[derive(Parser)]
struct Arguments {
    /// Where the ledger is: empty before `first`, kept for `replay`
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, value_enum, default_value_t = Mode::First)]
    mode: Mode,
    /// Concurrent callers: tasks in this process
    #[arg(long, default_value_t = 1)]
    callers: usize,
    /// How many keys to call
    #[arg(long, default_value_t = 5000)]
    operations: u64,
    /// Start no call after this many seconds
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// The first key; other processes have other keys
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Start at this time (seconds since 1970), together with other processes
    #[arg(long, default_value_t = 0.0)]
    start_at: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    First,
    Replay,
}

/// What all callers share.
struct Load {
    runtime: Runtime<SqliteStore>,
    operations: u64,
    limit: Duration,
    start: Barrier,
    next: AtomicU64,
    executed: Arc<AtomicU64>,
    errors: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let store = SqliteStore::open(arguments.dir.join("agent-effects.db")).await?;
    let load = Arc::new(Load {
        runtime: Runtime::new(store),
        operations: arguments.first + arguments.operations,
        limit: Duration::from_secs_f64(arguments.seconds),
        start: Barrier::new(arguments.callers + 1),
        next: AtomicU64::new(arguments.first),
        executed: Arc::default(),
        errors: AtomicU64::new(0),
    });

    let callers: Vec<_> = (0..arguments.callers)
        .map(|_| tokio::spawn(caller(load.clone())))
        .collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    tokio::time::sleep(Duration::from_secs_f64((arguments.start_at - now).max(0.0))).await;
    load.start.wait().await;
    let started = Instant::now();
    let mut latencies = Vec::new();
    for caller in callers {
        latencies.append(&mut caller.await?);
    }
    let seconds = started.elapsed().as_secs_f64();

    latencies.sort_unstable();
    println!("{}", report(&arguments, &load, &latencies, seconds));
    Ok(())
}

/// Takes the next key until there is none or the time is up; returns the latencies of the calls that succeeded.
async fn caller(load: Arc<Load>) -> Vec<Duration> {
    let mut latencies = Vec::new();
    load.start.wait().await;
    let started = Instant::now();
    while started.elapsed() < load.limit {
        let number = load.next.fetch_add(1, Relaxed);
        if number >= load.operations {
            break;
        }
        let before = Instant::now();
        match call(&load, number).await {
            Ok(()) => latencies.push(before.elapsed()),
            Err(error) => {
                load.errors.fetch_add(1, Relaxed);
                eprintln!("key {number}: {error}");
            }
        }
    }
    latencies
}

async fn call(load: &Load, number: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
    let executed = load.executed.clone();
    let outcome = load
        .runtime
        .effect("order.place", format!("order-{number:08}"))
        .input(&json!({"order": number, "amount": 100}))
        .run(move |_| {
            executed.fetch_add(1, Relaxed);
            async { Ok::<Value, EffectFailure>(json!({"id": "charge-1", "ok": true})) }
        })
        .await?;
    match outcome {
        EffectOutcome::Committed(_) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn report(arguments: &Arguments, load: &Load, sorted: &[Duration], seconds: f64) -> Value {
    json!({
        "peer": "agent-effects",
        "version": VERSION,
        "mode": match arguments.mode { Mode::First => "first", Mode::Replay => "replay" },
        "callers": arguments.callers,
        "operations": sorted.len(),
        "seconds": rounded(seconds, 1e3),
        "per_second": rounded(sorted.len() as f64 / seconds, 10.0),
        "p50_us": percentile(sorted, 0.50),
        "p99_us": percentile(sorted, 0.99),
        "syncs": "first 5, replay 0 (WAL, synchronous=FULL)",
        "executed": load.executed.load(Relaxed),
        "errors": load.errors.load(Relaxed),
    })
}

fn percentile(sorted: &[Duration], share: f64) -> Option<f64> {
    let latency = sorted.get((sorted.len() as f64 * share) as usize)?;
    Some(rounded(latency.as_secs_f64() * 1e6, 10.0))
}

fn rounded(value: f64, scale: f64) -> f64 {
    (value * scale).round() / scale
}
