//! Helpers that the tests share.

pub(crate) mod broken;
pub(crate) mod ended;
pub(crate) mod errors;
pub(crate) mod table;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onceward::{
    Begun, Blocking, Claim, Clock, Code, Ending, Error, Intent, KeyOrigin, Ledger, ManualClock, MemoryStore,
    Operation, OperationId, Outcome, Owner, Plan, Receipt, Record, State, Store, Surface, Swap, Terms,
    WriteMode, transition,
};

/// A clock that advances on its own, for tests with threads.
pub(crate) struct GoingClock {
    begun: Instant,
    /// How many of its milliseconds pass in one real millisecond.
    speed: u32,
}

impl GoingClock {
    pub(crate) fn new() -> Self {
        Self::times(1)
    }

    /// A clock that runs this many times as fast as real time.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn times(speed: u32) -> Self {
        Self { begun: Instant::now(), speed }
    }
}

#[async_trait]
impl Clock for GoingClock {
    fn now_ms(&self) -> i64 {
        let gone = self.begun.elapsed() * self.speed;
        1_000_000 + i64::try_from(gone.as_millis()).unwrap_or(i64::MAX)
    }

    async fn sleep(&self, ms: u64) {
        let span = Duration::from_millis(ms) / self.speed;
        let event = Arc::new(event_listener::Event::new());
        let listener = event.listen();
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        std::thread::spawn(move || {
            std::thread::sleep(span);
            event.notify(1);
        });
        listener.await;
    }
}

/// The time of every test of decisions.
pub(crate) const NOW_MS: i64 = 1_000_000;

/// The intent for tests of decisions, with a key of this origin.
pub(crate) fn intent(origin: KeyOrigin) -> Intent {
    // Tables ask for it a hundred thousand times, and its hashes take time.
    static INTENTS: [OnceLock<Intent>; 2] = [OnceLock::new(), OnceLock::new()];
    let made = &INTENTS[usize::from(origin == KeyOrigin::Given)];
    made.get_or_init(|| new_intent(origin)).clone()
}

fn new_intent(origin: KeyOrigin) -> Intent {
    let operation = Operation::new("pay").input(serde_json::json!({"customer": "c1", "amount": 100}));
    let operation = match origin {
        KeyOrigin::Given => operation.key("order-17"),
        KeyOrigin::Derived => operation,
    };
    operation.intent().expect("a valid operation")
}

/// A record of this intent in this state, with two attempts in this occurrence and two in the previous one.
pub(crate) fn record(state: State, intent: &Intent) -> Record {
    let mut record = Record { state, version: 7, attempt: 4, ..transition::stage(intent, NOW_MS - 500) };
    record.detail.attempts_before = 2;
    record.detail.owner = Some(Owner { token: 9, lease_until_ms: NOW_MS + 1 });
    record.due_ms = state.is_settled().then_some(NOW_MS + 1);
    record
}

/// All sequences with one word from each list.
pub(crate) fn combinations<const N: usize>(lists: [&[&'static str]; N]) -> Vec<[&'static str; N]> {
    let mut all = vec![[""; N]];
    for (at, list) in lists.iter().enumerate() {
        all = all
            .into_iter()
            .flat_map(|words| {
                list.iter().map(move |word| {
                    let mut words = words;
                    words[at] = word;
                    words
                })
            })
            .collect();
    }
    all
}

/// A ledger in memory whose clock the test controls.
pub(crate) struct Bench {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Blocking,
}

impl Bench {
    /// A bench on which the kernel tells who is alive.
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::at(NOW_MS));
        Self::on(Arc::new(MemoryStore::new(Arc::clone(&clock))), clock)
    }

    /// A bench on which only leases do.
    pub(crate) fn blind() -> Self {
        let clock = Arc::new(ManualClock::at(NOW_MS));
        Self::on(Arc::new(MemoryStore::blind(Arc::clone(&clock))), clock)
    }

    pub(crate) fn on(store: Arc<dyn Store>, clock: Arc<ManualClock>) -> Self {
        let ledger = Ledger::new(Arc::clone(&store)).blocking();
        Self { clock, store, ledger }
    }

    /// Drives a future of the ledger.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.ledger.wait_for(future)
    }

    /// Begins an attempt that the test ends or drops.
    pub(crate) fn begin(&self, operation: &Operation) -> Claim {
        let intent = operation.clone().intent().expect("a valid operation");
        match self.wait(self.ledger.ledger().begin(&intent)).expect("it begins") {
            Begun::Execute(claim) => claim,
            Begun::Replay(_) => panic!("it was replayed"),
        }
    }

    /// The effective state of the operation.
    pub(crate) fn state_of(&self, operation: &Operation) -> State {
        self.wait(self.ledger.ledger().find(&id(operation))).expect("it is found").1
    }

    pub(crate) fn found(&self, operation: &Operation) -> Arc<Record> {
        self.wait(self.ledger.ledger().find(&id(operation))).expect("it is found").0
    }

    /// Runs it and returns a count in the result.
    pub(crate) fn run(&self, operation: &Operation) -> Result<Receipt, Error> {
        self.ledger.run(operation.clone(), |attempt| Ok(attempt.dispatch()?.created(&attempt.number())))
    }

    /// Calls it when it must not run.
    pub(crate) fn ask(&self, operation: &Operation) -> Result<Receipt, Error> {
        self.ledger.run(operation.clone(), |_| panic!("it was run"))
    }

    /// The code with which it is refused.
    #[track_caller]
    pub(crate) fn refused(&self, operation: &Operation) -> Code {
        self.ask(operation).expect_err("it should be refused").code()
    }

    /// What a call would do.
    pub(crate) fn plan(&self, operation: &Operation) -> Plan {
        let intent = operation.clone().intent().expect("a valid operation");
        self.wait(self.ledger.ledger().plan(&intent)).expect("a plan")
    }

    /// The number of records.
    pub(crate) fn records(&self) -> u64 {
        self.wait(self.ledger.ledger().admin().counts()).expect("counts").values().sum()
    }
}

/// Writes the ending of an attempt that reported a doubt while a process that it started still holds its lock.
pub(crate) fn left_in_doubt(bench: &Bench, claim: &Claim) {
    let found = claim.record();
    let outcome = Outcome::because(Some("timed out".to_owned()));
    let doubt = transition::finish(found, found.attempt, Ending::InDoubt(outcome), bench.clock.now_ms());
    let swap = bench.wait(bench.store.swap(Some(found.version), doubt, WriteMode::Blocking));
    assert!(matches!(swap, Ok(Swap::Written(_))), "the doubt is written");
}

/// The surface that the tests use to read answers.
pub(crate) fn once() -> Surface {
    Surface::shell("once")
}

/// An operation with a given key.
pub(crate) fn pay() -> Operation {
    Operation::new("pay").key("order-17").input(serde_json::json!({"customer": "c1", "amount": 100}))
}

/// The default terms with a change.
pub(crate) fn terms(change: impl FnOnce(&mut Terms)) -> Terms {
    let mut terms = Terms::default();
    change(&mut terms);
    terms
}

pub(crate) fn id(operation: &Operation) -> OperationId {
    operation.clone().intent().expect("a valid operation").id
}

/// The same with a short lease.
pub(crate) fn short_lease() -> Operation {
    pay().terms(terms(|terms| (terms.lease_ms, terms.quarantine_ms) = (300, 5_000)))
}

/// Every kind of surface: a tool with options that select its ledger, for a caller and for a person, a custom tool,
/// Python, HTTP, and MCP for an agent that may settle a doubt and for one that may not.
pub(crate) fn surfaces() -> [(&'static str, Surface); 7] {
    let options = vec!["--ledger".to_owned(), "agent.db".to_owned()];
    let to = onceward::Audience::Caller;
    let shell = Surface::Shell { program: "once".to_owned(), options, to, once: None };
    [
        ("once", shell.clone()),
        ("once, a person", shell.to_person()),
        ("shop", Surface::shell("shop")),
        ("python", Surface::Python),
        ("http", Surface::Http),
        ("agent", Surface::McpAgent),
        ("person", Surface::McpPerson { program: "once --ledger agent.db".to_owned() }),
    ]
}
