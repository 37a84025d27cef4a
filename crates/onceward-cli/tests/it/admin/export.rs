//! `once export | once import`.

use insta::assert_snapshot;
use onceward::{Ledger, Operation};
use onceward_testkit::{Postgres, Redis, RedisCluster};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::common::Bench;

/// More than a page of an export.
const MANY: u64 = 1_100;
/// Records that are on their way together may arrive in another order.
const TOGETHER: usize = 600;

/// A ledger with something of everything, and its export.
fn old_ledger() -> (Bench, Vec<u8>) {
    let bench = Bench::new();
    bench.with_done();
    bench.with_failed();
    bench.with_doubt();
    let export = bench.once(&["export"]).exits(0).out;
    (bench, export)
}

fn listed(bench: &Bench, flags: &[&str]) -> Vec<Value> {
    let listed = bench.json(&[&["ls", "-n", "100000"], flags].concat())["data"].clone();
    listed.as_array().unwrap().iter().map(|line| json!([line["id"], line["state"]])).collect()
}

#[test]
fn a_ledger_moves_with_all_it_knows() {
    let (old, export) = old_ledger();
    let new = Bench::like(&old);
    new.write("export", &export);
    let import = || new.once(&["import", "export"]).exits(0).out();
    assert_snapshot!(import(), @"3 operations imported, 0 existed already, 0 differ");
    assert_eq!(listed(&new, &[]), listed(&old, &[]), "in the same order");
    assert_eq!(new.once(&["export"]).exits(0).out, export, "what goes out again is what came in");
    assert_snapshot!(import(), @"0 operations imported, 3 existed already, 0 differ");
    assert_eq!(new.json(&["import", "export"])["effect"], "noop");
    let replayed = new.once(&["run", "--key", "done", "--", "sh", "-c", crate::common::COUNTED]).exits(0);
    assert!(replayed.err().contains("nothing was run"), "{}", replayed.err());
    assert_eq!(new.runs(), 0);
}

#[test]
fn many_pages_keep_their_order_in_every_ledger() {
    let old = Bench::new();
    {
        let url = format!("sqlite:{}?sync=off", old.path("once.db").display());
        let ledger = Ledger::new(onceward_store::open(&url).unwrap()).blocking();
        for n in 0..MANY {
            ledger
                .run(Operation::new("pay").key(n.to_string()), |attempt| Ok(attempt.dispatch()?.created(&n)))
                .unwrap();
        }
    }
    let export = old.once(&["export"]).exits(0).out;
    let expected = listed(&old, &[]);
    let cluster = RedisCluster::start();
    for url in [Postgres::shared().fresh(), Redis::shared().fresh(), cluster.fresh()] {
        let here = ["--ledger", &url];
        old.share_secret(&url);
        let said = old.once_with_stdin(&[&["import"], &here[..]].concat(), &export).exits(0);
        assert!(said.out().starts_with(&format!("{MANY} operations imported")), "{url}: {}", said.out());
        let order = listed(&old, &here);
        for (place, line) in order.iter().enumerate() {
            let was = expected.iter().position(|other| other == line).expect("it was there before");
            assert!(was.abs_diff(place) < TOGETHER, "{url}: {line} stands at {place}, stood at {was}");
        }
        let again = old.once(&[&["export"], &here[..]].concat()).exits(0).out;
        assert!(sorted(&again) == sorted(&export), "{url}: what goes out again is not what came in");
    }
}

/// Runs an operation for each text, or replays it; gives the stored results.
fn results(bench: &Bench, texts: &[&str]) -> Vec<String> {
    let ledger = Ledger::new(onceward_store::open(&bench.ledger()).unwrap()).blocking();
    let result = |(n, text): (usize, &&str)| {
        let raw = RawValue::from_string((*text).to_owned()).unwrap();
        let operation = Operation::new("pay").key(n.to_string());
        let receipt = ledger.run(operation, |attempt| Ok(attempt.dispatch()?.created(&raw))).unwrap();
        receipt.record().outcome.as_ref().unwrap().data.as_ref().unwrap().get().to_owned()
    };
    texts.iter().enumerate().map(result).collect()
}

#[test]
fn hidden_characters_are_escaped_in_an_export_and_come_back_as_they_were() {
    let old = Bench::new();
    // As they are, and as a tool may have escaped them itself.
    let texts = ["[\"a\u{202e}\u{9b}2J\u{e0041}\u{7f}é\"]", r#""a\u202e""#];
    assert_eq!(results(&old, &texts), texts);
    let export = String::from_utf8(old.once(&["export"]).exits(0).out).unwrap();
    assert!(!export.contains(|c| onceward::text::is_hidden(c) && c != '\n'), "{export:?}");
    assert!(export.contains(r"a\u202e\u009b2J\udb40\udc41\u007fé"), "{export}");
    let new = Bench::like(&old);
    new.once_with_stdin(&["import"], export.as_bytes()).exits(0);
    assert_eq!(String::from_utf8(new.once(&["export"]).exits(0).out).unwrap(), export);
    assert_eq!(results(&new, &["0", "0"]), texts, "they are replayed byte for byte");
    let again = old.once_with_stdin(&["import"], export.as_bytes()).exits(0).out();
    assert_snapshot!(again, @"0 operations imported, 2 existed already, 0 differ");
    // What is read in the file is what is imported.
    let forged = export.replace(r"a\u202e\u009b2J", r"b\u202e\u009b2J");
    let said = Bench::like(&old).once_with_stdin(&["import"], forged.as_bytes()).exits(2).out();
    assert!(said.contains("its exact_data is not the same as its data"), "{said}");
}

fn sorted(export: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = export.split(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_retry_finds_its_operation_after_the_move_or_the_import_is_refused() {
    let old = Bench::new();
    let run = |bench: &Bench| bench.once(&["run", "--scope", "s", "--", "sh", "-c", crate::common::COUNTED]);
    run(&old).exits(0);
    let export = old.once(&["export", "--secret-file", "secret"]).exits(0).out;
    let new = Bench::new();
    let said = new.once_with_stdin(&["import"], &export).exits(2).err();
    assert!(said.contains("--secret-file"), "{said}");
    new.write("secret", old.read("secret"));
    new.once_with_stdin(&["import", "--secret-file", "secret"], &export).exits(0);
    // The folder is part of what identifies a command, so the retry is made in the old one.
    let url = new.ledger();
    let args = ["run", "--ledger", &url, "--scope", "s", "--", "sh", "-c", crate::common::COUNTED];
    assert!(old.once(&args).exits(0).err().contains("nothing was run"));
    assert_eq!(old.runs(), 1);
}

#[test]
fn an_export_that_was_cut_off_is_known_and_goes_on() {
    let (old, export) = old_ledger();
    let new = Bench::like(&old);
    let text = String::from_utf8(export.clone()).unwrap();
    let two: String = text.lines().take(2).map(|line| format!("{line}\n")).collect();
    assert_snapshot!(new.once_with_stdin(&["import"], two.as_bytes()).exits(1).err(), @"once: the export is truncated after line 2: its last line is missing; 2 operations were imported before that and 0 existed already. Import the whole export to continue");
    let other = Bench::like(&old);
    let answer = other.once_with_stdin(&["import", "--json"], two.as_bytes()).exits(1).json();
    assert_eq!((&answer["ok"], &answer["effect"]), (&json!(false), &json!("created")), "{answer}");
    assert_eq!(
        (&answer["data"]["imported"], &answer["error"]["happened"]),
        (&json!(2), &json!(null)),
        "a command about the ledger claims nothing about an effect: {answer}"
    );
    let nothing = other.once_with_stdin(&["import", "--json"], two.as_bytes()).exits(1).json();
    assert_eq!(
        (&nothing["effect"], &nothing["data"]["already_there"]),
        (&json!("noop"), &json!(2)),
        "{nothing}"
    );
    assert_snapshot!(new.once_with_stdin(&["import"], &export).exits(0).out(), @"1 operations imported, 2 existed already, 0 differ");
}

#[test]
fn what_is_no_export_is_refused() {
    let (old, export) = old_ledger();
    let new = Bench::like(&old);
    let wrong = |text: &str| new.once_with_stdin(&["import"], text.as_bytes()).exits(1).err();
    assert_snapshot!(wrong("no JSON\n").lines().next().unwrap(), @"once: line 1: is not an operation that `once export` wrote: expected ident at line 1 column 2; 0 operations were imported before that and 0 existed already. Import the whole export to continue");
    assert_snapshot!(wrong("").lines().next().unwrap(), @"once: the export is truncated after line 0: its last line is missing; 0 operations were imported before that and 0 existed already. Import the whole export to continue");
    let text = String::from_utf8(export).unwrap();
    let forged = text.replacen("\"default\"", "\"another\"", 1);
    let said = new.once_with_stdin(&["import"], forged.as_bytes()).exits(2).out();
    assert!(said.contains("line 1: op_… is not the id of its scope, name and key"), "{said}");
    assert!(said.starts_with("2 operations imported"), "each that is missing could run again: {said}");
    let said = new.once(&["import", "nowhere"]).exits(2).err();
    assert_snapshot!(said.lines().next().unwrap(), @"once: INVALID_INPUT cannot read nowhere: No such file or directory (os error 2)");
}

#[test]
fn an_export_without_bodies_is_refused_and_writes_nothing() {
    let (old, _) = old_ledger();
    let bare = old.once(&["export", "--no-bodies"]).exits(0).out;
    for flags in [&["import"][..], &["import", "--dry-run"]] {
        let new = Bench::like(&old);
        let said = new.once_with_stdin(flags, &bare).exits(1).err();
        assert!(said.contains("--no-bodies") && said.contains("line 1"), "{said}");
        assert!(!said.contains("3 operations were imported"), "{said}");
    }
}

#[test]
fn a_result_that_was_lost_on_the_way_is_told() {
    let (old, export) = old_ledger();
    let bare = String::from_utf8(old.once(&["export", "--no-bodies"]).exits(0).out).unwrap();
    // As an older build wrote it, which marked nothing.
    let bare = bare.replace(",\"without_body\":true", "");
    let new = Bench::like(&old);
    new.once_with_stdin(&["import"], bare.as_bytes()).exits(0);
    let answer = new.once_with_stdin(&["import", "--json"], &export).exits(6).json();
    assert!(answer["data"]["differing"].as_u64() > Some(0), "{answer}");
    assert_eq!(answer["effect"], "noop", "nothing is repaired in silence: {answer}");
}

#[test]
fn what_differs_is_left_as_it_is() {
    let (old, export) = old_ledger();
    let new = Bench::like(&old);
    new.with_done();
    new.write("export", &export);
    let answer = new.once(&["import", "export", "--json"]).exits(6).json();
    assert_eq!((&answer["ok"], &answer["data"]["differing"]), (&json!(false), &json!(1)));
    assert_eq!((&answer["data"]["imported"], &answer["effect"]), (&json!(2), &json!("created")));
    new.once(&["run", "--key", "done", "--", "sh", "-c", crate::common::COUNTED]).exits(0);
    assert_eq!(new.runs(), 1, "what was done here is replayed");
}

#[test]
fn a_dry_run_reads_all_and_writes_nothing() {
    let (_, export) = old_ledger();
    let new = Bench::new();
    assert_snapshot!(new.once_with_stdin(&["import", "--dry-run"], &export).exits(0).out(), @"would_create: 3 operations would be imported if they do not exist yet");
    assert!(new.listing().is_empty());
}
