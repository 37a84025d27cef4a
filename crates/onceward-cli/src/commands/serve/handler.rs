//! Handlers of the webhook inbox that are commands. Each delivery is a `once run` of its own, so that a command has the
//! same rules, locks and evidence as everywhere else, and outlives a server that is killed.

use std::path::PathBuf;
use std::process::Stdio;

use async_trait::async_trait;
use onceward::Code;
use onceward_http::inbox::{CommandDelivery, RunCommand, Unsuccessful};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Starts `once run` for each delivery.
#[derive(Debug)]
pub(super) struct OnceRun {
    /// The URL of the ledger. It is passed in the environment, because it may contain a password.
    pub(super) ledger: String,
    /// The policy.
    pub(super) config: Option<PathBuf>,
    /// The variables with the secrets of hooks. Commands do not get them.
    pub(super) secrets: Vec<String>,
}

/// The answer of `once run`, as far as it matters here.
#[derive(Deserialize)]
struct Answer {
    ok: bool,
    error: Option<Told>,
}

#[derive(Deserialize)]
struct Told {
    code: String,
    message: String,
}

#[async_trait]
impl RunCommand for OnceRun {
    async fn run(&self, delivery: CommandDelivery) -> Result<(), Unsuccessful> {
        let lost = |what: &str, error: &dyn std::fmt::Display| Unsuccessful {
            code: None,
            message: format!("{what}: {error}"),
        };
        let program = std::env::current_exe().map_err(|error| lost("the program's own path", &error))?;
        let answer = tempfile::NamedTempFile::new().map_err(|error| lost("a file for its answer", &error))?;
        let mut command = Command::new(program);
        for name in &self.secrets {
            command.env_remove(name);
        }
        command.env("ONCE_LEDGER", &self.ledger);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.args(["--json", "run", "--quiet", "--wait", "0ms", "--delivery"]);
        command.arg("--status-file").arg(answer.path());
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
        let mut child = command.spawn().map_err(|error| lost("`once run` cannot be started", &error))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input has its own reasons; its exit code counts.
            drop(stdin.write_all(&delivery.body).await);
            drop(stdin.shutdown().await);
        }
        let exit = child.wait().await.map_err(|error| lost("`once run` was lost", &error))?;
        let text = std::fs::read(answer.path()).unwrap_or_default();
        match serde_json::from_slice::<Answer>(&text) {
            Ok(Answer { ok: true, .. }) => Ok(()),
            Ok(Answer { ok: false, error: Some(Told { code, message }) }) => {
                let code = Code::ALL.into_iter().find(|known| known.as_str() == code);
                Err(Unsuccessful { code, message })
            }
            Ok(Answer { ok: false, error: None }) | Err(_) => Err(lost("`once run` gave no answer", &exit)),
        }
    }
}
