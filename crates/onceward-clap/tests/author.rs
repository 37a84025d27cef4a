//! What an author gets wrong does not compile, and the compiler says what to do.
//!
//! The cases are compiled against the libraries of the build that this test belongs to, so nothing else is compiled.
//! `AUTHOR=overwrite` writes the messages of this compiler into the expectations.
#![allow(clippy::expect_used, reason = "a test may give up")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// The crates that a case names.
const CRATES: [&str; 3] = ["clap", "onceward_clap", "serde"];

/// Where the build of the workspace put the libraries, as `scripts/test` builds it: then cargo has nothing to do.
fn libraries() -> Vec<(String, PathBuf)> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--offline", "--workspace", "--all-features", "--all-targets"]);
    command.arg("--message-format=json-render-diagnostics").current_dir(HERE);
    // Build scripts run again if these change.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_") && !["CARGO_HOME", "CARGO_TARGET_DIR"].contains(&&*name) {
            command.env_remove(&*name);
        }
    }
    let output = command.output().expect("cargo starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let messages = text(&output.stdout);
    let built = messages.lines().map(|line| serde_json::from_str::<Value>(line).expect("cargo speaks JSON"));
    let mut found = Vec::new();
    for artifact in built.filter(|message| message["reason"] == "compiler-artifact") {
        let name = artifact["target"]["name"].as_str().unwrap_or_default();
        let is_library = artifact["target"]["kind"].to_string().contains("lib");
        let mut files = artifact["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let file = files.rfind(|file| file.ends_with(".rlib"));
        if let Some(file) = file.filter(|_| is_library && CRATES.contains(&name)) {
            found.push((name.to_owned(), PathBuf::from(file)));
        }
    }
    assert_eq!(found.len(), CRATES.len(), "each library is built once: {found:?}");
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn compile(case: &Path, libraries: &[(String, PathBuf)], folder: &Path) -> Output {
    let mut command = Command::new("rustc");
    command.args(["--edition=2024", "--emit=metadata", "--color=never", "--out-dir"]).arg(folder);
    for (name, file) in libraries {
        let dependencies = file.parent().expect("a library is in a folder");
        command.arg(format!("-Ldependency={}", dependencies.display()));
        command.arg(format!("-Ldependency={}", dependencies.join("deps").display()));
        command.arg("--extern").arg(format!("{name}={}", file.display()));
    }
    command.arg(case.strip_prefix(HERE).expect("the cases are here")).current_dir(HERE);
    command.output().expect("rustc starts")
}

/// What was wrong and what to do about it, without quoted source and the places of other files.
fn advice(stderr: &str) -> String {
    let said = |line: &&str| {
        let line = line.trim_start_matches(['|', ' ']);
        ["error", "note: ", "help: ", "= note: ", "= help: "].iter().any(|start| line.starts_with(start))
    };
    let lines = stderr.lines().filter(said).filter(|line| !line.starts_with("error: aborting"));
    lines.map(|line| format!("{}\n", line.trim())).collect()
}

#[test]
fn mistakes_do_not_compile() {
    let libraries = libraries();
    let folder = tempfile::tempdir().expect("a folder for the output");
    let cases = std::fs::read_dir(Path::new(HERE).join("tests/author")).expect("the cases");
    let mut cases: Vec<PathBuf> = cases.map(|entry| entry.expect("a case").path()).collect();
    cases.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    cases.sort();
    assert!(cases.len() >= 13, "only {} cases", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let output = compile(&case, &libraries, folder.path());
        assert!(!output.status.success(), "{} compiles", case.display());
        let (advice, file) = (advice(&text(&output.stderr)), case.with_extension("stderr"));
        if std::env::var_os("AUTHOR").is_some_and(|value| value == "overwrite") {
            std::fs::write(&file, &advice).expect("the expectation can be written");
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        if advice != expected {
            wrong.push(format!("{}\nexpected:\n{expected}\ngot:\n{advice}", case.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
