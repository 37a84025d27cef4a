//! Stopping a scope, resuming it, and its settlement.

use serde_json::json;

use crate::common::{Bench, COUNTED, HELD, eventually};

const RUN: [&str; 3] = ["run", "--scope", "nightly"];

fn run<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&RUN[..], more].concat()
}

#[test]
fn a_stopped_scope_refuses_new_calls_and_replays_old_ones() {
    let bench = Bench::new();
    bench.once(&run(&["--key", "a", "--", "sh", "-c", COUNTED])).exits(0);
    let said = bench.once(&["stop", "nightly", "--note", "wrong list"]).exits(0).out();
    assert!(said.contains("1 intended = 1 done (1 standing, 0 undone, 0 unchanged) + 0 not done"), "{said}");
    assert!(said.contains(" resume nightly") && said.contains("wrong list"), "{said}");
    let refused = bench.once(&run(&["--key", "b", "--", "sh", "-c", COUNTED])).exits(4);
    let told = refused.err();
    for words in ["STOPPED", "wrong list", "by a person (once stop, user "] {
        assert!(told.contains(words), "{words} in {told}");
    }
    let answer = bench.json(&run(&["--json", "--key", "b", "--", "sh", "-c", COUNTED]));
    assert_eq!((&answer["error"]["code"], &answer["happened"]), (&json!("STOPPED"), &json!("no")));
    let plan = bench.json(&run(&["--json", "--dry-run", "--key", "b", "--", "sh", "-c", COUNTED]));
    assert_eq!(plan["decision"], "refuse", "{plan}");
    bench.once(&run(&["--key", "a", "--", "sh", "-c", COUNTED])).exits(0);
    bench.once(&["run", "--scope", "nightly/7", "--key", "b", "--", "sh", "-c", COUNTED]).exits(0);
    assert_eq!(bench.runs(), 2);
    let resumed = bench.json(&["resume", "nightly", "--note", "list corrected"]);
    let (before, now) = (&resumed["data"]["barrier"]["word"], &resumed["data"]["word"]);
    assert_eq!(
        (&before["note"], &now["note"]),
        (&json!("wrong list"), &json!("list corrected")),
        "{resumed}"
    );
    assert_eq!((&before["by"], &now["by"]), (&json!("person"), &json!("person")), "{resumed}");
    bench.once(&run(&["--key", "b", "--", "sh", "-c", COUNTED])).exits(0);
    assert_eq!(bench.runs(), 3);
    let again = bench.once(&["resume", "nightly"]).exits(0).out();
    assert!(again.contains("was not stopped"), "{again}");
    // No operation can have these scopes.
    let long = "s".repeat(5_000);
    for scope in ["", &long] {
        for command in [&["stop", scope][..], &["resume", scope], &["resume", scope, "--dry-run"]] {
            bench.once(command).exits(2);
        }
    }
}

#[test]
fn a_running_command_is_asked_to_end_and_the_settlement_is_the_same_twice() {
    let bench = Bench::new();
    let running = bench.start(&run(&["--key", "a", "--", "sh", "-c", HELD]));
    eventually("the command runs", || bench.runs() == 1);
    let first = bench.json(&["stop", "nightly", "--wait", "60s", "--json"]);
    running.end().exits(79);
    assert_eq!((&first["effect"], &first["data"]["still_running"]), (&json!("updated"), &json!(0)));
    assert_eq!(first["data"]["sums"]["in_doubt"], 1, "{first}");
    let second = bench.json(&["stop", "nightly", "--note", "again", "--json"]);
    assert_eq!((&second["effect"], &second["data"]), (&json!("noop"), &first["data"]));
    let report = bench.json(&["report", "--scope", "nightly"]);
    assert_eq!(report["data"]["settlement"]["sums"], first["data"]["sums"]);
}

#[test]
fn a_report_can_be_a_page_or_a_section() {
    let bench = Bench::new();
    bench.once(&run(&["--key", "<b>|a", "--name", "<i>", "--", "sh", "-c", COUNTED])).exits(0);
    let page = bench.once(&["report", "--scope", "nightly", "--html"]).exits(0).out();
    assert!(page.contains("<svg") && page.contains("1 intended") && !page.contains("<i>"), "{page}");
    let section = bench.once(&["report", "--scope", "nightly", "--markdown"]).exits(0).out();
    assert!(section.contains("| standing |") && !section.contains("<i>"), "{section}");
}

#[test]
fn a_scope_that_no_operation_can_have_is_refused() {
    let bench = Bench::new();
    bench.once(&["stop", ""]).exits(2);
    bench.once(&["stop", "a\nb"]).exits(2);
}

#[test]
fn a_signed_report_is_checked_offline_and_every_change_is_noticed() {
    let bench = Bench::new();
    for key in ["a", "b"] {
        bench.once(&run(&["--key", key, "--", "sh", "-c", COUNTED])).exits(0);
    }
    bench.shell(
        "openssl genpkey -algorithm ed25519 -out key.pem && openssl pkey -in key.pem -pubout -out public.pem",
    );
    bench.shell("openssl genpkey -algorithm ed25519 | openssl pkey -pubout -out other.pem");
    let report =
        bench.once(&["report", "--scope", "nightly", "--sign", "key.pem"]).exits(0).json().to_string();
    bench.write("report.json", &report);
    let ledgerless = ["--ledger", "sqlite:gone/x.db", "verify-report"];
    let verified =
        bench.once(&[&ledgerless[..], &["report.json", "--key", "public.pem"]].concat()).exits(0).out();
    assert!(verified.contains("nightly with 2 lines"), "{verified}");
    bench.once(&["verify-report", "report.json", "--key", "other.pem"]).exits(2);
    for (from, to) in [
        ("\"standing\":2", "\"standing\":1"),
        ("the answer of attempt 1", "a person"),
        ("\"b\"", "\"c\""),
        ("\"signed_at\":\"20", "\"signed_at\":\"21"),
        // What another program may read instead of what was signed.
        ("\"fate\":\"standing\"", "\"fate\":\"undone\",\"fate\":\"standing\""),
        ("{", "{\"verdict\":\"all done\","),
    ] {
        assert!(report.contains(from), "{from} in {report}");
        bench.write("changed.json", report.replacen(from, to, 1));
        bench.once(&["verify-report", "changed.json"]).exits(2);
    }
    bench.once(&["report", "--scope", "nightly", "--sign", "public.pem"]).exits(2);
    // Keys under which one signature fits every text: the neutral point, with its sign, and encoded otherwise.
    for (key, last) in [("01", "00"), ("01", "80"), ("ee", "7f")] {
        let middle = if key == "01" { "00" } else { "ff" };
        let mut forged: serde_json::Value = serde_json::from_str(&report).unwrap();
        forged["public_key"] = format!("{key}{}{last}", middle.repeat(30)).into();
        forged["signature"] = format!("01{}", "00".repeat(63)).into();
        bench.write("forged.json", forged.to_string());
        let refused = bench.once(&["verify-report", "forged.json"]).exits(2).err();
        assert!(refused.contains("public key"), "{refused}");
    }
}
