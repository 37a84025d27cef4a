//! `kill -9` between the effect and the answer, signals, and timeouts: what the retry gets.

use nix::sys::signal::Signal;

use crate::fixture::{Fixture, Ran, count, ran, signal, told};

const ORDER: &str = "create-order --customer ada --amount 100";
const MAIL: &str = "send-email --to ada@example.com --subject Hello";
const COUNT: &str = "increment-counter --key views";

/// Kills the command after its effect and before its answer.
fn killed_after_effect(shop: &Fixture, line: &str) -> String {
    let before = shop.look();
    let child = shop.start_in("stall", line);
    shop.wait_for_change(&before);
    let ran = signal(child, Signal::SIGKILL);
    assert_eq!((ran.exit, ran.stdout.as_str()), (-9, ""));
    shop.look()
}

/// A shop that exists, so that the next change is the command's.
fn open_shop() -> Fixture {
    let shop = Fixture::new();
    assert_eq!(shop.run("deploy --service old --version 0").exit, 0);
    shop
}

#[test]
fn what_cannot_be_asked_is_in_doubt_and_settled_by_hand() {
    for (line, table) in [(MAIL, "emails"), (COUNT, "counters")] {
        let shop = open_shop();
        let after = killed_after_effect(&shop, line);
        assert_eq!(count(&shop, table), 1);
        for _ in 0..2 {
            let retry = shop.run(line);
            assert_eq!((retry.told(), retry.code()), (told("noop", 79), "IN_DOUBT".to_owned()));
            assert_eq!((&retry.json()["happened"], &retry.json()["ran"]), (&"unknown".into(), &false.into()));
            assert_eq!(shop.look(), after, "nothing was run");
        }
        let answer = shop.run(line).json();
        let operation = answer["operation"]["id"].as_str().unwrap().to_owned();
        assert_eq!(answer["error"]["fix_command"], format!("shop show {operation}"), "no command decides it");
        assert!(answer["error"].get("options").is_none(), "its answer was lost: {answer}");
        let shown = shop.run(&format!("show {operation}")).json();
        assert_eq!(shown["data"]["operation"]["state"], "in_doubt");
        assert!(
            shown.get("happened").is_none() && shown.get("ran").is_none(),
            "it is about no call: {shown}"
        );
        assert_eq!(shown["data"]["options"][1]["command"], format!("shop settle {operation} --as failed"));
        assert_eq!(
            shop.run(&format!("settle {operation} --as done --dry-run")).told(),
            told("would_update", 0)
        );
        assert_eq!(shop.run(&format!("settle {operation} --as done")).told(), told("updated", 0));
        let twice = shop.run(&format!("settle {operation} --as done"));
        assert_eq!(twice.told(), told("noop", 0));
        assert!(twice.json().get("happened").is_none() && twice.json().get("ran").is_none());
        let against = shop.run(&format!("settle {operation} --as failed"));
        assert_eq!((against.exit, against.code().as_str()), (6, "WRONG_STATE"));
        assert!(against.json()["error"].get("happened").is_none(), "{}", against.stdout);
        assert_eq!(shop.run(line).told(), told("noop", 0));
        assert_eq!(shop.look(), after);
    }
}

#[test]
fn what_is_settled_as_failed_runs_again() {
    let shop = open_shop();
    killed_after_effect(&shop, COUNT);
    let answer = shop.run(COUNT).json();
    let operation = answer["operation"]["id"].as_str().unwrap();
    assert_eq!(shop.run(&format!("settle {operation} --as failed --note looked")).exit, 0);
    assert_eq!(shop.run(COUNT).told(), told("updated", 0));
}

#[test]
fn a_command_with_a_probe_settles_itself() {
    let shop = open_shop();
    let after = killed_after_effect(&shop, ORDER);
    let retry = shop.run(ORDER).json();
    assert_eq!(
        (&retry["ok"], &retry["effect"], &retry["data"]["id"]),
        (&true.into(), &"noop".into(), &1.into())
    );
    assert_eq!(shop.look(), after);
    let shown = shop.run(&format!("show {}", retry["operation"]["id"].as_str().unwrap())).json();
    assert_eq!(shown["data"]["operation"]["settled_by"]["by"], "probe");
}

#[test]
fn a_command_that_converges_is_run_again_and_finds_it_done() {
    for line in ["deploy --version 1.2.3", "delete-user --id 1 --confirm"] {
        let shop = open_shop();
        let after = killed_after_effect(&shop, line);
        let retry = shop.run(line).json();
        assert_eq!((&retry["ok"], &retry["effect"]), (&true.into(), &"noop".into()), "{retry}");
        assert_eq!(retry["operation"]["attempt"], 2);
        assert_eq!(shop.look(), after);
    }
}

#[test]
fn a_batch_that_is_killed_goes_on_where_it_was() {
    let shop = open_shop();
    killed_after_effect(&shop, "import-orders --file orders.jsonl");
    let rest = shop.run("import-orders --file orders.jsonl");
    assert_eq!((rest.exit, &rest.lines()[3]["effects"]), (0, &serde_json::json!({"created": 2, "noop": 1})));
    assert_eq!(count(&shop, "orders"), 3);
}

#[test]
fn an_item_whose_time_runs_out_ends_the_batch_in_doubt() {
    let shop = open_shop();
    let partial = shop.run_in("stall", "import-orders --file orders.jsonl --timeout 8s");
    let lines = partial.lines();
    assert_eq!((partial.exit, &lines[0]["failure"]["code"]), (3, &"TIMEOUT".into()));
    assert_eq!(
        (&lines[1]["error"]["code"], &lines[1]["error"]["happened"]),
        (&"PARTIAL_FAILURE".into(), &"unknown".into())
    );
    let summary = &lines[1]["data"]["summary"];
    assert_eq!((&summary["in_doubt"], &summary["not_begun"]), (&1.into(), &2.into()));
    assert_eq!(shop.run("import-orders --file orders.jsonl").exit, 0);
    assert_eq!(count(&shop, "orders"), 3);
}

#[test]
fn a_crash_before_the_dispatch_is_certain() {
    let shop = Fixture::new();
    let child = shop.start_in("stall-open", MAIL);
    shop.wait_for_intent();
    assert_eq!(signal(child, Signal::SIGKILL).exit, -9);
    assert_eq!(shop.run(MAIL).told(), told("created", 0), "nothing had left, so the retry runs");
    assert_eq!(count(&shop, "emails"), 1);
}

#[test]
fn a_signal_before_the_dispatch_changes_nothing() {
    for (sent, exit) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let shop = Fixture::new();
        let child = shop.start_in("stall-open", MAIL);
        shop.wait_for_intent();
        let stopped = signal(child, sent);
        assert_eq!((stopped.told(), stopped.code()), (told("noop", exit), "CANCELLED".to_owned()));
        assert_eq!(stopped.json()["error"]["happened"], "no");
        assert_eq!(stopped.json()["data"]["partial"], true);
        assert_eq!(shop.states(), ["shop send-email failed"]);
        assert_eq!(shop.run(MAIL).told(), told("created", 0));
    }
}

#[test]
fn a_signal_after_the_dispatch_leaves_the_truth_in_the_ledger() {
    for (sent, exit) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let shop = open_shop();
        let before = shop.look();
        let child = shop.start_in("stall", MAIL);
        shop.wait_for_change(&before);
        let stopped = signal(child, sent);
        assert_eq!((stopped.told(), stopped.code()), (told("unknown", exit), "IN_DOUBT".to_owned()));
        settles(&shop, &stopped);
    }
}

/// Stops the scope as `once stop` does, and waits for what runs.
fn stop(shop: &Fixture) -> onceward::Sums {
    let url = format!("sqlite:{}", shop.file("ledger.db").display());
    let ledger = onceward_store::ledger(&url, onceward_clap::IfMissing::Fail).unwrap().blocking();
    let stopped = ledger
        .scopes()
        .stop("default", &onceward::Word::person("ada").note("wrong list".to_owned()))
        .unwrap();
    assert_eq!(stopped.asked.len(), 1, "an attempt was asked to end");
    assert!(ledger.scopes().wait("default", 60_000).unwrap().is_empty(), "it still runs");
    ledger.scopes().settlement("default").unwrap().sums
}

#[test]
fn a_stop_before_the_dispatch_fails_with_certainty() {
    let shop = Fixture::new();
    let child = shop.start_in("stall-open", MAIL);
    shop.wait_for_intent();
    let sums = stop(&shop);
    let stopped = ran(child.wait_with_output().unwrap());
    assert_eq!(
        (stopped.told(), stopped.code()),
        (told("noop", 4), "STOPPED".to_owned()),
        "{}",
        stopped.stdout
    );
    assert_eq!(stopped.json()["error"]["happened"], "no");
    assert_eq!((sums.failed, count(&shop, "emails")), (1, 0));
}

#[test]
fn a_stop_after_the_dispatch_leaves_the_truth_in_the_ledger() {
    let shop = open_shop();
    let before = shop.look();
    let child = shop.start_in("stall", MAIL);
    shop.wait_for_change(&before);
    let sums = stop(&shop);
    let stopped = ran(child.wait_with_output().unwrap());
    assert_eq!(
        (stopped.told(), stopped.code()),
        (told("unknown", 79), "IN_DOUBT".to_owned()),
        "{}",
        stopped.stdout
    );
    assert!(stopped.stdout.contains("asked to stop after the request was sent"), "{}", stopped.stdout);
    assert_eq!(sums.in_doubt, 1);
}

#[test]
fn time_that_runs_out_is_told_with_what_is_known() {
    let shop = open_shop();
    let before = shop.run_in("stall-open", &format!("{MAIL} --timeout 50ms"));
    assert_eq!((before.told(), before.code()), (told("noop", 10), "TIMEOUT".to_owned()));
    let error = before.json()["error"].clone();
    assert_eq!((&error["happened"], &error["retryable"]), (&"no".into(), &true.into()));
    let after = shop.run_in("stall", &format!("{MAIL} --timeout 8s"));
    assert_eq!((after.told(), after.code()), (told("unknown", 10), "TIMEOUT".to_owned()));
    assert_eq!(after.json()["error"]["happened"], "unknown");
    settles(&shop, &after);
    let read = shop.run_in("stall-open", "get-order 1 --timeout 50ms");
    assert_eq!((read.exit, read.code().as_str()), (10, "TIMEOUT"));
}

#[test]
fn who_meets_another_at_work_waits_and_is_then_told_so() {
    let shop = open_shop();
    let before = shop.look();
    let child = shop.start_in("stall", MAIL);
    shop.wait_for_change(&before);
    let begun = std::time::Instant::now();
    let busy = shop.run(&format!("{MAIL} --wait 50ms"));
    assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it waited for longer than it was told to");
    assert_eq!((busy.exit, busy.code().as_str()), (4, "IN_PROGRESS"));
    let answer = busy.json();
    assert_eq!((&answer["happened"], &answer["error"]["retryable"]), (&"unknown".into(), &false.into()));
    let operation = answer["operation"]["id"].as_str().unwrap();
    assert_eq!(answer["error"]["fix_command"], format!("shop show {operation}"));
    assert_eq!(shop.run(&format!("show {operation}")).json()["data"]["operation"]["state"], "running");
    signal(child, Signal::SIGKILL);
    assert_eq!(shop.run(MAIL).exit, 79);
}

/// A person settles it, which is needed: the answer names the operation and no command that decides.
fn settles(shop: &Fixture, answer: &Ran) {
    assert_eq!(shop.run(MAIL).exit, 79);
    let answer = answer.json();
    let id = answer["operation"]["id"].as_str().unwrap();
    assert_eq!(answer["error"]["fix_command"], format!("shop show {id}"));
    assert_eq!(shop.run(&format!("settle {id} --as done")).told(), told("updated", 0));
    assert_eq!(shop.run(MAIL).told(), told("noop", 0));
    assert_eq!(count(shop, "emails"), 1);
}
