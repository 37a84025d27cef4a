//! Retry or repeat: what each kind of call gets for each earlier occurrence. The table restates the contract without
//! using the code's own rules.

use crate::common::combinations;
use crate::common::table::Table;
use onceward::State;
use onceward::repeat::{Beside, Choice, Delivery, Earlier, EarlierCaller, Identified, Said, choose};

/// What was cancelled while it ran, and may have happened, is `stopping` or `unclear`.
const FOUND: &[&str] = &[
    "staged",
    "running",
    "in_doubt",
    "stopping",
    "unclear",
    "done",
    "settled",
    "failed",
    "cancelled",
    "expired",
];
/// Whether the result reached its caller: it did, it did not, or that is unknown and the window is not over.
const RESULT: &[&str] = &["delivered", "undelivered", "in-window"];
/// The earlier caller waits and this call is meant beside it, has left, or is not seen.
const CALLER: &[&str] = &["beside", "left", "unknown"];
const CALL: &[&str] = &["content", "new-key", "sample", "says-retry", "own-key"];

const CHOICE: &str = "
    found                    result                 caller        call                     => choice
    expired                  *                      *             *                        => new
    staged|running|in_doubt  *                      *             says-retry               => same
    done|settled|failed      *                      *             says-retry               => same
    cancelled                *                      *             says-retry               => same

    stopping|unclear         *                      *             says-retry|own-key       => same
    staged|running|in_doubt  *                      *             own-key                  => new
    done|failed              *                      *             own-key                  => new
    settled                  undelivered            *             own-key                  => same
    settled                  delivered|in-window    *             own-key                  => new
    cancelled                undelivered|in-window  *             own-key                  => same
    cancelled                delivered              *             own-key                  => new

    staged|in_doubt|unclear  *                      left|unknown  content|new-key|sample   => same
    running|stopping         *                      left          content|new-key|sample   => same
    running|stopping         *                      unknown       content                  => same
    running|stopping         *                      unknown       new-key|sample           => undecided
    staged|running|in_doubt  *                      beside        content|new-key|sample   => beside
    stopping|unclear         *                      beside        content|new-key|sample   => beside

    done|settled|failed      delivered              *             content|new-key|sample   => new
    done|settled             in-window              *             content|new-key|sample   => same
    failed                   in-window              *             content|sample           => same
    failed                   in-window              *             new-key                  => new
    done|settled|failed      undelivered            left          content|new-key|sample   => same
    done|settled|failed      undelivered            unknown       content                  => same
    done|settled|failed      undelivered            unknown       new-key|sample           => undecided
    done|settled|failed      undelivered            beside        content|new-key|sample   => beside

    cancelled                delivered              *             content|new-key|sample   => new
    cancelled                undelivered|in-window  *             content|new-key|sample   => same
";

const ATTEMPTS: u32 = 3;

fn found(state: &str) -> Earlier {
    let (state, said) = match state {
        "settled" => (State::Done, Said::Done),
        "stopping" => (State::Running, Said::Cancelled),
        "unclear" => (State::InDoubt, Said::Cancelled),
        _ => (state.parse().expect("a state"), Said::Nothing),
    };
    Earlier { state, said, attempts: 1, ..Earlier::starting(Some(1), 0) }
}

fn call(word: &str) -> Identified {
    match word {
        "content" => Identified::ByContent,
        "new-key" => Identified::ByNewKey { attempts: ATTEMPTS },
        "sample" => Identified::AsSample { repeats_since_ms: None },
        "says-retry" => Identified::AsRetry,
        _ => Identified::ByOwnKey,
    }
}

fn numbered(number: u64, state: &str) -> Earlier {
    Earlier { number: Some(number), since_ms: i64::try_from(number).expect("a number"), ..found(state) }
}

#[test]
fn which_operation_a_call_refers_to() {
    let mut table = Table::read(CHOICE);
    for [state, result, caller, word] in combinations([FOUND, RESULT, CALLER, CALL]) {
        let delivery = match result {
            "delivered" => Delivery::Delivered,
            "undelivered" => Delivery::NotDelivered,
            _ => Delivery::Unknown,
        };
        let seen = match caller {
            "beside" => EarlierCaller::Beside,
            "left" => EarlierCaller::Left,
            _ => EarlierCaller::Unknown,
        };
        let earlier = Earlier { delivery, caller: seen, ..found(state) };
        let choice = match choose(&[earlier], call(word)) {
            Choice::Same(0) => "same",
            Choice::New { beside: Beside::Nothing, .. } => "new",
            Choice::New { beside: Beside::Waiting, .. } => "beside",
            Choice::Undecided(0) => "undecided",
            other => panic!("{other:?}"),
        };
        let row = [state, result, caller, word];
        assert_eq!(choice, table.look_up(&row), "{row:?}");
    }
    table.assert_all_rows_fitted();
}

#[test]
fn among_several_a_doubt_comes_first_then_the_oldest() {
    let left = |number, state| Earlier { caller: EarlierCaller::Left, ..numbered(number, state) };
    let all = [left(1, "done"), left(2, "running"), left(3, "in_doubt"), left(4, "in_doubt")];
    for word in ["content", "new-key"] {
        assert_eq!(choose(&all, call(word)), Choice::Same(2), "{word}");
        assert_eq!(choose(&all[..2], call(word)), Choice::Same(0), "{word}");
    }
    // A sample has no effect to be repeated.
    assert_eq!(choose(&all, call("sample")), Choice::Same(3));
    // What no caller waits for comes before what may be waited for, and that before a new one.
    let all = [numbered(1, "running"), left(2, "running"), numbered(3, "running")];
    assert_eq!(choose(&all, call("content")), Choice::Same(1));
    assert_eq!(choose(&[all[0], all[2]], call("content")), Choice::Same(1));
    assert_eq!(choose(&[], call("content")), Choice::New { spent: 0, beside: Beside::Nothing });
}

#[test]
fn a_key_of_its_caller_answers_for_itself() {
    let settled = Earlier { has_own_key: true, number: None, ..found("settled") };
    assert_eq!(choose(&[settled], call("own-key")), Choice::New { spent: 0, beside: Beside::Nothing });
    let refused = Earlier { has_own_key: true, number: None, ..found("cancelled") };
    assert_eq!(choose(&[settled, refused], call("own-key")), Choice::Same(1));
}

#[test]
fn new_keys_share_one_budget_of_attempts_within_the_window() {
    let told = |number| Earlier { delivery: Delivery::Unknown, ..numbered(number, "failed") };
    assert_eq!(
        choose(&[told(1), told(2)], call("new-key")),
        Choice::New { spent: 2, beside: Beside::Nothing }
    );
    assert_eq!(choose(&[told(1), told(2), told(3)], call("new-key")), Choice::Spent(2));
    assert_eq!(choose(&[told(1), told(2), told(3)], call("sample")), Choice::Same(2));
}

#[test]
fn a_retry_that_an_sdk_reports_is_not_older_than_its_first_try() {
    let elsewhere = [numbered(10, "running"), numbered(20, "running")];
    let reported = |since_ms| Identified::AsSample { repeats_since_ms: Some(since_ms) };
    assert_eq!(choose(&elsewhere, reported(15)), Choice::Same(1));
    assert_eq!(choose(&elsewhere, reported(21)), Choice::Undecided(0));
}
