//! Servers that accept events and deliver them, as an inbox does, and a person who retries, refuses and settles. What
//! must hold:
//!
//! - An event that was acknowledged is there at the end, and each of its deliveries was handled, was refused by the
//!   person, or waits as a dead letter or a doubt.
//! - What counts as handled has happened; what counts as dead has not.
//! - A handler of the class `once` has an occurrence of an event at most once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward::event::{self, Again, Allowed, Deliveries, Fate, Next, Round};
use onceward::{
    Class, Clock, Code, Effect, Error, Filter, Intent, Kind, Ledger, OnExpired, Operation, OperationId,
    Outcome, Record, State, Swap, Terms, Verdict, Word,
};

use super::executor::Executor;
use super::history::Broken;
use super::world::World;
use super::{Environment, beginning};
use crate::random::Random;

/// The number of servers in a run, what each does, and how many events there are.
const SERVERS: usize = 3;
const TURNS: usize = 14;
const EVENTS: usize = 4;
/// The handlers: one that acts once, and one that may get an event again.
const HANDLERS: [(&str, Class); 2] = [("bill", Class::Once), ("mail", Class::Idempotent)];
const ATTEMPTS: u32 = 2;
const PAUSE_MS: u64 = 2_000;
/// The record of a delivery expires before its next attempt.
const KEPT_MS: u64 = 1_000;
/// The longest that leases, pauses and slow requests take at the end.
const ROUND_MS: i64 = 60_000;
const LAST_ROUNDS: usize = 12;

/// The statistics of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events that were acknowledged.
    pub acknowledged: u64,
    /// What handlers got.
    pub effects: u64,
    /// Deliveries that ended as handled, refused by the person, dead, and in doubt.
    pub ended: [u64; 4],
    /// Events that the person had delivered once more.
    pub again: u64,
    /// Servers that crashed.
    pub crashes: u64,
}

impl Summary {
    /// The sum of two.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.acknowledged += other.acknowledged;
        self.effects += other.effects;
        self.ended.iter_mut().zip(other.ended).for_each(|(sum, more)| *sum += more);
        self.again += other.again;
        self.crashes += other.crashes;
        self
    }
}

struct Inbox {
    ledger: Ledger,
    world: Arc<World>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    random: Random,
    acknowledged: BTreeSet<usize>,
    /// The deliveries that the person refused.
    refused: BTreeSet<OperationId>,
    /// Every delivery that was begun.
    deliveries: BTreeSet<OperationId>,
    again: u64,
}

/// Runs one simulation.
///
/// # Errors
/// The violated rule, with the seed that reproduces it.
pub fn run(seed: u64, environment: Environment) -> Result<Summary, Broken> {
    let (mut random, clock, store) = beginning(seed, environment);
    let inbox = Arc::new(Inbox {
        ledger: Ledger::new(store.clone()),
        world: Arc::new(World::new(clock.clone(), random.fork())),
        inner: Mutex::new(Inner {
            random: random.fork(),
            acknowledged: BTreeSet::new(),
            refused: BTreeSet::new(),
            deliveries: BTreeSet::new(),
            again: 0,
        }),
    });
    let mut executor = Executor::new(clock.clone(), random.fork(), environment);
    for _ in 0..SERVERS {
        let inbox = Arc::clone(&inbox);
        executor.spawn(Box::new(move || Box::pin(serve(Arc::clone(&inbox)))));
    }
    let with_seed = |broken: Broken| broken.of_events(seed, environment);
    executor.run().map_err(with_seed)?;
    // The servers continue until nothing is open any more.
    store.calm();
    for _ in 0..LAST_ROUNDS {
        clock.advance_to(clock.now_ms() + ROUND_MS);
        executor.drive(deliver_all(&inbox)).map_err(with_seed)?;
    }
    let checked = executor.drive(check(&inbox)).map_err(with_seed)?;
    let sum = checked.map_err(|what| with_seed(Broken::new(what).with(store.history())))?;
    Ok(Summary { crashes: executor.crashes, ..sum })
}

impl Inbox {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self, permille: u64) -> bool {
        self.inner().random.permille(permille)
    }
}

fn event_intent(ledger: &Ledger, number: usize) -> Result<Intent, Error> {
    let terms = Terms { retention_ms: 1 << 40, ..Terms::default() };
    ledger.intent(Operation::of_kind(Kind::Event, "event").key(format!("event-{number}")).terms(terms))
}

fn delivery(
    ledger: &Ledger,
    event: &Record,
    handler: &str,
    class: Class,
    round: Round,
) -> Result<Intent, Error> {
    let terms = Terms {
        class,
        max_attempts: ATTEMPTS * round.budgets,
        wait_ms: 0,
        on_expired: OnExpired::RetryFailed,
        retention_ms: KEPT_MS,
        ..Terms::default()
    };
    let key = format!("{}:{}", event.key.text, round.occurrence);
    ledger.intent(Operation::new(format!("source/{handler}")).key(key).terms(terms))
}

/// A server: accepts events, and delivers what is open.
async fn serve(inbox: Arc<Inbox>) {
    for _ in 0..TURNS {
        inbox.world.nap().await;
        if inbox.chance(500) {
            let number = inbox.inner().random.index(EVENTS);
            drop(accept(&inbox, number).await);
        }
        deliver_all(&inbox).await;
        if inbox.chance(300) {
            drop(decide(&inbox).await);
        }
        if inbox.chance(300) {
            drop(inbox.ledger.admin().sweep(|_| ()).await);
        }
    }
}

/// Records an event. The vendor sends it again until it is acknowledged, and sometimes once more.
async fn accept(inbox: &Inbox, number: usize) -> Result<(), Error> {
    let intent = event_intent(&inbox.ledger, number)?;
    let to = Deliveries::to(HANDLERS.map(|(handler, _)| handler.to_owned()));
    let content = Outcome { body: Some(Arc::from(&b"body"[..])), ..Outcome::with_effect(Effect::Noop) };
    let event = inbox.ledger.events().new_record(&intent, to, content);
    if let Swap::Written(_) | Swap::Conflict(Some(_)) = inbox.ledger.events().accept(event).await? {
        inbox.inner().acknowledged.insert(number);
    }
    Ok(())
}

/// Makes an attempt at every delivery for which it is time. Every error is acceptable here.
async fn deliver_all(inbox: &Inbox) {
    let open =
        Filter { states: vec![State::Staged], kinds: vec![Kind::Event], limit: 100, ..Filter::default() };
    let Ok(events) = inbox.ledger.list(&open).await else { return };
    for (listed, _) in events {
        let Some(deliveries) = listed.record.deliveries().cloned() else { continue };
        for (handler, class) in HANDLERS {
            if deliveries.handlers.get(handler) != Some(&None) {
                continue;
            }
            if let Ok(Some(fate)) = deliver(inbox, &listed.record, handler, class, deliveries.round).await {
                let fates = [(handler.to_owned(), fate)].into();
                drop(inbox.ledger.events().ended(&listed.record.id, deliveries.round, &fates).await);
            }
        }
    }
}

/// Makes one attempt, if it is time for one, and says how the delivery has ended, if it has.
async fn deliver(
    inbox: &Inbox,
    event: &Record,
    handler: &str,
    class: Class,
    round: Round,
) -> Result<Option<Fate>, Error> {
    let intent = delivery(&inbox.ledger, event, handler, class, round)?;
    let allowed = Allowed { class, attempts: intent.terms.max_attempts, pause_ms: PAUSE_MS, asked_for_ms: 0 };
    let after = |record: &Record, state| match event::next(
        Some((record, state)),
        &allowed,
        inbox.ledger.clock_ms(),
    ) {
        Next::Ended(fate) => Some(Some(fate)),
        Next::Running | Next::At(_) => Some(None),
        Next::Attempt => None,
    };
    match inbox.ledger.find(&intent.id).await {
        Ok((record, state)) => {
            if let Some(known) = after(&record, state) {
                return Ok(known);
            }
        }
        Err(Error::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    inbox.inner().deliveries.insert(intent.id.clone());
    let _calling = inbox.world.calling(&intent.id);
    let acting = Arc::clone(&inbox.world);
    let act = move |attempt| {
        let world = Arc::clone(&acting);
        async move { world.act(attempt, class).await }
    };
    Ok(match inbox.ledger.call(intent).run(act).await {
        Ok(_) => Some(Fate::Handled),
        Err(error) => match (error.code(), error.record()) {
            (Code::Cancelled, _) => Some(Fate::Refused),
            (Code::BudgetExhausted, _) => Some(Fate::Dead),
            (Code::Failed, Some(record)) => after(record, State::Failed).flatten(),
            (Code::InDoubt | Code::Timeout, Some(record)) => after(record, State::InDoubt).flatten(),
            (_, _) => None,
        },
    })
}

/// The person settles or refuses what waits, or has it delivered once more.
async fn decide(inbox: &Inbox) -> Result<(), Error> {
    let waits =
        Filter { states: vec![State::InDoubt], kinds: vec![Kind::Event], limit: 100, ..Filter::default() };
    let done = Filter { states: vec![State::Done], ..waits.clone() };
    for (listed, _) in inbox.ledger.list(&done).await? {
        if inbox.chance(50) {
            drop(inbox.ledger.events().again(&listed.record.id, Again::Everything).await?);
            inbox.inner().again += 1;
        }
    }
    for (listed, _) in inbox.ledger.list(&waits).await? {
        let Some(deliveries) = listed.record.deliveries().cloned() else { continue };
        let (mut fates, mut again) = (BTreeMap::new(), Again::Dead);
        for (handler, class) in HANDLERS {
            let Some(Some(fate)) = deliveries.handlers.get(handler).copied() else { continue };
            let id = delivery(&inbox.ledger, &listed.record, handler, class, deliveries.round)?.id;
            if fate == Fate::InDoubt {
                match inbox.world.finding(id.as_str()) {
                    // The record of the delivery may have expired: its event still says what to decide about.
                    Some(Verdict::Done) => drop(settle(inbox, &id, Verdict::Done).await),
                    Some(Verdict::Failed) => {
                        drop(settle(inbox, &id, Verdict::Failed).await);
                        again = Again::DeadAndInDoubt;
                    }
                    None => continue,
                }
            } else if fate == Fate::Dead && inbox.chance(300) {
                // The reply may be lost.
                inbox.inner().refused.insert(id.clone());
                drop(inbox.ledger.admin().cancel(&id, &Word::person("ada")).await);
            }
            if let Ok((record, state)) = inbox.ledger.find(&id).await {
                fates.insert(handler.to_owned(), event::seen_now(fate, Some((&record, state))));
            }
        }
        drop(inbox.ledger.events().ended(&listed.record.id, deliveries.round, &fates).await?);
        if inbox.chance(500) {
            drop(inbox.ledger.events().again(&listed.record.id, again).await?);
            inbox.inner().again += 1;
        }
    }
    Ok(())
}

async fn settle(inbox: &Inbox, id: &OperationId, verdict: Verdict) -> Result<(), Error> {
    let (record, _) = inbox.ledger.find(id).await?;
    let (word, outcome) = (Word::person("ada"), Outcome::because(None));
    drop(inbox.ledger.attempts().settle(id, record.attempt, verdict, word, outcome).await?);
    Ok(())
}

/// Checks how the run ended.
async fn check(inbox: &Inbox) -> Result<Summary, String> {
    let (acknowledged, refused, deliveries, again) = {
        let inner = inbox.inner();
        (inner.acknowledged.clone(), inner.refused.clone(), inner.deliveries.clone(), inner.again)
    };
    let happened = |id: &OperationId| inbox.world.effects(id.as_str()).len();
    let mut sum = Summary { acknowledged: acknowledged.len() as u64, again, ..Summary::default() };
    for number in acknowledged {
        let intent = event_intent(&inbox.ledger, number).map_err(|error| error.to_string())?;
        let found = inbox.ledger.find(&intent.id).await;
        let (event, _) = found.map_err(|error| format!("event {number} was acknowledged: {error}"))?;
        let known = event.deliveries().cloned().unwrap_or_else(|| Deliveries::to([]));
        for (handler, class) in HANDLERS {
            let all = (1..=known.round.occurrence).map(|occurrence| {
                let round = Round { occurrence, ..known.round };
                delivery(&inbox.ledger, &event, handler, class, round).map(|intent| intent.id)
            });
            let all: Vec<OperationId> = all.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
            let effects: Vec<usize> = all.iter().map(happened).collect();
            let now = effects.last().copied().unwrap_or_default();
            let is_refused = all.iter().any(|id| refused.contains(id));
            let what = |why: &str| {
                Err(format!("event {number} at {handler}: {why}, effects {effects:?}, {event:?}"))
            };
            let place = match known.handlers.get(handler).copied().flatten() {
                None => return what("its delivery never ends"),
                _ if class == Class::Once && effects.iter().any(|count| *count > 1) => return what("twice"),
                Some(Fate::Handled) if now == 0 => return what("handled, and it did not happen"),
                Some(Fate::Refused) if !is_refused => return what("the person did not refuse it"),
                Some(Fate::Dead) if now > 0 => return what("dead, and it happened"),
                Some(Fate::Dead | Fate::InDoubt) if event.state != State::InDoubt => {
                    return what("the person does not see it");
                }
                Some(Fate::Handled) => 0,
                Some(Fate::Refused) => 1,
                Some(Fate::Dead) => 2,
                Some(Fate::InDoubt) => 3,
            };
            sum.ended[place] += 1;
        }
    }
    for id in deliveries {
        sum.effects += happened(&id) as u64;
    }
    Ok(sum)
}
