//! Callers of a ledger on a server: each has its own connection, and records its answers.

mod judge;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onceward::{Blocking, Code, Failure, Happened, Ledger, Operation, OperationId, Ran, StoreError, Terms};

use crate::Trouble;
use crate::downstream;
use crate::process::PATIENCE;
use crate::report::{Rule, Tally};

pub(crate) use judge::{Figures, judge, patient};

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(50);

static EFFECTS: AtomicU64 = AtomicU64::new(0);

/// One caller, with its own handle on the ledger.
pub(crate) struct Caller {
    ledger: Blocking,
    effects: PathBuf,
    terms: Terms,
    padding: String,
}

/// The answer to a call, and whether its own code ran.
#[derive(Debug, Clone)]
pub(crate) struct CallerReply {
    pub(crate) key: String,
    pub(crate) ran: bool,
    pub(crate) answer: CallerAnswer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallerAnswer {
    /// Done, with this result: the line of the effect, as the downstream has it.
    Done(String),
    Refused {
        code: Code,
        happened: Option<Happened>,
        /// Whether the error says that this call ran the operation.
        ran: Ran,
        words: String,
    },
}

impl Caller {
    /// Opens the ledger, and waits for a server that is still starting.
    pub(crate) fn open(url: &str, effects: &Path) -> Result<Self, Trouble> {
        // A server on a busy machine may need longer than the URL allows.
        let begun = Instant::now();
        let store = loop {
            match onceward_store::open(url) {
                Err(StoreError::Unavailable { .. }) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(PAUSE);
                }
                opened => break opened?,
            }
        };
        let ledger = Ledger::new(store).blocking();
        // A short lease: an owner that lost its server is soon presumed dead, so that the test need not wait.
        let terms = Terms { lease_ms: 1_000, wait_ms: 5_000, ..Terms::default() };
        Ok(Self { ledger, effects: effects.to_owned(), terms, padding: String::new() })
    }

    /// Makes the results longer by this many bytes.
    pub(crate) fn padded(self, bytes: usize) -> Self {
        Self { padding: format!(" {}", ".".repeat(bytes)), ..self }
    }

    /// Sets the lease, and how long a caller waits for another's attempt.
    pub(crate) fn patient(mut self, lease_ms: u64, wait_ms: u64) -> Self {
        (self.terms.lease_ms, self.terms.wait_ms) = (lease_ms, wait_ms);
        self
    }

    /// Calls the operation with this key.
    pub(crate) fn call(&self, key: &str) -> CallerReply {
        self.call_seeing(key, || ())
    }

    /// The same; `see` is called just before the effect.
    pub(crate) fn call_seeing(&self, key: &str, see: impl Fn() + Sync) -> CallerReply {
        let ran = AtomicBool::new(false);
        let operation = operation(key).terms(self.terms.clone());
        let result = self.ledger.run(operation, |attempt| {
            see();
            let sent = attempt.dispatch()?;
            ran.store(true, Ordering::SeqCst);
            let number = EFFECTS.fetch_add(1, Ordering::Relaxed);
            let (id, attempt) = (attempt.operation(), attempt.number());
            let line = format!("{id} {attempt} {}-{number}", std::process::id());
            downstream::append(&self.effects, &line).map_err(Failure::in_doubt)?;
            Ok(sent.created(&format!("{line}{}", self.padding)))
        });
        let answer = match result {
            Ok(receipt) => CallerAnswer::Done(result_of(receipt.data())),
            Err(error) => {
                let (happened, ran) = (error.happened(), error.ran());
                CallerAnswer::Refused { code: error.code(), happened, ran, words: error.to_string() }
            }
        };
        CallerReply { key: key.to_owned(), ran: ran.load(Ordering::SeqCst), answer }
    }

    /// Repeats the call until the answer is final, and returns all answers.
    pub(crate) fn settle(&self, key: &str) -> Vec<CallerReply> {
        let (begun, mut heard) = (Instant::now(), Vec::new());
        loop {
            let one = self.call(key);
            let over = one.is_settled() || begun.elapsed() > PATIENCE;
            heard.push(one);
            if over {
                return heard;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl CallerReply {
    /// Whether the answer is final, so that an immediate retry would not change it.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.answer {
            CallerAnswer::Done(_) => true,
            CallerAnswer::Refused { code, .. } => !matches!(code, Code::LedgerUnavailable | Code::InProgress),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.answer, CallerAnswer::Done(_))
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self.answer, CallerAnswer::Refused { code: Code::LedgerUnavailable, .. })
    }

    /// A caller that is answered that nothing happened, or that it ran nothing, must not have run.
    fn check(&self, what: &str, tally: &Tally) {
        if let CallerAnswer::Refused { code, happened, ran, words } = &self.answer
            && (matches!(happened, None | Some(Happened::No)) || *ran == Ran::No)
            && self.ran
        {
            let told = format!("{what}: {} had its effect and got {code}: {words}", self.key);
            tally.violated(Rule::FalseFailed, told);
        }
    }
}

/// The operation with this key. Its downstream has neither keys nor a probe.
pub(crate) fn operation(key: &str) -> Operation {
    Operation::new("effect").scope("fleet").key(key)
}

/// The operation's id, by which its effects are counted.
pub(crate) fn id_of(key: &str) -> Result<OperationId, Trouble> {
    Ok(operation(key).intent()?.id)
}

/// The line of the effect in a stored result, without its padding.
fn result_of(data: Option<&str>) -> String {
    let text: String = data.and_then(|data| serde_json::from_str(data).ok()).unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
