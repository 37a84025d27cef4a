//! Stores that fail before a write, or after it so that only the reply is lost. Nothing runs without its intent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::common::{Bench, NOW_MS, once, pay, terms};
use async_trait::async_trait;
use onceward::{
    Answer, Barrier, Begin, Class, Clock, Code, Counts, Evidence, Failure, Filter, Happened, Identity,
    Inherit, Listed, Liveness, LivenessSource, ManualClock, MemoryStore, OperationId, Owner, OwnerLock, Ran,
    Record, State, Store, StoreError, Swap, WriteMode,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Well,
    /// The write fails and nothing is written.
    WriteLost,
    /// The record is written, and then the call fails.
    ReplyLost,
    /// The record is written, the reply is lost, and the read that follows fails too.
    ReplyLostAndBlind,
}
use Fate::{ReplyLost, ReplyLostAndBlind, Well, WriteLost};

/// A store in memory whose writes fail as a script says, and succeed after its end.
struct Fated {
    inner: MemoryStore<Arc<ManualClock>>,
    script: Mutex<VecDeque<Fate>>,
    blind_loads: Mutex<u32>,
}

fn bench(script: &[Fate]) -> Bench {
    let clock = Arc::new(ManualClock::at(NOW_MS));
    let inner = MemoryStore::new(Arc::clone(&clock));
    let script = Mutex::new(script.iter().copied().collect());
    Bench::on(Arc::new(Fated { inner, script, blind_loads: Mutex::new(0) }), clock)
}

fn lost() -> StoreError {
    StoreError::unavailable("the disk is full")
}

#[async_trait]
impl Store for Fated {
    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn watch(&self) -> LivenessSource {
        self.inner.watch()
    }

    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        self.inner.set_identity(next).await
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let blind = std::mem::take(&mut *self.blind_loads.lock().expect("no panic")) > 0;
        if blind { Err(lost()) } else { self.inner.load(id).await }
    }

    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError> {
        let fate = self.script.lock().expect("no panic").pop_front().unwrap_or(Well);
        if fate == WriteLost {
            return Err(lost());
        }
        let swap = self.inner.swap(expected, record, mode).await;
        if fate == ReplyLostAndBlind {
            *self.blind_loads.lock().expect("no panic") = 1;
        }
        if fate == Well { swap } else { Err(lost()) }
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        self.swap(expected, record, mode).await.map(Begin::Swapped)
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        self.inner.stop(barrier).await
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        self.inner.resume(scope).await
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        self.inner.barriers().await
    }

    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError> {
        self.inner.delete(id, expected, mode).await
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        self.inner.occurrences(action, now_ms).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.inner.list(filter).await
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.inner.due(now_ms, limit).await
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        self.inner.counts(filter).await
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        self.inner.changed(id, seen, timeout_ms).await;
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        self.inner.hold(inherit)
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        self.inner.liveness(owner).await
    }

    fn tally_replay(&self, id: &OperationId) {
        self.inner.tally_replay(id);
    }
}

#[test]
fn nothing_runs_when_the_intent_is_not_written() {
    let bench = bench(&[WriteLost]);
    let error = bench.ask(&pay()).expect_err("the intent is lost");
    assert_eq!(
        (error.code(), error.happened(), error.retryable()),
        (Code::LedgerUnavailable, Some(Happened::Unknown), false)
    );
    assert_eq!(bench.records(), 0);
    assert!(!bench.run(&pay()).expect("the retry runs").replayed());
}

#[test]
fn a_caller_that_finds_its_own_intent_after_a_lost_reply_continues() {
    let bench = bench(&[ReplyLost]);
    let receipt = bench.run(&pay()).expect("the intent is on disk");
    assert_eq!((receipt.replayed(), receipt.record().attempt), (false, 1));
    assert!(bench.ask(&pay()).expect("it is replayed").replayed());
}

#[test]
fn nothing_runs_if_it_is_unknown_whether_the_intent_was_written() {
    let bench = bench(&[ReplyLostAndBlind]);
    assert_eq!(bench.refused(&pay()), Code::LedgerUnavailable);
    assert_eq!(bench.state_of(&pay()), State::Failed, "its owner noted that nothing was dispatched");
    assert_eq!(bench.run(&pay()).expect("the retry runs").record().attempt, 2);
}

#[test]
fn an_intent_that_was_written_without_an_answer_is_withdrawn_by_the_next_call() {
    let bench = bench(&[ReplyLostAndBlind]);
    let intent = pay().intent().expect("a valid operation");
    let begun = bench.wait(bench.ledger.ledger().begin(&intent)).map(|_| ());
    assert_eq!(begun.expect_err("it cannot be read").code(), Code::LedgerUnavailable);
    assert_eq!(bench.state_of(&pay()), State::InDoubt, "others cannot know that nothing was dispatched");
    // Any call on the same ledger handle withdraws them.
    bench.run(&pay().key("another")).expect("it is done");
    assert_eq!(bench.state_of(&pay()), State::Failed);
    assert_eq!(bench.run(&pay()).expect("it runs").record().attempt, 2);
}

#[test]
fn a_withdrawal_that_fails_is_retried() {
    let bench = bench(&[ReplyLostAndBlind, WriteLost]);
    let intent = pay().intent().expect("a valid operation");
    drop(bench.wait(bench.ledger.ledger().begin(&intent)));
    assert_eq!(bench.refused(&pay().key("another")), Code::LedgerUnavailable);
    assert_eq!(bench.run(&pay()).expect("it runs").record().attempt, 2);
}

#[test]
fn the_intent_is_on_disk_while_the_work_runs() {
    let bench = bench(&[]);
    let receipt = bench.ledger.run(pay(), |attempt| {
        let (record, state) =
            bench.wait(bench.ledger.ledger().find(attempt.operation())).expect("it is there");
        assert_eq!((record.attempt, state), (attempt.number(), State::Running));
        Ok(attempt.dispatch()?.created(&1))
    });
    receipt.expect("it is done");
}

#[test]
fn an_ending_is_written_again_until_it_is_there() {
    for fate in [WriteLost, ReplyLost] {
        let bench = bench(&[Well, fate, fate, fate]);
        let receipt = bench.run(&pay()).expect("it is done");
        assert_eq!(bench.clock.now_ms() - NOW_MS, 20 + 50 + 100, "with growing pauses");
        let replay = bench.ask(&pay()).expect("it is replayed");
        assert_eq!((replay.data(), replay.double_effect()), (receipt.data(), None), "{fate:?}");
        assert_eq!(replay.record().attempt, 1);
    }
}

#[test]
fn a_failure_whose_reply_was_lost_is_one_failure() {
    let bench = bench(&[Well, ReplyLost]);
    let error = bench
        .ledger
        .run(pay(), |_| Err(Failure::no_effect(Evidence::NotSent, "declined")))
        .expect_err("it fails");
    assert_eq!(error.code(), Code::Failed);
    assert!(
        bench.found(&pay()).detail.history.is_empty(),
        "the attempt is remembered when the next one starts"
    );
    let second = bench.run(&pay()).expect("it runs again");
    let history = &second.record().detail.history;
    assert_eq!((history.len(), history[0].ended), (1, State::Failed));
}

#[test]
fn an_ending_that_cannot_be_written_is_reported_and_leaves_a_doubt() {
    let bench = bench(&[Well, WriteLost, WriteLost, WriteLost, WriteLost, WriteLost, WriteLost]);
    let error = bench.run(&pay()).expect_err("the ending is lost");
    assert_eq!(
        (error.code(), error.happened(), error.retryable()),
        (Code::InDoubt, Some(Happened::Yes), false)
    );
    let answer = Answer::failed(&error, &once());
    assert_eq!((answer.ok, answer.effect), (false, "unknown"));
    assert!(error.to_string().starts_with("it was done, but its outcome could not be written"), "{error}");
    assert_eq!(bench.refused(&pay()), Code::InDoubt, "it is not run again");
}

/// If a retry of a call cannot be recorded, its first try still counts as run.
#[test]
fn a_second_try_that_cannot_be_written_does_not_hide_the_first_one() {
    type Fail = fn(&str) -> Failure;
    let cases: [(Fail, Code, Happened); 3] = [
        (|why| Failure::no_effect(Evidence::NotSent, why), Code::Failed, Happened::No),
        (|why| Failure::in_doubt(why), Code::InDoubt, Happened::Unknown),
        (|why| Failure::timed_out(why), Code::Timeout, Happened::Unknown),
    ];
    for (fail, code, happened) in cases {
        let bench = bench(&[Well, Well, WriteLost]);
        let operation = pay().terms(terms(|terms| {
            (terms.class, terms.retries) = (Class::Idempotent, 1);
        }));
        let error = bench.ledger.run(operation, |_| Err(fail("reset"))).expect_err("it does not succeed");
        assert_eq!((error.code(), error.happened(), error.ran()), (code, Some(happened), Ran::Yes));
    }
}

#[test]
fn a_doubt_that_cannot_be_written_runs_nothing() {
    let bench = bench(&[Well, WriteLost]);
    drop(bench.begin(&pay()));
    assert_eq!(bench.refused(&pay()), Code::LedgerUnavailable);
    assert_eq!(bench.refused(&pay()), Code::InDoubt);
}
