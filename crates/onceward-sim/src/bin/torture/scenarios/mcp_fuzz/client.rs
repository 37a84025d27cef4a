//! A client that sends random messages, and records what the proxy must answer.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};

use onceward_sim::random::Random;

use crate::report::Rule;

/// The tools of the server, and some that it does not have.
const TOOLS: [&str; 6] = ["write", "send", "maybe", READ, "none", "w\u{fc}rfeln"];
/// The read-only tool.
const READ: &str = "look";
/// How many keys the calls of a session share: few, so that many calls are retries.
const KEYS: u64 = 60;

/// Sends lines to its reader, then disconnects.
pub(super) struct Client {
    random: Random,
    /// Whether it sends no broken messages. Only then is it known which ids must be answered.
    polite: bool,
    left: u64,
    line: Vec<u8>,
    at: usize,
    next_id: u64,
    expected: Expected,
}

/// What the proxy must do.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) sent: u64,
    /// Messages that were broken on purpose.
    pub(super) faults: u64,
    /// How often each id was used, and whether it was cancelled.
    used: HashMap<String, u64>,
    cancelled: HashSet<String>,
    /// Ids of recorded calls: each must be answered, whatever the server does.
    guarded: HashSet<String>,
    /// Whether a broken message may have used any id.
    tainted: bool,
    /// Lines that must be forwarded unchanged.
    notes: Vec<Vec<u8>>,
}

impl Client {
    pub(super) fn new(mut random: Random, messages: u64) -> Self {
        let (line, expected) = (Vec::new(), Expected::default());
        Self { polite: random.permille(300), random, left: messages, line, at: 0, next_id: 0, expected }
    }

    pub(super) fn into_expected(self) -> Expected {
        self.expected
    }

    fn say(&mut self) -> Vec<u8> {
        let number = self.left;
        match self.random.below(20) {
            0 => self.request("tools/list", "{}").into_bytes(),
            1 => self.request("ping", r#"{"big":123456789012345678901234567890}"#).into_bytes(),
            2 => self.note(number),
            3 => self.cancel().into_bytes(),
            4 | 5 if !self.polite => self.broken(),
            6 => self.batch().into_bytes(),
            7 if !self.polite => self.noise(),
            8 => {
                let era = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01"},"x":1e400}"#;
                self.request("server/discover", era).into_bytes()
            }
            _ => self.call().into_bytes(),
        }
    }

    /// Usually a new id, a number or a string; sometimes one that was used before.
    fn id(&mut self) -> String {
        let reused = self.random.permille(30) && self.next_id > 0;
        let number = if reused {
            1 + self.random.below(self.next_id)
        } else {
            self.next_id += 1;
            self.next_id
        };
        let id = id_text(number);
        *self.expected.used.entry(id.clone()).or_default() += 1;
        id
    }

    fn request(&mut self, method: &str, params: &str) -> String {
        let id = self.id();
        self.asked(&id, method, params)
    }

    fn asked(&self, id: &str, method: &str, params: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    }

    fn call(&mut self) -> String {
        let tool = TOOLS[self.random.index(TOOLS.len())];
        let key = self.random.below(KEYS);
        let named = match self.random.below(4) {
            0 => format!(r#","_meta":{{"dev.onceward/key":"k{key}","progressToken":{key}}}"#),
            1 => format!(r#","idempotencyKey":"k{key}""#),
            2 => r#","_meta":{"dev.onceward/retry":true}"#.to_owned(),
            _ => String::new(),
        };
        let arguments = match self.random.below(8) {
            0 => format!(r#"{{"n":{key},"idempotency_key":"k{key}"}}"#),
            1 => r#"{"n":1,"dry_run":true}"#.to_owned(),
            _ => format!(r#"{{"n":{key}}}"#),
        };
        let id = self.id();
        if tool != READ {
            self.expected.guarded.insert(id.clone());
        }
        self.asked(&id, "tools/call", &format!(r#"{{"name":"{tool}","arguments":{arguments}{named}}}"#))
    }

    fn cancel(&mut self) -> String {
        let number = 1 + self.random.below(self.next_id.max(1));
        let id = id_text(number);
        self.expected.cancelled.insert(id.clone());
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"x"}}}}"#
        )
    }

    /// An unknown notification: it must arrive unchanged.
    fn note(&mut self, number: u64) -> Vec<u8> {
        let line =
            format!(r#"{{ "jsonrpc":"2.0" ,"method":"notifications/x","params":{{"note":{number}}}}}"#);
        self.expected.notes.push(line.clone().into_bytes());
        line.into_bytes()
    }

    fn batch(&mut self) -> String {
        let count = self.random.below(4);
        let items: Vec<String> = (0..count).map(|_| self.call()).collect();
        format!("[{}]", items.join(" , "))
    }

    /// A message that was damaged in some places. It may use any id.
    fn broken(&mut self) -> Vec<u8> {
        self.expected.faults += 1;
        self.expected.tainted = true;
        let mut line = self.call().into_bytes();
        for _ in 0..=self.random.below(4) {
            if line.is_empty() {
                break;
            }
            let at = self.random.index(line.len());
            match self.random.below(4) {
                0 => line[at] = self.random.below(256).to_le_bytes()[0],
                1 => drop(line.remove(at)),
                2 => line.insert(at, b"{}[]\",:\\0a\xff"[self.random.index(11)]),
                _ => line.truncate(at.max(1)),
            }
        }
        line.retain(|byte| *byte != b'\n');
        line
    }

    /// Random bytes, sometimes many.
    fn noise(&mut self) -> Vec<u8> {
        self.expected.faults += 1;
        let length = if self.random.permille(5) { 200_000 } else { self.random.index(60) };
        let byte = b"{[\"x\xff \x00"[self.random.index(7)];
        vec![byte; length]
    }
}

/// Most ids are numbers, and some are strings.
fn id_text(number: u64) -> String {
    if number.is_multiple_of(3) { format!("\"c-{number}\"") } else { number.to_string() }
}

impl Read for Client {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.line.len() {
            if self.left == 0 {
                return Ok(0);
            }
            self.left -= 1;
            self.expected.sent += 1;
            (self.line, self.at) = (self.say(), 0);
            self.line.push(b'\n');
        }
        let count = into.len().min(self.line.len() - self.at);
        into[..count].copy_from_slice(&self.line[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

impl Expected {
    /// A recorded call with a unique id that was not cancelled is answered exactly once, even if the server is silent
    /// or answers twice. After a broken message this is not checked, because it may have used any id.
    pub(super) fn answered(&self, answers: &[Vec<u8>]) -> Vec<(Rule, String)> {
        if self.tainted {
            return Vec::new();
        }
        let mut seen: HashMap<String, u64> = HashMap::new();
        for line in answers {
            let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) else { continue };
            if value.get("method").is_none()
                && let Some(id) = value.get("id")
            {
                *seen.entry(id.to_string()).or_default() += 1;
            }
        }
        let alone = self.used.iter().filter(|(id, count)| **count == 1 && !self.cancelled.contains(*id));
        let wrong = alone.filter_map(|(id, _)| {
            let count = seen.get(id).copied().unwrap_or(0);
            let holds = count == 1 || !self.guarded.contains(id);
            (!holds).then(|| (Rule::Unexpected, format!("id {id} was answered {count} times")))
        });
        wrong.collect()
    }

    /// Checks that all lines that must be forwarded arrived, in order.
    pub(super) fn passed(&self, heard: &[Vec<u8>]) -> Vec<(Rule, String)> {
        let marker = br#"{ "jsonrpc":"2.0" ,"method":"notifications/x""#;
        let notes: Vec<&Vec<u8>> = heard.iter().filter(|line| line.starts_with(marker)).collect();
        let same = notes.iter().copied().eq(self.notes.iter());
        let what = || format!("{} of {} notes arrived as they were sent", notes.len(), self.notes.len());
        if same { Vec::new() } else { vec![(Rule::Lost, what())] }
    }
}
