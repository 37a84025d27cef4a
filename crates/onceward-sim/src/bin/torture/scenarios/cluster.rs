//! A cluster of six nodes under load: slots are moved between primaries, and a primary is killed so that its replica
//! takes over. All answers stay true, and nothing happens twice.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onceward_sim::random::Random;
use onceward_testkit::RedisCluster;

use crate::Trouble;
use crate::args::Args;
use crate::bench::{Bench, progress};
use crate::fleet::{Caller, CallerReply, Figures, judge, patient};
use crate::process::PATIENCE;
use crate::report::{Tally, elapsed_ms};

const ROUNDS: u64 = 20;
const SHORT_ROUNDS: u64 = 1;
const CALLERS: usize = 32;
/// More than a caller can process in a round, with a pause after each call.
const KEYS: usize = 2_000;
const PAUSE: Duration = Duration::from_millis(40);
/// One of this many keys of each caller is shared with all others.
const SHARED: usize = 5;
/// How many of the ledger's 64 shards are moved in a round.
const MOVED: usize = 4;

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let rounds = args.rounds.unwrap_or(if bench.short { SHORT_ROUNDS } else { ROUNDS });
    let mut cluster = RedisCluster::start_with_replicas();
    let mut random = bench.random("cluster");
    let mut all = Figures::default();
    tally.note(Figures::head());
    for round in 0..rounds {
        progress(&format!("cluster {} of {rounds}", round + 1));
        let case = bench.case()?;
        // `wait=0` must be requested explicitly and is unsafe: the scenario must find violations.
        let wait = if args.not_safe { "&wait=0" } else { "" };
        let url = format!("{}&timeout=2s&wait_timeout=1s{wait}", cluster.fresh());
        let begun = Instant::now();
        let what = format!("round {round}");
        all.add(one_round(&mut cluster, &url, &case.effects, &what, &mut random, tally)?);
        let took = elapsed_ms(begun);
        tally.most("longest round, in ms", took);
    }
    tally.note(all.row(&format!("{rounds} rounds")));
    Ok(())
}

/// One round under load, and its check.
fn one_round(
    cluster: &mut RedisCluster,
    url: &str,
    effects: &Path,
    what: &str,
    random: &mut Random,
    tally: &Tally,
) -> Result<Figures, Trouble> {
    let callers: Result<Vec<Caller>, Trouble> = (0..CALLERS).map(|_| Caller::open(url, effects)).collect();
    let callers = callers?;
    let over = AtomicBool::new(false);
    let mut heard = std::thread::scope(|scope| {
        let over = &over;
        let working: Vec<_> = callers
            .iter()
            .enumerate()
            .map(|(number, caller)| scope.spawn(move || work(caller, number, over)))
            .collect();
        // If the harness panics, the callers must still be stopped.
        let staged =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stage(cluster, url, random, tally)));
        over.store(true, Ordering::SeqCst);
        let mut heard = Vec::new();
        for worker in working {
            heard.extend(worker.join().map_err(|_| Trouble::from("a caller panicked"))?);
        }
        staged.map_err(|_| Trouble::from("the faults could not be staged: see above"))??;
        Ok::<_, Trouble>(heard)
    })?;
    // After all callers have ended, a new caller repeats every call.
    drop(callers);
    let stranger = Caller::open(&patient(url), effects)?;
    let mut keys: Vec<String> = heard.iter().map(|heard| heard.key.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.iter().for_each(|key| heard.extend(stranger.settle(key)));
    judge(url, effects, &heard, what, tally)
}

/// Moves slots, then cuts a primary off from its replica, kills it, and restarts it as a replica.
fn stage(cluster: &mut RedisCluster, url: &str, random: &mut Random, tally: &Tally) -> Result<(), Trouble> {
    std::thread::sleep(Duration::from_millis(200 + random.below(300)));
    let pairs = cluster.pairs();
    let from = usize::try_from(random.below(pairs.len() as u64))?;
    let to = (from + 1) % pairs.len();
    let (from, to) = (pairs[from].0, pairs[to].0);
    let prefix = url.split("prefix=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default();
    let shards = cluster.nodes()[from].cli(&["KEYS", &format!("{{{prefix}:*v3:ledger")]);
    for shard in shards.lines().take(MOVED) {
        cluster.move_slot_of(shard, from, to);
        tally.faults(1);
    }
    let (victim, replica) = pairs[usize::try_from(random.below(pairs.len() as u64))?];
    let replica = replica.ok_or("a primary has no replica")?;
    cluster.nodes()[replica].pause();
    // Data in flight is lost too: from here on only the primary has new writes.
    drop(cluster.nodes()[victim].cli(&["CLIENT", "KILL", "TYPE", "replica"]));
    std::thread::sleep(Duration::from_millis(20 + random.below(400)));
    cluster.nodes_mut()[victim].kill();
    cluster.nodes()[replica].resume();
    tally.faults(1);
    let begun = Instant::now();
    while !cluster.nodes()[replica].cli(&["INFO", "replication"]).contains("role:master") {
        if begun.elapsed() > PATIENCE {
            return Err("the replica did not take over".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = elapsed_ms(begun);
    tally.most("slowest takeover by a replica, in ms", took);
    cluster.nodes_mut()[victim].start_again();
    cluster.wait_until_ready();
    std::thread::sleep(Duration::from_millis(random.below(500)));
    Ok(())
}

/// Calls new operations until the end, and then all of them again.
fn work(caller: &Caller, number: usize, over: &AtomicBool) -> Vec<CallerReply> {
    let keys = (0..KEYS).map(|key| match key % SHARED {
        0 => format!("shared-{key}"),
        _ => format!("own-{number}-{key}"),
    });
    let (mut called, mut heard) = (Vec::new(), Vec::new());
    for key in keys.take_while(|_| !over.load(Ordering::SeqCst)) {
        heard.push(caller.call(&key));
        called.push(key);
        std::thread::sleep(PAUSE);
    }
    for key in called {
        heard.extend(caller.settle(&key));
    }
    heard
}
