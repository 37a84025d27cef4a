//! Schedules, crashes and suspends workers at random. The same seed makes the same choices.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use onceward::Clock;

use super::Environment;
use super::clock::VirtualClock;
use super::history::Broken;
use crate::random::Random;

/// How many of a thousand steps end in a crash, and how many begin a suspension.
const CRASH: u64 = 25;
const STOP: u64 = 25;
/// Longer than the lease, shorter than the quarantine.
const SLEEP_MS: std::ops::Range<u64> = 1_000..50_000;
/// Longer than lease and quarantine together.
const LONG_SLEEP_MS: std::ops::Range<u64> = 60_000..200_000;
/// A run with more steps is considered stuck.
const MAX_STEPS: u32 = 200_000;
/// How often one worker is restarted.
const MAX_RESTARTS: u32 = 3;

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Start = Box<dyn Fn() -> Task>;

/// Runs workers, one step at a time.
pub struct Executor {
    clock: VirtualClock,
    random: Random,
    environment: Environment,
    workers: Vec<Worker>,
    /// How many workers crashed.
    pub crashes: u64,
    /// How many workers were suspended.
    pub stops: u64,
}

struct Worker {
    start: Start,
    task: Option<Task>,
    ready: Arc<Ready>,
    restarts: u32,
    stopped_until_ms: Option<i64>,
    was_stopped: bool,
}

struct Ready(AtomicBool);

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Executor {
    /// An executor without workers.
    #[must_use]
    pub fn new(clock: VirtualClock, random: Random, environment: Environment) -> Self {
        Self { clock, random, environment, workers: Vec::new(), crashes: 0, stops: 0 }
    }

    /// Adds a worker that can be restarted.
    pub fn spawn(&mut self, start: Start) {
        let task = Some(start());
        let ready = Arc::new(Ready(AtomicBool::new(true)));
        self.workers.push(Worker {
            start,
            task,
            ready,
            restarts: 0,
            stopped_until_ms: None,
            was_stopped: false,
        });
    }

    /// Runs all workers to completion.
    ///
    /// # Errors
    /// When they do not finish.
    pub fn run(&mut self) -> Result<(), Broken> {
        for _ in 0..MAX_STEPS {
            let now_ms = self.clock.now_ms();
            let able: Vec<usize> =
                (0..self.workers.len()).filter(|at| self.workers[*at].is_able(now_ms)).collect();
            if able.is_empty() {
                if !self.wait() {
                    return Ok(());
                }
                continue;
            }
            let at = able[self.random.index(able.len())];
            self.step(at, now_ms);
        }
        Err(Broken::new("the run does not finish"))
    }

    /// Lets time pass until a worker can continue. Returns false if none ever will.
    fn wait(&mut self) -> bool {
        if self.workers.iter().all(|worker| worker.task.is_none()) {
            return false;
        }
        let now_ms = self.clock.now_ms();
        let stopped =
            self.workers.iter().filter_map(|worker| worker.stopped_until_ms).filter(|until| *until > now_ms);
        match stopped.chain(self.clock.next_ms()).min() {
            Some(next_ms) => self.clock.advance_to(next_ms),
            None => return false,
        }
        true
    }

    fn step(&mut self, at: usize, now_ms: i64) {
        let worker = &mut self.workers[at];
        if worker.restarts < MAX_RESTARTS && self.random.permille(CRASH) {
            // A crash drops everything that the worker held; it restarts as a new process.
            worker.task = None;
            worker.task = Some((worker.start)());
            worker.ready.0.store(true, Ordering::SeqCst);
            worker.restarts += 1;
            worker.was_stopped = false;
            self.crashes += 1;
            return;
        }
        if !worker.was_stopped && self.random.permille(STOP) {
            let range = if self.environment == Environment::LongSleep { LONG_SLEEP_MS } else { SLEEP_MS };
            let span_ms = range.start + self.random.below(range.end - range.start);
            worker.stopped_until_ms = Some(now_ms.saturating_add_unsigned(span_ms));
            // At most once per worker: two suspensions in a row could exceed the quarantine.
            worker.was_stopped = true;
            self.stops += 1;
            return;
        }
        worker.poll();
    }

    /// Drives one future to completion while time passes, without faults of the executor.
    ///
    /// # Errors
    /// When it does not finish.
    pub fn drive<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Broken> {
        let ready = Arc::new(Ready(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&ready));
        let mut future = std::pin::pin!(future);
        for _ in 0..MAX_STEPS {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(output);
            }
            if !ready.0.swap(false, Ordering::SeqCst)
                && let Some(next_ms) = self.clock.next_ms()
            {
                self.clock.advance_to(next_ms);
            }
        }
        Err(Broken::new("the final check does not finish"))
    }
}

impl Worker {
    fn is_able(&self, now_ms: i64) -> bool {
        let awake = self.stopped_until_ms.is_none_or(|until| until <= now_ms);
        self.task.is_some() && awake && self.ready.0.load(Ordering::SeqCst)
    }

    fn poll(&mut self) {
        let Some(task) = &mut self.task else { return };
        self.ready.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.ready));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.task = None;
        }
    }
}
