//! The rules of the house, held by a test: who may depend on whom, who may print, and what no file may hold.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may give up")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use onceward::Code;
use serde_json::Value;

/// The crates at the edge: they print, exit, and read the environment.
const EDGES: [&str; 2] = ["onceward-cli", "onceward-sim"];
/// The framework of command-line tools is the edge of every tool that is built on it: it prints, exits and reads the
/// environment, but names no back end, because its author hands in the way to open a ledger.
const EDGE_OF_OTHERS: &str = "onceward-clap";
/// Tools of their own, as a user would write them.
const EXAMPLES: [&str; 1] = ["shop"];
const MAX_LINES: usize = 600;
/// The formatter breaks code long before; this is for comments and texts.
const MAX_COLUMNS: usize = 120;
/// A test may hold a table, which is as wide as it is.
const MAX_TEST_COLUMNS: usize = 140;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What each crate of the workspace depends on when it is built, not when it is tested.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        let built = all.filter(|dependency| dependency["kind"].is_null());
        built.map(|dependency| dependency["name"].as_str().unwrap().to_owned()).collect()
    };
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().map(|package| (package["name"].as_str().unwrap().to_owned(), names(package))).collect()
}

/// A file of Rust in the workspace.
struct Source {
    /// The crate it belongs to.
    package: String,
    /// Its path from the root.
    path: String,
    text: String,
}

impl Source {
    /// What the crate is built of: not its tests, benches and examples, and nothing below the tests of a module.
    fn built(&self) -> Option<&str> {
        let own = self.path.split_once('/').map_or("", |(_, own)| own);
        let beside = ["/tests/", "/benches/", "/examples/"].iter().any(|folder| own.contains(folder));
        let tests = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test, "];
        let end = tests.iter().filter_map(|mark| self.text.find(mark)).min().unwrap_or(self.text.len());
        (!beside).then(|| &self.text[..end])
    }
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for package in packages() {
        collect(&package, &package.file_name().unwrap().to_string_lossy(), &mut found);
    }
    assert!(found.len() > 40, "only {} files: is this the workspace?", found.len());
    found
}

/// The folders of the crates and of the examples that are crates.
fn packages() -> Vec<PathBuf> {
    let folders = ["crates", "examples"].map(|folder| std::fs::read_dir(root().join(folder)).unwrap());
    let folders = folders.into_iter().flatten().map(|folder| folder.unwrap().path());
    // Not every example is a crate.
    folders.filter(|folder| folder.join("Cargo.toml").exists()).collect()
}

fn collect(folder: &Path, package: &str, found: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, package, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(root()).unwrap().display().to_string();
            found.push(Source { package: package.to_owned(), path, text });
        }
    }
}

/// Fails with every line at once, so that a rule is broken and mended in one go.
#[track_caller]
fn none(broken: Vec<String>, rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

/// The lines of what is built that hold one of these words outside a comment.
fn lines_with(sources: &[Source], words: &[String]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources {
        for (index, line) in source.built().unwrap_or_default().lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if words.iter().any(|word| code.contains(word.as_str())) {
                broken.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
    }
    broken
}

/// Words are put together here, so that this file does not hold what it looks for.
fn words(parts: &[[&str; 2]]) -> Vec<String> {
    parts.iter().map(|parts| parts.concat()).collect()
}

#[test]
fn the_ledger_depends_on_no_other_crate_of_the_house() {
    let dependencies = dependencies();
    let house: BTreeSet<&String> = dependencies.keys().collect();
    let own = |name: &str| -> Vec<&str> {
        dependencies[name].iter().filter(|name| house.contains(name)).map(String::as_str).collect()
    };
    assert_eq!(own("onceward"), [""; 0]);
    assert_eq!(own("onceward-store"), ["onceward"]);
    for surface in ["onceward-http", "onceward-mcp", "onceward-clap"] {
        if dependencies.contains_key(surface) {
            assert_eq!(own(surface), ["onceward"], "{surface} sees a ledger and never names a back end");
        }
    }
}

#[test]
fn only_the_edges_name_a_back_end() {
    let may = |name: &str| EDGES.contains(&name) || EXAMPLES.contains(&name) || name == "onceward-python";
    let engines = ["rusqlite", "postgres", "tokio-postgres", "redis", "sqlx"];
    for (name, dependencies) in dependencies() {
        let names_store = dependencies.contains("onceward-store");
        assert!(!names_store || may(&name), "{name} names the crate of back ends");
        let engine = engines.iter().find(|engine| dependencies.contains(**engine));
        // What an example works on is its own, and no ledger.
        let own = name == "onceward-store" || EXAMPLES.contains(&name.as_str());
        assert!(engine.is_none() || own, "{name} depends on {engine:?}");
    }
}

#[test]
fn every_crate_keeps_the_workspaces_lints() {
    for package in packages() {
        let manifest = package.join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).unwrap();
        assert!(
            text.contains("[lints]\nworkspace = true"),
            "{} has no `[lints]` of the workspace",
            manifest.display()
        );
    }
}

#[test]
fn files_are_short_and_lines_are_not_long() {
    let mut broken = Vec::new();
    for source in sources() {
        let (path, text) = (&source.path, &source.text);
        let lines = text.lines().count();
        if lines > MAX_LINES {
            broken.push(format!("{path}: {lines} lines"));
        }
        let most = if source.built().is_some() { MAX_COLUMNS } else { MAX_TEST_COLUMNS };
        // What a user sees, in a snapshot, may be longer than what we write.
        let mut in_snapshot = false;
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > most && !in_snapshot && !line.contains(", @") {
                broken.push(format!("{path}:{}: {columns} columns", index + 1));
            }
            let begins = line.ends_with("@r\"") || line.ends_with("@r#\"");
            in_snapshot = begins || (in_snapshot && !line.trim_start().starts_with('"'));
        }
    }
    none(broken, &format!("no file is longer than {MAX_LINES} lines, no line than {MAX_COLUMNS} columns"));
}

#[test]
fn nothing_is_left_for_later() {
    let unfinished =
        words(&[["todo", "!("], ["unimplemented", "!("], ["dbg", "!("], ["#[ign", "ore"], ["FIX", "ME"]]);
    let mut broken = Vec::new();
    for source in sources() {
        for (index, line) in source.text.lines().enumerate() {
            let tab = line.contains('\t');
            if tab || line.ends_with(' ') || unfinished.iter().any(|word| line.contains(word.as_str())) {
                broken.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
    }
    none(broken, "no tabs, no spaces at the end, nothing unfinished, no test that is left out");
}

#[test]
fn a_new_state_must_be_thought_of_everywhere() {
    let mut broken = Vec::new();
    for source in sources().into_iter().filter(|source| source.package == "onceward") {
        let Some(text) = source.built() else { continue };
        // The arms of a match stand one level deeper than it does. One that names a state and also has a `_` is it.
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in
            lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with("_ =>"))
        {
            let depth = line.len() - line.trim_start().len();
            let arms = lines[..index]
                .iter()
                .rev()
                .take_while(|line| line.trim().is_empty() || line.len() - line.trim_start().len() >= depth);
            let names_a_state =
                arms.filter(|line| line.len() - line.trim_start().len() == depth).any(|line| {
                    line.trim_start().starts_with("State::") || line.trim_start().starts_with("| State::")
                });
            if names_a_state {
                broken.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
    }
    none(broken, "no `_` in a match over states");
}

#[test]
fn only_the_edges_print_exit_and_read_the_environment() {
    let edge = |name: &str| EDGES.contains(&name) || EXAMPLES.contains(&name) || name == EDGE_OF_OTHERS;
    let inner: Vec<Source> = sources().into_iter().filter(|source| !edge(&source.package)).collect();
    let talk = words(&[["print", "!("], ["println", "!("], ["eprint", "!("], ["eprintln", "!("]]);
    none(lines_with(&inner, &talk), "only the edges print");
    let world =
        words(&[["env::", "var"], ["env::", "args"], ["env::", "current_dir"], ["process::", "exit"]]);
    none(lines_with(&inner, &world), "only the edges read the environment, and exit");
}

#[test]
fn the_ledger_reads_no_clock_and_does_no_io() {
    let ledger: Vec<Source> = sources().into_iter().filter(|source| source.package == "onceward").collect();
    let world = words(&[
        ["SystemTime::", "now"],
        ["Instant::", "now"],
        ["std::", "fs::"],
        ["std::", "net::"],
        ["std::", "process::"],
        ["getr", "andom"],
    ]);
    let conformance = |line: &String| line.starts_with("crates/onceward/src/conformance");
    let broken = lines_with(&ledger, &world).into_iter().filter(|line| !conformance(line)).collect();
    none(broken, "time, files and chance come through the store");
}

#[test]
fn every_code_is_documented() {
    let pages: Vec<PathBuf> = ["ARCHITECTURE.md", "docs/contract.md", "docs/contract/README.md"]
        .iter()
        .map(|page| root().join(page))
        .filter(|page| page.exists())
        .collect();
    let text: String = pages.iter().map(|page| std::fs::read_to_string(page).unwrap()).collect();
    let missing: Vec<String> =
        Code::ALL.iter().map(Code::to_string).filter(|code| !text.contains(code.as_str())).collect();
    assert!(pages.is_empty() || missing.is_empty(), "not documented in {pages:?}: {missing:?}");
}

#[test]
fn exit_codes_are_the_contracts_and_the_helps() {
    let help = Command::new(env!("CARGO_BIN_EXE_once")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, told) = help.split_once("Exit codes:").expect("the help tells the exit codes");
    let told: BTreeSet<&str> =
        told.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty()).collect();
    for code in Code::ALL.iter().filter(|code| **code != Code::Failed) {
        assert!(
            told.contains(code.exit().to_string().as_str()),
            "{code} ends with {}, which help does not tell",
            code.exit()
        );
    }
}
