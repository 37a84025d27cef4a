//! What is printed: one answer on stdout, messages on stderr, and nothing after the answer.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nix::unistd::{Pid, getppid};
use onceward::Answer;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::envelope::{Envelope, Meta, Strict};
use crate::stdout::Stdout;
use crate::supervisor::lock;
use crate::text;

/// Which envelope is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum EnvelopeFormat {
    /// Onceward's own: the effect on top
    #[default]
    Contract,
    /// The CLI Agent Spec's: the effect in `data`, the rest in `meta`
    Strict,
}

/// Who reads stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// A program.
    Program,
    /// A person at a terminal.
    Person,
}

/// Where the call came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CalledBy {
    /// A command line.
    Shell,
    /// A client of `TOOL mcp`.
    Mcp,
}

/// How the tool answers. Clones share whether everything has been printed.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) tool: &'static str,
    pub(crate) version: &'static str,
    pub(crate) audience: Audience,
    pub(crate) format: EnvelopeFormat,
    pub(crate) called_by: CalledBy,
    pub(crate) command: Option<String>,
    trace_id: Option<String>,
    request_id: String,
    begun: Instant,
    stdout: Arc<Stdout>,
    /// The process that waits for the answer.
    parent: Pid,
    printed: Arc<Mutex<Printed>>,
    /// The lines of a stream that is wanted as one answer.
    held: Option<Arc<Mutex<Vec<Box<RawValue>>>>>,
}

/// Whether the caller has the answer: all of it was written, its reader is still there, and so is the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Delivered,
    NotDelivered,
}

/// Whether more may be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Printed {
    NotYet,
    Everything,
}

impl Output {
    pub(crate) fn new(
        (tool, version): (&'static str, &'static str),
        stdout: Arc<Stdout>,
        audience: Audience,
        format: EnvelopeFormat,
        called_by: CalledBy,
    ) -> Self {
        let trace_id = std::env::var(variable(tool, "TRACE_ID")).ok();
        Self {
            tool,
            version,
            audience,
            format,
            called_by,
            command: None,
            trace_id,
            request_id: request_id(),
            begun: Instant::now(),
            stdout,
            parent: getppid(),
            printed: Arc::new(Mutex::new(Printed::NotYet)),
            held: None,
        }
    }

    /// Names this run of the tool.
    pub(crate) fn request_id(&self) -> &str {
        &self.request_id
    }

    /// From now on the lines of a stream are held back for the one answer at its end.
    pub(crate) fn hold_lines(&mut self) {
        self.held = Some(Arc::default());
    }

    /// The lines that were held back; `None` where they are printed as they come.
    pub(crate) fn held_lines(&self) -> Option<Vec<Box<RawValue>>> {
        self.held.as_ref().map(|held| std::mem::take(&mut *lock(held)))
    }

    /// Prints the answer. Later ones, from a signal or from the work itself, print nothing.
    pub(crate) fn answer(&self, envelope: &Envelope) -> Delivery {
        self.end(envelope, None)
    }

    /// The same at the end of a stream of `items` lines.
    pub(crate) fn end(&self, envelope: &Envelope, items: Option<u64>) -> Delivery {
        let mut printed = lock(&self.printed);
        if *printed == Printed::Everything {
            return Delivery::NotDelivered;
        }
        *printed = Printed::Everything;
        let written = match self.audience {
            Audience::Program => self.json(envelope, items),
            Audience::Person => match text::answer(envelope) {
                text if text.is_empty() => Ok(()),
                text => self.stdout.text(&format!("{text}\n")),
            },
        };
        let answer = &envelope.answer;
        if let Some(error) = answer.error.as_ref().filter(|_| self.audience == Audience::Person) {
            self.talk(&text::error(self.tool, error, answer.ran));
        }
        for warning in answer.warnings.iter().filter(|_| self.audience == Audience::Person) {
            self.talk(&format!("{}: warning: {warning}", self.tool));
        }
        if written.is_ok() && self.stdout.is_open() && getppid() == self.parent {
            Delivery::Delivered
        } else {
            Delivery::NotDelivered
        }
    }

    /// Prints one line of a stream, unless everything has been printed.
    pub(crate) fn line(&self, line: &impl Serialize, text: impl FnOnce() -> String) {
        let printed = lock(&self.printed);
        if *printed == Printed::Everything {
            return;
        }
        match (&self.held, self.audience) {
            (Some(held), _) => lock(held).extend(serde_json::value::to_raw_value(line).ok()),
            // If the reader is gone, continue: the ledger is written.
            (None, Audience::Program) => drop(self.document(line)),
            (None, Audience::Person) => drop(self.stdout.text(&format!("{}\n", text()))),
        }
    }

    /// Prints something other than an answer: a completion script, a manual page.
    pub(crate) fn bytes(&self, bytes: &[u8]) {
        // If the reader is gone, that is not a failure.
        drop(self.stdout.bytes(bytes));
    }

    /// Prints help, which was asked for, so it is the answer.
    pub(crate) fn help(&self, text: &str) {
        // A reader that has gone away has read enough. The CLI Agent Spec keeps stdout for its envelope.
        drop(match (self.format, self.audience) {
            (EnvelopeFormat::Strict, Audience::Program) => write!(anstream::stderr(), "{text}"),
            (EnvelopeFormat::Contract | EnvelopeFormat::Strict, _) => self.stdout.text(text),
        });
    }

    /// Prints a message on stderr.
    pub(crate) fn talk(&self, text: &str) {
        drop(writeln!(anstream::stderr(), "{}", onceward::text::coloured(text)));
    }

    /// Prints one JSON document on a line of its own.
    pub(crate) fn document(&self, document: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(document).map_err(io::Error::other)?;
        self.stdout.bytes(format!("{}\n", onceward::text::json(&text)).as_bytes())
    }

    /// Shows an outer `once run` that this is the answer of the program that it started, and not of one behind it.
    fn witness(&self) -> Option<String> {
        let variable = std::env::var(onceward::WITNESS).ok()?;
        let program = std::env::current_exe().ok()?;
        onceward::witness_token(&variable, self.parent.as_raw(), &program).map(str::to_owned)
    }

    fn json(&self, envelope: &Envelope, items_emitted: Option<u64>) -> io::Result<()> {
        match self.format {
            EnvelopeFormat::Contract => {
                self.document(&Answer { witness: self.witness(), ..envelope.answer.clone() })
            }
            EnvelopeFormat::Strict => {
                let meta = Meta {
                    exit_code: envelope.exit,
                    duration_ms: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
                    request_id: self.request_id.clone(),
                    trace_id: self.trace_id.clone(),
                    command: self.command.clone(),
                    tool_version: self.version.to_owned(),
                    items_emitted,
                };
                self.document(&Strict::of(envelope, meta))
            }
        }
    }
}

fn request_id() -> String {
    let mut bytes = [0_u8; 10];
    match getrandom::fill(&mut bytes) {
        Ok(()) => format!("req_{}", data_encoding::BASE32_NOPAD.encode(&bytes).to_lowercase()),
        // Nothing is decided by it.
        Err(_) => "req_unknown".to_owned(),
    }
}

/// The environment variable for a setting of a tool: `SHOP_LEDGER`.
pub(crate) fn variable(tool: &str, setting: &str) -> String {
    let tool: String =
        tool.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    format!("{tool}_{setting}")
}
