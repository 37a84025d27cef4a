//! The same commands as MCP tools: each call is a process of this tool, so validation, ledger and truth are the same.

mod argv;
mod message;

use std::collections::HashMap;
use std::io::{BufRead, Read, Write};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Mutex;

use clap::{ArgMatches, Command};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use onceward::answer::ErrorView;
use onceward::{Code, Happened, Ran};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::command::World;
use crate::entry::Facts;
use crate::envelope::Envelope;
use crate::fault::FaultKind;
use crate::manifest::{DangerLevel, about, input_schema};
use crate::referee::lock;
use crate::session::Session;
use message::{Era, Request};

/// How many calls run at a time.
const MAX_CALLS: usize = 64;
/// How long a message may be, in bytes. What is longer is cut, and then it is no JSON.
const MAX_LINE: u64 = 16 * 1024 * 1024;

/// Serves until stdin ends, and then until the last call has answered.
pub(super) fn serve<W: World>(
    session: &Session<W>,
    mut definition: Command,
    facts: &[Facts],
    matches: &ArgMatches,
) -> u8 {
    definition.build();
    let executable = match std::env::current_exe() {
        Ok(executable) => executable,
        Err(error) => {
            session.voice.talk(&format!("{}: cannot find its own program file: {error}", session.tool));
            return 1;
        }
    };
    let server = Server {
        tool: session.tool,
        version: session.voice.version,
        everywhere: argv::everywhere(&definition, matches),
        definition,
        facts: facts.to_vec(),
        executable,
        running: Mutex::default(),
        out: Mutex::new(()),
    };
    let mut input = std::io::stdin().lock();
    std::thread::scope(|scope| {
        let mut line = String::new();
        while let Ok(1..) = input.by_ref().take(MAX_LINE).read_line(&mut line) {
            match Request::parse(&line) {
                _ if line.trim().is_empty() => {}
                Ok(request) if request.method == "tools/call" => {
                    let server = &server;
                    scope.spawn(move || server.call(&request));
                }
                Ok(request) => server.answer(&request),
                Err(refusal) => server.send(&refusal),
            }
            line.clear();
        }
    });
    0
}

struct Server {
    tool: &'static str,
    version: &'static str,
    definition: Command,
    facts: Vec<Facts>,
    executable: std::path::PathBuf,
    /// What was typed for the server and holds for each call: the ledger, the world's options.
    everywhere: Vec<std::ffi::OsString>,
    /// The processes of the calls that are under way, by the id of their request.
    running: Mutex<HashMap<String, Running>>,
    out: Mutex<()>,
}

enum Running {
    /// By its process id.
    Process(Pid),
    /// Nobody waits for its answer any more.
    Cancelled,
}

impl Server {
    /// Everything but calls.
    fn answer(&self, request: &Request) {
        let result = match request.method.as_str() {
            "initialize" => message::initialize(request, self.tool, self.version),
            "server/discover" => message::discover(self.tool, self.version),
            "ping" => Ok(json!({})),
            "tools/list" => Ok(message::cacheable(json!({"tools": self.tools()}))),
            "notifications/cancelled" => {
                self.cancel(&request.params["requestId"]);
                return;
            }
            _ => Err(message::no_such_method(&request.method)),
        };
        self.reply(request, request.supported().and(result));
    }

    fn tools(&self) -> Vec<Value> {
        self.facts.iter().filter_map(|facts| self.tool(facts)).collect()
    }

    fn tool(&self, facts: &Facts) -> Option<Value> {
        let command = self.definition.find_subcommand(facts.name)?;
        let changes = facts.danger != DangerLevel::Safe;
        let retries = " Safe to retry: the same arguments, or the same idempotency_key, change the world once and a \
                       retry gets the first answer; give another `occurrence` if a repeat is wanted.";
        let description = format!("{}.{}", about(command), if changes { retries } else { "" });
        Some(json!({
            "name": facts.name,
            "description": description,
            "inputSchema": input_schema(command),
            "annotations": {
                "readOnlyHint": !changes,
                "destructiveHint": facts.danger == DangerLevel::Destructive,
                "idempotentHint": true,
            },
        }))
    }

    /// One call: arguments become a command line, the envelope becomes the result.
    fn call(&self, request: &Request) {
        let result = request.supported().and_then(|()| {
            let name = request.params["name"].as_str().unwrap_or_default();
            let facts = self.facts.iter().find(|facts| facts.name == name);
            let command = self.definition.find_subcommand(name);
            let (Some(facts), Some(command)) = (facts, command) else {
                return Err(message::invalid_params(&format!("there is no tool {name:?}")));
            };
            let typed = argv::of(command, facts, &request.params["arguments"]);
            let typed = typed.map_err(|problem| message::invalid_params(&problem))?;
            Ok(self.run(request, &typed))
        });
        match result {
            Ok(None) => {}
            Ok(Some(envelope)) => {
                self.send_as(request, "result", &message::tool_result(envelope, request.era))
            }
            Err(error) => self.reply(request, Err(error)),
        }
    }

    /// Runs the process of a call and gives its envelope; `None` where it was cancelled and nobody waits for it.
    fn run(&self, request: &Request, typed: &argv::Typed) -> Option<Box<RawValue>> {
        let id = request.id.to_string();
        let mut process = Process::new(&self.executable);
        process.args(&typed.flags).args(["--json", "--envelope", "contract"]).args(&self.everywhere);
        if !typed.positionals.is_empty() {
            // A value that looks like an option is none.
            process.arg("--").args(&typed.positionals);
        }
        process.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = {
            let mut running = lock(&self.running);
            if running.len() >= MAX_CALLS {
                let problem = format!("{MAX_CALLS} calls are under way; try again later");
                return nothing_ran(FaultKind::RateLimited, problem);
            }
            match process.spawn() {
                Ok(child) => {
                    running.insert(id.clone(), Running::Process(pid_of(&child)));
                    child
                }
                Err(error) => {
                    return nothing_ran(FaultKind::Failed, format!("the call cannot be started: {error}"));
                }
            }
        };
        let told = last_words(&mut child);
        let ended = lock(&self.running).remove(&id);
        // Only now is its process id free for others: nobody asks it to stop any more.
        let reaped = child.wait().is_ok();
        match ended {
            Some(Running::Cancelled) => None,
            Some(Running::Process(_)) | None => told.filter(|_| reaped).or_else(|| died(self.tool)),
        }
    }

    /// The process is asked to stop: it tells the ledger how far it got.
    fn cancel(&self, id: &Value) {
        if let Some(running) = lock(&self.running).get_mut(&id.to_string())
            && let Running::Process(pid) = *running
        {
            // One that has ended by itself a moment ago keeps its id until it is taken from this list.
            kill(pid, Signal::SIGINT).unwrap_or_default();
            *running = Running::Cancelled;
        }
    }

    fn reply(&self, request: &Request, result: Result<Value, Value>) {
        match result {
            Ok(value) if request.era == Era::Legacy => {
                self.send_as(request, "result", &message::legacy(value))
            }
            Ok(value) => self.send_as(request, "result", &value),
            Err(error) => self.send_as(request, "error", &error),
        }
    }

    /// Answers a request. A notification is not answered.
    fn send_as(&self, request: &Request, word: &'static str, value: &impl Serialize) {
        if !request.id.is_null() {
            self.send(&message::Response::new(&request.id, word, value));
        }
    }

    fn send(&self, message: &impl Serialize) {
        let _one_at_a_time = lock(&self.out);
        let mut out = std::io::stdout().lock();
        if let Ok(text) = serde_json::to_string(message) {
            // A client that has gone away misses the answer; the ledger has it.
            drop(writeln!(out, "{text}").and_then(|()| out.flush()));
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

/// The one answer on the process's stdout, as the text it came as. The process is over, but its id is still its own.
fn last_words(child: &mut Child) -> Option<Box<RawValue>> {
    let mut text = String::new();
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    waitid(Id::Pid(pid_of(child)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).ok()?;
    serde_json::from_str(&text).ok()
}

/// A process that died without an answer leaves its operation to the ledger.
fn died(tool: &str) -> Option<Box<RawValue>> {
    let message = format!("{tool} ended without an answer; it may or may not have taken effect");
    let error = ErrorView {
        happened: Some(Happened::Unknown),
        next: Some(
            "make the same call again: it reports what is known and repeats nothing in doubt".to_owned(),
        ),
        ..ErrorView::new(Code::InDoubt.as_str(), message)
    };
    to_raw_value(&Envelope::error(error, Ran::Yes, Code::InDoubt.exit()).answer).ok()
}

fn nothing_ran(kind: FaultKind, message: String) -> Option<Box<RawValue>> {
    let error =
        ErrorView { retryable: true, retry_after_ms: Some(1_000), ..ErrorView::new(kind.as_str(), message) };
    to_raw_value(&Envelope::error(error, Ran::No, kind.exit()).answer).ok()
}
