//! Decides whether a request with a new key, or with none, is the retry of an earlier request with the same content, or
//! an intended repeat. Delivery is the evidence: a retry comes from a client that left without its answer.
//!
//! | the earlier operation | a new key | no key |
//! |---|---|---|
//! | its answer was delivered | new | new |
//! | it failed, and that was delivered less than a minute ago | new, within the same budget | the same |
//! | in doubt, and no client of this process waits for it | the same | the same |
//! | a client of this process waits for it, or reads its answer | new | the same |
//! | its client left this process without the answer | the same | the same |
//! | another gateway executes it, or ended it a moment ago | undecided | the same |

use std::sync::Arc;
use std::time::Duration;

use onceward::{Error, Intent, OperationId, Record, RepeatRule, State};

use super::aliases::Asker;
use super::delivery::FAILURE_GRACE_MS;
use super::readers::Seen;
use super::turns::Turn;
use crate::time;

/// How long a gateway may take to record that an answer was delivered.
const NOTE_MS: i64 = 2_000;
/// How long it may take to notice that a client closed its connection.
const HANG_UP: Duration = Duration::from_millis(100);
/// In how many pauses that time passes. On a busy machine the end of a connection and the end of one long pause are
/// seen at the same time; after several pauses, the connection was looked at before.
const PAUSES: u32 = 5;
/// The pauses between two looks at an operation of another gateway.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Which earlier operations a request can be the retry of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retries {
    /// Those whose client left without the answer: one in doubt first, because its effect must not be repeated, then
    /// the oldest.
    Oldest,
    /// The same, the newest first, or one that failed a moment ago: a repeated model call has no effect to be repeated.
    Newest,
    /// The same. The client says that it is a retry, so it can also be one of an operation that another gateway
    /// executes for a client that may have left. That operation did not begin before this time.
    Reported { since_ms: i64 },
}

/// What a request with a new key refers to, after the time that it takes to find out.
pub(crate) enum Decided<K> {
    /// It is known from elsewhere.
    Known(K),
    /// It is a retry of this operation, which is in this state. Held: the turn to begin it.
    Same(Intent, State, Turn),
    /// It is a new operation. Held: the turn to begin it.
    New(Intent, RepeatRule, Turn),
    /// It stayed unknown whether the client of this operation is there.
    Undecided(Arc<Record>),
}

/// What a request with a new key refers to.
enum Choice {
    /// It is a retry of this operation, which is in this state.
    Same(Intent, State),
    /// It is a new operation.
    New(Intent, RepeatRule),
    /// It is a new operation beside others whose clients are waiting, or may just be leaving without their answer.
    Beside(Intent, RepeatRule),
    /// It is unknown whether the client of this operation is there.
    Undecided(Arc<Record>),
}

/// An occurrence of the action.
struct Occurrence {
    record: Arc<Record>,
    state: State,
    status: Status,
}

/// Whether an equal request can be the retry of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// Its answer was delivered, or it will have none.
    Over,
    /// It failed, and its client knows.
    ToldFailure,
    /// Its client does not have the answer, and does not wait for it.
    Unanswered,
    /// Its client waits for the answer or reads it.
    Waited,
    /// Its client may wait for the answer at another gateway.
    Unknown,
}

/// All occurrences that are not over, oldest first.
struct Occurrences {
    /// The number of the next one.
    next: u64,
    open: Vec<Occurrence>,
    /// Whether an answer was written a moment ago, and its client may just be leaving without it.
    is_unconfirmed: bool,
}

impl Occurrences {
    async fn read(asker: &Asker<'_>, action: &Intent) -> Result<Self, Error> {
        let ledger = &asker.tenant.ledger;
        let found = ledger.occurrences(action).await?;
        let one = |(_, (record, state)): (u64, &(Arc<Record>, State))| {
            Occurrence::new(asker, Arc::clone(record), *state)
        };
        let mut open: Vec<Occurrence> = found.numbered().map(one).collect();
        for one in &mut open {
            one.look_behind_the_name(asker).await?;
        }
        let readers = &asker.gateway.readers;
        let is_unconfirmed = open.iter().any(|one| {
            let place = asker.place(&one.record.id);
            one.status == Status::Over && readers.is_unconfirmed(&place, ledger.clock())
        });
        open.retain(|one| one.status != Status::Over);
        Ok(Self { next: found.next_number(), open, is_unconfirmed })
    }

    /// The next occurrence, and why it is one.
    fn next(&self, action: &Intent) -> Result<(Intent, RepeatRule), Error> {
        let rule = if self.next == 1 { RepeatRule::First } else { RepeatRule::Repeat };
        Ok((action.clone().at_occurrence(self.next)?, rule))
    }

    /// The occurrence that the request retries: one in doubt, then the oldest.
    fn retried(&self, can_be: impl Fn(&Occurrence) -> bool) -> Option<&Occurrence> {
        let fitting = || self.open.iter().filter(|one| can_be(one));
        fitting().find(|one| one.state == State::InDoubt).or_else(|| fitting().next())
    }

    fn newest(&self, can_be: impl Fn(&Occurrence) -> bool) -> Option<&Occurrence> {
        self.open.iter().filter(|one| can_be(one)).max_by_key(|one| one.record.number)
    }

    /// The occurrence that a request with a new key retries. An answer that was delivered, or that a client here waits
    /// for, belongs to that client, whatever the request reports: its own first try may never have arrived.
    fn retried_by(&self, retries: Retries) -> Option<&Occurrence> {
        let has = |status: Status| move |one: &Occurrence| one.status == status;
        let newest =
            || self.newest(has(Status::Unanswered)).or_else(|| self.newest(has(Status::ToldFailure)));
        match retries {
            Retries::Oldest => self.retried(has(Status::Unanswered)),
            Retries::Newest => newest(),
            Retries::Reported { since_ms } => newest().or_else(|| {
                let is_running =
                    |one: &Occurrence| (one.status, one.state) == (Status::Unknown, State::Running);
                self.newest(|one| is_running(one) && one.record.created_ms >= since_ms)
            }),
        }
    }

    /// The attempts of occurrences that failed a moment ago.
    fn failed_attempts(&self) -> u32 {
        let failed = self.open.iter().filter(|one| one.status == Status::ToldFailure);
        failed.map(|one| one.record.spent_attempts()).sum()
    }
}

impl Occurrence {
    fn new(asker: &Asker<'_>, record: Arc<Record>, state: State) -> Self {
        let place = asker.place(&record.id);
        let readers = &asker.gateway.readers;
        let delivered = readers.delivered_ms(&place, &record);
        let now_ms = asker.tenant.ledger.clock_ms();
        let seen = readers.of(&place);
        let status = status(&record, state, delivered, seen, now_ms);
        Self { record, state, status }
    }

    /// If the record is another name of an operation that another gateway executes, its client may be there. The same
    /// if that operation was delivered a moment ago: the note about this name may follow.
    async fn look_behind_the_name(&mut self, asker: &Asker<'_>) -> Result<(), Error> {
        let seen = asker.gateway.readers.of(&asker.place(&self.record.id));
        if (self.status, seen) != (Status::Unanswered, Seen::Unknown) {
            return Ok(());
        }
        let Some(of) = self.record.alias_of() else { return Ok(()) };
        match asker.tenant.ledger.find(&of).await {
            Ok((record, state)) => {
                let of = Self::new(asker, record, state);
                let now_ms = asker.tenant.ledger.clock_ms();
                let is_noted = of.record.delivered_ms().is_some_and(|at_ms| now_ms - at_ms < NOTE_MS);
                if of.status == Status::Unknown || is_noted {
                    self.status = Status::Unknown;
                }
                Ok(())
            }
            Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn status(record: &Record, state: State, delivered: Option<i64>, seen: Seen, now_ms: i64) -> Status {
    match (state, delivered, seen) {
        (State::Cancelled | State::Expired, _, _) => Status::Over,
        (State::Done | State::Failed, Some(at_ms), _) if at_ms <= now_ms => Status::Over,
        (State::Failed, Some(_), _) => Status::ToldFailure,
        // The client may have given up just when the answer was sent.
        (State::Done, Some(_), _) => Status::Unanswered,
        (State::Staged | State::Running | State::InDoubt | State::Done | State::Failed, _, Seen::Waiting) => {
            Status::Waited
        }
        (State::Staged | State::InDoubt, _, _)
        | (State::Running | State::Done | State::Failed, _, Seen::Left) => Status::Unanswered,
        (State::Running, _, Seen::Unknown) => Status::Unknown,
        (State::Done | State::Failed, None, Seen::Unknown) => {
            if now_ms - record.updated_ms < NOTE_MS {
                Status::Unknown
            } else {
                Status::Unanswered
            }
        }
    }
}

/// The operation of a request without a key: the same while an earlier one is running, in doubt or undelivered.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn without_key(asker: &Asker<'_>, action: Intent) -> Result<(Intent, RepeatRule), Error> {
    let all = Occurrences::read(asker, &action).await?;
    let retried = all.retried(|one| matches!(one.status, Status::Unanswered | Status::ToldFailure));
    Ok(match retried.or_else(|| all.open.last()) {
        Some(one) => (action.at_record(&one.record), RepeatRule::Retry(one.state)),
        None => all.next(&action)?,
    })
}

/// The operation of a request with a new key. Waits while that is undecided, until then or until the client leaves.
/// Before each look, `known` says whether the operation has become known from elsewhere.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn decide<K, F: Future<Output = Result<Option<K>, Error>>>(
    asker: &Asker<'_>,
    action: &Intent,
    retries: Retries,
    until_ms: i64,
    mut known: impl FnMut() -> F,
) -> Result<Decided<K>, Error> {
    let clock = asker.tenant.ledger.clock();
    let mut pause = LOOK_AGAIN.0;
    let mut has_waited = false;
    loop {
        if let Some(known) = known().await? {
            return Ok(Decided::Known(known));
        }
        let turn = asker.gateway.turns.take(asker.place(&action.id)).await;
        match with_key(asker, action, retries).await? {
            Choice::Same(intent, state) => return Ok(Decided::Same(intent, state, turn)),
            // If its client has just closed the connection, that may not be known yet.
            Choice::Beside(..) if !has_waited => {
                drop(turn);
                has_waited = true;
                for _ in 0..PAUSES {
                    time::sleep(clock, HANG_UP / PAUSES).await;
                }
            }
            Choice::New(intent, rule) | Choice::Beside(intent, rule) => {
                return Ok(Decided::New(intent, rule, turn));
            }
            // Nothing was sent for a client that left meanwhile, and nothing needs to be.
            Choice::Undecided(record) if clock.now_ms() >= until_ms || asker.reader.is_gone() => {
                return Ok(Decided::Undecided(record));
            }
            Choice::Undecided(_) => {
                drop(turn);
                time::sleep(clock, pause).await;
                pause = (pause * 2).min(LOOK_AGAIN.1);
            }
        }
    }
}

/// The operation of a request with a new key.
async fn with_key(asker: &Asker<'_>, action: &Intent, retries: Retries) -> Result<Choice, Error> {
    let all = Occurrences::read(asker, action).await?;
    if let Some(one) = all.retried_by(retries) {
        return Ok(Choice::Same(action.clone().at_record(&one.record), one.state));
    }
    if let Some(one) = all.retried(|one| one.status == Status::Unknown) {
        return Ok(Choice::Undecided(Arc::clone(&one.record)));
    }
    let spent = all.failed_attempts();
    let failed = all.open.iter().rfind(|one| one.status == Status::ToldFailure);
    if let Some(last) = failed.filter(|_| spent >= action.terms.max_attempts) {
        // The budget is spent by requests with other keys.
        let mut intent = action.clone().at_record(&last.record);
        intent.terms.max_attempts = last.record.spent_attempts();
        return Ok(Choice::Same(intent, last.state));
    }
    let (mut intent, rule) = all.next(action)?;
    intent.terms.max_attempts -= spent;
    let is_beside = all.is_unconfirmed || all.open.iter().any(|one| one.status == Status::Waited);
    Ok(if is_beside { Choice::Beside(intent, rule) } else { Choice::New(intent, rule) })
}

/// The attempts that no longer count against the budget of an operation that failed: all of them, when an equal
/// request with another key is no longer a retry either. An outage must not refuse a key for as long as it is kept.
pub(crate) fn refilled(record: &Record, now_ms: i64) -> u32 {
    if now_ms - record.updated_ms > FAILURE_GRACE_MS { record.spent_attempts() } else { 0 }
}

/// The budget of an operation that failed, less the attempts of equal requests that failed a moment ago.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn budget_beside(
    asker: &Asker<'_>,
    action: &Intent,
    id: &OperationId,
) -> Result<u32, Error> {
    let mut all = Occurrences::read(asker, action).await?;
    all.open.retain(|one| one.record.id != *id);
    Ok(action.terms.max_attempts.saturating_sub(all.failed_attempts()))
}

#[cfg(test)]
mod tests {
    use onceward::{Failure, Ledger, ManualClock, MemoryStore, Operation};

    use super::*;

    #[test]
    fn a_minute_after_a_certain_failure_the_budget_is_whole_again() {
        let store = Arc::new(MemoryStore::new(ManualClock::at(1_000)));
        let ledger = Ledger::new(store).blocking();
        let failed = ledger.run(Operation::new("pay").key("k"), |_| {
            Err(Failure::no_effect(onceward::Evidence::NotSent, "down"))
        });
        let record = Arc::clone(failed.unwrap_err().record().unwrap());
        assert_eq!((refilled(&record, 1_000), refilled(&record, 61_000)), (0, 0));
        assert_eq!(refilled(&record, 61_001), record.spent_attempts());
        assert!(record.spent_attempts() > 0);
    }
}
