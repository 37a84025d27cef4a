//! `once undo … --http URL`: the same for a server over HTTP, in a session of its own and with the operator's headers.

use serde_json::{Value, json};

use crate::common::{Bench, Said};
use crate::mcp::http::seen;
use crate::mcp::session::{effects, words};
use crate::mcp::web::{Process, Web, server};

/// A call of `count` that was made, and what takes it back.
struct Made {
    // Ended before its folder is removed.
    _server: Process,
    bench: Bench,
    url: String,
    id: String,
}

impl Made {
    /// The tool `count` is taken back by the tool `uncount` with these arguments, as TOML.
    fn new(args: &str) -> Self {
        Self::with_policy(&format!("[operation.count]\nundo = {{tool = \"uncount\", args = {args}}}\n"))
    }

    fn with_policy(policy: &str) -> Self {
        let bench = Bench::new();
        bench.policy(policy);
        let (server, port) = server(&bench, 0);
        let url = format!("http://127.0.0.1:{port}/mcp");
        let web = Web::before_url(&bench, &url, &["--scope", "s", "--keys", "strict"], &[]);
        web.call(1, &json!({"n": 1}));
        drop(web);
        let id = bench.newest();
        Self { bench, _server: server, url, id }
    }

    fn undo(&self, flags: &[&str]) -> Said {
        self.bench.once(&[&["--json", "undo", &self.id, "--http", &self.url], flags].concat())
    }

    fn is_done_as_before(&self) -> bool {
        let web = Web::before_url(&self.bench, &self.url, &["--scope", "s", "--keys", "strict"], &[]);
        words(&web.call(9, &json!({"n": 1}))).starts_with("[once] Replayed")
    }
}

#[test]
fn the_sample_of_the_page_works_as_it_is_typed() {
    let page = include_str!("../../../../../docs/mcp.md").split("## Undo\n").nth(1).unwrap();
    let typed = page.split("```sh\n").nth(2).unwrap().split("```").next().unwrap();
    let made = Made::new("{n = 0}");
    let typed = typed.replace("op_…", &made.id).replace("https://shop.example/mcp", &made.url);
    made.bench.shell(&format!("export SHOP_TOKEN='Bearer good'; {typed}")).exits(0);
    assert_eq!(effects(&made.bench), 2);
    assert_eq!(seen(&made.bench).last().unwrap()["headers"]["authorization"], "Bearer good");
}

/// The result of the only step, and its reason.
fn step(said: &Said) -> (String, String) {
    let step = said.json()["data"]["steps"][0].clone();
    let word = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
    (word("result"), word("reason"))
}

#[test]
fn a_call_over_http_is_taken_back_once_in_either_form_of_answer() {
    for args in [r#"{n = "{result.run}"}"#, r#"{n = "{result.run}", events = true}"#] {
        let made = Made::new(args);
        let plan = made.undo(&["--dry-run"]);
        assert_eq!((plan.exit, step(&plan).0.as_str(), effects(&made.bench)), (0, "would_undo", 1));
        assert_eq!(made.undo(&[]).exits(0).json()["effect"], "updated");
        assert_eq!(step(&made.undo(&[]).exits(0)).0, "nothing_to_undo");
        assert_eq!(effects(&made.bench), 2);
        let last: Value = serde_json::from_str(made.bench.read("effects").lines().last().unwrap()).unwrap();
        assert_eq!(last["n"], 1, "a number stays a number");
        let web = Web::before_url(&made.bench, &made.url, &["--scope", "s", "--keys", "strict"], &[]);
        let retry = words(&web.call(3, &json!({"n": 1})));
        assert!(retry.contains("UNDONE") && effects(&made.bench) == 2, "{retry}");
    }
}

#[test]
fn the_session_has_the_operators_headers_and_is_ended() {
    let made = Made::new("{n = 7}");
    let before = seen(&made.bench).len();
    let mut command = made.bench.command(&["undo", &made.id, "--http", &made.url]);
    command.args(["--header", "X-Mine: 1", "--header-env", "Authorization=HOW"]).env("HOW", "Bearer good");
    assert!(command.status().unwrap().success());
    let all = seen(&made.bench).split_off(before);
    for one in &all {
        let headers = &one["headers"];
        assert_eq!((&headers["x-mine"], &headers["authorization"]), (&json!("1"), &json!("Bearer good")));
    }
    let call = all.iter().find(|one| one["headers"]["mcp-method"] == "tools/call").expect("it is called");
    let headers = &call["headers"];
    let told = ["mcp-session-id", "mcp-name", "mcp-param-n"].map(|name| headers[name].clone());
    assert_eq!(told, ["s-1", "uncount", "7"]);
    assert_eq!(all.last().unwrap()["method"], "DELETE");
}

#[test]
fn nothing_is_marked_if_the_server_cannot_take_it_back() {
    let made = Made::new("{n = 0}");
    for (flags, why) in [
        (&["--header", "Authorization: Bearer bad"][..], "does not list its tools"),
        (&["--header", "no colon"], "NAME: VALUE"),
    ] {
        let said = made.undo(flags);
        let text = said.out() + &said.err();
        assert!(said.exit != 0 && text.contains(why), "{text}");
        assert!(!text.contains("Bearer bad"), "{text}");
    }
    for url in ["http://127.0.0.1:1/mcp", "http://127.0.0.1:1/other"] {
        let (result, reason) =
            step(&made.bench.once(&["--json", "undo", &made.id, "--stored", "--http", url]).exits(1));
        assert!(result == "stands" && reason.contains("another server"), "{reason}");
    }
    let moved = ["undo", &made.id, "--stored", "--server", "x", "--http", "http://127.0.0.1:1/"];
    made.bench.once(&moved).exits(1);
    made.bench.once(&["undo", &made.id, "--server", "x"]).exits(2);
    made.bench.once(&["undo", &made.id, "--http", &made.url, "--", "true"]).exits(2);
    let unknown = Made::with_policy("[operation.count]\nundo = {tool = \"nosuch\"}\n");
    assert!(step(&unknown.undo(&[]).exits(1)).1.contains("the server has no tool nosuch"));
    for made in [made, unknown] {
        assert_eq!(effects(&made.bench), 1);
        assert!(made.is_done_as_before());
    }
}

#[test]
fn what_proves_nothing_leaves_the_compensation_in_doubt_and_it_is_not_called_again() {
    for args in [
        "{reset = true}",
        "{status = 500}",
        "{status = 502}",
        "{cut = true, events = true}",
        "{coded = [400, -32602, \"broken while it worked\"]}",
    ] {
        let made = Made::new(args);
        for _ in 0..2 {
            assert_eq!(step(&made.undo(&[]).exits(79)).0, "in_doubt", "{args}");
            assert_eq!(effects(&made.bench), 2, "{args}");
        }
    }
}

#[test]
fn what_proves_that_nothing_happened_lets_the_operation_stand() {
    let made = Made::new("{reject = true}");
    assert_eq!(step(&made.undo(&[]).exits(1)).0, "stands");
    assert_eq!(effects(&made.bench), 1);
    assert!(made.is_done_as_before());
}

#[test]
fn a_compensation_over_http_has_the_time_limit_of_its_tool() {
    let undo_by = "[operation.count]\nundo = {tool = \"uncount\", args = {hold = \"never\"}}\n";
    let made = Made::with_policy(&format!("{undo_by}[operation.uncount]\ntimeout = \"300ms\"\n"));
    assert_eq!(step(&made.undo(&[]).exits(79)).0, "in_doubt");
    assert_eq!(effects(&made.bench), 2);
}
