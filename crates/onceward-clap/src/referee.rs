//! Who decides when the work is over: the work itself, its time, or a signal.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onceward::Failure;
use onceward::answer::span_in_words;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::fault::Fault;

/// How long work that has been dispatched may go on after a signal: long enough to hear of a request that is under way,
/// shorter than the time that supervisors leave before they kill.
const GRACE: Duration = Duration::from_millis(1_000);

/// Why work was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Somebody asked for it.
    Signal(i32),
    /// Its time is over.
    Timeout {
        /// How long it was given.
        limit_ms: u64,
    },
}

impl Stop {
    /// 128 and the signal, as shells have it; the contract's 10 for a timeout.
    pub(crate) fn exit(self) -> u8 {
        match self {
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(130),
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
            Self::Timeout { limit_ms } => {
                let limit = span_in_words(i64::try_from(*limit_ms).unwrap_or(i64::MAX));
                write!(f, "timed out after {limit}")
            }
        }
    }
}

/// The point of dispatch: passed once, or closed for good.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    passage: Mutex<Passage>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    #[default]
    Open,
    Passed,
    Closed(Stop),
}

impl Gate {
    /// Passes, unless it is closed. `note` is written first: without the note nobody may pass.
    pub(crate) fn pass<T>(&self, note: impl FnOnce() -> Result<T, Failure>) -> Result<T, Fault> {
        let mut passage = lock(&self.passage);
        if let Passage::Closed(stop) = *passage {
            return Err(Fault::no_effect(format!("{stop} before anything was dispatched")));
        }
        let token = note().map_err(|failure| Fault::no_effect(failure.reason()))?;
        *passage = Passage::Passed;
        Ok(token)
    }

    /// Closes it, unless it has been passed. Whoever comes now does not pass any more.
    fn close(&self, stop: Stop) -> Passage {
        let mut passage = lock(&self.passage);
        if *passage == Passage::Open {
            *passage = Passage::Closed(stop);
        }
        *passage
    }

    pub(crate) fn passed(&self) -> bool {
        *lock(&self.passage) == Passage::Passed
    }
}

/// What work came to.
#[derive(Debug)]
pub(crate) enum Supervised<T> {
    /// It ended by itself.
    Finished(T),
    /// Its code gave up. The panic has been printed.
    Panicked,
    /// It was stopped before its dispatch, and will not get there any more.
    StoppedBefore(Stop),
    /// It was to be stopped after its dispatch, and nobody can say how far it got.
    StoppedAfter(Stop),
}

/// What a signal that comes now means.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing is under way: the process ends with the last words.
    #[default]
    Idle,
    /// Work is under way, and whoever supervises it decides.
    Working,
    /// The work is over and its answer is on its way.
    Answering,
}

type LastWords = Box<dyn Fn(Stop) + Send>;

/// Watches over work, time and signals. Clones watch over the same.
#[derive(Clone, Default)]
pub(crate) struct Referee {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    board: Mutex<Board>,
    news: Condvar,
    last_words: Mutex<Option<LastWords>>,
}

#[derive(Default)]
struct Board {
    phase: Phase,
    signal: Option<i32>,
}

impl Referee {
    /// Listens for signals from now on.
    pub(crate) fn listen(&self) -> std::io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let referee = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                referee.take(signal);
            }
        })?;
        Ok(())
    }

    /// What is said, and done, when a signal comes and nothing is under way. It ends the process.
    pub(crate) fn last_words(&self, words: impl Fn(Stop) + Send + 'static) {
        *lock(&self.inner.last_words) = Some(Box::new(words));
    }

    /// The signal that has come, where one has.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        lock(&self.inner.board).signal.map(Stop::Signal)
    }

    /// The answer has been given, or another piece of work begins.
    pub(crate) fn idle(&self) {
        lock(&self.inner.board).phase = Phase::Idle;
    }

    /// Does the work on a thread of its own, and decides when it is over. No limit where `limit_ms` is 0.
    pub(crate) fn supervise<T: Send + 'static>(
        &self,
        limit_ms: u64,
        gate: &Gate,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Supervised<T> {
        let result = Arc::new(Mutex::new(None));
        let (told, inner) = (Arc::clone(&result), Arc::clone(&self.inner));
        lock(&self.inner.board).phase = Phase::Working;
        let worker = std::thread::Builder::new().name("work".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(work)).ok();
            let board = lock(&inner.board);
            *lock(&told) = Some(ended);
            drop(board);
            inner.news.notify_all();
        });
        let supervised = match worker {
            Ok(_) => self.watch(limit_ms, gate, &result),
            Err(_) => Supervised::Panicked,
        };
        lock(&self.inner.board).phase = Phase::Answering;
        supervised
    }

    fn watch<T>(&self, limit_ms: u64, gate: &Gate, result: &Mutex<Option<Option<T>>>) -> Supervised<T> {
        let begun = Instant::now();
        let limit = Duration::from_millis(limit_ms);
        let mut stopping: Option<(Stop, Instant)> = None;
        let mut board = lock(&self.inner.board);
        loop {
            if let Some(ended) = lock(result).take() {
                return ended.map_or(Supervised::Panicked, Supervised::Finished);
            }
            if stopping.is_none() {
                let signal = board.signal.map(Stop::Signal);
                let timeout =
                    (limit_ms > 0 && begun.elapsed() >= limit).then_some(Stop::Timeout { limit_ms });
                if let Some(stop) = signal.or(timeout) {
                    if gate.close(stop) != Passage::Passed {
                        return Supervised::StoppedBefore(stop);
                    }
                    let grace = if signal.is_some() { GRACE } else { Duration::ZERO };
                    stopping = Some((stop, Instant::now() + grace));
                }
            }
            let nap = match stopping {
                Some((stop, until)) if Instant::now() >= until => return Supervised::StoppedAfter(stop),
                Some((_, until)) => until.saturating_duration_since(Instant::now()),
                None if limit_ms > 0 => limit.saturating_sub(begun.elapsed()),
                None => Duration::from_secs(3_600),
            };
            let woken = self.inner.news.wait_timeout(board, nap);
            board = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn take(&self, signal: i32) {
        let mut board = lock(&self.inner.board);
        board.signal = Some(signal);
        self.inner.news.notify_all();
        // Who holds the board lets nobody begin to work: what is said now stays true until the process has ended.
        if board.phase == Phase::Idle
            && let Some(words) = &*lock(&self.inner.last_words)
        {
            words(Stop::Signal(signal));
        }
    }
}

/// A lock whose holder gave up is still a lock: what it guards is whole at every moment.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_that_ends_is_finished() {
        let referee = Referee::default();
        assert!(matches!(referee.supervise(0, &Gate::default(), || 7), Supervised::Finished(7)));
        let panicked = referee.supervise(0, &Gate::default(), || std::panic::panic_any(1));
        assert!(matches!(panicked, Supervised::Panicked));
    }

    #[test]
    fn time_that_is_over_closes_the_gate() {
        let (referee, gate) = (Referee::default(), Arc::new(Gate::default()));
        let (release, held) = mpsc::channel::<()>();
        let late = Arc::clone(&gate);
        let (tell, told) = mpsc::channel();
        let supervised = referee.supervise(20, &gate, move || {
            held.recv().unwrap_err();
            tell.send(late.pass(|| Ok(())).is_err()).unwrap();
        });
        assert!(matches!(supervised, Supervised::StoppedBefore(Stop::Timeout { limit_ms: 20 })));
        drop(release);
        assert!(told.recv().unwrap(), "who comes after the end does not pass");
    }

    #[test]
    fn work_that_has_been_dispatched_is_given_a_moment_and_then_in_doubt() {
        let (referee, gate) = (Referee::default(), Arc::new(Gate::default()));
        let (release, held) = mpsc::channel::<()>();
        let (inside, signalled) = (Arc::clone(&gate), referee.clone());
        let supervised = referee.supervise(0, &gate, move || {
            inside.pass(|| Ok(())).unwrap();
            signalled.take(SIGTERM);
            held.recv().unwrap_err();
        });
        assert!(matches!(supervised, Supervised::StoppedAfter(Stop::Signal(SIGTERM))));
        drop(release);
    }

    #[test]
    fn work_that_ends_in_that_moment_is_finished() {
        let (referee, gate) = (Referee::default(), Arc::new(Gate::default()));
        let (inside, signalled) = (Arc::clone(&gate), referee.clone());
        let supervised = referee.supervise(0, &gate, move || {
            inside.pass(|| Ok(())).unwrap();
            signalled.take(SIGINT);
            7
        });
        assert!(matches!(supervised, Supervised::Finished(7)));
        assert_eq!(referee.stopped(), Some(Stop::Signal(SIGINT)));
    }
}
