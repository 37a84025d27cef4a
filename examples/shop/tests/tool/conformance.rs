//! The checks of the CLI Agent Spec's conformance kit, rewritten from its list, for the strict envelope.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::fixture::{Fixture, Ran, ran, run};

/// What the kit calls probes: a command of each kind.
const PROBES: [(&str, Kind); 6] = [
    ("get-order 1", Kind::Read),
    ("deploy --version 1.2.3", Kind::Read),
    ("manifest", Kind::Read),
    ("get-order nine", Kind::Invalid),
    ("create-order --customer ada", Kind::Invalid),
    ("delete-user --id 1", Kind::Destructive),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Invalid,
    Destructive,
}

fn shop() -> Fixture {
    let shop = Fixture::new();
    assert_eq!(shop.run("create-order --customer ada --amount 100").exit, 0);
    shop
}

fn strict(shop: &Fixture) -> Command {
    shop.with("SHOP_ENVELOPE", "strict")
}

fn has_ansi(text: &str) -> bool {
    text.contains("\u{1b}[")
}

/// Exactly one envelope of exactly five keys, which agrees with the exit code.
fn envelope(ran: &Ran) -> Value {
    let envelope = ran.json();
    let mut keys: Vec<&String> = envelope.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["data", "error", "meta", "ok", "warnings"]);
    let meta = &envelope["meta"];
    assert_eq!(meta["exit_code"].as_i64(), Some(ran.exit.into()));
    assert!(meta["duration_ms"].is_u64() && meta["request_id"].is_string(), "{meta}");
    assert_eq!(envelope["ok"].as_bool(), Some(ran.exit == 0));
    assert!(matches!(envelope["data"], Value::Object(_) | Value::Array(_) | Value::Null), "{envelope}");
    assert!(envelope["warnings"].as_array().unwrap().iter().all(|warning| warning["code"].is_string()));
    assert_eq!(envelope["error"].is_null(), ran.exit == 0);
    if let Some(error) = envelope["error"].as_object() {
        let code = error["code"].as_str().unwrap();
        assert!(code.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'), "{code}");
        assert!(error["message"].is_string() && error["retryable"].is_boolean());
        assert!(error["retryable"] == false || error["happened"] == "no");
        assert_eq!(error.contains_key("retry_strategy"), error["retryable"] == true);
    }
    envelope
}

#[test]
fn no_hang_stdin_closed_and_json_envelope_and_exit_codes_and_no_ansi() {
    let shop = shop();
    for (line, _) in PROBES {
        let ran = run(strict(&shop), line);
        envelope(&ran);
        let allowed = (0..=13).chain(79..=125).chain([130, 143]);
        assert!(allowed.into_iter().any(|code| code == ran.exit), "{line}: {}", ran.exit);
        assert!(!has_ansi(&ran.stdout), "{line}");
    }
}

#[test]
fn no_hang_stdin_open() {
    let shop = shop();
    for (line, _) in PROBES {
        let mut command = strict(&shop);
        command.args(line.split(' ')).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let held = child.stdin.take();
        let ends = format!("{line} ends without an input");
        onceward_testkit::eventually(&ends, || child.try_wait().unwrap().is_some());
        drop(held);
    }
}

#[test]
fn no_color_honored() {
    let shop = shop();
    for (line, _) in PROBES {
        let mut command = strict(&shop);
        command.env("NO_COLOR", "1");
        let ran = run(command, line);
        assert!(!has_ansi(&ran.stdout) && !has_ansi(&ran.stderr), "{line}");
    }
}

#[test]
fn help_off_stdout() {
    let shop = shop();
    for line in ["--help", "create-order --help", "settle -h"] {
        let ran = run(strict(&shop), line);
        assert_eq!((ran.exit, ran.stdout.as_str()), (0, ""), "{line}");
        assert!(ran.stderr.contains("Usage: shop"), "{line}");
    }
    assert_eq!(envelope(&run(strict(&shop), "--version"))["data"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn invalid_input_exit_2() {
    let shop = shop();
    let before = shop.look();
    for (line, _) in PROBES.into_iter().filter(|(_, kind)| *kind == Kind::Invalid) {
        let ran = run(strict(&shop), line);
        assert_eq!(ran.exit, 2, "{line}");
        assert_eq!(envelope(&ran)["error"]["phase"], "validation");
    }
    assert_eq!(run(strict(&shop), "no-such-command").exit, 2);
    assert_eq!(run(strict(&shop), "").exit, 2);
    assert_eq!(shop.look(), before);
}

#[test]
fn dry_run_preview_and_destructive_refuses_unconfirmed() {
    let shop = shop();
    let before = shop.look();
    for (line, _) in PROBES.into_iter().filter(|(_, kind)| *kind == Kind::Destructive) {
        let preview = envelope(&run(strict(&shop), &format!("{line} --dry-run")));
        assert_eq!((&preview["ok"], &preview["data"]["effect"]), (&true.into(), &"would_delete".into()));
        assert_eq!(preview["data"]["would_affect"]["count"], 2);
        assert_eq!(preview["meta"]["dry_run"], true);
        let refused = run(strict(&shop), line);
        assert_eq!(refused.exit, 2);
        let refused = envelope(&refused);
        assert_eq!(refused["data"]["effect"], "would_delete", "the refusal shows what it would have done");
        assert_eq!(refused["error"]["fix_command"], "shop delete-user --confirm --id 1");
    }
    assert_eq!(shop.look(), before);
}

#[test]
fn a_duplicate_returns_the_first_data_with_effect_noop() {
    let shop = shop();
    let line = "create-order --customer bob --amount 7 --idempotency-key k";
    let (first, second) = (envelope(&run(strict(&shop), line)), envelope(&run(strict(&shop), line)));
    assert_eq!((&first["data"]["effect"], &second["data"]["effect"]), (&"created".into(), &"noop".into()));
    assert_eq!((&first["data"]["id"], &second["data"]["id"]), (&2.into(), &2.into()));
    assert_eq!(first["meta"]["idempotency_hit"], false);
    assert_eq!(
        (&second["meta"]["idempotency_hit"], &second["meta"]["original_effect"]),
        (&true.into(), &"created".into())
    );
}

#[test]
fn manifest_valid() {
    let shop = shop();
    let manifest = envelope(&run(strict(&shop), "manifest"))["data"].clone();
    let root = ["commands", "etag", "exit_codes", "flags", "framework_version", "schema_version"];
    assert_eq!(keys(&manifest), root);
    for (name, entry) in manifest["commands"].as_object().unwrap() {
        let required = ["danger_level", "description", "exit_codes", "flags", "required_scopes"];
        let optional =
            ["builtin", "examples", "idempotent", "positionals", "protocol", "stdout", "streaming_default"];
        for key in required {
            assert!(entry.get(key).is_some(), "{name} has no {key}");
        }
        let strangers: Vec<_> = keys(entry)
            .into_iter()
            .filter(|key| !required.contains(&key.as_str()) && !optional.contains(&key.as_str()))
            .collect();
        assert!(strangers.is_empty(), "{name}: {strangers:?}");
        assert!(matches!(entry["danger_level"].as_str(), Some("safe" | "mutating" | "destructive")));
        assert!(!entry["description"].as_str().unwrap().is_empty());
        for (flag, entry) in entry["flags"].as_object().unwrap() {
            is_a_flag(name, flag, entry);
            assert!(manifest["flags"].get(flag).is_none(), "{name} repeats --{flag}");
        }
    }
    for (code, exit) in manifest["exit_codes"].as_object().unwrap() {
        assert_eq!(keys(exit), ["description", "error_codes", "name", "retryable", "side_effects"], "{code}");
        assert!(exit["description"].as_str().unwrap().len() <= 120, "{code}");
        assert!(exit["retryable"] == false || exit["side_effects"] == "none", "{code}");
    }
    assert_eq!(manifest["etag"], envelope(&run(strict(&shop), "manifest"))["data"]["etag"]);
}

fn keys(value: &Value) -> Vec<String> {
    let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    keys
}

fn is_a_flag(command: &str, flag: &str, entry: &Value) {
    let types = ["string", "integer", "number", "boolean", "array", "enum"];
    assert!(types.contains(&entry["type"].as_str().unwrap()), "{command} --{flag}");
    assert!(entry["required"].is_boolean() && !entry["description"].as_str().unwrap().is_empty());
    assert_eq!(entry["type"] == "enum", entry.get("enum_values").is_some(), "{command} --{flag}");
    assert!(entry.get("default") != Some(&Value::Null));
}

#[test]
fn every_exit_code_of_a_test_is_declared() {
    let shop = shop();
    let manifest = shop.run("manifest").json()["data"].clone();
    for (line, trouble) in [("get-order 9", "slow"), ("send-email --to a@b --subject c", "lost-reply")] {
        let ran = shop.run_in(trouble, line);
        let declared = &manifest["exit_codes"][ran.exit.to_string()]["error_codes"];
        assert!(declared.as_array().unwrap().contains(&ran.code().into()), "{} {}", ran.exit, ran.code());
    }
}

#[test]
fn argument_order() {
    let shop = shop();
    let other = "create-order --customer eve --amount 5 --database other.db";
    assert_eq!(shop.run(other).exit, 0);
    for (value, customer) in [("shop.db", "ada"), ("other.db", "eve")] {
        for line in [
            format!("--database {value} get-order 1 --with-request"),
            format!("get-order --database {value} 1 --with-request"),
            format!("get-order 1 --with-request --database {value}"),
            format!("get-order --with-request 1 --database={value}"),
        ] {
            let answer = envelope(&run(strict(&shop), &line));
            assert_eq!(answer["data"]["customer"], customer, "{line}");
            assert!(answer["data"]["request"].is_string(), "{line}: the local option counts wherever it is");
        }
    }
    let contradiction = "--database shop.db get-order 1 --database other.db";
    assert_eq!(run(strict(&shop), contradiction).exit, 2);
    assert_eq!(run(strict(&shop), "--database shop.db get-order 1 --database shop.db").exit, 0);
}

#[test]
fn stream_contract() {
    let shop = shop();
    let stream = run(strict(&shop), "import-orders --file orders.jsonl");
    assert_eq!(stream.exit, 0);
    let lines = stream.lines();
    let (last, items) = lines.split_last().unwrap();
    assert_eq!(last["_summary"], true);
    for (index, item) in items.iter().enumerate() {
        assert_eq!(item["_seq"].as_u64(), Some(index as u64 + 1));
        assert!(item["effect"].is_string() && item.get("ok").is_none() && item.get("error").is_none());
    }
    let mut third = strict(&shop);
    third.env("SHOP_TROUBLE", "third").env("SHOP_DATABASE", "third.db");
    let orders = "{\"customer\":\"a\",\"amount\":1}\n".repeat(3);
    std::fs::write(shop.file("orders.jsonl"), orders).unwrap();
    let failed = run(third, "import-orders --file orders.jsonl");
    assert_eq!(failed.exit, 3);
    let last = failed.stdout.lines().last().unwrap().to_owned();
    let last = envelope(&Ran { exit: 3, stdout: last, stderr: String::new() });
    assert_eq!(last["meta"]["items_emitted"], 3);
}

#[test]
fn stream_sigint() {
    let shop = shop();
    std::fs::write(shop.file("orders.jsonl"), "{\"customer\":\"a\",\"amount\":1}\n".repeat(100)).unwrap();
    let mut command = strict(&shop);
    command.env("SHOP_TROUBLE", "slow").args(["import-orders", "--file", "orders.jsonl"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut last = String::new();
    for (index, line) in BufReader::new(child.stdout.take().unwrap()).lines().enumerate() {
        last = line.unwrap();
        if index == 1 {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
        }
    }
    let ended = ran(child.wait_with_output().unwrap());
    assert_eq!(ended.exit, 130);
    let last = envelope(&Ran { exit: 130, stdout: last, stderr: String::new() });
    assert_eq!((&last["error"]["code"], &last["data"]["partial"]), (&"CANCELLED".into(), &true.into()));
}
