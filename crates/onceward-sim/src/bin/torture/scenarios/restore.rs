//! A backup is restored and declared with `once restored`, and all callers retry everything. Operations since the
//! backup are in doubt and not done again; those that may be repeated or have a probe continue.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::in_parallel;
use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::{Bench, Case};
use crate::crew::{Crew, Outcome, WorkerReply, judge, labels};
use crate::engine::{Engine, Server};
use crate::report::{Rule, Tally};
use crate::worker::QUARANTINE_MS;

const ROUNDS: u64 = 3;
const PROCESSES: usize = 3;
const LABELS: usize = 40;
const SHORT_LABELS: usize = 10;

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let rounds = args.rounds.unwrap_or(if bench.short { 1 } else { ROUNDS });
    let back_ends = args.back_ends(&[BackEnd::Sqlite, BackEnd::Postgres, BackEnd::Redis]);
    let rows = Mutex::new(Vec::new());
    in_parallel("restore", &back_ends, 2, |back_end| {
        let mut all = Outcome::default();
        for _ in 0..rounds {
            let restore = Restore::new(bench, args.not_safe, back_end.name(), tally);
            let outcome = restore.run(*back_end);
            all.add(&outcome.map_err(|trouble| format!("{}: {trouble}", back_end.name()))?);
        }
        rows.lock().unwrap_or_else(PoisonError::into_inner).push(all.row(back_end.name()));
        Ok(())
    })?;
    tally.note(Outcome::head());
    rows.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().for_each(|row| tally.note(row));
    Ok(())
}

struct Restore<'a> {
    bench: &'a Bench,
    not_safe: bool,
    what: &'static str,
    tally: &'a Tally,
    before: Vec<String>,
    since: Vec<String>,
    never: Vec<String>,
}

impl<'a> Restore<'a> {
    fn new(bench: &'a Bench, not_safe: bool, what: &'static str, tally: &'a Tally) -> Self {
        let count = if bench.short { SHORT_LABELS } else { LABELS };
        let of = |when: &str| -> Vec<String> {
            let kinds = ["once", "idempotent", "probed", "derived"].into_iter();
            kinds.flat_map(|kind| labels(&format!("{kind}-{when}"), count)).collect()
        };
        Self { bench, not_safe, what, tally, before: of("before"), since: of("since"), never: of("never") }
    }

    fn run(&self, back_end: BackEnd) -> Result<Outcome, Trouble> {
        let case = self.bench.case()?;
        let mut engine = Engine::start(back_end, &case)?;
        let mut said = Crew::call_each(self.bench, &case, &engine.url, &self.before, PROCESSES)?;
        // The ledger's own time before the backup begins: later writes may be missing from it.
        let at = rfc3339_now(&engine.url)?;
        let copy = engine.copy()?;
        let known: Vec<String> = [&self.before[..], &self.since[..]].concat();
        let crew = Crew::start(self.bench, &case, &engine.url, &known, PROCESSES)?;
        let done = Crew::call_each(self.bench, &case, &engine.url, &known, PROCESSES)?;
        said.extend(done);
        // A file is restored while no process has it open; a server, while processes do.
        let (ended, open) = match engine.server {
            Server::File => (crew.end()?, None),
            Server::Postgres(_) | Server::Redis(_) | Server::Cluster { .. } => (Vec::new(), Some(crew)),
        };
        said.extend(ended);
        engine.put_back(&copy)?;
        self.tally.faults(1);
        if !self.not_safe {
            self.declare(&case, &engine.url, &at)?;
        }
        if let Some(crew) = open {
            said.extend(self.end_of_the_old(crew)?);
        }
        let all: Vec<String> = [&known[..], &self.never[..]].concat();
        for quarantine_is_over in [false, true] {
            let retried = Crew::call_each(self.bench, &case, &engine.url, &all, PROCESSES)?;
            self.judge_retries(&retried, quarantine_is_over);
            said.extend(retried);
            std::thread::sleep(Duration::from_millis(QUARANTINE_MS));
        }
        remove(&copy);
        judge(&case.effects, &said, self.what, self.tally)
    }

    /// Runs `once restored --at TIME`, as documented.
    fn declare(&self, case: &Case, url: &str, at: &str) -> Result<(), Trouble> {
        let mut once = Command::new(&self.bench.once);
        once.args(["--ledger", url, "restored", "--at", at]).current_dir(&case.folder);
        once.env_remove("ONCE_CONFIG").env("XDG_CONFIG_HOME", &case.folder);
        let output = once.output()?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("`once restored` ended with {}: {words}", output.status).into())
    }

    /// Checks that processes that had it open before the restore run nothing more.
    fn end_of_the_old(&self, crew: Crew) -> Result<Vec<WorkerReply>, Trouble> {
        crew.moment("restored")?;
        let replaced = |said: &WorkerReply| said.moment == "restored" && said.code == "LEDGER_REPLACED";
        let told = crew.wait_for_each(replaced)?;
        self.tally.expect(told, || format!("{}: an old handle was not told LEDGER_REPLACED", self.what));
        let said = crew.end()?;
        for one in said.iter().filter(|said| said.moment == "restored" && said.ran) {
            let told = format!("{}: {} ran on a handle from before the restore", self.what, one.label);
            self.tally.violated(Rule::NoIntent, told);
        }
        Ok(said)
    }

    /// Operations in the backup are replayed; lost ones are in doubt, and their class decides. A probe's "no" counts
    /// only when a request sent before the restore can no longer be in flight. The quarantine of an operation begins
    /// when the first caller asks for it, so the first answer is a doubt however slow the machine is.
    fn judge_retries(&self, said: &[WorkerReply], quarantine_is_over: bool) {
        if !quarantine_is_over {
            for label in self.never.iter().filter(|label| label.starts_with("probed-")) {
                let doubted = said.iter().any(|one| one.label == *label && one.code == "IN_DOUBT");
                self.tally.expect(doubted, || {
                    format!("{}: {label} ran after the restore without a quarantine", self.what)
                });
            }
        }
        for one in said {
            let lost = !one.label.contains("-before-");
            let in_doubt = lost && (one.label.starts_with("once-") || one.label.starts_with("derived-"));
            let expected = if in_doubt { "IN_DOUBT" } else { "done" };
            let early =
                !quarantine_is_over && one.label.starts_with("probed-never-") && one.code == "IN_DOUBT";
            let fits = early || one.code == expected || one.code == "IN_PROGRESS";
            self.tally.expect(fits, || {
                format!("{}: {} after the restore: {} {}", self.what, one.label, one.code, one.words)
            });
            self.tally.ended(&format!("retry {}", one.code));
        }
    }
}

fn rfc3339_now(url: &str) -> Result<String, Trouble> {
    let ledger = onceward::Ledger::new(onceward_store::open(url)?);
    Ok(onceward::rfc3339(ledger.clock_ms()))
}

/// A copy of a server's data is outside the case. If it cannot be removed now, it is removed with the process.
fn remove(copy: &Path) {
    drop(if copy.is_dir() { std::fs::remove_dir_all(copy) } else { std::fs::remove_file(copy) });
}
