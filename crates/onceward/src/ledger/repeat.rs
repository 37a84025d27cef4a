//! Finds the earlier occurrences of an action, has [`repeat`] choose among them, and records what reached the caller.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Ledger, Receipt};
use crate::decide;
use crate::error::{Code, Error};
use crate::facts::{RefusalOf, RepeatRule};
use crate::operation::{EqualCalls, Intent, Operation};
use crate::policy::KeyPolicy;
use crate::record::{Record, State};
use crate::repeat::{self, Choice, Earlier, Identified};
use crate::transition;

/// The earlier occurrences of an action that an equal call may refer to.
#[derive(Debug, Clone, Default)]
pub struct Occurrences {
    /// Each with its effective state, the oldest first: those that are open, and the newest that the ledger counted. An
    /// operation with a given key or a label has no number.
    pub all: Vec<(Arc<Record>, State)>,
}

impl Occurrences {
    /// The number of the next occurrence.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        let newest = self.all.iter().filter_map(|(record, _)| record.number).max();
        newest.map_or(1, |number| number + 1)
    }

    /// What [`repeat::choose`] needs to know about them, as it is known without their callers.
    #[must_use]
    pub fn earlier(&self, now_ms: i64) -> Vec<Earlier> {
        self.all.iter().map(|(record, state)| Earlier::of(record, *state, now_ms)).collect()
    }

    /// The operation of a call that is the same as the one at this place.
    #[must_use]
    pub fn same(&self, action: Intent, place: usize) -> Wanted {
        let (record, state) = &self.all[place];
        Wanted { intent: action.at_record(record), rule: RepeatRule::Retry(*state) }
    }

    /// The operation of a call that is a new occurrence.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a given key becomes too long.
    pub fn next(&self, action: Intent) -> Result<Wanted, Error> {
        let rule = if self.next_number() == 1 { RepeatRule::First } else { RepeatRule::Repeat };
        Ok(Wanted { intent: action.at_occurrence(self.next_number())?, rule })
    }
}

/// Which operation a call refers to, and the rule that decided it.
#[derive(Debug)]
pub struct Wanted {
    /// The operation that the call refers to.
    pub intent: Intent,
    /// The rule that decided.
    pub rule: RepeatRule,
}

impl Ledger {
    /// The operation whose answer a call gets that was not begun, because of what is known about an equal one: `None`
    /// if nothing binds it, or that is known already. A call that is known by its content gets what is open, as
    /// everywhere; a key or a label decides, except against someone's word. A refusal binds every equal call. A
    /// settlement as done answers one call with a key, if the settled one had none, and no call that is labelled as a
    /// repetition.
    pub(super) async fn answered_by_word(&self, intent: &Intent) -> Result<Option<Wanted>, Error> {
        if !intent.asks_about_equal_calls() {
            return Ok(None);
        }
        let mut found = self.repeats().occurrences(intent).await?;
        if found.all.iter().any(|(record, _)| record.id == intent.id) {
            return Ok(None);
        }
        let call = if intent.is_known_by_content() { Identified::ByContent } else { Identified::ByOwnKey };
        if intent.is_labelled() {
            found.all.retain(|(_, state)| *state != State::Done);
        }
        let Choice::Same(place) = repeat::choose(&found.earlier(self.now_ms()), call) else {
            return Ok(None);
        };
        // What was begun under this key is its own, whatever is said about others.
        if self.store().load(&intent.id).await?.is_some() {
            return Ok(None);
        }
        let mut intent = intent.clone();
        let (record, state) = &found.all[place];
        if *state == State::Done {
            intent.equal_calls = EqualCalls::Known;
            intent.answered_by = Some(Arc::clone(record));
            return Ok(Some(Wanted { intent, rule: RepeatRule::Retry(*state) }));
        }
        let mut wanted = found.same(intent, place);
        if call == Identified::ByOwnKey {
            wanted.intent.equal_calls = EqualCalls::Binding;
        }
        Ok(Some(wanted))
    }

    /// Records what is known about an operation beside its own record. If that is the answer of a settled one, the next
    /// key is a new wish.
    pub(super) async fn note_known(
        &self,
        found: Option<&Record>,
        known: Record,
        intent: &Intent,
    ) -> Result<(), Error> {
        self.store().swap(found.map(|found| found.version), known, self.mode).await?;
        if let Some(by) = &intent.answered_by {
            // The caller of the settled one may not have its answer yet.
            let from_ms = transition::later(self.now_ms(), intent.terms.repeat_window_ms);
            drop(self.attempts().delivered(by, from_ms).await?);
        }
        Ok(())
    }

    /// The intent of a call with what is stored about it: if nothing is, someone's word about an equal call may bind
    /// it.
    pub(super) async fn bound_by_word<'a>(
        &self,
        intent: &'a Intent,
        found: Option<Arc<Record>>,
    ) -> Result<(Cow<'a, Intent>, Option<Arc<Record>>), Error> {
        let None = found else { return Ok((Cow::Borrowed(intent), found)) };
        match self.answered_by_word(intent).await? {
            None => Ok((Cow::Borrowed(intent), None)),
            Some(Wanted { intent, .. }) => {
                let found = self.store().load(&intent.id).await?;
                Ok((Cow::Owned(intent), found))
            }
        }
    }
}

/// The record whose answer a caller has with this result: a success, or an error that [`delivers`].
#[must_use]
pub fn delivered_by(result: &Result<Receipt, Error>) -> Option<&Arc<Record>> {
    match result {
        Ok(receipt) => Some(receipt.record()),
        Err(Error::Cancelled { of: RefusalOf::Equal, .. }) => None,
        Err(error) => error.record().filter(|_| delivers(error.code())),
    }
}

/// Whether an error with this code is the operation's own answer: a failure without effect, or a refusal. An error of
/// ours, such as a doubt or a result that is not available, delivers nothing.
#[must_use]
pub fn delivers(code: Code) -> bool {
    matches!(code, Code::Failed | Code::Cancelled)
}

/// Which operation a call refers to: a retry of an earlier one, or a new occurrence. See [`Ledger::repeats`].
#[derive(Clone, Copy)]
pub struct Repeats<'a>(pub(super) &'a Ledger);

impl Ledger {
    /// Which operation a call refers to: a retry of an earlier one, or a new occurrence.
    #[must_use]
    pub fn repeats(&self) -> Repeats<'_> {
        Repeats(self)
    }
}

impl Repeats<'_> {
    /// Determines which operation a call refers to, under the operation's own key policy, for a surface that sees no
    /// other callers.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::KeyMissing`], or the ledger cannot be read.
    pub async fn wanted(self, operation: Operation) -> Result<Wanted, Error> {
        let rule = match operation.key_policy() {
            _ if operation.is_identified() => Some(RepeatRule::Given),
            KeyPolicy::Strict | KeyPolicy::Keyed => Some(RepeatRule::Strict),
            KeyPolicy::Auto => None,
        };
        let intent = self.0.intent(operation)?;
        match rule {
            Some(rule) => self.identified(intent, rule).await,
            None => self.wanted_by_content(intent).await,
        }
    }

    /// The same for a call that nothing but its content identifies.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn wanted_by_content(self, action: Intent) -> Result<Wanted, Error> {
        let action = self.0.keyed(action);
        let found = self.occurrences(&action).await?;
        match repeat::choose(&found.earlier(self.0.now_ms()), Identified::ByContent) {
            Choice::Same(place) | Choice::Undecided(place) | Choice::Spent(place) => {
                Ok(found.same(action, place))
            }
            Choice::New { .. } => found.next(action),
        }
    }

    /// The same for a call with a key, a label or a scope that its caller chose. It decides, except against someone's
    /// word about an equal call.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn identified(self, intent: Intent, rule: RepeatRule) -> Result<Wanted, Error> {
        let mut intent = self.0.keyed(intent);
        match self.0.answered_by_word(&intent).await? {
            Some(answered) => Ok(answered),
            None => {
                intent.equal_calls = EqualCalls::Known;
                Ok(Wanted { intent, rule })
            }
        }
    }

    /// The occurrences of an action that an equal call may refer to: one indexed read.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn occurrences(self, action: &Intent) -> Result<Occurrences, Error> {
        let action = self.0.keyed_form(action);
        let mut all = Vec::new();
        for record in self.0.store().occurrences(&action.action(), self.0.now_ms()).await? {
            let record = Arc::new(self.0.through_fence(record));
            let liveness = self.0.liveness(Some(&record)).await?;
            let state = decide::effective_state(&record, liveness, self.0.now_ms());
            all.push((record, state));
        }
        all.sort_by_key(|(record, _)| (record.created_ms, record.number));
        Ok(Occurrences { all })
    }

    /// A label for a repetition of this action that no call has used yet.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn free_label(self, action: &Intent) -> Result<String, Error> {
        let action = self.0.keyed_form(action);
        let mut label = 2_u32;
        loop {
            let repetition = Intent::clone(&action).at_label(&label.to_string())?;
            if self.0.store().load(&repetition.id).await?.is_none() {
                return Ok(label.to_string());
            }
            label += 1;
        }
    }
}
