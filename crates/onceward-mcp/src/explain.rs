//! The tools of a server: what each of them is, and why.

use std::io::{BufReader, Read, Write};

use onceward::{Class, InvalidInput, KeyPolicy, Policy};
use serde::Serialize;
use serde_json::{Value, json};

use crate::frame::{MAX_LINE, next_line};
use crate::message::Head;
use crate::raw;
use crate::tools::{Catalogue, Guess, Rules, Standing, Trust};

/// How many pages of tools are asked for.
pub(crate) const PAGES: usize = 100;
/// The last revision with a handshake.
pub(crate) const HANDSHAKE: &str = "2025-11-25";
/// The first revision without one.
pub(crate) const STATELESS: &str = "2026-07-28";

/// A tool, and what a call of it gets.
#[derive(Debug, Clone, Serialize)]
pub struct Explained {
    /// Its name.
    pub tool: String,
    /// What it is.
    pub class: Class,
    /// Where its keys come from.
    pub keys: KeyPolicy,
    /// Who says so.
    pub why: String,
    /// Whether it is only a guess by the tool's name.
    pub guessed: bool,
}

/// What decides over tools.
#[derive(Debug, Clone)]
pub struct Ruling {
    /// The policy.
    pub policy: Policy,
    /// The short name of the server.
    pub server: String,
    /// Where keys come from, unless the policy says so for a tool.
    pub keys: Option<KeyPolicy>,
    /// Whether the server is believed what it says about its tools.
    pub trust: Trust,
    /// Whether a tool without annotations is judged by its name.
    pub guess: Guess,
}

impl From<Ruling> for Rules {
    fn from(ruling: Ruling) -> Self {
        let Ruling { policy, server, keys, trust, guess } = ruling;
        Self { policy, server, keys, trust, guess, on_tool_error: None }
    }
}

/// Asks a server for its tools and says what each of them is. Blocks.
///
/// # Errors
/// When the server does not answer as an MCP server does.
pub fn explain(rules: Ruling, mut to: impl Write, from: impl Read) -> Result<Vec<Explained>, InvalidInput> {
    let mut from = BufReader::new(from);
    let mut catalogue = Catalogue::default();
    let greeted = ask(&mut to, &mut from, 1, "initialize", &hello())?;
    // A server that knows no handshake is told with every request what it needs to know.
    let meta = if Head::parse(&greeted).is_some_and(|head| head.result.is_some()) {
        send(&mut to, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}")?;
        json!({})
    } else {
        every_request()
    };
    let mut cursor: Option<String> = None;
    for page in 0..PAGES {
        let params = match cursor.take() {
            Some(cursor) => json!({"_meta": meta, "cursor": cursor}),
            None => json!({"_meta": meta}),
        };
        let answer = ask(&mut to, &mut from, 2 + page, "tools/list", &params.to_string())?;
        let result = Head::parse(&answer).and_then(|head| head.result);
        let result = result
            .ok_or_else(|| InvalidInput::new(format!("the server does not list its tools: {answer}")))?;
        cursor = catalogue.learn(result);
        if cursor.is_none() {
            break;
        }
    }
    all(&rules.into(), &catalogue)
}

/// What a server with a handshake is told first.
pub(crate) fn hello() -> String {
    let client = json!({"name": "once", "version": env!("CARGO_PKG_VERSION")});
    json!({"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": client}).to_string()
}

/// What a server without one is told with every request.
pub(crate) fn every_request() -> Value {
    json!({"io.modelcontextprotocol/protocolVersion": STATELESS,
           "io.modelcontextprotocol/clientCapabilities": {}})
}

/// All tools, and what each of them is.
pub(crate) fn all(rules: &Rules, catalogue: &Catalogue) -> Result<Vec<Explained>, InvalidInput> {
    let all = catalogue.all().iter().map(|(tool, said)| {
        let Standing { class, keys, why, guessed, .. } = rules.standing(tool, Some(said))?;
        Ok(Explained { tool: tool.clone(), class, keys, why, guessed })
    });
    all.collect()
}

fn send(to: &mut impl Write, line: &str) -> Result<(), InvalidInput> {
    let sent = to.write_all(line.as_bytes()).and_then(|()| to.write_all(b"\n")).and_then(|()| to.flush());
    sent.map_err(|error| InvalidInput::new(format!("the server does not listen: {error}")))
}

fn ask(
    to: &mut impl Write,
    from: &mut BufReader<impl Read>,
    id: usize,
    method: &str,
    params: &str,
) -> Result<String, InvalidInput> {
    send(
        to,
        &format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{},\"params\":{params}}}",
            raw::quoted(method)
        ),
    )?;
    loop {
        let line = next_line(from, MAX_LINE);
        let line = line.map_err(|error| InvalidInput::new(format!("the server cannot be read: {error}")))?;
        let Some(line) = line else {
            return Err(InvalidInput::new(format!("the server ended before it answered {method}")));
        };
        let Ok(text) = String::from_utf8(line) else { continue };
        let is_it =
            Head::parse(&text).is_some_and(|head| head.is_response() && head.id == Some(&id.to_string()));
        if is_it {
            return Ok(text);
        }
    }
}

/// A policy file to edit: one rule for each tool. What is only a guess is a comment, unless the guesses are
/// `believed`.
#[must_use]
pub fn policy_text(server: &str, tools: &[Explained], believed: bool) -> String {
    let mut text = format!(
        "# What `once mcp` does with the tools of {server}. Each rule says what holds already; change what you know\n\
         # better. Unknown keys are refused. `once config init` writes all that can be said.\n\
         #   read        changes nothing: passes through, not recorded\n\
         #   idempotent  recorded; in doubt, it may run again\n\
         #   keyed       takes a key of ours: name the argument with `key_argument`\n\
         #   probed      another tool tells whether it happened: `probe = {{tool = …, args = …, expect = …}}`\n\
         #   once        in doubt, it stays so until it is settled\n"
    );
    for tool in tools {
        let name = raw::quoted(&format!("{server}/{}", tool.tool));
        let mark = if tool.guessed && !believed { "# " } else { "" };
        text.push_str(&format!(
            "\n# {}\n{mark}[operation.{name}]\n{mark}class = \"{}\"\n",
            tool.why, tool.class
        ));
    }
    text
}
