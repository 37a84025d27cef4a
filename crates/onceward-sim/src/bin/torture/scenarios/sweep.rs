//! Kills `once run` at every system call of begin, dispatch and finish; then kills its recovery at every one as well.

mod states;

use std::collections::BTreeMap;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Class};
use crate::judge::{self, Seen, state_of};
use crate::report::{Rule, Tally};
use crate::scenarios::in_parallel;
use crate::trace::{Dispatched, Follow, Log, strace};
use states::{KEY, Start};

/// How many kills run at once.
const THREADS: usize = 4;
/// Runs differ slightly, so some points are not reached. If more than one in this many is missed, the sweep is
/// incomplete.
const NOT_REACHED: u64 = 10;
/// How many points of each sweep the short form takes.
const SHORT: usize = 8;

/// Where to kill.
struct Point {
    follow: Follow,
    call: String,
    when: u64,
}

pub(super) fn run(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    for start in Start::ALL {
        let template = start.prepare(bench)?;
        for follow in [Follow::MainThread, Follow::All] {
            let points = points(bench, &template, start, follow)?;
            let label = format!("sweep: {}, {}", start.words(), words(follow));
            in_parallel(&label, &points, THREADS, |point| kill_at(bench, &template, start, point, tally))?;
        }
    }
    let (cases, faults) = tally.cases_and_faults();
    tally.expect((cases - faults) * NOT_REACHED < cases, || {
        format!("only {faults} of {cases} points were reached")
    });
    Ok(())
}

/// Every system call of a clean run.
fn points(bench: &Bench, template: &Case, start: Start, follow: Follow) -> Result<Vec<Point>, Trouble> {
    let case = bench.copy(template)?;
    let log = case.folder.join("strace.log");
    start.call().behind(strace(&log, follow, None), bench, &case).output()?;
    let calls = Log::read(&log, follow)?.calls();
    // strace counts each system call of each thread separately, so all counts of all calls cover every boundary.
    let point = |call: &str, when| Point { follow, call: call.to_owned(), when };
    let all: Vec<Point> =
        calls.iter().flat_map(|(call, most)| (1..=*most).map(move |when| point(call, when))).collect();
    if !bench.short {
        return Ok(all);
    }
    let step = all.len().div_ceil(SHORT);
    let first = bench.random(start.words()).index(step);
    Ok(all.into_iter().skip(first).step_by(step).collect())
}

fn kill_at(
    bench: &Bench,
    template: &Case,
    start: Start,
    point: &Point,
    tally: &Tally,
) -> Result<(), Trouble> {
    let case = bench.copy(template)?;
    let log = case.folder.join("strace.log");
    let inject = format!("{}:signal=KILL:when={}", point.call, point.when);
    let what = format!("{}, {} {} in {}", start.words(), point.call, point.when, words(point.follow));
    start.call().behind(strace(&log, point.follow, Some(&inject)), bench, &case).output()?;
    let log = Log::read(&log, point.follow)?;
    tally.case();
    if log.killed() {
        tally.faults(1);
    }
    let (seen, _) = judge::judge(bench, &case, tally, &what)?;
    let state = state_of(&seen, KEY);
    let dispatched = log.dispatched();
    tally.ended(&state);
    if log.killed() && dispatched == Dispatched::No && state == "in_doubt" && !start.in_doubt() {
        tally.violated(Rule::NeedlessDoubt, format!("{what}: {seen:?}"));
    }
    tally.expect(log.killed() || state == "done" || start.refused(), || {
        format!("{what}: a clean run left it {state}")
    });
    recover(bench, &case, start, &state, &what, tally)
}

/// A clean retry: everything that was not in doubt is done afterwards, with one effect in total.
fn recover(
    bench: &Bench,
    case: &Case,
    start: Start,
    state: &str,
    what: &str,
    tally: &Tally,
) -> Result<(), Trouble> {
    let retry = start.call().run(bench, case)?;
    let what = format!("{what}, then a retry");
    let (seen, effects) = judge::judge(bench, case, tally, &what)?;
    let count = effects_of(&seen, &effects);
    tally.effects(count);
    let stays = state == "in_doubt" && start.call().class == Class::Once;
    let (code, states) = if stays { (79, "in_doubt") } else { (0, "done") };
    let now = state_of(&seen, KEY);
    let right = retry.code == Some(code) && now == states && (stays || count == 1);
    tally.expect(right, || format!("{what}: {state} became {now} with {count} effects, {}", retry.words()));
    Ok(())
}

fn effects_of(seen: &[Seen], effects: &BTreeMap<String, Vec<u32>>) -> usize {
    let ours = seen.iter().find(|seen| seen.key == KEY);
    ours.and_then(|seen| effects.get(&seen.id)).map_or(0, Vec::len)
}

const fn words(follow: Follow) -> &'static str {
    match follow {
        Follow::MainThread => "the main thread",
        Follow::All => "any thread or the command",
    }
}

/// The swept call.
fn call(class: Class) -> Call {
    Call::new(KEY).class(class)
}
