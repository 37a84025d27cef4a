//! `once undo … -- SERVER`: the tool that takes a call back is called once, and only for the server that made the call.

use serde_json::{Value, json};

use crate::common::{Bench, Said, eventually};
use crate::mcp::session::{SERVER, Session, effects, words};

/// A bench whose tool `count` is taken back by the tool `own` with these arguments, as TOML.
fn bench(args: &str) -> Bench {
    let bench = Bench::new();
    bench.policy(&format!("[operation.count]\nundo = {{tool = \"own\", args = {args}}}\n"));
    bench
}

/// A session in which the same call is always a retry.
fn strict(bench: &Bench) -> Session {
    Session::start(bench, &["--scope", "s", "--keys", "strict"])
}

/// Calls `count` and gives the operation.
fn counted(bench: &Bench, args: &Value) -> String {
    let mut session = strict(bench);
    session.call(2, "count", args);
    session.leave();
    bench.newest()
}

fn undo(bench: &Bench, id: &str, flags: &[&str]) -> Said {
    bench.once(&[&["--json", "undo", id], flags, &["--", "python3", SERVER]].concat())
}

/// The result of the only step, and its reason.
fn step(said: &Said) -> (String, String) {
    let step = said.json()["data"]["steps"][0].clone();
    let word = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
    (word("result"), word("reason"))
}

fn is_done_as_before(bench: &Bench) -> bool {
    let mut session = strict(bench);
    let replayed = words(&session.call(9, "count", &json!({"n": 1})));
    replayed.starts_with("[once] Replayed")
}

#[test]
fn a_call_is_taken_back_once_with_the_fields_of_its_result() {
    let bench = bench(r#"{of = "{result.run}", text = "run {result.run} of {once.scope}"}"#);
    let id = counted(&bench, &json!({"n": 1}));
    let plan = undo(&bench, &id, &["--dry-run"]);
    assert_eq!((plan.exit, step(&plan).0.as_str(), effects(&bench)), (0, "would_undo", 1));
    let done = undo(&bench, &id, &[]).exits(0);
    assert_eq!(done.json()["effect"], "updated");
    let last: Value = serde_json::from_str(bench.read("effects").lines().last().unwrap()).unwrap();
    assert_eq!(last, json!({"tool": "own", "of": 1, "text": "run 1 of s"}), "a number stays a number");
    assert_eq!(step(&undo(&bench, &id, &[]).exits(0)).0, "nothing_to_undo");
    assert_eq!(effects(&bench), 2);
    let mut session = strict(&bench);
    let retry = words(&session.call(3, "count", &json!({"n": 1})));
    assert!(retry.contains("UNDONE") && effects(&bench) == 2, "{retry}");
}

#[test]
fn without_its_server_the_operation_stands_and_the_answer_says_how() {
    let bench = bench("{n = 0}");
    let id = counted(&bench, &json!({"n": 1}));
    let said = bench.once(&["--json", "undo", &id]).exits(1);
    let (result, reason) = step(&said);
    assert_eq!(result, "stands");
    assert!(reason.contains(&format!("once undo {id} -- SERVER")), "{reason}");
    for other in [&["python3", SERVER, "other"][..], &["python3", "other.py"]] {
        let said = bench.once(&[&["--json", "undo", &id, "--stored", "--"], other].concat()).exits(1);
        assert!(step(&said).1.starts_with("it was called through another server"), "{:?}", step(&said));
    }
    assert_eq!(effects(&bench), 1);
    assert!(is_done_as_before(&bench));
}

#[test]
fn the_same_words_in_another_folder_are_another_server() {
    let bench = bench("{n = 0}");
    std::fs::create_dir(bench.path("other")).unwrap();
    for file in ["near.py", "other/near.py"] {
        bench.write(file, std::fs::read(SERVER).unwrap());
    }
    let call = crate::mcp::session::request(2, "count", &json!({"n": 1})).to_string() + "\n";
    let mcp = ["--config", "onceward.toml", "mcp", "--scope", "s", "--", "python3", "near.py"];
    bench.once_with_stdin(&mcp, call.as_bytes());
    assert_eq!(effects(&bench), 1);
    let id = bench.newest();
    let undo = |folder: &str, file: &str| -> Said {
        let ledger = format!("sqlite:{}", bench.path("once.db").display());
        let args = ["--json", "undo", &id, "--stored", "--ledger", &ledger, "--", "python3", file];
        bench.command(&args).current_dir(bench.path(folder)).output().unwrap().into()
    };
    for file in ["near.py", "./near.py"] {
        let (result, reason) = step(&undo("other", file).exits(1));
        assert!(result == "stands" && reason.starts_with("it was called through another server"), "{reason}");
    }
    assert!(!bench.path("other/effects").exists());
    undo("other", "../near.py").exits(0);
    assert!(bench.path("other/effects").exists(), "the same file is the same server");
}

#[test]
fn a_stored_tool_is_called_only_on_the_callers_authority() {
    let bench = bench("{n = 0}");
    let id = counted(&bench, &json!({"n": 1}));
    bench.policy("[operation.count]\nundo = {tool = \"own\", args = {n = 1}}\n");
    let (result, reason) = step(&undo(&bench, &id, &[]).exits(1));
    assert!(result == "stands" && reason.contains("add --stored"), "{reason}");
    assert_eq!(effects(&bench), 1);
    undo(&bench, &id, &["--stored"]).exits(0);
    assert_eq!(effects(&bench), 2);
}

#[test]
fn nothing_is_called_if_a_field_is_missing_or_the_server_has_no_such_tool() {
    let missing = bench("{id = \"{result.order.id}\"}");
    let id = counted(&missing, &json!({"n": 1}));
    let (result, reason) = step(&undo(&missing, &id, &[]).exits(1));
    assert!(result == "stands" && reason.contains("no field `order.id`"), "{reason}");
    let unknown = Bench::new();
    unknown.policy("[operation.count]\nundo = {tool = \"nosuch\"}\n");
    let id = counted(&unknown, &json!({"n": 1}));
    let (result, reason) = step(&undo(&unknown, &id, &[]).exits(1));
    assert!(result == "stands" && reason.contains("the server has no tool nosuch"), "{reason}");
    let reader = Bench::new();
    reader.policy("[operation.count]\nundo = {tool = \"look\"}\n");
    let id = counted(&reader, &json!({"n": 1}));
    let (_, reason) = step(&undo(&reader, &id, &[]).exits(1));
    assert!(reason.contains("only reads"), "{reason}");
    for bench in [missing, unknown, reader] {
        assert_eq!(effects(&bench), 1);
        assert!(is_done_as_before(&bench), "nothing was marked");
    }
}

#[test]
fn a_server_that_does_not_list_its_tools_is_not_called() {
    for listing in [
        r#"{"result": {"tools": []}}"#,
        r#"{"result": {}}"#,
        r#"{"result": null}"#,
        r#"{"error": {"code": -32603, "message": "broken"}}"#,
        // It does not answer.
        "",
    ] {
        let bench = bench("{n = 0}");
        let id = counted(&bench, &json!({"n": 1}));
        bench.write("listing", listing);
        let (result, reason) = step(&undo(&bench, &id, &[]).exits(1));
        assert!(result == "stands" && reason.contains("does not list its tools"), "{listing}: {reason}");
        assert_eq!(effects(&bench), 1, "{listing}");
        std::fs::remove_file(bench.path("listing")).unwrap();
        assert!(is_done_as_before(&bench), "nothing was marked: {listing}");
    }
}

#[test]
fn an_error_of_the_compensation_is_judged_as_for_any_tool() {
    let doubtful = bench("{tool_error = \"no\"}");
    let id = counted(&doubtful, &json!({"n": 1}));
    for _ in 0..2 {
        let said = undo(&doubtful, &id, &[]).exits(79);
        assert_eq!(
            (said.json()["error"]["code"].as_str(), step(&said).0.as_str()),
            (Some("IN_DOUBT"), "in_doubt")
        );
        assert_eq!(effects(&doubtful), 2, "it is called once");
    }
    let certain = Bench::new();
    let undo_by = "[operation.count]\nundo = {tool = \"own\", args = {tool_error = \"no\"}}\n";
    certain.policy(&format!("{undo_by}[operation.own]\non_tool_error = \"no_effect\"\n"));
    let id = counted(&certain, &json!({"n": 1}));
    assert_eq!(step(&undo(&certain, &id, &[]).exits(1)).0, "stands");
    assert!(is_done_as_before(&certain));
    undo(&certain, &id, &[]).exits(1);
    assert_eq!(effects(&certain), 3, "a failure may be tried again");
}

#[test]
fn an_undo_that_is_killed_after_the_dispatch_is_in_doubt_until_it_is_settled() {
    let bench = bench("{hold = \"go\"}");
    let id = counted(&bench, &json!({"n": 1}));
    let args = ["undo", &id, "--", "python3", SERVER];
    let mut process = bench.command(&args).spawn().unwrap();
    eventually("it is called", || effects(&bench) == 2);
    process.kill().unwrap();
    process.wait().unwrap();
    bench.write("go", "");
    let said = undo(&bench, &id, &[]).exits(79);
    assert_eq!((step(&said).0.as_str(), effects(&bench)), ("in_doubt", 2));
    let by = said.json()["data"]["steps"][0]["by"].as_str().unwrap().to_owned();
    bench.once(&["settle", &by, "--as", "done"]).exits(0);
    assert_eq!(
        step(&undo(&bench, &id, &[]).exits(0)).0,
        "nothing_to_undo",
        "the settled compensation has taken it back"
    );
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_kill_between_the_mark_and_the_dispatch_loses_nothing() {
    let bench = bench("{n = 0}");
    let id = counted(&bench, &json!({"n": 1}));
    // The mark is on disk, and nothing more.
    let ledger = onceward_store::ledger(&bench.ledger(), onceward::IfMissing::Fail).unwrap().blocking();
    let (record, _) = ledger.find(&onceward::OperationId::parse(&id).unwrap()).unwrap();
    ledger.undo().begin(&record.id, onceward::Operation::undo_of(&record)).unwrap();
    drop(ledger);
    assert!(!is_done_as_before(&bench), "its effect may be gone");
    assert_eq!(effects(&bench), 1);
    undo(&bench, &id, &[]).exits(0);
    undo(&bench, &id, &[]).exits(0);
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_server_that_dies_leaves_the_compensation_in_doubt() {
    let bench = bench("{die = 3}");
    let id = counted(&bench, &json!({"n": 1}));
    for _ in 0..2 {
        assert_eq!(step(&undo(&bench, &id, &[]).exits(79)).0, "in_doubt");
    }
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_compensation_has_the_time_limit_of_its_tool() {
    let bench = Bench::new();
    let undo_by = "[operation.count]\nundo = {tool = \"own\", args = {hold = \"never\"}}\n";
    bench.policy(&format!("{undo_by}[operation.own]\ntimeout = \"300ms\"\n"));
    let id = counted(&bench, &json!({"n": 1}));
    assert_eq!(step(&undo(&bench, &id, &[]).exits(79)).0, "in_doubt");
    assert_eq!(effects(&bench), 2);
}

#[test]
fn an_operation_in_doubt_is_left_alone_and_named() {
    let bench = bench("{n = 0}");
    let id = counted(&bench, &json!({"die": 3}));
    let said = undo(&bench, &id, &[]).exits(79);
    assert_eq!((step(&said).0.as_str(), effects(&bench)), ("in_doubt", 1));
}

#[test]
fn a_task_is_not_undone_before_it_is_confirmed() {
    let bench = bench("{task = \"t1\"}");
    let id = counted(&bench, &json!({"n": 1}));
    for _ in 0..2 {
        let (result, reason) = step(&undo(&bench, &id, &[]).exits(79));
        assert!(result == "in_doubt" && reason.contains("not confirmed"), "{result}: {reason}");
    }
    assert_eq!(effects(&bench), 2);
}

#[test]
fn the_samples_of_the_page_work_as_they_are_typed() {
    let page = include_str!("../../../../../docs/mcp.md").split("## Undo\n").nth(1).unwrap();
    let block = |kind: &str| page.split(&format!("```{kind}\n")).nth(1).unwrap().split("```").next().unwrap();
    let bench = Bench::new();
    // The counting server has other names for the same tools.
    let policy = block("toml").replace("create_order", "count").replace("cancel_order", "own");
    bench.policy(&policy.replace("{result.id}", "{result.run}"));
    let id = counted(&bench, &json!({"n": 1}));
    let lines: Vec<&str> = block("sh").lines().collect();
    for (line, effects_after) in lines.iter().zip([1, 2]) {
        let typed = line.split(" #").next().unwrap().replace("op_…", &id);
        let typed = typed.replace("npx -y shop-mcp", &format!("python3 {SERVER}"));
        let said = bench.shell(&typed).exits(0);
        assert!(said.out().contains("`own {\"id\":1}`"), "{}", said.out());
        assert_eq!(effects(&bench), effects_after, "{typed}");
    }
}
