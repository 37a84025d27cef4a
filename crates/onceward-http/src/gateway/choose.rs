//! The two facts that [`repeat::choose`] needs about earlier equal requests: whether their clients are there, and
//! whether they have their answers. A retry comes from a client that left without its answer.
//!
//! A client that waits at this gateway is there, one that closed its connection has left. What another gateway executes
//! is unknown until that gateway has recorded the delivery, so a request with a new key waits for it.

use std::sync::Arc;
use std::time::Duration;

use onceward::repeat::{self, Beside, Choice, Delivery, Earlier, EarlierCaller, Identified};
use onceward::{Error, Intent, Occurrences, OperationId, Record, RepeatRule, State, Wanted};

use super::context::RequestContext;
use super::delivery::FAILURE_GRACE_MS;
use super::named_locks::NamedLock;
use super::readers::Presence;
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

/// What a request with a new key refers to, after the time that it takes to find out.
pub(crate) enum Decided<K> {
    /// It is known from elsewhere.
    Known(K),
    /// It is a retry of this operation, which is in this state. Held: the turn to begin it.
    Same(Intent, State, NamedLock),
    /// It is a new operation. Held: the turn to begin it.
    New(Intent, RepeatRule, NamedLock),
    /// It stayed unknown whether the client of this operation is there.
    Undecided(Arc<Record>),
}

/// The earlier occurrences of an action, and what this process knows about their clients.
struct Known {
    found: Occurrences,
    earlier: Vec<Earlier>,
    /// Whether an answer was written a moment ago, and its client may just be leaving without it.
    is_unconfirmed: bool,
}

impl Known {
    async fn read(context: &RequestContext, action: &Intent, call: Identified) -> Result<Self, Error> {
        let found = context.tenant.ledger.repeats().occurrences(action).await?;
        let mut earlier = Vec::with_capacity(found.all.len());
        let mut is_unconfirmed = false;
        for (record, state) in &found.all {
            let mut one = facts(context, record, *state, call);
            if let Some(of) = record.alias_of() {
                one = alias_facts(context, one, &of, record, call).await?;
            }
            is_unconfirmed |= one.delivery == Delivery::Delivered
                && context
                    .gateway
                    .readers
                    .is_unconfirmed(&context.tenant.place(&record.id), context.tenant.ledger.clock());
            earlier.push(one);
        }
        Ok(Self { found, earlier, is_unconfirmed })
    }

    fn choose(&self, call: Identified) -> Choice {
        repeat::choose(&self.earlier, call)
    }
}

/// What this process knows about the client of an earlier request.
fn facts(context: &RequestContext, record: &Record, state: State, call: Identified) -> Earlier {
    let place = context.tenant.place(&record.id);
    let readers = &context.gateway.readers;
    let now_ms = context.tenant.ledger.clock_ms();
    let delivery = Delivery::at(readers.delivered_ms(&place, record), now_ms);
    let has_just_ended = now_ms - record.updated_ms < NOTE_MS;
    let caller = match (readers.of(&place), call) {
        (Presence::Waiting, Identified::ByNewKey { .. } | Identified::AsSample { .. }) => {
            EarlierCaller::Beside
        }
        (Presence::Waiting, Identified::ByContent | Identified::AsRetry | Identified::ByOwnKey) => {
            EarlierCaller::Unknown
        }
        (Presence::Left, _) => EarlierCaller::Left,
        (Presence::Unknown, _) => match state {
            // The gateway that executed it would have recorded the delivery by now.
            State::Done | State::Failed if !has_just_ended => EarlierCaller::Left,
            State::Staged
            | State::Running
            | State::Done
            | State::Failed
            | State::InDoubt
            | State::Cancelled
            | State::Expired => EarlierCaller::Unknown,
        },
    };
    Earlier { caller, delivery, ..Earlier::of(record, state, now_ms) }
}

/// The facts about a record that is another name of an operation. If another gateway executes that one, its client may
/// be there. The same if that operation was delivered a moment ago: the note about this name may follow.
async fn alias_facts(
    context: &RequestContext,
    name: Earlier,
    of: &OperationId,
    record: &Record,
    call: Identified,
) -> Result<Earlier, Error> {
    let is_known = context.gateway.readers.of(&context.tenant.place(&record.id)) != Presence::Unknown;
    if is_known || name.delivery == Delivery::Delivered {
        return Ok(name);
    }
    match context.tenant.ledger.find(of).await {
        Ok((record, state)) => {
            let now_ms = context.tenant.ledger.clock_ms();
            let is_noted = record.delivered_ms().is_some_and(|at_ms| now_ms - at_ms < NOTE_MS);
            let is_unknown = is_noted || facts(context, &record, state, call).is_undecided();
            let caller = if is_unknown { EarlierCaller::Unknown } else { name.caller };
            Ok(Earlier { caller, ..name })
        }
        Err(Error::NotFound { .. }) => Ok(name),
        Err(error) => Err(error),
    }
}

/// The operation of a request without a key: the same while an earlier one is running, in doubt or undelivered.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn without_key(context: &RequestContext, action: Intent) -> Result<Wanted, Error> {
    let known = Known::read(context, &action, Identified::ByContent).await?;
    match known.choose(Identified::ByContent) {
        Choice::Same(place) | Choice::Undecided(place) | Choice::Spent(place) => {
            Ok(known.found.same(action, place))
        }
        Choice::New { .. } => known.found.next(action),
    }
}

/// The operation of a request with a new key. Waits while that is undecided, until then or until the client leaves.
/// Before each look, `known` says whether the operation has become known from elsewhere.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn decide<K, F: Future<Output = Result<Option<K>, Error>>>(
    context: &RequestContext,
    action: &Intent,
    call: Identified,
    until_ms: i64,
    mut known: impl FnMut() -> F,
) -> Result<Decided<K>, Error> {
    let clock = context.tenant.ledger.clock();
    let mut pause = LOOK_AGAIN.0;
    let mut has_waited = false;
    loop {
        if let Some(known) = known().await? {
            return Ok(Decided::Known(known));
        }
        let turn = context.gateway.named_locks.take(context.tenant.place(&action.id)).await;
        let all = Known::read(context, action, call).await?;
        let record = |place: usize| &all.found.all[place].0;
        match all.choose(call) {
            Choice::Same(place) => {
                let (intent, state) = (action.clone().at_record(record(place)), all.found.all[place].1);
                return Ok(Decided::Same(intent, state, turn));
            }
            // The budget is spent by requests with other keys.
            Choice::Spent(place) => {
                let mut intent = action.clone().at_record(record(place));
                intent.terms.max_attempts = record(place).spent_attempts();
                return Ok(Decided::Same(intent, all.found.all[place].1, turn));
            }
            // If the client of another one has just closed its connection, that may not be known yet.
            Choice::New { beside, .. }
                if !has_waited && (beside == Beside::Waiting || all.is_unconfirmed) =>
            {
                drop(turn);
                has_waited = true;
                for _ in 0..PAUSES {
                    time::sleep(clock, HANG_UP / PAUSES).await;
                }
            }
            Choice::New { spent, .. } => {
                let Wanted { mut intent, rule } = all.found.next(action.clone())?;
                intent.terms.max_attempts -= spent;
                return Ok(Decided::New(intent, rule, turn));
            }
            // Nothing was sent for a client that left meanwhile, and nothing needs to be.
            Choice::Undecided(place) if clock.now_ms() >= until_ms || context.reader.is_gone() => {
                return Ok(Decided::Undecided(Arc::clone(record(place))));
            }
            Choice::Undecided(_) => {
                drop(turn);
                time::sleep(clock, pause).await;
                pause = (pause * 2).min(LOOK_AGAIN.1);
            }
        }
    }
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
    context: &RequestContext,
    action: &Intent,
    id: &OperationId,
) -> Result<u32, Error> {
    let all = Known::read(context, action, Identified::ByContent).await?;
    let others = all.found.all.iter().zip(&all.earlier).filter(|((record, _), _)| record.id != *id);
    let spent = repeat::spent(others.map(|(_, one)| one));
    Ok(action.terms.max_attempts.saturating_sub(spent))
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
