//! Commands that change a record: settle, verify, cancel, forget, gc.

use insta::assert_snapshot;
use serde_json::json;

use crate::common::{Bench, COUNTED, HELD, eventually};

const DOUBTFUL: [&str; 6] = ["run", "--key", "doubt", "--", "sh", "-c"];

/// The call that left the doubt, again.
fn again(bench: &Bench) -> crate::common::Said {
    bench.once(&[&DOUBTFUL[..], &["kill -9 $$"]].concat())
}

#[test]
fn settled_as_done_its_result_is_replayed() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    let args = ["settle", &id, "--as", "done", "--note", "seen on the statement", "--data", r#"{"id": 42}"#];
    assert_snapshot!(bench.once(&args).exits(0).out(), @"op_… is done: retries get its result");
    let said = again(&bench).exits(0);
    assert_eq!(said.out(), r#"{"id": 42}"#);
    let told = said.err();
    assert!(
        told.contains("settled") && told.contains("a person") && told.contains("seen on the statement"),
        "{told}"
    );
    let shown = bench.json(&["show", &id])["data"]["outcome"].clone();
    let said = &shown["settled_by"];
    assert_eq!((&said["by"], &said["note"]), (&json!("person"), &json!("seen on the statement")), "{shown}");
    assert!(said["name"].as_str().unwrap().starts_with("once settle, user "), "{shown}");
    assert_eq!(said["doubt"], "the command was killed by SIGKILL");
    let answer = bench.json(&[&DOUBTFUL[..], &["kill -9 $$"]].concat());
    assert_eq!(answer["data"], json!({"id": 42}));
}

#[test]
fn settled_as_failed_it_runs_again() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    assert_snapshot!(bench.once(&["settle", &id, "--as", "failed"]).exits(0).out(), @"op_… is failed: the next call runs it");
    assert_eq!(bench.state(&id), "failed");
    again(&bench).exits(79);
    assert_eq!(bench.json(&["show", &id])["data"]["attempt"], 2);
}

#[test]
fn an_operation_is_named_by_its_key_or_the_beginning_of_its_id() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    let (prefix, digits) = (&id[.."op_".len() + 6], &id["op_".len().."op_".len() + 6]);
    for word in [id.as_str(), prefix, digits, "doubt"] {
        assert_eq!(bench.json(&["show", word])["data"]["id"], json!(id), "{word}");
        bench.once(&["wait", word]).exits(79);
        bench.once(&["cancel", word]).exits(6);
        bench.once(&["verify", word, "--check", "true"]).exits(6);
        bench.once(&["settle", word, "--as", "done", "--dry-run"]).exits(0);
        assert_eq!(bench.json(&["forget", word, "--force", "--dry-run"])["effect"], "would_delete", "{word}");
    }
    bench.once(&["settle", "doubt", "--as", "failed"]).exits(0);
    assert_eq!(bench.state(&id), "failed");
    bench.once(&["forget", prefix]).exits(0);
    bench.once(&["show", "doubt"]).exits(5);
}

#[test]
fn a_key_comes_before_the_beginning_of_an_id() {
    let bench = Bench::new();
    let id = bench.with_done();
    let digits = &id["op_".len().."op_".len() + 5];
    bench.once(&["run", "--key", digits, "--", "true"]).exits(0);
    assert_eq!(bench.json(&["show", digits])["data"]["key"], digits);
    assert_eq!(bench.json(&["show", &format!("op_{digits}")])["data"]["key"], "done");
}

#[test]
fn the_same_finding_again_changes_nothing() {
    let bench = Bench::new();
    for (finding, other) in [("done", "failed"), ("failed", "done")] {
        let key = format!("as-{finding}");
        bench.once(&["run", "--key", &key, "--", "sh", "-c", "kill -9 $$"]).exits(79);
        let settle = |finding: &str, note: &str| {
            bench.once(&["settle", &key, "--as", finding, "--note", note, "--json"])
        };
        assert_eq!(settle(finding, "first").exits(0).json()["effect"], "updated");
        let before = bench.json(&["show", &key])["data"].clone();
        let again = settle(finding, "second").exits(0).json();
        assert_eq!((&again["ok"], &again["effect"]), (&json!(true), &json!("noop")));
        assert!(again["reason"].as_str().unwrap().contains("a person (once settle"), "{again}");
        assert!(again["warnings"][0].as_str().unwrap().contains("--note"), "{again}");
        let refused = settle(other, "third").exits(6).json();
        assert_eq!(refused["error"]["code"], "WRONG_STATE");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("settled by a person") && message.contains("first"), "{message}");
        assert_eq!(bench.json(&["show", &key])["data"], before, "and nothing was written");
    }
}

#[test]
fn forgetting_again_changes_nothing() {
    let bench = Bench::new();
    let id = bench.with_done();
    for (word, effect) in [("done", "deleted"), ("done", "noop"), (id.as_str(), "noop"), (&id[..9], "noop")] {
        let answer = bench.once(&["forget", word, "--force", "--json"]).exits(0).json();
        assert_eq!((&answer["ok"], &answer["effect"]), (&json!(true), &json!(effect)), "{word}");
    }
    assert_snapshot!(bench.once(&["forget", "done"]).exits(0).out(), @r#"noop: there is no operation with the id or key "done" in this ledger; nothing was forgotten"#);
}

#[test]
fn settled_by_its_probe() {
    let bench = Bench::new();
    let doubt = |key: &str, probe: &str, quarantine: &str| {
        let flags = ["run", "--key", key, "--probe", probe, "--quarantine", quarantine];
        bench.once(&[&flags[..], &["--", "sh", "-c", "kill -9 $$"]].concat()).exits(79);
        bench.newest()
    };
    let (yes, no) = (doubt("yes", "exit 0", "60s"), doubt("no", "exit 10", "0s"));
    let (unclear, soon) = (doubt("unclear", "exit 1", "0s"), doubt("soon", "exit 10", "60s"));
    let here = format!(" in {}", bench.path("").display().to_string().trim_end_matches('/'));
    let said = bench.once(&["settle", &yes, "--probe", "exit 0"]).exits(0);
    assert_snapshot!(said.err().replace(&here, " in FOLDER"), @"once: running the probe `exit 0` in FOLDER");
    bench.once(&["settle", &no, "--probe", "exit 10"]).exits(0);
    let said = bench.once(&["settle", &unclear, "--probe", "exit 1"]).exits(79);
    assert_snapshot!(said.err().replace(&here, " in FOLDER"), @r"
    once: running the probe `exit 1` in FOLDER
    once: IN_DOUBT the probe ended with exit code 1, which is neither yes (0) nor no (10)
    once: next: check first whether it happened, then record what you found:
    once:   it happened: once --ledger sqlite:…/once.db settle op_… --as done
    once:   it did not: once --ledger sqlite:…/once.db settle op_… --as failed
    ");
    let said = bench.once(&["settle", &soon, "--probe", "exit 10"]).exits(79).err();
    assert!(said.contains("settle op_… --probe"), "{said}");
    assert!(
        said.contains("the probe found no effect, but a request of attempt 1 may still be in flight"),
        "{said}"
    );
    assert!(said.contains("a \"no\" counts from TIME (in "), "{said}");
    let states = [&yes, &no, &unclear, &soon].map(|id| bench.state(id));
    assert_eq!(states, ["done", "failed", "in_doubt", "in_doubt"]);
    assert_eq!(bench.json(&["show", &yes])["data"]["outcome"]["settled_by"]["by"], "probe");
    assert_eq!(bench.json(&["settle", &yes, "--probe"])["effect"], "noop", "there is nothing left to ask");
    let asked = bench.json(&["settle", &soon, "--probe", "exit 10"]);
    assert_eq!(asked["error"]["code"], "IN_DOUBT");
    bench.once(&["settle", &soon, "--probe", "exit 10", "--force"]).exits(0);
    let by = bench.json(&["show", &soon])["data"]["outcome"]["settled_by"].clone();
    assert_eq!(by["by"], "person", "who accepts an early answer of the probe says so");
    assert!(by["note"].as_str().unwrap().contains("before the quarantine was over"), "{by}");
}

#[test]
fn the_quarantine_begins_when_the_probe_is_first_asked() {
    let bench = Bench::new();
    let args = ["run", "--key", "k", "--probe", "exit 10", "--quarantine", "60s", "--", "sh", "-c", HELD];
    let running = bench.start(&args);
    eventually("the command runs", || bench.runs() == 1);
    running.kill();
    bench.release();
    eventually("its owner is gone", || bench.json(&["show", "k"])["data"]["owner"] == "gone");
    bench.once(&["settle", "k", "--probe", "exit 10"]).exits(79);
    let detail = bench.json(&["show", "k"])["data"]["detail"].clone();
    assert!(detail["quarantine_until_ms"].is_i64(), "{detail}");
    bench.once(&["settle", "k", "--as", "failed", "--note", "looked at the bank"]).exits(0);
}

#[test]
fn verify_checks_again() {
    let bench = Bench::new();
    let id = bench.with_done();
    assert_snapshot!(bench.once(&["verify", &id, "--check", "true"]).exits(0).out(), @"op_… is confirmed");
    assert_eq!(bench.json(&["show", &id])["data"]["verified"], "confirmed");
    let pending = bench.once(&["verify", &id, "--check", "exit 2"]).exits(0);
    assert_snapshot!(pending.out(), @"op_… is pending: success is not confirmed yet (the check ended with exit code 2, which is neither yes (0) nor no (10)); check again with `once --ledger sqlite:…/once.db verify op_…`");
    assert_eq!(bench.json(&["show", &id])["data"]["verified"], "pending");
    let said = bench.once(&["verify", &id, "--check", "exit 10"]).exits(79);
    assert_snapshot!(said.err(), @r"
    once: UNVERIFIED success was reported, but the check refuted it: `exit 10` reported that it did not take effect
    once: next: check first whether it happened, then record what you found:
    once:   it happened: once --ledger sqlite:…/once.db settle op_… --as done
    once:   it did not: once --ledger sqlite:…/once.db settle op_… --as failed
    ");
    assert_eq!(bench.state(&id), "in_doubt");
    bench.once(&["run", "--key", "done", "--", "sh", "-c", COUNTED]).exits(79);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_refuted_success_can_be_checked_again() {
    let bench = Bench::new();
    let id = bench.with_done();
    let check = "exit $(cat verdict)";
    let verify = |verdict: &str| {
        bench.write("verdict", verdict);
        bench.once(&["verify", &id, "--check", check, "--json"])
    };
    verify("10").exits(79);
    verify("10").exits(79);
    let pending = verify("1").exits(79).json();
    assert_eq!(
        pending["error"]["code"], "UNVERIFIED",
        "what was refuted and is not confirmed stays in doubt"
    );
    assert_eq!(bench.state(&id), "in_doubt");
    assert_eq!(verify("0").exits(0).json()["effect"], "updated");
    let outcome = bench.json(&["show", &id])["data"]["outcome"].clone();
    assert_eq!(
        (&outcome["verified"], &outcome["settled_by"]["name"]),
        (&json!("confirmed"), &json!(format!("the check `{check}`")))
    );
    let replayed = bench.once(&["run", "--key", "done", "--", "sh", "-c", COUNTED]).exits(0);
    assert_eq!((replayed.out(), bench.runs()), ("out".to_owned(), 1), "its result is still there");
}

#[test]
fn verify_uses_the_operations_own_check() {
    let bench = Bench::new();
    let args = ["run", "--verify", "echo asked >> asked; exit 0", "--", "true"];
    bench.once(&args).exits(0);
    let id = bench.newest();
    // What the ledger stores is not run, unless the user's own policy has it too.
    let said = bench.once(&["verify", &id]).exits(2).err();
    assert!(
        said.contains("was not run") && said.contains("verify op_… --check 'echo asked >> asked; exit 0'"),
        "{said}"
    );
    assert_eq!(bench.read("asked").lines().count(), 1);
    bench.policy("[operation.true]\nverify = \"echo asked >> asked; exit 0\"\n");
    bench.once(&["verify", &id]).exits(0);
    assert_eq!(bench.read("asked").lines().count(), 2);
}

#[test]
fn cancel_stops_a_running_command() {
    let bench = Bench::new();
    let running = bench.start_held("a");
    let id = bench.newest();
    assert_snapshot!(bench.once(&["cancel", &id]).exits(0).out(), @"op_… is running; it was asked to stop. See what happened: once --ledger sqlite:…/once.db wait op_…");
    let said = running.end().exits(79);
    assert_snapshot!(said.err(), @r"
    once: this operation was asked to stop; stopping the command
    once: IN_DOUBT the command was asked to stop and was killed by SIGTERM. It may have taken effect
    once: happened: unknown, ran: yes, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_eq!(bench.state(&id), "in_doubt", "a command killed by a signal may have had its effect");
}

#[test]
fn a_command_that_ends_by_itself_when_it_is_asked_to_stop_is_in_doubt() {
    let bench = Bench::new();
    let script = "trap 'exit 4' TERM; echo ran >> runs; while [ -e runs ]; do sleep 0.02; done";
    let running = bench.start(&["run", "--key", "a", "--", "sh", "-c", script]);
    eventually("the command runs", || bench.runs() == 1);
    let id = bench.newest();
    bench.once(&["cancel", &id]).exits(0);
    running.end().exits(79);
    assert_eq!(bench.state(&id), "in_doubt", "an exit code after a stop proves nothing");
}

#[test]
fn cancel_makes_certain_that_a_failed_operation_is_not_tried_again() {
    let bench = Bench::new();
    let id = bench.with_failed();
    let first = bench.json(&["cancel", &id]);
    assert_eq!((&first["effect"], &first["data"]["state"]), (&json!("updated"), &json!("cancelled")));
    assert_eq!(bench.json(&["cancel", &id])["effect"], "noop", "it is cancelled already");
    let said =
        bench.once(&["run", "--key", "failed", "--fail-exit", "3", "--", "sh", "-c", "exit 3"]).exits(4);
    let user = format!(", user {}", bench.shell("id -un").out().trim());
    assert_snapshot!(said.err().replace(&user, ""), @r"
    once: CANCELLED this operation was cancelled by a person (once cancel); nothing was run
    once: happened: no, ran: no, retryable: no
    once: next: do not repeat it, unless a person asks for it
    ");
}

#[test]
fn cancel_of_what_is_done_changes_nothing() {
    let bench = Bench::new();
    let id = bench.with_done();
    let answer = bench.json(&["cancel", &id]);
    assert_eq!(
        (&answer["error"]["code"], &answer["operation"]["state"]),
        (&json!("WRONG_STATE"), &json!("done"))
    );
    assert_eq!((&answer["happened"], &answer["ran"]), (&json!(null), &json!(null)), "no call was made");
    assert_eq!(bench.state(&id), "done");
}

#[test]
fn forget_lets_it_run_again() {
    let bench = Bench::new();
    let id = bench.with_done();
    assert_snapshot!(bench.once(&["forget", &id, "--force"]).exits(0).out(), @"op_… is forgotten: its key can run again");
    bench.once(&["show", &id]).exits(5);
    bench.with_done();
    assert_eq!(bench.runs(), 2);
    let failed = bench.with_failed();
    bench.once(&["forget", &failed]).exits(0);
    bench.once(&["show", &failed]).exits(5);
}

#[test]
fn what_was_done_is_not_forgotten_by_mistake_when_it_has_expired() {
    let bench = Bench::new();
    bench.policy("[defaults]\nretention = \"1ms\"\n");
    let (done, failed) = (bench.with_done(), bench.with_failed());
    eventually("both are due", || [&done, &failed].iter().all(|id| bench.state(id) == "expired"));
    // Before its tombstone is written, and after.
    for _ in 0..2 {
        let refused = bench.once(&["forget", &done]).exits(2).err();
        assert!(refused.contains("the operation has expired and was done: without its record"), "{refused}");
        bench.once(&["forget", &done, "--dry-run"]).exits(2);
        bench.once(&["gc"]).exits(0);
    }
    bench.once(&["forget", &failed]).exits(0);
    bench.once(&["forget", &done, "--force"]).exits(0);
}

#[test]
fn gc_expires_what_is_due_and_then_its_tombstone() {
    let bench = Bench::new();
    bench.policy("[defaults]\nretention = \"1ms\"\ntombstones = \"1ms\"\n");
    let id = bench.with_done();
    eventually("it is due", || bench.state(&id) == "expired");
    let first = bench.json(&["gc"]);
    assert_eq!(
        (&first["effect"], &first["data"]),
        (&json!("deleted"), &json!({"expired": 1, "deleted": 0, "doubted": 0}))
    );
    eventually("its tombstone is due", || bench.json(&["gc"])["data"]["deleted"] == 1);
    bench.once(&["show", &id]).exits(5);
    assert_snapshot!(bench.once(&["gc"]).exits(0).out(), @"0 results expired, 0 tombstones deleted, 0 attempts recorded as in doubt");
}

/// A daemon that the command left behind must not keep a person from saying what became of the attempt.
#[test]
fn a_person_settles_a_doubt_while_a_process_that_it_left_behind_runs() {
    let bench = Bench::new();
    let script = "setsid sleep 60 >/dev/null 2>&1 </dev/null & echo $! > pid; exit 5";
    bench.once(&["run", "--key", "daemon", "--", "sh", "-c", script]).exits(79);
    let refused = bench.once(&["run", "--key", "daemon", "--wait", "0s", "--", "sh", "-c", script]).exits(4);
    assert!(refused.err().contains("IN_PROGRESS"), "{}", refused.err());
    bench.once(&["settle", "daemon", "--as", "done"]).exits(0);
    assert_eq!(bench.state(&bench.newest()), "done");
    let pid: i32 = std::fs::read_to_string(bench.path("pid")).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}

#[test]
fn what_a_restore_puts_in_doubt_is_seen_and_can_be_settled_at_once() {
    let bench = Bench::new();
    let pay = |key: &str| format!("once run --key {key} --fail-exit 3 -- sh -c 'echo ran >> runs; exit 3'");
    bench.shell(&pay("failed")).exits(3);
    bench.shell("once run --key held --hold approve -- sh -c 'echo ran >> runs'").exits(0);
    bench.once(&["restored", "--at", "1h"]).exits(0);
    let listed = bench.json(&["ls", "--state", "in_doubt"]);
    assert_eq!(listed["data"].as_array().unwrap().len(), 2, "{listed}");
    assert!(bench.once(&["show", "failed"]).exits(0).out().contains("in_doubt"));
    assert_eq!(bench.once(&["wait", "failed"]).exit, 79);
    assert!(bench.once(&["held"]).exits(0).out().contains("nothing"), "it may have been released since");
    bench.shell(&pay("failed")).exits(79);
    assert_eq!(bench.runs(), 1);
    // The caller's word counts on the first call, also about an operation that the ledger does not know. It does not
    // release what was held.
    let again = |key: &str| bench.shell(&format!("once run --key {key} --again -- sh -c 'echo ran >> runs'"));
    again("lost").exits(0);
    assert!(again("held").exits(4).err().contains("held until a person releases it"));
    assert_eq!(bench.runs(), 2);
    bench.once(&["release", "held"]).exits(0);
    assert_eq!(bench.runs(), 3);
}
