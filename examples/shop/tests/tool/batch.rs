//! Many orders: one line each, a summary, and a second run that does what is left.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use onceward::Word;

use crate::fixture::{Fixture, count, ran, run};

const IMPORT: &str = "import-orders --file orders.jsonl";

#[test]
fn each_item_has_an_effect_and_the_end_a_summary() {
    let shop = Fixture::new();
    let lines = shop.run(IMPORT).lines();
    let told: Vec<_> =
        lines.iter().map(|line| (line["_seq"].as_i64(), line["effect"].as_str().unwrap())).collect();
    assert_eq!(told, [(Some(1), "created"), (Some(2), "created"), (Some(3), "created"), (None, "created")]);
    assert_eq!(lines[3]["_summary"], true);
    assert_eq!(lines[3]["effects"], serde_json::json!({"created": 3}));
    // Two of the three lines are equal, and two orders are what they ask for.
    assert_eq!(count(&shop, "orders"), 3);
    let again = shop.run(IMPORT).lines();
    assert_eq!(again[3]["effects"], serde_json::json!({"noop": 3}));
    assert_eq!(count(&shop, "orders"), 3);
    // Another batch with the same items is another batch.
    let other = shop.run(&format!("{IMPORT} --idempotency-key monday")).lines();
    assert_eq!(other[3]["effects"], serde_json::json!({"created": 3}));
    assert_eq!(
        shop.run(&format!("{IMPORT} --occurrence 2")).lines()[3]["effects"],
        serde_json::json!({"created": 3})
    );
}

#[test]
fn a_second_run_does_what_is_left_wherever_it_stands_in_the_file() {
    let shop = Fixture::new();
    shop.run(IMPORT);
    let more = "{\"customer\":\"eve\",\"amount\":5}\n{\"amount\":250,\"customer\":\"bob\"}\n\
                {\"customer\":\"ada\",\"amount\":100}\n{\"customer\":\"ada\",\"amount\":100}\n";
    std::fs::write(shop.file("orders.jsonl"), more).unwrap();
    let lines = shop.run(IMPORT).lines();
    let effects: Vec<_> = lines[..4].iter().map(|line| line["effect"].as_str().unwrap()).collect();
    assert_eq!(effects, ["created", "noop", "noop", "noop"]);
    assert_eq!(count(&shop, "orders"), 4);
}

#[test]
fn some_that_fail_are_told_and_only_they_are_tried_again() {
    let shop = Fixture::new();
    let orders = "{\"customer\":\"ada\",\"amount\":1}\n{\"customer\":\"ada\",\"amount\":2}\n\
                  {\"customer\":\"ada\",\"amount\":3}\n{\"customer\":\"bob\",\"amount\":4}\n";
    std::fs::write(shop.file("orders.jsonl"), orders).unwrap();
    let partial = shop.run_in("third", IMPORT);
    assert_eq!(partial.exit, 3);
    let lines = partial.lines();
    assert_eq!(lines[2]["failure"]["code"], "CONFLICT");
    assert_eq!(lines[2]["failure"]["happened"], "no");
    assert_eq!(lines[4]["error"]["code"], "PARTIAL_FAILURE");
    assert_eq!(lines[4]["error"]["fix_command"], "shop import-orders --file orders.jsonl");
    let summary = serde_json::json!({"total": 4, "succeeded": 3, "failed": 1, "in_doubt": 0, "held": 0, "not_begun": 0});
    assert_eq!(lines[4]["data"]["summary"], summary);
    assert_eq!(count(&shop, "orders"), 3);
    let rest = shop.run(IMPORT);
    assert_eq!((rest.exit, &rest.lines()[4]["effects"]), (0, &serde_json::json!({"created": 1, "noop": 3})));
    assert_eq!(count(&shop, "orders"), 4);
}

#[test]
fn a_signal_keeps_what_is_done_and_the_next_run_goes_on() {
    let shop = Fixture::new();
    let mut orders = String::new();
    for amount in 1..=60 {
        writeln!(orders, "{{\"customer\":\"ada\",\"amount\":{amount}}}").unwrap();
    }
    std::fs::write(shop.file("orders.jsonl"), orders).unwrap();
    let mut child = shop.start_in("slow", IMPORT);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut lines = Vec::new();
    let mut line = String::new();
    while out.read_line(&mut line).unwrap() > 0 {
        lines.push(std::mem::take(&mut line));
        if lines.len() == 3 {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
        }
    }
    assert_eq!(ran(child.wait_with_output().unwrap()).exit, 130);
    let last: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!((&last["error"]["code"], &last["data"]["partial"]), (&"CANCELLED".into(), &true.into()));
    let succeeded = usize::try_from(last["data"]["summary"]["succeeded"].as_u64().unwrap()).unwrap();
    assert!((3..60).contains(&succeeded), "{succeeded}");
    let summary = &last["data"]["summary"];
    assert_eq!(
        (&summary["failed"], &summary["not_begun"]),
        (&0.into(), &(60 - succeeded).into()),
        "the rest is left alone"
    );
    assert_eq!(count(&shop, "orders"), succeeded, "what was told is what is there");
    let rest = shop.run(IMPORT);
    assert_eq!(rest.exit, 0);
    let effects = &rest.lines()[60]["effects"];
    assert_eq!(effects, &serde_json::json!({"created": 60 - succeeded, "noop": succeeded}));
    assert_eq!(count(&shop, "orders"), 60);
}

#[test]
fn one_answer_instead_of_lines_where_that_is_wanted() {
    let shop = Fixture::new();
    let whole = shop.run(&format!("{IMPORT} --no-stream")).json();
    assert_eq!((&whole["ok"], &whole["effect"]), (&true.into(), &"created".into()));
    assert_eq!(whole["data"]["items"].as_array().unwrap().len(), 3);
    let dry = shop.run(&format!("{IMPORT} --dry-run")).lines();
    assert_eq!(dry[0]["effect"], "would_noop");
    let other = run(shop.with("SHOP_DATABASE", "other.db"), &format!("{IMPORT} --dry-run")).lines();
    assert_eq!((&other[0]["effect"], &other[3]["effect"]), (&"would_create".into(), &"would_create".into()));
}

#[test]
fn a_line_that_is_wrong_is_refused_before_anything_is_done() {
    let shop = Fixture::new();
    std::fs::write(shop.file("orders.jsonl"), "{\"customer\":\"ada\",\"amount\":1}\n{\"customer\":\n")
        .unwrap();
    let refused = shop.run(IMPORT);
    assert_eq!((refused.exit, refused.code().as_str()), (2, "INVALID_INPUT"));
    assert!(refused.json()["error"]["message"].as_str().unwrap().starts_with("line 2"));
    assert!(!shop.file("ledger.db").exists());
}

#[test]
fn a_dry_run_of_a_batch_claims_nothing_that_it_did_not_do() {
    let shop = Fixture::new();
    let dry = shop.run(&format!("{IMPORT} --dry-run")).lines();
    let summary = &dry[3];
    assert_eq!((&summary["effect"], &summary["ran"]), (&"would_create".into(), &false.into()), "{summary}");
    assert_eq!(summary["happened"], "no");
    let real = shop.run_in("lost-reply", IMPORT);
    let last = real.lines().pop().unwrap();
    assert_eq!((real.exit, &last["happened"], &last["ran"]), (3, &"unknown".into(), &true.into()), "{last}");
    // Each item would ask the shop whether it happened.
    let foreseen = shop.run(&format!("{IMPORT} --dry-run")).lines();
    assert_eq!(
        (&foreseen[3]["happened"], &foreseen[3]["ran"]),
        (&"unknown".into(), &false.into()),
        "{foreseen:?}"
    );
    assert_eq!(count(&shop, "orders"), 3);
}

/// The same call would be refused again, so the answer does not say to make it.
#[test]
fn a_stopped_batch_says_that_a_person_resumes_it() {
    let shop = Fixture::new();
    let url = format!("sqlite:{}", shop.file("ledger.db").display());
    let ledger = onceward_store::ledger(&url, onceward_clap::IfMissing::Create).unwrap().blocking();
    ledger.scopes().stop("run-7", &onceward::Word::person("ada")).unwrap();
    let refused = shop.run(&format!("{IMPORT} --scope run-7"));
    let last = refused.lines().pop().unwrap();
    assert_eq!((refused.exit, &last["error"]["happened"]), (3, &serde_json::json!("no")), "{last}");
    let said = last["error"].to_string();
    assert!(said.contains("a person resumes it") && !said.contains("make the same call again"), "{said}");
}

#[test]
fn what_a_person_holds_back_is_no_success() {
    let shop = Fixture::new();
    let policy = shop.file("policy.toml");
    std::fs::write(&policy, "[operation.\"import-orders\"]\nhold = \"approve\"\n").unwrap();
    let import = || run(shop.with("SHOP_POLICY", policy.to_str().unwrap()), IMPORT);
    for _ in 0..2 {
        let held = import();
        let last = held.lines().last().unwrap().clone();
        assert_eq!((held.exit, &last["error"]["code"]), (3, &"PARTIAL_FAILURE".into()), "{last}");
        let summary = &last["data"]["summary"];
        assert_eq!((&summary["succeeded"], &summary["held"]), (&0.into(), &summary["total"]), "{last}");
    }
    assert_eq!(count(&shop, "orders"), 0);
    let ledger = shop.ledger().unwrap();
    for record in ledger.admin().held(None).unwrap() {
        ledger.admin().release(&record.id, &Word::person("maria")).unwrap();
    }
    let done = import();
    assert_eq!((done.exit, count(&shop, "orders")), (0, done.lines().len() - 1), "{}", done.stdout);
}
