//! The clock of a ledger's server is set forwards and backwards while owners are alive and results are stored.
//! Nothing happens twice: no owner is overtaken, no result expires early.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onceward_testkit::{Postgres, Redis};

use super::in_parallel;
use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::Bench;
use crate::crew::{Crew, Outcome, WorkerReply, judge, labels};
use crate::process::PATIENCE;
use crate::report::Tally;

const MINUTE_S: i64 = 60;
const HOUR_S: i64 = 60 * MINUTE_S;
const DAY_S: i64 = 24 * HOUR_S;
/// Each entry is one round, in which the clock is set to these offsets in order.
const STEPS_S: [&[i64]; 6] =
    [&[20], &[-20], &[HOUR_S, 2 * HOUR_S], &[-HOUR_S], &[25 * HOUR_S], &[32 * DAY_S, 0]];
const SHORT_STEPS_S: [&[i64]; 1] = [&[25 * HOUR_S, -20, 32 * DAY_S]];
/// Processes with live owners, two each; and other processes that call the same operations.
const OWNERS: usize = 2;
const CALLERS: usize = 2;
const LONG: usize = 4;
const DERIVED: usize = 20;

/// A server whose clock can be set.
enum Server {
    Postgres(Postgres),
    Redis(Redis),
}

impl Server {
    fn set_clock(&self, ahead_s: i64) {
        match self {
            Self::Postgres(server) => server.set_clock(ahead_s),
            Self::Redis(server) => server.set_clock(ahead_s),
        }
    }

    /// Sets the ledger's own time to the server's clock, as if that were trusted: this switches the protection off.
    fn trust_clock(&self, url: &str, ahead_s: i64) -> Result<(), Trouble> {
        let name = url.split('=').next_back().unwrap_or_default();
        let key = format!("{{{name}:0}}:ledger");
        let stored = match self {
            Self::Postgres(server) => {
                server.sql(&format!("select value from {name}.meta where name = 'clock'"))
            }
            Self::Redis(server) => server.cli(&["HGET", &key, "clock"]),
        };
        // The ledger's time, the time since boot at that moment, and the boot.
        let (at_ms, rest) = stored.split_once(' ').ok_or("the ledger has no time")?;
        let mark = format!("{} {rest}", at_ms.parse::<i64>()? + ahead_s * 1_000);
        match self {
            Self::Postgres(server) => {
                drop(server.sql(&format!("update {name}.meta set value = '{mark}' where name = 'clock'")));
            }
            Self::Redis(server) => drop(server.cli(&["HSET", &key, "clock", &mark])),
        }
        Ok(())
    }

    fn fresh(&self) -> String {
        match self {
            Self::Postgres(server) => server.fresh(),
            Self::Redis(server) => server.fresh(),
        }
    }
}

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let rounds: &[&[i64]] = if bench.short { &SHORT_STEPS_S } else { &STEPS_S };
    let back_ends = args.back_ends(&[BackEnd::Postgres, BackEnd::Redis]);
    let rows = Mutex::new(Vec::new());
    in_parallel("server-clock", &back_ends, 2, |back_end| {
        let server = match back_end {
            BackEnd::Postgres => Server::Postgres(Postgres::start_with_clock()),
            BackEnd::Redis => Server::Redis(Redis::start_with_clock()),
            BackEnd::Sqlite | BackEnd::RedisCluster | BackEnd::Http => return Ok(()),
        };
        for steps_s in rounds {
            let what = format!("{}, {steps_s:?} s", back_end.name());
            let outcome = one(bench, &server, steps_s, args.not_safe, &what, tally);
            let row = outcome.map_err(|trouble| format!("{what}: {trouble}"))?.row(&what);
            rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
        }
        Ok(())
    })?;
    tally.note(Outcome::head());
    rows.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().for_each(|row| tally.note(row));
    Ok(())
}

/// Sets the clock while owners are alive. Processes with an open ledger and processes that open it afterwards call
/// everything.
fn one(
    bench: &Bench,
    server: &Server,
    steps_s: &[i64],
    not_safe: bool,
    what: &str,
    tally: &Tally,
) -> Result<Outcome, Trouble> {
    server.set_clock(0);
    let case = bench.case()?;
    let url = server.fresh();
    let (derived, long) = (labels("derived", DERIVED), labels("long", LONG));
    let all: Vec<String> = [&derived[..], &long[..]].concat();
    let mut said = Crew::call_each(bench, &case, &url, &derived, 2)?;
    let callers = Crew::start(bench, &case, &url, &derived, CALLERS)?;
    let mut owners = Crew::begin_each(bench, &case, &url, &long, OWNERS)?;
    wait_until_begun(&owners, &long)?;
    let mut later = Vec::new();
    for step_s in steps_s {
        server.set_clock(*step_s);
        if not_safe {
            server.trust_clock(&url, *step_s)?;
        }
        tally.faults(1);
        std::thread::sleep(Duration::from_millis(200));
        later.push(Crew::begin_each(bench, &case, &url, &all, 1)?);
    }
    let begun = Instant::now();
    while !owners.has_ended()? {
        if begun.elapsed() > PATIENCE {
            return Err("the owners do not end".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for crew in later {
        said.extend(crew.end()?);
    }
    said.extend(owners.end()?);
    said.extend(callers.end()?);
    said.extend(Crew::call_each(bench, &case, &url, &all, 1)?);
    let fits = |said: &WorkerReply| said.is_done() || said.code == "IN_PROGRESS";
    for one in said.iter().filter(|said| !fits(said)) {
        tally.expect(false, || format!("{what}: {} got {}: {}", one.label, one.code, one.words));
    }
    judge(&case.effects, &said, what, tally)
}

fn wait_until_begun(owners: &Crew, labels: &[String]) -> Result<(), Trouble> {
    let begun = Instant::now();
    while !labels.iter().all(|label| owners.has_begun(label)) {
        if begun.elapsed() > PATIENCE {
            return Err("the owners do not begin".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
