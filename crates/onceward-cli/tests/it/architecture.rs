//! Enforces the rules of the workspace: dependencies, printing, style, and words to avoid.

mod clocks;
mod cycles;
mod modules;
mod pairs;
mod records;
mod sleeps;
mod states;

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
/// A back end and a tool as a user would write them.
const EXAMPLES: [&str; 2] = ["folder-store", "shop"];
const MAX_LINES: usize = 600;
/// The formatter wraps code much earlier; this limit is for comments and strings.
const MAX_COLUMNS: usize = 120;
/// A test may contain a wide table.
const MAX_TEST_COLUMNS: usize = 140;

/// Files and folders whose prose is checked for [`DIALECT`].
const PLAIN_ENGLISH: [&str; 13] = [
    "README.md",
    "ARCHITECTURE.md",
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "SECURITY.md",
    "bench",
    "crates",
    "docs",
    "examples",
    "scripts",
    "tests",
];
/// Words and phrases that a native speaker would not use in technical prose, or that say less than the ordinary term.
const DIALECT: &[&str] = &[
    "aimed at was",
    "all the same",
    "anew",
    "anybody",
    "are told",
    "as it stands",
    "as they stand",
    "be told",
    "by itself",
    "by themselves",
    "came to",
    "certain failure",
    "certain failures",
    "comes to",
    "dear",
    "everybody",
    "for certain",
    "for good",
    "gives what",
    "go on",
    "goes on",
    "gone on",
    "has time",
    "he",
    "hear of",
    "hears of",
    "herself",
    "him",
    "himself",
    "his",
    "in clear",
    "in the place of",
    "is no error",
    "is told",
    "look whether",
    "looked whether",
    "looks whether",
    "made of it",
    "makes of",
    "moving house",
    "no part of",
    "nobody",
    "of one's own",
    "of the house",
    "one who",
    "said of",
    "so many",
    "somebody",
    "stand before",
    "stands before",
    "stands in the way",
    "taken for",
    "the very",
    "this very",
    "those who",
    "told so",
    "wanted again",
    "wanted repeat",
    "was told",
    "went on",
    "were told",
    "who lives",
    "whoever",
    "whomever",
    "writes down",
    "written down",
];

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
    /// The code that is built into the crate, without tests, benches and examples.
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

/// Fails with all violations at once, so that they can be fixed together.
#[track_caller]
fn none(broken: Vec<String>, rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

/// Compares what was found in each file with a list: file, number, and reason.
fn counted(found: &BTreeMap<String, Vec<String>>, list: &[(&str, usize, &str)]) -> Vec<String> {
    let listed = list.iter().map(|(file, ..)| *file);
    let files: BTreeSet<&str> = found.keys().map(String::as_str).chain(listed).collect();
    let mut broken = Vec::new();
    for file in files {
        let found = found.get(file).map_or(&[][..], Vec::as_slice);
        let allowed = list.iter().find(|(listed, ..)| *listed == file).map_or(0, |(_, count, _)| *count);
        if found.len() != allowed {
            let count = found.len();
            broken.push(format!("{file}: {count} found, {allowed} in the list\n  {}", found.join("\n  ")));
        }
    }
    broken
}

/// The lines of built code that contain one of these words outside a comment.
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

/// Words are concatenated here, so that this file does not contain what it searches for.
fn words(parts: &[[&str; 2]]) -> Vec<String> {
    parts.iter().map(|parts| parts.concat()).collect()
}

#[test]
fn the_ledger_depends_on_no_other_crate_of_the_workspace() {
    let dependencies = dependencies();
    let workspace: BTreeSet<&String> = dependencies.keys().collect();
    let own = |name: &str| -> Vec<&str> {
        dependencies[name].iter().filter(|name| workspace.contains(name)).map(String::as_str).collect()
    };
    assert_eq!(own("onceward"), [""; 0]);
    assert_eq!(own("onceward-store"), ["onceward"]);
    for surface in ["onceward-http", "onceward-clap"] {
        assert_eq!(own(surface), ["onceward"], "{surface} sees a ledger and never names a back end");
    }
    // The proxy and the server share what a listener needs.
    assert_eq!(own("onceward-mcp"), ["onceward", "onceward-http"]);
}

#[test]
fn only_the_edges_name_a_back_end() {
    let may = |name: &str| EDGES.contains(&name) || EXAMPLES.contains(&name) || name == "onceward-python";
    let engines = ["rusqlite", "postgres", "tokio-postgres", "redis", "sqlx"];
    for (name, dependencies) in dependencies() {
        let names_store = dependencies.contains("onceward-store");
        assert!(!names_store || may(&name), "{name} names the crate of back ends");
        let engine = engines.iter().find(|engine| dependencies.contains(**engine));
        // An example may have its own database, which is not a ledger.
        let own = name == "onceward-store" || EXAMPLES.contains(&name.as_str());
        assert!(engine.is_none() || own, "{name} depends on {engine:?}");
    }
}

#[test]
fn the_toolchain_is_the_oldest_that_is_supported() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let (manifest, toolchain) = (read("Cargo.toml"), read("rust-toolchain.toml"));
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim_matches([' ', '=', '"']).to_owned()
    };
    assert_eq!(value(&toolchain, "channel"), format!("{}.0", value(&manifest, "rust-version")));
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
        // Snapshots of output may be wider than source lines.
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
fn only_the_edges_print_exit_and_read_the_environment() {
    let edge = |name: &str| EDGES.contains(&name) || EXAMPLES.contains(&name) || name == EDGE_OF_OTHERS;
    let inner: Vec<Source> = sources().into_iter().filter(|source| !edge(&source.package)).collect();
    let talk = words(&[["print", "!("], ["println", "!("], ["eprint", "!("], ["eprintln", "!("]]);
    none(lines_with(&inner, &talk), "only the edges print");
    let world =
        words(&[["env::", "var"], ["env::", "args"], ["env::", "current_dir"], ["process::", "exit"]]);
    // Passwords that are not in the URL are read from where the URL, or PostgreSQL's convention, says.
    let inner: Vec<Source> =
        inner.into_iter().filter(|source| source.path != "crates/onceward-store/src/password.rs").collect();
    // A surface that forgot these variables would not encrypt, so the opener of ledgers reads them for all.
    let opener = "crates/onceward-store/src/seal/environment.rs:";
    let broken = lines_with(&inner, &world).into_iter().filter(|line| !line.starts_with(opener)).collect();
    none(broken, "only the edges read the environment, and exit");
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
fn every_method_of_the_ledger_and_its_handles_has_a_blocking_form() {
    let sources = sources();
    let core =
        |path: &str| sources.iter().find(|source| source.path == format!("crates/onceward/src/{path}"));
    let blocking = &core("ledger/blocking.rs").expect("the file exists").text;
    // What is reached through the other handles is async only: `Blocking::wait_for` drives it.
    let handles = ["Ledger ", "Admin<", "Attempts<", "Repeats<", "Scopes<", "Undo<"];
    let mut broken = Vec::new();
    let mut methods = 0;
    for source in sources.iter().filter(|source| source.path.starts_with("crates/onceward/src/ledger")) {
        let mut inside = false;
        for line in source.text.lines() {
            if line.starts_with("impl") {
                inside = handles.iter().any(|handle| line.starts_with(&format!("impl {handle}")));
            }
            let name = line.strip_prefix("    pub async fn ").or_else(|| line.strip_prefix("    pub fn "));
            let Some(name) = name.filter(|_| inside).and_then(|line| line.split(['(', '<']).next()) else {
                continue;
            };
            methods += 1;
            let own = ["new", "blocking", "events", "names"].contains(&name);
            let accessor = format!("handle!({name}, ");
            let forms = [format!("pub fn {name}("), format!("pub fn {name}<"), format!("    {name}(")];
            let is_handle = blocking.contains(&accessor);
            if !own && !is_handle && !forms.iter().any(|form| blocking.contains(form.as_str())) {
                broken.push(format!("{}: {name}", source.path));
            }
        }
    }
    assert!(methods > 30, "only {methods} methods: were the files renamed?");
    none(broken, "missing in blocking.rs");
}

#[test]
fn every_code_is_documented() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let codes = Code::ALL.iter().map(Code::to_string);
    none(codes.filter(|code| !text.contains(code.as_str())).collect(), "not documented in ARCHITECTURE.md");
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

#[test]
fn prose_is_plain_english() {
    let mut phrases: BTreeMap<&str, Vec<Vec<&str>>> = BTreeMap::new();
    for phrase in DIALECT {
        let words: Vec<&str> = phrase.split(' ').collect();
        phrases.entry(words[0]).or_default().push(words);
    }
    let mut files = Vec::new();
    PLAIN_ENGLISH.iter().for_each(|path| texts(&root().join(path), &mut files));
    assert!(files.len() > 100, "only {} files: are the paths right?", files.len());
    let mut broken = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let prose = prose(&file, &text);
        let path = file.strip_prefix(root()).unwrap().display().to_string();
        for (index, (line, word)) in prose.iter().enumerate() {
            let found = phrases.get(word.as_str()).into_iter().flatten().filter(|phrase| {
                let words = prose[index..].iter().map(|(_, word)| word.as_str()).take(phrase.len());
                words.eq(phrase.iter().copied())
            });
            broken.extend(found.map(|phrase| format!("{path}:{line}: {}", phrase.join(" "))));
        }
    }
    none(broken, "say it in plain technical English")
}

/// The files below a path that contain prose.
fn texts(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| !path.ends_with("target")).for_each(|path| texts(&path, found));
    } else if ["md", "rs", "py", "pyi", "toml"]
        .iter()
        .any(|kind| path.extension().is_some_and(|found| found == *kind))
        || path.parent().is_some_and(|folder| folder == root().join("scripts"))
    {
        found.push(path.to_owned());
    }
}

/// The words of a file's prose in lower case, each with its line: Markdown outside code, comments and docstrings (also
/// of scripts and TOML), and strings of built code. An empty word separates sentences.
fn prose(path: &Path, text: &str) -> Vec<(usize, String)> {
    let kind = path.extension().unwrap_or_default();
    let built = path.components().any(|part| part.as_os_str() == "src");
    let (mut words, mut inside) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let prose = if kind == "md" {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            (!fence && !inside).then_some(line)
        } else if kind != "rs" {
            let was_inside = inside;
            inside ^= line.matches("\"\"\"").count() % 2 == 1;
            if was_inside || line.contains("\"\"\"") {
                Some(line)
            } else {
                line.split_once('#').map(|(_, text)| text)
            }
        } else {
            let comment =
                line.split_once("//").filter(|(code, _)| !code.ends_with(':')).map(|(_, text)| text);
            comment.or((built && line.contains('"')).then_some(line))
        };
        // Every second part is code.
        for (part, text) in prose.unwrap_or("`").split('`').enumerate() {
            if part % 2 == 1 {
                words.push((index + 1, String::new()));
                continue;
            }
            for word in text.split_whitespace() {
                let plain = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
                if plain.is_empty() {
                    continue;
                }
                words.push((index + 1, plain));
                if word.ends_with(['.', ':', ';', ',', ')']) {
                    words.push((index + 1, String::new()));
                }
            }
        }
    }
    words
}

#[test]
fn the_code_map_names_files_that_exist() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, map) = text.split_once("## Code map").unwrap();
    let map = map.split("```").nth(1).unwrap();
    let mut package = PathBuf::new();
    let mut broken = Vec::new();
    for line in map.lines() {
        if let Some(entry) = line.strip_prefix("  ").filter(|line| line.starts_with("onceward")) {
            package = root().join("crates").join(entry.split('/').next().unwrap());
        }
        let names = line.split_whitespace().map(|word| word.trim_matches([',', ';', ':', '.', '(', ')']));
        for name in names.filter(|name| name.ends_with(".rs") || name.ends_with(".py")) {
            let mut files = Vec::new();
            texts(&package, &mut files);
            if !files.iter().any(|file| file.ends_with(name)) {
                broken.push(format!("{}: {name}", package.file_name().unwrap().display()));
            }
        }
    }
    none(broken, "the code map in ARCHITECTURE.md names a file that does not exist");
}
