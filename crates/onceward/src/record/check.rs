//! Checks whether this program could have written a record. Records from a file are checked like calls.

use super::{Held, MAX_HISTORY, MAX_REQUEST, Outcome, Record, State};
use crate::invalid::InvalidInput;
use crate::key::{self, Key, KeyOrigin, MAX_FIELDS, OperationId};
use crate::kind::Kind;
use crate::record::MAX_RESULT;

/// The maximum version and attempt of an imported record: far more than any real record has, with room to count on in
/// every back end.
const MAX_VERSION: u64 = 1 << 52;
const MAX_ATTEMPT: u32 = 1 << 30;
/// The last millisecond of the year 9999, and the longest duration.
const MAX_TIME_MS: i64 = 253_402_300_799_999;
const MAX_SPAN_MS: u64 = 100 * 366 * 24 * 60 * 60 * 1000;

impl Record {
    /// Checks the rules that every record of a ledger follows.
    ///
    /// # Errors
    /// All problems at once.
    pub fn check(&self) -> Result<(), InvalidInput> {
        self.check_as(&self.id, &self.scope)
    }

    /// Checks the same for a ledger in which a tenant of a server may have written the record. The mask of a tenant's
    /// ids comes from the ledger's identity.
    ///
    /// # Errors
    /// All problems at once.
    pub fn check_in(
        &self,
        tenant_mask: impl FnOnce(&str) -> [u8; OperationId::BYTES],
    ) -> Result<(), InvalidInput> {
        let Some((tenant, scope)) = self.scope.split_once('/') else { return self.check() };
        let id = self.id.masked(&tenant_mask(tenant));
        self.check().or_else(|invalid| self.check_as(&id, scope).map_err(|_| invalid))
    }

    fn check_as(&self, id: &OperationId, scope: &str) -> Result<(), InvalidInput> {
        let mut problems = Vec::new();
        let mut note = |result: Result<(), InvalidInput>| {
            if let Err(invalid) = result {
                problems.extend_from_slice(invalid.problems());
            }
        };
        note(key::name_like("name", &self.name));
        note(key::name_like("scope", scope));
        note(self.check_key());
        note(self.check_id(id, scope));
        let mut wrong = |broken: bool, problem: &str| {
            if broken {
                problems.push(problem.to_owned());
            }
        };
        self.check_numbers(&mut wrong);
        self.check_state(&mut wrong);
        self.check_evidence(&mut wrong);
        self.check_detail(&mut wrong);
        InvalidInput::all(problems).map_or(Ok(()), Err)
    }

    fn check_key(&self) -> Result<(), InvalidInput> {
        match self.key.origin {
            KeyOrigin::Given => Key::given(&self.key.text).map(|_| ()),
            KeyOrigin::Derived if is_tagged(&self.key.text, 'k') => Ok(()),
            KeyOrigin::Derived => Err(InvalidInput::new("the key is not one that was derived from inputs")),
        }
    }

    fn check_id(&self, id: &OperationId, scope: &str) -> Result<(), InvalidInput> {
        let named = OperationId::of_kind(self.kind, scope, &self.name, &self.key.text);
        if *id == named || (self.kind, id) == (Kind::Operation, &OperationId::unnamed(scope, &self.key.text))
        {
            return Ok(());
        }
        Err(InvalidInput::new(format!(
            "{} is not the id of its scope, name and key: the record has been changed",
            self.id
        )))
    }

    fn check_numbers(&self, wrong: &mut impl FnMut(bool, &str)) {
        let is_first = self.number == Some(1);
        wrong(self.number == Some(0), "the occurrences of an action are counted from 1");
        wrong(
            is_first && self.action.is_some(),
            "the first occurrence of an action has the id of the action",
        );
        wrong(
            self.number.is_some() && self.key.origin == KeyOrigin::Given,
            "an operation with a given key has no number",
        );
        let detail = &self.detail;
        wrong(!(1..=MAX_VERSION).contains(&self.version), "the version is out of range");
        wrong(self.attempt > MAX_ATTEMPT, "the number of the attempt is out of range");
        wrong(
            detail.attempts_before > self.attempt,
            "more attempts belong to an earlier occurrence than were made",
        );
        wrong(detail.max_attempts == 0, "no attempt is allowed");
        let time = |ms: i64| (0..=MAX_TIME_MS).contains(&ms);
        let undone_ms = detail.undone.as_ref().map(|undone| undone.at_ms);
        let optional = [
            self.due_ms,
            detail.quarantine_until_ms,
            detail.cancel_requested_ms,
            detail.delivered.map(|delivered| delivered.at_ms),
            detail.delivered.and_then(|delivered| delivered.same_until_ms),
            undone_ms,
        ];
        let held = detail.held.iter().filter_map(|held| held.until_ms);
        let said = self.words().map(|word| word.at_ms);
        let past = detail.history.iter().map(|past| past.at_ms);
        let times = [self.created_ms, self.updated_ms]
            .into_iter()
            .chain(optional.into_iter().flatten())
            .chain(past)
            .chain(said)
            .chain(held);
        wrong(!times.into_iter().all(time), "a time is out of range");
        let spans = [detail.retention_ms, detail.tombstone_ms, detail.quarantine_ms];
        wrong(spans.iter().any(|ms| *ms > MAX_SPAN_MS), "a duration is longer than a hundred years");
    }

    /// Checks what belongs to each state: a due time, an outcome, an attempt.
    fn check_state(&self, wrong: &mut impl FnMut(bool, &str)) {
        wrong(
            self.due_ms.is_some() != self.state.is_settled(),
            "a settled record, and no other, has a due time",
        );
        self.check_event(wrong);
        let ended = self.detail.ended;
        wrong(ended.is_some() && self.state != State::Expired, "only an expired record says how it ended");
        wrong(
            ended.is_some_and(|ended| !ended.is_settled() || ended == State::Expired),
            "the state in which it ended is not a final one",
        );
        let may_be_undone = match self.state {
            State::Done => true,
            State::Expired => ended == Some(State::Done),
            State::Staged | State::Running | State::Failed | State::InDoubt | State::Cancelled => false,
        };
        wrong(
            self.detail.undone.is_some() && !may_be_undone,
            "only an operation that was done can be taken back",
        );
        let (attempt, outcome) = match self.state {
            State::Staged => (Some(false), None),
            State::Running => (Some(true), Some(false)),
            State::Done | State::Failed | State::InDoubt => (Some(true), Some(true)),
            State::Cancelled | State::Expired => (None, None),
        };
        wrong(
            attempt.is_some_and(|needed| needed != (self.attempt > self.detail.attempts_before)),
            "the state contradicts the number of attempts",
        );
        wrong(
            outcome.is_some_and(|needed| needed != self.outcome.is_some()),
            "the state contradicts the outcome",
        );
    }

    /// The state of an event follows from its deliveries.
    fn check_event(&self, wrong: &mut impl FnMut(bool, &str)) {
        wrong(
            (self.kind == Kind::Event) != self.deliveries().is_some(),
            "an event, and nothing else, has deliveries",
        );
        let Some(deliveries) = self.deliveries() else { return };
        wrong(
            self.state != State::Expired && self.state != deliveries.state(),
            "the state contradicts the deliveries of the event",
        );
        wrong(self.state != State::Expired && self.outcome.is_none(), "an event has its content");
        let counted = [deliveries.round.occurrence, deliveries.round.budgets];
        wrong(
            counted.iter().any(|count| !(1..=MAX_ATTEMPT).contains(count)),
            "a count of deliveries is out of range",
        );
    }

    /// A failure says that nothing happened, so it has the evidence for it.
    fn check_evidence(&self, wrong: &mut impl FnMut(bool, &str)) {
        let evidence = self.outcome.as_ref().and_then(|outcome| outcome.evidence.as_ref());
        wrong(
            self.state == State::Failed && evidence.is_none(),
            "a failed record has no evidence that nothing happened",
        );
        let mut past = self.detail.history.iter();
        wrong(
            past.any(|past| past.ended == State::Failed && past.evidence.is_none()),
            "a failed attempt has no evidence that nothing happened",
        );
    }

    fn check_detail(&self, wrong: &mut impl FnMut(bool, &str)) {
        let detail = &self.detail;
        wrong(!is_tagged(detail.fingerprint.as_str(), 'f'), "the fingerprint is malformed");
        wrong(detail.fields.len() > MAX_FIELDS, "there are too many field digests");
        wrong(detail.history.len() > MAX_HISTORY, "the history is too long");
        let earlier = |attempt: u32| (1..=self.attempt).contains(&attempt);
        wrong(
            !detail.history.iter().all(|past| earlier(past.attempt)),
            "the history contains attempts that were never made",
        );
        let request = |held: &Held| held.request.as_ref().map_or(0, String::len);
        wrong(detail.held.as_deref().map_or(0, request) > MAX_REQUEST, "the held request is too large");
        let downstream = detail.downstream.as_ref();
        wrong(
            downstream.is_some_and(|downstream| Key::given(&downstream.key).is_err()),
            "the downstream key is malformed",
        );
        let size = |outcome: &Option<Outcome>| outcome.as_ref().map_or(0, Outcome::size);
        wrong(size(&self.outcome).max(size(&detail.late)) > MAX_RESULT, "the result is too large");
    }
}

/// Whether the text has the form of a hash: a letter, a version, `_` and base32.
fn is_tagged(text: &str, letter: char) -> bool {
    let Some((tag, digits)) = text.split_once('_') else { return false };
    let version = tag.strip_prefix(letter).unwrap_or_default();
    !version.is_empty()
        && version.bytes().all(|byte| byte.is_ascii_digit())
        && (1..=64).contains(&digits.len())
        && digits.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
}
