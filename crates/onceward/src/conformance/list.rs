//! Listings: newest first, filtered, in pages.

use super::bench::{
    Bench, Problem, Verdict, done, ensure, equal, everything, in_state, intent, next, staged, staged_as,
};
use super::{Case, cases};
use crate::operation::Operation;
use crate::record::{Effect, Outcome, Record, State};
use crate::store::Filter;
use crate::transition;

pub(super) const CASES: &[Case] = cases![
    an_empty_store_lists_nothing,
    the_newest_comes_first,
    a_change_does_not_move_a_record,
    what_is_written_anew_comes_first,
    a_scope_is_listed_alone,
    scopes_with_a_prefix_are_listed_alone,
    a_name_is_listed_alone,
    a_state_is_listed_alone,
    several_states_are_listed_together,
    all_filters_hold_at_once,
    a_fingerprint_is_listed_alone,
    a_filter_sees_the_newest_version,
    a_filter_takes_names_literally,
    a_key_is_listed_alone,
    an_id_is_found_by_its_first_digits,
    an_id_prefix_that_none_has_finds_nothing,
    a_time_is_listed_alone,
    a_limit_is_kept,
    a_limit_of_zero_lists_nothing,
    pages_follow_without_gap_or_repeat,
    pages_of_a_filter_follow_too,
    a_page_is_not_moved_by_new_records,
    a_page_goes_on_after_its_last_record_is_deleted,
    a_listing_brings_results_without_bodies,
];

fn put_all(bench: &Bench, keys: &[&str]) -> Verdict {
    keys.iter().try_for_each(|key| bench.put(&staged(key)?).map(drop))
}

fn an_empty_store_lists_nothing(bench: &Bench) -> Verdict {
    equal!(bench.keys(&everything())?, Vec::<String>::new(), "the listing");
    Ok(())
}

fn the_newest_comes_first(bench: &Bench) -> Verdict {
    put_all(bench, &["b", "a", "d", "c"])?;
    equal!(bench.keys(&everything())?, ["c", "d", "a", "b"], "the order");
    Ok(())
}

fn a_change_does_not_move_a_record(bench: &Bench) -> Verdict {
    put_all(bench, &["a", "b", "c"])?;
    let record = staged("a")?;
    bench.replace(&record, &next(&record))?;
    equal!(bench.keys(&everything())?, ["c", "b", "a"], "the order after a change of a");
    Ok(())
}

fn what_is_written_anew_comes_first(bench: &Bench) -> Verdict {
    put_all(bench, &["a", "b"])?;
    bench.remove(&staged("a")?)?;
    bench.put(&staged("a")?)?;
    equal!(bench.keys(&everything())?, ["a", "b"], "the order");
    Ok(())
}

fn a_scope_is_listed_alone(bench: &Bench) -> Verdict {
    bench.put(&staged_as("one", "n", "a")?)?;
    bench.put(&staged_as("two", "n", "b")?)?;
    bench.put(&staged_as("one", "n", "c")?)?;
    let only = |scope: &str| Filter { scope: Some(scope.to_owned()), ..everything() };
    equal!(bench.keys(&only("one"))?, ["c", "a"], "the scope one");
    equal!(bench.keys(&only("three"))?, Vec::<String>::new(), "a scope that is not there");
    Ok(())
}

fn scopes_with_a_prefix_are_listed_alone(bench: &Bench) -> Verdict {
    let last = format!("a/{}", char::MAX);
    for (scope, key) in [
        ("a/", "1"),
        ("a/b", "2"),
        ("a", "3"),
        ("a0", "4"),
        ("default", "5"),
        (&last, "6"),
        ("A/b", "7"),
        ("a/%", "8"),
    ] {
        bench.put(&staged_as(scope, "n", key)?)?;
    }
    let only = |prefix: &str| Filter { scope_prefix: Some(prefix.to_owned()), ..everything() };
    for (prefix, expected) in [
        ("a/", &["8", "6", "2", "1"][..]),
        ("a", &["8", "6", "4", "3", "2", "1"]),
        ("", &["8", "7", "6", "5", "4", "3", "2", "1"]),
        ("def", &["5"]),
        ("default", &["5"]),
        ("a/%", &["8"]),
        ("b", &[]),
        (last.as_str(), &["6"]),
    ] {
        equal!(bench.keys(&only(prefix))?, expected, format!("the scopes that begin with {prefix:?}"));
    }
    let scoped = Filter { scope: Some("a/b".to_owned()), ..only("a/") };
    equal!(bench.keys(&scoped)?, ["2"], "one scope with the prefix");
    let other = Filter { scope: Some("a/b".to_owned()), ..only("b/") };
    equal!(bench.keys(&other)?, Vec::<String>::new(), "a scope without the prefix");
    let first = bench.listed(&Filter { limit: 2, ..only("a/") })?;
    let rest = Filter { before: first.last().map(|listed| listed.cursor), limit: 2, ..only("a/") };
    equal!(bench.keys(&rest)?, ["2", "1"], "the second page");
    Ok(())
}

fn a_name_is_listed_alone(bench: &Bench) -> Verdict {
    bench.put(&staged_as("s", "one", "a")?)?;
    bench.put(&staged_as("s", "two", "b")?)?;
    let only = |name: &str| Filter { name: Some(name.to_owned()), ..everything() };
    equal!(bench.keys(&only("two"))?, ["b"], "the name two");
    equal!(bench.keys(&only("TWO"))?, Vec::<String>::new(), "another name");
    Ok(())
}

fn one_of_each_state(bench: &Bench) -> Verdict {
    State::ALL.iter().try_for_each(|state| bench.put(&in_state(state.as_str(), *state, None)?).map(drop))
}

fn a_state_is_listed_alone(bench: &Bench) -> Verdict {
    one_of_each_state(bench)?;
    for state in State::ALL {
        let only = Filter { states: vec![state], ..everything() };
        equal!(bench.keys(&only)?, [state.as_str()], "the listing of one state");
    }
    Ok(())
}

fn several_states_are_listed_together(bench: &Bench) -> Verdict {
    one_of_each_state(bench)?;
    let some = Filter { states: vec![State::InDoubt, State::Running, State::Running], ..everything() };
    equal!(bench.keys(&some)?, ["in_doubt", "running"], "two states");
    Ok(())
}

fn all_filters_hold_at_once(bench: &Bench) -> Verdict {
    for (scope, name, key, state) in [
        ("s", "n", "a", State::Done),
        ("t", "n", "b", State::Done),
        ("s", "m", "c", State::Done),
        ("s", "n", "d", State::Failed),
        ("s", "n", "e", State::Done),
    ] {
        bench.put(&Record { state, ..staged_as(scope, name, key)? })?;
    }
    let filter = Filter {
        scope: Some("s".to_owned()),
        name: Some("n".to_owned()),
        states: vec![State::Done],
        ..everything()
    };
    equal!(bench.keys(&filter)?, ["e", "a"], "scope, name and state");
    Ok(())
}

fn a_fingerprint_is_listed_alone(bench: &Bench) -> Verdict {
    let of = |key: &str, input: u64| intent(&Operation::new("n").key(key).input(input));
    let (one, other) = (of("a", 1)?, of("b", 2)?);
    for intent in [&one, &of("c", 1)?, &other] {
        bench.put(&transition::stage(intent, 1_000))?;
    }
    for (print, keys) in [(&one.fingerprint, vec!["c", "a"]), (&other.fingerprint, vec!["b"])] {
        let only = Filter { fingerprint: Some(print.clone()), ..everything() };
        equal!(bench.keys(&only)?, keys, "the listing of one fingerprint");
    }
    Ok(())
}

fn a_filter_sees_the_newest_version(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    bench.replace(&record, &Record { state: State::Done, ..next(&record) })?;
    let only = |state| Filter { states: vec![state], ..everything() };
    equal!(bench.keys(&only(State::Staged))?, Vec::<String>::new(), "the state it had");
    equal!(bench.keys(&only(State::Done))?, ["a"], "the state it has");
    Ok(())
}

fn a_filter_takes_names_literally(bench: &Bench) -> Verdict {
    let odd =
        ["per%cent", "under_score", "star*", "quote'", "br[ac]ket", "back\\slash", "colon:", "Größe 😀"];
    for name in odd {
        bench.put(&staged_as(name, name, "a")?)?;
    }
    for name in odd.into_iter().chain(["%", "_", "*"]) {
        let filter = Filter { scope: Some(name.to_owned()), name: Some(name.to_owned()), ..everything() };
        let expected = usize::from(odd.contains(&name));
        equal!(bench.listed(&filter)?.len(), expected, format!("records of the name {name:?}"));
    }
    Ok(())
}

fn a_limit_is_kept(bench: &Bench) -> Verdict {
    put_all(bench, &["a", "b", "c"])?;
    equal!(bench.keys(&Filter { limit: 2, ..everything() })?, ["c", "b"], "two of three");
    Ok(())
}

fn a_limit_of_zero_lists_nothing(bench: &Bench) -> Verdict {
    put_all(bench, &["a"])?;
    equal!(bench.keys(&Filter::default())?, Vec::<String>::new(), "a limit of zero");
    Ok(())
}

/// All pages of a filter, in order.
fn in_pages(bench: &Bench, mut filter: Filter) -> Result<Vec<String>, Problem> {
    let mut keys = Vec::new();
    for _ in 0..100 {
        let page = bench.listed(&filter)?;
        let Some(last) = page.last() else { return Ok(keys) };
        filter.before = Some(last.cursor);
        keys.extend(page.into_iter().map(|listed| listed.record.key.text));
    }
    Err(Problem::new("the pages do not end"))
}

fn pages_follow_without_gap_or_repeat(bench: &Bench) -> Verdict {
    put_all(bench, &["a", "b", "c", "d", "e"])?;
    for limit in [1, 2, 3, 5, 9] {
        let keys = in_pages(bench, Filter { limit, ..Filter::default() })?;
        equal!(keys, ["e", "d", "c", "b", "a"], format!("pages of {limit}"));
    }
    Ok(())
}

fn pages_of_a_filter_follow_too(bench: &Bench) -> Verdict {
    for index in 0..9 {
        let scope = if index % 3 == 0 { "mine" } else { "theirs" };
        bench.put(&staged_as(scope, "n", &index.to_string())?)?;
    }
    let filter = Filter { scope: Some("mine".to_owned()), limit: 1, ..Filter::default() };
    equal!(in_pages(bench, filter)?, ["6", "3", "0"], "pages of one scope");
    Ok(())
}

fn a_page_is_not_moved_by_new_records(bench: &Bench) -> Verdict {
    put_all(bench, &["a", "b", "c"])?;
    let mut filter = Filter { limit: 2, ..Filter::default() };
    let page = bench.listed(&filter)?;
    filter.before = page.last().map(|listed| listed.cursor);
    put_all(bench, &["d", "e"])?;
    equal!(bench.keys(&filter)?, ["a"], "the second page");
    Ok(())
}

fn a_page_goes_on_after_its_last_record_is_deleted(bench: &Bench) -> Verdict {
    put_all(bench, &["a", "b", "c"])?;
    let mut filter = Filter { limit: 2, ..Filter::default() };
    let page = bench.listed(&filter)?;
    filter.before = page.last().map(|listed| listed.cursor);
    bench.remove(&staged("b")?)?;
    equal!(bench.keys(&filter)?, ["a"], "the second page");
    Ok(())
}

fn a_listing_brings_results_without_bodies(bench: &Bench) -> Verdict {
    let data = serde_json::value::RawValue::from_string("{\"id\": 42}".to_owned())?;
    let outcome = Outcome {
        data: Some(data.into()),
        body: Some(b"large".as_slice().into()),
        ..Outcome::with_effect(Effect::Created)
    };
    let record = done("a", outcome)?;
    bench.put(&record)?;
    let page = bench.listed(&everything())?;
    let outcome = page.first().and_then(|listed| listed.record.outcome.as_ref());
    ensure!(outcome.is_some_and(|outcome| outcome.body.is_none()), "the listing contains the body");
    let data = outcome.and_then(|outcome| outcome.data.as_ref()).map(|data| data.get());
    equal!(data, Some("{\"id\": 42}"), "the result");
    let found = bench.found(&record.id)?;
    let body = found.outcome.as_ref().and_then(|outcome| outcome.body.as_deref());
    equal!(body, Some(b"large".as_slice()), "the body in the store");
    Ok(())
}

fn a_key_is_listed_alone(bench: &Bench) -> Verdict {
    for (scope, name, key) in
        [("s", "n", "a"), ("default", "m", "a"), ("s", "n", "ab"), ("s", "n", "A"), ("s", "n", "a%")]
    {
        bench.put(&staged_as(scope, name, key)?)?;
    }
    let only = |key: &str| Filter { key: Some(key.to_owned()), ..everything() };
    equal!(bench.keys(&only("a"))?, ["a", "a"], "one key of two operations");
    equal!(bench.keys(&only("a%"))?, ["a%"], "a key with a wildcard in it");
    equal!(bench.keys(&only("b"))?, Vec::<String>::new(), "a key that is not there");
    let scoped = Filter { scope: Some("default".to_owned()), ..only("a") };
    let names: Vec<String> = bench.listed(&scoped)?.into_iter().map(|listed| listed.record.name).collect();
    equal!(names, ["m"], "a key of one scope");
    let record = staged_as("s", "n", "ab")?;
    bench.remove(&record)?;
    equal!(bench.keys(&only("ab"))?, Vec::<String>::new(), "the key of a deleted record");
    Ok(())
}

fn an_id_is_found_by_its_first_digits(bench: &Bench) -> Verdict {
    let keys: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    put_all(bench, &keys.iter().map(String::as_str).collect::<Vec<_>>())?;
    let all = bench.listed(&everything())?;
    for listed in &all {
        let id = listed.record.id.as_str();
        for length in [0, 2, 3, 4, 5, 9, 15, 16, 17, 20, id.len()] {
            let prefix = &id[..length];
            let expected: Vec<&str> = all
                .iter()
                .filter(|other| other.record.id.as_str().starts_with(prefix))
                .map(|other| other.record.key.text.as_str())
                .collect();
            let filter = Filter { id_prefix: Some(prefix.to_owned()), ..everything() };
            equal!(bench.keys(&filter)?, expected, format!("the ids that begin with {prefix:?}"));
        }
    }
    Ok(())
}

fn an_id_prefix_that_none_has_finds_nothing(bench: &Bench) -> Verdict {
    put_all(bench, &["a", "b"])?;
    let one = staged("a")?.id;
    let longer = format!("{one}a");
    let loud = one.as_str().to_uppercase();
    for prefix in ["x", "OP_", "op_1", "op_!", "op_%", "op_é", longer.as_str(), loud.as_str()] {
        let filter = Filter { id_prefix: Some(prefix.to_owned()), ..everything() };
        equal!(bench.keys(&filter)?, Vec::<String>::new(), format!("the ids that begin with {prefix:?}"));
    }
    Ok(())
}

fn a_time_is_listed_alone(bench: &Bench) -> Verdict {
    for (key, created_ms) in [("a", 10), ("b", 30), ("c", 20), ("d", 40)] {
        bench.put(&Record { created_ms, ..staged(key)? })?;
    }
    let between = |since_ms, until_ms| Filter { since_ms, until_ms, ..everything() };
    equal!(bench.keys(&between(Some(20), None))?, ["d", "c", "b"], "since a time");
    equal!(bench.keys(&between(None, Some(20)))?, ["a"], "until a time");
    equal!(bench.keys(&between(Some(20), Some(40)))?, ["c", "b"], "between two times");
    equal!(bench.keys(&between(Some(40), Some(40)))?, Vec::<String>::new(), "no time at all");
    let limited = Filter { limit: 1, ..between(Some(20), Some(40)) };
    equal!(bench.keys(&limited)?, ["c"], "the newest of a time");
    Ok(())
}
