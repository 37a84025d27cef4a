//! The wall clock jumps by a day and by ten years, between runs and during one. The ledger's time does not.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use onceward_testkit::faketime;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Ended};
use crate::downstream;
use crate::judge;
use crate::process;
use crate::report::Tally;

const JUMPS: [&str; 4] = ["+1d", "-1d", "+10y", "-10y"];
const DAY_MS: i64 = 86_400_000;

/// A fake wall clock for processes.
struct FakeClock {
    library: PathBuf,
    file: PathBuf,
}

pub(super) fn run(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    let fake_clock =
        FakeClock { library: faketime::library_for_threads(), file: case.folder.join("faketime") };
    fake_clock.jump("+10y")?;
    let (wall, boot) = fake_clock.clocks(bench)?;
    let (true_wall, true_boot) = clocks(Command::new(&bench.torture).arg(downstream::CLOCKS))?;
    let wall_clock_moved = wall - true_wall > 300 * DAY_MS;
    tally.expect(wall_clock_moved, || "faketime does not change the wall clock of a program".to_owned());
    let boot_clock_kept = (boot - true_boot).abs() < 60_000;
    tally.note(format!(
        "faketime leaves CLOCK_BOOTTIME alone: {}",
        if boot_clock_kept { "yes" } else { "NO" }
    ));
    tally.expect(boot_clock_kept, || format!("faketime moves CLOCK_BOOTTIME by {} ms too", boot - true_boot));
    for jump in JUMPS {
        between_runs(bench, &fake_clock, jump, tally)?;
        during_a_run(bench, &fake_clock, jump, tally)?;
        after_a_crash(bench, &fake_clock, jump, tally)?;
    }
    Ok(())
}

/// Done operations stay done and are replayed, with a given key and with a derived one.
fn between_runs(bench: &Bench, fake_clock: &FakeClock, jump: &str, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    for call in [Call::new("given"), Call::derived()] {
        let what = format!("{jump} between runs, key {:?}", call.key);
        let first = call.run(bench, &case)?;
        fake_clock.jump(jump)?;
        let shifted_retry = fake_clock.run(&call, bench, &case)?;
        // Also the reverse: a call at the shifted time, repeated at the real time.
        let other = Call { key: call.key.clone().map(|key| format!("{key}-{jump}")), ..call.clone() }
            .argument("--scope=shifted");
        let shifted_first = fake_clock.run(&other, bench, &case)?;
        let real_retry = other.run(bench, &case)?;
        for (ended, expected) in [(&shifted_retry, &first), (&real_retry, &shifted_first)] {
            let same = ended.code == Some(0) && ended.stdout == expected.stdout;
            tally.expect(same, || format!("{what}: no replay: {}", ended.words()));
        }
    }
    finish(bench, &case, 4, &format!("{jump} between runs"), tally)
}

/// The clock jumps while the command runs: other callers wait for it and get its result.
fn during_a_run(bench: &Bench, fake_clock: &FakeClock, jump: &str, tally: &Tally) -> Result<(), Trouble> {
    let what = format!("{jump} during a run");
    let case = bench.case()?;
    let policy = judge::policy(&case, "lease = \"1s\"")?;
    fake_clock.jump("+0")?;
    let call = Call::new("running").argument(format!("--config={}", policy.display()));
    let owner = fake_clock
        .command(&call.clone().takes(1_500, 0), bench, &case)
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    process::wait_for_child(process::id(&owner), Duration::from_secs(10))
        .ok_or("the command did not start")?;
    fake_clock.jump(jump)?;
    let waiting = fake_clock.run(&call, bench, &case)?;
    let refused = call.clone().argument("--wait=0s");
    tally.expect(waiting.code == Some(0), || format!("{what}: a waiter: {}", waiting.words()));
    let owned = Ended::from(owner.wait_with_output()?);
    tally.expect(owned.code == Some(0), || format!("{what}: the owner: {}", owned.words()));
    tally.expect(owned.stdout == waiting.stdout, || format!("{what}: the waiter got another output"));
    let again = refused.run(bench, &case)?;
    tally.expect(again.code == Some(0), || format!("{what}: afterwards: {}", again.words()));
    finish(bench, &case, 1, &what, tally)
}

/// Operations in doubt stay in doubt at any time.
fn after_a_crash(bench: &Bench, fake_clock: &FakeClock, jump: &str, tally: &Tally) -> Result<(), Trouble> {
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
    fake_clock.jump(jump)?;
    let retry = fake_clock.run(&Call::new("crashed"), bench, &case)?;
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

impl FakeClock {
    /// Makes the clock jump, including for running processes.
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
    let (wall, boot) = text.trim().split_once(' ').ok_or("the clocks were not printed")?;
    Ok((wall.parse()?, boot.parse()?))
}
