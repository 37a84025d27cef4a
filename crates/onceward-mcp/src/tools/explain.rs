//! Explains how the proxy classifies each tool of a server.

use std::io::{BufReader, Read, Write};

use onceward::{Class, InvalidInput, KeyPolicy, Policy};
use serde::Serialize;
use serde_json::{Value, json};

use crate::tools::rules::{Catalogue, Guess, RuleSet, ToolRules, Trust};
use crate::wire::frame::{MAX_LINE, next_line};
use crate::wire::message::Head;
use crate::wire::raw;

/// The most pages of tools that are requested.
pub(crate) const PAGES: usize = 100;
/// The last protocol revision with a handshake.
pub(crate) const HANDSHAKE: &str = "2025-11-25";
/// The first protocol revision without a handshake.
pub(crate) const STATELESS: &str = "2026-07-28";

/// A tool and its classification.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Explained {
    /// Its name.
    pub tool: String,
    /// Its class.
    pub class: Class,
    /// Where its keys come from.
    pub keys: KeyPolicy,
    /// Why it has this class.
    pub why: String,
    /// Whether the class is only a guess from the tool's name.
    pub guessed: bool,
}

/// The rules by which tools are classified.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ruling {
    /// The policy.
    pub policy: Policy,
    /// The short name of the server.
    pub server: String,
    /// Where keys come from, unless the policy says so for a tool.
    pub keys: Option<KeyPolicy>,
    /// Whether the server's annotations are trusted.
    pub trust: Trust,
    /// Whether a tool without annotations is classified by its name.
    pub guess: Guess,
}

impl Ruling {
    /// Rules for a server of that name: annotations are trusted, and names are used for a guess.
    #[must_use]
    pub fn new(policy: Policy, server: impl Into<String>) -> Self {
        Self { policy, server: server.into(), keys: None, trust: Trust::Annotations, guess: Guess::Reads }
    }
}

impl From<Ruling> for RuleSet {
    fn from(ruling: Ruling) -> Self {
        let Ruling { policy, server, keys, trust, guess } = ruling;
        Self { policy, server, keys, trust, guess, on_tool_error: None }
    }
}

/// Lists the tools of a server and explains each of them. Blocks.
///
/// ```
/// use onceward::{Class, Policy};
/// use onceward_mcp::{Ruling, explain};
///
/// // What a server answers to `initialize` and to `tools/list`.
/// let answers = concat!(
///     r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}"#, "\n",
///     r#"{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"pay"},{"name":"get_order"}]}}"#, "\n",
/// );
/// let mut requests = Vec::new();
/// let tools = explain(Ruling::new(Policy::default(), "shop"), &mut requests, answers.as_bytes())?;
/// let classes: Vec<_> = tools.iter().map(|tool| (tool.tool.as_str(), tool.class)).collect();
/// assert_eq!(classes, [("get_order", Class::Idempotent), ("pay", Class::Once)]);
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
///
/// # Errors
/// If the server does not answer like an MCP server.
pub fn explain(rules: Ruling, mut to: impl Write, from: impl Read) -> Result<Vec<Explained>, InvalidInput> {
    let mut from = BufReader::new(from);
    let mut catalogue = Catalogue::default();
    let greeted = ask(&mut to, &mut from, 1, "initialize", &hello())?;
    // A server without a handshake gets the protocol version with every request.
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

/// The parameters of `initialize`.
pub(crate) fn hello() -> String {
    let client = json!({"name": "once", "version": env!("CARGO_PKG_VERSION")});
    json!({"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": client}).to_string()
}

/// The `_meta` of every request to a server without a handshake.
pub(crate) fn every_request() -> Value {
    json!({"io.modelcontextprotocol/protocolVersion": STATELESS,
           "io.modelcontextprotocol/clientCapabilities": {}})
}

/// Explains every tool in the catalogue.
pub(crate) fn all(rule_set: &RuleSet, catalogue: &Catalogue) -> Result<Vec<Explained>, InvalidInput> {
    let all = catalogue.all().iter().map(|(tool, said)| {
        let ToolRules { class, keys, why, guessed, .. } = rule_set.tool_rules(tool, Some(said))?;
        Ok(Explained { tool: tool.clone(), class, keys, why, guessed })
    });
    all.collect()
}

fn send(to: &mut impl Write, line: &str) -> Result<(), InvalidInput> {
    let sent = to.write_all(line.as_bytes()).and_then(|()| to.write_all(b"\n")).and_then(|()| to.flush());
    sent.map_err(|error| InvalidInput::new(format!("the server does not read its input: {error}")))
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

/// A policy file to edit, with one rule per tool. Guesses are commented out, unless `believed`.
#[must_use]
pub fn policy_text(server: &str, tools: &[Explained], believed: bool) -> String {
    let mut text = format!(
        "# What `once mcp` does with the tools of {server}. Each rule states the current behaviour; change what\n\
         # you know better. Unknown keys are refused. `once config init` writes every setting.\n\
         #   read        changes nothing: passes through, not recorded\n\
         #   idempotent  recorded; in doubt, it may run again\n\
         #   keyed       takes a key of ours: name the argument with `key_argument`\n\
         #   probed      another tool tells whether it happened: `probe = {{tool = …, args = …, expect = …}}`\n\
         #   once        in doubt, it stays so until it is settled\n"
    );
    for tool in tools {
        let name = in_toml(&format!("{server}/{}", tool.tool));
        let rule = format!("[operation.{name}]\nclass = \"{}\"\n", tool.class);
        // A name that means a pattern, or nothing, in a policy cannot have a rule.
        let is_rule = Policy::parse(&rule).and_then(|policy| policy.check()).is_ok();
        let mark = if (tool.guessed && !believed) || !is_rule { "# " } else { "" };
        text.push_str(&format!(
            "\n# {}\n{mark}[operation.{name}]\n{mark}class = \"{}\"\n",
            tool.why, tool.class
        ));
    }
    text
}

/// A name as TOML has it. The server chose it, so what is hidden in it is escaped.
fn in_toml(name: &str) -> String {
    let mut quoted = String::from("\"");
    for c in name.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if onceward::text::is_hidden(c) => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
