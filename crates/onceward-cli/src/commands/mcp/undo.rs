//! A server that takes calls back: one over stdio is started for that.

use std::cell::OnceCell;
use std::pin::pin;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use onceward::{Blocking, Error, Intent, Receipt};
use onceward_mcp::http::Remote;
use onceward_mcp::{HostScope, Options, Proxy, Streams, UndoCall, UndoRules, UndoServer};

use super::{Server, command_identity, http, identity, stdio};
use crate::answer;
use crate::cli::{HeaderArgs, UndoArgs};
use crate::context::Context;
use crate::environment::PassLedger;
use crate::exit::CommandError;

/// How long a server may take to answer `initialize`.
const HANDSHAKE: Duration = Duration::from_secs(60);
/// How long the end of a session over HTTP may take.
const CLOSING: Duration = Duration::from_secs(5);
/// How long a compensation may take if the policy has no `timeout` for its tool.
const TIMEOUT_MS: u64 = 300_000;

/// The server whose calls are taken back. It is started, or visited, with the first compensation.
pub(in crate::commands) struct ToolServer<'a> {
    context: &'a Context,
    ledger: &'a Blocking,
    name: String,
    identity: String,
    server: Server,
    headers: &'a HeaderArgs,
    running: OnceCell<Running>,
}

struct Running {
    server: UndoServer,
    runtime: tokio::runtime::Runtime,
    /// The process, and the thread that reads what it says. `None` if the server is over HTTP.
    process: Option<(Mutex<Child>, JoinHandle<()>)>,
}

impl<'a> ToolServer<'a> {
    /// The server that the arguments name, if they name one.
    pub(in crate::commands) fn of(
        context: &'a Context,
        ledger: &'a Blocking,
        args: &'a UndoArgs,
    ) -> Result<Option<Self>, CommandError> {
        if args.http.is_none() && args.server.is_empty() {
            if args.server_name.is_some() || args.headers.are_given() {
                return Err(CommandError::invalid(
                    "--server, --header and --header-env are about an MCP server; give its command after `--`, or \
                     its address with --http",
                ));
            }
            return Ok(None);
        }
        let server = Server::of(args.http.as_ref(), &args.server)?;
        // As `once mcp` names it.
        let (name, made) = match &server {
            Server::Command(command) => (stdio::server_name(command), command_identity(command)),
            Server::Url(url) => (http::server_name(url), identity(&[url.into()])),
        };
        let name = args.server_name.clone().unwrap_or(name);
        let identity = args.server_name.clone().unwrap_or(made);
        let headers = &args.headers;
        Ok(Some(Self { context, ledger, name, identity, server, headers, running: OnceCell::new() }))
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
                    running.server.give_up();
                    if let Some((child, _)) = &running.process {
                        drop(lock(child).kill());
                    }
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
            .enable_all()
            .build()
            .map_err(|error| CommandError::Outside(format!("cannot start the runtime: {error}")))?;
        let options = Options {
            policy: self.context.policy.clone(),
            notice: Box::new(|text| answer::talk(&format!("once: {}", onceward::text::one_line(text)))),
            ..Options::new(self.name.clone(), self.identity.clone(), HostScope::connection())
        };
        let ledger = self.ledger.ledger().clone();
        let command = match &self.server {
            Server::Command(command) => command,
            Server::Url(url) => {
                let (remote, headers) = (Remote::new(url)?, self.headers.read()?);
                let visit = UndoServer::visit((ledger, options), remote, &headers, HANDSHAKE);
                return Ok(Running { server: runtime.block_on(visit)?, runtime, process: None });
            }
        };
        let withheld = stdio::withheld(self.context, PassLedger::No);
        let (child, to_server, from_server) = stdio::start(command, &withheld)?;
        let streams = Streams { client: Box::new(std::io::sink()), server: Box::new(to_server) };
        let proxy = Proxy::new(ledger, options, streams, runtime.handle().clone());
        let pumped = std::sync::Arc::clone(&proxy);
        let pump = std::thread::spawn(move || {
            pumped.pump_server(from_server);
            pumped.server_gone("the server ended before it answered");
        });
        match runtime.block_on(UndoServer::connect(proxy, HANDSHAKE)) {
            Ok(server) => Ok(Running { server, runtime, process: Some((Mutex::new(child), pump)) }),
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

fn lock(child: &Mutex<Child>) -> std::sync::MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ToolServer<'_> {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        // A session that cannot be ended in time ends on its own.
        let closing = async { tokio::time::timeout(CLOSING, running.server.close()).await };
        drop(running.runtime.block_on(closing));
        if let Some((child, pump)) = running.process {
            // A server that does not end is killed; a failure to wait for it changes nothing.
            drop(stdio::ended(&mut lock(&child)));
            drop(pump.join());
        }
    }
}
