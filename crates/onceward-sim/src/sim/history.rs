//! Every write of a run, in order, and what must hold between one record of an operation and the next.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward::{OperationId, Record, State};

use super::Environment;
use super::world::World;

/// The writes of each operation.
#[derive(Debug, Default)]
pub struct History {
    writes: Mutex<BTreeMap<OperationId, Vec<Write>>>,
    /// Whether the scope of the workers is stopped now.
    stopped: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
enum Write {
    Record {
        version: u64,
        state: State,
        attempt: u32,
        /// Whether someone cancelled it while it ran: it cannot begin again.
        cancelled: bool,
        /// Whether it was written in a stopped scope, where nothing but a compensation may begin.
        stopped: bool,
        /// The round of the undo that has begun, if one has.
        #[expect(dead_code, reason = "it is printed with a violation")]
        undo: Option<u32>,
    },
    Deleted,
}

impl Write {
    /// Whether this is the intent of that attempt.
    fn begins(self, number: u32) -> bool {
        match self {
            Self::Record { state, attempt, .. } => state == State::Running && attempt == number,
            Self::Deleted => false,
        }
    }
}

impl History {
    /// Notes a record that was written.
    pub fn note_write(&self, record: &Record) {
        let stopped = self.stopped.load(Ordering::SeqCst)
            && record.scope == onceward::DEFAULT_SCOPE
            && record.detail.undoes.is_none();
        let write = Write::Record {
            version: record.version,
            state: record.state,
            attempt: record.attempt,
            cancelled: record.detail.cancelled_by.is_some(),
            stopped,
            undo: record.detail.undone.as_ref().map(|mark| mark.round),
        };
        self.writes().entry(record.id.clone()).or_default().push(write);
    }

    /// Notes that the scope of the workers was stopped, or continues.
    pub fn note_stop(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::SeqCst);
    }

    /// Notes that a record was deleted.
    pub fn note_delete(&self, id: &OperationId) {
        self.writes().entry(id.clone()).or_default().push(Write::Deleted);
    }

    /// Checks every write against the one before it, and every effect against the intents. Returns how many writes
    /// there were.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self, world: &World) -> Result<u64, Broken> {
        let writes = self.writes();
        for (id, writes) in writes.iter() {
            let broken = |what: &str| Broken::new(format!("{what}: {id}, {writes:?}"));
            let mut before = Write::Deleted;
            for write in writes {
                follows(before, *write).map_err(broken)?;
                before = *write;
            }
            let began = |attempt: u32| writes.iter().any(|write| write.begins(attempt));
            if !world.effects(id.as_str()).into_iter().all(began) {
                return Err(broken("an effect without an intent"));
            }
        }
        Ok(writes.values().map(|writes| writes.len() as u64).sum())
    }

    fn writes(&self) -> MutexGuard<'_, BTreeMap<OperationId, Vec<Write>>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a write may follow another one of the same operation.
fn follows(before: Write, after: Write) -> Result<(), &'static str> {
    match (before, after) {
        (Write::Deleted, Write::Deleted) => Err("what was deleted is deleted again"),
        (Write::Deleted, Write::Record { stopped: true, .. }) => Err("something began in a stopped scope"),
        (Write::Deleted, Write::Record { version, state, attempt, .. }) => {
            let is_first = match state {
                State::Staged => attempt == 0,
                // Someone's word about an equal operation answers a new key, which is done at once.
                State::Running | State::Done => attempt == 1,
                State::Failed | State::InDoubt | State::Cancelled | State::Expired => false,
            };
            let what = "the first record is neither staged nor the first attempt";
            if version == 1 && is_first { Ok(()) } else { Err(what) }
        }
        (Write::Record { state, .. }, Write::Deleted) => match state {
            State::Expired => Ok(()),
            State::Staged
            | State::Running
            | State::Done
            | State::Failed
            | State::InDoubt
            | State::Cancelled => Err("something else than a tombstone was deleted"),
        },
        (
            Write::Record { version, state, attempt, cancelled, .. },
            Write::Record { version: v, state: s, attempt: a, stopped, .. },
        ) => {
            if v != version + 1 {
                return Err("a version was skipped or written twice");
            }
            let begins = s == State::Running && a == attempt + 1;
            if a != attempt && !begins {
                return Err("the number of the attempt changed without a new attempt");
            }
            if begins && stopped {
                return Err("an attempt began in a stopped scope");
            }
            if cancelled && (begins || s == State::Failed) {
                return Err("what was cancelled while it ran failed or began again");
            }
            if may_become(state, s, begins) || (cancelled && s == State::Cancelled) {
                Ok(())
            } else {
                Err("no state may follow this one in this way")
            }
        }
    }
}

/// The transitions of the contract. `begins` says whether a new attempt begins.
fn may_become(before: State, after: State, begins: bool) -> bool {
    match before {
        State::Staged => begins || after == State::Cancelled || after == State::Staged,
        // A renewal, a request to stop, the attempt's ending. If the owner is gone and nothing was dispatched, it can
        // be cancelled; the next attempt also begins if the class allows it.
        State::Running => !matches!(after, State::Staged | State::Expired),
        // The class allows it, a probe said no, a person settled it, or its owner came back.
        State::InDoubt => !matches!(after, State::Staged | State::Cancelled | State::Expired),
        State::Failed => match after {
            State::Running => begins,
            // A late answer may contradict the failure.
            State::Failed | State::Done | State::InDoubt | State::Cancelled | State::Expired => true,
            State::Staged => false,
        },
        // A result that was acknowledged is replayed until it expires.
        State::Done => matches!(after, State::Done | State::Expired),
        State::Cancelled => matches!(after, State::Cancelled | State::Expired),
        // A tombstone stays, or the next occurrence of its key begins.
        State::Expired => begins || after == State::Expired,
    }
}

/// A violated rule, with the seed that reproduces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    what: String,
    seed: Option<(u64, Environment)>,
    /// The function that repeats the run.
    run: &'static str,
}

impl Broken {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), seed: None, run: "sim::run" }
    }

    /// Adds every write of the run.
    pub(crate) fn with(self, history: &History) -> Self {
        Self { what: format!("{}; {history:?}", self.what), ..self }
    }

    pub(crate) fn of_clients(self, seed: u64, environment: Environment) -> Self {
        Self { run: "sim::clients::run", ..self.of(seed, environment) }
    }

    pub(crate) fn of_events(self, seed: u64, environment: Environment) -> Self {
        Self { run: "sim::events::run", ..self.of(seed, environment) }
    }

    pub(crate) fn of(self, seed: u64, environment: Environment) -> Self {
        Self { seed: Some((seed, environment)), ..self }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match self.seed {
            Some((seed, environment)) => {
                write!(
                    f,
                    " (seed {seed}, {environment:?}: onceward_sim::{}({seed}, Environment::{environment:?}))",
                    self.run
                )
            }
            None => Ok(()),
        }
    }
}

impl std::error::Error for Broken {}
