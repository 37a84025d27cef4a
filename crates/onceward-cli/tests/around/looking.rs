//! Commands that look: ls, show, wait, report, stats, export, key, doctor, config.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::common::{Bench, COUNTED, tidy};

/// A ledger with one operation of each kind that a user meets.
fn busy() -> Bench {
    let bench = Bench::new();
    bench.with_done();
    bench.with_failed();
    bench.with_doubt();
    bench.once(&["run", "--scope", "flow", "--name", "deploy", "--key", "d1", "--", "true"]).exits(0);
    bench.once(&["run", "--scope", "flow", "--name", "deploy", "--key", "d1", "--", "true"]).exits(0);
    bench
}

/// How many operations `once ls` shows with these flags.
fn count(bench: &Bench, flags: &[&str]) -> usize {
    bench.json(&[&["ls"], flags].concat())["data"].as_array().unwrap().len()
}

/// Columns are as wide as what differs from run to run, so only their words are compared.
fn words(text: &str) -> String {
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn ls_lists_the_newest_first_and_filters() {
    let bench = busy();
    assert_eq!(count(&bench, &[]), 4);
    assert_eq!(count(&bench, &["--scope", "flow"]), 1);
    assert_eq!(count(&bench, &["--session", "nobody"]), 0);
    assert_eq!(count(&bench, &["--name", "sh"]), 3);
    assert_eq!(count(&bench, &["--state", "in_doubt"]), 1);
    assert_eq!(count(&bench, &["--state", "done,failed"]), 3);
    assert_eq!(count(&bench, &["-n", "2"]), 2);
    let names = bench.json(&["ls"])["data"].clone();
    let names: Vec<&str> =
        names.as_array().unwrap().iter().map(|line| line["key"].as_str().unwrap()).collect();
    assert_eq!(names, ["d1", "doubt", "failed", "done"]);
    let table = bench.once(&["ls", "--scope", "flow"]).exits(0);
    let table = words(&table.out());
    let (heading, row) = table.split_once('\n').unwrap();
    assert_snapshot!(heading, @"STATE NAME SCOPE ATTEMPT REPLAYS AGO OPERATION");
    let (before_age, after_age) = row.split_once(" 1 1 ").unwrap();
    assert_snapshot!(format!("{before_age} {}", after_age.split(' ').next_back().unwrap()), @"done deploy flow op_…");
    assert_snapshot!(bench.once(&["ls", "--scope", "nobody"]).exits(0).out(), @"no operations");
    assert!(bench.once(&["ls", "-n", "2"]).exits(0).out().ends_with("(the newest 2; -n shows more)"));
}

#[test]
fn show_tells_all() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    let said = bench.once(&["show", &id]).exits(0);
    assert_snapshot!(said.out(), @r#"
    sh in_doubt
      operation    op_…
      scope        default
      key          doubt
      class        once
      attempt      1 of 20
      created      TIME (AGE ago)
      updated      TIME (AGE ago)
      replays      0
      reason       the command was killed by SIGKILL
      data         {"exit_code":null,"stdout_bytes":0,"stderr_bytes":0,"cut":false}
      next         once settle op_… --as 'done|failed'
    "#);
    let shown = bench.json(&["show", &id])["data"].clone();
    assert_eq!(
        (&shown["id"], &shown["state"], &shown["class"]),
        (&json!(id), &json!("in_doubt"), &json!("once"))
    );
    assert_eq!(shown["outcome"]["reason"], "the command was killed by SIGKILL");
    let done = bench.with_done();
    let said = bench.once(&["show", &done]).exits(0).out();
    assert!(said.contains("output       out"), "{said}");
}

#[test]
fn show_tells_of_the_attempts_before() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--", "sh", "-c", "[ $ONCE_ATTEMPT = 2 ] || exit 4"];
    bench.once(&args).exits(4);
    bench.once(&args).exits(0);
    let said = bench.once(&["show", &bench.newest()]).exits(0).out();
    assert!(said.contains("attempt 1 failed: the command failed with exit code 4"), "{said}");
}

#[test]
fn wait_waits_until_it_is_over() {
    let bench = Bench::new();
    let running = bench.start_held("a");
    let id = bench.newest();
    let said = bench.once(&["wait", &id, "--timeout", "20ms"]).exits(4);
    assert_snapshot!(said.err(), @r"
    once: IN_PROGRESS another caller is executing attempt 1 of this operation
    once: happened: unknown, retryable: no
    once: next: once wait op_…
    ");
    let mut waiting = bench.start(&["wait", &id]);
    assert!(!waiting.is_over());
    bench.release();
    running.end().exits(0);
    assert!(waiting.end().exits(0).out().starts_with("sh done"));
    assert_eq!(bench.json(&["wait", &id])["data"]["state"], "done");
}

#[test]
fn report_tells_what_a_scope_really_did() {
    let bench = busy();
    let report = bench.json(&["report"])["data"].clone();
    assert_eq!((&report["scope"], &report["operations"]), (&json!("default"), &json!(3)));
    for (state, key) in [("done", "done"), ("failed", "failed"), ("in_doubt", "doubt")] {
        assert_eq!(report["by_state"][state][0]["key"], key);
    }
    let flow = bench.json(&["report", "--scope", "flow"])["data"].clone();
    assert_eq!((&flow["operations"], &flow["replays"]), (&json!(1), &json!(1)));
    let text = bench.once(&["report"]).exits(0).out();
    let titles: Vec<&str> =
        text.lines().filter(|line| !line.contains("op_") && !line.contains("STATE")).collect();
    assert_snapshot!(titles.join("\n"), @r"
    scope default: 3 operations, 0 replays

    happened (1)

    failed and did not happen (1)

    is in doubt: settle it (1)
    ");
}

#[test]
fn stats_count_by_state() {
    let bench = busy();
    let stats = bench.json(&["stats"])["data"].clone();
    assert_eq!(stats["by_state"], json!({"done": 2, "failed": 1, "in_doubt": 1}));
    assert_eq!(stats["operations"], 4);
    assert_snapshot!(words(&bench.once(&["stats"]).exits(0).out()).split(" in ").next().unwrap(), @r"
    STATE OPERATIONS
    done 2
    failed 1
    in_doubt 1
    4 operations
    ");
}

#[test]
fn export_writes_json_lines() {
    let bench = busy();
    let lines = |flags: &[&str]| -> Vec<Value> {
        let said = bench.once(&[&["export"], flags].concat()).exits(0);
        let text = String::from_utf8(said.out).unwrap();
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    };
    let all = lines(&["--no-bodies"]);
    assert_eq!(all.len(), 5, "four operations, and the line that says so");
    assert_eq!(all[4], json!({"exported": 4}));
    assert!(
        all[..4]
            .iter()
            .all(|line| line["id"].as_str().unwrap().starts_with("op_") && line.get("body").is_none())
    );
    assert_eq!(
        (&all[0]["key"]["text"], &all[3]["key"]["text"]),
        (&json!("done"), &json!("d1")),
        "oldest first"
    );
    assert_eq!(lines(&["--scope", "flow"]).len(), 2);
    let with_bodies = lines(&[]);
    let done = with_bodies.iter().find(|line| line["key"]["text"] == "done").unwrap();
    let body = data_encoding::BASE64.decode(done["body"].as_str().unwrap().as_bytes()).unwrap();
    assert!(body.windows(4).any(|bytes| bytes == b"out\n"), "the stored output is there");
}

#[test]
fn key_explains_the_key_that_run_uses() {
    let bench = Bench::new();
    let identity = ["--scope", "s", "--input", r#"{"id": 7, "note": "x"}"#, "--key-fields", "id"];
    let explained =
        bench.json(&[&["key"], &identity[..], &["--", "sh", "-c", COUNTED]].concat())["data"].clone();
    assert!(bench.listing().is_empty(), "to explain a key no ledger is needed");
    let ran =
        bench.json(&[&["run"], &identity[..], &["--", "sh", "-c", COUNTED]].concat())["operation"].clone();
    assert_eq!((&explained["key"], &explained["operation"]), (&ran["key"], &ran["id"]));
    assert_eq!((&explained["origin"], &explained["name"]), (&json!("derived"), &json!("sh")));
    assert_eq!(explained["inputs"], json!(["/argv/0", "/argv/1", "/argv/2", "/input/id", "/input/note"]));
    let said = bench.once(&[&["key"], &identity[..], &["--", "sh", "-c", COUNTED]].concat()).exits(0);
    assert_snapshot!(said.out(), @r"
    k1_…
      derived from the name and id
      name         sh
      scope        s (not part of the key, but of the operation)
      inputs       /argv/0 /argv/1 /argv/2 /input/id /input/note
      fingerprint  f1_…
      operation    op_…
    ");
    let given = bench.once(&["key", "--key", "mine", "--name", "pay"]).exits(0);
    assert_snapshot!(given.out(), @r"
    mine
      given by the caller
      name         pay
      scope        default (not part of the key, but of the operation)
      inputs       /argv
      fingerprint  f1_…
      operation    op_…
    ");
}

#[test]
fn the_derived_key_is_the_published_one() {
    let bench = Bench::new();
    let key = bench.json(&["key", "--", "echo", "hi"])["data"]["key"].clone();
    // [1,"echo",{"argv":["echo","hi"]},1]
    assert_eq!(key, "k1_naneqfj7pmb22xwty3dve6q6qawr6jbqjhe7xyelvuiuwv7mbooa");
}

#[test]
fn doctor_finds_a_sound_ledger_sound() {
    let bench = Bench::new();
    bench.with_done();
    let findings = bench.json(&["doctor"])["data"].clone();
    for finding in findings.as_array().unwrap() {
        // Where the tests' folder is in memory, that is said.
        assert!(finding["verdict"] == "good" || finding["what"] == "file system", "{finding}");
    }
    let said = bench.once(&["doctor"]).exits(0).out();
    let names: Vec<&str> = said.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_snapshot!(names.join(" "), @"policy ledger file file sqlite schema journal sync integrity clock locks in");
}

#[test]
fn doctor_looks_where_there_is_nothing_and_leaves_nothing() {
    let bench = Bench::new();
    assert_snapshot!(bench.once(&["doctor"]).exits(0).out(), @r"
    ok   policy       the built-in default
    look ledger       there is no ledger at once.db yet; `once run` makes one
    ");
    assert!(bench.listing().is_empty());
}

#[test]
fn doctor_wants_a_look_at_doubts_and_open_files() {
    let bench = Bench::new();
    bench.with_doubt();
    std::fs::set_permissions(bench.path("once.db"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let said = bench.once(&["doctor"]).exits(0).out();
    let looks: Vec<&str> = said.lines().filter(|line| !line.starts_with("ok")).collect();
    assert_snapshot!(looks.join("\n"), @r"
    look file mode    0644 (0600: nobody else reads the results)
    look in doubt     1 operations; `once ls --state in_doubt`
    ");
}

#[test]
fn doctor_finds_what_is_broken() {
    let bench = Bench::new();
    bench.with_long_ledger().damage(20..60);
    let said = bench.once(&["doctor"]).exits(1);
    assert!(said.out().contains("BAD"), "{}", said.out());
    let answer = bench.once(&["doctor", "--json"]).exits(1).json();
    assert_eq!(answer["ok"], false, "ok and the exit code say the same");
    let text = Bench::new();
    text.write("once.db", "no ledger at all, but long enough to be looked at as one; ".repeat(10));
    text.once(&["doctor"]).exits(1);
    let policy = Bench::new();
    policy.write("onceward.toml", "nonsense");
    policy.once(&["doctor"]).exits(1);
}

#[test]
fn config_shows_what_holds() {
    let bench = Bench::new();
    let policy = "[defaults]\nretention = \"1h\"\n[operation.pay]\nclass = \"idempotent\"\n";
    bench.write("onceward.toml", policy);
    let shown = bench.json(&["config", "show", "pay"])["data"].clone();
    assert_eq!(shown["policy_file"], "onceward.toml");
    assert_eq!(shown["ledger"], "sqlite:once.db");
    assert_eq!(shown["settings"]["terms"]["class"], "idempotent");
    assert_eq!(shown["settings"]["terms"]["retention_ms"], 3_600_000);
    assert_eq!(bench.json(&["config", "show"])["data"]["settings"]["terms"]["class"], "once");
    let said = bench.once(&["config", "show", "pay"]).exits(0).out();
    assert!(
        said.starts_with("policy file: onceward.toml\nledger: sqlite:once.db\noperation pay: {"),
        "{said}"
    );
}

#[test]
fn config_init_writes_the_default_that_holds() {
    let bench = Bench::new();
    let before = bench.json(&["config", "show"])["data"]["settings"].clone();
    assert_snapshot!(bench.once(&["config", "init"]).exits(0).out(), @"onceward.toml is written");
    assert!(bench.read("onceward.toml").contains("[defaults]"));
    assert_eq!(bench.json(&["config", "show"])["data"]["settings"], before, "the default changes nothing");
    bench.once(&["config", "init", "other.toml"]).exits(0);
    assert_eq!(bench.read("other.toml"), bench.read("onceward.toml"));
}

#[test]
fn an_answer_as_json_is_one_line_for_every_command_that_looks() {
    let bench = busy();
    let id = bench.newest();
    for args in [
        &["ls"][..],
        &["show", &id],
        &["wait", &id],
        &["report"],
        &["stats"],
        &["doctor"],
        &["config", "show"],
    ] {
        let answer = bench.json(args);
        assert_eq!((&answer["ok"], &answer["effect"]), (&json!(true), &json!("noop")), "{args:?}");
        assert_eq!(tidy(answer["warnings"].to_string().as_bytes()), "[]");
    }
}
