//! A seeded simulation: workers, a clock and a store that fail on purpose, all in one thread and from one seed.
//!
//! Each worker simulates a process that calls the ledger, crashes at any await, or is suspended for longer than its
//! lease and then reports a late answer. The store loses requests before they are carried out, and replies after. The
//! downstream counts the real effects, and [`check`] compares them with what the ledger says.
//!
//! # Layout
//! - [`clock`]: virtual time, which passes only when all tasks wait. [`store`]: a store whose calls fail, before or
//!   after the write.
//! - [`world`]: the downstream and the workers. [`executor`]: schedules, crashes and suspends workers.
//! - [`clients`]: clients that want the same action again, with and without keys. [`events`]: servers that deliver
//!   events, as an inbox does.
//! - [`history`]: every write, and what must hold between one and the next. [`check`]: what must hold at the end of a
//!   run.

pub mod check;
pub mod clients;
pub mod clock;
pub mod events;
pub mod executor;
pub mod history;
pub mod store;
pub mod world;

use std::sync::Arc;

use onceward::{Clock, Ledger, MemoryStore};

use crate::random::Random;
use clock::VirtualClock;
use executor::Executor;
use store::FaultyStore;
use world::World;

pub use history::Broken;

/// How the ledger finds out who is alive, and how long workers may be suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Environment {
    /// From the kernel, as with a ledger in a file.
    Kernel,
    /// From leases. A suspended worker resumes before its quarantine ends.
    Leases,
    /// From leases. A suspended worker may resume long after its quarantine. Then a probed operation can happen
    /// twice, and the ledger must report it.
    LongSleep,
}

/// The statistics of a simulated run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Effects that happened.
    pub effects: u64,
    /// Workers that crashed.
    pub crashes: u64,
    /// Workers that were suspended for a while.
    pub stops: u64,
    /// Store calls that failed.
    pub faults: u64,
    /// Doubts that a person settled.
    pub settled: u64,
    /// Operations that were cancelled.
    pub cancelled: u64,
    /// How often the scope of the workers was stopped.
    pub barriers: u64,
    /// Held operations that a person released.
    pub released: u64,
    /// Operations that were taken back at the end.
    pub undone: u64,
    /// Operations whose result had expired at the end.
    pub expired: u64,
    /// Operations that were in doubt at the end.
    pub in_doubt: u64,
    /// Operations that happened more than once, where that is allowed and was reported.
    pub repeated: u64,
    /// Records that were written, each of which the history checker compared with the one before it.
    pub writes: u64,
    /// How much time passed on the virtual clock.
    pub simulated_ms: u64,
}

/// What every simulation begins with: chance, time, and a store that fails.
fn beginning(seed: u64, environment: Environment) -> (Random, VirtualClock, Arc<FaultyStore>) {
    let mut random = Random::seeded(seed);
    let clock = VirtualClock::default();
    let inner = match environment {
        Environment::Kernel => MemoryStore::new(clock.clone()),
        Environment::Leases | Environment::LongSleep => MemoryStore::blind(clock.clone()),
    };
    let store = Arc::new(FaultyStore::new(inner, clock.clone(), random.fork()));
    (random, clock, store)
}

/// The number of workers in a run, and of calls by each worker.
const WORKERS: usize = 4;
const CALLS: usize = 7;
/// Longer than any lease, and shorter than any retention.
const LEASES_OVER_MS: i64 = 60_000;

/// Runs one simulation.
///
/// # Errors
/// The violated rule, with everything that is needed to reproduce it.
pub fn run(seed: u64, environment: Environment) -> Result<Summary, Broken> {
    let (mut random, clock, store) = beginning(seed, environment);
    let ledger = Ledger::new(store.clone());
    let world = Arc::new(World::new(clock.clone(), random.fork()));
    let mut executor = Executor::new(clock.clone(), random.fork(), environment);
    for worker in 0..WORKERS {
        let (ledger, world) = (ledger.clone(), Arc::clone(&world));
        executor.spawn(Box::new(move || {
            Box::pin(world::work(ledger.clone(), Arc::clone(&world), worker, CALLS))
        }));
    }
    let with_seed = |broken: Broken| broken.of(seed, environment);
    executor.run().map_err(with_seed)?;
    store.calm();
    // Let all leases expire.
    clock.advance_to(clock.now_ms() + LEASES_OVER_MS);
    let writes = store.history().check(&world).map_err(with_seed)?;
    let found = check::all(&mut executor, &ledger, &world, environment)
        .map_err(|broken| with_seed(broken.with(store.history())))?;
    Ok(Summary {
        effects: world.effects_in_all(),
        crashes: executor.crashes,
        stops: executor.stops,
        faults: store.faults(),
        settled: world.settled(),
        cancelled: world.cancelled(),
        barriers: world.stopped(),
        released: world.releases(),
        undone: found.undone,
        expired: found.expired,
        in_doubt: found.in_doubt,
        repeated: found.repeated,
        writes,
        simulated_ms: clock.now_ms().unsigned_abs(),
    })
}
