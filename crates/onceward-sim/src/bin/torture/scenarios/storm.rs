//! Many processes at once: on one key of a ledger that does not exist yet, and on many keys.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use onceward_sim::random::Random;

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::call::{Call, Ended};
use crate::judge;
use crate::process;
use crate::report::{Tally, elapsed_ms};
use crate::scenarios::in_parallel;

/// The number of processes on one key.
const ONE_KEY: usize = 32;
/// The number of processes on many keys, and the number of keys.
const MANY: usize = 8;
const KEYS: usize = 200;
const SHORT_KEYS: usize = 10;
/// How often the storm on one key is repeated.
const ROUNDS: usize = 10;

pub(super) fn run(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let rounds = if bench.short { 1 } else { ROUNDS };
    for round in 0..rounds {
        let case = bench.case()?;
        one_key(bench, &case, "cold", &format!("cold ledger, round {round}"), tally)?;
        one_key(bench, &case, "warm", &format!("warm ledger, round {round}"), tally)?;
    }
    let mut random = bench.random("storm");
    for round in 0..rounds * 10 {
        killed_at_the_start(bench, round, &mut random, tally)?;
    }
    many_keys(bench, tally)
}

/// Half of the processes that create a new ledger are killed meanwhile; the other half must succeed.
fn killed_at_the_start(
    bench: &Bench,
    round: usize,
    random: &mut Random,
    tally: &Tally,
) -> Result<(), Trouble> {
    let case = bench.case()?;
    let call = |number| Call::new(format!("key-{number}"));
    let started: Result<Vec<_>, Trouble> = (0..MANY).map(|number| call(number).start(bench, &case)).collect();
    std::thread::sleep(Duration::from_micros(random.below(6_000)));
    let started = started?;
    started.iter().take(MANY / 2).for_each(|wrapper| process::send(process::id(wrapper), Signal::SIGKILL));
    let what = format!("killed while the ledger is made, round {round}");
    for (number, wrapper) in started.into_iter().enumerate() {
        let ended = Ended::from(wrapper.wait_with_output()?);
        tally.faults(u64::from(ended.code.is_none()));
        tally.expect(number < MANY / 2 || ended.code == Some(0), || format!("{what}: {}", ended.words()));
    }
    let (_, effects) = judge::judge(bench, &case, tally, &what)?;
    tally.case();
    tally.effects(effects.values().map(Vec::len).sum());
    Ok(())
}

/// One effect, 31 replays with the same output, exit 0.
fn one_key(bench: &Bench, case: &Case, key: &str, what: &str, tally: &Tally) -> Result<(), Trouble> {
    let begun = Instant::now();
    let call = Call::new(key).takes(5, 5);
    let started: Result<Vec<_>, Trouble> = (0..ONE_KEY).map(|_| call.start(bench, case)).collect();
    let mut ended = Vec::with_capacity(ONE_KEY);
    for wrapper in started? {
        ended.push(Ended::from(wrapper.wait_with_output()?));
    }
    tally.cases(ONE_KEY as u64);
    tally.most("slowest storm of 32, in ms", elapsed_ms(begun));
    let replayed = ended.iter().filter(|ended| ended.stderr.contains("nothing was run")).count();
    tally.figure("replays", replayed as u64);
    tally.expect(replayed == ONE_KEY - 1, || format!("{what}: {replayed} of {} were replays", ONE_KEY - 1));
    for ended in &ended {
        tally.expect(ended.code == Some(0), || format!("{what}: {}", ended.words()));
        tally.expect(ended.stdout == first(&ended.stdout, case), || format!("{what}: another output"));
    }
    let (seen, effects) = judge::judge(bench, case, tally, what)?;
    let count =
        seen.iter().find(|seen| seen.key == key).and_then(|seen| effects.get(&seen.id)).map_or(0, Vec::len);
    tally.effects(count);
    tally.expect(count == 1, || format!("{what}: {count} effects"));
    Ok(())
}

/// The downstream's output: its own line of effect.
fn first(stdout: &[u8], case: &Case) -> Vec<u8> {
    let effects = std::fs::read_to_string(&case.effects).unwrap_or_default();
    let lines = effects.lines().map(|line| format!("effect {line}\n").into_bytes());
    lines.into_iter().find(|line| line == stdout).unwrap_or_default()
}

/// No duplicates, nothing lost.
fn many_keys(bench: &Bench, tally: &Tally) -> Result<(), Trouble> {
    let case = bench.case()?;
    let keys = if bench.short { SHORT_KEYS } else { KEYS };
    // Each process takes every key, starting at a different one.
    let jobs: Vec<usize> = (0..MANY * keys).collect();
    let limit = Duration::from_secs(30);
    in_parallel("storm: many keys", &jobs, MANY, |job| {
        let ended = Call::new(format!("key-{}", job / MANY)).run(bench, &case)?;
        tally.expect(ended.code == Some(0), || format!("many keys: {}", ended.words()));
        tally.expect(ended.took < limit, || "many keys: a call took longer than 30 s".to_owned());
        Ok(())
    })?;
    let (seen, effects) = judge::judge(bench, &case, tally, "many keys")?;
    let count: usize = effects.values().map(Vec::len).sum();
    tally.cases(jobs.len() as u64);
    tally.effects(count);
    tally.note(format!(
        "{MANY} processes × {keys} keys: {} duplicates, {} lost",
        count.saturating_sub(keys),
        keys - seen.len().min(keys)
    ));
    tally.expect(count == keys && seen.len() == keys, || format!("{count} effects of {keys} keys"));
    Ok(())
}
