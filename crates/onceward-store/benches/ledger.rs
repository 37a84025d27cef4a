//! The ledger beside bare SQLite, in one run on one file system, a JSON line a measurement.
//!
//! `cargo bench -p onceward-store` measures speed; `-- --growth` measures how cost grows with the number of records.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a program that prints figures"
)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use common::{Figures, ROUND, call, fill, many_callers, operation, print_line, resident_mib, timed};
use onceward::Ledger;
use onceward_store::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

const CACHE_BYTES: u64 = 64 * 1024 * 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let folder = std::env::var_os("BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(folder).expect("a folder to measure in");
    if arguments.iter().any(|argument| argument == "--growth") {
        growth(folder.path());
    } else {
        speed(folder.path());
    }
}

/// Rounds alternate, so that a slow minute of the machine hits all alike.
fn speed(folder: &Path) {
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let rounds = std::env::var("BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    for round in 1..=rounds {
        let path = |what: &str| folder.join(format!("{}-{round}.db", what.replace(' ', "-")));
        let measure = |peer: &str, mode: &str, callers: usize, run: &dyn Fn(&Path) -> Figures| {
            let name = format!("{peer} {mode} {callers}");
            if name.contains(&only) {
                print_line(peer, mode, callers, round, &run(&path(&name)));
            }
        };
        measure("bare", "first", 1, &bare);
        measure("onceward", "first", 1, &one_caller);
        measure("onceward", "first", 64, &|path| many_callers(&Ledger::new(open(path, CACHE_BYTES)), 64));
        measure("onceward", "first", 256, &|path| many_callers(&Ledger::new(open(path, CACHE_BYTES)), 256));
        measure("onceward", "replay from memory", 1, &|path| replay(path, CACHE_BYTES));
        measure("onceward", "replay from the file", 1, &|path| replay(path, 0));
    }
}

fn growth(folder: &Path) {
    let limit: u64 =
        std::env::var("GROWTH_LIMIT").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000_000);
    // Without finished records in memory, so that every replay is one from the file, at every size.
    // GROWTH_LEDGER goes on with a ledger that an earlier run has filled.
    let path = std::env::var_os("GROWTH_LEDGER").map_or_else(|| folder.join("growth.db"), Into::into);
    let ledger = Ledger::new(open(&path, 0));
    let filled: u64 = pollster::block_on(ledger.counts()).expect("the counts").values().sum();
    let mut records = filled;
    for size in
        [1_000, 100_000, 1_000_000, 10_000_000].into_iter().filter(|size| (filled..=limit).contains(size))
    {
        fill(&ledger, records, size);
        records = size;
        let calls: Vec<u64> = (0..2_000).map(|n| 1_000_000_000 + size * 10 + n).collect();
        let blocking = ledger.blocking();
        let first = timed(calls.iter().copied(), |n| call(&blocking, n));
        print_line("onceward", &format!("first at {size} records"), 1, 1, &first);
        // Old records, spread over the whole file, each asked for once: from the file, not from memory.
        let step = (size / 2_000).max(1);
        let replay = timed((0..size).step_by(usize::try_from(step).unwrap()), |n| call(&blocking, n));
        print_line("onceward", &format!("replay at {size} records"), 1, 1, &replay);
        println!("{{\"what\":\"memory at {size} records\",\"resident_mib\":{}}}", resident_mib());
    }
}

/// The same two synced transactions, by hand: a row with a unique key, then its result.
fn bare(path: &Path) -> Figures {
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = full; PRAGMA wal_autocheckpoint = 4000;
             CREATE TABLE effect (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, state TEXT NOT NULL, result TEXT);",
        )
        .unwrap();
    let mut insert = connection.prepare("INSERT INTO effect (key, state) VALUES (?1, 'running')").unwrap();
    let mut update =
        connection.prepare("UPDATE effect SET state = 'done', result = ?2 WHERE key = ?1").unwrap();
    let end = Instant::now() + ROUND;
    timed((0..).take_while(|_| Instant::now() < end), |n| {
        let key = operation(n).intent().unwrap().key.text;
        insert.execute([&key]).unwrap();
        update.execute([key.as_str(), "{\"id\":42}"]).unwrap();
    })
}

fn one_caller(path: &Path) -> Figures {
    let ledger = Ledger::new(open(path, CACHE_BYTES)).blocking();
    let end = Instant::now() + ROUND;
    timed((0..).take_while(|_| Instant::now() < end), |n| call(&ledger, n))
}

fn replay(path: &Path, cache_bytes: u64) -> Figures {
    let records = 10_000;
    let store = open(path, cache_bytes);
    let ledger = Ledger::new(store);
    fill(&ledger, 0, records);
    let blocking = ledger.blocking();
    for n in 0..records {
        call(&blocking, n);
    }
    let end = Instant::now() + ROUND;
    timed((0..records).cycle().take_while(|_| Instant::now() < end), |n| call(&blocking, n))
}

fn open(path: &Path, cache_bytes: u64) -> Arc<SqliteStore> {
    SqliteStore::open(SqliteOptions { cache_bytes, ..SqliteOptions::new(path) }).expect("a ledger")
}
