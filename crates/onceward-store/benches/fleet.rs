//! The ledger on PostgreSQL and Redis compared with the servers' own limits, in one run, with one JSON line per
//! measurement.
//!
//! The limit is the same write sent directly: the same rows, indexes and durability, pipelined, and nothing else.
//! Both servers are private and started for this run. `-- --growth` measures how the cost grows with the number of
//! records. `-- --gc` measures how fast results expire on PostgreSQL (GC_RECORDS of them) and what that costs
//! concurrent callers.
#![expect(clippy::unwrap_used, reason = "a program that prints figures")]

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Figures, ROUND, call, fill, many_callers, operation, print_line, timed};
use futures_util::future::join_all;
use onceward::{Begun, Effect, Ending, Filter, Ledger, Outcome, State};
use onceward_store::postgres::{PostgresOptions, PostgresStore};
use onceward_store::{IfMissing, StoreUrl};
use onceward_testkit::{Postgres, Redis, RedisCluster};
use tokio::runtime::Builder;

/// How many connections to PostgreSQL the raw writers use. The best result counts.
const WAYS: [usize; 3] = [1, 4, 16];

fn main() {
    // Syncs are what it measures.
    onceward_testkit::on_disk();
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let rounds = number("BENCH_ROUNDS", 3);
    if std::env::args().any(|argument| argument == "--growth") {
        let limit = u64::try_from(number("GROWTH_LIMIT", 10_000_000)).unwrap();
        return growth(&only, limit);
    }
    if std::env::args().any(|argument| argument == "--gc") {
        return gc(u64::try_from(number("GC_RECORDS", 1_000_000)).unwrap());
    }
    let postgres = Postgres::start_with(&[("shared_buffers", "512MB"), ("max_wal_size", "4GB")]);
    let redis = Redis::start();
    let clusters: Vec<RedisCluster> = if only.is_empty() || only.contains("cluster") {
        (1..=3).map(|primaries| RedisCluster::start_of(primaries, &[])).collect()
    } else {
        Vec::new()
    };
    for round in 1..=rounds {
        let measure = |peer: &str, mode: &str, callers: usize, run: &dyn Fn() -> Figures| {
            if format!("{peer} {mode} {callers}").contains(&only) {
                print_line(peer, mode, callers, round, &run());
            }
        };
        for ways in WAYS {
            measure(&format!("postgres raw, {ways} ways"), "first", 64, &|| {
                raw_postgres(&postgres.fresh(), 64, ways)
            });
        }
        for callers in [1, 64, 256] {
            measure("onceward on postgres", "first", callers, &|| first(&postgres.fresh(), callers));
        }
        measure("onceward on postgres", "replay from memory", 1, &|| replay(&postgres.fresh(), 1_000));
        for callers in [64, 256] {
            measure("redis raw", "first", callers, &|| raw_redis(&redis.fresh(), callers));
        }
        for callers in [1, 64, 256] {
            measure("onceward on redis", "first", callers, &|| first(&redis.fresh(), callers));
        }
        for (primaries, cluster) in (1..).zip(&clusters) {
            let peer = format!("onceward on a cluster of {primaries}");
            measure(&peer, "first", 256, &|| first(&cluster.fresh(), 256));
        }
        measure("onceward on redis", "replay from memory", 1, &|| replay(&redis.fresh(), 1_000));
    }
    if let Some(peers) = std::env::var_os("FLEET_PEERS") {
        run_peers(Path::new(&peers), &postgres, &redis);
    }
}

/// Measures the peers on the same servers. FLEET_PEERS is a Python that has them installed and prints a line for
/// each.
fn run_peers(python: &Path, postgres: &Postgres, redis: &Redis) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers");
    let folder = tempfile::tempdir().unwrap();
    let run = |script: &str, place: &[&str], callers: &str| {
        let status = Command::new(python)
            .arg(here.join(script))
            .args(place)
            .args(["--callers", callers, "--operations", "1000000", "--seconds", "6", "--dir"])
            .arg(folder.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .status();
        assert!(status.unwrap().success(), "{script} failed");
    };
    for callers in ["1", "64"] {
        let database = format!("peer_{callers}");
        drop(postgres.sql(&format!("CREATE DATABASE {database}")));
        let url = format!("postgresql://postgres@127.0.0.1:{}/{database}", postgres.port());
        run("dbos_bench.py", &["--url", &url], callers);
        drop(redis.cli(&["FLUSHALL"]));
        run("powertools_bench.py", &["--port", &redis.port().to_string()], callers);
    }
}

fn open(url: &str) -> Ledger {
    Ledger::new(onceward_store::open(url).unwrap())
}

fn first(url: &str, callers: usize) -> Figures {
    let ledger = open(url);
    if callers > 1 {
        return many_callers(&ledger, callers);
    }
    let blocking = ledger.blocking();
    let end = Instant::now() + ROUND;
    timed((0..).take_while(|_| Instant::now() < end), |n| call(&blocking, n))
}

fn replay(url: &str, records: u64) -> Figures {
    let ledger = open(url);
    fill(&ledger, 0, records);
    let blocking = ledger.blocking();
    let end = Instant::now() + ROUND;
    timed((0..records).cycle().take_while(|_| Instant::now() < end), |n| call(&blocking, n))
}

/// What the ledger writes for an operation when it begins and when it ends.
struct Sample {
    begun: Arc<onceward::Record>,
    ended: Arc<onceward::Record>,
}

impl Sample {
    /// Writes the operation. `between` inspects the store while it runs.
    fn take(ledger: &Ledger, between: impl FnOnce(&onceward::Record)) -> Self {
        let intent = operation(u64::MAX).intent().unwrap();
        let Begun::Execute(claim) = pollster::block_on(ledger.begin(&intent)).unwrap() else {
            unreachable!("it is the first call");
        };
        let begun = Arc::clone(claim.record());
        between(&begun);
        let data = serde_json::value::to_raw_value(&serde_json::json!({"id": 42})).ok().map(Into::into);
        let outcome = Outcome { data, ..Outcome::with_effect(Effect::Created) };
        let receipt = pollster::block_on(claim.finish(Ending::Done(outcome))).unwrap();
        Self { begun, ended: Arc::clone(receipt.record()) }
    }
}

/// Id number `n`, with the length and the randomness of real ids.
fn id_of(n: u64) -> String {
    operation(n).intent().unwrap().id.to_string()
}

/// Inserts and updates identical rows, each statement in its own transaction, with `callers` callers over `ways`
/// connections.
fn raw_postgres(url: &str, callers: usize, ways: usize) -> Figures {
    const INSERT: &str = "INSERT INTO operation (id, scope, name, key, origin, state, version, attempt, created_ms, \
                          updated_ms, due_ms, detail, outcome) \
                          VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
    const UPDATE: &str = "UPDATE operation SET state = $3, version = $4, attempt = $5, updated_ms = $6, due_ms = $7, \
                          detail = $8, outcome = $9 WHERE id = $1 AND version = $2";
    let sample = Sample::take(&open(url), |_| {});
    let (address, schema) = url.split_once("?schema=").unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut links = Vec::new();
        for _ in 0..ways {
            let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(async move { drop(connection.await) });
            client.batch_execute(&format!("SET search_path = {schema}")).await.unwrap();
            let (insert, update) =
                (client.prepare(INSERT).await.unwrap(), client.prepare(UPDATE).await.unwrap());
            links.push((client, insert, update));
        }
        raw(callers, async |n| {
            let (client, insert, update) = &links[usize::try_from(n).unwrap() % ways];
            let (id, key) = (id_of(n), n.to_string());
            let Sample { begun, ended } = &sample;
            let text = |value: &dyn erased::Text| value.text();
            let (version, attempt) = (1_i64, 1_i64);
            let detail = text(&begun.detail);
            client
                .execute(
                    insert,
                    &[
                        &id,
                        &begun.scope,
                        &begun.name,
                        &key,
                        &"derived",
                        &"running",
                        &version,
                        &attempt,
                        &begun.created_ms,
                        &begun.updated_ms,
                        &begun.due_ms,
                        &detail,
                        &None::<String>,
                    ],
                )
                .await
                .unwrap();
            let detail = text(&ended.detail);
            let outcome = ended.outcome.as_ref().map(|outcome| text(outcome));
            let updated = client
                .execute(
                    update,
                    &[
                        &id,
                        &version,
                        &"done",
                        &2_i64,
                        &attempt,
                        &ended.updated_ms,
                        &ended.due_ms,
                        &detail,
                        &outcome,
                    ],
                )
                .await
                .unwrap();
            assert_eq!(updated, 1);
        })
        .await
    })
}

/// The text of values that are stored as JSON.
mod erased {
    pub(crate) trait Text {
        fn text(&self) -> String;
    }

    impl<T: serde::Serialize> Text for T {
        fn text(&self) -> String {
            serde_json::to_string(self).unwrap()
        }
    }
}

/// Sends the store's own script with the same values, with `callers` callers over one connection.
fn raw_redis(url: &str, callers: usize) -> Figures {
    let ledger = open(url);
    let (address, prefix) = url.split_once("?prefix=").unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let client = redis::Client::open(address).unwrap();
    let mut plain = client.get_connection().unwrap();
    let mut values: Vec<(String, String)> = Vec::new();
    let mut look = |id: &str| {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg(format!("*{prefix}*{}*", id.trim_start_matches("op_")))
            .query(&mut plain)
            .unwrap();
        let key = keys.into_iter().min().unwrap();
        let value: String = redis::cmd("GET").arg(&key).query(&mut plain).unwrap();
        values.push((key, value));
    };
    let id = ledger.intent(operation(u64::MAX)).unwrap().id.to_string();
    let sample = Sample::take(&ledger, |_| look(&id));
    look(&id);
    assert_eq!((sample.begun.state, sample.ended.state), (State::Running, State::Done));
    let (key, begun) = values.remove(0);
    let (_, ended) = values.remove(0);
    let shards: Vec<String> = (0..64).map(|shard| format!("{{{prefix}:{shard}}}v3")).collect();
    assert!(shards.iter().any(|shard| key == format!("{shard}:{id}")), "{key}");
    let versions = (sample.begun.version.to_string(), sample.ended.version.to_string());
    let sha: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(include_str!("../src/redis/swap.lua"))
        .query(&mut plain)
        .unwrap();
    let (channel, mark) = (format!("{prefix}:changes"), ledger.identity().mark());
    runtime.block_on(async {
        let link = client.get_multiplexed_async_connection().await.unwrap();
        raw(callers, async |n| {
            let new = id_of(n);
            let shard = &shards[usize::try_from(n).unwrap() % shards.len()];
            let (key, body) = (format!("{shard}:{new}"), format!("{shard}:{new}:body"));
            for (expected, value) in [("", &begun), (versions.0.as_str(), &ended)] {
                let value = value.replace(&id, &new);
                let mut link = link.clone();
                let written: i64 = redis::cmd("EVALSHA")
                    .arg(&sha)
                    .arg(3)
                    .arg(&key)
                    .arg(&body)
                    .arg(shard)
                    .arg(&new)
                    .arg(expected)
                    .arg(&value)
                    .arg("")
                    .arg(&channel)
                    .arg(n)
                    .arg(&mark)
                    .arg(0)
                    .query_async(&mut link)
                    .await
                    .unwrap();
                assert!(written > 0);
            }
        })
        .await
    })
}

/// Runs `act` with `callers` callers for one round.
async fn raw(callers: usize, act: impl AsyncFn(u64)) -> Figures {
    let begun = Instant::now();
    let end = begun + ROUND;
    let next = std::cell::Cell::new(0);
    let caller = async || {
        let mut micros = Vec::new();
        while Instant::now() < end {
            let start = Instant::now();
            act(next.replace(next.get() + 1)).await;
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
        micros
    };
    let micros = join_all((0..callers).map(|_| caller())).await.concat();
    Figures { seconds: begun.elapsed().as_secs_f64(), micros }
}

fn growth(only: &str, limit: u64) {
    let sizes = || [10_000, 100_000, 1_000_000, 10_000_000].into_iter().filter(move |size| *size <= limit);
    if "postgres".contains(only) {
        let server = Postgres::start_with(&[("shared_buffers", "2GB"), ("max_wal_size", "8GB")]);
        let url = server.fresh();
        let schema = url.split_once("?schema=").unwrap().1;
        grow("postgres", &url, sizes(), &|from, to| multiply(&server, schema, from, to));
        drop(server.sql(&format!("DROP SCHEMA {schema} CASCADE")));
    }
    if "redis".contains(only) {
        let server = Redis::start_with(&[("auto-aof-rewrite-percentage", "0")]);
        // Redis keeps its records in memory, about 1.1 KB each.
        let sizes = sizes().map(|size| size.min(3_000_000));
        grow("redis", &server.fresh(), sizes, &|_, _| {});
    }
}

/// Expires results from another store, as `once gc` does, during calls. The callers are measured without it as well.
fn gc(records: u64) {
    const CALLERS: usize = 16;
    let server = Postgres::start_with(&[("shared_buffers", "1GB"), ("max_wal_size", "8GB")]);
    let url = server.fresh();
    // Opened this way, no store expires anything automatically.
    let bare = || Ledger::new(PostgresStore::open(PostgresOptions::parse(&url).unwrap()).unwrap());
    let ledger = bare();
    fill(&ledger, 0, 1);
    let schema = url.split_once("?schema=").unwrap().1;
    multiply(&server, schema, 0, records);
    drop(server.sql(&format!("UPDATE {schema}.operation SET due_ms = place WHERE due_ms IS NOT NULL")));
    drop(server.sql(&format!("VACUUM ANALYZE {schema}.operation")));
    // Each round of callers has its own operations.
    let calls = |round: u64| {
        let end = Instant::now() + ROUND;
        let blocking = ledger.blocking();
        let each = |caller: u64| {
            let first = 1_000_000_000 + round * 100_000_000 + caller * 1_000_000;
            timed((first..).take_while(|_| Instant::now() < end), |n| call(&blocking, n)).micros
        };
        let micros = std::thread::scope(|scope| {
            let each = &each;
            let callers: Vec<_> = (0..CALLERS as u64).map(|n| scope.spawn(move || each(n))).collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        Figures { seconds: ROUND.as_secs_f64(), micros }
    };
    print_line("onceward on postgres", "first, without gc", CALLERS, 1, &calls(1));
    let sweeper = bare();
    std::thread::scope(|scope| {
        let sweeping = scope.spawn(|| {
            let begun = Instant::now();
            let swept = pollster::block_on(sweeper.admin().sweep(|_| {})).unwrap();
            Figures { seconds: begun.elapsed().as_secs_f64(), micros: vec![0.0; swept.expired as usize] }
        });
        let mut round = 2;
        while !sweeping.is_finished() {
            print_line("onceward on postgres", "first, beside gc", CALLERS, round, &calls(round as u64));
            round += 1;
        }
        print_line("onceward on postgres", "expired", 1, 1, &sweeping.join().unwrap());
    });
}

/// The distance between records that the ledger itself creates and that are replayed. They are spread over all
/// records.
const EVERY: u64 = 50;

/// Creates the records between two real ones as copies of the newest one, with their own ids. This is a thousand
/// times faster.
fn multiply(server: &Postgres, schema: &str, from: u64, to: u64) {
    drop(server.sql(&format!(
        "INSERT INTO {schema}.operation (id, version, attempt, created_ms, updated_ms, due_ms, state, origin, scope, \
         name, key, detail, outcome) SELECT 'op_' || translate(md5(n::text), '0189', 'wxyz'), version, attempt, \
         created_ms, updated_ms, due_ms + n, state, origin, scope, name, key || n, detail, outcome \
         FROM (SELECT * FROM {schema}.operation WHERE state = 'done' ORDER BY place DESC LIMIT 1) newest, \
         generate_series({from}, {to} - 1) n"
    )));
}

/// Fills a ledger to each of the sizes, and measures there. `multiply` creates most of the records.
fn grow(peer: &str, url: &str, sizes: impl Iterator<Item = u64>, multiply: &dyn Fn(u64, u64)) {
    // No cache, so that every replay goes to the server.
    let mut place = StoreUrl::parse(url).unwrap();
    match &mut place {
        StoreUrl::Postgres(options) => options.cache_bytes = 0,
        StoreUrl::Redis(options) => options.cache_bytes = 0,
        StoreUrl::Sqlite(_) | StoreUrl::Http(_) | StoreUrl::Memory => {
            unreachable!("fleets are on database servers")
        }
    }
    let store = place.open(IfMissing::Create).unwrap();
    let ledger = Ledger::new(store.clone());
    let mut records = 0;
    for size in sizes {
        if peer == "postgres" {
            let chunk = (size - records) / 10;
            for from in (records..size).step_by(usize::try_from(chunk).unwrap()) {
                fill(&ledger, from / EVERY, (from + chunk) / EVERY);
                multiply(from, from + chunk);
            }
        } else {
            fill(&ledger, records, size);
        }
        records = size;
        // Let the background work of the filling finish before measuring.
        std::thread::sleep(Duration::from_secs(5));
        let blocking = ledger.blocking();
        let print = |what: &str, figures: &Figures| {
            print_line(&format!("onceward on {peer}"), &format!("{what} at {size} records"), 1, 1, figures);
        };
        let from = 1_000_000_000 + size * 10;
        print("first", &timed(from..from + 2_000, |n| call(&blocking, n)));
        let real = if peer == "postgres" { size / EVERY } else { size };
        let step = usize::try_from((real / 2_000).max(1)).unwrap();
        print("replay", &timed((0..real).step_by(step), |n| call(&blocking, n)));
        let filter = Filter { limit: 100, ..Filter::default() };
        print(
            "list of 100",
            &timed(0..200, |_| assert_eq!(pollster::block_on(store.list(&filter)).unwrap().len(), 100)),
        );
        let open = Filter { states: vec![State::InDoubt, State::Running], limit: 100, ..Filter::default() };
        print(
            "list of what is open",
            &timed(0..200, |_| drop(pollster::block_on(store.list(&open)).unwrap())),
        );
        let far_ms = ledger.clock_ms() * 2;
        print(
            "due, 100",
            &timed(0..200, |_| {
                assert_eq!(pollster::block_on(store.due(far_ms, 100)).unwrap().len(), 100);
            }),
        );
    }
}
