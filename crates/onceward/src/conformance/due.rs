//! Records that are due, and counts by state.

use super::bench::{Bench, Verdict, ensure, equal, in_state, next, staged_as, wait};
use super::{Case, cases};
use crate::record::{Record, State};
use crate::store::{Cursor, Filter};

pub(super) const CASES: &[Case] = cases![
    nothing_is_due_in_an_empty_store,
    what_is_due_is_found_to_the_millisecond,
    what_has_no_due_time_is_never_due,
    the_longest_overdue_comes_first,
    a_limit_of_what_is_due_is_kept,
    a_new_due_time_counts_and_the_old_one_does_not,
    due_looks_at_the_given_time_and_at_no_clock,
    an_empty_store_counts_nothing,
    every_state_is_counted,
    counts_follow_changes,
    counts_follow_a_filter,
    counts_look_at_neither_limit_nor_cursor,
];

fn due_at(bench: &Bench, key: &str, due_ms: Option<i64>) -> Verdict {
    bench.put(&in_state(key, State::Done, due_ms)?).map(drop)
}

fn nothing_is_due_in_an_empty_store(bench: &Bench) -> Verdict {
    equal!(bench.due_keys(i64::MAX, 10)?, Vec::<String>::new(), "what is due");
    Ok(())
}

fn what_is_due_is_found_to_the_millisecond(bench: &Bench) -> Verdict {
    due_at(bench, "a", Some(5_000))?;
    equal!(bench.due_keys(4_999, 10)?, Vec::<String>::new(), "a millisecond before");
    equal!(bench.due_keys(5_000, 10)?, ["a"], "at its time");
    equal!(bench.due_keys(5_001, 10)?, ["a"], "a millisecond after");
    Ok(())
}

fn what_has_no_due_time_is_never_due(bench: &Bench) -> Verdict {
    due_at(bench, "a", None)?;
    equal!(bench.due_keys(i64::MAX, 10)?, Vec::<String>::new(), "what is due");
    Ok(())
}

fn the_longest_overdue_comes_first(bench: &Bench) -> Verdict {
    for (key, due_ms) in [("b", 20), ("c", 30), ("a", 10), ("d", 40)] {
        due_at(bench, key, Some(due_ms))?;
    }
    equal!(bench.due_keys(30, 10)?, ["a", "b", "c"], "the order");
    Ok(())
}

fn a_limit_of_what_is_due_is_kept(bench: &Bench) -> Verdict {
    for (key, due_ms) in [("b", 20), ("c", 30), ("a", 10)] {
        due_at(bench, key, Some(due_ms))?;
    }
    equal!(bench.due_keys(100, 2)?, ["a", "b"], "two of three");
    Ok(())
}

fn a_new_due_time_counts_and_the_old_one_does_not(bench: &Bench) -> Verdict {
    let record = in_state("a", State::Done, Some(10))?;
    bench.put(&record)?;
    bench.replace(&record, &Record { due_ms: Some(50), ..next(&record) })?;
    equal!(bench.due_keys(49, 10)?, Vec::<String>::new(), "before the new time");
    equal!(bench.due_keys(50, 10)?, ["a"], "at the new time");
    Ok(())
}

fn due_looks_at_the_given_time_and_at_no_clock(bench: &Bench) -> Verdict {
    let now_ms = bench.now_ms();
    due_at(bench, "past", Some(now_ms - 10_000))?;
    due_at(bench, "future", Some(now_ms + 1_000_000))?;
    equal!(bench.due_keys(now_ms - 20_000, 10)?, Vec::<String>::new(), "long ago");
    equal!(bench.due_keys(now_ms + 1_000_000, 10)?, ["past", "future"], "long from now");
    Ok(())
}

fn an_empty_store_counts_nothing(bench: &Bench) -> Verdict {
    ensure!(
        wait(bench.counts(&Filter::default()))?.values().all(|count| *count == 0),
        "something is counted"
    );
    Ok(())
}

fn every_state_is_counted(bench: &Bench) -> Verdict {
    for (index, state) in State::ALL.into_iter().enumerate() {
        for copy in 0..=index {
            bench.put(&in_state(&format!("{state}-{copy}"), state, None)?)?;
        }
    }
    for (state, expected) in State::ALL.into_iter().zip(1_u64..) {
        equal!(bench.count(state)?, expected, format!("the count of {state}"));
    }
    Ok(())
}

fn counts_follow_changes(bench: &Bench) -> Verdict {
    let record = in_state("a", State::Running, None)?;
    bench.put(&record)?;
    bench.put(&in_state("b", State::Running, None)?)?;
    bench.replace(&record, &Record { state: State::Done, ..next(&record) })?;
    equal!((bench.count(State::Running)?, bench.count(State::Done)?), (1, 1), "running and done");
    Ok(())
}

fn counts_follow_a_filter(bench: &Bench) -> Verdict {
    for (scope, name, key, state, created_ms) in [
        ("s", "n", "a", State::Done, 10),
        ("s", "n", "b", State::Done, 20),
        ("s", "m", "c", State::Done, 30),
        ("default", "n", "a", State::Done, 40),
        ("s", "n", "d", State::Failed, 50),
    ] {
        bench.put(&Record { state, created_ms, ..staged_as(scope, name, key)? })?;
    }
    let all = Filter::default;
    let text = |text: &str| Some(text.to_owned());
    for (what, filter, done, failed) in [
        ("all", all(), 4, 1),
        ("a scope", Filter { scope: text("s"), ..all() }, 3, 1),
        ("the scopes with a prefix", Filter { scope_prefix: text("d"), ..all() }, 1, 0),
        ("the default scope", Filter { scope: text("default"), ..all() }, 1, 0),
        ("a name", Filter { name: text("n"), ..all() }, 3, 1),
        ("a scope and a name", Filter { scope: text("s"), name: text("n"), ..all() }, 2, 1),
        ("a key", Filter { key: text("a"), ..all() }, 2, 0),
        ("a time", Filter { since_ms: Some(20), until_ms: Some(50), ..all() }, 3, 0),
        ("a state", Filter { states: vec![State::Failed], ..all() }, 0, 1),
        ("nothing", Filter { scope: text("elsewhere"), ..all() }, 0, 0),
    ] {
        let seen = (bench.count_of(&filter, State::Done)?, bench.count_of(&filter, State::Failed)?);
        equal!(seen, (done, failed), format!("the counts of {what}"));
    }
    Ok(())
}

fn counts_look_at_neither_limit_nor_cursor(bench: &Bench) -> Verdict {
    for key in ["a", "b", "c"] {
        bench.put(&in_state(key, State::Done, None)?)?;
    }
    let filter =
        Filter { scope: Some("default".to_owned()), limit: 1, before: Some(Cursor(0)), ..Filter::default() };
    equal!(bench.count_of(&filter, State::Done)?, 3, "the count");
    Ok(())
}
