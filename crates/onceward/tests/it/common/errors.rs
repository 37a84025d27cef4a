//! An example of every error.

use std::sync::Arc;

use onceward::{
    Barrier, Class, Downstream, Effect, Error, Happened, Held, HeldBy, InvalidInput, KeyOrigin, Outcome, Ran,
    Record, RefusalOf, State, StoreError, UndoEvidence, Undone, Word,
};

use super::{NOW_MS, intent, record};

/// A record in this state, whose second attempt is the newest.
pub(crate) fn found(state: State) -> Record {
    let mut found = Record { attempt: 2, ..record(state, &intent(KeyOrigin::Given)) };
    found.detail.attempts_before = 0;
    found.outcome = match state {
        State::Done => Some(Outcome::with_effect(Effect::Created)),
        State::Failed => Some(Outcome::because(Some("declined".to_owned()))),
        State::InDoubt => Some(Outcome::because(Some("no answer within 30 s".to_owned()))),
        State::Staged | State::Running | State::Cancelled | State::Expired => None,
    };
    found
}

pub(crate) fn shared(state: State) -> Arc<Record> {
    Arc::new(found(state))
}

pub(crate) fn tombstone(ended: Option<State>) -> Arc<Record> {
    let mut tombstone = found(State::Expired);
    tombstone.detail.ended = ended;
    Arc::new(tombstone)
}

pub(crate) fn doubt(class: Class, change: impl FnOnce(&mut Record)) -> Arc<Record> {
    let mut doubt = found(State::InDoubt);
    doubt.detail.class = class;
    if class == Class::Keyed {
        doubt.detail.downstream = Some(Downstream { key: "k".to_owned(), safe_until_ms: NOW_MS + 1 });
    }
    change(&mut doubt);
    Arc::new(doubt)
}

/// An operation that was done, and then taken back on this evidence.
pub(crate) fn undone(evidence: UndoEvidence) -> Arc<Record> {
    let mut record = found(State::Done);
    let by = onceward::Operation::undo_of(&record).intent().expect("a valid operation").id;
    record.detail.undone = Some(Undone { by, at_ms: NOW_MS, evidence, settled_by: None, round: 1 });
    Arc::new(record)
}

/// A record that is held until this time, or until a person releases it.
pub(crate) fn held(until_ms: Option<i64>) -> Arc<Record> {
    let mut record = found(State::Staged);
    record.detail.held = Some(Box::new(Held {
        until_ms,
        surface: "run".to_owned(),
        by: HeldBy::Caller,
        released: None,
        request: None,
        caller_only: false,
    }));
    Arc::new(record)
}

/// Every error, in each form with a different meaning.
pub(crate) fn errors() -> Vec<(String, Error)> {
    let fields = || vec!["/amount".to_owned()];
    let reason = || "declined".to_owned();
    let store = || StoreError::unavailable("the disk is full");
    let unrecorded = |ended| Error::Unrecorded { ended, record: shared(State::Running), why: store() };
    let spent = Arc::new(Record { attempt: 20, ..found(State::Failed) });
    let list: Vec<(&str, Error)> = vec![
        ("invalid input", InvalidInput::new("the name has 0 characters; it must have 1 to 255").into()),
        ("no key", Error::KeyMissing { name: "pay".to_owned() }),
        ("not found", Error::NotFound { id: "op_x".to_owned() }),
        ("wrong state, done", Error::WrongState { action: "settling", record: shared(State::Done) }),
        ("wrong state, in doubt", Error::WrongState { action: "cancelling", record: shared(State::InDoubt) }),
        ("another call runs it", Error::InProgress { record: shared(State::Running), ran: Ran::No }),
        ("overtaken", Error::InProgress { record: shared(State::Running), ran: Ran::Yes }),
        ("a process was left behind", Error::InProgress { record: shared(State::InDoubt), ran: Ran::No }),
        ("expired, not swept", Error::KeyExpired { record: shared(State::Done) }),
        ("expired, done", Error::KeyExpired { record: tombstone(Some(State::Done)) }),
        ("expired, failed", Error::KeyExpired { record: tombstone(Some(State::Failed)) }),
        ("expired, of an older version", Error::KeyExpired { record: tombstone(None) }),
        ("held for a time", Error::Held { record: held(Some(NOW_MS)) }),
        ("held for a person", Error::Held { record: held(None) }),
        (
            "cancelled",
            Error::Cancelled { record: shared(State::Cancelled), ran: Ran::No, of: RefusalOf::Own },
        ),
        ("taken back", Error::Undone { record: undone(UndoEvidence::Compensation) }),
        ("taken back and confirmed", Error::Undone { record: undone(UndoEvidence::Probe) }),
        ("being taken back", Error::Undone { record: undone(UndoEvidence::Pending) }),
        (
            "wrong state, taken back",
            Error::WrongState { action: "verifying", record: undone(UndoEvidence::Probe) },
        ),
        ("stopped, new", Error::Stopped { barrier: barrier(), record: None, ran: Ran::No }),
        (
            "stopped, failed before",
            Error::Stopped { barrier: barrier(), record: Some(shared(State::Failed)), ran: Ran::No },
        ),
        ("budget spent", Error::BudgetExhausted { record: shared(State::Failed), limit: 2, ran: Ran::No }),
        ("key reused, done", Error::KeyReused { record: shared(State::Done), fields: fields() }),
        ("key reused, in doubt", Error::KeyReused { record: shared(State::InDoubt), fields: fields() }),
        ("failed", Error::Failed { record: shared(State::Failed), reason: reason(), ran: Ran::Yes }),
        ("failed for the last time", Error::Failed { record: spent, reason: reason(), ran: Ran::Yes }),
        ("failed, replayed", Error::Failed { record: shared(State::Failed), reason: reason(), ran: Ran::No }),
        ("timed out", Error::Timeout { record: shared(State::InDoubt), reason: "no answer".to_owned() }),
        ("refuted", Error::Unverified { record: shared(State::InDoubt), reason: reason(), ran: Ran::Yes }),
        (
            "refuted before",
            Error::Unverified { record: shared(State::InDoubt), reason: reason(), ran: Ran::No },
        ),
        ("sealed", Error::ResultSealed { record: shared(State::Done), key: "k_abcd2345".to_owned() }),
        ("result gone", Error::ResultLost { record: shared(State::Done) }),
        ("ledger unavailable", store().into()),
        ("ledger replaced", StoreError::replaced("it is empty").into()),
        ("done, not recorded", unrecorded(Happened::Yes)),
        ("failed, not recorded", unrecorded(Happened::No)),
        ("in doubt, not recorded", unrecorded(Happened::Unknown)),
    ];
    let mut list: Vec<(String, Error)> =
        list.into_iter().map(|(what, error)| (what.to_owned(), error)).collect();
    list.extend(doubts());
    list
}

/// The errors about a doubt, for each class and each way out.
fn doubts() -> Vec<(String, Error)> {
    let reason = || "declined".to_owned();
    let mut list = Vec::new();
    for (ran, when) in [(Ran::Yes, "this call"), (Ran::No, "before")] {
        for class in Class::ALL {
            let record = doubt(class, |_| ());
            list.push((
                format!("in doubt, {class}, {when}"),
                Error::InDoubt { record, reason: reason(), ran },
            ));
        }
        let record = doubt(Class::Probed, |record| record.detail.probe = Some("look".to_owned()));
        let what = format!("in doubt, probed by a command, {when}");
        list.push((what, Error::InDoubt { record, reason: reason(), ran }));
        let record = doubt(Class::Idempotent, |record| record.attempt = 20);
        let what = format!("in doubt, no attempt left, {when}");
        list.push((what, Error::InDoubt { record, reason: reason(), ran }));
    }
    list
}

pub(crate) fn barrier() -> Barrier {
    let mut word = Word::person("ada").note("wrong list".to_owned());
    word.at_ms = NOW_MS;
    Barrier::new("run-7", word)
}
