//! Decides when work is over: when it ends, when its time limit is reached, or at a signal.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onceward::{Failure, STOP_GRACE_MS, span_in_words};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::fault::Fault;

/// How long dispatched work may continue after a signal: long enough for the reply to a request in flight, shorter
/// than the time that process managers wait before they kill.
const GRACE: Duration = Duration::from_millis(1_000);
/// How often the ledger is asked whether the attempt is to end, and how long after its beginning for the first time.
const LOOK: Duration = Duration::from_millis(500);

/// Why work was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// By a signal.
    Signal(i32),
    /// By a stop of its scope, or a cancel of the operation, in another process.
    Requested,
    /// Its time limit was reached.
    Timeout {
        /// The limit.
        limit_ms: u64,
    },
}

impl Stop {
    /// 128 and the signal, as shells have it; the contract's codes for a doubt and a timeout.
    pub(crate) fn exit(self) -> u8 {
        match self {
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(130),
            Self::Requested => 79,
            Self::Timeout { .. } => 10,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(SIGINT) => f.write_str("stopped by SIGINT"),
            Self::Signal(SIGTERM) => f.write_str("stopped by SIGTERM"),
            Self::Signal(signal) => write!(f, "stopped by signal {signal}"),
            Self::Requested => f.write_str("asked to stop"),
            Self::Timeout { limit_ms } => {
                let limit = span_in_words(i64::try_from(*limit_ms).unwrap_or(i64::MAX));
                write!(f, "timed out after {limit}")
            }
        }
    }
}

/// The point of dispatch: passed once, or closed permanently.
#[derive(Debug, Default)]
pub(crate) struct DispatchGate {
    state: Mutex<GateState>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateState {
    #[default]
    Open,
    Passed,
    Closed(Stop),
}

impl DispatchGate {
    /// Passes, unless it is closed. `note` is written first: without the note nothing may pass.
    pub(crate) fn pass<T>(&self, note: impl FnOnce() -> Result<T, Failure>) -> Result<T, Fault> {
        let mut state = lock(&self.state);
        if let GateState::Closed(stop) = *state {
            return Err(Fault::no_effect(format!("{stop} before anything was dispatched")));
        }
        let token = note().map_err(|failure| Fault::no_effect(failure.reason()))?;
        *state = GateState::Passed;
        Ok(token)
    }

    /// Closes it, unless it has been passed. From now on nothing passes.
    fn close(&self, stop: Stop) -> GateState {
        let mut state = lock(&self.state);
        if *state == GateState::Open {
            *state = GateState::Closed(stop);
        }
        *state
    }

    pub(crate) fn passed(&self) -> bool {
        *lock(&self.state) == GateState::Passed
    }
}

/// How work ended.
#[derive(Debug)]
pub(crate) enum Supervised<T> {
    /// It ended on its own.
    Finished(T),
    /// It panicked. The panic has been printed.
    Panicked,
    /// It was stopped before its dispatch, which it can no longer reach.
    StoppedBefore(Stop),
    /// It was to be stopped after its dispatch, and how far it got is unknown.
    StoppedAfter(Stop),
}

/// What a signal that comes now means.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing is under way: the process answers and ends.
    #[default]
    Idle,
    /// Work is under way, and its supervisor decides.
    Working,
    /// The work is over and its answer is being written.
    Answering,
}

type OnIdleSignal = Box<dyn Fn(Stop) + Send>;

/// Watches over work, time and signals. Clones watch over the same.
#[derive(Clone, Default)]
pub(crate) struct Supervisor {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    news: Condvar,
    on_idle_signal: Mutex<Option<OnIdleSignal>>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    signal: Option<i32>,
}

impl Supervisor {
    /// Listens for signals from now on.
    pub(crate) fn listen(&self) -> std::io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let supervisor = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                supervisor.take(signal);
            }
        })?;
        Ok(())
    }

    /// What happens at a signal when nothing is under way. It must end the process.
    pub(crate) fn on_idle_signal(&self, words: impl Fn(Stop) + Send + 'static) {
        *lock(&self.inner.on_idle_signal) = Some(Box::new(words));
    }

    /// The signal that was received, if any.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        lock(&self.inner.state).signal.map(Stop::Signal)
    }

    /// The answer has been given, or another piece of work begins.
    pub(crate) fn idle(&self) {
        lock(&self.inner.state).phase = Phase::Idle;
    }

    /// Does the work on its own thread, and decides when it is over. 0 means no limit.
    pub(crate) fn supervise<T: Send + 'static>(
        &self,
        limit_ms: u64,
        gate: &DispatchGate,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Supervised<T> {
        self.supervise_attempt(limit_ms, gate, None, work)
    }

    /// The same for work that another process may ask to end. `is_asked` reads that from the ledger.
    pub(crate) fn supervise_attempt<T: Send + 'static>(
        &self,
        limit_ms: u64,
        gate: &DispatchGate,
        is_asked: Option<&dyn Fn() -> bool>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Supervised<T> {
        let result = Arc::new(Mutex::new(None));
        let (told, inner) = (Arc::clone(&result), Arc::clone(&self.inner));
        lock(&self.inner.state).phase = Phase::Working;
        let worker = std::thread::Builder::new().name("work".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(work)).ok();
            let state = lock(&inner.state);
            *lock(&told) = Some(ended);
            drop(state);
            inner.news.notify_all();
        });
        let supervised = match worker {
            Ok(_) => self.watch(limit_ms, gate, is_asked, &result),
            Err(_) => Supervised::Panicked,
        };
        lock(&self.inner.state).phase = Phase::Answering;
        supervised
    }

    fn watch<T>(
        &self,
        limit_ms: u64,
        gate: &DispatchGate,
        is_asked: Option<&dyn Fn() -> bool>,
        result: &Mutex<Option<Option<T>>>,
    ) -> Supervised<T> {
        let begun = Instant::now();
        let limit = Duration::from_millis(limit_ms);
        let (mut looked, mut requested) = (begun, None);
        let mut stopping: Option<(Stop, Instant)> = None;
        let mut state = lock(&self.inner.state);
        loop {
            if let Some(ended) = lock(result).take() {
                return ended.map_or(Supervised::Panicked, Supervised::Finished);
            }
            if let Some(is_asked) = is_asked.filter(|_| stopping.is_none() && looked.elapsed() >= LOOK) {
                // Signals arrive while the ledger is read.
                drop(state);
                requested = is_asked().then_some(Stop::Requested);
                looked = Instant::now();
                state = lock(&self.inner.state);
                if lock(result).is_some() {
                    continue;
                }
            }
            if stopping.is_none() {
                let signal = state.signal.map(Stop::Signal);
                let timeout =
                    (limit_ms > 0 && begun.elapsed() >= limit).then_some(Stop::Timeout { limit_ms });
                if let Some(stop) = signal.or(requested).or(timeout) {
                    if gate.close(stop) != GateState::Passed {
                        return Supervised::StoppedBefore(stop);
                    }
                    stopping = Some((stop, Instant::now() + grace(stop)));
                }
            }
            let nap = match stopping {
                Some((stop, until)) if Instant::now() >= until => return Supervised::StoppedAfter(stop),
                Some((_, until)) => until.saturating_duration_since(Instant::now()),
                None if limit_ms > 0 => limit.saturating_sub(begun.elapsed()),
                None => Duration::from_secs(3_600),
            };
            let nap = if is_asked.is_some() && stopping.is_none() { nap.min(LOOK) } else { nap };
            let woken = self.inner.news.wait_timeout(state, nap);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take(&self, signal: i32) {
        let mut state = lock(&self.inner.state);
        state.signal = Some(signal);
        self.inner.news.notify_all();
        // While we hold this lock no new work can start, so the answer stays true until the process has ended.
        if state.phase == Phase::Idle
            && let Some(words) = &*lock(&self.inner.on_idle_signal)
        {
            words(Stop::Signal(signal));
        }
    }
}

/// How long dispatched work may continue.
fn grace(stop: Stop) -> Duration {
    match stop {
        Stop::Signal(_) => GRACE,
        Stop::Requested => Duration::from_millis(STOP_GRACE_MS),
        Stop::Timeout { .. } => Duration::ZERO,
    }
}

/// A lock whose holder panicked is still a lock: what it guards is whole at every moment.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_that_ends_is_finished() {
        let supervisor = Supervisor::default();
        assert!(matches!(supervisor.supervise(0, &DispatchGate::default(), || 7), Supervised::Finished(7)));
        let panicked = supervisor.supervise(0, &DispatchGate::default(), || std::panic::panic_any(1));
        assert!(matches!(panicked, Supervised::Panicked));
    }

    #[test]
    fn time_that_is_over_closes_the_gate() {
        let (supervisor, gate) = (Supervisor::default(), Arc::new(DispatchGate::default()));
        let (release, held) = mpsc::channel::<()>();
        let late = Arc::clone(&gate);
        let (tell, told) = mpsc::channel();
        let supervised = supervisor.supervise(20, &gate, move || {
            held.recv().unwrap_err();
            tell.send(late.pass(|| Ok(())).is_err()).unwrap();
        });
        assert!(matches!(supervised, Supervised::StoppedBefore(Stop::Timeout { limit_ms: 20 })));
        drop(release);
        assert!(told.recv().unwrap(), "nothing passes after the end");
    }

    #[test]
    fn work_that_has_been_dispatched_is_given_a_moment_and_then_in_doubt() {
        let (supervisor, gate) = (Supervisor::default(), Arc::new(DispatchGate::default()));
        let (release, held) = mpsc::channel::<()>();
        let (inside, signalled) = (Arc::clone(&gate), supervisor.clone());
        let supervised = supervisor.supervise(0, &gate, move || {
            inside.pass(|| Ok(())).unwrap();
            signalled.take(SIGTERM);
            held.recv().unwrap_err();
        });
        assert!(matches!(supervised, Supervised::StoppedAfter(Stop::Signal(SIGTERM))));
        drop(release);
    }

    #[test]
    fn another_process_can_ask_for_the_end_of_an_attempt() {
        let supervisor = Supervisor::default();
        for (dispatches, answers) in [(false, false), (true, true)] {
            let gate = Arc::new(DispatchGate::default());
            let (release, held) = mpsc::channel::<()>();
            let inside = Arc::clone(&gate);
            let release = Mutex::new(Some(release));
            let is_asked = || {
                // Dispatched work ends after the stop was seen, with its answer.
                if answers {
                    drop(lock(&release).take());
                }
                true
            };
            let supervised = supervisor.supervise_attempt(0, &gate, Some(&is_asked), move || {
                if dispatches {
                    inside.pass(|| Ok(())).unwrap();
                }
                held.recv().unwrap_err();
                7
            });
            assert!(
                matches!(
                    (supervised, dispatches),
                    (Supervised::StoppedBefore(Stop::Requested), false) | (Supervised::Finished(7), true)
                ),
                "dispatched: {dispatches}"
            );
        }
    }

    #[test]
    fn work_that_ends_in_that_moment_is_finished() {
        let (supervisor, gate) = (Supervisor::default(), Arc::new(DispatchGate::default()));
        let (inside, signalled) = (Arc::clone(&gate), supervisor.clone());
        let supervised = supervisor.supervise(0, &gate, move || {
            inside.pass(|| Ok(())).unwrap();
            signalled.take(SIGINT);
            7
        });
        assert!(matches!(supervised, Supervised::Finished(7)));
        assert_eq!(supervisor.stopped(), Some(Stop::Signal(SIGINT)));
    }
}
