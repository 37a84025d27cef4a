//! Importing records of one ledger into another.

use crate::common::{Bench, id, left_in_doubt, pay};
use onceward::{Code, Imported, Operation, Record, State};

/// The result of importing the record, as a word.
fn import(bench: &Bench, record: &Record) -> Result<&'static str, Code> {
    let adopted = bench.wait(bench.ledger.ledger().admin().import(record.clone()));
    adopted.map_err(|error| error.code()).map(|adopted| match adopted {
        Imported::Taken => "taken",
        Imported::AlreadyThere => "already there",
        Imported::Differs(_) => "differs",
    })
}

fn record(bench: &Bench) -> Record {
    Record::clone(&bench.wait(bench.ledger.ledger().find(&id(&pay()))).expect("it is there").0)
}

#[test]
fn what_was_done_there_is_replayed_here() {
    let (old, new) = (Bench::new(), Bench::new());
    let first = old.ledger.run(pay(), |attempt| Ok(attempt.dispatch()?.created(&42))).expect("it runs");
    let moved = record(&old);
    assert_eq!(import(&new, &moved), Ok("taken"));
    assert_eq!(import(&new, &moved), Ok("already there"));
    let again = new.ledger.run(pay(), |_| unreachable!("it was done")).expect("it is replayed");
    assert_eq!((again.replayed(), again.data()), (true, first.data()));
}

#[test]
fn what_runs_there_is_in_doubt_here() {
    let (old, new) = (Bench::new(), Bench::new());
    let claim = old.begin(&pay());
    // A live owner here has a lock with the same token as the owner there.
    let stranger = new.begin(&onceward::Operation::new("mail").key("other"));
    assert_eq!(stranger.record().detail.owner, claim.record().detail.owner);
    assert_eq!(import(&new, claim.record()), Ok("taken"));
    assert_eq!(new.state_of(&pay()), State::InDoubt);
    assert_eq!(new.refused(&pay()), Code::InDoubt);
    assert_eq!(import(&new, claim.record()), Ok("already there"), "a second import changes nothing");
}

#[test]
fn a_doubt_of_there_has_no_owner_here() {
    let (old, new) = (Bench::new(), Bench::new());
    let claim = old.begin(&pay());
    left_in_doubt(&old, &claim);
    let _stranger = new.begin(&onceward::Operation::new("mail").key("other"));
    let doubt = record(&old);
    assert_eq!((old.state_of(&pay()), doubt.state), (State::Running, State::InDoubt));
    assert_eq!(import(&new, &doubt), Ok("taken"));
    assert_eq!((new.state_of(&pay()), new.refused(&pay())), (State::InDoubt, Code::InDoubt));
}

#[test]
fn an_operation_without_a_chosen_name_moves_too() {
    let (old, new) = (Bench::new(), Bench::new());
    let unnamed =
        |program: &str| Operation::unnamed(program).key("order-17").input(serde_json::json!({"a": 1}));
    old.run(&unnamed("pay.sh")).expect("it runs");
    let moved = old.found(&unnamed("pay.sh"));
    assert_eq!(import(&new, &moved), Ok("taken"));
    assert!(new.ask(&unnamed("pay.sh")).expect("it is replayed").replayed());
    assert!(new.ask(&unnamed("sh")).expect("scope and key identify it").replayed());
    let forged = Record {
        key: onceward::Key { text: "order-18".to_owned(), ..moved.key.clone() },
        ..Record::clone(&moved)
    };
    assert_eq!(import(&new, &forged), Err(Code::InvalidInput));
}

#[test]
fn existing_records_are_left_alone() {
    let (old, new) = (Bench::new(), Bench::new());
    old.run(&pay()).expect("it runs");
    new.clock.advance(1);
    new.run(&pay()).expect("it runs here too, on its own");
    assert_eq!(import(&new, &record(&old)), Ok("differs"));
    let later = Bench::new();
    import(&later, &record(&old)).expect("it is taken");
    let newer = Record { version: record(&old).version + 1, ..record(&old) };
    assert_eq!(import(&later, &newer), Ok("differs"), "it changed further in the old ledger");
    assert_eq!(record(&later).version, record(&old).version);
}

#[test]
fn a_record_that_was_changed_by_hand_is_refused() {
    let (old, new) = (Bench::new(), Bench::new());
    old.run(&pay()).expect("it runs");
    let forged = Record { scope: "another".to_owned(), ..record(&old) };
    assert_eq!(import(&new, &forged), Err(Code::InvalidInput));
    assert!(new.wait(new.store.load(&forged.id)).expect("it can be read").is_none());
}
