//! The cases that everybody knows: a 503, a flaky network, a second deployment, two agents at once.

use crate::desk::{Desk, count, run, told};

const ORDER: &str = "create-order --customer ada --amount 100";

#[test]
fn an_order_that_was_refused_with_503_and_retried_is_one_order() {
    let desk = Desk::new();
    let refused = desk.run_in("refuse", ORDER);
    assert_eq!((refused.exit, refused.code().as_str()), (12, "UNAVAILABLE"));
    let error = refused.json()["error"].clone();
    assert_eq!((&error["happened"], &error["retryable"]), (&"no".into(), &true.into()));
    assert_eq!(error["retry_after_ms"], 100);
    assert_eq!(desk.run(ORDER).told(), told("created", 0));
    assert_eq!(desk.run(ORDER).told(), told("noop", 0));
    assert_eq!(count(&desk, "orders"), 1);
}

#[test]
fn an_order_whose_503_came_after_the_effect_and_retried_is_one_order() {
    let desk = Desk::new();
    let lost = desk.run_in("lost-reply", ORDER);
    assert_eq!((lost.exit, lost.code().as_str(), lost.told().0.as_str()), (79, "IN_DOUBT", "unknown"));
    assert_eq!(lost.json()["error"]["retryable"], false);
    // The shop remembers the key of each order, so the retry asks it.
    let retry = desk.run(ORDER).json();
    assert_eq!((&retry["ok"], &retry["effect"]), (&true.into(), &"noop".into()));
    assert_eq!(retry["operation"]["original_effect"], "created");
    assert_eq!(retry["data"]["id"], 1);
    assert_eq!(count(&desk, "orders"), 1);
}

#[test]
fn a_counter_that_is_incremented_three_times_by_retries_is_one() {
    let desk = Desk::new();
    let runs: Vec<_> = (0..3).map(|_| desk.run("increment-counter --key views").json()).collect();
    let effects: Vec<_> = runs.iter().map(|run| run["effect"].as_str().unwrap()).collect();
    assert_eq!(effects, ["updated", "noop", "noop"]);
    assert!(runs.iter().all(|run| run["data"]["value"] == 1), "each retry gets the first answer");
    // Who wants it again says so.
    let again = desk.run("increment-counter --key views --occurrence 2").json();
    assert_eq!((&again["effect"], &again["data"]["value"]), (&"updated".into(), &2.into()));
}

#[test]
fn a_second_deployment_says_that_it_did_nothing_and_why() {
    let desk = Desk::new();
    assert_eq!(desk.run("deploy --version 1.2.3").told(), told("created", 0));
    let retry = desk.run("deploy --version 1.2.3").json();
    assert_eq!(retry["effect"], "noop");
    assert!(retry["reason"].as_str().unwrap().starts_with("already done"), "{retry}");
    // Another caller, who knows nothing of the first.
    let other = desk.run("deploy --version 1.2.3 --idempotency-key other").json();
    assert_eq!((&other["effect"], &other["reason"]), (&"noop".into(), &"Already at version 1.2.3".into()));
    assert_eq!(other["data"]["current_version"], "1.2.3");
    let dry = desk.run("deploy --version 1.3.0 --dry-run").json();
    assert_eq!(dry["effect"], "would_update");
    assert_eq!(
        dry["changes"],
        serde_json::json!(["would update service web to 1.3.0", "would restart 2 instances"])
    );
    assert_eq!(desk.run("deploy --version 1.3.0").told(), told("updated", 0));
}

#[test]
fn a_retry_of_what_converges_warns_when_the_world_has_moved_on() {
    let desk = Desk::new();
    desk.run("deploy --version 1.2.3");
    assert_eq!(desk.run("deploy --version 1.2.3").json()["warnings"], serde_json::json!([]));
    desk.run("deploy --version 1.2.4");
    let back = desk.run("deploy --version 1.2.3").json();
    assert_eq!(back["effect"], "noop");
    let warning = back["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("would update service web to 1.2.3") && warning.contains("--occurrence"),
        "{warning}"
    );
    assert_eq!(desk.run("deploy --version 1.2.3 --occurrence 2").told(), told("updated", 0));
}

#[test]
fn eight_agents_at_once_make_one_order() {
    let desk = Desk::new();
    let effects: Vec<_> = std::thread::scope(|scope| {
        let agents: Vec<_> = (0..8).map(|_| scope.spawn(|| desk.run_in("slow", ORDER).told())).collect();
        agents.into_iter().map(|agent| agent.join().unwrap()).collect()
    });
    let created = effects.iter().filter(|told| told.0 == "created").count();
    assert_eq!((created, effects.iter().filter(|told| **told == ("noop".to_owned(), 0)).count()), (1, 7));
    assert_eq!(count(&desk, "orders"), 1);
}

#[test]
fn a_dry_run_leaves_nothing_behind() {
    let desk = Desk::new();
    let files = || {
        let mut names: Vec<_> =
            std::fs::read_dir(desk.folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();
    for line in [ORDER, "deploy --version 1", "delete-user --id 1", "import-orders --file orders.jsonl"] {
        let dry = desk.run(&format!("{line} --dry-run"));
        assert_eq!(dry.exit, 0, "{}", dry.stdout);
        assert_eq!(files(), before, "{line}");
    }
    // With a ledger: no record.
    desk.run(ORDER);
    let states = desk.states();
    desk.run("create-order --customer bob --amount 1 --dry-run");
    assert_eq!(desk.states(), states);
    let foreseen = desk.run(&format!("{ORDER} --dry-run")).json();
    assert_eq!(foreseen["effect"], "would_noop");
}

#[test]
fn a_key_is_for_one_action() {
    let desk = Desk::new();
    assert_eq!(desk.run(&format!("{ORDER} --idempotency-key k")).told(), told("created", 0));
    let reused = desk.run("create-order --customer ada --amount 7 --idempotency-key k");
    assert_eq!((reused.exit, reused.code().as_str()), (6, "KEY_REUSED"));
    assert!(reused.json()["error"]["message"].as_str().unwrap().contains("amount"));
    // Another scope, another shop, another command: other operations.
    assert_eq!(desk.run(&format!("{ORDER} --idempotency-key k --scope other")).told(), told("created", 0));
    assert_eq!(desk.run(ORDER).told(), told("created", 0));
    assert_eq!(run(desk.with("SHOP_DATABASE", "other.db"), ORDER).told(), told("created", 0));
    assert_eq!(run(desk.with("SHOP_DATABASE", "other.db"), ORDER).told(), told("noop", 0));
    assert_eq!(desk.run("increment-counter --key views --idempotency-key k").told(), told("updated", 0));
    let bad = desk.run(&format!("{ORDER} --idempotency-key é"));
    assert_eq!((bad.exit, bad.code().as_str()), (2, "INVALID_INPUT"));
}

#[test]
fn a_policy_decides_over_times_and_classes() {
    let desk = Desk::new();
    let policy = "[operation.\"send-email\"]\nclass = \"idempotent\"\n[operation.\"create-order\"]\nkeys = \"keyed\"\n";
    std::fs::write(desk.file("policy.toml"), policy).unwrap();
    let mail = "send-email --to ada@example.com --subject Hello --policy policy.toml";
    assert_eq!(desk.run_in("lost-reply", mail).exit, 79);
    assert_eq!(desk.run(mail).told(), told("created", 0), "the user's policy says that it may run again");
    let keyless = desk.run(&format!("{ORDER} --policy policy.toml"));
    assert_eq!((keyless.exit, keyless.code().as_str()), (2, "KEY_MISSING"));
    std::fs::write(desk.file("policy.toml"), "[operation.\"send-email\"]\nclass = \"probed\"\n").unwrap();
    let unprobed = desk.run(mail);
    assert_eq!(unprobed.exit, 2);
    assert!(unprobed.json()["error"]["message"].as_str().unwrap().contains("no probe"));
}

#[test]
fn an_error_is_told_on_both_streams() {
    let desk = Desk::new();
    let missing = desk.run("get-order 9");
    assert_eq!((missing.exit, missing.code().as_str()), (5, "NOT_FOUND"));
    assert!(missing.stderr.contains("NOT_FOUND") && missing.stderr.contains("happened: no, retryable: no"));
    let unopened = run(desk.with("SHOP_LEDGER", "sqlite:/nowhere/ledger.db"), ORDER);
    assert_eq!((unopened.exit, unopened.code().as_str()), (12, "LEDGER_UNAVAILABLE"));
    let misspelt = run(desk.with("SHOP_LEDGER", "sqlight:x"), ORDER);
    assert_eq!((misspelt.exit, misspelt.code().as_str()), (2, "INVALID_INPUT"));
    assert_eq!(desk.look(), "no shop");
}
