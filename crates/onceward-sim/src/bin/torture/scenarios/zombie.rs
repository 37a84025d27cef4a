//! Owners that are suspended for longer than their lease, and owners that die while their command keeps running.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Class, Ended};
use crate::downstream;
use crate::judge::{self, look, state_of};
use crate::process;
use crate::process::PATIENCE;
use crate::report::{Rule, Tally, elapsed_ms};

const KEY: &str = "stopped";
/// Longer than the lease, which is one second.
const STOPPED: Duration = Duration::from_millis(1_600);

#[derive(Debug, Clone, Copy)]
enum Stopped {
    Wrapper,
    Command,
    Both,
}

pub(super) fn run(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let classes: &[Class] = if bench.short { &[Class::Once] } else { &Class::ALL };
    for stopped in [Stopped::Wrapper, Stopped::Command, Stopped::Both] {
        for class in classes {
            let what = format!("{stopped:?} stopped, class {class:?}");
            stop(bench, stopped, *class, &what, tally).map_err(|trouble| format!("{what}: {trouble}"))?;
        }
    }
    for class in Class::ALL {
        let what = format!("wrapper killed while its command runs, class {class:?}");
        orphan(bench, class, &what, tally).map_err(|trouble| format!("{what}: {trouble}"))?;
    }
    Ok(())
}

/// An owner that is suspended for longer than its lease is waited for and never overtaken; after it resumes, it
/// finishes.
fn stop(bench: &Bench, stopped: Stopped, class: Class, what: &str, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    let call = call(&case, class)?;
    let gate = HoldFile::new(&case);
    let owner = call.clone().environment(downstream::HOLD_BEFORE, gate.path()).start(bench, &case)?;
    let wrapper = process::id(&owner);
    gate.wait()?;
    let command = process::wait_for_child(wrapper, PATIENCE).ok_or("the command did not start")?;
    let targets = match stopped {
        Stopped::Wrapper => vec![wrapper],
        Stopped::Command => vec![command],
        Stopped::Both => vec![wrapper, command],
    };
    for pid in &targets {
        process::send(*pid, Signal::SIGSTOP);
        process::wait_stopped(*pid, PATIENCE)?;
    }
    // A command that is not suspended continues while its wrapper is.
    gate.release()?;
    tally.faults(1);
    let waiter = call.clone().argument("--wait=120s").start(bench, &case)?;
    let begun = Instant::now();
    while begun.elapsed() < STOPPED {
        refused(bench, &case, &call, what, tally)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    targets.iter().for_each(|pid| process::send(*pid, Signal::SIGCONT));
    let owner = Ended::from(owner.wait_with_output()?);
    let waiter = Ended::from(waiter.wait_with_output()?);
    for (who, ended) in [("the owner", &owner), ("who waited", &waiter)] {
        tally.expect(ended.code == Some(0), || format!("{what}: {who}: {}", ended.words()));
    }
    tally.expect(owner.stdout == waiter.stdout, || format!("{what}: the waiter got another output"));
    finish(bench, &case, what, "done", tally)
}

/// A caller that does not wait gets `IN_PROGRESS`.
fn refused(bench: &Bench, case: &Case, call: &Call, what: &str, tally: &Tally) -> Result<(), Trouble> {
    let ended = call.clone().argument("--wait=0s").run(bench, case)?;
    tally.figure("calls refused as in progress", 1);
    tally.expect(ended.code == Some(4), || format!("{what}: a caller meanwhile: {}", ended.words()));
    let state = state_of(&look(bench, case)?, KEY);
    tally.expect(state == "running", || format!("{what}: meanwhile it is reported as {state}"));
    Ok(())
}

/// The command holds the lock after its wrapper's death. Its end is noticed at once.
fn orphan(bench: &Bench, class: Class, what: &str, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    let call = call(&case, class)?;
    let gate = HoldFile::new(&case);
    let mut owner = call.clone().environment(downstream::HOLD_AFTER, gate.path()).start(bench, &case)?;
    gate.wait()?;
    let command =
        process::wait_for_child(process::id(&owner), PATIENCE).ok_or("the command did not start")?;
    process::send(process::id(&owner), Signal::SIGKILL);
    owner.wait()?;
    tally.faults(1);
    for _ in 0..3 {
        refused(bench, &case, &call, what, tally)?;
    }
    gate.release()?;
    process::wait_gone(command, PATIENCE)?;
    let ended = Instant::now();
    let state = state_of(&look(bench, &case)?, KEY);
    tally.most("ms until a dead owner was seen, at most", elapsed_ms(ended));
    if state == "running" {
        tally.violated(Rule::Stuck, format!("{what}: still running after its command ended"));
    }
    tally.expect(state == "in_doubt", || format!("{what}: it is {state} after its command ended"));
    if class == Class::Idempotent {
        tally.case();
        return Ok(());
    }
    let retry = call.run(bench, &case)?;
    let (code, state) = if class == Class::Once { (79, "in_doubt") } else { (0, "done") };
    tally.expect(retry.code == Some(code), || format!("{what}: a retry: {}", retry.words()));
    finish(bench, &case, what, state, tally)
}

/// The file that the command waits for, so that the scenario depends on events and not on time.
struct HoldFile(PathBuf);

impl HoldFile {
    fn new(case: &Case) -> Self {
        Self(case.folder.join("hold"))
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    /// Waits until the command has reached the gate.
    fn wait(&self) -> Result<(), Trouble> {
        process::wait_for_file(&self.0.with_extension(downstream::HERE), PATIENCE)
    }

    /// Lets the command continue.
    fn release(&self) -> Result<(), Trouble> {
        Ok(std::fs::write(&self.0, "")?)
    }
}

/// One effect in total.
fn finish(bench: &Bench, case: &Case, what: &str, expected: &str, tally: &Tally) -> Result<(), Trouble> {
    let (seen, effects) = judge::judge(bench, case, tally, what)?;
    let count: usize = effects.values().map(Vec::len).sum();
    let state = state_of(&seen, KEY);
    tally.case();
    tally.ended(&state);
    tally.effects(count);
    tally.expect(count == 1 && state == expected, || format!("{what}: {state} with {count} effects"));
    Ok(())
}

/// A call with a lease of one second.
fn call(case: &Case, class: Class) -> Result<Call, Trouble> {
    let policy = judge::policy(case, "lease = \"1s\"")?;
    Ok(Call::new(KEY).class(class).argument(format!("--config={}", policy.display())))
}
