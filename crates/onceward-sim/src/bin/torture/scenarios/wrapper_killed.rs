//! `once run` is killed while its command is running, on a ledger with leases. Retries whose probe finds nothing must
//! not run meanwhile.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use onceward_testkit::{Postgres, Redis};

use super::in_parallel;
use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::{Bench, Case};
use crate::downstream;
use crate::judge;
use crate::process;
use crate::process::PATIENCE;
use crate::report::{Rule, Tally};

const ROUNDS: u64 = 3;
const KEYS: usize = 4;
const SHORT_KEYS: usize = 1;
/// Callers that retry each key; each call is its own process.
const RETRIES: usize = 2;
const TERMS: &str = "lease = \"2s\"\nquarantine = \"500ms\"";
/// Longer than lease and quarantine together.
const ORPHANED: Duration = Duration::from_secs(7);
/// The exit codes while the command is running: in progress, or in doubt.
const WAITING: [i32; 2] = [4, 79];

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let rounds = args.rounds.unwrap_or(if bench.short { 1 } else { ROUNDS });
    let back_ends = args.back_ends(&[BackEnd::Postgres, BackEnd::Redis]);
    let rows = Mutex::new(Vec::new());
    in_parallel("wrapper-killed", &back_ends, 2, |back_end| {
        // The server lives until the end of its match arm.
        let (postgres, redis) = match back_end {
            BackEnd::Postgres => (Some(Postgres::start()), None),
            BackEnd::Redis => (None, Some(Redis::start())),
            BackEnd::Sqlite | BackEnd::RedisCluster | BackEnd::Http => return Ok(()),
        };
        let fresh = || postgres.as_ref().map(Postgres::fresh).or_else(|| redis.as_ref().map(Redis::fresh));
        let mut sums = [0; 4];
        for _ in 0..rounds {
            let url = fresh().ok_or("there is no server")?;
            let case = bench.case()?;
            let policy = judge::policy(&case, TERMS)?;
            let killed = Killed { bench, case: &case, url: &url, policy, not_safe: args.not_safe, tally };
            let figures = killed.run(back_end.name())?;
            sums.iter_mut().zip(figures).for_each(|(sum, more)| *sum += more);
        }
        let [killed, calls, effects, second] = sums;
        let name = back_end.name();
        let row =
            format!("{name}: {killed} killed, {calls} retries, {effects} effects, {second} second effects");
        rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
        Ok(())
    })?;
    rows.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().for_each(|row| tally.note(row));
    Ok(())
}

struct Killed<'a> {
    bench: &'a Bench,
    case: &'a Case,
    url: &'a str,
    policy: PathBuf,
    not_safe: bool,
    tally: &'a Tally,
}

impl Killed<'_> {
    /// One round: returns how many were killed, retried, had an effect, and had a second one.
    fn run(&self, name: &str) -> Result<[u64; 4], Trouble> {
        let keys: Vec<String> =
            (0..if self.bench.short { SHORT_KEYS } else { KEYS }).map(|key| format!("key-{key}")).collect();
        let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        for key in &keys {
            self.start_and_kill(key)?;
        }
        std::thread::scope(|scope| {
            let retrying: Vec<_> = keys
                .iter()
                .flat_map(|key| std::iter::repeat_n(key, RETRIES))
                .map(|key| scope.spawn(|| self.retry(name, key, &over, &calls)))
                .collect();
            std::thread::sleep(ORPHANED);
            over.store(true, Ordering::SeqCst);
            retrying.into_iter().try_for_each(|thread| {
                thread.join().map_err(|_| Trouble::from("a thread of the test panicked"))?
            })
        })?;
        for key in &keys {
            std::fs::write(self.hold(key), "")?;
        }
        for key in &keys {
            self.settle(name, key, &calls)?;
        }
        let effects = downstream::count(&self.case.effects)?;
        let mut figures = [keys.len() as u64, calls.into_inner(), 0, 0];
        for (operation, attempts) in &effects {
            figures[2] += attempts.len() as u64;
            if attempts.len() > 1 {
                figures[3] += 1;
                let told = format!("{name}: {operation} had effects of attempts {attempts:?}");
                self.tally.violated(Rule::Duplicate, told);
            }
        }
        self.tally.cases(keys.len() as u64);
        self.tally.effects(usize::try_from(figures[2])?);
        self.tally.expect(effects.len() == keys.len(), || format!("{name}: {effects:?}"));
        Ok(figures)
    }

    fn hold(&self, key: &str) -> PathBuf {
        self.case.folder.join(format!("hold-{key}"))
    }

    fn command(&self, key: &str) -> Command {
        let mut once = Command::new(&self.bench.once);
        once.args(["--ledger", self.url, "run", "--name", "downstream", "--key", key, "--wait=0s"]);
        once.arg(format!("--config={}", self.policy.display()));
        once.args(["--probe", downstream::PROBE, "--probe-no=1", "--"]);
        once.arg(&self.bench.torture).arg(downstream::ROLE).current_dir(&self.case.folder);
        once.env_remove("ONCE_CONFIG").env("XDG_CONFIG_HOME", &self.case.folder);
        once.env(downstream::FILE, &self.case.effects);
        once.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        once
    }

    /// Starts a command that waits before its effect, and kills its wrapper.
    fn start_and_kill(&self, key: &str) -> Result<(), Trouble> {
        let hold = self.hold(key);
        let mut command = self.command(key);
        command.env(downstream::HOLD_BEFORE, &hold).stderr(Stdio::null());
        let mut wrapper: Child = command.spawn()?;
        let here = process::wait_for_file(&hold.with_extension(downstream::HERE), PATIENCE);
        let keepers: Vec<i32> =
            process::children(process::id(&wrapper)).into_iter().filter(|pid| is_keeper(*pid)).collect();
        wrapper.kill()?;
        wrapper.wait()?;
        here?;
        self.tally.faults(1);
        self.tally.expect(!keepers.is_empty(), || format!("{key}: no process keeps the lease"));
        if self.not_safe {
            // Now the lease is not renewed, and the scenario must find violations.
            keepers.into_iter().for_each(|pid| process::send(pid, Signal::SIGKILL));
        }
        Ok(())
    }

    /// Retries while the command is running and its probe finds nothing.
    fn retry(&self, name: &str, key: &str, over: &AtomicBool, calls: &AtomicU64) -> Result<(), Trouble> {
        while !over.load(Ordering::SeqCst) {
            let output = self.command(key).output()?;
            calls.fetch_add(1, Ordering::Relaxed);
            let waits = output.status.code().is_some_and(|code| WAITING.contains(&code));
            self.tally.expect(waits, || {
                let words = String::from_utf8_lossy(&output.stderr).into_owned();
                format!("{name}: {key} while its command lives: {} {words}", output.status)
            });
        }
        Ok(())
    }

    /// After the command has had its effect and ended, a retry learns that from the probe.
    fn settle(&self, name: &str, key: &str, calls: &AtomicU64) -> Result<(), Trouble> {
        let begun = Instant::now();
        loop {
            let output = self.command(key).output()?;
            calls.fetch_add(1, Ordering::Relaxed);
            if output.status.success() {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let words = String::from_utf8_lossy(&output.stderr).into_owned();
                self.tally.violated(Rule::Stuck, format!("{name}: {key}: {} {words}", output.status));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Whether a process is the one that `once run` starts beside the command to renew the lease.
fn is_keeper(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("keep-lease"))
}
