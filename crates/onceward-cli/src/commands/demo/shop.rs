//! The demo's shop: a bank that counts charges, a command that charges, and a way to kill it at the wrong moment.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;

use crate::exit::CommandError;

/// `charge BANK ORDER AMOUNT`. Its duration is not part of the action, so it is set in the environment.
const CHARGE: &str = r#"
[ -z "$STARTED" ] || : > "$STARTED"
sleep "$BEFORE"
echo "$2 $3" >> "$1"
sleep "$AFTER"
echo '{"effect":"created","payment":42}'
"#;

/// How long the demo waits for something that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// With or without the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Without,
    With,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Without, Self::With];
}

/// When the process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    BeforeTheCharge,
    AfterTheCharge,
}

/// The answer to a call.
pub(super) struct Called {
    pub(super) exit: i32,
    pub(super) code: String,
    pub(super) reason: String,
    pub(super) replayed: bool,
}

pub(super) struct Shop {
    folder: tempfile::TempDir,
    once: PathBuf,
}

impl Shop {
    pub(super) fn open() -> Result<Self, CommandError> {
        let folder =
            tempfile::tempdir().map_err(|error| outside("cannot make a folder for the demo", &error))?;
        let once = std::env::current_exe().map_err(|error| outside("cannot find this program", &error))?;
        Ok(Self { folder, once })
    }

    /// Keeps the folder, and says where it is.
    pub(super) fn keep(self) -> PathBuf {
        self.folder.keep()
    }

    /// `once`, in the demo's folder and with its ledger.
    pub(super) fn once(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.once);
        command.args(args).args(["--ledger", &self.ledger()]);
        command.env_remove("ONCE_SCOPE").env_remove("ONCE_CONFIG").current_dir(self.folder.path());
        command
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ledger(&self) -> String {
        format!("sqlite:{}", self.path("demo.db").display())
    }

    /// Charges, and waits for the answer.
    pub(super) fn charge(
        &self,
        side: Side,
        order: &str,
        amount: &str,
        options: &[&str],
    ) -> Result<Called, CommandError> {
        Self::wait(self.start(side, order, amount, options)?)
    }

    /// Starts a charge.
    pub(super) fn start(
        &self,
        side: Side,
        order: &str,
        amount: &str,
        options: &[&str],
    ) -> Result<Child, CommandError> {
        self.spawn(self.command(side, order, amount, options), "0.02", "0.02")
    }

    pub(super) fn wait(child: Child) -> Result<Called, CommandError> {
        #[derive(Deserialize, Default)]
        struct Answered {
            reason: Option<String>,
            operation: Option<Operation>,
            error: Option<Failed>,
        }
        #[derive(Deserialize)]
        struct Operation {
            replayed: bool,
        }
        #[derive(Deserialize)]
        struct Failed {
            code: String,
            message: String,
        }
        let output =
            child.wait_with_output().map_err(|error| outside("cannot wait for the charge", &error))?;
        let answered: Answered = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let (code, message) = answered.error.map(|failed| (failed.code, failed.message)).unwrap_or_default();
        Ok(Called {
            exit: output.status.code().unwrap_or(-1),
            code,
            reason: answered.reason.unwrap_or(message),
            replayed: answered.operation.is_some_and(|operation| operation.replayed),
        })
    }

    /// Starts a charge and kills it, and all that belongs to it, at the wrong moment.
    pub(super) fn charge_and_die(&self, side: Side, order: &str, moment: Moment) -> Result<(), CommandError> {
        let command = self.command(side, order, "100", &[]);
        let started = self.folder.path().join(format!("{side:?}-{order}-started"));
        let mut child = match moment {
            Moment::BeforeTheCharge => {
                // The shell reports that it has started, and then waits before it charges.
                let mut command = command;
                command.env("STARTED", &started);
                self.spawn(command, "30", "0")?
            }
            Moment::AfterTheCharge => self.spawn(command, "0", "30")?,
        };
        self.until(|| match moment {
            Moment::BeforeTheCharge => started.exists(),
            Moment::AfterTheCharge => self.charges(side, order).is_ok_and(|charges| charges > 0),
        })?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        killpg(group, Signal::SIGKILL).map_err(|error| outside("cannot kill the charge", &error.into()))?;
        child.wait().map_err(|error| outside("cannot wait for the charge", &error))?;
        Ok(())
    }

    /// How often the bank was charged for an order.
    pub(super) fn charges(&self, side: Side, order: &str) -> Result<usize, CommandError> {
        let bank = self.bank(side);
        if !bank.exists() {
            return Ok(0);
        }
        let text = std::fs::read_to_string(bank).map_err(|error| outside("cannot read the bank", &error))?;
        Ok(text.lines().filter(|line| line.split(' ').next() == Some(order)).count())
    }

    /// A command that takes a charge back.
    pub(super) fn refund(&self) -> String {
        let bank = self.bank(Side::With);
        let bank = bank.display();
        format!("grep -v '^{{once.key}} ' '{bank}' > '{bank}.new'; mv '{bank}.new' '{bank}'")
    }

    /// Stops a scope: nothing in it begins any more.
    pub(super) fn stop(&self, scope: &str) -> Result<(), CommandError> {
        let stopped = self.once(&["stop", "--json", scope]).output();
        stopped.map(drop).map_err(|error| outside("cannot stop the run", &error))
    }

    /// Takes back everything that was done in a scope; returns the orders, in the order in which they were taken back.
    pub(super) fn undo(&self, scope: &str) -> Result<Vec<String>, CommandError> {
        #[derive(Deserialize)]
        struct Answered {
            data: Undone,
        }
        #[derive(Deserialize)]
        struct Undone {
            steps: Vec<Step>,
        }
        #[derive(Deserialize)]
        struct Step {
            key: String,
            result: String,
        }
        let output = self.once(&["undo", "--json", "--stored", "--scope", scope]).output();
        let output = output.map_err(|error| outside("cannot take the charges back", &error))?;
        let answered: Answered = serde_json::from_slice(&output.stdout)
            .map_err(|error| outside("cannot read the answer of once undo", &error.into()))?;
        let undone = answered.data.steps.into_iter().filter(|step| step.result == "undone");
        Ok(undone.map(|step| step.key).collect())
    }

    /// A question to the bank: was this order charged?
    pub(super) fn probe(&self, order: &str) -> String {
        format!("grep -q '^{order} ' '{}'", self.bank(Side::With).display())
    }

    fn bank(&self, side: Side) -> PathBuf {
        self.folder.path().join(format!("bank-{side:?}"))
    }

    fn command(&self, side: Side, order: &str, amount: &str, options: &[&str]) -> Command {
        let bank = self.bank(side);
        let shell: [&OsStr; 7] = [
            "sh".as_ref(),
            "-c".as_ref(),
            CHARGE.as_ref(),
            "charge".as_ref(),
            bank.as_ref(),
            order.as_ref(),
            amount.as_ref(),
        ];
        match side {
            Side::Without => {
                let mut command = Command::new(shell[0]);
                command.args(&shell[1..]);
                command
            }
            Side::With => {
                let mut command = self.once(&["run", "--json", "--name", "charge", "--key", order]);
                // The bank is a file: nothing is in flight after the charge was killed, and grep says "no" with
                // exit code 1.
                command.args(["--quarantine", "0s", "--probe-no", "1"]);
                command.args(options).arg("--").args(shell);
                command
            }
        }
    }

    fn spawn(&self, mut command: Command, before: &str, after: &str) -> Result<Child, CommandError> {
        command.env("BEFORE", before).env("AFTER", after).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().map_err(|error| outside("cannot start the charge", &error))
    }

    fn until(&self, mut true_now: impl FnMut() -> bool) -> Result<(), CommandError> {
        let end = Instant::now() + PATIENCE;
        while !true_now() {
            if Instant::now() >= end {
                let folder: &Path = self.folder.path();
                return Err(CommandError::Outside(format!(
                    "the charge in {} did not begin",
                    folder.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

pub(super) fn outside(what: &str, error: &std::io::Error) -> CommandError {
    CommandError::Outside(format!("{what}: {error}"))
}
