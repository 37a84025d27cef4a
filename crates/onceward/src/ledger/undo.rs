//! Taking operations back. A compensation is an ordinary operation; this module ties it to the one that it takes back.

use std::sync::Arc;

use super::{Begun, Claim, Ledger};
use crate::barrier::is_in_scope;
use crate::error::Error;
use crate::evidence::Evidence;
use crate::facts::{Ending, Happened};
use crate::invalid::InvalidInput;
use crate::key::{MAX_NAME, OperationId};
use crate::kind::Kind;
use crate::operation::{Intent, Operation};
use crate::policy::Hold;
use crate::record::{Record, State, UndoEvidence, Verification, check_compensation};
use crate::store::Filter;
use crate::transition;
use crate::undo::{Reversal, UndoLine, UndoOutcome, UndoStep, sort_for_undo};
use crate::word::Word;

/// How many records one step of a plan reads.
const PAGE: usize = 500;

/// An undo that has begun: the operation is marked, so no retry replays its result.
#[derive(Debug, Clone)]
pub struct Undoing {
    /// The operation that is taken back.
    pub record: Arc<Record>,
    /// The compensation. Run it like any other operation, then report with [`Undo::end`].
    pub intent: Intent,
}

/// What an undo does about one operation. Unlike an [`UndoStep`], it has the whole record, with the result.
#[derive(Debug, Clone)]
pub struct ToUndo {
    /// The operation.
    pub record: Arc<Record>,
    /// Its effective state.
    pub state: State,
    /// What an undo does about it.
    pub reversal: Reversal,
    /// Whether an earlier undo ran the compensation but did not record it. Then nothing runs any more.
    pub compensated: bool,
}

/// The beginning of an undo.
#[derive(Debug)]
pub enum UndoStart {
    /// The operation is marked: run the compensation.
    Begun(Box<Undoing>),
    /// Another undo was faster, the operation has changed, or its compensation is not valid: nothing is run.
    Changed(UndoLine),
}

impl Operation {
    /// The operation that takes this one back: `undo:NAME`, with the key `undo:<operation id>`, in the same scope. The
    /// command is not part of its identity, so a compensation that failed can be repeated with a better one.
    #[must_use]
    pub fn undo_of(record: &Record) -> Self {
        let name = format!("undo:{}", record.name);
        let name = if name.chars().count() > MAX_NAME { "undo".to_owned() } else { name };
        // If the same record holds a later occurrence of the action, that one has a compensation of its own.
        let before = record.detail.attempts_before;
        let key = format!("undo:{}", record.id);
        let key = if before == 0 { key } else { format!("{key}#{}", before + 1) };
        Self::new(name)
            .scope(&record.scope)
            .key(key)
            // An operation that was forgotten and ran again must not count as taken back already.
            .input(serde_json::json!({"undoes": record.id.as_str(), "created_ms": record.created_ms}))
            .undoes(&record.id)
    }
}

/// Takes operations back. See [`Ledger::undo`].
#[derive(Clone, Copy)]
pub struct Undo<'a>(pub(super) &'a Ledger);

impl Ledger {
    /// Takes operations back.
    #[must_use]
    pub fn undo(&self) -> Undo<'_> {
        Undo(self)
    }
}

impl Undo<'_> {
    /// What an undo of a scope would do, in the order in which it would do it. With `since`, only operations that were
    /// begun after that one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `since` is in another scope, [`Error::NotFound`] if there is no such operation, or when
    /// the ledger cannot be read.
    pub async fn plan(self, scope: &str, since: Option<&OperationId>) -> Result<Vec<UndoStep>, Error> {
        if let Some(id) = since {
            let (record, _) = self.0.find(id).await?;
            if !is_in_scope(&record.scope, scope) {
                return Err(
                    InvalidInput::new(format!("the operation {id} is not in the scope {scope:?}")).into()
                );
            }
        }
        // Gateways and proxies separate the callers of a scope.
        let mut filter = Filter { scope_prefix: Some(scope.to_owned()), limit: PAGE, ..Filter::default() };
        let mut steps = Vec::new();
        'pages: loop {
            let page = self.0.list(&filter).await?;
            let full = page.len() == PAGE;
            for (listed, state) in page {
                filter.before = Some(listed.cursor);
                if since == Some(&listed.record.id) {
                    break 'pages;
                }
                let record = &listed.record;
                if !is_in_scope(&record.scope, scope) || record.kind != Kind::Operation {
                    continue;
                }
                let reversal = Reversal::of(&listed.record, state);
                steps.push(UndoStep { record: listed.record, state, reversal });
            }
            if !full {
                break;
            }
        }
        sort_for_undo(&mut steps);
        Ok(steps)
    }

    /// What an undo of this operation would do.
    ///
    /// # Errors
    /// When the ledger cannot be read or has no such operation.
    pub async fn of(self, id: &OperationId) -> Result<ToUndo, Error> {
        let (record, state) = self.0.find(id).await?;
        let reversal = Reversal::of(&record, state);
        let compensated = match &record.detail.undone {
            Some(mark) => match self.0.find(&mark.by).await {
                Ok((_, state)) => state == State::Done,
                Err(Error::NotFound { .. }) => false,
                Err(error) => return Err(error),
            },
            None => false,
        };
        Ok(ToUndo { record, state, reversal, compensated })
    }

    /// What an undo of a scope would do, with the results of its operations: see [`Undo::plan`]. Compensations
    /// are left out.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn of_scope(self, scope: &str, since: Option<&OperationId>) -> Result<Vec<ToUndo>, Error> {
        let steps = self.plan(scope, since).await?;
        let mut found = Vec::new();
        for step in steps.iter().filter(|step| step.reversal != Reversal::Compensation) {
            found.push(self.of(&step.record.id).await?);
        }
        Ok(found)
    }

    /// The same as [`Undo::begin`], for a caller that reports lines: if the operation has changed since it was
    /// planned, or its compensation is not valid, there is its line.
    ///
    /// # Errors
    /// The ledger's own errors.
    pub async fn start(self, planned: &ToUndo, compensation: Operation) -> Result<UndoStart, Error> {
        match self.begin(&planned.record.id, compensation).await {
            Ok(undoing) => Ok(UndoStart::Begun(Box::new(undoing))),
            Err(Error::WrongState { record, .. }) => {
                let (record, state) = self.0.find(&record.id).await?;
                let now = if record.is_undone() { "undone" } else { state.as_str() };
                let reversal = Reversal::of(&record, state);
                Ok(UndoStart::Changed(UndoLine::untouched(&record, reversal, format!("it is {now} now"))))
            }
            Err(Error::Invalid(invalid)) => {
                let (record, reversal) = (&planned.record, planned.reversal);
                Ok(UndoStart::Changed(UndoLine::untouched(record, reversal, invalid.to_string())))
            }
            Err(error) => Err(error),
        }
    }

    /// Records what became of an undo, and returns its line.
    ///
    /// # Errors
    /// [`Error::WrongState`] if this undo was not begun; and the ledger's own errors.
    pub async fn finish(
        self,
        planned: &ToUndo,
        undoing: &Undoing,
        outcome: UndoOutcome,
    ) -> Result<UndoLine, Error> {
        let outcome = match outcome {
            UndoOutcome::Undone(UndoEvidence::Compensation) => self.0.confirmed(undoing).await?,
            outcome @ (UndoOutcome::Undone(UndoEvidence::Pending | UndoEvidence::Probe)
            | UndoOutcome::Unconfirmed(_)
            | UndoOutcome::NotUndone(_)
            | UndoOutcome::InDoubt(_)) => outcome,
        };
        let record = self.end(undoing, &outcome).await?;
        Ok(UndoLine::ended(&record, planned.reversal, &undoing.intent.id, outcome))
    }

    /// Marks an operation before its compensation begins. From now on a retry is refused, and the mark names the
    /// compensation. Build `compensation` with [`Operation::undo_of`]. Safe to repeat.
    ///
    /// # Errors
    /// [`Error::WrongState`] if the operation is not done or was taken back; [`Error::Invalid`] if the compensation's
    /// class is `read`; and the ledger's own errors.
    pub async fn begin(self, id: &OperationId, compensation: Operation) -> Result<Undoing, Error> {
        let mut intent = self.0.intent(compensation)?;
        check_compensation(&intent.name, intent.terms.class)?;
        // A person has asked for it, so it is not held back once more.
        intent.terms.hold = Hold::No;
        let by = intent.id.clone();
        let record = self
            .0
            .change(id, "taking it back", |record, _, now_ms| {
                let fits =
                    Operation::undo_of(record).intent().is_ok_and(|undo| undo.key.text == intent.key.text);
                fits.then(|| transition::begin_undo(record, &by, now_ms)).flatten()
            })
            .await?;
        // The compensation must not be forgotten before the operation that it takes back.
        let terms = &mut intent.terms;
        terms.retention_ms = terms.retention_ms.max(record.detail.retention_ms);
        terms.tombstone_ms = terms.tombstone_ms.max(record.detail.tombstone_ms);
        Ok(Undoing { record, intent })
    }

    /// Records what became of an undo on the operation that it takes back, and returns that operation.
    ///
    /// # Errors
    /// [`Error::WrongState`] if this undo was not begun; and the ledger's own errors.
    pub async fn end(self, undoing: &Undoing, outcome: &UndoOutcome) -> Result<Arc<Record>, Error> {
        let by = &undoing.intent.id;
        let (mut failed, mut settled_by) = (0, None);
        match outcome {
            UndoOutcome::NotUndone(_) => failed = self.0.attempts_without_effect(by).await?,
            UndoOutcome::Undone(_) => settled_by = self.0.store().load(by).await?.and_then(|by| settler(&by)),
            UndoOutcome::Unconfirmed(_) | UndoOutcome::InDoubt(_) => {}
        }
        self.0
            .change(&undoing.record.id, "taking it back", |record, _, now_ms| match outcome {
                UndoOutcome::Undone(evidence) => {
                    transition::undone(record, by, (*evidence, settled_by.clone()), now_ms)
                }
                UndoOutcome::NotUndone(_) => Some(transition::withdraw_undo(record, by, failed)),
                // The mark stays: the effect may be gone.
                UndoOutcome::Unconfirmed(_) | UndoOutcome::InDoubt(_) => {
                    transition::undone(record, by, (UndoEvidence::Pending, None), now_ms)
                }
            })
            .await
    }
}

impl Ledger {
    /// The outcome of a compensation that reported success. If that was only accepted, or is being checked, nothing is
    /// undone yet.
    async fn confirmed(&self, undoing: &Undoing) -> Result<UndoOutcome, Error> {
        let (by, _) = self.find(&undoing.intent.id).await?;
        let why = match by.outcome.as_ref().and_then(|outcome| outcome.verified) {
            None | Some(Verification::Confirmed) => {
                return Ok(UndoOutcome::Undone(UndoEvidence::Compensation));
            }
            Some(Verification::Pending) => {
                "the compensation was accepted, and its success is not confirmed yet"
            }
            Some(Verification::Refuted) => "the compensation reported success, but a check denies it",
        };
        Ok(UndoOutcome::Unconfirmed(why.to_owned()))
    }

    /// The number of the compensation's last attempt, if it certainly had no effect. Otherwise 0: what has marked the
    /// operation may still take effect, or belongs to another action.
    async fn attempts_without_effect(&self, by: &OperationId) -> Result<u32, Error> {
        let found = self.store().load(by).await?;
        Ok(found.map_or(0, |record| match record.happened() {
            Happened::No => record.attempt,
            Happened::Yes | Happened::Unknown => 0,
        }))
    }

    /// Tells the operation that a settled compensation takes back what became of it. One that did not happen withdraws
    /// its mark, so that the result is replayed again.
    pub(super) async fn note_settled_compensation(&self, settled: &Record) -> Result<(), Error> {
        let Some(id) = &settled.detail.undoes else { return Ok(()) };
        let (by, attempt) = (&settled.id, settled.attempt);
        let told = self.change(id, "taking it back", |record, _, now_ms| match settled.happened() {
            Happened::Yes => {
                let evidence = (UndoEvidence::Compensation, settler(settled));
                transition::undone(record, by, evidence, now_ms)
            }
            Happened::No => Some(transition::withdraw_undo(record, by, attempt)),
            Happened::Unknown => Some(record.clone()),
        });
        match told.await {
            // The operation is gone, or another one takes it back.
            Ok(_) | Err(Error::NotFound { .. } | Error::WrongState { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// An attempt that has just begun. An attempt of a compensation marks the operation before anything is dispatched,
    /// because another undo may have ended without effect since this one was requested, and have withdrawn the mark.
    pub(super) async fn begun(&self, claim: Claim, intent: &Intent) -> Result<Begun, Error> {
        let Some(id) = &intent.undoes else { return Ok(Begun::Execute(claim)) };
        let (by, attempt) = (claim.record().id.clone(), claim.record().attempt);
        let marked = self
            .change(id, "taking it back", |record, _, now_ms| {
                transition::begin_undo_attempt(record, &by, attempt, now_ms)
            })
            .await;
        match marked {
            Ok(_) => Ok(Begun::Execute(claim)),
            Err(error) => {
                let reason = format!("the operation could not be marked, so nothing was sent: {error}");
                claim.finish(Ending::failed(Evidence::NotStarted, reason)).await.map(Begun::Replay)
            }
        }
    }
}

/// Who or what settled an operation, if not its own answer.
fn settler(record: &Record) -> Option<Word> {
    record.outcome.as_ref()?.settled_by.as_deref().cloned()
}
