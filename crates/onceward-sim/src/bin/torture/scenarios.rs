//! The scenarios, one file each, and the loop over them.

mod agent_spec;
mod clock;
mod cluster;
mod disk_full;
mod failover;
mod fleet_storm;
mod inbox_fuzz;
mod hold;
mod mcp_fuzz;
mod power_cut;
mod random;
mod replaced;
mod restore;
mod server_clock;
mod server_gone;
mod settings;
mod simulation;
pub(crate) mod stop;
mod storm;
mod sweep;
mod sync_error;
mod undo;
mod wrapper_killed;
mod zombie;

use std::io::Write;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onceward_testkit::Redis;

use crate::Trouble;
use crate::args::{Args, Scenario};
use crate::bench::{Bench, progress};
use crate::report::{self, Report, Rule, Tally};

/// How many scenarios of the short form run at once.
const AT_ONCE: usize = 6;

/// Runs the chosen scenarios and prints the figures.
pub(crate) fn run_all(args: &Args) -> ExitCode {
    // Faults of the disk are a part of it.
    onceward_testkit::on_disk();
    let bench = match Bench::new(args) {
        Ok(bench) => bench,
        Err(trouble) => {
            drop(writeln!(std::io::stderr(), "torture: {trouble}"));
            return ExitCode::FAILURE;
        }
    };
    let reports = run_chosen(&bench, args);
    progress("");
    let printed = if args.json {
        report::print_json(&reports, bench.seed)
    } else {
        report::print_tables(&reports, bench.seed)
    };
    if printed.is_ok() && report::all_held(&reports) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the scenarios, several at once in the short form: most of them wait for other processes.
fn run_chosen(bench: &Bench, args: &Args) -> Vec<Report> {
    let chosen = args.chosen();
    let (next, at_once) = (AtomicUsize::new(0), if args.short { AT_ONCE } else { 1 });
    let worker = || {
        let mut reports = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(scenario) = chosen.get(at) else { return reports };
            reports.push((at, run_one(bench, args, *scenario)));
        }
    };
    let mut reports = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        let ended = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.flat_map(|joined| joined.unwrap_or_else(|panic| resume_unwind(panic))).collect::<Vec<_>>()
    });
    reports.sort_unstable_by_key(|(at, _)| *at);
    reports.into_iter().map(|(_, report)| report).collect()
}

fn run_one(bench: &Bench, args: &Args, scenario: Scenario) -> Report {
    let (tally, begun) = (Tally::default(), Instant::now());
    progress(scenario.name());
    let result = caught(|| match scenario {
        Scenario::Sweep => sweep::run(bench, &tally),
        Scenario::Random => random::run(bench, args.kills, &tally),
        Scenario::Undo => undo::run(bench, args.kills, &tally),
        Scenario::DiskFull => disk_full::run(bench, &tally),
        Scenario::SyncError => sync_error::run(bench, &tally),
        Scenario::Clock => clock::run(bench, &tally),
        Scenario::Zombie => zombie::run(bench, &tally),
        Scenario::Storm => storm::run(bench, &tally),
        Scenario::CliAgentSpec => agent_spec::run(bench, &tally),
        Scenario::Cluster => cluster::run(bench, args, &tally),
        Scenario::Failover => failover::run(bench, args, &tally),
        Scenario::LateReplica => failover::run_late(bench, args, &tally),
        Scenario::FleetStorm => fleet_storm::run(bench, args, &tally),
        Scenario::ServerGone => server_gone::run(bench, args, &tally),
        Scenario::Replaced => replaced::run(bench, args, &tally),
        Scenario::Restore => restore::run(bench, args, &tally),
        Scenario::ServerClock => server_clock::run(bench, args, &tally),
        Scenario::WrapperKilled => wrapper_killed::run(bench, args, &tally),
        Scenario::Hold => hold::run(bench, args.keys, &tally),
        Scenario::Settings => settings::run(bench, args, &tally),
        Scenario::Simulation => simulation::run(bench, args, &tally),
        Scenario::Stop => stop::run(bench, args, &tally),
        Scenario::McpFuzz => mcp_fuzz::run(bench, args.messages, &tally),
        Scenario::InboxFuzz => inbox_fuzz::run(bench, args, &tally),
        Scenario::PowerCut => power_cut::run(bench, args, &tally),
    });
    // A scenario that could not finish counts as violated.
    if let Err(trouble) = result {
        tally.violated(Rule::Unexpected, format!("the scenario could not be run to its end: {trouble}"));
    }
    tally.report(scenario.name(), begun.elapsed())
}

/// The harness panics if a server is missing, as tests do. Here that ends the scenario and counts as a violation.
fn caught(scenario: impl FnOnce() -> Result<(), Trouble>) -> Result<(), Trouble> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(scenario))
        .unwrap_or_else(|_| Err("the harness gave up: see above".into()))
}

/// Runs all jobs, several at once, and stops at the first error.
fn in_parallel<J: Sync>(
    label: &str,
    jobs: &[J],
    threads: usize,
    work: impl Fn(&J) -> Result<(), Trouble> + Sync,
) -> Result<(), Trouble> {
    let next = AtomicUsize::new(0);
    let worker = || -> Result<(), Trouble> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { return Ok(()) };
            progress(&format!("{label} {} of {}", at + 1, jobs.len()));
            if let Err(trouble) = work(job) {
                next.store(jobs.len(), Ordering::Relaxed);
                return Err(trouble);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut result = Ok(());
        for worker in workers {
            result = result.and(worker.join().map_err(|_| Trouble::from("a thread of the test panicked"))?);
        }
        result
    })
}

/// Waits until a replica has its first copy. It need not have confirmed everything, because callers continue.
fn wait_until_online(server: &Redis) {
    let begun = Instant::now();
    while !server.cli(&["INFO", "replication"]).contains("state=online") {
        assert!(begun.elapsed() < Duration::from_secs(60), "the replica does not follow");
        std::thread::sleep(Duration::from_millis(20));
    }
}
