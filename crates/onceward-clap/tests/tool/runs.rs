//! Running a tool as its callers do.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use onceward_clap::score::{Bench, Score, score};
use serde_json::Value;

/// A program that acts as a version of the tool: the score starts programs by their path alone.
pub(crate) fn program(folder: &Path, version: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(version);
    let me = std::env::current_exe().unwrap();
    std::fs::write(&path, format!("#!/bin/sh\nACT_AS={version} exec '{}' \"$@\"\n", me.display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

pub(crate) fn scores(version: &str) -> Vec<Score> {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), version);
    let bench = |command: &str| {
        let place = folder.path().join(format!("of-{command}"));
        std::fs::create_dir(&place).unwrap();
        let file = place.join("list.txt");
        std::fs::write(&file, "bread\n").unwrap();
        let ledger = place.join("ledger.db");
        let environment = vec![("LIST_LEDGER".to_owned(), format!("sqlite:{}", ledger.display()))];
        let look = Box::new(move || std::fs::read_to_string(&file).unwrap_or_default());
        Bench { folder: place, environment, ledger, look }
    };
    score(&program, bench).unwrap()
}

pub(crate) fn run(version: &str, folder: &Path, words: &[&str]) -> Output {
    command(version, folder, words).output().unwrap()
}

pub(crate) fn command(version: &str, folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(words).env("ACT_AS", version).current_dir(folder).stdin(Stdio::null());
    command.env("HOME", folder);
    for name in ["XDG_DATA_HOME", "LIST_LEDGER", "LIST_SCOPE", "LIST_POLICY", "LIST_ENVELOPE", "LIST_FILE"] {
        command.env_remove(name);
    }
    command
}

/// Sends these requests to a server of the tool, and returns its answers in the order of their ids.
pub(crate) fn mcp(version: &str, folder: &Path, requests: &[Value]) -> Vec<Value> {
    use std::io::{BufRead, BufReader, Write};
    let mut server = command(version, folder, &["mcp"]);
    server.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = server.spawn().unwrap();
    let (mut to, mut from) =
        (server.stdin.take().unwrap(), BufReader::new(server.stdout.take().unwrap()).lines());
    let mut answers = Vec::new();
    for request in requests {
        writeln!(to, "{request}").unwrap();
        answers.push(serde_json::from_str(&from.next().unwrap().unwrap()).unwrap());
    }
    drop(to);
    assert!(server.wait().unwrap().success());
    answers
}

/// A request to call a tool.
pub(crate) fn call(name: &str, arguments: &Value) -> Value {
    let params = serde_json::json!({"name": name, "arguments": arguments});
    serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}
