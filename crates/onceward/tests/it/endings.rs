//! How an attempt's ending changes a record, even if it is late. The table restates the contract without using the
//! code's own rules.

use crate::common::ended::{STATES, alarm, ended_record, outcome, result, sound};
use crate::common::table::Table;
use crate::common::{NOW_MS, combinations};
use onceward::transition::{self, Report};
use onceward::{Ending, Evidence, Happened, Past, Record, State};

const ENDINGS: &[&str] = &["done", "failed", "in_doubt"];

/// `settled by` is who decided how the operation ended: its attempt, a person (or a probe), or a late answer of
/// another attempt. `late` is the success of an overtaken attempt, kept until the running one ends. `result` is whose
/// outcome is kept: the ending's, the late answer's, the previous one, or none.
const FINISH: &str = "
    found      settled_by attempt   ending           late  => becomes    result   alarm     in_history

    running    *          newest    done             none  => done       ending   none      no
    running    *          newest    failed           none  => failed     ending   none      no
    running    *          newest    in_doubt         none  => in_doubt   ending   none      no
    running    *          newest    done             late  => done       ending   certain   yes
    running    *          newest    failed           late  => done       late     none      no
    running    *          newest    in_doubt         late  => done       late     possible  no
    in_doubt   *          newest    done             *     => done       ending   none      no
    in_doubt   *          newest    failed           *     => failed     ending   none      no
    in_doubt   *          newest    in_doubt         *     => in_doubt   ending   none      no

    done       late       newest    done             *     => done       ending   certain   yes
    done       late       newest    failed           *     => done       found    none      yes
    done       late       newest    in_doubt         *     => done       found    possible  yes
    done       *          newest    done             *     => done       ending   none      no
    done       *          newest    failed|in_doubt  *     => done       found    none      yes
    failed     *          newest    done             *     => done       ending   none      no
    failed     *          newest    failed           *     => failed     ending   none      no
    failed     *          newest    in_doubt         *     => failed     found    none      yes
    cancelled  *          newest    done             *     => done       ending   none      no
    cancelled  *          newest    failed|in_doubt  *     => cancelled  found    none      yes
    staged     *          newest    *                *     => staged     none     none      yes
    expired    *          newest    *                *     => expired    none     none      yes

    running    *          overtaken done             none  => running    none     possible  yes
    in_doubt   *          overtaken done             *     => done       ending   possible  yes
    failed     *          overtaken done             *     => done       ending   none      yes
    cancelled  *          overtaken done             *     => done       ending   none      yes
    done       attempt    overtaken done             *     => done       found    certain   yes
    done       hand       overtaken done             *     => done       found    possible  yes
    expired    *          overtaken done             *     => expired    none     possible  yes
    staged     *          overtaken done             *     => staged     none     none      yes
    running    *          overtaken done             late  => running    none     possible  yes
    done       late       overtaken done             *     => done       found    possible  yes

    running    *          overtaken failed|in_doubt  late  => running    none     possible  yes
    running    *          overtaken failed|in_doubt  none  => running    none     none      yes
    done       late       overtaken failed|in_doubt  *     => done       found    possible  yes
    done|failed|cancelled * overtaken failed|in_doubt *    => unchanged  found    none      yes
    in_doubt   *          overtaken failed|in_doubt  *     => in_doubt   found    none      yes
    staged|expired *      overtaken failed|in_doubt  *     => unchanged  none     none      yes
";

#[test]
fn how_an_ending_changes_a_record() {
    let mut table = Table::read(FINISH);
    let lists: [&[&str]; 5] =
        [STATES, &["attempt", "hand", "late"], &["newest", "overtaken"], ENDINGS, &["none", "late"]];
    for words in combinations(lists) {
        let [found, settled_by, attempt, ending, late] = words;
        let settled = matches!(found, "done" | "failed" | "cancelled");
        if (late == "late" && found != "running")
            || (settled_by != "attempt" && !settled)
            || (settled_by == "late" && found != "done")
        {
            continue;
        }
        let before = ended_record(found, settled_by, late);
        let number = if attempt == "newest" { 4 } else { 3 };
        let after = transition::finish(&before, number, said(ending), NOW_MS);
        let expected = table.look_up(&words).replace("unchanged", found);
        let remembered =
            match after.detail.history.iter().any(|past| {
                (past.attempt, past.ended.as_str()) == (number, ending) && past.settled_by.is_none()
            }) {
                true => "yes",
                false => "no",
            };
        let seen = format!("{} {} {} {remembered}", after.state, result(&after), alarm(&after));
        assert_eq!(seen, expected, "{words:?}");
        sound(&before, &after);
        let kept = after.state.is_settled() && after.due_ms.is_some();
        assert_eq!(kept, after.state.is_settled(), "{words:?}: a settled record has a due time");
    }
    table.assert_all_rows_fitted();
}

/// Where the word of a person who settled the newest attempt is after a report. An operation in doubt was settled as
/// done, and a check refuted it.
const WORD: &str = "
    found                      attempt    ending           => word
    done                       newest     done             => history
    done                       newest     failed|in_doubt  => outcome
    failed                     newest     done|failed      => history
    failed                     newest     in_doubt         => outcome
    cancelled                  newest     done             => history
    cancelled                  newest     failed|in_doubt  => outcome
    in_doubt                   newest     *                => history
    done                       overtaken  *                => outcome
    failed|cancelled|in_doubt  overtaken  done             => history
    failed|cancelled|in_doubt  overtaken  failed|in_doubt  => outcome
";

#[test]
fn a_report_does_not_erase_what_someone_said() {
    let mut table = Table::read(WORD);
    let found = &["done", "failed", "cancelled", "in_doubt"];
    for words in combinations([found, &["newest", "overtaken"], ENDINGS]) {
        let [found, attempt, ending] = words;
        let before = ended_record(found, "hand", "none");
        let word = before.outcome.as_ref().and_then(|outcome| outcome.settled_by.clone());
        let after =
            transition::finish(&before, if attempt == "newest" { 4 } else { 3 }, said(ending), NOW_MS);
        let in_outcome = after.outcome.as_ref().is_some_and(|outcome| outcome.settled_by == word);
        let ended = if found == "in_doubt" { "done" } else { found };
        let of_word =
            |past: &&Past| past.settled_by == word && (past.attempt, past.ended.as_str()) == (4, ended);
        let seen = match (in_outcome, after.detail.history.iter().filter(of_word).count()) {
            (true, 0) => "outcome",
            (false, 1) => "history",
            _ => "lost or said twice",
        };
        assert_eq!(seen, table.look_up(&words), "{words:?}");
    }
    table.assert_all_rows_fitted();
}

#[test]
fn an_ending_that_is_written_twice_is_one_ending() {
    for [found, settled_by, attempt, ending] in
        combinations([STATES, &["attempt", "hand"], &["newest", "overtaken"], ENDINGS])
    {
        let number = if attempt == "newest" { 4 } else { 3 };
        let once = transition::finish(&ended_record(found, settled_by, "none"), number, said(ending), NOW_MS);
        let twice = transition::finish(&once, number, said(ending), NOW_MS);
        let facts = |record: &Record| {
            (record.state, result(record), alarm(record), record.due_ms, record.detail.late.clone())
        };
        assert_eq!(facts(&once), facts(&twice), "{found} {settled_by} {attempt} {ending}");
    }
}

#[test]
fn a_success_that_an_attempt_has_reported_is_final() {
    for [found, settled_by, attempt, ending] in
        combinations([STATES, &["attempt", "hand", "late"], &["newest", "overtaken"], ENDINGS])
    {
        let number = if attempt == "newest" { 4 } else { 3 };
        let before = ended_record(found, settled_by, "none");
        let expected = match (found, settled_by, attempt) {
            ("done", "attempt", "newest") => Report::Contradicts,
            (_, _, _) => Report::New,
        };
        let words = format!("{found} {settled_by} {attempt} {ending}");
        assert_eq!(transition::report(&before, number, &said(ending)), expected, "{words}");
    }
    let running = ended_record("running", "attempt", "none");
    let mut done = transition::finish(&running, 4, said("done"), NOW_MS);
    assert_eq!(transition::report(&done, 4, &said("done")), Report::Repeated);
    if let Some(outcome) = &mut done.outcome {
        outcome.verified = Some(onceward::Verification::Confirmed);
    }
    assert_eq!(transition::report(&done, 4, &said("done")), Report::Repeated, "a check changes no result");
    let other = onceward::Outcome { reason: Some("other".to_owned()), ..outcome("ending") };
    assert_eq!(transition::report(&done, 4, &Ending::Done(other)), Report::Contradicts);
}

/// Another attempt reported a success as well, before this one or after it.
#[test]
fn a_success_beside_another_one_is_final_too() {
    let of_both = |found, settled_by, late, [first, second]: [u32; 2]| {
        let one = transition::finish(&ended_record(found, settled_by, late), first, said("done"), NOW_MS);
        transition::finish(&one, second, said("done"), NOW_MS)
    };
    for (found, done) in [
        ("running", of_both("running", "attempt", "late", [4, 4])),
        ("in doubt", of_both("in_doubt", "attempt", "none", [3, 4])),
        ("settled by the other", of_both("done", "late", "none", [4, 4])),
        ("followed by the other", of_both("running", "attempt", "none", [4, 3])),
    ] {
        assert_eq!((done.state, result(&done), alarm(&done)), (State::Done, "ending", "certain"));
        assert_eq!(transition::report(&done, 4, &said("done")), Report::Repeated, "{found}");
        let other = Ending::Done(onceward::Outcome { reason: Some("other".to_owned()), ..outcome("ending") });
        for contradiction in [other, said("failed"), said("in_doubt")] {
            assert_eq!(transition::report(&done, 4, &contradiction), Report::Contradicts, "{found}");
        }
        let again = transition::finish(&done, 4, said("done"), NOW_MS);
        assert_eq!(again.detail.history, done.detail.history, "it is noted once");
    }
}

#[test]
fn two_late_successes_are_certain_to_be_two_effects() {
    let running = Record { attempt: 5, ..ended_record("running", "attempt", "none") };
    let one = transition::finish(&running, 3, said("done"), NOW_MS);
    assert_eq!((alarm(&one), late_data(&one)), ("possible", Some("\"ending\"".to_owned())));
    let two = transition::finish(&one, 4, Ending::Done(outcome("other")), NOW_MS);
    assert_eq!(
        (alarm(&two), late_data(&two)),
        ("certain", Some("\"ending\"".to_owned())),
        "the first one is kept"
    );
    for ending in ENDINGS {
        let ended = transition::finish(&two, 5, said(ending), NOW_MS);
        assert_eq!((ended.state, alarm(&ended)), (State::Done, "certain"), "{ending}");
    }
    let possible = transition::finish(&Record { state: State::InDoubt, ..two }, 2, said("done"), NOW_MS);
    assert_eq!(alarm(&possible), "certain", "a certain alarm is never lowered");
}

/// A person settled it as failed, the result expired, and then its attempt reports a success.
#[test]
fn a_tombstone_records_a_late_success() {
    for (ended, attempt, alarmed) in [
        (Some(State::Failed), 4, "none"),
        (Some(State::Failed), 3, "none"),
        (Some(State::Cancelled), 3, "none"),
        (Some(State::Done), 4, "none"),
        (Some(State::Done), 3, "certain"),
        (None, 4, "none"),
        (None, 3, "possible"),
    ] {
        let mut tombstone = ended_record("expired", "attempt", "none");
        tombstone.detail.ended = ended;
        let after = transition::finish(&tombstone, attempt, said("done"), NOW_MS);
        assert_eq!((after.state, after.happened()), (State::Expired, Happened::Yes), "{ended:?}, {attempt}");
        assert_eq!(alarm(&after), alarmed, "{ended:?}, {attempt}");
        for ending in ["failed", "in_doubt"] {
            let after = transition::finish(&tombstone, attempt, said(ending), NOW_MS);
            assert_eq!(after.happened(), tombstone.happened(), "{ended:?}, {attempt}, {ending}");
        }
    }
}

#[test]
fn an_attempt_of_an_earlier_occurrence_says_nothing_of_this_one() {
    for [found, ending] in combinations([STATES, ENDINGS]) {
        let before = ended_record(found, "attempt", "none");
        // Attempts 1 and 2 belong to the previous occurrence.
        let after = transition::finish(&before, 2, said(ending), NOW_MS);
        sound(&before, &after);
        assert_eq!(
            (after.state, result(&after), alarm(&after)),
            (before.state, result(&before), "none"),
            "{found}"
        );
        assert_eq!((after.due_ms, &after.detail.late), (before.due_ms, &None), "{found} {ending}");
        assert_eq!(after.detail.history.last().map(|past| (past.attempt, past.at_ms)), Some((2, NOW_MS)));
    }
}

#[test]
fn a_settled_operation_has_no_owner_and_no_quarantine() {
    for [found, ending] in combinations([&["running", "in_doubt"], ENDINGS]) {
        let mut before = ended_record(found, "attempt", "none");
        before.detail.quarantine_ms = 60;
        before.detail.quarantine_until_ms = Some(NOW_MS + 50);
        let after = transition::finish(&before, 4, said(ending), NOW_MS);
        let doubt = ending == "in_doubt";
        let owner = before.detail.owner.filter(|_| doubt);
        assert_eq!(after.detail.owner, owner, "{found} {ending}: a process of the owner may hold its lock");
        let quarantine = doubt.then_some(NOW_MS + 60);
        assert_eq!(
            after.detail.quarantine_until_ms, quarantine,
            "{found} {ending}: the request may be under way"
        );
    }
}

fn said(ending: &str) -> Ending {
    match ending {
        "done" => Ending::Done(outcome("ending")),
        "failed" => Ending::Failed(Evidence::NotSent, outcome("ending")),
        _ => Ending::InDoubt(outcome("ending")),
    }
}

fn late_data(record: &Record) -> Option<String> {
    Some(record.detail.late.as_ref()?.data.as_ref()?.get().to_owned())
}
