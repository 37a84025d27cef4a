//! The wall clock jumps by a day and by ten years, between runs and during one. The ledger's time does not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Ended};
use crate::downstream;
use crate::judge;
use crate::process;
use crate::report::Tally;

const JUMPS: [&str; 4] = ["+1d", "-1d", "+10y", "-10y"];
const DAY_MS: i64 = 86_400_000;

/// How the clocks that a process sees are changed.
struct Faked {
    library: PathBuf,
    file: PathBuf,
}

pub(super) fn run(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    let faked = Faked { library: library()?, file: case.folder.join("faketime") };
    faked.jump("+10y")?;
    let (wall, boot) = faked.clocks(bench)?;
    let (true_wall, true_boot) = clocks(Command::new(&bench.torture).arg(downstream::CLOCKS))?;
    let works = wall - true_wall > 300 * DAY_MS;
    tally.expect(works, || "faketime does not change the wall clock of a program".to_owned());
    let kept = (boot - true_boot).abs() < 60_000;
    tally.note(format!("faketime leaves CLOCK_BOOTTIME alone: {}", if kept { "yes" } else { "NO" }));
    tally.expect(kept, || format!("faketime moves CLOCK_BOOTTIME by {} ms too", boot - true_boot));
    for jump in JUMPS {
        between_runs(bench, &faked, jump, tally)?;
        during_a_run(bench, &faked, jump, tally)?;
        after_a_crash(bench, &faked, jump, tally)?;
    }
    Ok(())
}

/// What is done stays done and is replayed, by a given key and by a derived one.
fn between_runs(bench: &Bench, faked: &Faked, jump: &str, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    for call in [Call::new("given"), Call::derived()] {
        let what = format!("{jump} between runs, key {:?}", call.key);
        let first = call.run(bench, &case)?;
        faked.jump(jump)?;
        let there = faked.run(&call, bench, &case)?;
        // And a call that is made only in the other time, asked for in this one.
        let other = Call { key: call.key.clone().map(|key| format!("{key}-{jump}")), ..call.clone() }
            .argument("--scope=there");
        let made_there = faked.run(&other, bench, &case)?;
        let back = other.run(bench, &case)?;
        for (ended, expected) in [(&there, &first), (&back, &made_there)] {
            let same = ended.code == Some(0) && ended.stdout == expected.stdout;
            tally.expect(same, || format!("{what}: no replay: {}", ended.words()));
        }
    }
    finish(bench, &case, 4, &format!("{jump} between runs"), tally)
}

/// The clock jumps while the command runs: others wait for it and get its result.
fn during_a_run(bench: &Bench, faked: &Faked, jump: &str, tally: &Tally) -> Result<(), Trouble> {
    let what = format!("{jump} during a run");
    let case = bench.case()?;
    let policy = judge::policy(&case, "lease = \"1s\"")?;
    faked.jump("+0")?;
    let call = Call::new("running").argument(format!("--config={}", policy.display()));
    let owner = faked
        .command(&call.clone().takes(1_500, 0), bench, &case)
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    process::wait_for_child(process::id(&owner), Duration::from_secs(10))
        .ok_or("the command did not start")?;
    faked.jump(jump)?;
    let waiting = faked.run(&call, bench, &case)?;
    let refused = call.clone().argument("--wait=0s");
    tally.expect(waiting.code == Some(0), || format!("{what}: a waiter: {}", waiting.words()));
    let owned = Ended::from(owner.wait_with_output()?);
    tally.expect(owned.code == Some(0), || format!("{what}: the owner: {}", owned.words()));
    tally.expect(owned.stdout == waiting.stdout, || format!("{what}: the waiter got another output"));
    let again = refused.run(bench, &case)?;
    tally.expect(again.code == Some(0), || format!("{what}: afterwards: {}", again.words()));
    finish(bench, &case, 1, &what, tally)
}

/// What is in doubt stays in doubt, whatever time it is.
fn after_a_crash(bench: &Bench, faked: &Faked, jump: &str, tally: &Tally) -> Result<(), Trouble> {
    let what = format!("{jump} after a crash");
    let case = bench.case()?;
    let mut owner = Call::new("crashed").takes(0, 60_000).start(bench, &case)?;
    let limit = Duration::from_secs(10);
    let command = process::wait_for_child(process::id(&owner), limit).ok_or("the command did not start")?;
    while std::fs::metadata(&case.effects)?.len() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    process::send(process::id(&owner), nix::sys::signal::Signal::SIGKILL);
    process::send(command, nix::sys::signal::Signal::SIGKILL);
    owner.wait()?;
    faked.jump(jump)?;
    let retry = faked.run(&Call::new("crashed"), bench, &case)?;
    tally.expect(retry.code == Some(79), || format!("{what}: {}", retry.words()));
    finish(bench, &case, 1, &what, tally)
}

fn finish(bench: &Bench, case: &Case, expected: usize, what: &str, tally: &Tally) -> Result<(), Trouble> {
    let (_, effects) = judge::judge(bench, case, tally, what)?;
    let count: usize = effects.values().map(Vec::len).sum();
    tally.case();
    tally.faults(1);
    tally.effects(count);
    tally.expect(count == expected, || format!("{what}: {count} effects, {expected} were wanted"));
    Ok(())
}

impl Faked {
    /// Lets the clock jump, of processes that run as well.
    fn jump(&self, by: &str) -> Result<(), Trouble> {
        Ok(std::fs::write(&self.file, format!("{by}\n"))?)
    }

    fn command(&self, call: &Call, bench: &Bench, case: &Case) -> Command {
        let mut command = call.command(bench, case);
        self.add_to(&mut command);
        command
    }

    fn run(&self, call: &Call, bench: &Bench, case: &Case) -> Result<Ended, Trouble> {
        Ok(Ended::from(self.command(call, bench, case).output()?))
    }

    fn clocks(&self, bench: &Bench) -> Result<(i64, i64), Trouble> {
        let mut command = Command::new(&bench.torture);
        self.add_to(command.arg(downstream::CLOCKS));
        clocks(&mut command)
    }

    fn add_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}

fn clocks(command: &mut Command) -> Result<(i64, i64), Trouble> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (wall, boot) = text.trim().split_once(' ').ok_or("the clocks were not told")?;
    Ok((wall.parse()?, boot.parse()?))
}

/// Where faketime keeps its library for programs with threads.
fn library() -> Result<PathBuf, Trouble> {
    for folder in ["/usr/lib", "/usr/local/lib"] {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        let folders = entries.flatten().map(|entry| entry.path()).chain([Path::new(folder).to_owned()]);
        for folder in folders {
            let library = folder.join("faketime/libfaketimeMT.so.1");
            if library.exists() {
                return Ok(library);
            }
        }
    }
    Err("faketime is needed (apt-get install faketime)".into())
}
