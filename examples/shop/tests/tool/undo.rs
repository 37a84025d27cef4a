//! `shop undo`: what is taken back, what is not, and what a kill in between leaves.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::fixture::{Fixture, Ran, count, signal, told};

const ORDER: &str = "create-order --customer ada --amount 100 --scope trip";
const COUNT: &str = "increment-counter --key views --scope trip";
const MAIL: &str = "send-email --to ada@example.com --subject Hello --scope trip";

fn done(shop: &Fixture, line: &str) -> String {
    let answer = shop.run(line);
    assert_eq!(answer.exit, 0, "{}", answer.stdout);
    answer.json()["operation"]["id"].as_str().unwrap().to_owned()
}

fn results(answer: &Ran) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let data = answer.json()["data"].clone();
    data["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| (word(&step["name"]), word(&step["result"])))
        .collect()
}

fn views(shop: &Fixture) -> String {
    shop.look().lines().find(|line| line.starts_with("counters")).unwrap_or("none").to_owned()
}

/// Kills an undo in this trouble, once that is so.
fn killed(shop: &Fixture, trouble: &str, line: &str, is_so: impl Fn() -> bool) {
    let child = shop.start_in(trouble, line);
    shop.wait_for(is_so);
    let ran = signal(child, Signal::SIGKILL);
    assert_eq!((ran.exit, ran.stdout.as_str()), (-9, ""));
}

#[test]
fn an_order_is_cancelled_once_and_a_retry_is_refused() {
    let shop = Fixture::new();
    let id = done(&shop, ORDER);
    let plan = shop.run(&format!("undo {id} --dry-run"));
    assert_eq!((plan.told(), count(&shop, "orders")), (told("would_update", 0), 1));
    assert_eq!(shop.states().len(), 1, "a dry run records nothing");
    let undone = shop.run(&format!("undo {id}"));
    assert_eq!((undone.told(), count(&shop, "orders")), (told("updated", 0), 0));
    let data = undone.json()["data"].clone();
    assert_eq!((&data["undone"], &data["standing"], &data["in_doubt"]), (&json!(1), &json!(0), &json!(0)));
    assert_eq!(data["steps"][0]["evidence"], "compensation");
    let by = data["steps"][0]["by"].as_str().unwrap().to_owned();
    let shown = shop.run(&format!("show {by}")).json();
    assert_eq!(shown["data"]["operation"]["key"], format!("undo:{id}"));
    // Again: nothing runs.
    assert_eq!(shop.run(&format!("undo {id}")).told(), told("noop", 0));
    let retry = shop.run(ORDER);
    assert_eq!((retry.exit, retry.code().as_str(), count(&shop, "orders")), (4, "UNDONE", 0));
    assert_eq!(shop.run(&format!("{ORDER} --occurrence 2")).told(), told("created", 0));
    assert_eq!(shop.run(&format!("undo {id}")).told(), told("noop", 0));
    assert_eq!(count(&shop, "orders"), 1, "the new occurrence is not the old operation");
}

#[test]
fn a_scope_is_taken_back_in_reverse_and_what_cannot_be_is_named() {
    let shop = Fixture::new();
    for line in [ORDER, MAIL, COUNT, "increment-counter --key others"] {
        done(&shop, line);
    }
    let undone = shop.run("undo --scope trip");
    assert_eq!((undone.told(), undone.code()), (told("updated", 1), "FAILED".to_owned()));
    let expected = [
        ("shop increment-counter", "undone"),
        ("shop send-email", "stands"),
        ("shop create-order", "undone"),
    ];
    assert_eq!(results(&undone), expected.map(|(name, result)| (name.to_owned(), result.to_owned())));
    assert_eq!((count(&shop, "orders"), count(&shop, "emails")), (0, 1));
    let reason = undone.json()["data"]["steps"][1]["reason"].clone();
    assert_eq!(reason, "nothing is registered that takes it back");
    assert_eq!(shop.run("undo --scope nobody").told(), told("noop", 0));
}

#[test]
fn the_items_of_a_batch_are_taken_back_each() {
    let shop = Fixture::new();
    assert_eq!(shop.run("import-orders --file orders.jsonl --scope b").exit, 0);
    assert_eq!(count(&shop, "orders"), 3);
    let undone = shop.run("undo --scope b");
    assert_eq!((undone.told(), &undone.json()["data"]["undone"]), (told("updated", 0), &json!(3)));
    assert_eq!(count(&shop, "orders"), 0);
}

#[test]
fn a_kill_between_the_mark_and_the_dispatch_loses_nothing() {
    let shop = Fixture::new();
    let id = done(&shop, COUNT);
    let before = views(&shop);
    let began = || shop.states().iter().any(|state| state == "undo:shop increment-counter running");
    killed(&shop, "stall-open", &format!("undo {id}"), began);
    assert_eq!(views(&shop), before, "nothing was dispatched");
    // The effect may be gone as far as a retry can know, and the next step finishes the undo.
    let retry = shop.run(COUNT);
    assert_eq!((retry.exit, retry.code().as_str()), (4, "UNDONE"));
    assert_eq!(retry.json()["error"]["fix_command"], format!("shop undo {id}"));
    assert_eq!(shop.run(&format!("undo {id}")).told(), told("updated", 0));
    let after = views(&shop);
    assert_ne!(after, before);
    assert_eq!(shop.run(&format!("undo {id}")).told(), told("noop", 0));
    assert_eq!(views(&shop), after, "it was taken back once");
}

#[test]
fn a_kill_after_the_effect_is_in_doubt_unless_the_compensation_looks_first() {
    let shop = Fixture::new();
    let (order, counter) = (done(&shop, ORDER), done(&shop, COUNT));
    killed(&shop, "stall", &format!("undo {order}"), || count(&shop, "orders") == 0);
    assert_eq!(shop.run(&format!("undo {order}")).told(), told("updated", 0), "it converges");
    let before = views(&shop);
    killed(&shop, "stall", &format!("undo {counter}"), || views(&shop) != before);
    let after = views(&shop);
    for _ in 0..2 {
        let doubt = shop.run(&format!("undo {counter}"));
        assert_eq!((doubt.told(), doubt.code()), (told("noop", 79), "IN_DOUBT".to_owned()));
        assert_eq!(views(&shop), after, "nothing was run");
    }
    let by = shop.run(&format!("undo {counter}")).json()["data"]["steps"][0]["by"].clone();
    assert_eq!(shop.run(&format!("settle {} --as done", by.as_str().unwrap())).exit, 0);
    // The settled compensation has taken it back.
    assert_eq!(shop.run(&format!("undo {counter}")).told(), told("noop", 0));
    assert_eq!(views(&shop), after);
}

#[test]
fn a_compensation_that_fails_leaves_the_operation_and_can_be_repeated() {
    let shop = Fixture::new();
    let id = done(&shop, ORDER);
    let refused = shop.run_in("refuse", &format!("undo {id}"));
    assert_eq!((refused.told(), refused.code()), (told("noop", 1), "FAILED".to_owned()));
    assert_eq!(results(&refused), [("shop create-order".to_owned(), "stands".to_owned())]);
    assert_eq!(shop.run(ORDER).told(), told("noop", 0), "its answer is given again");
    assert_eq!(shop.run(&format!("undo {id}")).told(), told("updated", 0));
}

#[test]
fn a_signal_after_the_dispatch_is_told_with_what_was_not_begun() {
    let shop = Fixture::new();
    for line in [ORDER, COUNT] {
        done(&shop, line);
    }
    let before = views(&shop);
    let child = shop.start_in("stall", "undo --scope trip");
    shop.wait_for(|| views(&shop) != before);
    let stopped = signal(child, Signal::SIGTERM);
    assert_eq!((stopped.exit, stopped.code().as_str()), (143, "IN_DOUBT"));
    let expected = [("shop increment-counter", "in_doubt"), ("shop create-order", "stands")];
    assert_eq!(results(&stopped), expected.map(|(name, result)| (name.to_owned(), result.to_owned())));
    assert_eq!(count(&shop, "orders"), 1);
}

#[test]
fn an_operation_in_doubt_is_left_alone_and_named() {
    let shop = Fixture::new();
    done(&shop, "increment-counter --key views --scope before");
    let before = views(&shop);
    killed(&shop, "stall", COUNT, || views(&shop) != before);
    let after = views(&shop);
    let left = shop.run("undo --scope trip");
    assert_eq!((left.told(), left.code()), (told("noop", 79), "IN_DOUBT".to_owned()));
    assert_eq!(results(&left), [("shop increment-counter".to_owned(), "in_doubt".to_owned())]);
    assert_eq!(views(&shop), after, "an unknown effect is not compensated");
    assert!(!shop.states().iter().any(|state| state.starts_with("undo:")), "{:?}", shop.states());
}

#[test]
fn only_the_world_in_which_it_was_done_is_changed() {
    let shop = Fixture::new();
    let id = done(&shop, COUNT);
    assert_eq!(shop.run("increment-counter --key views --database other.db").exit, 0);
    let other = crate::fixture::look(&shop.file("other.db"));
    let refused = shop.run(&format!("undo {id} --database other.db"));
    assert_eq!((refused.exit, results(&refused)[0].1.as_str()), (1, "stands"));
    let reason = refused.json()["data"]["steps"][0]["reason"].clone();
    assert!(reason.as_str().unwrap().starts_with("it changed another world"), "{reason}");
    assert_eq!(crate::fixture::look(&shop.file("other.db")), other);
    assert_eq!(shop.run(&format!("undo {id}")).told(), told("updated", 0));
}

#[test]
fn what_is_not_there_is_not_found() {
    let shop = Fixture::new();
    let missing = shop.run("undo op_0000000000000000000000000000");
    assert!(matches!(missing.exit, 2 | 5), "{}", missing.stdout);
    assert_eq!(shop.run("undo").exit, 2);
    assert_eq!(shop.run("undo --scope trip").told(), told("noop", 0), "there is no ledger yet");
    assert!(!shop.file("ledger.db").exists());
}
