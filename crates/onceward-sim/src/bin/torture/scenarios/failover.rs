//! A primary is partitioned from its standby and killed, and the standby is promoted, under load. All answers stay
//! true on the new primary, and nothing happens twice. The same with a replica that is added while callers are
//! working.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onceward_sim::random::Random;
use onceward_testkit::{Postgres, Redis, Relay};

use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::{Bench, progress};
use crate::fleet::{Caller, CallerReply, Figures, judge, patient};
use crate::report::{Tally, elapsed_ms};

const ROUNDS: u64 = 20;
const SHORT_ROUNDS: u64 = 2;
const CALLERS: usize = 12;
/// More than a caller can process before the kill.
const KEYS: usize = 1_500;
/// One of this many keys of each caller is shared with all others.
const SHARED: usize = 5;
/// The name of the standby.
const STANDBY: &str = "second";

/// Whether a write counts before the standby has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Safety {
    Synchronous,
    /// Must be requested explicitly and is unsafe: the scenario must find violations.
    Asynchronous,
}

/// When the second server is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Added {
    First,
    /// After callers have opened the ledger.
    Late,
}

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    run_on(&[BackEnd::Postgres, BackEnd::Redis], Added::First, bench, args, tally)
}

/// A replica is added while callers have the ledger open. PostgreSQL has no such case: the store stops while an
/// asynchronous standby is connected, and the operator makes it synchronous (see `settings`).
pub(super) fn run_late(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    run_on(&[BackEnd::Redis], Added::Late, bench, args, tally)
}

fn run_on(
    back_ends: &[BackEnd],
    added: Added,
    bench: &Bench,
    args: &Args,
    tally: &Tally,
) -> Result<(), Trouble> {
    let rounds = args.rounds.unwrap_or(if bench.short { SHORT_ROUNDS } else { ROUNDS });
    let safety = if args.not_safe { Safety::Asynchronous } else { Safety::Synchronous };
    tally.note(Figures::head());
    for back_end in args.back_ends(back_ends) {
        let mut all = Figures::default();
        let mut random = bench.random(&format!("failover {}", back_end.name()));
        for round in 0..rounds {
            progress(&format!("failover of {} {} of {rounds}", back_end.name(), round + 1));
            let what = format!("{}, round {round}", back_end.name());
            let case = bench.case()?;
            let mut pair = Pair::start(back_end, safety, added);
            let begun = Instant::now();
            let figures = fail_over(&mut pair, &case.effects, &what, &mut random, tally)?;
            let took = elapsed_ms(begun);
            tally.most(&format!("{}: longest round, in ms", back_end.name()), took);
            all.add(figures);
        }
        tally.note(all.row(&format!("{}, {rounds} rounds", back_end.name())));
    }
    Ok(())
}

/// One failover under load, and its check.
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
        // If the harness panics, the callers must still be stopped.
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
    let mut heard: Vec<CallerReply> = heard.into_iter().map(|(_, heard)| heard).collect();
    // After all callers have ended, a new caller repeats every call.
    drop(callers);
    let stranger = Caller::open(&patient(&url), effects)?;
    let mut keys: Vec<String> = heard.iter().map(|heard| heard.key.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.iter().for_each(|key| heard.extend(stranger.settle(key)));
    judge(&url, effects, &heard, what, tally)
}

/// The progress of the failover.
#[derive(Default)]
struct Scene {
    /// No new operations are started.
    over: AtomicBool,
    /// All operations may be called again.
    promoted: AtomicBool,
}

/// When an answer was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    After,
}

/// Calls new operations until the kill, and all of them again after the promotion.
fn work(caller: &Caller, number: usize, scene: &Scene) -> Vec<(When, CallerReply)> {
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
    Postgres {
        primary: Postgres,
        relay: Relay,
        standby: Postgres,
        safety: Safety,
    },
    Redis {
        primary: Redis,
        relay: Relay,
        replica: Redis,
        next: Option<Redis>,
        safety: Safety,
    },
    /// The replica does not exist yet. Clients use one address, which the replica takes over.
    Late {
        primary: Redis,
        address: Relay,
        relay: Relay,
        replica: Option<Redis>,
        next: Option<Redis>,
        safety: Safety,
    },
}

impl Pair {
    fn start(back_end: BackEnd, safety: Safety, added: Added) -> Self {
        match back_end {
            BackEnd::Redis | BackEnd::RedisCluster | BackEnd::Http => {
                let primary = Redis::start();
                let relay = Relay::to(primary.port());
                if added == Added::Late {
                    let address = Relay::to(primary.port());
                    return Self::Late { primary, address, relay, replica: None, next: None, safety };
                }
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

    /// Names both servers; clients use the current primary.
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
            // By default as many replicas must confirm as the ledger has had.
            Self::Late { address, safety, .. } => {
                let wait = if *safety == Safety::Asynchronous { "&wait=0" } else { "" };
                format!("redis://127.0.0.1:{}?timeout=1s&wait_timeout=500ms{wait}", address.port())
            }
        }
    }

    /// The partition, sometimes an impatient operator, the kill, the promotion.
    fn fail_over(&mut self, random: &mut Random, scene: &Scene) {
        let pause = |random: &mut Random, least: u64, more: u64| {
            std::thread::sleep(Duration::from_millis(least + random.below(more)));
        };
        pause(random, 150, 500);
        if let Self::Late { primary, relay, replica, .. } = self {
            *replica = Some(add_replica(primary, relay));
            pause(random, 0, 1_000);
        }
        self.relay().stall();
        pause(random, 20, 700);
        if random.permille(500) {
            self.disconnect_everybody();
            pause(random, 20, 1_500);
        }
        match self {
            Self::Postgres { primary, .. } => primary.kill(),
            Self::Redis { primary, .. } | Self::Late { primary, .. } => primary.kill(),
        }
        scene.over.store(true, Ordering::SeqCst);
        // No server is available for a while, so some outcomes cannot be written in time.
        pause(random, 0, 3_000);
        match self {
            Self::Postgres { standby, .. } => standby.promote(),
            Self::Redis { replica, next, .. } => {
                replica.promote();
                // Writes wait for a replica, so a lost one must be replaced.
                *next = Some(replica.replica());
            }
            Self::Late { address, replica: Some(replica), next, .. } => {
                replica.promote();
                *next = Some(replica.replica());
                address.cut();
                address.aim_at(replica.port());
                address.mend();
            }
            Self::Late { replica: None, .. } => panic!("the replica was not added"),
        }
        scene.promoted.store(true, Ordering::SeqCst);
    }

    /// Ends every client connection. A commit that waits for the standby then becomes visible but is not safe.
    fn disconnect_everybody(&self) {
        match self {
            Self::Postgres { primary, .. } => drop(primary.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where backend_type = 'client backend' and pid <> pg_backend_pid()",
            )),
            Self::Redis { primary, .. } | Self::Late { primary, .. } => {
                drop(primary.cli(&["CLIENT", "KILL", "TYPE", "normal"]));
            }
        }
    }

    fn relay(&self) -> &Relay {
        match self {
            Self::Postgres { relay, .. } | Self::Redis { relay, .. } | Self::Late { relay, .. } => relay,
        }
    }
}

/// Adds a replica to a server under load; returns when it has its first copy.
fn add_replica(primary: &Redis, relay: &Relay) -> Redis {
    let replica = Redis::start_with(&[("replicaof", &format!("127.0.0.1 {}", relay.port()))]);
    super::wait_until_online(primary);
    replica
}
