//! The same commands as MCP tools: each call is a process of this tool, so validation, ledger and truth are the same.

mod argv;
mod message;

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Mutex;

use clap::{ArgMatches, Command};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::command::World;
use crate::entry::Facts;
use crate::envelope::ErrorBody;
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
            let problem = ErrorBody::certain(format!("this program cannot find itself: {error}"));
            session.voice.talk(&crate::text::error(session.tool, &problem));
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
    Process(i32),
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
            Ok(Some(envelope)) => self.reply(request, Ok(message::complete(message::tool_result(&envelope)))),
            Err(error) => self.reply(request, Err(error)),
        }
    }

    /// Runs the process of a call and gives its envelope; `None` where it was cancelled and nobody waits for it.
    fn run(&self, request: &Request, typed: &argv::Typed) -> Option<Value> {
        let id = request.id.to_string();
        let mut process = Process::new(&self.executable);
        process.args(&typed.flags).args(["--json", "--envelope", "contract"]).args(&self.everywhere);
        // A value that looks like an option is none.
        process.arg("--").args(&typed.positionals);
        process.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = {
            let mut running = lock(&self.running);
            if running.len() >= MAX_CALLS {
                return Some(nothing_ran(
                    "IN_PROGRESS",
                    &format!("{MAX_CALLS} calls are under way; try again later"),
                ));
            }
            match process.spawn() {
                Ok(child) => {
                    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
                    running.insert(id.clone(), Running::Process(pid));
                    child
                }
                Err(error) => {
                    return Some(nothing_ran("FAILED", &format!("the call cannot be started: {error}")));
                }
            }
        };
        let envelope = envelope_of(child, self.tool);
        match lock(&self.running).remove(&id) {
            Some(Running::Cancelled) => None,
            Some(Running::Process(_)) | None => Some(envelope),
        }
    }

    /// The process is asked to stop: it tells the ledger how far it got.
    fn cancel(&self, id: &Value) {
        if let Some(running) = lock(&self.running).get_mut(&id.to_string())
            && let Running::Process(pid) = *running
        {
            // One that has ended by itself a moment ago is not asked any more; its answer goes the same way.
            kill(Pid::from_raw(pid), Signal::SIGINT).unwrap_or_default();
            *running = Running::Cancelled;
        }
    }

    fn reply(&self, request: &Request, result: Result<Value, Value>) {
        // A notification is not answered.
        if request.id.is_null() {
            return;
        }
        let (word, value) = match result {
            Ok(value) if request.era == Era::Legacy => ("result", message::legacy(value)),
            Ok(value) => ("result", value),
            Err(error) => ("error", error),
        };
        self.send(&json!({"jsonrpc": "2.0", "id": request.id, word: value}));
    }

    fn send(&self, message: &Value) {
        let _one_at_a_time = lock(&self.out);
        let mut out = std::io::stdout().lock();
        // A client that has gone away misses the answer; the ledger has it.
        drop(std::io::Write::write_all(&mut out, format!("{message}\n").as_bytes()));
        drop(std::io::Write::flush(&mut out));
    }
}

/// The one answer on the process's stdout. A process that died without one leaves its operation to the ledger.
fn envelope_of(child: Child, tool: &str) -> Value {
    let output = child.wait_with_output();
    let answered = output.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok());
    answered.unwrap_or_else(|| {
        json!({"ok": false, "effect": "unknown", "error": {
            "code": "IN_DOUBT",
            "message": "the call died without an answer; the same call again says what became of it",
            "happened": "unknown", "retryable": false, "retry_after_ms": null,
            "fix_command": format!("{tool} manifest"),
        }, "warnings": []})
    })
}

fn nothing_ran(code: &str, message: &str) -> Value {
    json!({"ok": false, "effect": "noop", "error": {"code": code, "message": message, "happened": "no",
           "retryable": true, "retry_after_ms": 1_000, "fix_command": null}, "warnings": []})
}
