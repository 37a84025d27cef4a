//! How the framework treats a tool's definition.

use std::process::Command;

use crate::list::tool;
use crate::runs::{json, program, run, scores};

tests![
    a_command_that_is_added_later_is_not_forgotten,
    who_is_careless_scores_nothing,
    a_name_that_is_taken_is_told_at_start,
    a_panic_is_certain_or_in_doubt_and_never_silence,
    the_default_ledger_is_private_and_in_the_data_folder,
    the_command_that_settles_names_the_ledger,
];

fn a_command_that_is_added_later_is_not_forgotten() {
    let told = |version| scores(version).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(told("plain"), ["3 add"]);
    assert_eq!(told("later"), ["3 add", "3 clear"]);
}

fn who_is_careless_scores_nothing() {
    let careless = scores("careless").remove(0);
    assert_eq!(careless.points, 0, "a plan that writes changes the world in a retry too: {careless}");
    let found = careless.findings.join("\n");
    assert!(found.contains("the dry run changed the world"), "{found}");
    assert!(found.contains("the effect of the first run is noop"), "{found}");
}

fn a_name_that_is_taken_is_told_at_start() {
    let problems = tool("clash").problems();
    let reserved = "which onceward-clap or the world's options reserve; rename it";
    assert_eq!(
        problems,
        [
            "a command is called settle, which onceward-clap reserves; rename it".to_owned(),
            "the command settle is of class probed, but it has no PROBE".to_owned(),
            format!("command `settle` defines --scope, {reserved}"),
            format!("command `settle` defines --dry-run, {reserved}"),
            format!("command `settle` defines --file, {reserved}"),
            "command `settle` defines -h, which is reserved; rename it".to_owned(),
        ]
    );
    let folder = tempfile::tempdir().unwrap();
    let started = run("clash", folder.path(), &["settle"]);
    assert_eq!(started.status.code(), Some(1));
    assert!(json(&started)["error"]["message"].as_str().unwrap().contains("defines --scope, which"));
    assert_eq!(tool("twice").problems(), ["two commands are called add; rename one"]);
    assert_eq!(tool("later").problems(), [""; 0]);
}

fn a_panic_is_certain_or_in_doubt_and_never_silence() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ["--ledger", "sqlite:ledger.db"];
    let gave_up = run("plain", folder.path(), &[&["add", "panic"], &ledger[..]].concat());
    assert_eq!(gave_up.status.code(), Some(79), "after the dispatch it is in doubt");
    assert_eq!(json(&gave_up)["error"]["code"], "IN_DOUBT");
    assert!(String::from_utf8_lossy(&gave_up.stderr).contains("the author made a mistake"));
}

fn the_default_ledger_is_private_and_in_the_data_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(json(&run("plain", folder.path(), &["add", "milk", "--dry-run"]))["effect"], "would_create");
    assert!(!folder.path().join(".local").exists(), "a dry run makes no ledger");
    assert_eq!(json(&run("plain", folder.path(), &["add", "milk"]))["effect"], "created");
    let made = folder.path().join(".local/share/list");
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(made.join("ledger.db").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let scoped = ["add", "milk", "--scope", "s"];
    assert_eq!(json(&run("plain", folder.path(), &scoped))["effect"], "created");
    assert_eq!(json(&run("plain", folder.path(), &scoped))["effect"], "noop");
}

fn the_command_that_settles_names_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("my policy.toml"), "").unwrap();
    let words = ["add", "panic", "--ledger", "sqlite:my ledger.db", "--policy", "my policy.toml"];
    let options = json(&run("plain", folder.path(), &words))["error"]["options"].clone();
    let line = options[0]["command"].as_str().unwrap().to_owned();
    let place = folder.path().canonicalize().unwrap();
    let place = place.display();
    let named =
        format!("list --ledger 'sqlite:{place}/my ledger.db' --policy '{place}/my policy.toml' settle op_");
    assert!(line.starts_with(&named), "{line}");
    // It works as a shell reads it in any folder, and again.
    let program = program(folder.path(), "plain");
    let line = line.replacen("list ", &format!("'{}' ", program.display()), 1);
    let settle = || Command::new("sh").args(["-c", &line]).current_dir("/").output().unwrap();
    assert_eq!(json(&settle())["effect"], "updated", "{line}");
    let twice = settle();
    assert_eq!((twice.status.code(), &json(&twice)["effect"]), (Some(0), &"noop".into()));
    assert_eq!(json(&run("plain", folder.path(), &words))["effect"], "noop");
}
