//! What stop, undo and report say: the true evidence, the true sums, and only what really begins.

use serde_json::{Value, json};

use crate::common::{Bench, COUNTED, HELD, Running, eventually};

fn run(bench: &Bench, key: &str, more: &[&str], command: &str) {
    let args = [&["run", "--scope", "trip", "--key", key], more, &["--", "sh", "-c", command]].concat();
    bench.once(&args).exits(0);
}

fn settlement(bench: &Bench) -> Value {
    bench.json(&["report", "--scope", "trip"])["data"]["settlement"].clone()
}

/// Starts an undo whose compensation runs until the bench lets it end.
fn long_undo(bench: &Bench, key: &str) -> Running {
    let before = bench.runs();
    let running = bench.start(&["undo", key, "--undo", HELD]);
    eventually("the compensation runs", || bench.runs() > before);
    running
}

#[test]
fn a_compensation_that_a_person_settled_says_so() {
    let bench = Bench::new();
    run(&bench, "hotel", &[], COUNTED);
    bench.once(&["undo", "hotel", "--undo", "kill -9 $$"]).exits(79);
    let by = bench.json(&["show", "hotel"])["data"]["undone"]["by"].as_str().unwrap().to_owned();
    bench.once(&["settle", &by, "--as", "done"]).exits(0);
    let person = "the compensation was settled as done by a person (once settle";
    let line = settlement(&bench)["lines"][0].clone();
    assert_eq!(line["fate"], "undone");
    assert!(line["evidence"].as_str().unwrap().contains(person), "{line}");
    let shown = bench.once(&["show", "hotel"]).exits(0).out();
    assert!(shown.contains(person) && !shown.contains("reported success"), "{shown}");
    let again = bench.once(&["undo", "hotel"]).exits(0).out();
    assert!(again.contains(person) && !again.contains("reported success"), "{again}");
    let line = bench.json(&["undo", "hotel"])["data"]["steps"][0].clone();
    assert_eq!(line["settled_by"]["by"], "person", "{line}");
    let refused = bench.once(&["run", "--scope", "trip", "--key", "hotel", "--", "sh", "-c", COUNTED]);
    assert!(refused.exits(4).err().contains(person));
    let undone = bench.json(&["show", "hotel"])["data"]["undone"].clone();
    assert_eq!(undone["evidence"], "compensation");
    assert_eq!(undone["settled_by"]["by"], "person", "{undone}");
}

#[test]
fn a_compensation_that_answered_says_so() {
    let bench = Bench::new();
    run(&bench, "hotel", &[], COUNTED);
    bench.once(&["undo", "hotel", "--undo", "true"]).exits(0);
    let line = settlement(&bench)["lines"][0].clone();
    assert!(line["evidence"].as_str().unwrap().ends_with("the compensation reported success"), "{line}");
}

/// The command that a refusal in quarantine names exists, and works as it is printed.
#[test]
fn a_no_in_quarantine_names_a_command_that_counts_it() {
    let bench = Bench::new();
    let doubt = ["run", "--key", "tour", "--undo", "true", "--", "sh", "-c", "kill -9 $$"];
    bench.once(&doubt).exits(79);
    let said = bench.once(&["undo", "tour", "--probe", "exit 10"]).exits(79);
    let said = String::from_utf8(said.out).unwrap();
    let command = said.split('`').find(|part| part.contains(" settle ")).unwrap().to_owned();
    assert!(command.ends_with("--probe 'exit 10' --force"), "{said}");
    bench.shell(&command).exits(0);
    bench.once(&["undo", "tour"]).exits(0);
}

#[test]
fn an_undo_of_a_scope_names_what_is_held_and_how_to_cancel_it() {
    let bench = Bench::new();
    run(&bench, "mail", &["--hold", "approve"], COUNTED);
    let said = bench.once(&["undo", "--scope", "trip"]).exits(0);
    let said = String::from_utf8(said.out).unwrap();
    assert!(said.starts_with("scope trip: 1 held"), "{said}");
    let cancel = said.split('`').find(|part| part.starts_with("once ")).unwrap().to_owned();
    bench.shell(&cancel).exits(0);
    assert_eq!(settlement(&bench)["sums"]["cancelled"], 1);
    let said = bench.once(&["undo", "--scope", "trip"]).exits(0).out();
    assert_eq!(said, "scope trip: 1 nothing to undo");
}

#[test]
fn a_report_since_a_time_has_the_sums_of_that_time() {
    let bench = Bench::new();
    run(&bench, "a", &[], COUNTED);
    let first = bench.json(&["show", "a"])["data"]["created_at"].as_str().unwrap().to_owned();
    eventually("the clock goes on", || {
        run(&bench, "b", &["--occurrence", &(bench.runs() + 1).to_string()], COUNTED);
        bench.json(&["show", &bench.newest()])["data"]["created_at"] != json!(first)
    });
    let later = bench.json(&["show", &bench.newest()])["data"]["created_at"].as_str().unwrap().to_owned();
    let report = ["report", "--scope", "trip", "--since", &later];
    let data = bench.json(&report)["data"].clone();
    let part = &data["settlement"];
    assert_eq!((&data["operations"], &part["sums"]["intended"]), (&json!(1), &json!(1)), "{data}");
    assert_eq!((&part["part"]["since"], part["lines"].as_array().unwrap().len()), (&json!(later), 1));
    let said = bench.once(&report).exits(0).out();
    assert!(said.contains("a part of the scope: only operations that were first requested since"), "{said}");
    for form in ["--markdown", "--html"] {
        let page = bench.once(&[&report[..], &[form]].concat()).exits(0).out();
        assert!(page.contains("1 intended") && page.contains("a part of the scope"), "{page}");
    }
    assert_eq!(settlement(&bench)["part"], Value::Null);
    bench.shell("openssl genpkey -algorithm ed25519 -out key.pem");
    let refused = bench.once(&[&report[..], &["--sign", "key.pem"]].concat()).exits(2);
    assert!(refused.err().contains("accounts for the whole scope"), "{}", refused.err());
    assert!(refused.out.is_empty(), "nothing is signed");
}

#[test]
fn what_changed_nothing_does_not_stand() {
    let bench = Bench::new();
    run(&bench, "a", &["--effect", "noop"], COUNTED);
    run(&bench, "b", &[], COUNTED);
    let settled = settlement(&bench);
    let sums = &settled["sums"];
    assert_eq!((&sums["intended"], &sums["done"]), (&json!(2), &json!(2)), "{sums}");
    assert_eq!((&sums["standing"], &sums["unchanged"]), (&json!(1), &json!(1)), "{sums}");
    let line = settled["lines"][0].clone();
    assert_eq!((&line["fate"], &line["effect"]), (&json!("unchanged"), &json!("noop")));
    let said = bench.once(&["report", "--scope", "trip"]).exits(0).out();
    assert!(said.contains("2 intended = 2 done (1 standing, 0 undone, 1 unchanged) + 0 not done"), "{said}");
}

#[test]
fn only_what_begins_is_announced() {
    let bench = Bench::new();
    run(
        &bench,
        "mail",
        &["--hold", "approve", "--attempts", "1", "--fail-exit", "3"],
        "echo ran >> runs; exit 3",
    );
    let first = bench.once(&["release", "mail"]).exits(3);
    assert!(first.err().starts_with("once: running sh -c"), "{}", first.err());
    let again = bench.once(&["release", "mail"]);
    assert!(again.exit != 0 && !again.err().contains("once: running"), "{}", again.err());
    assert_eq!(bench.runs(), 1);
    run(&bench, "hotel", &[], "true");
    let undo = ["undo", "hotel", "--undo", "echo ran >> runs; kill -9 $$"];
    let first = bench.once(&undo).exits(79).err();
    assert!(first.contains("once: running `echo ran >> runs; kill -9 $$` to take back"), "{first}");
    let again = bench.once(&undo).exits(79).err();
    assert!(!again.contains("kill -9"), "{again}");
    assert_eq!(bench.runs(), 2);
}

/// Of two undos at the same time, one runs its command. The other one does not claim to have run its own.
#[test]
fn the_slower_undo_does_not_name_its_own_command() {
    let bench = Bench::new();
    run(&bench, "hotel", &[], COUNTED);
    let first = long_undo(&bench, "hotel");
    let second = bench.start(&["undo", "hotel", "--undo", "touch second"]);
    eventually("it is at work", || second.has_open("once.db"));
    bench.release();
    first.end().exits(0);
    let second = second.end().exits(0);
    let said = format!("{}{}", second.out(), second.err());
    assert!(!said.contains("touch second") && !bench.path("second").exists(), "{said}");
    assert!(said.contains("undone") || said.contains("nothing to undo"), "{said}");
}

/// A stop does not end a compensation, but it waits for it like for everything else that runs.
#[test]
fn a_stop_waits_for_a_compensation() {
    let bench = Bench::new();
    run(&bench, "hotel", &[], COUNTED);
    let undo = long_undo(&bench, "hotel");
    let stop = bench.start(&["--json", "stop", "trip", "--wait", "60s"]);
    eventually("the scope is stopped", || settlement(&bench)["stopped"] != Value::Null);
    let at_once = bench.json(&["stop", "trip", "--wait", "0s"])["data"].clone();
    assert_eq!((&at_once["still_running"], &at_once["sums"]["in_doubt"]), (&json!(1), &json!(1)));
    bench.release();
    undo.end().exits(0);
    let data = stop.end().exits(0).json()["data"].clone();
    assert_eq!((&data["still_running"], &data["sums"]["undone"]), (&json!(0), &json!(1)), "{data}");
}
