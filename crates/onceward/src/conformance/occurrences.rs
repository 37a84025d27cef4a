//! The occurrences of an action that an equal call may refer to: the open ones, and the newest.

use super::bench::{Bench, Problem, Verdict, ensure, equal, intent, next, wait};
use super::{Case, cases};
use crate::kind::Kind;
use crate::operation::{Intent, Operation};
use crate::record::{Delivered, Effect, Outcome, Record, State};
use crate::store::MOST_OPEN;
use crate::transition;
use crate::word::Word;

pub(super) const CASES: &[Case] = cases![
    an_action_without_records_has_no_occurrences,
    an_open_occurrence_is_found_in_every_state,
    what_is_over_is_not_found_except_the_newest,
    numbers_are_not_compared_as_texts,
    an_occurrence_is_open_until_its_time,
    a_delivery_that_is_taken_back_opens_it_again,
    a_deleted_occurrence_is_not_found,
    a_given_key_and_a_label_are_found_while_open,
    what_someone_said_about_a_given_key_is_found_until_it_was_delivered,
    other_actions_are_not_found,
    another_kind_has_its_own_occurrences,
    many_open_ones_are_limited,
    results_come_without_bodies,
];

const NOW_MS: i64 = 10_000;

fn action() -> Operation {
    Operation::new("pay").scope("run-7").input(serde_json::json!({"amount": 100}))
}

fn at(number: u64) -> Result<Intent, Problem> {
    Ok(intent(&action())?.at_occurrence(number)?)
}

/// An occurrence in this state. One that has ended has a result.
fn in_state(intent: &Intent, state: State) -> Record {
    let ended = matches!(state, State::Done | State::InDoubt | State::Failed);
    let outcome = ended.then(|| Outcome::with_effect(Effect::Created));
    let due_ms = state.is_settled().then_some(i64::MAX);
    let attempt = u32::from(state != State::Staged);
    Record { state, outcome, due_ms, attempt, ..transition::stage(intent, 1_000) }
}

/// An occurrence whose answer was delivered, so that an equal call is a new one from then on.
fn over(intent: &Intent) -> Record {
    let mut record = in_state(intent, State::Done);
    record.detail.delivered = Some(Delivered { at_ms: 2_000, same_until_ms: None });
    record
}

/// The numbers of what an equal call at this time finds, in order; 0 for what has none.
fn numbers(bench: &Bench, now_ms: i64) -> Result<Vec<u64>, Problem> {
    let found = wait(bench.occurrences(&intent(&action())?.action(), now_ms))?;
    let mut numbers: Vec<u64> = found.iter().map(|record| record.number.unwrap_or(0)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn an_action_without_records_has_no_occurrences(bench: &Bench) -> Verdict {
    equal!(numbers(bench, NOW_MS)?, Vec::<u64>::new(), "the occurrences");
    Ok(())
}

fn an_open_occurrence_is_found_in_every_state(bench: &Bench) -> Verdict {
    let states =
        [State::Staged, State::Running, State::InDoubt, State::Done, State::Failed, State::Cancelled];
    for (number, state) in (1..).zip(states) {
        bench.put(&in_state(&at(number)?, state))?;
    }
    bench.put(&over(&at(7)?))?;
    equal!(numbers(bench, NOW_MS)?, [1, 2, 3, 4, 5, 6, 7], "all that are open, and the newest");
    Ok(())
}

fn what_is_over_is_not_found_except_the_newest(bench: &Bench) -> Verdict {
    for number in 1..=5 {
        bench.put(&over(&at(number)?))?;
    }
    equal!(numbers(bench, NOW_MS)?, [5], "the newest");
    bench.put(&in_state(&at(6)?, State::Expired))?;
    equal!(numbers(bench, NOW_MS)?, [6], "a tombstone is over, and counts");
    bench.put(&in_state(&at(7)?, State::Cancelled))?;
    equal!(numbers(bench, NOW_MS)?, [7], "so does what was cancelled");
    Ok(())
}

fn numbers_are_not_compared_as_texts(bench: &Bench) -> Verdict {
    for number in [2, 9, 10, 100] {
        bench.put(&over(&at(number)?))?;
    }
    equal!(numbers(bench, NOW_MS)?, [100], "the newest, although some are missing");
    Ok(())
}

fn an_occurrence_is_open_until_its_time(bench: &Bench) -> Verdict {
    let mut record = in_state(&at(1)?, State::Done);
    record.detail.delivered = Some(Delivered { at_ms: 2_000, same_until_ms: Some(NOW_MS) });
    bench.put(&record)?;
    bench.put(&over(&at(2)?))?;
    equal!(numbers(bench, NOW_MS - 1)?, [1, 2], "before its time");
    equal!(numbers(bench, NOW_MS)?, [2], "at its time");
    Ok(())
}

fn a_delivery_that_is_taken_back_opens_it_again(bench: &Bench) -> Verdict {
    let undelivered = in_state(&at(1)?, State::Done);
    bench.put(&undelivered)?;
    bench.put(&over(&at(2)?))?;
    let mut delivered = next(&undelivered);
    delivered.detail.delivered = Some(Delivered { at_ms: 2_000, same_until_ms: None });
    bench.replace(&undelivered, &delivered)?;
    equal!(numbers(bench, NOW_MS)?, [2], "the first is over");
    let mut taken_back = next(&delivered);
    taken_back.detail.delivered = None;
    bench.replace(&delivered, &taken_back)?;
    equal!(numbers(bench, NOW_MS)?, [1, 2], "it is open again");
    Ok(())
}

fn a_deleted_occurrence_is_not_found(bench: &Bench) -> Verdict {
    let records = [in_state(&at(1)?, State::Done), over(&at(2)?), over(&at(3)?)];
    for record in &records {
        bench.put(record)?;
    }
    for record in [&records[0], &records[2]] {
        ensure!(bench.remove(record)?, "it is deleted");
    }
    equal!(numbers(bench, NOW_MS)?, [2], "what is left");
    Ok(())
}

fn a_given_key_and_a_label_are_found_while_open(bench: &Bench) -> Verdict {
    let keyed = intent(&action().key("order-7"))?;
    let labelled = intent(&action().occurrence("again"))?;
    bench.put(&over(&at(1)?))?;
    for open in [in_state(&keyed, State::InDoubt), in_state(&labelled, State::Running)] {
        bench.put(&open)?;
    }
    equal!(numbers(bench, NOW_MS)?, [0, 0, 1], "both, and the newest number");
    for (intent, before) in [(&keyed, State::InDoubt), (&labelled, State::Running)] {
        bench.replace(&in_state(intent, before), &next(&over(intent)))?;
    }
    equal!(numbers(bench, NOW_MS)?, [1], "neither");
    Ok(())
}

fn what_someone_said_about_a_given_key_is_found_until_it_was_delivered(bench: &Bench) -> Verdict {
    let keyed = intent(&action().key("order-7"))?;
    let mut settled = in_state(&keyed, State::Done);
    settled.outcome.iter_mut().for_each(|outcome| outcome.settled_by = Some(Word::person("ada").into()));
    bench.put(&settled)?;
    equal!(numbers(bench, NOW_MS)?, [0], "a settlement binds the equal call without the key");
    let mut delivered = next(&settled);
    delivered.detail.delivered = Some(Delivered { at_ms: 2_000, same_until_ms: None });
    bench.replace(&settled, &delivered)?;
    equal!(numbers(bench, NOW_MS)?, Vec::<u64>::new(), "it was delivered");
    Ok(())
}

fn other_actions_are_not_found(bench: &Bench) -> Verdict {
    let other = Operation::new("pay").scope("run-7").input(serde_json::json!({"amount": 101}));
    for other in [other, action().scope("run-8"), Operation::new("pay").scope("run-7").key("k")] {
        bench.put(&in_state(&intent(&other)?, State::Running))?;
        bench.put(&in_state(&intent(&other.occurrence("x"))?, State::Running))?;
    }
    equal!(numbers(bench, NOW_MS)?, Vec::<u64>::new(), "the occurrences");
    Ok(())
}

fn another_kind_has_its_own_occurrences(bench: &Bench) -> Verdict {
    let kind =
        |kind| Operation::of_kind(kind, "pay").scope("run-7").input(serde_json::json!({"amount": 100}));
    let alias = intent(&kind(Kind::Alias))?;
    bench.put(&in_state(&alias, State::Done))?;
    bench.put(&in_state(&alias.clone().at_occurrence(2)?, State::Done))?;
    let found = wait(bench.occurrences(&alias.action(), NOW_MS))?;
    equal!(found.len(), 2, "the occurrences of the alias");
    ensure!(found.iter().all(|record| record.kind == Kind::Alias), "their kind is kept");
    equal!(numbers(bench, NOW_MS)?, Vec::<u64>::new(), "those of the operation");
    Ok(())
}

fn many_open_ones_are_limited(bench: &Bench) -> Verdict {
    let most = u64::try_from(MOST_OPEN).unwrap_or(u64::MAX);
    for number in 1..=most + 5 {
        bench.put(&in_state(&at(number)?, State::InDoubt))?;
    }
    bench.put(&over(&at(most + 6)?))?;
    let found = numbers(bench, NOW_MS)?;
    ensure!(found.len() <= MOST_OPEN + 2 && found.len() >= MOST_OPEN, "{} were found", found.len());
    equal!(found.last(), Some(&(most + 6)), "the newest is among them");
    Ok(())
}

fn results_come_without_bodies(bench: &Bench) -> Verdict {
    let mut record = in_state(&at(1)?, State::Done);
    let outcome = Outcome { body: Some(vec![7; 100].into()), ..Outcome::with_effect(Effect::Created) };
    record.outcome = Some(outcome);
    bench.put(&record)?;
    let found = wait(bench.occurrences(record.action(), NOW_MS))?;
    equal!(found.len(), 1, "the occurrences");
    ensure!(found[0].outcome.as_ref().is_some_and(|outcome| outcome.body.is_none()), "it has a body");
    Ok(())
}
