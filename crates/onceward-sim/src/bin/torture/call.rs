//! One `once run` of the downstream.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::Trouble;
use crate::bench::{Bench, Case};
use crate::downstream;

/// The class of a call, which decides what happens when it is in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Once,
    Probed,
    Idempotent,
}

impl Class {
    pub(crate) const ALL: [Self; 3] = [Self::Once, Self::Probed, Self::Idempotent];

    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "once" => Some(Self::Once),
            "probed" => Some(Self::Probed),
            "idempotent" => Some(Self::Idempotent),
            _ => None,
        }
    }
}

/// A call under construction.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Without a key, one is derived.
    pub(crate) key: Option<String>,
    pub(crate) class: Class,
    pub(crate) before_ms: u64,
    pub(crate) after_ms: u64,
    /// Exit with this code and without an effect.
    pub(crate) refuse: Option<u8>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) arguments: Vec<String>,
}

impl Call {
    pub(crate) fn new(key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..Self::derived() }
    }

    pub(crate) fn derived() -> Self {
        Self {
            key: None,
            class: Class::Once,
            before_ms: 0,
            after_ms: 0,
            refuse: None,
            environment: Vec::new(),
            arguments: Vec::new(),
        }
    }

    pub(crate) fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// How long the command takes before and after its effect.
    pub(crate) fn takes(self, before_ms: u64, after_ms: u64) -> Self {
        Self { before_ms, after_ms, ..self }
    }

    pub(crate) fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn environment(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// The complete command line.
    pub(crate) fn command(&self, bench: &Bench, case: &Case) -> Command {
        let mut command = Command::new(&bench.once);
        self.add_to(&mut command, bench, case);
        command
    }

    /// The same as the arguments of another program, for example a tracer.
    pub(crate) fn behind(&self, mut tracer: Command, bench: &Bench, case: &Case) -> Command {
        tracer.arg(&bench.once);
        self.add_to(&mut tracer, bench, case);
        tracer
    }

    fn add_to(&self, command: &mut Command, bench: &Bench, case: &Case) {
        command.args(["--ledger", &case.url()]).arg("run").args(["--name", "downstream"]);
        match &self.key {
            Some(key) => command.args(["--key", key]),
            // Equal calls must be the same operation, even after the answer was delivered.
            None => command.arg("--keys=strict"),
        };
        match self.class {
            Class::Once => {}
            Class::Probed => {
                // The effects of this downstream end with its command, whose lock shows that.
                command.args(["--probe", downstream::PROBE, "--probe-no=1", "--quarantine=0s"]);
            }
            Class::Idempotent => {
                command.args(["--class", "idempotent"]);
            }
        }
        command.arg(format!("--fail-exit={}", downstream::NO_EFFECT));
        command.args(&self.arguments).arg("--").arg(&bench.torture).arg(downstream::ROLE);
        // The user's own policy must not change the test.
        command.current_dir(&case.folder).env_remove("ONCE_CONFIG").env("XDG_CONFIG_HOME", &case.folder);
        command.env(downstream::FILE, &case.effects);
        command.env(downstream::BEFORE_MS, self.before_ms.to_string());
        command.env(downstream::AFTER_MS, self.after_ms.to_string());
        if let Some(code) = self.refuse {
            command.env(downstream::REFUSE, code.to_string());
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
    }

    /// Starts it; read its output with [`Child::wait_with_output`].
    pub(crate) fn start(&self, bench: &Bench, case: &Case) -> Result<Child, Trouble> {
        Ok(self.command(bench, case).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// Runs it to completion.
    pub(crate) fn run(&self, bench: &Bench, case: &Case) -> Result<Ended, Trouble> {
        let begun = Instant::now();
        let output = self.command(bench, case).output()?;
        Ok(Ended::from(output).took(begun.elapsed()))
    }
}

/// How a call ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    /// `None` if it was killed.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Ended {
    fn took(self, took: Duration) -> Self {
        Self { took, ..self }
    }

    /// Exit code and last line of the output, for a report.
    pub(crate) fn words(&self) -> String {
        let line = self.stderr.lines().find(|line| !line.is_empty()).unwrap_or("");
        format!("exit {:?}: {line}", self.code)
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: Duration::ZERO,
        }
    }
}
