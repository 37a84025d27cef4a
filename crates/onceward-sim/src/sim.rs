//! A seeded simulation: workers, a clock and a store that fail on purpose, all in one thread and from one seed.
//!
//! Each worker is a process of its own that calls the ledger, crashes at any await, or sleeps for longer than its
//! lease and comes back with a late answer. The store loses requests before they are carried out and replies after.
//! The downstream counts what really happened, and the [`check`] compares that with what the ledger says.
//!
//! # Layout
//! - [`clock`]: time that passes only when everybody waits. [`store`]: a store whose calls fail, before and after.
//! - [`world`]: the downstream and the workers. [`executor`]: who goes next, who crashes, who is stopped.
//! - [`check`]: what must hold when all is quiet.

pub mod check;
pub mod clock;
pub mod executor;
pub mod store;
pub mod world;

use std::sync::Arc;

use onceward::{Clock, Ledger, MemoryStore};

use crate::random::Random;
use clock::VirtualClock;
use executor::Executor;
use store::FaultyStore;
use world::World;

pub use check::Broken;

/// How the ledger learns who lives, and how long workers may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kernel tells who lives, as with the ledger in a file.
    Kernel,
    /// Only leases do, and a stopped worker wakes before its quarantine is over.
    Leases,
    /// Only leases do, and a stopped worker may wake long after its quarantine. Then a probed operation can happen
    /// twice, and must be told.
    LongSleep,
}

/// What a simulated run came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Effects that happened.
    pub effects: u64,
    /// Workers that crashed.
    pub crashes: u64,
    /// Workers that were stopped for a while.
    pub stops: u64,
    /// Store calls that failed.
    pub faults: u64,
    /// Doubts that a person settled.
    pub settled: u64,
    /// Operations whose result had expired in the end.
    pub expired: u64,
    /// Operations that were in doubt in the end.
    pub in_doubt: u64,
    /// Operations that happened more than once, where that was allowed and told.
    pub repeated: u64,
}

/// How many workers a run has, and how many calls each of them makes.
const WORKERS: usize = 4;
const CALLS: usize = 7;
/// Longer than any lease, and shorter than any retention.
const LEASES_OVER_MS: i64 = 60_000;

/// Runs one simulation.
///
/// # Errors
/// What must not be, with all that is needed to see why.
pub fn run(seed: u64, kind: Kind) -> Result<Summary, Broken> {
    let mut random = Random::seeded(seed);
    let clock = VirtualClock::default();
    let inner = match kind {
        Kind::Kernel => MemoryStore::new(clock.clone()),
        Kind::Leases | Kind::LongSleep => MemoryStore::blind(clock.clone()),
    };
    let store = Arc::new(FaultyStore::new(inner, clock.clone(), random.fork()));
    let ledger = Ledger::new(store.clone());
    let world = Arc::new(World::new(clock.clone(), random.fork()));
    let mut executor = Executor::new(clock.clone(), random.fork(), kind);
    for worker in 0..WORKERS {
        let (ledger, world) = (ledger.clone(), Arc::clone(&world));
        executor.spawn(Box::new(move || {
            Box::pin(world::work(ledger.clone(), Arc::clone(&world), worker, CALLS))
        }));
    }
    let told = |broken: Broken| broken.of(seed, kind);
    executor.run().map_err(told)?;
    store.calm();
    // What was still leased is not any more.
    clock.advance_to(clock.now_ms() + LEASES_OVER_MS);
    let found = check::all(&mut executor, &ledger, &world, kind).map_err(told)?;
    Ok(Summary {
        effects: world.effects_in_all(),
        crashes: executor.crashes,
        stops: executor.stops,
        faults: store.faults(),
        settled: world.settled(),
        expired: found.expired,
        in_doubt: found.in_doubt,
        repeated: found.repeated,
    })
}
