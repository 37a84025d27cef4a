//! Commands that look: ls, show, wait, report, stats, export, key, doctor, config.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::common::{Bench, COUNTED, eventually, tidy};

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
    assert_eq!(count(&bench, &["--key", "doubt"]), 1);
    assert_eq!(count(&bench, &["--state", "in_doubt"]), 1);
    assert_eq!(count(&bench, &["--state", "done,failed"]), 3);
    assert_eq!(count(&bench, &["-n", "2"]), 2);
    let names = bench.json(&["ls"])["data"].clone();
    let names: Vec<&str> =
        names.as_array().unwrap().iter().map(|line| line["key"].as_str().unwrap()).collect();
    assert_eq!(names, ["d1", "doubt", "failed", "done"]);
    assert_snapshot!(bench.once(&["ls", "--scope", "nobody"]).exits(0).out(), @"no operations");
    assert!(
        bench
            .once(&["ls", "-n", "2"])
            .exits(0)
            .out()
            .ends_with("(only the newest 2 are listed; -n lists more)")
    );
    let warnings = bench.json(&["ls", "-n", "2"])["warnings"].clone();
    assert_eq!(warnings, json!(["only the newest 2 are listed; -n lists more"]));
    assert_eq!(bench.json(&["ls", "-n", "4"])["warnings"], json!([]), "all of them are not a part of them");
}

#[test]
fn ls_filters_by_time() {
    let bench = Bench::new();
    bench.with_done();
    let first = bench.json(&["ls"])["data"][0]["created_at"].as_str().unwrap().to_owned();
    bench.with_failed();
    let second = bench.json(&["ls"])["data"][0]["created_at"].as_str().unwrap().to_owned();
    assert!(first < second);
    assert_eq!(count(&bench, &["--since", &first]), 2);
    assert_eq!(count(&bench, &["--since", &second]), 1);
    assert_eq!(count(&bench, &["--until", &second]), 1);
    assert_eq!(count(&bench, &["--since", &first, "--until", &first]), 0);
    assert_eq!(count(&bench, &["--since", "1h"]), 2);
    assert_eq!(count(&bench, &["--until", "1h"]), 0);
    assert_eq!(count(&bench, &["--since", "2000-01-01"]), 2);
    let report = bench.json(&["report", "--since", &second])["data"].clone();
    assert_eq!((&report["operations"], &report["totals"]), (&json!(1), &json!({"failed": 1})));
}

#[test]
fn ls_shows_what_a_reader_can_recognise() {
    let bench = busy();
    bench.once(&["run", "--store-command", "--", "sh", "-c", "echo stored"]).exits(0);
    let short = |text: String| words(&text).lines().map(short_id).collect::<Vec<_>>().join("\n");
    assert_snapshot!(short(bench.once(&["ls"]).exits(0).out()), @r"
    STATE KEY WHAT SCOPE EFFECT AGE REASON ID
    done k2_… sh -c 'echo stored' default updated AGE op_…
    done d1 deploy flow updated AGE op_…
    in_doubt doubt sh default unknown AGE the command was killed by SIGKILL op_…
    failed failed sh default none AGE the command failed with exit code 3, declared to have no effect op_…
    done done sh default updated AGE op_…
    ");
    assert_snapshot!(short(bench.once(&["ls", "--scope", "flow"]).exits(0).out()), @r"
    STATE KEY WHAT EFFECT AGE ID
    done d1 deploy updated AGE op_…
    ");
}

/// A row of a table with its key, its age and its id, which differ from run to run, replaced.
fn short_id(line: &str) -> String {
    let word = |word: &str| {
        let age = word == "now"
            || (word.len() > 1 && word.ends_with('s') && word[..word.len() - 1].parse::<u32>().is_ok());
        match word {
            _ if word.starts_with("op_") && word.len() == 11 => "op_…".to_owned(),
            _ if word.starts_with("k2_") => "k2_…".to_owned(),
            _ if age => "AGE".to_owned(),
            _ => word.to_owned(),
        }
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_table_is_no_wider_than_the_terminal() {
    let bench = busy();
    let long = "order-of-a-customer-with-a-very-long-name-0123456789";
    bench
        .once(&["run", "--store-command", "--key", long, "--", "sh", "-c", "kill -9 $$ # 注文注文注文注文"])
        .exits(79);
    for width in ["100", "80", "60"] {
        for command in ["ls", "report"] {
            let output = bench.command(&[command]).env("COLUMNS", width).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let table = text.lines().filter(|line| line.contains("op_"));
            for line in table.clone() {
                assert!(
                    unicode_width::UnicodeWidthStr::width(line) <= width.parse().unwrap(),
                    "{width}: {line}"
                );
            }
            assert!(table.count() >= 3, "{text}");
        }
    }
    let whole = bench.once(&["ls"]).exits(0).out();
    assert!(whole.contains(long) && whole.contains("注文注文注文注文"), "a pipe gets all: {whole}");
}

#[test]
fn lists_are_also_json_lines() {
    let bench = busy();
    let lines = |args: &[&str]| -> Vec<Value> {
        let said = bench.once(args).exits(0);
        let text = String::from_utf8(said.out).unwrap();
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    };
    let listed = lines(&["ls", "--jsonl"]);
    let keys: Vec<&str> = listed.iter().map(|line| line["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["d1", "doubt", "failed", "done"]);
    assert_eq!(Value::from(listed), bench.json(&["ls"])["data"]);
    let report = lines(&["report", "--jsonl"]);
    let keys: Vec<&str> = report.iter().filter_map(|line| line["key"].as_str()).collect();
    assert_eq!(keys, ["doubt", "failed", "done"], "doubts first");
    assert_eq!(report.last().unwrap()["totals"], json!({"done": 1, "failed": 1, "in_doubt": 1}));
    bench.once(&["ls", "--jsonl", "--json"]).exits(2);
}

#[test]
fn show_tells_everything() {
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
      owner        gone
      created      TIME (AGE ago)
      updated      TIME (AGE ago)
      replays      0
      reason       the command was killed by SIGKILL
      quarantine   a probe's "no" counts from TIME
      next         check first whether it happened, then record what you found
        it happened: once --ledger sqlite:…/once.db settle op_… --as done
        it did not: once --ledger sqlite:…/once.db settle op_… --as failed
    "#);
    let shown = bench.json(&["show", &id])["data"].clone();
    assert_eq!(
        (&shown["id"], &shown["state"], &shown["class"]),
        (&json!(id), &json!("in_doubt"), &json!("once"))
    );
    assert_eq!(shown["outcome"]["reason"], "the command was killed by SIGKILL");
    let args = [
        "run",
        "--key",
        "p",
        "--store-command",
        "--probe",
        "exit 0",
        "--verify",
        "true",
        "--",
        "sh",
        "-c",
        COUNTED,
    ];
    bench.once(&args).exits(0);
    let said = bench.once(&["show", "p"]).exits(0).out();
    for line in [
        "command      sh -c",
        "folder       ",
        "probe        exit 0",
        "check        true",
        "output       out",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(said.contains("evidence     the answer of attempt 1"), "{said}");
}

#[test]
fn show_tells_whether_the_owner_lives() {
    let bench = Bench::new();
    let running = bench.start_held("a");
    assert!(bench.once(&["show", "a"]).exits(0).out().contains("owner        alive"));
    bench.release();
    running.end().exits(0);
    assert!(!bench.once(&["show", "a"]).exits(0).out().contains("owner "));
    bench.with_doubt();
    assert!(bench.once(&["show", "doubt"]).exits(0).out().contains("owner        gone"));
}

#[test]
fn show_gives_the_stored_output() {
    let bench = Bench::new();
    let script = "printf 'a\\000b\\n'; printf 'complaint' >&2; head -c 9000 /dev/zero | tr '\\0' x";
    bench.once(&["run", "--key", "bytes", "--", "sh", "-c", script]).exits(0);
    let said = bench.once(&["show", "bytes", "--output"]).exits(0);
    assert_eq!(said.out, [b"a\0b\n".to_vec(), vec![b'x'; 9_000]].concat());
    assert_eq!(said.err, b"complaint");
    let output = bench.json(&["show", "bytes"])["data"]["output"].clone();
    assert_eq!(output["stdout"].as_str().unwrap().len(), 4_096, "an answer is not as long as an output");
    assert_eq!((&output["truncated"], &output["stdout_bytes"]), (&json!(true), &json!(9_004)));
    assert_eq!((&output["stderr"], &output["exit_code"]), (&json!("complaint"), &json!(0)));
    // What it points to can be pasted.
    let all = output["all"].as_str().unwrap().strip_prefix("once ").unwrap().to_owned();
    let words = shlex::split(&all).unwrap();
    assert_eq!(bench.once(&words).exits(0).out, said.out);
    bench.once(&["run", "--key", "none", "--", "true"]).exits(0);
    assert_eq!(bench.once(&["show", "none", "--output"]).exits(0).out, b"");
}

#[test]
fn show_tells_of_the_attempts_before() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--fail-exit", "4", "--", "sh", "-c", "[ $ONCE_ATTEMPT = 2 ] || exit 4"];
    bench.once(&args).exits(4);
    bench.once(&args).exits(0);
    let said = bench.once(&["show", &bench.newest()]).exits(0).out();
    assert!(said.contains("before       attempt 1 failed: the command failed with exit code 4"), "{said}");
}

#[test]
fn a_double_effect_is_shown_with_its_true_word() {
    let bench = Bench::new();
    bench.with_done();
    for (word, sentence) in [
        ("certain", "double effect certain: two attempts had an effect"),
        ("possible", "double effect possible: two attempts may have had an effect"),
    ] {
        bench.raise_alarm(word);
        for command in [&["ls"][..], &["report"], &["show", "done"]] {
            let said = bench.once(command).exits(0).out();
            assert!(said.contains(sentence), "{command:?}: {said}");
        }
        assert_eq!(bench.json(&["report"])["data"]["double_effects"], json!({word: 1}));
        assert_eq!(bench.json(&["ls"])["data"][0]["double_effect"], word);
    }
}

#[test]
fn wait_waits_until_it_is_over() {
    let bench = Bench::new();
    let running = bench.start_held("a");
    let id = bench.newest();
    let said = bench.once(&["wait", &id, "--timeout", "20ms"]).exits(4);
    let told = "IN_PROGRESS attempt 1 of this operation is still running for another caller";
    assert!(said.err().contains(told) && said.err().contains(" wait op_"), "{}", said.err());
    let mut waiting = bench.start(&["wait", &id]);
    assert!(!waiting.is_over());
    bench.release();
    running.end().exits(0);
    assert!(waiting.end().exits(0).out().starts_with("sh done"));
    assert_eq!(bench.json(&["wait", &id])["data"]["state"], "done");
}

#[test]
fn wait_ends_as_the_operation_did() {
    let bench = busy();
    let wait = |key: &str, exit: i32| bench.once(&["wait", key, "--json"]).exits(exit).json();
    assert_eq!(wait("done", 0)["ok"], true);
    let failed = wait("failed", 3);
    assert_eq!((&failed["ok"], &failed["error"]["code"]), (&json!(false), &json!("FAILED")));
    assert_eq!(wait("doubt", 79)["error"]["code"], "IN_DOUBT");
    bench.once(&["cancel", "failed"]).exits(0);
    assert_eq!(wait("failed", 4)["error"]["code"], "CANCELLED");
    bench.once(&["run", "--key", "short", "--ttl", "1ms", "--", "true"]).exits(0);
    eventually("it has expired", || bench.state("short") == "expired");
    assert_eq!(wait("short", 4)["error"]["code"], "KEY_EXPIRED");
    bench.once(&["settle", "doubt", "--as", "failed"]).exits(0);
    bench.once(&["wait", "doubt"]).exits(1);
    let said = bench.once(&["wait", "done", "--output"]).exits(0);
    assert_eq!((said.out.as_slice(), said.err.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(bench.json(&["wait", "done", "--output"])["data"]["output"]["stdout"], "out\n");
}

#[test]
fn report_tells_what_a_scope_really_did() {
    let bench = busy();
    bench.once(&["run", "--key", "by-hand", "--", "sh", "-c", "kill -9 $$"]).exits(79);
    bench.once(&["settle", "by-hand", "--as", "failed", "--note", "not on the statement"]).exits(0);
    let report = bench.json(&["report"])["data"].clone();
    assert_eq!((&report["scope"], &report["operations"]), (&json!("default"), &json!(4)));
    for (state, key) in [("done", "done"), ("failed", "by-hand"), ("in_doubt", "doubt")] {
        assert_eq!(report["by_state"][state][0]["key"], key);
    }
    let flow = bench.json(&["report", "--scope", "flow"])["data"].clone();
    assert_eq!((&flow["operations"], &flow["replays"]), (&json!(1), &json!(1)));
    let text = bench.once(&["report"]).exits(0).out();
    let titles: Vec<&str> =
        text.lines().filter(|line| !["op_", "KEY", " intended"].iter().any(|w| line.contains(w))).collect();
    assert_snapshot!(titles.join("\n"), @r"
    scope default: 4 operations: 1 in doubt, 2 failed, 1 done; 0 replays

    in doubt: check each, then settle it (1)

    failed: no effect (2)

    done (1)
    ");
    let failed = text.lines().find(|line| line.starts_with("by-hand")).unwrap();
    assert!(failed.contains("a person (once settle") && failed.contains("not on the statement"), "{failed}");
    let failed = text.lines().find(|line| line.starts_with("failed ") && line.contains("op_")).unwrap();
    assert!(failed.contains("the attempt") && failed.contains("exit code 3"), "{failed}");
}

#[test]
fn a_report_counts_all_and_lists_some() {
    let bench = Bench::new();
    bench.with_long_ledger();
    let report = bench.json(&["report", "--limit", "3"]);
    assert_eq!(
        (&report["data"]["operations"], &report["data"]["totals"]),
        (&json!(2_000), &json!({"done": 2_000}))
    );
    assert_eq!(report["data"]["by_state"]["done"].as_array().unwrap().len(), 3);
    assert!(report["warnings"][0].as_str().unwrap().contains("only the newest 3"), "{report}");
    let text = bench.once(&["report", "--limit", "3"]).exits(0).out();
    assert!(text.starts_with("scope default: 2000 operations: 2000 done; 0 replays"), "{text}");
    assert!(text.ends_with("(the newest 3 of 2000; --limit lists more)"), "{text}");
    assert_eq!(bench.json(&["report", "--limit", "0"])["data"]["by_state"]["done"], json!([]));
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
    let explain =
        || bench.json(&[&["key"], &identity[..], &["--", "sh", "-c", COUNTED]].concat())["data"].clone();
    assert!(explain()["key"].as_str().unwrap().starts_with("k1_"), "as no ledger has keyed it yet");
    assert!(bench.listing().is_empty(), "to explain a key no ledger is needed");
    let ran =
        bench.json(&[&["run"], &identity[..], &["--", "sh", "-c", COUNTED]].concat())["operation"].clone();
    let explained = explain();
    assert_eq!((&explained["key"], &explained["operation"]), (&ran["key"], &ran["id"]));
    assert_eq!((&explained["origin"], &explained["name"]), (&json!("derived"), &json!("sh")));
    assert_eq!(explained["inputs"], json!(["/argv/0", "/argv/1", "/argv/2", "/input/id", "/input/note"]));
    let said = bench.once(&[&["key"], &identity[..], &["--", "sh", "-c", COUNTED]].concat()).exits(0);
    assert_snapshot!(said.out(), @r"
    k2_…
      derived from the name and id
      name         sh
      scope        s (not part of the key, but of the operation)
      inputs       /argv/0 /argv/1 /argv/2 /input/id /input/note
      fingerprint  f2_…
      operation    op_…
    ");
    let given = bench.once(&["key", "--key", "mine", "--name", "pay"]).exits(0);
    assert_snapshot!(given.out(), @r"
    mine
      given by the caller
      name         pay
      scope        default (not part of the key, but of the operation)
      inputs       /argv
      fingerprint  f2_…
      operation    op_…
    ");
}

#[test]
fn the_derived_key_is_the_published_one() {
    let bench = Bench::new();
    let key = bench.json(&["key", "--ignore", "folder", "--", "echo", "hi"])["data"]["key"].clone();
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
    assert_snapshot!(names.join(" "), @"policy ledger identity file file sqlite schema journal sync integrity clock locks in");
}

#[test]
fn doctor_looks_where_there_is_nothing_and_leaves_nothing() {
    let bench = Bench::new();
    let said = bench.once(&["doctor"]).exits(0).out();
    let here = std::fs::canonicalize(bench.path("")).unwrap();
    assert_snapshot!(said.replace(&format!("{}/", here.display()), ""), @r"
    ok   policy       the built-in default
    look ledger       there is no ledger at once.db yet; `once run` makes one
    ");
    assert!(bench.listing().is_empty());
}

#[test]
fn doctor_wants_a_look_at_doubts_and_open_files() {
    let bench = Bench::on_disk();
    bench.with_doubt();
    std::fs::set_permissions(bench.path("once.db"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let said = bench.once(&["doctor"]).exits(0).out();
    let looks: Vec<&str> = said.lines().filter(|line| !line.starts_with("ok")).collect();
    assert_snapshot!(looks.join("\n"), @r"
    look file mode    0644 (0600: other users cannot read the results)
    look in doubt     1 operations; `once --ledger sqlite:…/once.db ls --state in_doubt`
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
    for url in ["mysql://db", "once.db", "sqlite:", "redis://db?what=ever", "postgres://db?what=ever"] {
        let said = bench.once(&["doctor", "--ledger", url]).exits(2);
        assert!(said.out().contains("BAD  ledger"), "{url}: {}", said.out());
        let answer = bench.once(&["doctor", "--json", "--ledger", url]).exits(2).json();
        assert_eq!(answer["ok"], false, "{url}");
    }
}

#[test]
fn config_shows_what_holds_and_what_decided_it() {
    let bench = Bench::new();
    let policy =
        "[defaults]\nretention = \"1h\"\n[operation.\"pay*\"]\nclass = \"idempotent\"\nprobe = \"exit 1\"\n";
    bench.policy(policy);
    let shown = bench.json(&["config", "show", "pay"])["data"].clone();
    assert!(shown["policy_file"].as_str().unwrap().ends_with("onceward.toml"));
    assert!(shown["ledger"].as_str().unwrap().starts_with("sqlite:"), "{shown}");
    let decided = |name: &str| (shown["settings"][name].clone(), shown["from"][name].clone());
    assert_eq!(decided("class"), (json!("idempotent"), json!("[operation.\"pay*\"]")));
    assert_eq!(decided("retention"), (json!("1h"), json!("[defaults]")));
    assert_eq!(decided("attempts"), (json!(20), json!("built in")));
    assert_eq!(bench.json(&["config", "show"])["data"]["settings"]["class"], "once");
    let said = bench.once(&["config", "show", "pay"]).exits(0).out();
    let line = |name: &str| words(said.lines().find(|line| line.starts_with(name)).unwrap());
    assert_eq!(line("class"), "class = \"idempotent\" # [operation.\"pay*\"]");
    assert_eq!(line("probe ="), "probe = \"exit 1\" # [operation.\"pay*\"]");
    assert_eq!(line("retention"), "retention = \"1h\" # [defaults]");
    assert_eq!(line("wait"), "wait = \"30s\" # built in");
    // The output is itself a policy with the same meaning.
    let other = Bench::new();
    other.policy(&format!("[defaults]\n{said}"));
    assert_eq!(other.json(&["config", "show", "pay"])["data"]["settings"], shown["settings"]);
}

#[test]
fn config_check_finds_a_sound_policy_sound() {
    let bench = Bench::new();
    assert_snapshot!(bench.once(&["config", "check"]).exits(0).out(), @"there is no policy file; the built-in policy is used");
    bench.once(&["config", "init"]).exits(0);
    assert!(bench.once(&["config", "check"]).exits(0).out().ends_with("onceward.toml: no problems"));
    bench.write("other.toml", "[defaults]\nclass = \"probed\"\n");
    bench.once(&["config", "check", "other.toml"]).exits(2);
}

#[test]
fn config_init_writes_the_default_that_holds() {
    let bench = Bench::new();
    let before = bench.json(&["config", "show"])["data"]["settings"].clone();
    assert_snapshot!(bench.once(&["config", "init"]).exits(0).out(), @"onceward.toml was written");
    assert!(bench.read("onceward.toml").contains("[defaults]"));
    bench.once(&["config", "allow"]).exits(0);
    assert_eq!(bench.json(&["config", "show"])["data"]["settings"], before, "the default changes nothing");
    bench.once(&["config", "init", "other.toml"]).exits(0);
    assert_eq!(bench.read("other.toml"), bench.read("onceward.toml"));
}

#[test]
fn the_demo_shows_duplicates_without_the_ledger_and_none_with_it() {
    let bench = Bench::new();
    let tally = bench.once(&["demo", "--json"]).exits(0).json()["data"].clone();
    assert_eq!(tally["charges_too_many_with"], 0, "{tally}");
    assert!(tally["charges_too_many_without"].as_u64() > Some(10), "{tally}");
    for scene in tally["scenes"].as_array().unwrap() {
        assert_eq!(scene["with"], scene["wanted"], "{scene}");
    }
    assert_eq!(tally["scenes"].as_array().unwrap().len(), 7);
}

#[test]
fn the_demo_of_a_model_shows_two_answers_without_the_ledger_and_one_with_it() {
    let bench = Bench::new();
    let tally = bench.once(&["demo", "--llm", "--json"]).exits(0).json()["data"].clone();
    let scenes = tally["scenes"].as_array().unwrap();
    assert_eq!(scenes.len(), 1, "{tally}");
    let counts = ["wanted", "without", "with"].map(|name| scenes[0][name].as_u64().unwrap());
    assert_eq!((counts, &scenes[0]["counted"]), ([1, 2, 1], &json!("answers")), "{tally}");
    let text = bench.once(&["demo", "--llm"]).exits(0).out();
    assert!(text.contains("duplicate answers of the model: 1 without the ledger, 0 with it."), "{text}");
    assert!(text.contains("the retry gets \"Take the first offer.\"") && !text.contains("charge"), "{text}");
}

#[test]
fn an_answer_as_json_is_one_line_for_every_command_that_looks() {
    let bench = busy();
    let id = bench.newest();
    for args in [
        &["ls"][..],
        &["show", &id],
        &["wait", &id],
        &["ls", "--since", "1h"],
        &["report"],
        &["cost"],
        &["stats"],
        &["doctor"],
        &["config", "show"],
    ] {
        let answer = bench.json(args);
        assert_eq!((&answer["ok"], &answer["effect"]), (&json!(true), &json!("noop")), "{args:?}");
        assert_eq!((&answer["happened"], &answer["ran"]), (&json!(null), &json!(null)), "{args:?}");
        assert_eq!(tidy(answer["warnings"].to_string().as_bytes()), "[]");
    }
}
