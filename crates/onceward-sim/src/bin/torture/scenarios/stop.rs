//! Many callers in one scope, and `once stop` at a random moment: after it has returned no effect begins, and its
//! settlement is what the downstream counted.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use onceward::{Code, Failure, Ledger, Operation};
use onceward_sim::random::Random;
use onceward_testkit::{Postgres, Redis};
use serde_json::Value;

use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::{Bench, Case, progress};
use crate::downstream;
use crate::report::{Rule, Tally};

/// The first argument that makes this program one of the callers.
pub(crate) const ROLE: &str = "stopped";

const ALL: [BackEnd; 3] = [BackEnd::Sqlite, BackEnd::Postgres, BackEnd::Redis];
const PROCESSES: usize = 4;
const THREADS: usize = 8;
/// The stop comes after at most this many effects.
const MOST_BEFORE: usize = 120;
/// How long a round may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let mut random = Random::seeded(bench.seed);
    for back_end in args.back_ends(&ALL) {
        let full = if back_end == BackEnd::Sqlite { 500 } else { 100 };
        let rounds = args.rounds.unwrap_or(if bench.short { 3 } else { full });
        let case = bench.case()?;
        let mut on = |url: &str| -> Result<(), Trouble> {
            let begun = Instant::now();
            for round in 0..rounds {
                progress(&format!("stop on {}, round {} of {rounds}", back_end.name(), round + 1));
                Round { bench, tally, case: &case, url, name: format!("{}-{round}", back_end.name()) }
                    .run(random.index(MOST_BEFORE))?;
            }
            let seconds = begun.elapsed().as_secs_f64();
            tally.note(format!("{:<10} {rounds} rounds in {seconds:.1} s", back_end.name()));
            Ok(())
        };
        match back_end {
            BackEnd::Sqlite => on(&case.url())?,
            BackEnd::Postgres => on(&Postgres::start_with(&[("max_connections", "300")]).fresh())?,
            BackEnd::Redis | BackEnd::RedisCluster | BackEnd::Http => on(&Redis::start().fresh())?,
        }
    }
    Ok(())
}

/// One scope, from its first call to its settlement.
struct Round<'a> {
    bench: &'a Bench,
    tally: &'a Tally,
    case: &'a Case,
    url: &'a str,
    name: String,
}

impl Round<'_> {
    fn run(&self, moment: usize) -> Result<(), Trouble> {
        let effects = self.case.folder.join(format!("{}.effects", self.name));
        std::fs::write(&effects, "")?;
        let callers: Result<Vec<Child>, Trouble> =
            (0..PROCESSES).map(|number| self.start(&effects, number)).collect();
        let mut callers = callers?;
        let begun = Instant::now();
        while count(&effects)? < moment && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_micros(200));
        }
        let first = self.stop()?;
        let when_stopped = count(&effects)?;
        for caller in &mut callers {
            let status = caller.wait()?;
            self.tally.expect(status.success(), || format!("{}: a process ended with {status}", self.name));
        }
        let second = self.stop()?;
        self.judge(&first, &second, when_stopped, &effects)
    }

    fn start(&self, effects: &Path, number: usize) -> Result<Child, Trouble> {
        let mut command = Command::new(&self.bench.torture);
        command.args([ROLE, self.url]).arg(effects).args([&self.name, &number.to_string()]);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
    }

    /// The settlement that `once stop` prints.
    fn stop(&self) -> Result<Value, Trouble> {
        let mut command = Command::new(&self.bench.once);
        command.args(["--ledger", self.url, "--json", "stop", &self.name, "--wait", "60s"]);
        let said = command.env_remove("ONCE_CONFIG").current_dir(&self.case.folder).output()?;
        let words = || String::from_utf8_lossy(&said.stderr).into_owned();
        self.tally.expect(said.status.success(), || format!("{}: once stop: {}", self.name, words()));
        let answer: Value = serde_json::from_slice(&said.stdout)
            .map_err(|error| format!("{}: {error}: {}", self.name, words()))?;
        Ok(answer["data"].clone())
    }

    fn judge(
        &self,
        first: &Value,
        second: &Value,
        when_stopped: usize,
        effects: &Path,
    ) -> Result<(), Trouble> {
        let name = &self.name;
        let counted = downstream::lines(effects)?;
        let total: usize = counted.values().map(Vec::len).sum();
        if total != when_stopped {
            let late = format!("{name}: {when_stopped} effects when the stop returned, {total} in the end");
            self.tally.violated(Rule::NoIntent, late);
        }
        if let Some((id, twice)) = counted.iter().find(|(_, lines)| lines.len() > 1) {
            self.tally.violated(Rule::Duplicate, format!("{name}: {id}: {twice:?}"));
        }
        let sum = |key: &str| first["sums"][key].as_u64().unwrap_or(u64::MAX);
        let parts = ["done", "not_done", "in_doubt", "held", "running"].map(sum);
        self.tally
            .expect(sum("intended") == parts.iter().sum::<u64>(), || format!("{name}: {}", first["sums"]));
        self.tally.expect(sum("standing") == total as u64, || {
            format!("{name}: {total} effects, and the settlement says {}", first["sums"])
        });
        for line in first["lines"].as_array().into_iter().flatten() {
            let is_there = counted.contains_key(line["operation"].as_str().unwrap_or_default());
            match (line["fate"].as_str(), is_there) {
                (Some("standing"), false) => self.tally.violated(Rule::FalseDone, format!("{name}: {line}")),
                (Some("failed" | "cancelled"), true) => {
                    self.tally.violated(Rule::FalseFailed, format!("{name}: {line}"));
                }
                (fate, _) => self.tally.ended(fate.unwrap_or("?")),
            }
        }
        self.tally.expect(first == second, || format!("{name}: the second stop has another settlement"));
        self.tally.cases(1);
        self.tally.faults(1);
        self.tally.effects(total);
        Ok(std::fs::remove_file(effects)?)
    }
}

fn count(effects: &Path) -> Result<usize, Trouble> {
    Ok(std::fs::read(effects)?.iter().filter(|byte| **byte == b'\n').count())
}

/// `stopped URL EFFECTS SCOPE NUMBER`: calls new operations on many threads until the scope is stopped.
pub(crate) fn call_until_stopped(words: impl Iterator<Item = String>) -> ExitCode {
    let words: Vec<String> = words.collect();
    let [url, effects, scope, number] = &words[..] else { return ExitCode::from(2) };
    match call_all(url, &PathBuf::from(effects), scope, number) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            drop(writeln!(std::io::stderr(), "{trouble}"));
            ExitCode::FAILURE
        }
    }
}

fn call_all(url: &str, effects: &Path, scope: &str, number: &str) -> Result<(), Trouble> {
    let ledger = &Ledger::new(onceward_store::open(url)?).blocking();
    std::thread::scope(|threads| {
        let callers: Vec<_> = (0..THREADS)
            .map(|thread| {
                threads.spawn(move || -> Result<(), Trouble> {
                    for call in 0_u64.. {
                        let key = format!("{number}-{thread}-{call}");
                        let operation = Operation::new("effect").scope(scope).key(key);
                        let called = ledger.run(operation, |attempt| {
                            let sent = attempt.dispatch()?;
                            let line =
                                format!("{} {} {}", attempt.operation(), attempt.number(), attempt.key());
                            downstream::append(effects, &line).map_err(Failure::in_doubt)?;
                            Ok(sent.created(&()))
                        });
                        match called {
                            Ok(_) => {}
                            Err(refused) if refused.code() == Code::Stopped => return Ok(()),
                            Err(refused) => return Err(refused.into()),
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        callers
            .into_iter()
            .try_for_each(|caller| caller.join().map_err(|_| Trouble::from("a thread panicked"))?)
    })
}
