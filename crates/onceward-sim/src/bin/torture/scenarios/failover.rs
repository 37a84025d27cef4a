//! A primary is partitioned from its standby, killed, and the standby promoted, under callers. What they were told
//! holds on the new primary, and nothing happens a second time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onceward_harness::{Postgres, Redis, Relay};
use onceward_sim::random::Random;

use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::{Bench, progress};
use crate::fleet::{Caller, Figures, Heard, judge};
use crate::report::Tally;

const ROUNDS: u64 = 20;
const SHORT_ROUNDS: u64 = 2;
const CALLERS: usize = 12;
/// More than a caller gets through before the kill.
const KEYS: usize = 1_500;
/// Of so many keys each caller has one in common with all others.
const SHARED: usize = 5;
/// What the standby is called.
const STANDBY: &str = "second";

/// Whether a write counts before the standby has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Safety {
    Synchronous,
    /// Allowed by name, and wrong: this is what the test must find.
    Asynchronous,
}

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let rounds = args.rounds.unwrap_or(if bench.short { SHORT_ROUNDS } else { ROUNDS });
    let safety = if args.not_safe { Safety::Asynchronous } else { Safety::Synchronous };
    tally.note(Figures::head());
    for back_end in args.back_ends(&[BackEnd::Postgres, BackEnd::Redis]) {
        let mut all = Figures::default();
        let mut random = bench.random(&format!("failover {}", back_end.name()));
        for round in 0..rounds {
            progress(&format!("failover of {} {} of {rounds}", back_end.name(), round + 1));
            let what = format!("{}, round {round}", back_end.name());
            let case = bench.case()?;
            let mut pair = Pair::start(back_end, safety);
            let begun = Instant::now();
            let figures = fail_over(&mut pair, &case.effects, &what, &mut random, tally)?;
            let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            tally.most(&format!("{}: longest round, in ms", back_end.name()), took);
            all.add(figures);
        }
        tally.note(all.row(&format!("{}, {rounds} rounds", back_end.name())));
    }
    Ok(())
}

/// One failover under callers, and its judgement.
fn fail_over(
    pair: &mut Pair,
    effects: &Path,
    what: &str,
    random: &mut Random,
    tally: &Tally,
) -> Result<Figures, Trouble> {
    let url = pair.url();
    let callers: Result<Vec<Caller>, Trouble> = (0..CALLERS).map(|_| Caller::open(&url, effects)).collect();
    let callers = callers?;
    let scene = Scene::default();
    let heard = std::thread::scope(|scope| {
        let scene = &scene;
        let working: Vec<_> = callers
            .iter()
            .enumerate()
            .map(|(number, caller)| scope.spawn(move || work(caller, number, scene)))
            .collect();
        // A harness that gives up must not leave the callers waiting.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pair.fail_over(random, scene)));
        scene.over.store(true, Ordering::SeqCst);
        scene.promoted.store(true, Ordering::SeqCst);
        let mut heard = Vec::new();
        for worker in working {
            heard.extend(worker.join().map_err(|_| Trouble::from("a caller panicked"))?);
        }
        result.map(|()| heard).map_err(|_| Trouble::from("the failover could not be done: see above"))
    })?;
    tally.faults(1);
    let acknowledged_before = heard.iter().filter(|(when, heard)| *when == When::Before && heard.is_done());
    tally.figure("acknowledged before the kill", acknowledged_before.count() as u64);
    let mut heard: Vec<Heard> = heard.into_iter().map(|(_, heard)| heard).collect();
    // Somebody who was not there asks for everything once more, when all others are gone.
    drop(callers);
    let stranger = Caller::open(&url, effects)?;
    let mut keys: Vec<String> = heard.iter().map(|heard| heard.key.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.iter().for_each(|key| heard.extend(stranger.settle(key)));
    judge(&url, effects, &heard, what, tally)
}

/// How far the failover is.
#[derive(Default)]
struct Scene {
    /// Nothing new is begun.
    over: AtomicBool,
    /// Everything may be asked for again.
    promoted: AtomicBool,
}

/// When an answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    After,
}

/// Calls for new operations until the kill, and for all of them again after the promotion.
fn work(caller: &Caller, number: usize, scene: &Scene) -> Vec<(When, Heard)> {
    let keys = (0..KEYS).map(|key| match key % SHARED {
        0 => format!("shared-{key}"),
        _ => format!("own-{number}-{key}"),
    });
    let (mut called, mut heard) = (Vec::new(), Vec::new());
    for key in keys.take_while(|_| !scene.over.load(Ordering::SeqCst)) {
        let one = caller.call(&key);
        let when = if scene.over.load(Ordering::SeqCst) { When::After } else { When::Before };
        heard.push((when, one));
        called.push(key);
    }
    while !scene.promoted.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5));
    }
    for key in called {
        heard.extend(caller.settle(&key).into_iter().map(|heard| (When::After, heard)));
    }
    heard
}

/// A primary and its standby, with a relay between them.
enum Pair {
    Postgres { primary: Postgres, relay: Relay, standby: Postgres, safety: Safety },
    Redis { primary: Redis, relay: Relay, replica: Redis, next: Option<Redis>, safety: Safety },
}

impl Pair {
    fn start(back_end: BackEnd, safety: Safety) -> Self {
        match back_end {
            BackEnd::Redis | BackEnd::RedisCluster => {
                let primary = Redis::start();
                let relay = Relay::to(primary.port());
                let replica = primary.replica_through(&relay);
                Self::Redis { primary, relay, replica, next: None, safety }
            }
            BackEnd::Postgres | BackEnd::Sqlite => {
                let primary = Postgres::start();
                let relay = Relay::to(primary.port());
                let standby = primary.standby_through(&relay, STANDBY);
                if safety == Safety::Synchronous {
                    primary.synchronous(STANDBY);
                }
                Self::Postgres { primary, relay, standby, safety }
            }
        }
    }

    /// Names both: whoever is the primary is asked.
    fn url(&self) -> String {
        match self {
            Self::Postgres { primary, standby, safety, .. } => {
                let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
                let allowed = if *safety == Safety::Asynchronous { "&standby=async" } else { "" };
                format!("postgres://postgres@{hosts}/postgres?timeout=1s{allowed}")
            }
            Self::Redis { primary, replica, safety, .. } => {
                let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), replica.port());
                let wait = if *safety == Safety::Asynchronous { 0 } else { 1 };
                format!("redis://{hosts}?timeout=1s&wait={wait}&wait_timeout=500ms")
            }
        }
    }

    /// The partition, sometimes an impatient operator, the kill, the promotion.
    fn fail_over(&mut self, random: &mut Random, scene: &Scene) {
        let pause = |random: &mut Random, least: u64, more: u64| {
            std::thread::sleep(Duration::from_millis(least + random.below(more)));
        };
        pause(random, 150, 500);
        self.relay().stall();
        pause(random, 20, 700);
        if random.permille(500) {
            self.disconnect_everybody();
            pause(random, 20, 1_500);
        }
        match self {
            Self::Postgres { primary, .. } => primary.kill(),
            Self::Redis { primary, .. } => primary.kill(),
        }
        scene.over.store(true, Ordering::SeqCst);
        // Nobody is there at once, and some outcomes cannot be written in time.
        pause(random, 0, 3_000);
        match self {
            Self::Postgres { standby, .. } => standby.promote(),
            Self::Redis { replica, next, .. } => {
                replica.promote();
                // Writes wait for a replica: whoever has lost one brings another.
                *next = Some(replica.replica());
            }
        }
        scene.promoted.store(true, Ordering::SeqCst);
    }

    /// Ends every connection of a client. A commit that waits for the standby is then visible and not safe.
    fn disconnect_everybody(&self) {
        match self {
            Self::Postgres { primary, .. } => drop(primary.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where backend_type = 'client backend' and pid <> pg_backend_pid()",
            )),
            Self::Redis { primary, .. } => drop(primary.cli(&["CLIENT", "KILL", "TYPE", "normal"])),
        }
    }

    fn relay(&self) -> &Relay {
        match self {
            Self::Postgres { relay, .. } | Self::Redis { relay, .. } => relay,
        }
    }
}
