//! `once undo`: what is taken back, what is not, and what is never run.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::common::{Bench, HELD, eventually};

/// A world of bookings: a folder with one file for each. `book NAME` prints its id as JSON, `unbook ID` removes it, and
/// `booked ID` says whether it is there. Each leaves a line in `log`.
fn bench() -> Bench {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("world")).unwrap();
    bench.script("book", r#"echo "book $1" >> log; touch "world/$1"; echo "{\"data\":{\"id\":\"$1\"}}""#);
    bench.script("unbook", r#"echo "unbook $1" >> log; rm "world/$1""#);
    bench.script("booked", r#"[ -e "world/$1" ] || exit 10"#);
    bench
}

const UNBOOK: &str = "./unbook {data.id}";

fn book(bench: &Bench, name: &str, more: &[&str]) -> String {
    let program = ["run", "--scope", "trip", "--key", name, "--name", name, "--undo", UNBOOK];
    let args = [&program[..], more, &["--", "./book", name]].concat();
    bench.once(&args).exits(0);
    bench.json(&["show", name])["data"]["id"].as_str().unwrap().to_owned()
}

fn world(bench: &Bench) -> Vec<String> {
    let names = std::fs::read_dir(bench.path("world")).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn results(answer: &Value) -> Vec<(String, String)> {
    let steps = answer["data"]["steps"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    steps.map(|step| (word(&step["name"]), word(&step["result"]))).collect()
}

#[test]
fn an_operation_is_taken_back_once_and_a_retry_is_refused() {
    let bench = bench();
    let id = book(&bench, "hotel", &[]);
    let undo = ["undo", "hotel", "--undo", UNBOOK];
    assert_snapshot!(bench.once(&[&undo[..], &["--dry-run"]].concat()).exits(0).out(), @"
    would_update: 1 would undo
      would undo      hotel  op_…  `./unbook hotel`
    ");
    assert_eq!(world(&bench), ["hotel"], "a dry run changes nothing");
    let said = bench.once(&undo).exits(0);
    assert_snapshot!(said.err(), @"once: running `./unbook hotel` to take back hotel op_…");
    assert_snapshot!(said.out(), @"
    1 undone
      undone          hotel  op_…  `./unbook hotel`  the compensation reported success
    ");
    assert!(world(&bench).is_empty());
    // Again: nothing runs.
    assert_snapshot!(bench.once(&undo).exits(0).out(), @"
    1 nothing to undo
      nothing to undo hotel  op_…  the compensation reported success
    ");
    assert_eq!(bench.read("log"), "book hotel\nunbook hotel\n");
    let retry = [
        "run", "--scope", "trip", "--key", "hotel", "--name", "hotel", "--undo", UNBOOK, "--", "./book",
        "hotel",
    ];
    let answer = bench.json(&retry);
    assert_eq!((&answer["error"]["code"], &answer["happened"]), (&json!("UNDONE"), &json!("yes")));
    assert_eq!(answer["data"], Value::Null, "the result of an effect that is gone is not an answer");
    assert_eq!(bench.once(&retry).exit, 4);
    // Another occurrence does it again, and can be taken back on its own.
    bench.once(&[&["run", "--occurrence", "2"], &retry[1..]].concat()).exits(0);
    assert_eq!(world(&bench), ["hotel"]);
    let shown = bench.json(&["show", &id])["data"].clone();
    assert_eq!((&shown["state"], &shown["undone"]["evidence"]), (&json!("done"), &json!("compensation")));
    let by = shown["undone"]["by"].as_str().unwrap();
    let by = bench.json(&["show", by])["data"].clone();
    assert_eq!((&by["undoes"], &by["key"]), (&json!(id), &json!(format!("undo:{id}"))));
    let text = bench.once(&["show", &id]).exits(0).out();
    assert!(text.contains("undone") && text.contains("undo         command: ./unbook {data.id}"), "{text}");
    let list = bench.once(&["ls"]).exits(0).out();
    assert!(list.contains("taken back"), "{list}");
}

#[test]
fn a_scope_is_taken_back_in_reverse_and_the_rest_is_named() {
    let bench = bench();
    for name in ["flight", "hotel", "car"] {
        book(&bench, name, &[]);
    }
    bench
        .once(&["run", "--scope", "trip", "--key", "mail", "--name", "mail", "--", "./book", "mail"])
        .exits(0);
    bench.once(&[
        "run",
        "--scope",
        "trip",
        "--key",
        "no",
        "--name",
        "no",
        "--fail-exit",
        "3",
        "--",
        "sh",
        "-c",
        "exit 3",
    ]);
    let doubt = ["run", "--scope", "trip", "--key", "tour", "--name", "tour", "--undo", UNBOOK];
    bench.once(&[&doubt[..], &["--", "sh", "-c", "./book tour; kill -9 $$"]].concat()).exits(79);
    book_elsewhere(&bench);
    let plan = bench.json(&["undo", "--scope", "trip", "--stored", "--dry-run"]);
    let expected = [
        ("tour", "in_doubt"),
        ("no", "nothing_to_undo"),
        ("mail", "stands"),
        ("car", "would_undo"),
        ("hotel", "would_undo"),
        ("flight", "would_undo"),
    ];
    assert_eq!(results(&plan), expected.map(|(name, result)| (name.to_owned(), result.to_owned())));
    let said = bench.once(&["undo", "--scope", "trip", "--stored"]).exits(79);
    assert_snapshot!(said.out(), @"
    scope trip: 3 undone, 1 in doubt, 1 stands, 1 nothing to undo
      in doubt        tour  op_…  it may have happened, and there is no probe to ask: settle it first
      stands          mail  op_…  nothing is registered that takes it back
      undone          car  op_…  `./unbook car`  the compensation reported success
      undone          hotel  op_…  `./unbook hotel`  the compensation reported success
      undone          flight  op_…  `./unbook flight`  the compensation reported success
    ");
    let undone: Vec<String> =
        bench.read("log").lines().filter(|line| line.starts_with("un")).map(str::to_owned).collect();
    assert_eq!(undone, ["unbook car", "unbook hotel", "unbook flight"]);
    assert_eq!(world(&bench), ["elsewhere", "mail", "tour"]);
    // A person settles the doubt; the next undo takes back only what is left.
    bench.once(&["settle", "tour", "--as", "failed"]).exits(0);
    let again = bench.once(&["undo", "--scope", "trip", "--stored"]).exits(1).out();
    assert!(again.starts_with("scope trip: 1 stands, 5 nothing to undo"), "{again}");
}

fn book_elsewhere(bench: &Bench) {
    let args = ["run", "--scope", "other", "--key", "e", "--undo", UNBOOK, "--", "./book", "elsewhere"];
    bench.once(&args).exits(0);
}

#[test]
fn only_what_was_begun_after_an_operation() {
    let bench = bench();
    let ids: Vec<String> = ["flight", "hotel", "car"].map(|name| book(&bench, name, &[])).into();
    bench.once(&["undo", "--scope", "trip", "--since", &ids[0], "--stored"]).exits(0);
    assert_eq!(world(&bench), ["flight"]);
}

/// A stored command is data until the caller's own flags, a trusted policy or --stored say otherwise.
#[test]
fn a_stored_command_runs_only_on_the_callers_authority() {
    let bench = bench();
    book(&bench, "hotel", &[]);
    let refused = bench.once(&["undo", "hotel"]).exits(1).out();
    assert!(
        refused.contains("what a ledger stores is not trusted") && refused.contains("--undo"),
        "{refused}"
    );
    bench.once(&["undo", "--scope", "trip"]).exits(1);
    bench.write("onceward.toml", "[operation.hotel]\nundo = \"./unbook {data.id}\"\n");
    bench.once(&["undo", "hotel"]).exits(1);
    assert_eq!(world(&bench), ["hotel"], "a policy that nobody allowed does not count");
    bench.policy("[operation.hotel]\nundo = \"./unbook other {data.id}\"\n");
    let refused = bench.once(&["undo", "hotel"]).exits(1).out();
    assert!(refused.contains("is not the one of your policy"), "{refused}");
    bench.policy("[operation.hotel]\nundo = \"./unbook {data.id}\"\n");
    bench.once(&["undo", "hotel"]).exits(0);
    assert!(world(&bench).is_empty());
}

#[test]
fn what_a_command_printed_does_not_become_code() {
    for (printed, reason) in [
        (r#"{"data":{"id":"x; touch PWNED"}}"#, "has characters other than"),
        (r#"{"data":{"id":"$(touch PWNED)"}}"#, "has characters other than"),
        (r#"{"data":{"id":"`touch PWNED`"}}"#, "has characters other than"),
        (r#"{"data":{"id":"a b"}}"#, "has characters other than"),
        (r#"{"data":{"id":"--all"}}"#, "begins with -"),
        (r#"{"data":{"id":""}}"#, "an empty text"),
        (r#"{"data":{"id":["a"]}}"#, "no single value"),
        (r#"{"data":{}}"#, "no field `data.id`"),
        ("plain text", "no field `data.id`"),
    ] {
        let bench = Bench::new();
        bench.write("printed", printed);
        let undo = "sh -c 'touch RAN {data.id}'";
        bench.once(&["run", "--key", "a", "--undo", undo, "--", "cat", "printed"]).exits(0);
        let said = bench.once(&["undo", "a", "--stored"]).exits(1).out();
        assert!(said.contains(reason), "{printed}: {said}");
        assert!(!bench.path("PWNED").exists() && !bench.path("RAN").exists(), "{printed}");
        let shown = bench.json(&["show", "a"])["data"].clone();
        assert_eq!(shown["undone"], Value::Null, "{printed}: it stands and its result is replayed");
    }
}

#[test]
fn the_result_is_also_in_a_variable() {
    let bench = Bench::new();
    bench.write("printed", r#"{"name": "a b; touch PWNED"}"#);
    let undo = "printf '%s %s' \"$ONCE_RESULT\" \"$ONCE_UNDOES_KEY\" > told";
    bench.once(&["run", "--key", "k", "--undo", undo, "--", "cat", "printed"]).exits(0);
    bench.once(&["undo", "k", "--stored"]).exits(0);
    assert_eq!(bench.read("told"), r#"{"name": "a b; touch PWNED"} k"#);
    assert!(!bench.path("PWNED").exists());
}

/// The variable has the characters of the result, or it is not there. It never has the result of something else.
#[test]
fn the_variable_is_the_result_or_is_not_there() {
    let bench = Bench::new();
    bench.script("tell", r#"printf '%s' "${ONCE_RESULT-none}" > told"#);
    let tell = |key: &str, redact: &str| {
        bench.write("policy.toml", format!("[operation.cat]\nredact = [{redact}]\n"));
        let config = ["--config", "policy.toml"];
        let run = ["run", "--key", key, "--undo", "./tell", "--", "cat", "printed"];
        bench.once(&[&config[..], &run].concat()).exits(0);
        // A compensation whose text names the variable does not run without it.
        let named = "printf '%s' \"$ONCE_RESULT\" > told";
        let refused = bench.once(&[&config[..], &["undo", key, "--dry-run", "--undo", named]].concat());
        let mut undo = bench.command(&[&config[..], &["undo", key, "--stored"]].concat());
        let undone = undo.env("ONCE_RESULT", "of an outer compensation").output().unwrap();
        assert!(undone.status.success(), "{key}: {undone:?}");
        (bench.read("told"), refused.out().contains("it reads ONCE_RESULT"))
    };
    bench.write("printed", "{\"amount\": 1.10, \"id\": 12345678901234567890123}\n");
    let same = r#"{"amount": 1.10, "id": 12345678901234567890123}"#.to_owned();
    assert_eq!(tell("exact", ""), (same, false));
    bench.write("printed", "order 17 of alice\n");
    assert_eq!(tell("text", ""), (r#""order 17 of alice\n""#.to_owned(), false));
    bench.write("printed", format!("{{\"pad\":\"{}\"}}", "x".repeat(70_000)));
    assert_eq!(tell("long", ""), ("none".to_owned(), true));
    bench.write("printed", r#"{"id":"x","card":"4111"}"#);
    assert_eq!(tell("redacted", "'json:/card'"), ("none".to_owned(), true));
    bench.write("printed", b"{\"id\":\"\xff\"}");
    assert_eq!(tell("bytes", ""), ("none".to_owned(), true));
}

#[test]
fn a_value_has_the_digits_of_the_result_and_a_misspelt_field_is_refused() {
    let bench = Bench::new();
    bench.script("take", r#"echo "$1" >> taken"#);
    for (key, field, printed) in [
        ("version", "{version}", r#"{"version":1.10}"#),
        ("exponent", "{id}", r#"{"id":1e3}"#),
        ("long", "{id}", r#"{"id":0.12345678901234567890123}"#),
        ("first", "{0.id}", r#"[{"id":"7"}]"#),
        ("json", r#"'{"id":"{id}"}'"#, r#"{"id":"8"}"#),
    ] {
        let undo = format!("./take {field}");
        bench.once(&["run", "--key", key, "--undo", &undo, "--", "echo", printed]).exits(0);
        bench.once(&["undo", key, "--stored"]).exits(0);
    }
    let taken = bench.read("taken");
    let taken: Vec<&str> = taken.lines().collect();
    assert_eq!(taken, ["1.10", "1e3", "0.12345678901234567890123", "7", r#"{"id":"8"}"#]);
    bench.once(&["run", "--key", "fresh", "--", "echo", "{}"]).exits(0);
    for wrong in ["{@id}", "{data/id}", "{items[0]}", "{ data.id }", "{data.id"] {
        let undo = format!("./take {wrong}");
        let run = bench.once(&["run", "--key", wrong, "--undo", &undo, "--", "touch", "RAN"]).exits(2);
        assert!(run.err().contains("is not a field"), "{}", run.err());
        bench.write("policy.toml", format!("[operation.touch]\nundo = \"{undo}\"\n"));
        bench.once(&["config", "check", "policy.toml"]).exits(2);
        bench.once(&["undo", "fresh", "--undo", &undo]).exits(1);
    }
    assert!(!bench.path("RAN").exists());
}

#[test]
fn a_failed_compensation_is_not_a_success_and_stops_nothing_else() {
    let bench = bench();
    book(&bench, "flight", &[]);
    book(&bench, "hotel", &[]);
    bench.policy("[operation.\"undo:*\"]\nno_effect_exits = [3]\n");
    bench.script("unbook", r#"echo "unbook $1" >> log; [ "$1" != hotel ] || exit 3; rm "world/$1""#);
    let said = bench.once(&["undo", "--scope", "trip", "--stored"]).exits(1).out();
    assert!(said.starts_with("scope trip: 1 undone, 1 stands"), "{said}");
    assert_eq!(world(&bench), ["hotel"]);
    // It stands, so a retry gets its result.
    let retry = [
        "run", "--scope", "trip", "--key", "hotel", "--name", "hotel", "--undo", UNBOOK, "--", "./book",
        "hotel",
    ];
    bench.once(&retry).exits(0);
    // A better command, and the next attempt of the same compensation.
    bench.once(&["undo", "hotel", "--scope", "trip", "--undo", "rm world/{data.id}"]).exits(0);
    assert!(world(&bench).is_empty());
    let by = bench.json(&["show", "hotel"])["data"]["undone"]["by"].as_str().unwrap().to_owned();
    assert_eq!(bench.json(&["show", &by])["data"]["attempt"], 2);
}

#[test]
fn a_compensation_in_doubt_stays_in_doubt_without_a_probe() {
    let bench = bench();
    book(&bench, "hotel", &[]);
    bench.script("unbook", r#"echo "unbook $1" >> log; kill -9 $PPID"#);
    bench.once(&["undo", "hotel", "--undo", "./unbook {data.id}; true"]).exits(79);
    bench.script("unbook", r#"echo "unbook $1" >> log; rm "world/$1""#);
    let said = bench.once(&["undo", "hotel", "--undo", UNBOOK]).exits(79).out();
    assert!(said.contains("in doubt"), "{said}");
    assert_eq!(bench.read("log").matches("unbook").count(), 1, "it does not run again");
    let retry = [
        "run", "--scope", "trip", "--key", "hotel", "--name", "hotel", "--undo", UNBOOK, "--", "./book",
        "hotel",
    ];
    assert!(bench.once(&retry).exits(4).err().contains("may or may not be gone"));
    // A person looked: it did not happen. The next undo runs it.
    let by = bench.json(&["show", "hotel"])["data"]["undone"]["by"].as_str().unwrap().to_owned();
    bench.once(&["settle", &by, "--as", "failed"]).exits(0);
    bench.once(&["undo", "hotel", "--undo", UNBOOK]).exits(0);
    assert!(world(&bench).is_empty());
}

/// With a probe on the operation, undone is only said when the probe no longer finds the effect.
#[test]
fn the_probe_confirms_that_the_effect_is_gone() {
    let bench = bench();
    bench.policy("[defaults]\nverify_deadline = \"0s\"\n");
    let probe = ["--probe", "./booked hotel"];
    book(&bench, "hotel", &probe);
    // The stored probe may not run, so success is not confirmed.
    let said = bench.once(&["undo", "hotel", "--undo", "true"]).exits(79).out();
    assert!(said.contains("not confirmed") && said.contains("was not run"), "{said}");
    // It may, and still finds the effect.
    let undo = ["undo", "hotel", "--undo", "true", "--probe", "./booked hotel"];
    let said = bench.once(&undo).exits(79).out();
    assert!(said.contains("the probe still finds the effect"), "{said}");
    assert_eq!(bench.json(&["show", "hotel"])["data"]["undone"]["evidence"], "pending");
    // It is gone now.
    std::fs::remove_file(bench.path("world/hotel")).unwrap();
    let said = bench.once(&undo).exits(0).out();
    assert!(said.contains("the probe confirms that the effect is gone"), "{said}");
    assert_eq!(bench.json(&["show", "hotel"])["data"]["undone"]["evidence"], "probe");
}

#[test]
fn a_doubt_is_probed_first() {
    for (books, result) in [("./book tour", "undone"), ("true", "in_doubt")] {
        let bench = bench();
        let script = format!("{books}; kill -9 $$");
        let doubt = ["run", "--key", "tour", "--undo", "./unbook {once.key}", "--probe", "./booked tour"];
        bench.once(&[&doubt[..], &["--", "sh", "-c", &script]].concat()).exits(79);
        let answer = bench.json(&["undo", "tour", "--stored"]);
        // A "no" does not count while the request may be in flight.
        assert_eq!(results(&answer), [("sh".to_owned(), result.to_owned())], "{answer}");
        assert!(world(&bench).is_empty());
    }
}

#[test]
fn the_probe_of_the_operation_settles_a_compensation_that_was_killed() {
    let bench = bench();
    bench.policy("[defaults]\nquarantine = \"0s\"\nverify_deadline = \"0s\"\n");
    book(&bench, "hotel", &["--probe", "./booked hotel"]);
    let undo = |command: &str| bench.once(&["undo", "hotel", "--undo", command, "--probe", "./booked hotel"]);
    // Killed before it removed anything: the probe still finds the booking, so the compensation runs again.
    undo("echo tried >> log; kill -9 $$").exits(79);
    undo("./unbook {data.id}; kill -9 $$").exits(0);
    assert_eq!(bench.read("log"), "book hotel\ntried\nunbook hotel\n");
    assert!(world(&bench).is_empty());
}

#[test]
fn an_operation_that_runs_is_left_alone() {
    let bench = Bench::new();
    let mut held =
        bench.command(&["run", "--key", "a", "--undo", "true", "--", "sh", "-c", HELD]).spawn().unwrap();
    eventually("it runs", || bench.runs() == 1);
    let said = bench.once(&["undo", "a", "--stored"]).exits(79).out();
    assert!(said.contains("it is still running"), "{said}");
    bench.release();
    held.wait().unwrap();
    bench.once(&["undo", "a", "--stored"]).exits(0);
}

#[test]
fn mistakes_are_named() {
    let bench = bench();
    book(&bench, "hotel", &[]);
    bench.once(&["undo"]).exits(2);
    bench.once(&["undo", "--scope", "trip", "--undo", "true"]).exits(2);
    bench.once(&["undo", "nothing"]).exits(5);
    bench.once(&["undo", "hotel", "--since", "hotel"]).exits(2);
    assert_eq!(world(&bench), ["hotel"]);
}

#[test]
fn a_compensation_that_says_that_nothing_happened_takes_nothing_back() {
    let bench = bench();
    for (name, envelope) in [
        ("planned", r#"{"ok":true,"effect":"would_delete","happened":"no","ran":false}"#),
        ("nothing", r#"{"ok":true,"effect":"noop","happened":"no","ran":false}"#),
        ("read", r#"{"ok":true,"effect":"noop","happened":"no","ran":true}"#),
        ("held", r#"{"ok":true,"effect":"held","happened":"no","ran":false}"#),
        ("unknown", r#"{"ok":true,"effect":"updated","happened":"unknown","ran":true}"#),
    ] {
        book(&bench, name, &[]);
        bench.script("answer", &format!("echo '{envelope}'"));
        let said = bench.json(&["undo", name, "--undo", "./answer"]);
        assert_eq!(results(&said), [(name.to_owned(), "in_doubt".to_owned())], "{said}");
    }
    let report = bench.once(&["report", "--scope", "trip"]).exits(0).out();
    assert!(report.contains("0 undone"), "{report}");
}

#[test]
fn a_compensation_that_the_policy_calls_a_read_is_not_run() {
    let bench = bench();
    book(&bench, "hotel", &[]);
    for (pattern, is_found) in [("undo:hotel", true), ("undo:*", true), ("*", false)] {
        bench.write("policy.toml", format!("[operation.\"{pattern}\"]\nclass = \"read\"\n"));
        let check = bench.once(&["config", "check", "policy.toml"]);
        assert_eq!(check.exit, if is_found { 2 } else { 0 }, "{pattern}: {}", check.err());
        if is_found {
            let refused = bench.once(&["--config", "policy.toml", "undo", "hotel", "--stored"]);
            assert_eq!((refused.exit, world(&bench)), (2, vec!["hotel".to_owned()]), "{}", refused.err());
            continue;
        }
        for more in [&["--dry-run"][..], &[]] {
            let undo = [&["--config", "policy.toml", "undo", "hotel", "--stored"], more].concat();
            let said = bench.once(&undo);
            assert!(said.out().contains("use once, idempotent or keyed"), "{}", said.out());
        }
        assert_eq!(world(&bench), ["hotel"], "{pattern}");
    }
}
