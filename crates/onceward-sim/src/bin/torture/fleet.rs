//! Callers of a ledger on a server: each has its own way there, and remembers what it was told.

mod judge;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onceward::{Blocking, Code, Failure, Happened, Ledger, Operation, OperationId, Ran, Terms};

use crate::Trouble;
use crate::downstream;
use crate::report::{Rule, Tally};

pub(crate) use judge::{Figures, judge};

/// How long a caller tries to get an answer that settles the matter.
const SETTLED_WITHIN: Duration = Duration::from_secs(40);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

static EFFECTS: AtomicU64 = AtomicU64::new(0);

/// One caller, with a handle of its own on the ledger.
pub(crate) struct Caller {
    ledger: Blocking,
    effects: PathBuf,
    terms: Terms,
    padding: String,
}

/// What a call was told, and whether its own code ran for it.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) key: String,
    pub(crate) ran: bool,
    pub(crate) answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done, with this result: the line of the effect, as the downstream has it.
    Done(String),
    Refused {
        code: Code,
        happened: Option<Happened>,
        /// What it was told of its own part.
        ran: Ran,
        words: String,
    },
}

impl Caller {
    /// Opens the ledger. One that is just starting is waited for.
    pub(crate) fn open(url: &str, effects: &Path) -> Result<Self, Trouble> {
        let ledger = Ledger::new(onceward_store::open(url)?).blocking();
        // An owner that lost its server is presumed dead soon, so that the test need not wait for it.
        let terms = Terms { lease_ms: 1_000, wait_ms: 5_000, ..Terms::default() };
        Ok(Self { ledger, effects: effects.to_owned(), terms, padding: String::new() })
    }

    /// Results are so much longer than they need be.
    pub(crate) fn padded(self, bytes: usize) -> Self {
        Self { padding: format!(" {}", ".".repeat(bytes)), ..self }
    }

    /// How long an attempt may be silent, and how long one waits for another's.
    pub(crate) fn patient(mut self, lease_ms: u64, wait_ms: u64) -> Self {
        (self.terms.lease_ms, self.terms.wait_ms) = (lease_ms, wait_ms);
        self
    }

    /// Lets the operation of that key happen once.
    pub(crate) fn call(&self, key: &str) -> Heard {
        self.call_seeing(key, || ())
    }

    /// The same; `see` is called just before the effect.
    pub(crate) fn call_seeing(&self, key: &str, see: impl Fn() + Sync) -> Heard {
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
            Ok(receipt) => Answer::Done(result_of(receipt.data())),
            Err(error) => {
                let (happened, ran) = (error.happened(), error.ran());
                Answer::Refused { code: error.code(), happened, ran, words: error.to_string() }
            }
        };
        Heard { key: key.to_owned(), ran: ran.load(Ordering::SeqCst), answer }
    }

    /// The same, again and again until nothing is left to wait for. All answers count.
    pub(crate) fn settle(&self, key: &str) -> Vec<Heard> {
        let (begun, mut heard) = (Instant::now(), Vec::new());
        loop {
            let one = self.call(key);
            let over = one.is_settled() || begun.elapsed() > SETTLED_WITHIN;
            heard.push(one);
            if over {
                return heard;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Heard {
    /// Whether calling again at once could be answered otherwise.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.answer {
            Answer::Done(_) => true,
            Answer::Refused { code, .. } => !matches!(code, Code::LedgerUnavailable | Code::InProgress),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.answer, Answer::Done(_))
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self.answer, Answer::Refused { code: Code::LedgerUnavailable, .. })
    }

    /// A caller that is told that nothing happened, or that it ran nothing, must not have run.
    fn check(&self, what: &str, tally: &Tally) {
        if let Answer::Refused { code, happened, ran, words } = &self.answer
            && (matches!(happened, None | Some(Happened::No)) || *ran == Ran::No)
            && self.ran
        {
            let told = format!("{what}: {} had its effect and was told {code}: {words}", self.key);
            tally.violated(Rule::FalseFailed, told);
        }
    }
}

/// The operation of that key: it has neither key nor probe at its downstream.
pub(crate) fn operation(key: &str) -> Operation {
    Operation::new("effect").scope("fleet").key(key)
}

/// Its id, which is also what its effects are counted by.
pub(crate) fn id_of(key: &str) -> Result<OperationId, Trouble> {
    Ok(operation(key).intent()?.id)
}

/// The line of the effect in a stored result, without what was added to make it longer.
fn result_of(data: Option<&str>) -> String {
    let text: String = data.and_then(|data| serde_json::from_str(data).ok()).unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
