//! A ledger has an identity, and a store writes only to the ledger that it opened.

use super::Case;
use super::bench::{Bench, Problem, Verdict, ensure, next, staged, wait};
use super::cases;
use crate::error::Code;
use crate::identity::{Fence, Identity};
use crate::key::OperationId;
use crate::record::Record;
use crate::store::{Change, StoreError, WriteMode};

pub(super) const CASES: &[Case] = cases![
    a_ledger_has_a_name_and_an_epoch,
    a_store_of_an_earlier_epoch_swaps_nothing,
    a_store_of_an_earlier_epoch_deletes_nothing,
    a_store_of_an_earlier_epoch_applies_nothing,
    a_store_of_an_earlier_epoch_sets_no_identity,
    an_identity_of_the_same_epoch_stops_nobody,
    the_ledger_runs_nothing_in_an_earlier_epoch,
];

fn a_ledger_has_a_name_and_an_epoch(bench: &Bench) -> Verdict {
    let identity = bench.identity();
    ensure!(identity.name.starts_with("l_"), "the name is {:?}", identity.name);
    ensure!(identity.epoch >= 1, "the epoch is {}", identity.epoch);
    Ok(())
}

fn a_store_of_an_earlier_epoch_swaps_nothing(bench: &Bench) -> Verdict {
    let written = bench.put(&staged("a")?)?;
    restore(bench)?;
    is_replaced(&wait(bench.swap(None, other(&written), WriteMode::Async)), "a new record")?;
    is_replaced(
        &wait(bench.swap(Some(written.version), next(&written), WriteMode::Async)),
        "the next version",
    )
}

fn a_store_of_an_earlier_epoch_deletes_nothing(bench: &Bench) -> Verdict {
    let written = bench.put(&staged("a")?)?;
    restore(bench)?;
    is_replaced(&wait(bench.delete(&written.id, written.version, WriteMode::Async)), "a deletion")
}

fn a_store_of_an_earlier_epoch_applies_nothing(bench: &Bench) -> Verdict {
    let written = bench.put(&staged("a")?)?;
    restore(bench)?;
    let changes = vec![
        Change::Swap { expected: None, record: other(&written) },
        Change::Delete { id: written.id.clone(), expected: written.version },
    ];
    is_replaced(&wait(bench.apply(changes, WriteMode::Async)), "a batch")
}

fn a_store_of_an_earlier_epoch_sets_no_identity(bench: &Bench) -> Verdict {
    let identity = bench.identity().clone();
    restore(bench)?;
    is_replaced(&wait(bench.set_identity(&identity)), "an identity")
}

fn an_identity_of_the_same_epoch_stops_nobody(bench: &Bench) -> Verdict {
    let identity = Identity { fence: Some(fence()), ..bench.identity().clone() };
    wait(bench.set_identity(&identity))?;
    bench.put(&staged("a")?).map(drop)
}

fn the_ledger_runs_nothing_in_an_earlier_epoch(bench: &Bench) -> Verdict {
    restore(bench)?;
    let mut ran = false;
    let answer = bench.ledger().run(crate::Operation::new("pay").key("a"), |attempt| {
        ran = true;
        Ok(attempt.dispatch()?.created(&"paid"))
    });
    ensure!(!ran, "it ran");
    match answer {
        Err(error) if error.code() == Code::LedgerReplaced => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err(Problem::new("it was done")),
    }
}

fn fence() -> Fence {
    Fence { lost_from_ms: 1, restored_ms: 2, until_ms: 3 }
}

/// Simulates another process that declares the ledger restored.
fn restore(bench: &Bench) -> Verdict {
    let next = bench.identity().restored(fence(), 0);
    Ok(wait(bench.set_identity(&next))?)
}

fn other(record: &Record) -> Record {
    let id = OperationId::of(&record.scope, &record.name, "another");
    let key = crate::Key { text: "another".to_owned(), ..record.key.clone() };
    Record { id, key, version: 1, ..record.clone() }
}

fn is_replaced<T>(answer: &Result<T, StoreError>, what: &str) -> Verdict {
    match answer {
        Err(StoreError::Replaced { .. }) => Ok(()),
        Err(error) => Err(Problem::new(format!("{what} was refused for another reason: {error}"))),
        Ok(_) => Err(Problem::new(format!("{what} was written"))),
    }
}
