//! A shop of its own for each test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(180);

/// The program under test.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_shop"))
}

/// A folder with a shop's database and ledger.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    environment: Vec<(&'static str, String)>,
}

/// How a run ended.
pub(crate) struct Ran {
    pub(crate) exit: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let orders = Path::new(env!("CARGO_MANIFEST_DIR")).join("orders.jsonl");
        std::fs::copy(orders, folder.path().join("orders.jsonl")).unwrap();
        let ledger = format!("sqlite:{}", folder.path().join("ledger.db").display());
        let environment = vec![("SHOP_LEDGER", ledger)];
        Self { folder, environment }
    }

    /// The same shop with another environment.
    pub(crate) fn with(&self, name: &'static str, value: &str) -> Command {
        let mut command = self.command();
        command.env(name, value);
        command
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(program());
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        for name in ["SHOP_TROUBLE", "SHOP_DATABASE", "SHOP_ENVELOPE", "SHOP_SCOPE", "SHOP_POLICY"] {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn run(&self, line: &str) -> Ran {
        run(self.command(), line)
    }

    /// Runs it in trouble.
    pub(crate) fn run_in(&self, trouble: &str, line: &str) -> Ran {
        run(self.with("SHOP_TROUBLE", trouble), line)
    }

    /// Starts it in trouble and does not wait.
    pub(crate) fn start_in(&self, trouble: &str, line: &str) -> Child {
        let mut command = self.with("SHOP_TROUBLE", trouble);
        command.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Everything that the shop holds.
    pub(crate) fn look(&self) -> String {
        look(&self.file("shop.db"))
    }

    /// Waits until the shop has changed.
    pub(crate) fn wait_for_change(&self, before: &str) {
        self.wait_for(|| self.look() != before);
    }

    /// Waits until something is so.
    pub(crate) fn wait_for(&self, is_so: impl Fn() -> bool) {
        onceward_testkit::eventually(&format!("it is so in {}", self.folder.path().display()), is_so);
    }

    /// Waits until the ledger holds an operation that runs.
    pub(crate) fn wait_for_intent(&self) {
        self.wait_for(|| self.file("ledger.db").exists() && !self.states().is_empty());
    }

    /// Its ledger, for what people do beside it.
    pub(crate) fn ledger(&self) -> Option<onceward::Blocking> {
        let url = format!("sqlite:{}", self.file("ledger.db").display());
        let ledger = onceward_store::ledger(&url, onceward_clap::IfMissing::Fail).ok()?;
        Some(ledger.blocking())
    }

    /// The state of each operation, as `once ls` and `once report` read it.
    pub(crate) fn states(&self) -> Vec<String> {
        let Some(ledger) = self.ledger() else { return Vec::new() };
        let filter = onceward::Filter { limit: 1_000, ..onceward::Filter::default() };
        let listed = ledger.list(&filter).unwrap();
        listed.iter().map(|(listed, state)| format!("{} {state}", listed.record.name)).collect()
    }
}

pub(crate) fn run(mut command: Command, line: &str) -> Ran {
    command.args(line.split(' ').filter(|word| !word.is_empty()));
    ran(command.output().unwrap())
}

pub(crate) fn ran(output: Output) -> Ran {
    use std::os::unix::process::ExitStatusExt;
    let exit = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { exit, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Sends a signal and waits for the end.
pub(crate) fn signal(child: Child, signal: Signal) -> Ran {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    ran(child.wait_with_output().unwrap())
}

/// Every row of every table of a database.
pub(crate) fn look(database: &Path) -> String {
    if !database.exists() {
        return "no shop".to_owned();
    }
    let connection = Connection::open(database).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    let mut text = String::new();
    for table in ["orders", "emails", "counters", "services", "users"] {
        let Ok(mut rows) = connection.prepare(&format!("SELECT * FROM {table}")) else {
            return "a new shop".to_owned();
        };
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let cells: Vec<_> =
                (0..columns).map(|index| format!("{:?}", row.get_ref(index).unwrap())).collect();
            text.push_str(&format!("{table}: {}\n", cells.join(" ")));
        }
    }
    text
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!("stdout is not one JSON document: {error}\n{}\n{}", self.stdout, self.stderr)
        })
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Effect and exit, which is what an agent looks at first.
    pub(crate) fn told(&self) -> (String, i32) {
        (self.json()["effect"].as_str().unwrap_or("none").to_owned(), self.exit)
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or("none").to_owned()
    }
}

/// A pair to compare with [`Ran::told`].
pub(crate) fn told(effect: &str, exit: i32) -> (String, i32) {
    (effect.to_owned(), exit)
}

/// How many rows of a table the shop holds.
pub(crate) fn count(shop: &Fixture, table: &str) -> usize {
    shop.look().lines().filter(|line| line.starts_with(&format!("{table}: "))).count()
}
