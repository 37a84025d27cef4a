//! A scope that continues another one: what is replayed, what begins again, and what the abandoned branch left.

use std::sync::Arc;

use crate::common::NOW_MS;
use onceward::{
    Attempt, Blocking, BranchPoint, Code, Error, Evidence, Failure, ManualClock, MemoryStore, Operation,
    OperationId, Outcome, Receipt, UndoEvidence, UndoOutcome, Verdict, Word,
};

struct Run {
    ledger: Blocking,
    clock: Arc<ManualClock>,
}

fn send(attempt: Attempt) -> Result<onceward::Done, Failure> {
    Ok(attempt.dispatch()?.created(&"sent"))
}

impl Run {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(NOW_MS));
        let ledger = onceward::Ledger::new(Arc::new(MemoryStore::new(Arc::clone(&clock)))).blocking();
        Self { ledger, clock }
    }

    /// Makes a call in a scope that continues nothing. Each is a millisecond later than the one before.
    fn mail(&self, scope: &str, key: &str) -> OperationId {
        self.clock.advance(1);
        let operation = Operation::new("send_mail").scope(scope).key(key);
        self.ledger.run(operation, send).unwrap().record().id.clone()
    }

    /// Makes a call in a branch.
    fn again(&self, scope: &str, key: &str, point: &BranchPoint) -> Result<Receipt, Error> {
        self.clock.advance(1);
        let intent = self.ledger.intent(Operation::new("send_mail").scope(scope).key(key))?;
        let intent = self.ledger.in_branch(intent, point)?;
        self.ledger.run_call(self.ledger.call(intent), send)
    }

    fn replays(&self, scope: &str, key: &str, point: &BranchPoint) -> bool {
        self.again(scope, key, point).unwrap().replayed()
    }
}

#[test]
fn a_branch_replays_what_lies_before_it_and_repeats_what_lies_after_it() {
    let run = Run::new();
    run.mail("a", "1");
    let second = run.mail("a", "2");
    run.mail("a", "3");
    let point = BranchPoint::new("a", second);
    assert!(run.replays("b", "1", &point) && run.replays("b", "2", &point));
    assert!(!run.replays("b", "3", &point), "it lies after the branch point");
    assert!(run.replays("b", "3", &point), "it is done on this branch now");
    assert!(!run.replays("b", "4", &point));
    let settlement = run.ledger.settlement("b").unwrap();
    assert_eq!((settlement.sums.intended, settlement.sums.standing), (2, 2), "3 and 4");
    let continued = settlement.continues.unwrap();
    assert_eq!((continued.scope.as_str(), continued.inherited, continued.abandoned.len()), ("a", 2, 1));
    assert_eq!(continued.abandoned[0].key, "3");
    assert!(run.ledger.settlement("a").unwrap().continues.is_none());
}

#[test]
fn only_what_had_an_effect_or_may_have_one_is_inherited() {
    let run = Run::new();
    let ends = |key: &str, failure: Failure| {
        run.clock.advance(1);
        let operation = Operation::new("send_mail").scope("a").key(key);
        run.ledger.run(operation, |_| Err(failure.clone())).unwrap_err();
    };
    ends("failed", Failure::no_effect(Evidence::NotSent, "refused"));
    ends("doubtful", Failure::in_doubt("reset"));
    let held = Operation::new("send_mail").scope("a").key("held");
    run.ledger.stage(&run.ledger.intent(held).unwrap()).unwrap();
    let last = run.mail("a", "last");
    let point = BranchPoint::new("a", last);
    assert!(!run.replays("b", "failed", &point), "it had no effect, so the branch tries it");
    assert!(!run.replays("b", "held", &point), "nothing was sent");
    let doubt = run.again("b", "doubtful", &point).unwrap_err();
    assert_eq!(doubt.code(), Code::InDoubt, "the branch must not repeat it");
    let id = doubt.record().unwrap().id.clone();
    run.ledger
        .settle(&id, Verdict::Failed, Word::person("ada"), Outcome::because(Some("looked".to_owned())))
        .unwrap();
    assert!(!run.replays("b", "doubtful", &point), "it did not happen");
}

#[test]
fn a_branch_of_a_branch_inherits_from_both() {
    let run = Run::new();
    let first = run.mail("a", "1");
    run.mail("a", "2");
    let point = BranchPoint::new("a", first.clone());
    let second = run.again("b", "2", &point).unwrap().record().id.clone();
    run.again("b", "3", &point).unwrap();
    let later = BranchPoint::new("b", second);
    assert!(run.replays("c", "1", &later) && run.replays("c", "2", &later));
    assert!(!run.replays("c", "3", &later));
    let continued = run.ledger.settlement("c").unwrap().continues.unwrap();
    assert_eq!((continued.inherited, continued.abandoned.len()), (2, 1));
    // From an operation that the continued branch inherited itself.
    let early = BranchPoint::new("b", first);
    assert!(run.replays("d", "1", &early) && !run.replays("d", "2", &early));
}

#[test]
fn a_scope_continues_one_point() {
    let run = Run::new();
    let (first, second) = (run.mail("a", "1"), run.mail("a", "2"));
    let other = run.mail("z", "1");
    assert!(run.replays("b", "1", &BranchPoint::new("a", first.clone())));
    let refused = |scope: &str, point: BranchPoint| run.again(scope, "1", &point).unwrap_err();
    let message = refused("b", BranchPoint::new("a", second)).to_string();
    assert!(message.contains(&format!("already continues a@{first}")), "{message}");
    assert_eq!(refused("c", BranchPoint::new("a", other)).code(), Code::InvalidInput, "another scope's");
    assert_eq!(refused("a", BranchPoint::new("a", first.clone())).code(), Code::InvalidInput, "itself");
    assert_eq!(
        refused("default", BranchPoint::new("a", first.clone())).code(),
        Code::InvalidInput,
        "no name"
    );
    let unknown = OperationId::of("a", "send_mail", "9");
    assert_eq!(refused("c", BranchPoint::new("a", unknown)).code(), Code::NotFound);
    // A preview records nothing.
    let intent = run.ledger.intent(Operation::new("send_mail").scope("e").key("1")).unwrap();
    let found = run.ledger.preview_in_branch(intent, &BranchPoint::new("a", first.clone())).unwrap();
    assert_eq!(found.id, first);
    assert!(run.ledger.settlement("e").unwrap().continues.is_none());
}

#[test]
fn a_circle_is_refused_and_nothing_of_it_is_recorded() {
    let run = Run::new();
    let first = run.mail("a", "1");
    let second = run.again("b", "2", &BranchPoint::new("a", first)).unwrap().record().id.clone();
    let third = run.again("c", "3", &BranchPoint::new("b", second.clone())).unwrap().record().id.clone();
    for (scope, operation) in [("b", second), ("c", third)] {
        let point = BranchPoint::new(scope, operation);
        assert_eq!(run.again("a", "4", &point).unwrap_err().code(), Code::InvalidInput);
        assert!(run.ledger.branch_point("a").unwrap().is_none());
    }
    run.mail("a", "5");
}

#[test]
fn what_was_taken_back_is_done_again_on_the_new_branch() {
    let run = Run::new();
    let first = run.mail("a", "1");
    take_back(&run, &first);
    assert!(!run.replays("b", "1", &BranchPoint::new("a", first)));
}

fn take_back(run: &Run, id: &OperationId) {
    let (record, _) = run.ledger.find(id).unwrap();
    let undoing = run.ledger.begin_undo(id, Operation::undo_of(&record)).unwrap();
    run.ledger.run_call(run.ledger.call(undoing.intent.clone()), send).unwrap();
    run.ledger.end_undo(&undoing, &UndoOutcome::Undone(UndoEvidence::Compensation)).unwrap();
}

#[test]
fn what_is_taken_back_after_a_branch_had_it_is_not_done_again_there() {
    let run = Run::new();
    let first = run.mail("a", "1");
    let point = BranchPoint::new("a", first.clone());
    assert!(run.replays("b", "1", &point));
    run.clock.advance(1);
    take_back(&run, &first);
    assert_eq!(run.again("b", "1", &point).unwrap_err().code(), Code::Undone);
    let continued = run.ledger.settlement("b").unwrap().continues.unwrap();
    assert_eq!((continued.inherited, continued.abandoned.len()), (0, 0));
    assert!(!run.replays("c", "1", &point), "a branch that begins now does it again");
}

#[test]
fn a_branch_of_a_branch_lists_all_that_was_abandoned() {
    let run = Run::new();
    let first = run.mail("t", "a");
    run.mail("t", "b");
    let third = run.mail("t", "c");
    run.mail("t", "x");
    let point = BranchPoint::new("t", third);
    run.again("u", "d", &point).unwrap();
    let early = BranchPoint::new("u", first.clone());
    assert!(run.replays("w", "a", &early) && !run.replays("w", "b", &early));
    let continued = run.ledger.settlement("w").unwrap().continues.unwrap();
    let keys: Vec<&str> = continued.abandoned.iter().map(|line| line.key.as_str()).collect();
    assert_eq!((continued.inherited, keys), (1, vec!["b", "c", "d"]), "x was no part of u");
    // An undo of the branch can begin after an operation that it inherited.
    let plan = run.ledger.undo_plan("u", Some(&first)).unwrap();
    assert_eq!(plan.iter().map(|step| step.record.key.text.as_str()).collect::<Vec<_>>(), ["d"]);
    let later = run.mail("t", "y");
    assert_eq!(run.ledger.undo_plan("u", Some(&later)).unwrap_err().code(), Code::InvalidInput);
}

#[test]
fn points_are_read_from_text() {
    let id = OperationId::of("a", "b", "c");
    let point = BranchPoint::parse(&format!("user@example.org@{id}")).unwrap();
    assert_eq!((point.scope.as_str(), &point.operation), ("user@example.org", &id));
    assert_eq!(BranchPoint::parse(&point.to_string()).unwrap(), point);
    for wrong in ["", "a", "@op_x", "a@", "a@op_x"] {
        BranchPoint::parse(wrong).unwrap_err();
    }
}
