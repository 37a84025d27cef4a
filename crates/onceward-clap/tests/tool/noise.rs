//! An author whose code prints: stdout stays one JSON document.

use std::process::Command;

use clap::Args;
use onceward_clap::{Applied, Batch, Doubt, Fault, Mutating, Op, Plan, Probe, Probed, Safe, Tool};
use serde::Serialize;
use serde_json::json;

use crate::list::List;
use crate::runs::{call, json as answer, mcp, run};

tests![what_an_author_prints_goes_to_stderr, a_server_is_not_disturbed_either];

/// Prints wherever it can
#[derive(Args, Serialize)]
pub(crate) struct Chat {
    /// What it says
    word: String,
}

/// Prints as its own code and as a program that it starts.
fn chat(place: &str) {
    println!("noise in {place}");
    Command::new("sh").args(["-c", "echo noise of a child"]).status().unwrap();
}

impl Mutating for Chat {
    const NAME: &'static str = "chat";
    const EXAMPLE: &'static [&'static str] = &["hello"];
    const PROBE: Option<Probe<Self, List, String>> = Some(was_said);
    type World = List;
    type Data = String;

    fn plan(&self, _list: &List) -> Result<Plan, Fault> {
        chat("plan");
        Ok(Plan::create(&self.word))
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<String>, Fault> {
        chat("apply");
        let (list, dispatched) = op.dispatch()?;
        list.write(&self.word)?;
        if self.word == "lost" {
            return Err(Fault::in_doubt("no reply"));
        }
        Ok(dispatched.created(self.word.clone()))
    }
}

fn was_said(command: &Chat, list: &List, _doubt: &Doubt<'_>) -> Result<Probed<String>, Fault> {
    chat("probe");
    Ok(if list.text() == command.word { Probed::Created(list.text()) } else { Probed::No })
}

/// Prints and reads
#[derive(Args, Serialize)]
pub(crate) struct Read {}

impl Safe for Read {
    const NAME: &'static str = "read";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = List;
    type Data = String;

    fn read(&self, list: &List) -> Result<String, Fault> {
        chat("read");
        Ok(list.text())
    }
}

/// Prints for each of two
#[derive(Args, Serialize)]
pub(crate) struct Both {}

impl Batch for Both {
    const NAME: &'static str = "both";
    const EXAMPLE: &'static [&'static str] = &[];
    type Item = Chat;

    fn items(&self, _list: &List) -> Result<Vec<Chat>, Fault> {
        chat("items");
        Ok(["one", "two"].map(|word| Chat { word: word.to_owned() }).into())
    }
}

pub(crate) fn tool(tool: Tool<List>) -> Tool<List> {
    tool.mutating::<Chat>().safe::<Read>().batch::<Both>()
}

fn what_an_author_prints_goes_to_stderr() {
    let folder = tempfile::tempdir().unwrap();
    for (line, place) in [
        ("chat hello --dry-run", "plan"),
        ("chat hello", "apply"),
        ("chat lost", "apply"),
        ("chat lost", "probe"),
        ("read", "read"),
        ("both --no-stream", "items"),
    ] {
        let output = run("noisy", folder.path(), &line.split(' ').collect::<Vec<_>>());
        assert!(answer(&output)["ok"].is_boolean(), "{line}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(&format!("noise in {place}\n")), "{line}: {stderr}");
        assert!(stderr.contains("noise of a child\n"), "{line}: {stderr}");
    }
    let lines = run("noisy", folder.path(), &["both", "--scope", "s"]).stdout;
    let lines = String::from_utf8(lines).unwrap();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    assert!(lines.lines().all(|line| line.starts_with('{')), "{lines}");
}

fn a_server_is_not_disturbed_either() {
    let folder = tempfile::tempdir().unwrap();
    let answers =
        mcp("noisy", folder.path(), &[call("chat", &json!({"word": "hello"})), call("read", &json!({}))]);
    assert_eq!(answers[0]["result"]["structuredContent"]["effect"], "created");
    assert_eq!(answers[1]["result"]["structuredContent"]["data"], "hello");
}
