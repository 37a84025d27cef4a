//! The well-known cases: a 503, a flaky network, a second deployment, two agents at once.

use crate::fixture::{Fixture, count, program, run, told};

/// In a scope that the caller chose, the same command is always a retry.
const ORDER: &str = "create-order --customer ada --amount 100 --scope run-7";

#[test]
fn an_order_that_was_refused_with_503_and_retried_is_one_order() {
    let shop = Fixture::new();
    let refused = shop.run_in("refuse", ORDER);
    assert_eq!((refused.exit, refused.code().as_str()), (12, "UNAVAILABLE"));
    let error = refused.json()["error"].clone();
    assert_eq!((&error["happened"], &error["retryable"]), (&"no".into(), &true.into()));
    assert_eq!(error["retry_after_ms"], 100);
    assert_eq!(shop.run(ORDER).told(), told("created", 0));
    assert_eq!(shop.run(ORDER).told(), told("noop", 0));
    assert_eq!(count(&shop, "orders"), 1);
}

#[test]
fn an_order_whose_503_came_after_the_effect_and_retried_is_one_order() {
    let shop = Fixture::new();
    let lost = shop.run_in("lost-reply", ORDER);
    assert_eq!((lost.exit, lost.code().as_str(), lost.told().0.as_str()), (79, "IN_DOUBT", "unknown"));
    assert_eq!(lost.json()["error"]["retryable"], false);
    // The shop remembers the key of each order, so the retry asks it.
    let retry = shop.run(ORDER).json();
    assert_eq!((&retry["ok"], &retry["effect"]), (&true.into(), &"noop".into()));
    assert_eq!(retry["operation"]["original_effect"], "created");
    assert_eq!(retry["data"]["id"], 1);
    assert_eq!(count(&shop, "orders"), 1);
}

#[test]
fn an_order_in_a_shop_with_several_names_is_one_order() {
    let shop = Fixture::new();
    std::fs::create_dir(shop.file("deep")).unwrap();
    // The link is there before the shop is.
    std::os::unix::fs::symlink("shop.db", shop.file("link.db")).unwrap();
    std::os::unix::fs::symlink(".", shop.file("folder")).unwrap();
    let names = ["link.db", "shop.db", "./deep/../shop.db", "folder/shop.db", "folder/link.db"];
    let effects: Vec<String> =
        names.iter().map(|name| shop.run(&format!("{ORDER} --database {name}")).told().0).collect();
    assert_eq!(effects, ["created", "noop", "noop", "noop", "noop"]);
    assert_eq!(count(&shop, "orders"), 1);
}

#[test]
fn a_counter_that_is_incremented_three_times_by_retries_is_one() {
    let shop = Fixture::new();
    let runs: Vec<_> =
        (0..3).map(|_| shop.run("increment-counter --key views --idempotency-key k").json()).collect();
    let effects: Vec<_> = runs.iter().map(|run| run["effect"].as_str().unwrap()).collect();
    assert_eq!(effects, ["updated", "noop", "noop"]);
    assert!(runs.iter().all(|run| run["data"]["value"] == 1), "each retry gets the first answer");
    let again = shop.run("increment-counter --key views --idempotency-key k --occurrence 2").json();
    assert_eq!((&again["effect"], &again["data"]["value"]), (&"updated".into(), &2.into()));
}

#[test]
fn a_second_deployment_says_that_it_did_nothing_and_why() {
    let shop = Fixture::new();
    assert_eq!(shop.run("deploy --version 1.2.3 --scope run-7").told(), told("created", 0));
    let retry = shop.run("deploy --version 1.2.3 --scope run-7").json();
    assert_eq!(retry["effect"], "noop");
    assert!(retry["reason"].as_str().unwrap().starts_with("already done"), "{retry}");
    // Another caller that knows nothing of the first.
    let other = shop.run("deploy --version 1.2.3 --idempotency-key other").json();
    assert_eq!((&other["effect"], &other["reason"]), (&"noop".into(), &"Already at version 1.2.3".into()));
    assert_eq!(other["data"]["current_version"], "1.2.3");
    let dry = shop.run("deploy --version 1.3.0 --dry-run").json();
    assert_eq!(dry["effect"], "would_update");
    assert_eq!(
        dry["changes"],
        serde_json::json!(["would update service web to 1.3.0", "would restart 2 instances"])
    );
    assert_eq!(shop.run("deploy --version 1.3.0").told(), told("updated", 0));
}

#[test]
fn a_rollback_is_deployed_and_the_data_is_true() {
    let shop = Fixture::new();
    let deploy = |version: &str| shop.run(&format!("deploy --version {version}")).json();
    let effects: Vec<_> = ["1.2.3", "1.2.4", "1.2.3"]
        .map(|version| deploy(version)["effect"].as_str().unwrap().to_owned())
        .into();
    assert_eq!(effects, ["created", "updated", "updated"]);
    assert_eq!(shop.run("deploy --version 1.2.3 --dry-run").told(), told("would_noop", 0));
    let foreseen = shop.run("deploy --version 1.2.4 --dry-run").json();
    assert_eq!((&foreseen["effect"], &foreseen["ran"]), (&"would_update".into(), &false.into()));
    assert_eq!(foreseen["changes"][0], "would update service web to 1.2.4");
    let same = deploy("1.2.3");
    assert_eq!((&same["effect"], &same["reason"]), (&"noop".into(), &"Already at version 1.2.3".into()));
}

#[test]
fn a_rollback_is_deployed_also_where_no_answer_was_delivered() {
    let shop = Fixture::new();
    for version in ["1.2.3", "1.2.4"] {
        assert_eq!(unheard(&shop, &format!("deploy --version {version}")), 0);
    }
    assert_eq!(shop.run("deploy --version 1.2.4").told(), told("noop", 0), "that is a retry, and still true");
    let back = shop.run("deploy --version 1.2.3").json();
    assert_eq!((&back["effect"], &back["ran"]), (&"updated".into(), &true.into()), "{back}");
    assert_eq!(shop.run("deploy --version 1.2.3 --dry-run").told(), told("would_noop", 0));
}

#[test]
fn a_strict_retry_says_that_things_have_changed_also_in_a_dry_run() {
    let shop = Fixture::new();
    let deploy = |version: &str, more: &str| {
        shop.run(&format!("deploy --version {version} --scope run-7{more}")).json()
    };
    assert_eq!(deploy("1.2.3", "")["effect"], "created");
    assert_eq!(deploy("1.2.3", "")["warnings"], serde_json::json!([]));
    assert_eq!(deploy("1.2.4", "")["effect"], "updated");
    for more in ["", " --dry-run"] {
        let back = deploy("1.2.3", more);
        assert!(matches!(back["effect"].as_str(), Some("noop" | "would_noop")), "{back}");
        let warning = back["warnings"][0].as_str().unwrap();
        assert!(
            warning.ends_with("would update service web to 1.2.3, would restart 2 instances"),
            "{warning}"
        );
    }
    assert_eq!(deploy("1.2.3", " --occurrence 2")["effect"], "updated");
}

/// Runs a command whose answer is lost: the reader of its stdout is gone.
fn unheard(shop: &Fixture, line: &str) -> i32 {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = shop.command();
    command.args(line.split(' ')).stdout(writer).stderr(std::process::Stdio::null());
    command.status().unwrap().code().unwrap()
}

#[test]
fn the_same_command_is_a_retry_until_its_answer_was_delivered() {
    let shop = Fixture::new();
    let order = "create-order --customer ada --amount 100";
    assert_eq!(unheard(&shop, order), 0);
    assert_eq!(count(&shop, "orders"), 1);
    let foreseen = shop.run(&format!("{order} --dry-run")).json();
    assert_eq!(foreseen["decision"], "replay");
    let retry = shop.run(order).json();
    assert_eq!(
        (&retry["effect"], &retry["ran"], &retry["data"]["id"]),
        (&"noop".into(), &false.into(), &1.into())
    );
    assert!(retry["reason"].as_str().unwrap().contains("was not delivered"), "{retry}");
    // Now the caller has the answer, so the same command is a new action.
    assert_eq!(shop.run(&format!("{order} --dry-run")).json()["decision"], "run");
    assert_eq!(shop.run(order).told(), told("created", 0));
    assert_eq!(count(&shop, "orders"), 2);
    // A key or a scope says that it is not.
    let keyed = format!("{order} --idempotency-key k");
    assert_eq!((shop.run(&keyed).told(), shop.run(&keyed).told()), (told("created", 0), told("noop", 0)));
}

#[test]
fn an_answer_is_not_delivered_to_a_parent_that_is_gone() {
    let shop = Fixture::new();
    let order = "create-order --customer ada --amount 100";
    assert_eq!(shop.run("deploy --version 1").exit, 0);
    // While this lock is held, the order is begun and waits.
    let database = rusqlite::Connection::open(shop.file("shop.db")).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    // The shell ends when its stdin does; its child answers into a file.
    let line = format!("{} {order} > answer.json & read wait", program().display());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]).current_dir(shop.folder.path()).stdin(std::process::Stdio::piped());
    shell.envs(shop.command().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut shell = shell.spawn().unwrap();
    shop.wait_for(|| shop.states().contains(&"shop create-order running".to_owned()));
    drop(shell.stdin.take());
    shell.wait().unwrap();
    database.execute_batch("COMMIT").unwrap();
    shop.wait_for(|| {
        std::fs::read_to_string(shop.file("answer.json")).is_ok_and(|text| text.ends_with("}\n"))
    });
    assert_eq!(shop.run(order).told(), told("noop", 0), "no one may have read the answer");
    assert_eq!(count(&shop, "orders"), 1);
}

#[test]
fn a_dry_run_is_refused_as_the_real_run_would_be() {
    let shop = Fixture::new();
    let order = "create-order --customer ada --amount 100 --idempotency-key k";
    assert_eq!(shop.run(order).exit, 0);
    let other = "create-order --customer ada --amount 7 --idempotency-key k";
    for line in [other.to_owned(), format!("{other} --dry-run")] {
        let refused = shop.run(&line);
        assert_eq!((refused.exit, refused.code().as_str()), (6, "KEY_REUSED"), "{line}");
        let answer = refused.json();
        assert_eq!(
            (&answer["ok"], &answer["happened"], &answer["ran"]),
            (&false.into(), &"yes".into(), &false.into())
        );
        assert!(answer.get("data").is_none(), "the data of another call is no answer: {answer}");
    }
    let mail = "send-email --to ada@example.com --subject Hello --idempotency-key m";
    assert_eq!(shop.run_in("lost-reply", mail).exit, 79);
    let doubt = shop.run(&format!("{mail} --dry-run"));
    assert_eq!((doubt.exit, doubt.code().as_str(), doubt.told().0.as_str()), (79, "IN_DOUBT", "would_noop"));
    let unusable = run(shop.with("SHOP_LEDGER", "sqlite:/dev/null/ledger.db"), &format!("{order} --dry-run"));
    assert_eq!((unusable.exit, unusable.code().as_str()), (12, "LEDGER_UNAVAILABLE"));
    let misspelt = run(shop.with("SHOP_LEDGER", "sqlit:foo.db"), &format!("{order} --dry-run"));
    assert_eq!((misspelt.exit, misspelt.code().as_str()), (2, "INVALID_INPUT"));
    let missing = run(shop.with("SHOP_LEDGER", "sqlite:none.db"), &format!("{order} --dry-run")).json();
    assert_eq!((&missing["ok"], &missing["reason"]), (&true.into(), &"would run attempt 1".into()));
    assert!(!shop.file("none.db").exists());
}

#[test]
fn eight_agents_at_once_make_one_order() {
    let shop = Fixture::new();
    let effects: Vec<_> = std::thread::scope(|scope| {
        let agents: Vec<_> = (0..8).map(|_| scope.spawn(|| shop.run_in("slow", ORDER).told())).collect();
        agents.into_iter().map(|agent| agent.join().unwrap()).collect()
    });
    let created = effects.iter().filter(|told| told.0 == "created").count();
    assert_eq!((created, effects.iter().filter(|told| **told == ("noop".to_owned(), 0)).count()), (1, 7));
    assert_eq!(count(&shop, "orders"), 1);
}

#[test]
fn a_dry_run_leaves_nothing_behind() {
    let shop = Fixture::new();
    let files = || {
        let mut names: Vec<_> =
            std::fs::read_dir(shop.folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();
    for line in [ORDER, "deploy --version 1", "delete-user --id 1", "import-orders --file orders.jsonl"] {
        let dry = shop.run(&format!("{line} --dry-run"));
        assert_eq!(dry.exit, 0, "{}", dry.stdout);
        assert_eq!(files(), before, "{line}");
    }
    // With a ledger: no record.
    shop.run(ORDER);
    let states = shop.states();
    shop.run("create-order --customer bob --amount 1 --dry-run");
    assert_eq!(shop.states(), states);
    let foreseen = shop.run(&format!("{ORDER} --dry-run")).json();
    assert_eq!(foreseen["effect"], "would_noop");
}

#[test]
fn a_key_is_for_one_action() {
    let shop = Fixture::new();
    assert_eq!(shop.run(&format!("{ORDER} --idempotency-key k")).told(), told("created", 0));
    let reused = shop.run("create-order --customer ada --amount 7 --idempotency-key k --scope run-7");
    assert_eq!((reused.exit, reused.code().as_str()), (6, "KEY_REUSED"));
    assert!(reused.json()["error"]["message"].as_str().unwrap().contains("amount"));
    // Another scope, another shop, another command: other operations.
    let order = "create-order --customer ada --amount 100";
    assert_eq!(shop.run(&format!("{order} --idempotency-key k --scope other")).told(), told("created", 0));
    assert_eq!(shop.run(ORDER).told(), told("created", 0));
    assert_eq!(run(shop.with("SHOP_DATABASE", "other.db"), ORDER).told(), told("created", 0));
    assert_eq!(run(shop.with("SHOP_DATABASE", "other.db"), ORDER).told(), told("noop", 0));
    assert_eq!(shop.run("increment-counter --key views --idempotency-key k").told(), told("updated", 0));
    let bad = shop.run(&format!("{ORDER} --idempotency-key é"));
    assert_eq!((bad.exit, bad.code().as_str()), (2, "INVALID_INPUT"));
}

#[test]
fn a_policy_decides_over_times_and_classes() {
    let shop = Fixture::new();
    let policy = "[operation.\"send-email\"]\nclass = \"idempotent\"\n[operation.\"create-order\"]\nkeys = \"keyed\"\n";
    std::fs::write(shop.file("policy.toml"), policy).unwrap();
    let mail = "send-email --to ada@example.com --subject Hello --policy policy.toml";
    assert_eq!(shop.run_in("lost-reply", mail).exit, 79);
    assert_eq!(shop.run(mail).told(), told("created", 0), "the user's policy says that it may run again");
    let keyless = shop.run(&format!("{ORDER} --policy policy.toml"));
    assert_eq!((keyless.exit, keyless.code().as_str()), (2, "KEY_MISSING"));
    std::fs::write(shop.file("policy.toml"), "[operation.\"send-email\"]\nclass = \"probed\"\n").unwrap();
    let unprobed = shop.run(mail);
    assert_eq!(unprobed.exit, 2);
    assert!(unprobed.json()["error"]["message"].as_str().unwrap().contains("no probe"));
}

#[test]
fn an_error_is_told_once() {
    let shop = Fixture::new();
    let missing = shop.run("get-order 9");
    assert_eq!((missing.exit, missing.code().as_str(), missing.stderr.as_str()), (5, "NOT_FOUND", ""));
    let unopened = run(shop.with("SHOP_LEDGER", "sqlite:/nowhere/ledger.db"), ORDER);
    assert_eq!((unopened.exit, unopened.code().as_str()), (12, "LEDGER_UNAVAILABLE"));
    assert_eq!((&unopened.json()["happened"], &unopened.json()["ran"]), (&"unknown".into(), &false.into()));
    let misspelt = run(shop.with("SHOP_LEDGER", "sqlight:x"), ORDER);
    assert_eq!((misspelt.exit, misspelt.code().as_str()), (2, "INVALID_INPUT"));
    assert_eq!(shop.look(), "no shop");
}

#[test]
fn a_lost_reply_is_told_as_in_doubt_to_whatever_runs_the_shop() {
    let shop = Fixture::new();
    let mail = "send-email --to ada@example.com --subject Hello";
    let lost = shop.run_in("lost-reply", mail);
    let answer = lost.json();
    assert_eq!((lost.exit, lost.stderr.as_str()), (79, ""));
    assert_eq!(
        (&answer["ok"], &answer["happened"], &answer["ran"]),
        (&false.into(), &"unknown".into(), &true.into())
    );
    let error = &answer["error"];
    assert_eq!(
        (&error["code"], &error["happened"], &error["retryable"]),
        (&"IN_DOUBT".into(), &"unknown".into(), &false.into())
    );
    let next = error["next"].as_str().unwrap();
    assert!(next.starts_with("check first whether it happened"), "{next}");
    let id = answer["operation"]["id"].as_str().unwrap();
    assert_eq!(error["fix_command"], format!("shop show {id}"));
    assert!(error["options"].is_null(), "a person or a probe settles a lost answer: {error}");
    assert!(lost.stdout.len() / 4 < 300, "an answer in doubt is short");
}

/// A caller does not lift a person's stop.
#[test]
fn a_stopped_call_says_that_a_person_resumes_it() {
    let shop = Fixture::new();
    let home = shop.file("home");
    std::fs::create_dir_all(home.join("shop")).unwrap();
    let own = home.join("shop/ledger.db");
    let mut by_default = shop.with("XDG_DATA_HOME", home.to_str().unwrap());
    by_default.env_remove("SHOP_LEDGER");
    let by_flag = shop.command();
    for (file, command, more) in [
        (shop.file("ledger.db"), shop.command(), ""),
        (shop.file("other.db"), by_flag, " --ledger sqlite:other.db"),
        (own, by_default, ""),
    ] {
        let url = format!("sqlite:{}", file.display());
        let ledger = onceward_store::ledger(&url, onceward_clap::IfMissing::Create).unwrap().blocking();
        ledger.scopes().stop("run 7", &onceward::Word::person("ada")).unwrap();
        let mut command = command;
        command.args(["deploy", "--version", "1.2.3", "--scope", "run 7"]);
        let refused = run(command, more);
        assert_eq!((refused.exit, refused.code()), (4, "STOPPED".to_owned()), "{}", refused.stdout);
        assert!(refused.stdout.contains("a person resumes it"), "{}", refused.stdout);
        assert!(!refused.stdout.contains("resume 'run 7'"), "{}", refused.stdout);
    }
}
