//! Every state and every event: what a record becomes. The tables restate the contract without using the code's own
//! rules.

use crate::common::ended::{STATES, alarm, ended_record, outcome, result, sound};
use crate::common::table::Table;
use crate::common::{NOW_MS, combinations};
use onceward::transition::{self, Ageing, Cancelling};
use onceward::{Liveness, Record, State, Verdict, Verification, Word};

const LIVENESS: &[&str] = &["alive", "gone", "unsent", "quiet", "silent"];

const SETTLE: &str = "
    found      owner         verdict  late  => becomes    result  alarm
    in_doubt   *             done     none  => done       ending  none
    in_doubt   *             failed   none  => failed     ending  none
    running    gone|silent   done     none  => done       ending  none
    running    gone|silent   failed   none  => failed     ending  none
    running    gone|silent|unsent  done    late  => done  ending  possible
    running    gone|silent|unsent  failed  late  => done  late    none
    *          *             *        *     => refused
";

#[test]
fn how_a_verdict_changes_a_record() {
    let mut table = Table::read(SETTLE);
    for words in combinations([STATES, LIVENESS, &["done", "failed"], &["none", "late"]]) {
        let [found, owner, verdict, late] = words;
        if late == "late" && found != "running" {
            continue;
        }
        let mut before = ended_record(found, "attempt", late);
        silence(&mut before, owner);
        let said = if verdict == "done" { Verdict::Done } else { Verdict::Failed };
        let after = transition::settle(
            &before,
            liveness(owner),
            said,
            Word::person("ada"),
            outcome("ending"),
            NOW_MS,
        );
        let seen = after.as_ref().map_or("refused".to_owned(), |after| {
            sound(&before, after);
            format!("{} {} {}", after.state, result(after), alarm(after))
        });
        assert_eq!(seen, table.look_up(&words), "{words:?}");
    }
    table.assert_all_rows_fitted();
}

/// A check refuted what one person said, and another one settles it.
#[test]
fn a_second_word_does_not_erase_the_first() {
    for verdict in [Verdict::Done, Verdict::Failed] {
        let before = ended_record("in_doubt", "hand", "none");
        let second = Word::person("bob");
        let after =
            transition::settle(&before, Liveness::Gone, verdict, second, outcome("ending"), NOW_MS).unwrap();
        let past: Vec<String> = after
            .detail
            .history
            .iter()
            .filter_map(|past| Some(past.settled_by.as_ref()?.to_string()))
            .collect();
        assert_eq!(past, ["a person (ada)"], "{verdict:?}");
        let word = after.outcome.and_then(|outcome| outcome.settled_by).expect("a word");
        assert_eq!((word.to_string(), word.at_ms), ("a person (bob)".to_owned(), NOW_MS));
    }
}

const CANCEL: &str = "
    found      owner         => comes_to
    staged     *             => cancelled
    failed     *             => cancelled
    running    alive|quiet   => requested
    running    gone|silent   => too late
    running    unsent        => cancelled
    cancelled  *             => already
    done       *             => too late
    in_doubt   alive         => requested
    in_doubt   *             => too late
    expired    *             => too late
";

#[test]
fn what_cancelling_does() {
    let mut table = Table::read(CANCEL);
    for words in combinations([STATES, LIVENESS]) {
        let [found, owner] = words;
        let mut before = ended_record(found, "attempt", "none");
        silence(&mut before, owner);
        let seen = match transition::cancel(&before, liveness(owner), &Word::person("ada"), NOW_MS) {
            Cancelling::Cancelled(after) => {
                sound(&before, &after);
                assert_eq!((after.state, after.due_ms), (State::Cancelled, Some(NOW_MS + 1_000)));
                "cancelled"
            }
            Cancelling::Requested(after) => {
                sound(&before, &after);
                let asked = (after.state, &after.outcome, after.detail.cancel_requested_ms);
                assert_eq!(asked, (before.state, &before.outcome, Some(NOW_MS)), "a doubt stays one");
                let Cancelling::Requested(again) =
                    transition::cancel(&after, Liveness::Alive, &Word::person("ada"), NOW_MS + 5)
                else {
                    panic!("it is still running");
                };
                assert_eq!(again.detail.cancel_requested_ms, Some(NOW_MS), "the first request is remembered");
                "requested"
            }
            Cancelling::Already => "already",
            Cancelling::TooLate => "too late",
        };
        assert_eq!(seen, table.look_up(&words), "{words:?}");
    }
    table.assert_all_rows_fitted();
}

const VERIFIED: &str = "
    found  said               => becomes
    done   confirmed|pending  => done kept
    done   refuted            => in_doubt forever
    *      *                  => refused
";

#[test]
fn what_a_check_does_to_a_record() {
    let mut table = Table::read(VERIFIED);
    for words in combinations([STATES, &["confirmed", "refuted", "pending"]]) {
        let [found, said] = words;
        let before = ended_record(found, "attempt", "none");
        let verification: Verification = said.parse().expect("a verification");
        let after = transition::verified(&before, verification, Some("looked".to_owned()), NOW_MS);
        let seen = after.as_ref().map_or("refused".to_owned(), |after| {
            sound(&before, after);
            let outcome = after.outcome.as_ref().expect("an outcome");
            assert_eq!((outcome.verified, result(after)), (Some(verification), "found"));
            assert_eq!(outcome.reason.as_deref() == Some("looked"), said == "refuted", "why it is in doubt");
            format!("{} {}", after.state, if after.due_ms == before.due_ms { "kept" } else { "forever" })
        });
        assert_eq!(seen, table.look_up(&words), "{words:?}");
    }
    table.assert_all_rows_fitted();
    let mut bare = ended_record("done", "attempt", "none");
    bare.outcome = None;
    assert!(
        transition::verified(&bare, Verification::Confirmed, None, NOW_MS).is_none(),
        "there is nothing to check"
    );
}

const AGE: &str = "
    found                    due       => becomes
    *                        never     => kept
    *                        later     => kept
    done|failed|cancelled    now       => tombstone
    expired                  now       => deleted
    staged|running|in_doubt  now       => kept
";

#[test]
fn what_time_does_to_a_record() {
    let mut table = Table::read(AGE);
    for words in combinations([STATES, &["never", "later", "now"]]) {
        let [found, due] = words;
        let mut before = ended_record(found, "attempt", "none");
        before.due_ms = match due {
            "never" => None,
            "later" => Some(NOW_MS + 1),
            _ => Some(NOW_MS),
        };
        let seen = match transition::age(&before, NOW_MS) {
            Ageing::Keep => "kept",
            Ageing::Delete => "deleted",
            Ageing::Tombstone(after) => {
                assert_eq!((after.state, after.version), (State::Expired, 8));
                let outcome = after.outcome.as_ref().expect("how it ended");
                assert_eq!((outcome.size(), after.due_ms), (0, Some(NOW_MS + 5_000)), "no result");
                assert_eq!(after.detail.ended, Some(before.state));
                assert_eq!(after.happened(), before.happened(), "a tombstone says how it ended");
                "tombstone"
            }
        };
        assert_eq!(seen, table.look_up(&words), "{words:?}");
    }
    table.assert_all_rows_fitted();
}

fn liveness(owner: &str) -> Liveness {
    match owner {
        "alive" => Liveness::Alive,
        "gone" => Liveness::Gone,
        "unsent" => Liveness::NeverDispatched,
        _ => Liveness::Unknown,
    }
}

fn silence(record: &mut Record, owner: &str) {
    if owner == "silent" {
        record.detail.owner.as_mut().expect("an owner").lease_until_ms = NOW_MS;
    }
}
