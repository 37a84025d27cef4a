//! A server that does what it is asked, counts its effects, and answers like servers on their worst days.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender};

use onceward_sim::random::Random;
use serde_json::Value;

use crate::report::Rule;

const TOOLS: &str = r#"{"tools":[{"name":"write","inputSchema":{"type":"object","properties":{}}},
{"name":"send","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":false}},{"name":"maybe"},
{"name":"look","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}"#;
/// The tools whose effects are counted.
const COUNTED: [&str; 3] = ["write", "send", "maybe"];

pub(super) struct Server {
    random: Random,
    from: Receiver<Vec<u8>>,
    to: Sender<Vec<u8>>,
    report: Report,
}

/// What the server has received, sent and done.
#[derive(Default)]
pub(super) struct Report {
    pub(super) heard: Vec<Vec<u8>>,
    /// Its own notifications, which must be forwarded unchanged.
    pub(super) said: Vec<Vec<u8>>,
    pub(super) answers: u64,
    pub(super) faults: u64,
    /// How often each (tool, given key) had its effect.
    pub(super) effects: HashMap<(String, String), usize>,
}

impl Server {
    pub(super) fn new(random: Random, from: Receiver<Vec<u8>>, to: Sender<Vec<u8>>) -> Self {
        Self { random, from, to, report: Report::default() }
    }

    /// Serves until the client disconnects. Then it closes its own end.
    pub(super) fn serve(mut self) -> Report {
        while let Ok(line) = self.from.recv() {
            self.hear(&line);
            self.report.heard.push(line);
        }
        self.report
    }

    fn hear(&mut self, line: &[u8]) {
        match serde_json::from_slice(line) {
            Ok(Value::Array(items)) => items.iter().for_each(|item| self.one(item)),
            Ok(item) => self.one(&item),
            Err(_) => {}
        }
    }

    fn one(&mut self, message: &Value) {
        let Some(id) = message.get("id").filter(|id| !id.is_null()) else { return };
        match message.get("method").and_then(Value::as_str) {
            Some("tools/call") => self.call(id, &message["params"]),
            Some("tools/list") => {
                let tools = TOOLS.replace('\n', "");
                self.answer(id, &format!(r#""result":{tools}"#));
            }
            Some(_) => self.answer(id, r#""result":{"n":123456789012345678901234567890}"#),
            None => {}
        }
        if self.random.permille(30) {
            let number = self.report.said.len();
            let line =
                format!(r#"{{ "method":"notifications/y","jsonrpc":"2.0","params":{{"note":{number}}}}}"#);
            self.report.said.push(line.clone().into_bytes());
            self.say(line.into_bytes());
        }
    }

    fn call(&mut self, id: &Value, params: &Value) {
        if self.random.permille(50) {
            // The tool's own statement that nothing happened.
            self.answer(id, r#""result":{"content":[],"isError":true}"#);
            return;
        }
        self.effect(params);
        let result = r#""result":{"content":[{"type":"text","text":"done"}]}"#;
        let day = self.random.below(100);
        self.report.faults += u64::from(day < 27);
        match day {
            0..5 => {
                self.answer(id, result);
                self.answer(id, result);
            }
            5..10 => self.answer(id, r#""error":{"code":-32603,"message":"the answer was lost"}"#),
            10..13 => self.say(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":["#).into_bytes()),
            13..16 => self.say(format!("{{\"id\":{id},\"result\":{{\"x\":NaN}}}}").into_bytes()),
            16..18 => self.answer(id, r#""result":null"#),
            18..20 => self.say(format!(r#"[{{"jsonrpc":"2.0","id":{id},{result}}}]"#).into_bytes()),
            20..22 => self.answer(&Value::from("somebody-else"), result),
            // A request from the server, with the id of the call.
            22..24 => {
                self.say(format!(r#"{{"id":{id},"method":"roots/list"}}"#).into_bytes());
                self.answer(id, result);
            }
            24..26 => self.say(vec![b'[', 0xff, 0xfe, b'"']),
            // Never answers.
            26 => {}
            _ => self.answer(id, result),
        }
    }

    fn effect(&mut self, params: &Value) {
        let tool = params["name"].as_str().filter(|tool| COUNTED.contains(tool));
        let meta = params["_meta"]["dev.onceward/key"].as_str();
        if let (Some(tool), Some(key)) = (tool, meta.or(params["idempotencyKey"].as_str())) {
            *self.report.effects.entry((tool.to_owned(), key.to_owned())).or_default() += 1;
        }
    }

    fn answer(&mut self, id: &Value, outcome: &str) {
        self.report.answers += 1;
        self.say(format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#).into_bytes());
    }

    fn say(&mut self, line: Vec<u8>) {
        // The proxy may have ended.
        drop(self.to.send(line));
    }
}

impl Report {
    /// Checks that its own notifications arrived, in order.
    pub(super) fn said_to(&self, answers: &[Vec<u8>]) -> Vec<(Rule, String)> {
        let marker = br#"{ "method":"notifications/y""#;
        let notes: Vec<&Vec<u8>> = answers.iter().filter(|line| line.starts_with(marker)).collect();
        let same = notes.iter().copied().eq(self.said.iter());
        let what = || format!("{} of {} notes came back as they were said", notes.len(), self.said.len());
        if same { Vec::new() } else { vec![(Rule::Lost, what())] }
    }
}
