//! A server over stdio that is started to take calls back.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::pin::pin;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use onceward::{Blocking, Error, Intent, Receipt};
use onceward_mcp::{HostScope, Options, Proxy, Streams, UndoCall, UndoRules, UndoServer};

use super::{identity, stdio};
use crate::answer;
use crate::context::Context;
use crate::environment::PassLedger;
use crate::exit::CommandError;

/// How long a server may take to answer `initialize`.
const HANDSHAKE: Duration = Duration::from_secs(60);
/// How long a compensation may take if the policy has no `timeout` for its tool.
const TIMEOUT_MS: u64 = 300_000;

/// The server whose calls are taken back. It is started with the first compensation.
pub(in crate::commands) struct ToolServer<'a> {
    context: &'a Context,
    ledger: &'a Blocking,
    name: String,
    identity: String,
    command: &'a [OsString],
    running: OnceCell<Running>,
}

struct Running {
    server: UndoServer,
    runtime: tokio::runtime::Runtime,
    child: Mutex<Child>,
    pump: JoinHandle<()>,
}

impl<'a> ToolServer<'a> {
    pub(in crate::commands) fn new(
        context: &'a Context,
        ledger: &'a Blocking,
        given: Option<&String>,
        command: &'a [OsString],
    ) -> Self {
        // As `once mcp` names it.
        let name = given.cloned().unwrap_or_else(|| stdio::server_name(command));
        let identity = given.cloned().unwrap_or_else(|| identity(command));
        Self { context, ledger, name, identity, command, running: OnceCell::new() }
    }

    /// Distinguishes the server from others with the same name.
    pub(in crate::commands) fn identity(&self) -> &str {
        &self.identity
    }

    /// The tool whose calls have this name in the ledger. `None` if it is one of another server.
    pub(in crate::commands) fn tool_of<'b>(&self, operation: &'b str) -> Option<&'b str> {
        operation.strip_prefix(&self.name)?.strip_prefix('/')
    }

    /// What holds for a compensation by this tool.
    pub(in crate::commands) fn rules(&self, tool: &str) -> Result<UndoRules, CommandError> {
        let running = self.running()?;
        Ok(running.runtime.block_on(running.server.rules(tool))?)
    }

    /// Makes the call of a compensation, whose operation is `intent`. When its time is over, the server is ended.
    pub(in crate::commands) fn compensate(
        &self,
        intent: Intent,
        call: &UndoCall,
        rules: &UndoRules,
    ) -> Result<Receipt, CommandError> {
        let running = self.running()?;
        let limit_ms = Some(rules.settings.timeout_ms).filter(|ms| *ms > 0).unwrap_or(TIMEOUT_MS);
        let result: Result<Receipt, Error> = running.runtime.block_on(async {
            let mut made = pin!(running.server.compensate(intent, call));
            match tokio::time::timeout(Duration::from_millis(limit_ms), &mut made).await {
                Ok(result) => result,
                Err(_) => {
                    // Its answer can no longer come, so the call ends in doubt.
                    drop(running.child().kill());
                    made.await
                }
            }
        });
        Ok(result?)
    }

    fn running(&self) -> Result<&Running, CommandError> {
        if let Some(running) = self.running.get() {
            return Ok(running);
        }
        let started = self.start()?;
        Ok(self.running.get_or_init(|| started))
    }

    fn start(&self) -> Result<Running, CommandError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .map_err(|error| CommandError::Outside(format!("cannot start the runtime: {error}")))?;
        let withheld = stdio::withheld(self.context, PassLedger::No);
        let (child, to_server, from_server) = stdio::start(self.command, &withheld)?;
        let options = Options {
            policy: self.context.policy.clone(),
            notice: Box::new(|text| answer::talk(&format!("once: {}", onceward::text::one_line(text)))),
            ..Options::new(self.name.clone(), self.identity.clone(), HostScope::connection())
        };
        let streams = Streams { client: Box::new(std::io::sink()), server: Box::new(to_server) };
        let ledger = self.ledger.ledger().clone();
        let proxy = Proxy::new(ledger, options, streams, runtime.handle().clone());
        let pumped = std::sync::Arc::clone(&proxy);
        let pump = std::thread::spawn(move || {
            pumped.pump_server(from_server);
            pumped.server_gone("the server ended before it answered");
        });
        match runtime.block_on(UndoServer::connect(proxy, HANDSHAKE)) {
            Ok(server) => Ok(Running { server, runtime, child: Mutex::new(child), pump }),
            Err(invalid) => {
                let mut child = child;
                // Nothing was sent to it, and it may have exited already.
                drop(child.kill());
                stdio::ended(&mut child)?;
                Err(invalid.into())
            }
        }
    }
}

impl Running {
    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ToolServer<'_> {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.server.close();
        // A server that does not end is killed; a failure to wait for it changes nothing.
        drop(stdio::ended(&mut running.child()));
        drop(running.pump.join());
    }
}
