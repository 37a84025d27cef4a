//! The ledger's server goes away under its clients and comes back. Nothing runs while it is gone, every caller
//! gets an error, and no client needs a restart.

mod victim;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onceward_sim::random::Random;

use super::in_parallel;
use crate::Trouble;
use crate::args::{Args, BackEnd};
use crate::bench::Bench;
use crate::fleet::{Caller, CallerReply, Figures, judge, patient};
use crate::process::PATIENCE;
use crate::report::{Rule, Tally, elapsed_ms};
use victim::{Fault, Victim};

const ROUNDS: u64 = 5;
/// How many servers are tested at once.
const AT_ONCE: usize = 4;
const HANDLES: usize = 2;
/// Threads per handle.
const THREADS: usize = 3;
/// Long enough that a full disk is soon noticed.
const RESULT_BYTES: usize = 3_000;
/// Calls that fail do so at once; the pause avoids thousands of them.
const PAUSE: Duration = Duration::from_millis(5);
/// More keys than any thread can process.
const KEYS: u64 = 20_000;

pub(super) fn run(bench: &Bench, args: &Args, tally: &Tally) -> Result<(), Trouble> {
    let rounds = args.rounds.unwrap_or(if bench.short { 1 } else { ROUNDS });
    let back_ends =
        args.back_ends(&[BackEnd::Postgres, BackEnd::Redis, BackEnd::RedisCluster, BackEnd::Http]);
    let faults = |back_end: BackEnd| Fault::of(back_end).iter().map(move |fault| (back_end, *fault));
    let jobs: Vec<(BackEnd, Fault)> = back_ends.into_iter().flat_map(faults).collect();
    let rows = Mutex::new(BTreeMap::new());
    // Most of the time is spent waiting for callers to notice.
    in_parallel("server-gone", &jobs, AT_ONCE, |(back_end, fault)| {
        let mut all = Figures::default();
        let label = format!("{}, {}", back_end.name(), fault.name());
        let mut random = bench.random(&label);
        for _ in 0..rounds {
            all.add(one(bench, *back_end, *fault, &mut random, tally)?);
        }
        rows.lock().unwrap_or_else(PoisonError::into_inner).insert(label.clone(), all.row(&label));
        Ok(())
    })?;
    tally.note(Figures::head());
    for row in rows.into_inner().unwrap_or_else(PoisonError::into_inner).into_values() {
        tally.note(row);
    }
    Ok(())
}

/// One fault under load, and its check.
fn one(
    bench: &Bench,
    back_end: BackEnd,
    fault: Fault,
    random: &mut Random,
    tally: &Tally,
) -> Result<Figures, Trouble> {
    let what = format!("{}, {}", back_end.name(), fault.name());
    let case = bench.case()?;
    let mut victim = Victim::start(bench, back_end, fault)?;
    let url = victim.url();
    let open = |url: &str| Caller::open(url, &case.effects).map(|caller| caller.padded(RESULT_BYTES));
    let callers: Result<Vec<Caller>, Trouble> = (0..HANDLES).map(|_| open(&url)).collect();
    let callers = callers?;
    let scene = Scene::default();
    let mut heard = std::thread::scope(|scope| {
        let scene = &scene;
        let numbered = (0..THREADS).flat_map(|thread| callers.iter().map(move |caller| (thread, caller)));
        let working: Vec<_> = numbered
            .enumerate()
            .map(|(number, (_, caller))| scope.spawn(move || work(caller, number, scene)))
            .collect();
        let pause = Duration::from_millis(100 + random.below(300));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            std::thread::sleep(pause);
            scene.stage(&mut victim, &what, tally)
        }));
        scene.set(Moment::Over);
        let mut heard = Vec::new();
        for worker in working {
            heard.extend(worker.join().map_err(|_| Trouble::from("a caller panicked"))?);
        }
        result.map(|()| heard).map_err(|_| Trouble::from("the fault could not be staged: see above"))
    })?;
    tally.faults(1);
    let ran = scene.ran_while_gone.load(Ordering::SeqCst);
    if ran > 0 {
        tally.violated(Rule::NoIntent, format!("{what}: {ran} calls ran while the server was gone"));
    }
    drop(callers);
    settle_all(&open(&patient(&url))?, &mut heard);
    judge(&url, &case.effects, &heard, &what, tally)
}

/// A new caller repeats every call.
fn settle_all(stranger: &Caller, heard: &mut Vec<CallerReply>) {
    let mut keys: Vec<String> = heard.iter().map(|heard| heard.key.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.iter().for_each(|key| heard.extend(stranger.settle(key)));
}

/// The phases of the scenario; each call records the one in which it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Moment {
    #[default]
    Up,
    Gone,
    Back,
    Over,
}

/// The current phase, and what callers have observed.
#[derive(Default)]
struct Scene {
    moment: Mutex<Moment>,
    /// Calls that began and ran while the server was gone.
    ran_while_gone: AtomicUsize,
    /// Callers that got the error while it was gone.
    told: AtomicUsize,
    /// Callers that succeeded again after it came back.
    recovered: AtomicUsize,
}

impl Scene {
    fn moment(&self) -> Moment {
        *self.moment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, moment: Moment) {
        *self.moment.lock().unwrap_or_else(PoisonError::into_inner) = moment;
    }

    /// Takes the server away until every caller has noticed, and brings it back until every caller has noticed.
    fn stage(&self, victim: &mut Victim, what: &str, tally: &Tally) {
        if victim.lose_replies(tally) {
            self.set(Moment::Back);
        } else {
            victim.take_away();
            // A server with a full disk is not gone: small writes still succeed.
            if victim.is_gone() {
                self.set(Moment::Gone);
            }
            let all = wait_for(&self.told);
            tally.expect(all, || format!("{what}: not every caller got LEDGER_UNAVAILABLE"));
            self.set(Moment::Back);
            victim.bring_back();
        }
        let begun = Instant::now();
        let all = wait_for(&self.recovered);
        tally.expect(all, || format!("{what}: not every caller recovered without a restart"));
        let took = elapsed_ms(begun);
        tally.most("slowest recovery after the server was back, in ms", took);
    }
}

/// Waits until all callers are counted.
fn wait_for(count: &AtomicUsize) -> bool {
    let begun = Instant::now();
    while count.load(Ordering::SeqCst) < HANDLES * THREADS {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Calls one operation after another until the end.
fn work(caller: &Caller, number: usize, scene: &Scene) -> Vec<CallerReply> {
    let (mut heard, mut told, mut recovered) = (Vec::new(), Seen::No, Seen::No);
    for key in (0..KEYS).take_while(|_| scene.moment() != Moment::Over) {
        let begun = scene.moment();
        let one = caller.call_seeing(&format!("own-{number}-{key}"), || {
            if begun == Moment::Gone && scene.moment() == Moment::Gone {
                scene.ran_while_gone.fetch_add(1, Ordering::SeqCst);
            }
        });
        if one.is_unavailable() {
            told.once(&scene.told);
        }
        if !one.is_done() {
            std::thread::sleep(PAUSE);
        }
        if one.is_done() && begun == Moment::Back {
            recovered.once(&scene.recovered);
        }
        heard.push(one);
    }
    heard
}

/// Whether a caller was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    No,
    Yes,
}

impl Seen {
    fn once(&mut self, count: &AtomicUsize) {
        if *self == Self::No {
            *self = Self::Yes;
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}
