//! What is printed: one answer on stdout, talk on stderr, and nothing after the last word.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::envelope::{Envelope, Meta, Strict};
use crate::referee::lock;
use crate::text;

/// Which envelope is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Dialect {
    /// Onceward's own: the effect on top
    #[default]
    Contract,
    /// The CLI Agent Spec's: the effect in `data`, the rest in `meta`
    Strict,
}

/// Who reads stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A program.
    Program,
    /// A person at a terminal.
    Person,
}

/// The way to answer. Clones share the last word.
#[derive(Debug, Clone)]
pub(crate) struct Voice {
    pub(crate) tool: &'static str,
    pub(crate) version: &'static str,
    pub(crate) reader: Reader,
    pub(crate) dialect: Dialect,
    pub(crate) command: Option<String>,
    trace_id: Option<String>,
    request_id: String,
    begun: Instant,
    said: Arc<Mutex<Said>>,
    /// The lines of a stream that is wanted as one answer.
    held: Option<Arc<Mutex<Vec<Box<RawValue>>>>>,
}

/// Whether more may be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    NotYet,
    LastWord,
}

impl Voice {
    pub(crate) fn new(tool: &'static str, version: &'static str, reader: Reader, dialect: Dialect) -> Self {
        let trace_id = std::env::var(crate::flags::variable(tool, "TRACE_ID")).ok();
        Self {
            tool,
            version,
            reader,
            dialect,
            command: None,
            trace_id,
            request_id: request_id(),
            begun: Instant::now(),
            said: Arc::new(Mutex::new(Said::NotYet)),
            held: None,
        }
    }

    /// From now on the lines of a stream are held back for the one answer at its end.
    pub(crate) fn hold_lines(&mut self) {
        self.held = Some(Arc::default());
    }

    /// The lines that were held back; `None` where they are printed as they come.
    pub(crate) fn held_lines(&self) -> Option<Vec<Box<RawValue>>> {
        self.held.as_ref().map(|held| std::mem::take(&mut *lock(held)))
    }

    /// Prints the answer. Whoever comes later, a signal or the work itself, prints nothing any more.
    pub(crate) fn answer(&self, envelope: &Envelope) {
        self.end(envelope, None);
    }

    /// The same at the end of a stream of `items` lines.
    pub(crate) fn end(&self, envelope: &Envelope, items: Option<u64>) {
        let mut said = lock(&self.said);
        if *said == Said::LastWord {
            return;
        }
        *said = Said::LastWord;
        match self.reader {
            Reader::Program => self.json(envelope, items),
            Reader::Person => {
                let text = text::answer(envelope);
                if !text.is_empty() {
                    drop(writeln!(anstream::stdout(), "{text}"));
                }
            }
        }
        let answer = &envelope.answer;
        if let Some(error) = answer.error.as_ref().filter(|_| self.reader == Reader::Person) {
            self.talk(&text::error(self.tool, error, answer.ran));
        }
        for warning in answer.warnings.iter().filter(|_| self.reader == Reader::Person) {
            self.talk(&format!("{}: warning: {warning}", self.tool));
        }
    }

    /// Prints one line of a stream, unless the last word has been said.
    pub(crate) fn line(&self, line: &impl Serialize, text: impl FnOnce() -> String) {
        let said = lock(&self.said);
        if *said == Said::LastWord {
            return;
        }
        match (&self.held, self.reader) {
            (Some(held), _) => lock(held).extend(serde_json::value::to_raw_value(line).ok()),
            (None, Reader::Program) => print_json(line),
            (None, Reader::Person) => drop(writeln!(anstream::stdout(), "{}", text())),
        }
    }

    /// Prints what is no answer: a completion script, a manual page.
    pub(crate) fn bytes(&self, bytes: &[u8]) {
        let mut out = std::io::stdout();
        // A reader that has gone away is no reason to fail.
        drop(out.write_all(bytes).and_then(|()| out.flush()));
    }

    /// Prints help. Programs read stdout, and help is no answer, so they do not find it there.
    pub(crate) fn help(&self, text: &str) {
        // A reader that has gone away has read enough.
        drop(match self.reader {
            Reader::Program => write!(anstream::stderr(), "{text}"),
            Reader::Person => write!(anstream::stdout(), "{text}"),
        });
    }

    /// Says something to the person, or to the agent that reads stderr.
    pub(crate) fn talk(&self, text: &str) {
        drop(writeln!(anstream::stderr(), "{text}"));
    }

    fn json(&self, envelope: &Envelope, items_emitted: Option<u64>) {
        match self.dialect {
            Dialect::Contract => print_json(&envelope.answer),
            Dialect::Strict => {
                let meta = Meta {
                    exit_code: envelope.exit,
                    duration_ms: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
                    request_id: self.request_id.clone(),
                    trace_id: self.trace_id.clone(),
                    command: self.command.clone(),
                    tool_version: self.version.to_owned(),
                    items_emitted,
                };
                print_json(&Strict::of(envelope, meta));
            }
        }
    }
}

fn print_json(document: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(document) {
        let mut out = std::io::stdout().lock();
        // A reader that has gone away is no reason to fail: the ledger has been written.
        drop(writeln!(out, "{text}").and_then(|()| out.flush()));
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
