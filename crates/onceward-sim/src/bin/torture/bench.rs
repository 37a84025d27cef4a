//! The programs and folders that scenarios use, and the clean-up.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward_sim::random::Random;

use crate::Trouble;
use crate::args::Args;

/// What every scenario needs.
pub(crate) struct Bench {
    /// The `once` under test.
    pub(crate) once: PathBuf,
    /// This program, which is also the downstream.
    pub(crate) torture: PathBuf,
    pub(crate) short: bool,
    pub(crate) seed: u64,
    folder: PathBuf,
    keep: bool,
    cases: AtomicU64,
}

/// One ledger, and the file in which its effects are counted.
pub(crate) struct Case {
    pub(crate) folder: PathBuf,
    pub(crate) ledger: PathBuf,
    pub(crate) effects: PathBuf,
    keep: bool,
}

impl Bench {
    pub(crate) fn new(args: &Args) -> Result<Self, Trouble> {
        let parent = args.folder.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new().prefix("torture-").tempdir_in(parent)?.keep();
        Ok(Self {
            once: once(args.once.as_deref())?,
            torture: std::env::current_exe()?,
            short: args.short,
            seed: args.seed.unwrap_or_else(seed_from_clock),
            folder,
            keep: args.keep,
            cases: AtomicU64::new(0),
        })
    }

    /// A new case whose ledger does not exist yet.
    pub(crate) fn case(&self) -> Result<Case, Trouble> {
        let number = self.cases.fetch_add(1, Ordering::Relaxed);
        Case::at(&self.folder.join(format!("case-{number}")), self.keep)
    }

    /// A copy of the current state of another case.
    pub(crate) fn copy(&self, template: &Case) -> Result<Case, Trouble> {
        let case = self.case()?;
        for entry in std::fs::read_dir(&template.folder)? {
            let entry = entry?;
            std::fs::copy(entry.path(), case.folder.join(entry.file_name()))?;
        }
        Ok(case)
    }

    /// A folder to mount a disk on.
    pub(crate) fn mount_point(&self, name: &str) -> Result<PathBuf, Trouble> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// A generator for one part of the run, independent of the parts before it.
    pub(crate) fn random(&self, part: &str) -> Random {
        let salt = part.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(131).wrapping_add(u64::from(byte)));
        Random::seeded(self.seed ^ salt)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.keep {
            // Anything that cannot be removed stays in the folder for temporary files; nothing depends on it.
            drop(std::fs::remove_dir_all(&self.folder));
        }
    }
}

impl Case {
    /// A case in a folder of its own.
    pub(crate) fn at(folder: &Path, keep: bool) -> Result<Self, Trouble> {
        std::fs::create_dir_all(folder)?;
        let effects = folder.join("effects");
        std::fs::write(&effects, "")?;
        Ok(Self { ledger: folder.join("once.db"), effects, folder: folder.to_owned(), keep })
    }

    /// A case whose ledger is in another place than its effects.
    pub(crate) fn with_ledger(mut self, ledger: PathBuf) -> Self {
        self.ledger = ledger;
        self
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.ledger.display())
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if !self.keep {
            drop(std::fs::remove_dir_all(&self.folder));
        }
    }
}

/// The `once` to torture: the given one, or the one that cargo builds.
fn once(given: Option<&Path>) -> Result<PathBuf, Trouble> {
    if let Some(path) = given {
        return Ok(path.canonicalize().map_err(|error| format!("--once {}: {error}", path.display()))?);
    }
    progress("building once");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--release",
        "-p",
        "onceward-cli",
        "--bin",
        "once",
        "--message-format",
        "json-render-diagnostics",
    ]);
    let output =
        build.arg("--manifest-path").arg(manifest).stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("`cargo build --release -p onceward-cli` failed; give --once PATH".into());
    }
    let built = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .find(|path| path.file_stem().is_some_and(|stem| stem == "once"));
    built.ok_or_else(|| "cargo did not say where it put `once`; give --once PATH".into())
}

#[expect(clippy::expect_used, reason = "a machine whose clock is before 1970 is broken")]
fn seed_from_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.expect("the clock is after 1970");
    Random::seeded(u64::from(since.subsec_nanos()) ^ since.as_secs()).draw() % 1_000_000_000
}

/// A progress line that the next one replaces, if stderr is a terminal.
pub(crate) fn progress(text: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        drop(write!(err, "\r\x1b[K{text}").and_then(|()| err.flush()));
    }
}
