//! A mutating command twice with one key: the second call returns noop and exit 0, and there is one effect.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Class};
use crate::judge;
use crate::process;
use crate::process::PATIENCE;
use crate::report::Tally;

pub(super) fn run(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    twice(bench, tally)?;
    after_a_kill(bench, tally, Class::Once)?;
    after_a_kill(bench, tally, Class::Probed)?;
    other_input(bench, tally)
}

/// Each call is its own process, so the second call is also a call after a restart.
fn twice(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    let call = Call::new("twice").argument("--json");
    let first = effect(&call, bench, &case)?;
    let second = effect(&call, bench, &case)?;
    let (seen, effects) = judge::judge(bench, &case, tally, "twice with one key")?;
    let count: usize = effects.values().map(Vec::len).sum();
    tally.case();
    tally.effects(count);
    tally.expect(first == (Some(0), "updated".to_owned(), false), || format!("the first call: {first:?}"));
    tally.expect(second == (Some(0), "noop".to_owned(), true), || format!("the second call: {second:?}"));
    tally.expect(count == 1 && seen.len() == 1, || format!("twice with one key: {count} effects"));
    Ok(())
}

/// Kills the wrapper and its command after the effect. A retry reports what is known, and there is one effect.
fn after_a_kill(bench: &Bench, tally: &Tally, class: Class) -> Result<(), Trouble> {
    let case = bench.case()?;
    let call = Call::new("killed").class(class).argument("--json");
    let mut wrapper = call.clone().takes(0, 60_000).start(bench, &case)?;
    let command =
        process::wait_for_child(process::id(&wrapper), PATIENCE).ok_or("the command did not start")?;
    let begun = std::time::Instant::now();
    while std::fs::metadata(&case.effects)?.len() == 0 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    process::send(process::id(&wrapper), Signal::SIGKILL);
    process::send(command, Signal::SIGKILL);
    wrapper.wait()?;
    tally.faults(1);
    let retry = effect(&call, bench, &case)?;
    let expected = match class {
        Class::Once => (Some(79), "noop".to_owned(), false),
        Class::Probed | Class::Idempotent => (Some(0), "noop".to_owned(), true),
    };
    let (_, effects) = judge::judge(bench, &case, tally, "after kill -9")?;
    let count: usize = effects.values().map(Vec::len).sum();
    tally.case();
    tally.effects(count);
    tally.expect(retry == expected, || format!("a retry after kill -9 ({class:?}): {retry:?}"));
    tally.expect(count == 1, || format!("after kill -9 ({class:?}): {count} effects"));
    Ok(())
}

/// The same key with a different input is refused, and nothing is run.
fn other_input(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    Call::new("reused").argument("--input={\"amount\":1}").run(bench, &case)?;
    let other = Call::new("reused").argument("--input={\"amount\":2}").run(bench, &case)?;
    let (_, effects) = judge::judge(bench, &case, tally, "one key, other input")?;
    let count: usize = effects.values().map(Vec::len).sum();
    tally.case();
    tally.effects(count);
    tally.expect(other.code == Some(6) && count == 1, || {
        format!("one key, other input: {}, {count} effects", other.words())
    });
    Ok(())
}

/// The exit code, the reported effect, and whether it is a replay.
fn effect(call: &Call, bench: &Bench, case: &Case) -> Result<(Option<i32>, String, bool), Trouble> {
    let ended = call.run(bench, case)?;
    let answer: serde_json::Value = serde_json::from_slice(&ended.stdout)
        .map_err(|error| format!("the answer is not JSON ({error}): {}", ended.words()))?;
    let effect = answer["effect"].as_str().unwrap_or_default().to_owned();
    Ok((ended.code, effect, answer["operation"]["replayed"].as_bool().unwrap_or(false)))
}
