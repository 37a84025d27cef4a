//! Kills `once undo` of a booking flow at every system call, and at random. A compensation runs at most once, never for
//! an effect that did not happen, and what the last answer says is true.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::process;
use crate::process::PATIENCE;
use crate::report::{Rule, Tally};
use crate::scenarios::in_parallel;
use crate::trace::{Follow, Log, strace};

/// How many kills run at once.
const THREADS: usize = 4;
/// How many random kills the long and the short form have.
const KILLS: u64 = 2_000;
const SHORT_KILLS: u64 = 24;
/// How many points of each sweep the short form takes.
const SHORT: usize = 10;
/// If more than one point in this many is missed, the sweep is incomplete.
const NOT_REACHED: u64 = 4;

/// The file that counts effects, for the commands.
const FILE: &str = "TORTURE_UNDO_EFFECTS";
/// An effect is one line, written with one system call.
const BOOK: &str =
    "echo \"$1\" >> \"$TORTURE_UNDO_EFFECTS\"; echo \"{\\\"data\\\":{\\\"id\\\":\\\"$1\\\"}}\"";
const UNBOOK: &str = "echo un-{data.id} >> \"$TORTURE_UNDO_EFFECTS\"";
/// The booking is there until its compensation has written its line.
const CAR_PROBE: &str =
    "grep -qx un-car \"$TORTURE_UNDO_EFFECTS\" && exit 10; grep -qx car \"$TORTURE_UNDO_EFFECTS\"";
/// Nothing of a local command is in flight after it has ended, and its lock shows that.
const POLICY: &str = "[defaults]\nquarantine = \"0s\"\nverify_deadline = \"0s\"\n";

/// A step of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its compensation is in doubt if it is killed.
    Plain,
    /// It has a probe, so a killed compensation can be settled.
    Probed,
    /// It failed without an effect.
    Failed,
}

const FLOW: [(&str, Kind); 5] = [
    ("flight", Kind::Plain),
    ("hotel", Kind::Plain),
    ("car", Kind::Probed),
    ("payment", Kind::Failed),
    ("mail", Kind::Plain),
];

/// Where to kill.
enum Point {
    Call { follow: Follow, call: String, when: u64 },
    After { wait: Duration, whole: Whole },
}

/// What a random kill ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    /// Only `once`; the compensation keeps running.
    Wrapper,
    /// Both.
    Group,
}

pub(super) fn run(bench: &Bench, kills: Option<u64>, tally: &Tally) -> Result<(), Trouble> {
    let template = booked(bench)?;
    for follow in [Follow::MainThread, Follow::All] {
        let points = points(bench, &template, follow)?;
        let label = format!("undo: {}", if follow == Follow::All { "any thread" } else { "the main thread" });
        in_parallel(&label, &points, THREADS, |point| kill_at(bench, &template, point, tally))?;
    }
    let (cases, faults) = tally.cases_and_faults();
    tally.expect((cases - faults) * NOT_REACHED < cases, || {
        format!("only {faults} of {cases} points were reached")
    });
    let kills = kills.unwrap_or(if bench.short { SHORT_KILLS } else { KILLS });
    let points = random_points(bench, &template, kills)?;
    in_parallel("undo: at random", &points, THREADS, |point| kill_at(bench, &template, point, tally))
}

/// A ledger in which the flow has run.
fn booked(bench: &Bench) -> Result<Case, Trouble> {
    let case = bench.case()?;
    std::fs::write(case.folder.join("onceward.toml"), POLICY)?;
    for (name, kind) in FLOW {
        let mut run = once(bench, &case);
        run.args(["run", "--scope", "trip", "--name", name, "--key", name, "--undo", UNBOOK]);
        let script = match kind {
            Kind::Plain => BOOK,
            Kind::Probed => {
                run.args(["--probe", CAR_PROBE]);
                BOOK
            }
            Kind::Failed => {
                run.arg("--fail-exit=3");
                "exit 3"
            }
        };
        run.args(["--", "sh", "-c", script, "sh", name]).output()?;
    }
    let made = effects(&case)?;
    if made.len() == 4 && made.values().all(|count| *count == 1) {
        return Ok(case);
    }
    Err(format!("the flow left {made:?}").into())
}

fn once(bench: &Bench, case: &Case) -> Command {
    on(Command::new(&bench.once), case)
}

fn on(mut command: Command, case: &Case) -> Command {
    command.args(["--ledger", &case.url()]).arg("--config").arg(case.folder.join("onceward.toml"));
    command.current_dir(&case.folder).env("XDG_CONFIG_HOME", &case.folder).env(FILE, &case.effects);
    command.stdin(Stdio::null());
    command
}

const UNDO: [&str; 4] = ["undo", "--scope", "trip", "--stored"];

fn undo_behind(mut tracer: Command, bench: &Bench, case: &Case) -> Command {
    tracer.arg(&bench.once);
    let mut command = on(tracer, case);
    command.args(UNDO);
    command
}

/// Every system call of a clean undo.
fn points(bench: &Bench, template: &Case, follow: Follow) -> Result<Vec<Point>, Trouble> {
    let case = bench.copy(template)?;
    let log = case.folder.join("strace.log");
    undo_behind(strace(&log, follow, None), bench, &case).output()?;
    let calls = Log::read(&log, follow)?.calls();
    let point = |call: &str, when| Point::Call { follow, call: call.to_owned(), when };
    let all: Vec<Point> =
        calls.iter().flat_map(|(call, most)| (1..=*most).map(move |when| point(call, when))).collect();
    if !bench.short {
        return Ok(all);
    }
    let step = all.len().div_ceil(SHORT);
    let first = bench.random("undo").index(step);
    Ok(all.into_iter().skip(first).step_by(step).collect())
}

/// Kills at random times, up to the time that a clean undo takes.
fn random_points(bench: &Bench, template: &Case, kills: u64) -> Result<Vec<Point>, Trouble> {
    let case = bench.copy(template)?;
    let begun = Instant::now();
    once(bench, &case).args(UNDO).output()?;
    let most = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut random = bench.random("undo at random");
    let point = |_| {
        let wait = Duration::from_micros(random.below(most));
        Point::After { wait, whole: if random.permille(500) { Whole::Wrapper } else { Whole::Group } }
    };
    Ok((0..kills).map(point).collect())
}

fn kill_at(bench: &Bench, template: &Case, point: &Point, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.copy(template)?;
    let (what, killed) = match point {
        Point::Call { follow, call, when } => {
            let log = case.folder.join("strace.log");
            let inject = format!("{call}:signal=KILL:when={when}");
            undo_behind(strace(&log, *follow, Some(&inject)), bench, &case).output()?;
            (format!("{call} {when} with {follow:?}"), Log::read(&log, *follow)?.killed())
        }
        Point::After { wait, whole } => {
            (format!("{whole:?} after {wait:?}"), kill_after(bench, &case, *wait, *whole)?)
        }
    };
    tally.case();
    tally.faults(u64::from(killed));
    judge(bench, &case, &what, tally)
}

fn kill_after(bench: &Bench, case: &Case, wait: Duration, whole: Whole) -> Result<bool, Trouble> {
    use std::os::unix::process::CommandExt;
    let mut command = once(bench, case);
    command.args(UNDO).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn()?;
    std::thread::sleep(wait);
    let pid = process::id(&child);
    process::send(if whole == Whole::Group { -pid } else { pid }, Signal::SIGKILL);
    Ok(!child.wait()?.success())
}

/// Checks the world after a kill, after a clean undo, and after the doubts were settled by what really happened.
fn judge(bench: &Bench, case: &Case, what: &str, tally: &Tally) -> Result<(), Trouble> {
    at_most_once(&effects(case)?, what, tally);
    let steps = undo_when_quiet(bench, case)?;
    let made = effects(case)?;
    at_most_once(&made, what, tally);
    let mut doubts = Vec::new();
    for (name, kind) in FLOW {
        let Some(step) = steps.iter().find(|step| step["name"] == name) else {
            tally.violated(Rule::Lost, format!("{what}: the undo does not name {name}"));
            continue;
        };
        let count = made.get(&format!("un-{name}")).copied().unwrap_or(0);
        let result = step["result"].as_str().unwrap_or_default();
        tally.ended(result);
        let undone = result == "undone" || step["reversal"] == "already_undone";
        match (kind, result) {
            (Kind::Failed, _) if count > 0 || result != "nothing_to_undo" => {
                tally.violated(Rule::FalseDone, format!("{what}: {name} did not happen and is {step}"));
            }
            (Kind::Failed, _) => {}
            (_, _) if undone && count != 1 => {
                tally.violated(
                    Rule::FalseDone,
                    format!("{what}: {name} has {count} compensations and is {step}"),
                );
            }
            (_, _) if undone => {}
            (_, "stands") => {
                tally.violated(Rule::Unexpected, format!("{what}: {name} stands after a clean undo: {step}"))
            }
            (Kind::Probed, _) => {
                tally.violated(
                    Rule::Unexpected,
                    format!("{what}: a probe can settle {name}, which is {step}"),
                );
            }
            (Kind::Plain, _) => {
                doubts.push((name, count, step["by"].as_str().unwrap_or_default().to_owned()))
            }
        }
        // No retry replays a success that may be gone.
        if kind != Kind::Failed {
            refused(bench, case, name, kind, what, tally)?;
        }
    }
    tally.figure("compensations in doubt", doubts.len() as u64);
    for (_, count, by) in &doubts {
        let verdict = if *count == 1 { "done" } else { "failed" };
        once(bench, case).args(["settle", by, "--as", verdict]).output()?;
    }
    let last = undo_when_quiet(bench, case)?;
    let made = effects(case)?;
    let complete = FLOW.iter().filter(|(_, kind)| *kind != Kind::Failed);
    let complete = complete.into_iter().all(|(name, _)| made.get(&format!("un-{name}")) == Some(&1));
    tally.expect(complete && last.iter().all(|step| step["evidence"] != "pending"), || {
        format!("{what}: after settling {doubts:?} there are {made:?} and {last:?}")
    });
    tally.effects(made.values().sum());
    Ok(())
}

fn at_most_once(made: &BTreeMap<String, usize>, what: &str, tally: &Tally) {
    for (line, count) in made.iter().filter(|(_, count)| **count > 1) {
        tally.violated(Rule::Duplicate, format!("{what}: {line} {count} times"));
    }
}

fn refused(
    bench: &Bench,
    case: &Case,
    name: &str,
    kind: Kind,
    what: &str,
    tally: &Tally,
) -> Result<(), Trouble> {
    let before = effects(case)?;
    let mut retry = once(bench, case);
    retry.args(["run", "--scope", "trip", "--name", name, "--key", name, "--undo", UNBOOK]);
    if kind == Kind::Probed {
        retry.args(["--probe", CAR_PROBE]);
    }
    let output = retry.args(["--", "sh", "-c", BOOK, "sh", name]).output()?;
    tally.expect(output.status.code() == Some(4) && effects(case)? == before, || {
        format!("{what}: a retry of {name} ended with {output:?}")
    });
    Ok(())
}

/// The steps of a clean undo, when no compensation that a kill left behind is running any more.
fn undo_when_quiet(bench: &Bench, case: &Case) -> Result<Vec<Value>, Trouble> {
    let begun = Instant::now();
    loop {
        let output = once(bench, case).arg("--json").args(UNDO).output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("an undo did not answer: {error} {output:?}"))?;
        let steps = answer["data"]["steps"].as_array().cloned().unwrap_or_default();
        let running =
            |step: &Value| step["reason"].as_str().is_some_and(|reason| reason.contains("still running"));
        if !steps.iter().any(running) || begun.elapsed() > PATIENCE {
            return Ok(steps);
        }
    }
}

/// How often each line was written.
fn effects(case: &Case) -> Result<BTreeMap<String, usize>, Trouble> {
    let mut lines = BTreeMap::new();
    for line in std::fs::read_to_string(&case.effects)?.lines() {
        *lines.entry(line.to_owned()).or_default() += 1;
    }
    Ok(lines)
}
