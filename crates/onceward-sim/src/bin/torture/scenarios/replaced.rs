//! The ledger is emptied, removed, or replaced by another one or an older state while callers have it open. Nothing
//! happens twice, and every caller gets an error that says so.

mod stage;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::in_parallel;
use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::Bench;
use crate::crew::{Crew, Outcome, WorkerReply, judge, labels};
use crate::report::{Rule, Tally};
use stage::{Later, Stage, Way};

const ROUNDS: u64 = 3;
const AT_ONCE: usize = 2;
const PROCESSES: usize = 3;
const LABELS: usize = 300;
/// How many effects there are before the older state is saved, and again before it is brought back.
const EFFECTS: usize = 60;
/// How long callers continue after all of them got the error.
const AFTER: Duration = Duration::from_millis(300);
const REPLACED: &str = "LEDGER_REPLACED";

/// The ways that the short form tries.
const SHORT: [(BackEnd, Way); 4] = [
    (BackEnd::Sqlite, Way::Removed),
    (BackEnd::Postgres, Way::Emptied),
    (BackEnd::Redis, Way::Emptied),
    (BackEnd::RedisCluster, Way::Emptied),
];

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let rounds = args.rounds.unwrap_or(if bench.short { 1 } else { ROUNDS });
    let all = [BackEnd::Sqlite, BackEnd::Postgres, BackEnd::Redis, BackEnd::RedisCluster];
    let jobs = args.back_ends(&all).into_iter().flat_map(|back_end| Way::ALL.map(|way| (back_end, way)));
    let jobs: Vec<(BackEnd, Way)> = jobs
        .filter(|job| !bench.short || SHORT.contains(job))
        .filter(|(back_end, way)| !args.not_safe || way.loses(*back_end))
        .collect();
    let rows = Mutex::new(BTreeMap::new());
    in_parallel("replaced", &jobs, AT_ONCE, |(back_end, way)| {
        let mut all = Outcome::default();
        let label = format!("{}, {}", back_end.name(), way.name(*back_end));
        for _ in 0..rounds {
            let outcome = one(bench, *back_end, *way, args.not_safe, &label, tally);
            all.add(&outcome.map_err(|trouble| format!("{label}: {trouble}"))?);
        }
        // If the protection is off, each way must cause second effects: otherwise the test could not find any.
        tally.expect(!args.not_safe || all.second_effects > 0, || format!("{label}: no second effect"));
        rows.lock().unwrap_or_else(PoisonError::into_inner).insert(label.clone(), all.row(&label));
        Ok(())
    })?;
    tally.note(Outcome::head());
    rows.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().for_each(|row| tally.note(row));
    Ok(())
}

/// One replacement under load, and its check.
fn one(
    bench: &Bench,
    back_end: BackEnd,
    way: Way,
    not_safe: bool,
    what: &str,
    tally: &Tally,
) -> Result<Outcome, Trouble> {
    let case = bench.case()?;
    let mut stage = Stage::set(back_end, way, &case)?;
    let url = stage.engine.url.clone();
    let labels = labels("once", LABELS);
    let crew = Crew::start(bench, &case, &url, &labels, PROCESSES)?;
    crew.wait_for_effects(&case, EFFECTS)?;
    stage.keep(&case)?;
    crew.wait_for_effects(&case, EFFECTS)?;
    stage.replace()?;
    crew.moment("replaced")?;
    tally.faults(1);
    let told = crew.wait_for_each(|said| said.moment == "replaced" && said.code == REPLACED)?;
    tally.expect(told, || format!("{what}: not every process got {REPLACED}"));
    std::thread::sleep(AFTER);
    let mut said = Vec::new();
    let later = way.later(back_end);
    if later != Later::Nothing && !not_safe {
        let url = if later == Later::Missing { format!("{url}&create=no") } else { url.clone() };
        let replies = Crew::call_each(bench, &case, &url, &labels, 1)?;
        judge_later(later, way.is_partial(back_end), &replies, what, tally);
        said.extend(replies);
    }
    let crew = crew.end()?;
    judge_crew(way.is_partial(back_end), &crew, what, tally);
    said.extend(crew);
    if not_safe {
        stage.open_anyway()?;
        said.extend(Crew::call_each(bench, &case, &url, &labels, PROCESSES)?);
    }
    judge(&case.effects, &said, what, tally)
}

/// Processes that had it open run nothing more, and every refusal has the right code.
fn judge_crew(is_partial: bool, said: &[WorkerReply], what: &str, tally: &Tally) {
    for one in said.iter().filter(|said| said.moment == "replaced" || said.moment == "over") {
        // The other shards of the ledger continue to work.
        if one.ran && !is_partial {
            let told = format!("{what}: {} ran after the ledger was replaced", one.label);
            tally.violated(Rule::NoIntent, told);
        }
    }
    let known = ["done", REPLACED, "LEDGER_UNAVAILABLE", "IN_DOUBT", "IN_PROGRESS"];
    for one in said.iter().filter(|said| !known.contains(&said.code.as_str())) {
        tally.violated(Rule::Unexpected, format!("{what}: {} {}: {}", one.label, one.code, one.words));
    }
}

/// Processes that open it later run nothing, and get an error that says why.
fn judge_later(later: Later, is_partial: bool, said: &[WorkerReply], what: &str, tally: &Tally) {
    let code = match later {
        Later::Replaced => REPLACED,
        Later::Unreadable | Later::Missing | Later::Nothing => "LEDGER_UNAVAILABLE",
    };
    let refused = said.iter().filter(|said| said.code == code).count();
    tally.expect(refused > 0, || format!("{what}: a process that opened it later was not told {code}"));
    for one in said {
        let known = one.is_done() || one.code == code || is_partial;
        tally.expect(known && !one.ran, || {
            format!("{what}: a later process: {} {}: {}", one.label, one.code, one.words)
        });
    }
}
