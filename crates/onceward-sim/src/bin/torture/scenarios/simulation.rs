//! Many seeds of the simulation, beyond those of the tests.

use std::sync::atomic::{AtomicU64, Ordering};

use onceward_sim::sim::{Environment, clients, events, run as simulate};

use crate::Trouble;
use crate::args::Args;
use crate::bench::{Bench, progress};
use crate::report::{Rule, Tally};

/// Runs in each environment.
const RUNS: u64 = 300_000;
const SHORT_RUNS: u64 = 300;
const ENVIRONMENTS: [Environment; 3] = [Environment::Kernel, Environment::Leases, Environment::LongSleep];
const THREADS: usize = 2;

/// The seeds follow the seed of the bench, so a run without `--seed` tries others than the run before it.
pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let runs = args.runs.unwrap_or(if bench.short { SHORT_RUNS } else { RUNS });
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= runs {
                        return;
                    }
                    if at.is_multiple_of(100) {
                        progress(&format!("simulation {at} of {runs}"));
                    }
                    ENVIRONMENTS.iter().for_each(|environment| one(bench.seed + at, *environment, tally));
                }
            });
        }
    });
    Ok(())
}

fn one(seed: u64, environment: Environment, tally: &Tally) {
    tally.case();
    match simulate(seed, environment) {
        Ok(summary) => {
            tally.faults(summary.faults + summary.crashes + summary.stops);
            tally.effects(usize::try_from(summary.effects).unwrap_or(usize::MAX));
            tally.figure("simulated seconds", summary.simulated_ms / 1_000);
        }
        Err(broken) => tally.violated(Rule::Unexpected, format!("seed {seed}, {environment:?}: {broken}")),
    }
    tally.case();
    match clients::run(seed, environment) {
        Ok(summary) => {
            tally.faults(summary.crashes);
            tally.effects(usize::try_from(summary.effects).unwrap_or(usize::MAX));
            tally.figure("intended repeats", summary.repeats);
        }
        Err(broken) => tally.violated(Rule::Unexpected, format!("seed {seed}, {environment:?}: {broken}")),
    }
    tally.case();
    match events::run(seed, environment) {
        Ok(summary) => {
            tally.faults(summary.crashes);
            tally.effects(usize::try_from(summary.effects).unwrap_or(usize::MAX));
            tally.figure("events", summary.acknowledged);
        }
        Err(broken) => tally.violated(Rule::Unexpected, format!("seed {seed}, {environment:?}: {broken}")),
    }
}
