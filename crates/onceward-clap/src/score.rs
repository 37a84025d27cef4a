//! Runs every mutating command of a tool as an agent would, and scores it: 0 to 3, for the author's own tests.
//!
//! The commands and their arguments come from the tool's manifest, so one that is added later is not forgotten.
//!
//! | score | what holds |
//! |---|---|
//! | 0 | a retry with the same key has a second effect, or is refused |
//! | 1 | it has none |
//! | 2 | and every answer's `effect` says what really happened |
//! | 3 | and a dry run says what would happen, and writes nothing |

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A place in which a command can be tried: a world and a ledger of its own.
pub struct Bench {
    /// The folder that the command runs in.
    pub folder: PathBuf,
    /// Its environment, besides the caller's: which world, and which ledger.
    pub environment: Vec<(String, String)>,
    /// The ledger's file, which a dry run must not make.
    pub ledger: PathBuf,
    /// Looks at the whole world, and gives something that differs when it has changed.
    pub look: Box<dyn Fn() -> String>,
}

/// What a command scored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Score {
    /// The command.
    pub command: String,
    /// 0 to 3.
    pub points: u8,
    /// What was wrong.
    pub findings: Vec<String>,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.points, self.command)?;
        self.findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}

/// Scores every mutating and destructive command that the manifest names. `bench` makes a new place for each.
///
/// # Errors
/// When the manifest cannot be read.
pub fn score(tool: &Path, mut bench: impl FnMut(&str) -> Bench) -> Result<Vec<Score>, String> {
    let manifest = manifest(tool)?;
    let commands = manifest["commands"].as_object().ok_or("the manifest names no commands")?;
    let of_its_own = |entry: &Value| entry["builtin"] != true && entry["danger_level"] != "safe";
    let scored = commands.iter().filter(|(_, entry)| of_its_own(entry));
    Ok(scored.map(|(name, entry)| Trial::new(tool, name, entry, bench(name)).score()).collect())
}

fn manifest(tool: &Path) -> Result<Value, String> {
    let output = Command::new(tool)
        .args(["manifest", "--json", "--envelope", "contract"])
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| format!("{} cannot be started: {error}", tool.display()))?;
    let envelope: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the manifest is not JSON: {error}"))?;
    Ok(envelope["data"].clone())
}

/// The answer to one run.
struct Run {
    exit: Option<i32>,
    envelope: Value,
}

impl Run {
    fn effect(&self) -> &str {
        self.envelope["effect"].as_str().unwrap_or("none")
    }
}

struct Trial<'a> {
    tool: &'a Path,
    name: &'a str,
    example: Vec<String>,
    destructive: bool,
    streams: bool,
    bench: Bench,
    findings: Vec<String>,
}

impl<'a> Trial<'a> {
    fn new(tool: &'a Path, name: &'a str, entry: &Value, bench: Bench) -> Self {
        let words = entry["retry"]["example"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            tool,
            name,
            example: words.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            destructive: entry["danger_level"] == "destructive",
            streams: entry["streaming_default"] == true,
            bench,
            findings: Vec::new(),
        }
    }

    fn score(mut self) -> Score {
        let dry = self.dry_run();
        let confirmed = self.refuses_unconfirmed();
        let (once, truthful) = self.runs();
        let points = match (once, truthful, dry && confirmed) {
            (false, _, _) => 0,
            (true, false, _) => 1,
            (true, true, false) => 2,
            (true, true, true) => 3,
        };
        Score { command: self.name.to_owned(), points, findings: self.findings }
    }

    /// A dry run, before there is a ledger: it says what would happen, and leaves no trace.
    fn dry_run(&mut self) -> bool {
        let before = (self.bench.look)();
        let run = self.run("dry", &["--dry-run"]);
        let unchanged = (self.bench.look)() == before;
        let found = self.findings.len();
        self.expect(run.exit == Some(0), || {
            format!("the dry run ended with {:?}: {}", run.exit, run.envelope)
        });
        self.expect(run.effect().starts_with("would_"), || {
            format!("the dry run's effect is {}", run.effect())
        });
        self.expect(unchanged, || "the dry run changed the world".to_owned());
        let written = self.bench.ledger.exists();
        self.expect(!written, || "the dry run wrote to the ledger".to_owned());
        self.findings.len() == found
    }

    /// What destroys is refused without a word of confirmation.
    fn refuses_unconfirmed(&mut self) -> bool {
        if !self.destructive {
            return true;
        }
        let before = (self.bench.look)();
        let run = self.run("unconfirmed", &[]);
        let refused = run.exit == Some(2) && (self.bench.look)() == before;
        self.expect(refused, || format!("unconfirmed it ended with {:?}", run.exit));
        refused
    }

    /// Twice with one key, once with another. Gives whether the retry had no effect, and whether all effects are true.
    fn runs(&mut self) -> (bool, bool) {
        let confirm: &[&str] = if self.destructive { &["--confirm"] } else { &[] };
        let new = (self.bench.look)();
        let first = self.run("one", confirm);
        let changed = (self.bench.look)();
        let retry = self.run("one", confirm);
        let after_retry = (self.bench.look)();
        let other = self.run("other", confirm);
        let last = (self.bench.look)();
        let same_data = self.streams || first.envelope["data"] == retry.envelope["data"];
        let found = self.findings.len();
        self.expect(first.exit == Some(0), || format!("the first run failed: {}", first.envelope));
        self.expect(retry.exit == Some(0), || format!("the retry failed: {}", retry.envelope));
        self.expect(after_retry == changed, || "the retry had a second effect".to_owned());
        self.expect(same_data, || "the retry's data is not the first run's".to_owned());
        let once = self.findings.len() == found;
        self.expect(changed != new, || "the example changes nothing, so nothing is proved by it".to_owned());
        self.truth("the first run", &first, changed != new);
        self.expect(retry.effect() == "noop", || format!("the retry's effect is {}", retry.effect()));
        self.expect(other.exit == Some(0), || format!("the run with another key failed: {}", other.envelope));
        self.truth("the run with another key", &other, last != after_retry);
        (once, self.findings.len() == found)
    }

    /// The effect says whether the world changed.
    fn truth(&mut self, which: &str, run: &Run, changed: bool) {
        let says = matches!(run.effect(), "created" | "updated" | "deleted");
        let effect = run.effect().to_owned();
        self.expect(says == changed && (says || effect == "noop"), || {
            format!(
                "the effect of {which} is {effect}, and the world has {}",
                if changed { "changed" } else { "not" }
            )
        });
    }

    fn expect(&mut self, holds: bool, finding: impl FnOnce() -> String) {
        if !holds {
            self.findings.push(finding());
        }
    }

    fn run(&self, key: &str, more: &[&str]) -> Run {
        let mut command = Command::new(self.tool);
        command.arg(self.name).args(&self.example).args(more).args(["--idempotency-key", key]);
        command.args(["--json", "--envelope", "contract"]);
        if self.streams {
            command.arg("--no-stream");
        }
        let environment = self.bench.environment.iter().map(|(name, value)| (name, value));
        command.current_dir(&self.bench.folder).envs(environment).stdin(Stdio::null());
        match command.output() {
            Ok(output) => Run {
                exit: output.status.code(),
                envelope: serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
            },
            Err(_) => Run { exit: None, envelope: Value::Null },
        }
    }
}
