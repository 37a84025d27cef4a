//! The ledger compared with plain SQLite, in one run on one file system, with one JSON line per measurement.
//!
//! `cargo bench -p onceward-store` measures speed. `-- --growth` measures how the cost grows with the number of
//! records. `-- --gc` measures a sweep of many results during calls, and what it costs the callers. `-- --index`
//! measures the cost of an index of all keys.
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

use common::{
    Figures, ROUND, call, fill, many_callers, many_callers_from, operation, print_line, resident_mib, timed,
};
use onceward::{Change, Ledger, Outcome, Owner, Record, State, Store, WriteMode, transition};
use onceward_store::seal::new_key;
use onceward_store::seal::{Keys, Sealed};
use onceward_store::sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

const CACHE_BYTES: u64 = 64 * 1024 * 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let folder = std::env::var_os("BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let folder = tempfile::tempdir_in(folder).expect("a folder to measure in");
    if arguments.iter().any(|argument| argument == "--growth") {
        growth(folder.path());
    } else if arguments.iter().any(|argument| argument == "--gc") {
        sweep(folder.path());
    } else if arguments.iter().any(|argument| argument == "--index") {
        index(folder.path());
    } else {
        speed(folder.path());
    }
}

/// The rounds alternate, so that a slow minute of the machine affects all alike.
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
        measure("onceward", "first", 1, &|path| one_caller(open(path, CACHE_BYTES)));
        measure("onceward", "first", 64, &|path| many_callers(&Ledger::new(open(path, CACHE_BYTES)), 64));
        measure("onceward", "first", 256, &|path| many_callers(&Ledger::new(open(path, CACHE_BYTES)), 256));
        measure("onceward", "replay from memory", 1, &|path| replay(open(path, CACHE_BYTES)));
        measure("onceward", "replay from the file", 1, &|path| replay(open(path, 0)));
        measure("sealed", "first", 1, &|path| one_caller(sealed(path, CACHE_BYTES)));
        measure("sealed", "first", 64, &|path| many_callers(&Ledger::new(sealed(path, CACHE_BYTES)), 64));
        measure("sealed", "replay from memory", 1, &|path| replay(sealed(path, CACHE_BYTES)));
        measure("sealed", "replay from the file", 1, &|path| replay(sealed(path, 0)));
    }
}

fn growth(folder: &Path) {
    let limit: u64 =
        std::env::var("GROWTH_LIMIT").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000_000);
    // Without a cache, so that every replay reads the file, at every size. GROWTH_LEDGER continues with a ledger that
    // an earlier run has filled.
    let path = std::env::var_os("GROWTH_LEDGER").map_or_else(|| folder.join("growth.db"), Into::into);
    let ledger = Ledger::new(open(&path, 0));
    let filled: u64 = pollster::block_on(ledger.admin().counts()).expect("the counts").values().sum();
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
        // Old records, spread over the whole file and each read once: from the file, not from a cache.
        let step = (size / 2_000).max(1);
        let replay = timed((0..size).step_by(usize::try_from(step).unwrap()), |n| call(&blocking, n));
        print_line("onceward", &format!("replay at {size} records"), 1, 1, &replay);
        println!("{{\"what\":\"memory at {size} records\",\"resident_mib\":{}}}", resident_mib());
    }
}

/// Rounds with and without an index of all keys, alternating.
fn index(folder: &Path) {
    for round in 1..=3 {
        for (mode, indexes) in
            [("given keys indexed", ""), ("all keys indexed", "CREATE INDEX every ON operations (key)")]
        {
            for callers in [1, 64, 256] {
                let path = folder.join(format!("{callers}-{round}-{}.db", indexes.len()));
                drop(open(&path, CACHE_BYTES));
                Connection::open(&path).unwrap().execute_batch(indexes).unwrap();
                let figures = match callers {
                    1 => one_caller(open(&path, CACHE_BYTES)),
                    callers => many_callers(&Ledger::new(open(&path, CACHE_BYTES)), callers),
                };
                print_line("onceward", mode, callers, round, &figures);
            }
        }
        print_line("bare", "first", 1, round, &bare(&folder.join(format!("bare-{round}.db"))));
    }
}

/// A sweep of expired results by another store than the callers'.
fn sweep(folder: &Path) {
    let records: u64 =
        std::env::var("GC_RECORDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let path = folder.join("gc.db");
    let store = open(&path, 0);
    let ledger = Ledger::new(Arc::<SqliteStore>::clone(&store));
    print_line("onceward", "first beside no sweep", 16, 1, &many_callers(&ledger, 16));
    expired(&ledger, &store, records);
    let swept = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sweeper = scope.spawn(|| {
            let other = Ledger::new(open(&path, 0));
            let begun = Instant::now();
            let done = pollster::block_on(other.admin().sweep(|_| {})).expect("a sweep");
            swept.store(true, std::sync::atomic::Ordering::Relaxed);
            (done.expired, begun.elapsed().as_secs_f64())
        });
        let mut figures = Figures { seconds: 0.0, micros: Vec::new() };
        while !swept.load(std::sync::atomic::Ordering::Relaxed) {
            let more = many_callers_from(&ledger, 16, 1_000_000_000 + figures.micros.len() as u64);
            figures.seconds += more.seconds;
            figures.micros.extend(more.micros);
        }
        let (expired, seconds) = sweeper.join().expect("the sweeper");
        print_line("onceward", "first beside a sweep", 16, 1, &figures);
        println!(
            "{{\"what\":\"sweep\",\"expired\":{expired},\"seconds\":{seconds:.1},\"per_second\":{:.0}}}",
            expired as f64 / seconds
        );
    });
}

/// Inserts results that expired long ago.
fn expired(ledger: &Ledger, store: &SqliteStore, records: u64) {
    for first in (0..records).step_by(1_000) {
        let changes = (first..(first + 1_000).min(records)).map(|number| {
            let intent = ledger.intent(operation(1 << 40 | number)).expect("an intent");
            let owner = Owner { token: 1, lease_until_ms: 0 };
            let running = transition::start(None, &intent, owner, 1_000);
            let data = serde_json::value::to_raw_value(&serde_json::json!({"id": 42})).expect("JSON");
            let outcome = Outcome { data: Some(data.into()), ..Outcome::because(None) };
            let record =
                Record { state: State::Done, due_ms: Some(2_000), outcome: Some(outcome), ..running };
            Change::Swap { expected: None, record }
        });
        pollster::block_on(store.apply(changes.collect(), WriteMode::Async)).expect("records");
    }
}

/// The same two synced transactions without the ledger: a row with a unique key, then its result.
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

fn one_caller(store: Arc<dyn Store>) -> Figures {
    let ledger = Ledger::new(store).blocking();
    let end = Instant::now() + ROUND;
    timed((0..).take_while(|_| Instant::now() < end), |n| call(&ledger, n))
}

fn replay(store: Arc<dyn Store>) -> Figures {
    let records = 10_000;
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

/// The same with results encrypted at rest.
fn sealed(path: &Path, cache_bytes: u64) -> Arc<Sealed> {
    let keys = Keys::parse(&new_key().unwrap()).unwrap();
    Arc::new(Sealed::around(open(path, cache_bytes), keys))
}
