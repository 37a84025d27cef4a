//! Handlers of the webhook inbox that are commands. Each delivery is a `once run` of its own, so that a command has the
//! same rules, locks and evidence as everywhere else, and outlives a server that is killed.

use std::path::PathBuf;
use std::process::Stdio;

use async_trait::async_trait;
use onceward_http::inbox::{CommandDelivery, RunCommand};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Starts `once run` for each delivery.
#[derive(Debug)]
pub(super) struct OnceRun {
    /// The URL of the ledger. It is passed in the environment, because it may contain a password.
    pub(super) ledger: String,
    /// The policy.
    pub(super) config: Option<PathBuf>,
}

#[async_trait]
impl RunCommand for OnceRun {
    async fn run(&self, delivery: CommandDelivery) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|error| format!("the program's own path: {error}"))?;
        let mut command = Command::new(program);
        command.env("ONCE_LEDGER", &self.ledger);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.args(["--json", "run", "--quiet", "--wait", "0ms"]);
        command.args(["--scope", &delivery.scope, "--name", &delivery.name, "--key", &delivery.key]);
        command.args(["--class", delivery.class.as_str(), "--attempts", &delivery.attempts.to_string()]);
        command.args(["--timeout", &format!("{}ms", delivery.timeout_ms)]);
        command.args(["--ttl", &format!("{}ms", delivery.retention_ms)]);
        if let Some(probe) = &delivery.probe {
            command.args(["--probe", probe]);
        }
        command.arg("--").args(&delivery.command);
        command.envs(delivery.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("`once run` cannot be started: {error}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input has its own reasons; its exit code counts.
            drop(stdin.write_all(&delivery.body).await);
            drop(stdin.shutdown().await);
        }
        // How it ended is in the ledger.
        child.wait().await.map(drop).map_err(|error| format!("`once run` was lost: {error}"))
    }
}
