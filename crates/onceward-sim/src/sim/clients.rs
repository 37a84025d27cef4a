//! Clients that want the same action again and again, mostly without a key. Each repeats a call until it has an answer,
//! leaves before its answer, crashes, or hangs; a person refuses, releases and settles at any moment. What must hold:
//!
//! - No action has more effects than its clients have wanted.
//! - After a delivery that was recorded, a new wish is not answered with the same result.
//! - What a person refused gets that answer, with a key and without one, until a client has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward::{
    Cancelled, Class, Clock, Error, Filter, Hold, Ledger, Operation, OperationId, Outcome, Receipt,
    RepeatRule, State, Terms, Wanted, Word, delivered_by,
};

use super::executor::Executor;
use super::history::Broken;
use super::world::World;
use super::{Environment, LEASES_OVER_MS, beginning};
use crate::random::Random;

/// The number of clients in a run, and of calls by each.
const CLIENTS: usize = 4;
const CALLS: usize = 9;
/// What they want: something plain, something that a person must release, and something whose result soon expires.
const ACTIONS: usize = 3;
const HELD: usize = 1;
const SHORT_LIVED: usize = 2;
/// How long a refusal is the answer to equal calls.
const WINDOW_MS: u64 = 3_000;

/// The statistics of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// What the clients wanted.
    pub wanted: u64,
    /// What happened.
    pub effects: u64,
    /// Wishes that began a new occurrence after a delivery.
    pub repeats: u64,
    /// Calls that got the answer of an earlier one.
    pub replays: u64,
    /// Calls that got a person's refusal.
    pub refused: u64,
    /// Calls with a key that someone's word about another operation bound.
    pub bound: u64,
    /// Doubts that a person settled.
    pub settled: u64,
    /// Clients that crashed.
    pub crashes: u64,
}

impl Summary {
    /// The sum of two.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        let Self { wanted, effects, repeats, replays, refused, bound, settled, crashes } = other;
        self.wanted += wanted;
        self.effects += effects;
        self.repeats += repeats;
        self.replays += replays;
        self.refused += refused;
        self.bound += bound;
        self.settled += settled;
        self.crashes += crashes;
        self
    }
}

/// What the clients want of one action.
#[derive(Debug, Default)]
struct Wants {
    begun: u64,
    /// The wishes without an answer, by client, and by key if it has one.
    open: BTreeSet<(usize, bool)>,
    /// The operations that its calls chose.
    operations: BTreeSet<OperationId>,
    /// Those whose result was delivered, and that was recorded.
    delivered: BTreeSet<OperationId>,
    /// What a person refused, until a client may have that answer.
    refused: BTreeSet<OperationId>,
    /// What clients have answers to. The person may learn of the refusal after them.
    answered: BTreeSet<OperationId>,
}

/// What was known before a call.
struct Before {
    operations: BTreeSet<OperationId>,
    delivered: BTreeSet<OperationId>,
    refused: BTreeSet<OperationId>,
}

struct Clients {
    ledger: Ledger,
    world: Arc<World>,
    inner: Mutex<Inner>,
}

struct Inner {
    random: Random,
    wants: BTreeMap<usize, Wants>,
    sum: Summary,
    broken: Option<String>,
}

/// Runs one simulation.
///
/// # Errors
/// The violated rule, with the seed that reproduces it.
pub fn run(seed: u64, environment: Environment) -> Result<Summary, Broken> {
    let (mut random, clock, store) = beginning(seed, environment);
    let clients = Arc::new(Clients {
        ledger: Ledger::new(store.clone()),
        world: Arc::new(World::new(clock.clone(), random.fork())),
        inner: Mutex::new(Inner {
            random: random.fork(),
            wants: BTreeMap::new(),
            sum: Summary::default(),
            broken: None,
        }),
    });
    let mut executor = Executor::new(clock.clone(), random.fork(), environment);
    for me in 0..CLIENTS {
        let clients = Arc::clone(&clients);
        executor.spawn(Box::new(move || Box::pin(work(Arc::clone(&clients), me))));
    }
    let with_seed = |broken: Broken| broken.of_clients(seed, environment);
    executor.run().map_err(with_seed)?;
    store.calm();
    clock.advance_to(clock.now_ms() + LEASES_OVER_MS);
    let inner = clients.inner();
    if let Some(broken) = &inner.broken {
        return Err(with_seed(Broken::new(broken).with(store.history())));
    }
    let mut sum = Summary { crashes: executor.crashes, ..inner.sum.clone() };
    for (action, wants) in &inner.wants {
        let effects: usize = wants.operations.iter().map(|id| clients.world.effects(id.as_str()).len()).sum();
        sum.wanted += wants.begun;
        sum.effects += effects as u64;
        // A retry that comes after the result has expired is a new wish, as the contract says.
        if effects as u64 > wants.begun && *action != SHORT_LIVED {
            let what = format!("{effects} effects of action {action}, {wants:?}");
            return Err(with_seed(Broken::new(what).with(store.history())));
        }
    }
    Ok(sum)
}

impl Clients {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self, permille: u64) -> bool {
        self.inner().random.permille(permille)
    }

    fn wants<T>(&self, action: usize, change: impl FnOnce(&mut Wants) -> T) -> T {
        change(self.inner().wants.entry(action).or_default())
    }

    fn broken(&self, what: String) {
        self.inner().broken.get_or_insert(what);
    }
}

fn operation(action: usize) -> Operation {
    let mut terms = Terms {
        class: Class::Once,
        max_attempts: 1_000,
        wait_ms: 5_000,
        repeat_window_ms: WINDOW_MS,
        ..Terms::default()
    };
    if action == HELD {
        terms.hold = Hold::Approve;
    }
    if action == SHORT_LIVED {
        terms.keep_results_for(4_000);
    }
    Operation::new("wanted").input(serde_json::json!({"action": action})).terms(terms)
}

/// A client: makes one call after another, and repeats those that were not answered.
async fn work(clients: Arc<Clients>, me: usize) {
    for _ in 0..CALLS {
        clients.world.nap().await;
        let action = clients.inner().random.index(ACTIONS);
        if clients.chance(350) {
            decide(&clients, action).await;
        }
        let has_key = clients.chance(150);
        call(&clients, me, action, has_key).await;
    }
}

async fn call(clients: &Clients, me: usize, action: usize, has_key: bool) {
    let operation = operation(action);
    let operation = if has_key { operation.key(format!("own-{me}-{action}")) } else { operation };
    let is_new = clients.wants(action, |wants| {
        // A key names one wish for ever.
        let is_known = has_key && wants.open.contains(&(me + CLIENTS, true));
        let is_new = !is_known && wants.open.insert((me, has_key));
        if has_key {
            wants.open.insert((me + CLIENTS, true));
        }
        wants.begun += u64::from(is_new);
        is_new
    });
    let before = clients.wants(action, |wants| Before {
        operations: wants.operations.clone(),
        delivered: wants.delivered.clone(),
        refused: wants.refused.clone(),
    });
    // Some surfaces do not ask which operation a call with a key refers to.
    let is_direct = has_key && clients.chance(400);
    let own = operation.clone().intent().map(|intent| intent.id);
    let wanted = match is_direct {
        true => clients.ledger.intent(operation).map(|intent| Wanted { intent, rule: RepeatRule::Given }),
        false => clients.ledger.repeats().wanted(operation).await,
    };
    let Ok(wanted) = wanted else { return };
    if !is_direct {
        judge_choice(clients, action, &before, &wanted);
    }
    let Wanted { intent, rule } = wanted;
    let id = intent.id.clone();
    clients.inner().sum.repeats += u64::from(rule == RepeatRule::Repeat);
    clients.wants(action, |wants| wants.operations.insert(id.clone()));
    let _calling = clients.world.calling(&id);
    let acting = Arc::clone(&clients.world);
    let own_intent = intent.clone();
    let result = clients
        .ledger
        .call(intent)
        .run(move |attempt| {
            let world = Arc::clone(&acting);
            async move { world.act(attempt, Class::Once).await }
        })
        .await;
    let answered = match &result {
        Ok(receipt) => Some(receipt.record()),
        Err(error) => error.record(),
    };
    let is_bound = has_key && own.is_ok_and(|own| answered.is_some_and(|record| record.id != own));
    clients.inner().sum.bound += u64::from(is_bound);
    if is_direct && result.as_ref().is_ok_and(|receipt| !receipt.replayed()) {
        judge_choice(clients, action, &before, &Wanted { intent: own_intent, rule });
    }
    judge(clients, action, (is_new, has_key), &before, &result);
    receive(clients, me, action, has_key, &result).await;
}

/// Checks an answer against what was known before the call.
fn judge(
    clients: &Clients,
    action: usize,
    (is_new, has_key): (bool, bool),
    before: &Before,
    result: &Result<Receipt, Error>,
) {
    match result {
        Ok(receipt) if receipt.replayed() => {
            clients.inner().sum.replays += 1;
            let id = &receipt.record().id;
            if is_new && !has_key && before.delivered.contains(id) {
                clients.broken(format!("a new wish for action {action} got the delivered result of {id}"));
            }
        }
        Err(Error::Cancelled { .. }) => clients.inner().sum.refused += 1,
        Ok(_) | Err(_) => {}
    }
}

/// Checks that a call begins nothing new while no client has the answer of a refusal. What was open beside the
/// refused operation is another wish.
fn judge_choice(clients: &Clients, action: usize, before: &Before, wanted: &Wanted) {
    let is_new = match wanted.rule {
        RepeatRule::Given | RepeatRule::First | RepeatRule::Repeat => {
            !before.operations.contains(&wanted.intent.id)
        }
        RepeatRule::Strict | RepeatRule::Retry(_) => false,
    };
    let still = clients.wants(action, |wants| wants.refused.intersection(&before.refused).next().cloned());
    if let Some(refused) = still.filter(|_| is_new) {
        clients.broken(format!("action {action} begins again although {refused} was refused"));
    }
}

/// The client reads its answer, unless it has left.
async fn receive(
    clients: &Clients,
    me: usize,
    action: usize,
    has_key: bool,
    result: &Result<Receipt, Error>,
) {
    let Some(record) = delivered_by(result).filter(|_| clients.chance(800)) else { return };
    clients.wants(action, |wants| {
        wants.open.remove(&(me, has_key));
        wants.refused.remove(&record.id);
        wants.answered.extend((record.state == State::Cancelled).then(|| record.id.clone()));
    });
    let from_ms = record.answer_counts_from_ms(clients.ledger.clock_ms(), WINDOW_MS);
    let noted = clients.ledger.attempts().delivered(record, from_ms).await;
    // Another answer may have replaced the one that was delivered. What has expired may run again under its number.
    let is_noted = noted.is_ok_and(|record| record.state == State::Done && record.delivered_ms().is_some());
    if is_noted && action != SHORT_LIVED {
        clients.wants(action, |wants| wants.delivered.insert(record.id.clone()));
    }
}

/// A person settles, releases or refuses what is there. Every error is acceptable here.
async fn decide(clients: &Clients, action: usize) {
    let scope = Filter { name: Some("wanted".to_owned()), limit: 100, ..Filter::default() };
    let Ok(all) = clients.ledger.list(&scope).await else { return };
    let chosen = clients.wants(action, |wants| wants.operations.clone());
    let mut own = all.into_iter().filter(|(listed, _)| chosen.contains(&listed.record.id));
    let open = |state: State| matches!(state, State::Staged | State::InDoubt | State::Failed);
    let Some((listed, state)) = own.find(|(_, state)| open(*state)) else { return };
    let (record, word) = (listed.record, Word::person("ada"));
    if state == State::InDoubt {
        let Some(verdict) = clients.world.finding(record.id.as_str()) else { return };
        let outcome = Outcome::because(None);
        let settled =
            clients.ledger.attempts().settle(&record.id, record.attempt, verdict, word, outcome).await;
        clients.inner().sum.settled += u64::from(settled.is_ok());
    } else if clients.chance(500) {
        let cancelled = clients.ledger.admin().cancel(&record.id, &word).await;
        // A refusal expires like a result.
        if matches!(cancelled, Ok(Cancelled::Certain(_))) && action != SHORT_LIVED {
            clients.wants(action, |wants| {
                let is_open = !wants.answered.contains(&record.id);
                wants.refused.extend(is_open.then_some(record.id));
            });
        }
    } else {
        drop(clients.ledger.admin().release(&record.id, &word).await);
    }
    drop(clients.ledger.admin().sweep(|_| ()).await);
}
