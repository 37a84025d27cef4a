//! Small tools that do things right, later, or wrong. The tool under test is this very program: with `ACT_AS` it is the
//! tool, without it the tests.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and says what it did")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use clap::Args;
use onceward_clap::score::{Bench, Score, score};
use onceward_clap::{Applied, Class, Destructive, Fault, Mutating, Op, Plan, Tool, World};
use serde::Serialize;
use serde_json::Value;

/// Which list.
#[derive(Debug, Clone, Args)]
struct ListOptions {
    /// The file of the list
    #[arg(long, env = "LIST_FILE", default_value = "list.txt")]
    file: PathBuf,
}

/// A file with one line for each entry.
struct List {
    file: PathBuf,
}

impl List {
    fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    fn write(&mut self, text: &str) -> std::io::Result<()> {
        std::fs::write(&self.file, text)
    }
}

impl World for List {
    type Options = ListOptions;

    fn place(options: &ListOptions) -> String {
        options.file.display().to_string()
    }

    fn open(options: &ListOptions) -> Result<Self, Fault> {
        Ok(Self { file: options.file.clone() })
    }

    fn open_read_only(options: &ListOptions) -> Result<Self, Fault> {
        Self::open(options)
    }
}

/// Add an entry
#[derive(Args, Serialize)]
struct Add {
    entry: String,
}

impl Mutating for Add {
    const NAME: &'static str = "add";
    const EXAMPLE: &'static [&'static str] = &["milk"];
    type World = List;
    type Data = String;

    fn plan(&self, _list: &List) -> Result<Plan, Fault> {
        Ok(Plan::create(&self.entry))
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<String>, Fault> {
        let text = format!("{}{}\n", op.world().text(), self.entry);
        let (list, dispatched) = op.dispatch()?;
        assert!(self.entry != "panic", "the author made a mistake");
        list.write(&text)?;
        Ok(dispatched.created(self.entry.clone()))
    }
}

/// Clear the list
#[derive(Args, Serialize)]
struct Clear {}

impl Mutating<Destructive> for Clear {
    const NAME: &'static str = "clear";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = List;
    type Data = ();

    fn plan(&self, _list: &List) -> Result<Plan, Fault> {
        Ok(Plan::delete("all entries"))
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<()>, Fault> {
        if op.world().text().is_empty() {
            return Ok(Applied::noop("the list is empty", ()));
        }
        let (list, dispatched) = op.dispatch()?;
        list.write("")?;
        Ok(dispatched.deleted(()))
    }
}

/// What no type can prevent: a plan that writes behind the world's back, and an effect that is a lie
#[derive(Args, Serialize)]
struct Careless {}

impl Mutating for Careless {
    const NAME: &'static str = "careless";
    const EXAMPLE: &'static [&'static str] = &[];
    type World = List;
    type Data = ();

    fn plan(&self, list: &List) -> Result<Plan, Fault> {
        std::fs::write(&list.file, "planned\n")?;
        Ok(Plan::noop("nothing"))
    }

    fn apply(&self, op: Op<'_, List>) -> Result<Applied<()>, Fault> {
        std::fs::write(&op.world().file, format!("{}applied\n", op.world().text()))?;
        Ok(Applied::noop("nothing at all", ()))
    }
}

/// Takes what is taken
#[derive(Args, Serialize)]
struct Clash {
    #[arg(long)]
    scope: Option<String>,
    #[arg(long, visible_alias = "dry-run")]
    pretend: bool,
    #[arg(short = 'h')]
    height: Option<u8>,
    #[arg(long)]
    file: Option<String>,
}

impl Mutating for Clash {
    const NAME: &'static str = "settle";
    const EXAMPLE: &'static [&'static str] = &[];
    const CLASS: Class = Class::Probed;
    type World = List;
    type Data = ();

    fn plan(&self, _list: &List) -> Result<Plan, Fault> {
        Ok(Plan::noop("nothing"))
    }

    fn apply(&self, _op: Op<'_, List>) -> Result<Applied<()>, Fault> {
        Ok(Applied::noop("nothing", ()))
    }
}

fn tool(version: &str) -> Tool<List> {
    let tool = Tool::new("list", "1.0.0", "A list");
    match version {
        "plain" => tool.mutating::<Add>(),
        "later" => tool.mutating::<Add>().destructive::<Clear>(),
        "careless" => tool.mutating::<Careless>(),
        "clash" => tool.mutating::<Clash>(),
        "twice" => tool.mutating::<Add>().mutating::<Add>(),
        other => panic!("there is no version {other}"),
    }
}

fn main() -> ExitCode {
    if let Ok(version) = std::env::var("ACT_AS") {
        return tool(&version).run(onceward_store::ledger);
    }
    let tests: [(&str, fn()); 6] = [
        ("a_command_that_is_added_later_is_not_forgotten", a_command_that_is_added_later_is_not_forgotten),
        ("who_is_careless_scores_nothing", who_is_careless_scores_nothing),
        ("a_name_that_is_taken_is_told_at_start", a_name_that_is_taken_is_told_at_start),
        (
            "a_panic_is_certain_or_in_doubt_and_never_silence",
            a_panic_is_certain_or_in_doubt_and_never_silence,
        ),
        (
            "the_default_ledger_is_private_and_in_the_data_folder",
            the_default_ledger_is_private_and_in_the_data_folder,
        ),
        ("the_command_that_settles_names_the_ledger", the_command_that_settles_names_the_ledger),
    ];
    // Those who list or filter tests ask in this way.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (name, test) in
        tests.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|word| name.contains(word)))
    {
        test();
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

/// A program that acts as a version of the tool: the score starts programs by their path alone.
fn program(folder: &Path, version: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(version);
    let me = std::env::current_exe().unwrap();
    std::fs::write(&path, format!("#!/bin/sh\nACT_AS={version} exec '{}' \"$@\"\n", me.display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn scores(version: &str) -> Vec<Score> {
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

fn run(version: &str, folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(words).env("ACT_AS", version).current_dir(folder).stdin(Stdio::null());
    command.env("HOME", folder).env_remove("XDG_DATA_HOME").env_remove("LIST_LEDGER");
    command.output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn a_command_that_is_added_later_is_not_forgotten() {
    let told = |version| scores(version).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(told("plain"), ["3 add"]);
    assert_eq!(told("later"), ["3 add", "3 clear"]);
}

fn who_is_careless_scores_nothing() {
    let careless = scores("careless").remove(0);
    assert_eq!(careless.points, 1, "the ledger holds the retry back, and the lies are found: {careless}");
    let found = careless.findings.join("\n");
    assert!(found.contains("the dry run changed the world"), "{found}");
    assert!(found.contains("the effect of the first run is noop"), "{found}");
}

fn a_name_that_is_taken_is_told_at_start() {
    let problems = tool("clash").problems();
    assert_eq!(
        problems,
        [
            "a command is called settle, which every tool has already; rename it",
            "the command settle is of class probed, but it has no PROBE",
            "the command settle has an argument --scope, which is taken; rename it",
            "the command settle has an argument --dry-run, which is taken; rename it",
            "the command settle has an argument --file, which is taken; rename it",
            "the command settle has an argument -h, which is taken; rename it",
        ]
    );
    let folder = tempfile::tempdir().unwrap();
    let started = run("clash", folder.path(), &["settle"]);
    assert_eq!(started.status.code(), Some(1));
    assert!(json(&started)["error"]["message"].as_str().unwrap().contains("--scope, which is taken"));
    assert_eq!(tool("twice").problems(), ["two commands are called add; rename one"]);
    assert_eq!(tool("later").problems(), [""; 0]);
}

fn a_panic_is_certain_or_in_doubt_and_never_silence() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ["--ledger", "sqlite:ledger.db"];
    let gave_up = run("plain", folder.path(), &[&["add", "panic"], &ledger[..]].concat());
    assert_eq!(gave_up.status.code(), Some(79), "after the dispatch nobody can say");
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
    assert_eq!(json(&run("plain", folder.path(), &["add", "milk"]))["effect"], "noop");
}

fn the_command_that_settles_names_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["add", "panic", "--ledger", "sqlite:my ledger.db"];
    let fix = json(&run("plain", folder.path(), &words))["error"]["fix_command"].as_str().unwrap().to_owned();
    assert!(fix.ends_with("--as 'done|failed' --ledger 'sqlite:my ledger.db'"), "{fix}");
    // It works as a shell reads it, once a word is chosen.
    let program = program(folder.path(), "plain");
    let line =
        fix.replacen("list ", &format!("'{}' ", program.display()), 1).replace("'done|failed'", "done");
    let settled = Command::new("sh").args(["-c", &line]).current_dir(folder.path()).output().unwrap();
    assert_eq!(json(&settled)["effect"], "updated", "{line}");
    assert_eq!(json(&run("plain", folder.path(), &words))["effect"], "noop");
}
