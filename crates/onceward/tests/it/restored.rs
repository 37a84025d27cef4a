//! Ledger identity: what runs after a restore, and what the hashes in a ledger reveal.

use std::sync::Arc;

use crate::common::{Bench, NOW_MS, pay, terms};
use onceward::{
    Class, Code, Error, Evidence, Fence, Happened, Identity, Ledger, ManualClock, MemoryStore, Operation,
    ProbeAnswer, State, Store, Word,
};

const RESTORED_MS: i64 = NOW_MS + 10_000;

/// A ledger that was restored at [`RESTORED_MS`] from a backup of [`NOW_MS`], opened after the restore.
struct Restored {
    clock: Arc<ManualClock>,
    before: Ledger,
    store: Arc<MemoryStore<Arc<ManualClock>>>,
}

impl Restored {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(NOW_MS));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock)));
        Self { clock, before: Ledger::new(Arc::clone(&store) as Arc<dyn Store>), store }
    }

    fn restore(&self) -> Bench {
        let fence =
            Fence { lost_from_ms: NOW_MS, restored_ms: RESTORED_MS, until_ms: RESTORED_MS + 86_400_000 };
        let next = self.store.identity().restored(fence, 0);
        pollster::block_on(self.store.set_identity(&next)).expect("it is written");
        self.clock.advance(RESTORED_MS + 1_000 - NOW_MS);
        let again = self.store.open_again(Arc::clone(&self.clock));
        Bench::on(Arc::new(again), Arc::clone(&self.clock))
    }
}

#[test]
fn a_handle_from_before_the_restore_runs_nothing() {
    let restored = Restored::new();
    restored.restore();
    let run = restored.before.run(pay(), |_| async { unreachable!("it must not run") });
    let error = pollster::block_on(run).expect_err("the ledger is another one");
    assert_eq!((error.code(), error.happened()), (Code::LedgerReplaced, Some(Happened::Unknown)));
    assert!(error.to_string().contains("once restored"), "{error}");
}

#[test]
fn what_the_backup_does_not_know_is_in_doubt() {
    let bench = Restored::new().restore();
    let error = bench.ask(&pay()).expect_err("it may have happened");
    assert_eq!(error.code(), Code::InDoubt);
    assert!(error.to_string().contains("restored"), "{error}");
    assert_eq!(bench.state_of(&pay()), State::InDoubt, "it can be found and settled");
}

#[test]
fn the_class_decides_what_a_lost_operation_may_do() {
    let runs = |operation: &Operation| Restored::new().restore().run(operation).map(drop);
    runs(&pay().class(Class::Idempotent)).expect("repeating it converges");
    runs(&pay().class(Class::Keyed)).expect("the downstream knows its key");
    let too_late = pay().class(Class::Keyed).terms(terms(|terms| {
        (terms.class, terms.downstream_window_ms) = (Class::Keyed, 5_000);
    }));
    let error = runs(&too_late).expect_err("the downstream may have forgotten its key");
    assert_eq!(error.code(), Code::InDoubt);
    let bench = Restored::new().restore();
    let intent = pay().intent().expect("a valid operation");
    let call = bench.ledger.call(intent.clone()).probe(|_| async { ProbeAnswer::No });
    let early = bench.ledger.run_call(call, |attempt| Ok(attempt.dispatch()?.created(&1)));
    assert_eq!(early.expect_err("the request may still be in flight").code(), Code::InDoubt);
    bench.clock.advance(60_000);
    let call = bench.ledger.call(intent).probe(|_| async { ProbeAnswer::No });
    let receipt = bench.ledger.run_call(call, |attempt| Ok(attempt.dispatch()?.created(&1)));
    assert!(!receipt.expect("the probe says that it did not happen").replayed());
}

#[test]
fn what_is_done_in_the_backup_is_replayed_and_what_failed_there_is_in_doubt() {
    let restored = Restored::new();
    let done = restored.before.run(pay(), |attempt| async move { Ok(attempt.dispatch()?.created(&1)) });
    pollster::block_on(done).expect("it is done");
    let failed = pay().key("failed");
    let run = restored
        .before
        .run(failed.clone(), |_| async { Err(onceward::Failure::no_effect(Evidence::NotSent, "declined")) });
    pollster::block_on(run).expect_err("it failed");
    let bench = restored.restore();
    assert!(bench.ask(&pay()).expect("it is done").replayed());
    assert_eq!(bench.refused(&failed), Code::InDoubt, "it may have been tried again since");
}

#[test]
fn everything_that_reads_sees_the_doubt_before_a_call_records_it() {
    let restored = Restored::new();
    let failed = pay().key("failed");
    let run = restored
        .before
        .run(failed.clone(), |_| async { Err(onceward::Failure::no_effect(Evidence::NotSent, "declined")) });
    pollster::block_on(run).expect_err("it failed");
    let staged = restored.before.intent(pay().key("staged")).expect("a valid operation");
    pollster::block_on(restored.before.attempts().stage(&staged)).expect("it is staged");
    let running = restored.before.intent(pay().key("running")).expect("a valid operation");
    let begun = pollster::block_on(restored.before.begin(&running)).expect("it begins");
    drop(begun);
    let done = restored.before.run(pay(), |attempt| async move { Ok(attempt.dispatch()?.created(&1)) });
    pollster::block_on(done).expect("it is done");

    let bench = restored.restore();
    let ledger = bench.ledger.ledger();
    let doubtful = onceward::Filter { states: vec![State::InDoubt], limit: 9, ..onceward::Filter::default() };
    let mut listed: Vec<String> = bench
        .wait(ledger.list(&doubtful))
        .expect("it can be read")
        .into_iter()
        .map(|(listed, state)| format!("{} {state} {}", listed.record.key.text, listed.record.state))
        .collect();
    listed.sort();
    assert_eq!(listed, ["failed", "running", "staged"].map(|key| format!("{key} in_doubt in_doubt")));
    for others in [State::Failed, State::Staged, State::Running] {
        let filter = onceward::Filter { states: vec![others], limit: 9, ..onceward::Filter::default() };
        assert!(bench.wait(ledger.list(&filter)).expect("it can be read").is_empty(), "{others}");
    }
    let totals = bench.wait(ledger.admin().totals(&onceward::Filter::default())).expect("it can be read");
    assert_eq!(totals, [(State::Done, 1), (State::InDoubt, 3)].into());
    let id =
        bench.wait(ledger.admin().lookup("failed", None, 9)).expect("it can be read")[0].record.id.clone();
    let (record, state) = bench.wait(ledger.wait(&id, 0)).expect("it can be read");
    assert_eq!((state, record.happened()), (State::InDoubt, Happened::Unknown));
    assert!(record.reason().is_some_and(|reason| reason.contains("restored")), "{:?}", record.reason());
    let settlement = bench.wait(ledger.scopes().settlement(&record.scope)).expect("it can be read");
    assert!(settlement.sums.in_words().contains("3 in doubt"), "{}", settlement.sums.in_words());

    // What is seen can be settled, and is then as it was settled.
    let outcome = onceward::Outcome::because(Some("it is in the books".to_owned()));
    bench
        .wait(ledger.admin().settle(&id, onceward::Verdict::Done, Word::person("ada"), outcome))
        .expect("it is in doubt");
    assert!(bench.ask(&failed).expect("it is done").replayed());
}

/// Someone settled it before the backup, and it may have run again since.
#[test]
fn a_restore_does_not_erase_what_someone_said() {
    let restored = Restored::new();
    let intent = restored.before.intent(pay()).expect("a valid operation");
    drop(pollster::block_on(restored.before.begin(&intent)).expect("it begins"));
    let word = Word::person("ada").note("not on the statement".to_owned());
    let nothing = onceward::Outcome::because(None);
    pollster::block_on(restored.before.admin().settle(&intent.id, onceward::Verdict::Failed, word, nothing))
        .expect("it is in doubt");
    let bench = restored.restore();
    let notes = |record: &onceward::Record| -> Vec<(State, Option<String>)> {
        let words =
            record.detail.history.iter().filter_map(|past| Some((past.ended, past.settled_by.as_ref()?)));
        words.map(|(ended, word)| (ended, word.note.clone())).collect()
    };
    let expected = [(State::Failed, Some("not on the statement".to_owned()))];
    let (seen, _) = bench.wait(bench.ledger.ledger().find(&intent.id)).expect("it is found");
    assert_eq!((seen.state, notes(&seen)), (State::InDoubt, expected.to_vec()), "as it is seen");
    assert_eq!(bench.refused(&pay()), Code::InDoubt);
    let (written, _) = bench.wait(bench.ledger.ledger().find(&intent.id)).expect("it is found");
    assert_eq!(
        (written.version > seen.version, notes(&written)),
        (true, expected.to_vec()),
        "as it is written"
    );
    written.check().expect("a sound record");
}

#[test]
fn a_lost_operation_can_be_settled_before_it_is_called() {
    let bench = Restored::new().restore();
    let intent = bench.ledger.intent(pay()).expect("a valid operation");
    let outcome = || onceward::Outcome::because(None);
    let ledger = bench.ledger.ledger();
    bench
        .wait(ledger.admin().settle(&intent.id, onceward::Verdict::Failed, Word::person("ada"), outcome()))
        .expect_err("it is not known");
    bench.wait(ledger.attempts().note_lost(&intent)).expect("it is written");
    bench
        .wait(ledger.admin().settle(&intent.id, onceward::Verdict::Failed, Word::person("ada"), outcome()))
        .expect("it is in doubt");
    bench.wait(ledger.attempts().note_lost(&intent)).expect("there is nothing to write");
    assert!(!bench.run(&pay()).expect("it runs").replayed());
}

#[test]
fn after_its_time_the_fence_stops_nothing_new() {
    let bench = Restored::new().restore();
    bench.clock.advance(86_400_000);
    assert!(!bench.run(&pay()).expect("it runs").replayed());
}

#[test]
fn a_plan_says_what_a_call_would_do() {
    let bench = Restored::new().restore();
    let intent = pay().intent().expect("a valid operation");
    let plan = bench.wait(bench.ledger.ledger().plan(&intent)).expect("it can be read");
    assert_eq!(plan.record.map(|record| record.state), Some(State::InDoubt));
    assert_eq!(bench.records(), 0, "nothing was written");
}

fn keyed_bench(random: u8) -> Bench {
    let clock = Arc::new(ManualClock::at(NOW_MS));
    let store = MemoryStore::new(Arc::clone(&clock));
    pollster::block_on(store.set_identity(&Identity::fresh(&[random; 48]))).expect("it is written");
    let store = store.open_again(Arc::clone(&clock));
    Bench::on(Arc::new(store), clock)
}

fn set_pin(pin: u32) -> Operation {
    Operation::new("set-pin").input(serde_json::json!({"users": {"alice@example.org": {"pin": pin}}}))
}

#[test]
fn a_ledger_with_a_secret_stores_nothing_that_can_be_guessed() {
    let (one, two) = (keyed_bench(1), keyed_bench(2));
    let text = |bench: &Bench| {
        let receipt = bench.run(&set_pin(483_920)).expect("it is done");
        serde_json::to_string(&*receipt.record().clone()).expect("a record is JSON")
    };
    let portable = set_pin(483_920).intent().expect("a valid operation");
    for record in [text(&one), text(&two)] {
        assert!(!record.contains("alice"), "names of fields can be data: {record}");
        for guessable in [portable.id.as_str(), portable.key.text.as_str(), portable.fingerprint.as_str()] {
            assert!(!record.contains(guessable), "{guessable} in {record}");
        }
    }
    assert_ne!(text(&keyed_bench(1)), text(&keyed_bench(2)));
    assert!(one.ask(&set_pin(483_920)).expect("it is the same operation").replayed());
    assert!(!one.run(&set_pin(1)).expect("it is another operation").replayed());
}

#[test]
fn a_reused_key_names_the_fields_of_the_call_and_keeps_no_names() {
    let bench = keyed_bench(1);
    bench.run(&set_pin(1).key("u1")).expect("it is done");
    let fields = |operation: &Operation| {
        let error = bench.ask(operation).expect_err("the key is reused");
        if let Error::KeyReused { fields, .. } = error { fields } else { vec![error.to_string()] }
    };
    assert_eq!(fields(&set_pin(2).key("u1")), ["/users/alice@example.org/pin"]);
    let other = Operation::new("set-pin").key("u1").input(serde_json::json!({"user": 7}));
    assert_eq!(fields(&other), ["/user", "a field that this call does not have"]);
}
