//! The same commands as MCP tools: each call is a process of this tool, so validation, ledger and truth are the same.

mod answered;
mod argv;
mod message;
mod settling;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use clap::{ArgMatches, Command};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use onceward::{Code, ErrorView, Happened, Ran};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::command::{DangerLevel, World};
use crate::envelope::Envelope;
use crate::facts::Facts;
use crate::fault::FaultKind;
use crate::manifest::{Leaf, input_schema};
use crate::output::Output;
use crate::session::Session;
use crate::supervisor::lock;
use answered::Answered;
use message::{Era, Request};

/// How many calls run at a time.
const MAX_CALLS: usize = 64;
/// How long a message may be, in bytes.
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
            session.output.talk(&format!("{}: cannot find its own program file: {error}", session.tool));
            return 1;
        }
    };
    let server = Server {
        tool: session.tool,
        output: &session.output,
        everywhere: argv::everywhere(&definition, matches),
        definition: &definition,
        facts,
        executable,
        running: Mutex::default(),
        answered: Answered::new(&session.policy, || session.existing_ledger()),
        out: Mutex::new(()),
    };
    let mut input = std::io::stdin().lock();
    std::thread::scope(|scope| {
        while let Some(line) = next_line(&mut input) {
            match Request::parse(&line) {
                _ if line.trim_ascii().is_empty() => {}
                Ok(request) => {
                    // A client that sends its next request has received its earlier answers.
                    if request.method != message::CANCELLED {
                        server.answered.client_went_on();
                    }
                    if request.method == "tools/call" {
                        let server = &server;
                        scope.spawn(move || server.call(&request));
                    } else {
                        server.answer(&request);
                    }
                }
                Err(refusal) => server.send(&refusal),
            }
        }
    });
    0
}

/// The next line, with any bytes; `None` at the end. A line that is too long is cut, so it is not valid JSON.
fn next_line(input: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
    if !line.ends_with(b"\n") && line.len() as u64 >= MAX_LINE {
        input.skip_until(b'\n').ok()?;
    }
    Some(line)
}

struct Server<'a> {
    tool: &'static str,
    output: &'a Output,
    definition: &'a Command,
    facts: &'a [Facts],
    executable: std::path::PathBuf,
    /// Options of the server that apply to each call: the ledger, the world's options.
    everywhere: Vec<OsString>,
    /// The processes of running calls, by request id.
    running: Mutex<HashMap<String, Running>>,
    answered: Answered<'a>,
    out: Mutex<()>,
}

enum Running {
    /// By its process id.
    Process(Pid),
    /// The client no longer waits for its answer.
    Cancelled,
}

impl Server<'_> {
    /// Everything but calls.
    fn answer(&self, request: &Request) {
        let result = match request.method.as_str() {
            "initialize" => message::initialize(request, self.tool, self.output.version),
            "server/discover" => message::discover(self.tool, self.output.version),
            "ping" => Ok(json!({})),
            "tools/list" => Ok(message::cacheable(json!({"tools": self.tools()}))),
            message::CANCELLED => {
                self.cancel(&request.params["requestId"]);
                return;
            }
            _ => Err(message::no_such_method(&request.method)),
        };
        self.reply(request, request.supported().and(result));
    }

    fn tools(&self) -> Vec<Value> {
        let own = self.leaves().into_iter().map(|(facts, leaf)| self.tool(facts, &leaf));
        own.chain(settling::tools()).collect()
    }

    /// Every way to call a command, each a tool of its own.
    fn leaves(&self) -> Vec<(&Facts, Leaf<'_>)> {
        let commands =
            self.facts.iter().filter_map(|facts| Some((facts, self.definition.find_subcommand(facts.name)?)));
        commands
            .flat_map(|(facts, command)| Leaf::all(command).into_iter().map(move |leaf| (facts, leaf)))
            .collect()
    }

    fn tool(&self, facts: &Facts, leaf: &Leaf<'_>) -> Value {
        let changes = facts.danger != DangerLevel::Safe;
        let retries = " Safe to retry: a retry whose first answer was lost, or one with the same idempotency_key, \
                       changes nothing and gets the first answer.";
        let description = format!("{}.{}", leaf.about(), if changes { retries } else { "" });
        json!({
            "name": leaf.tool_name(),
            "description": description,
            "inputSchema": input_schema(self.definition, leaf),
            "annotations": {
                "readOnlyHint": !changes,
                "destructiveHint": facts.danger == DangerLevel::Destructive,
                "idempotentHint": true,
            },
            "_meta": {onceward::WITNESS_META: true},
        })
    }

    /// One call: arguments become a command line, the envelope becomes the result.
    fn call(&self, request: &Request) {
        let begun = Instant::now();
        let result = request.supported().and_then(|()| {
            let typed = self.typed(request).map_err(|problem| message::invalid_params(&problem))?;
            Ok(self.run(request, &typed))
        });
        match result {
            Ok(None) => {}
            Ok(Some(envelope)) => {
                self.answered.answer(&request.id, &envelope, begun);
                let envelope = message::witnessed(envelope, &request.params);
                self.send_as(request, "result", &message::tool_result(envelope, request.era));
            }
            Err(error) => self.reply(request, Err(error)),
        }
    }

    fn typed(&self, request: &Request) -> Result<argv::Typed, String> {
        let (name, arguments) =
            (request.params["name"].as_str().unwrap_or_default(), &request.params["arguments"]);
        if let Some(typed) = settling::typed(name, arguments) {
            return typed;
        }
        let leaves = self.leaves();
        let found = leaves.iter().find(|(_, leaf)| leaf.tool_name() == name);
        let (facts, leaf) = found.ok_or_else(|| format!("there is no tool {name:?}"))?;
        argv::of(self.definition, leaf, facts, arguments)
    }

    /// Runs the process of a call and gives its envelope; `None` where it was cancelled.
    fn run(&self, request: &Request, typed: &argv::Typed) -> Option<Box<RawValue>> {
        let id = request.id.to_string();
        let mut process = Process::new(&self.executable);
        process.args(&typed.flags).args(["--json", "--envelope", "contract"]).args(&self.everywhere);
        process.arg(format!("--once-connection={}", self.output.request_id()));
        if !typed.positionals.is_empty() {
            // A value that looks like an option is still a value.
            process.arg("--").args(&typed.positionals);
        }
        process.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = {
            let mut running = lock(&self.running);
            if running.len() >= MAX_CALLS {
                let problem = format!("{MAX_CALLS} calls are running; nothing was run");
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
        let told = on_idle_signal(&mut child);
        let ended = lock(&self.running).remove(&id);
        // Its process id may be reused from now on, so nothing may signal it any more.
        let reaped = child.wait().is_ok();
        match ended {
            Some(Running::Cancelled) => None,
            Some(Running::Process(_)) | None => told.filter(|_| reaped).or_else(|| died(self.tool)),
        }
    }

    /// Asks the process to stop; it tells the ledger how far it got. An answer that was sent already does not count as
    /// delivered.
    fn cancel(&self, id: &Value) {
        self.answered.cancelled(id);
        if let Some(running) = lock(&self.running).get_mut(&id.to_string())
            && let Running::Process(pid) = *running
        {
            // A process that has just ended keeps its id until it is removed from this list.
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
        // If the client has disconnected, the ledger still has the answer.
        drop(self.output.document(message));
    }
}

#[expect(clippy::expect_used, reason = "the kernel's process ids are positive and fit into 31 bits")]
fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a process id fits into 31 bits"))
}

/// The one answer on the process's stdout, as the text it came as. The process is over, but its id is still its own.
fn on_idle_signal(child: &mut Child) -> Option<Box<RawValue>> {
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
    let error = ErrorView {
        happened: Some(Happened::No),
        retryable: true,
        retry_after_ms: Some(1_000),
        ..ErrorView::new(kind.as_str(), message)
    };
    to_raw_value(&Envelope::error(error, Ran::No, kind.exit()).answer).ok()
}
