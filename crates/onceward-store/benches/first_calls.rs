//! What a first call without a key costs a caller that has made few calls before, and one that has made a million, on
//! SQLite, PostgreSQL and Redis: `cargo bench -p onceward-store --all-features --bench first_calls`.
//!
//! The ledgers are measured in turn, so that a slow minute of the machine affects both. The processor time is that of
//! this process and of the servers that it started. `FIRST_CALLS` is the size of the large ledger, and `BENCH_ONLY`
//! names one back end.
#![expect(clippy::print_stdout, clippy::expect_used, reason = "a program that prints figures")]

mod common;

use std::time::Instant;

use common::{fill, nothing, operation};
use onceward::{Blocking, Ledger};
use onceward_store::{IfMissing, StoreUrl};
use onceward_testkit::{Postgres, Redis};

const FEW: u64 = 100;
const ROUNDS: u64 = 8;
const CALLS: u64 = 250;

fn main() {
    // Syncs are a part of a call.
    onceward_testkit::on_disk();
    let many = std::env::var("FIRST_CALLS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    if "sqlite".contains(&only) {
        let folder = std::env::var_os("BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
        let folder = tempfile::tempdir_in(folder).expect("a folder to measure in");
        let url = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
        compare("sqlite", &[url("few.db"), url("many.db")], many);
    }
    if "postgres".contains(&only) {
        let server = Postgres::start_with(&[("shared_buffers", "1GB"), ("max_wal_size", "8GB")]);
        compare("postgres", &[server.fresh(), server.fresh()], many);
    }
    if "redis".contains(&only) {
        let server = Redis::start_with(&[("auto-aof-rewrite-percentage", "0")]);
        compare("redis", &[server.fresh(), server.fresh()], many);
    }
}

/// The calls of one ledger.
#[derive(Default)]
struct Measured {
    micros: Vec<f64>,
    processor: f64,
}

/// Prints a line for each ledger, and their ratio.
fn compare(back_end: &str, urls: &[String; 2], many: u64) {
    let sizes = [FEW, many];
    let ledgers = urls.each_ref().map(|url| open(url));
    for (ledger, size) in ledgers.iter().zip(sizes) {
        fill(ledger.ledger(), 0, size);
    }
    let mut measured = [Measured::default(), Measured::default()];
    for round in 0..ROUNDS {
        for (ledger, measured) in ledgers.iter().zip(&mut measured) {
            let begun = processor_seconds();
            for number in 0..CALLS {
                let start = Instant::now();
                first_call(ledger, many + round * CALLS + number);
                measured.micros.push(start.elapsed().as_secs_f64() * 1e6);
            }
            measured.processor += processor_seconds() - begun;
        }
    }
    let figures = measured.map(|Measured { mut micros, processor }| {
        micros.sort_by(f64::total_cmp);
        (micros[micros.len() / 2], processor * 1e6 / (ROUNDS * CALLS) as f64)
    });
    for ((p50, processor), size) in figures.iter().zip(sizes) {
        println!(
            "{{\"peer\":\"onceward on {back_end}\",\"mode\":\"first without a key, after {size} calls\",\"p50_us\":\
             {p50:.1},\"processor_us\":{processor:.1}}}"
        );
    }
    let [few, many] = figures;
    println!(
        "{{\"back_end\":\"{back_end}\",\"p50_ratio\":{:.2},\"processor_ratio\":{:.2}}}",
        many.0 / few.0,
        many.1 / few.1
    );
}

fn open(url: &str) -> Blocking {
    let store = StoreUrl::parse(url).expect("a URL").open(IfMissing::Create).expect("a store");
    Ledger::new(store).blocking()
}

/// A call as a surface makes it: the earlier occurrences of its action are looked for, and then it runs.
fn first_call(ledger: &Blocking, number: u64) {
    let wanted = ledger.repeats().wanted(operation(number)).expect("the ledger can be read");
    let call = ledger.call(wanted.intent);
    drop(ledger.run_call(call, |attempt| nothing(&attempt)).expect("a receipt"));
}

/// The processor time of this process and of all that it started, in seconds.
fn processor_seconds() -> f64 {
    let own = std::process::id();
    let processes: Vec<(u32, u32, u64)> = std::fs::read_dir("/proc")
        .expect("this runs on Linux")
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok())
        .filter_map(|stat| {
            let id = stat.split(' ').next()?.parse().ok()?;
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let ticks = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
            Some((id, fields[1].parse().ok()?, ticks))
        })
        .collect();
    let is_own = |id: u32| {
        let mut at = id;
        while at != own {
            match processes.iter().find(|(id, ..)| *id == at) {
                Some((_, parent, _)) if *parent > 1 => at = *parent,
                Some(_) | None => return false,
            }
        }
        true
    };
    let ticks: u64 = processes.iter().filter(|(id, ..)| is_own(*id)).map(|(.., ticks)| ticks).sum();
    // The kernel counts in hundredths of a second.
    ticks as f64 / 100.0
}
