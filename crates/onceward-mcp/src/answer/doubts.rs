//! How agents without a shell resolve a doubt: two tools of the proxy, listed while an operation is in doubt.

use std::sync::Arc;

use onceward::{Class, Error, Filter, InvalidInput, OperationId, Outcome, Record, State, Verdict, Word};
use serde_json::{Value, json};

use crate::answer::text::{SHORT_ID, ago, failure, response, success};
use crate::call::waiters::Caller;
use crate::proxy_state::ProxyState;
use crate::sync::lock;
use crate::transport::call_transport::CallTransport;
use crate::wire::raw::{self, Object};
use crate::wire::tool_call::ToolCall;

/// Lists operations in doubt. Read-only.
pub(crate) const STATUS: &str = "once_status";
/// Records the outcome of a call in doubt.
pub(crate) const SETTLE: &str = "once_settle";
/// The most operations that are listed.
const LISTED: usize = 10;
/// How many characters of a call's arguments are shown.
const ARGUMENTS: usize = 200;
/// The fewest characters that an agent must give as evidence.
const EVIDENCE: usize = 10;
/// The notification that makes clients list the tools again.
const CHANGED: &str = "notifications/tools/list_changed";

impl ProxyState {
    /// Whether a tool is one of ours. A tool of the same name on the server takes precedence.
    pub(crate) fn is_own_tool(&self, tool: &str) -> bool {
        (tool == STATUS || tool == SETTLE) && lock(&self.catalogue).get(tool).is_none()
    }

    /// Remembers the scope of a caller's calls.
    pub(crate) fn note_scope(&self, caller: &Caller, scope: &str) {
        if self.doubts.scopes.get(caller).as_deref() != Some(scope) {
            self.doubts.scopes.insert(caller.clone(), scope.to_owned());
        }
    }

    /// Remembers the arguments of a call in doubt.
    pub(crate) fn note_sent(&self, id: &OperationId, call: &ToolCall) {
        let shown: String = call.arguments().chars().take(ARGUMENTS).collect();
        self.doubts.sent.insert(id.clone(), shown.into());
    }

    /// The calls of this server's tools in that scope that stay in doubt until they are settled.
    async fn in_doubt(&self, scope: &str) -> Result<Vec<Record>, Error> {
        let filter = Filter {
            scope: Some(scope.to_owned()),
            states: vec![State::InDoubt],
            limit: 100,
            ..Filter::default()
        };
        let all = self.ledger.list(&filter).await?.into_iter().map(|(listed, _)| listed.record);
        let stays = |record: &Record| match record.detail.class {
            Class::Keyed | Class::Probed | Class::Once => self.tool_of(record).is_some(),
            Class::Read | Class::Idempotent => false,
        };
        Ok(all.filter(stays).collect())
    }

    /// The tool that the operation called, if it is one of this server's.
    fn tool_of<'a>(&self, record: &'a Record) -> Option<&'a str> {
        record.name.strip_prefix(&self.options.server)?.strip_prefix('/')
    }

    fn may_settle(&self, record: &Record) -> bool {
        let rules = self.tool_of(record).and_then(|tool| self.tool_rules(tool).ok());
        rules.is_some_and(|rules| rules.settings.tool.agents_settle)
    }

    /// The answer to `tools/list`, with our tools added if something is in doubt.
    pub(crate) async fn with_own_tools(&self, line: Vec<u8>, caller: &Caller) -> Vec<u8> {
        let scope =
            self.doubts.scopes.get(caller).unwrap_or_else(|| self.options.scope.of_caller(caller).name);
        let doubtful = self.in_doubt(&scope).await.unwrap_or_default();
        if doubtful.is_empty() {
            self.doubts.shown.insert(caller.clone(), false);
            return line;
        }
        let may_settle = doubtful.iter().any(|record| self.may_settle(record));
        self.doubts.shown.insert(caller.clone(), true);
        let own: Vec<String> = [(STATUS, true), (SETTLE, may_settle)]
            .into_iter()
            .filter(|(name, shown)| *shown && self.is_own_tool(name))
            .map(|(name, _)| definition(name).to_string())
            .collect();
        with_tools(&line, &own.join(",")).unwrap_or(line)
    }

    /// Notifies the client if a call changed the list of tools.
    pub(crate) async fn announce(&self, transport: &Arc<dyn CallTransport>, scope: &str, in_doubt: bool) {
        let caller = &transport.waiter().caller;
        // A client that never listed the tools has no outdated list.
        let Some(shown) = self.doubts.shown.get(caller) else { return };
        let changed = match (in_doubt, shown) {
            (true, false) => true,
            (false, true) => self.in_doubt(scope).await.is_ok_and(|all| all.is_empty()),
            (true, true) | (false, false) => false,
        };
        if changed {
            self.doubts.shown.insert(caller.clone(), in_doubt);
            transport.announce(CHANGED).await;
        }
    }

    /// Answers a call of one of our own tools.
    pub(crate) async fn own_tool(
        &self,
        call: &ToolCall,
        scope: &str,
        transport: &Arc<dyn CallTransport>,
    ) -> String {
        let waiter = transport.waiter();
        let arguments = Object::parse(call.arguments());
        let said =
            |name: &str| arguments.as_ref().and_then(|arguments| arguments.string(name)).unwrap_or_default();
        let told = if call.tool == STATUS {
            self.status(scope, &said("operation")).await
        } else {
            self.settle_by_agent(scope, &said("operation"), &said("verdict"), &said("evidence")).await
        };
        let result = match told {
            Ok((text, about)) => success(&text, &about, None),
            Err(error) => {
                let about = json!({"status": "refused", "error": {"code": error.code(), "message": error.to_string()}});
                failure(&[format!("[once] {}: {error}.", error.code())], &about)
            }
        };
        response(&waiter.id_text, &result)
    }

    async fn status(&self, scope: &str, operation: &str) -> Result<(String, Value), Error> {
        let mut doubtful = self.in_doubt(scope).await?;
        doubtful.retain(|record| operation.is_empty() || record.id.as_str() == operation);
        let now_ms = self.ledger.clock_ms();
        let lines: Vec<String> =
            doubtful.iter().take(LISTED).map(|record| self.line_of(record, now_ms)).collect();
        let about = json!({
            "status": "listed",
            "operations": doubtful.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(),
        });
        if lines.is_empty() {
            return Ok(("[once] Nothing is in doubt.".to_owned(), about));
        }
        let readers = self.readers();
        let mut text = format!("[once] In doubt ({}):\n{}", doubtful.len(), lines.join("\n"));
        if !readers.is_empty() {
            text.push_str(&format!("\nRead-only tools to check with: {}.", readers.join(", ")));
        }
        if doubtful.iter().any(|record| self.may_settle(record)) {
            text.push_str(&format!("\nCheck, then call {SETTLE} with what you found."));
        } else {
            text.push_str(&format!(
                "\nA person settles it: `{} settle OPERATION --as done` or `--as failed`.",
                self.options.program
            ));
        }
        Ok((text, about))
    }

    fn line_of(&self, record: &Record, now_ms: i64) -> String {
        let sent = self.doubts.sent.get(&record.id);
        let sent = sent.map_or_else(|| "arguments are not stored".to_owned(), |sent| format!("with {sent}"));
        format!(
            "- {} {} ({sent}), sent {}: {}",
            record.id,
            self.tool_of(record).unwrap_or(&record.name),
            ago(now_ms, record.created_ms),
            record.reason().unwrap_or("no answer came back"),
        )
    }

    /// The operation that an agent names by its full id or by the shortened one.
    async fn named(&self, scope: &str, text: &str) -> Result<Option<OperationId>, Error> {
        if let Ok(id) = OperationId::parse(text) {
            return Ok(Some(id));
        }
        let doubtful = self.in_doubt(scope).await?;
        let mut fitting =
            doubtful.iter().filter(|record| text.len() >= SHORT_ID && record.id.as_str().starts_with(text));
        Ok(match (fitting.next(), fitting.next()) {
            (Some(record), None) => Some(record.id.clone()),
            (_, _) => None,
        })
    }

    async fn settle_by_agent(
        &self,
        scope: &str,
        operation: &str,
        verdict: &str,
        evidence: &str,
    ) -> Result<(String, Value), Error> {
        let id = self.named(scope, operation).await?;
        let verdict = match verdict {
            "done" => Some(Verdict::Done),
            "failed" => Some(Verdict::Failed),
            _ => None,
        };
        let has_evidence = evidence.trim().chars().count() >= EVIDENCE;
        let (Some(id), Some(verdict), true) = (&id, verdict, has_evidence) else {
            let problems = [
                (id.is_none(), "operation is not the id of an operation (op_…)"),
                (verdict.is_none(), "verdict is neither `done` nor `failed`"),
                (!has_evidence, "evidence is missing: say in words what you saw"),
            ];
            let problems = problems.into_iter().filter(|(wrong, _)| *wrong).map(|(_, problem)| problem);
            return Err(InvalidInput::new(problems.collect::<Vec<_>>().join("; ")).into());
        };
        let (record, state) = self.ledger.find(id).await?;
        if record.scope != scope || self.tool_of(&record).is_none() {
            return Err(Error::NotFound { id: id.to_string() });
        }
        if !self.may_settle(&record) {
            let why = "the policy does not let agents settle this (agents_settle); ask a person";
            return Err(InvalidInput::new(why).into());
        }
        let already = match verdict {
            Verdict::Done => state == State::Done,
            Verdict::Failed => state == State::Failed,
        };
        if !already {
            let settings = self.tool_of(&record).map(|tool| self.tool_rules(tool)).transpose()?;
            let settings = settings.map(|rules| rules.settings);
            let effect = settings.as_ref().map(|settings| settings.effect);
            let effect = effect.filter(|_| verdict == Verdict::Done);
            let redact = settings.map(|settings| settings.terms.redact).unwrap_or_default();
            let evidence = redact.text(evidence.trim()).into_owned();
            if is_about_earlier(&record, &evidence) {
                let why = "this evidence was recorded for an earlier attempt, and the call ran again since; check \
                           again, then say what you see now";
                return Err(InvalidInput::new(why).into());
            }
            let outcome = Outcome { effect, ..Outcome::because(None) };
            let word = Word::agent(AGENT).note(evidence);
            self.ledger.attempts().settle(id, record.attempt, verdict, word, outcome).await?;
        }
        let then = match verdict {
            Verdict::Done => "It counts as done: the same call is not run again.",
            Verdict::Failed => "It counts as not done: the same call runs it.",
        };
        Ok((
            format!("[once] Recorded for {id}. {then}"),
            json!({"status": "settled", "operation": {"id": id}}),
        ))
    }
}

/// The name under which an agent's word is recorded.
const AGENT: &str = "through once_settle";

/// Whether these words settled an earlier attempt. A client that blindly repeats its request to settle has not looked
/// since.
fn is_about_earlier(record: &Record, evidence: &str) -> bool {
    let mut earlier = record.detail.history.iter().filter(|past| past.attempt < record.attempt);
    earlier.any(|past| past.settled_by.as_ref().and_then(|word| word.note.as_deref()) == Some(evidence))
}

fn definition(name: &str) -> Value {
    if name == STATUS {
        return json!({
            "name": STATUS,
            "description": "Lists calls of this server's tools whose outcome is in doubt: they may or may not have \
                            happened. Changes nothing.",
            "inputSchema": {"type": "object", "properties": {
                "operation": {"type": "string", "description": "Optional. Only this operation (op_…)."}}},
            "annotations": {"readOnlyHint": true, "openWorldHint": false},
        });
    }
    json!({
        "name": SETTLE,
        "description": "Records whether a call in doubt happened. Check first with tools that change nothing. done: it \
                        happened, and is not run again. failed: it did not happen, and the same call runs it.",
        "inputSchema": {"type": "object", "required": ["operation", "verdict", "evidence"], "properties": {
            "operation": {"type": "string", "description": "The operation (op_…)."},
            "verdict": {"type": "string", "enum": ["done", "failed"]},
            "evidence": {"type": "string", "description": "What you saw, in words. It is recorded."}}},
        "annotations": {"readOnlyHint": false, "destructiveHint": false, "idempotentHint": true},
    })
}

/// The answer to `tools/list` with tools added, if it is the last page.
fn with_tools(line: &[u8], own: &str) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(line).ok()?;
    let result = Object::parse(crate::wire::message::Head::parse(text)?.result?)?;
    let tools = result.get("tools").filter(|tools| tools.starts_with('['))?;
    if own.is_empty() || result.string("nextCursor").is_some() {
        return None;
    }
    let comma = if tools[1..].trim_start().starts_with(']') { "" } else { "," };
    let end = raw::range(text, tools).end - 1;
    Some(raw::spliced(text, end..end, &format!("{comma}{own}")).into_bytes())
}

/// The answer to `initialize`, changed to declare that the list of tools may change. Conforming clients list the
/// tools again only if this is declared. A server without tools is left alone.
pub(crate) fn announcing(line: Vec<u8>) -> Vec<u8> {
    with_list_changed(&line).unwrap_or(line)
}

fn with_list_changed(line: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(line).ok()?;
    let result = Object::parse(crate::wire::message::Head::parse(text)?.result?)?;
    let capability = result.object("capabilities")?.get("tools").filter(|tools| tools.starts_with('{'))?;
    let place = raw::range(text, capability);
    match Object::parse(capability)?.get("listChanged") {
        Some("true") => None,
        Some(other) => Some(raw::spliced(text, raw::range(text, other), "true").into_bytes()),
        None => {
            let announced = raw::with_members(capability, r#""listChanged":true"#);
            Some(raw::spliced(text, place, &announced).into_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_initialize_says_that_tools_may_change() {
        let hello = |tools: &str| {
            format!(r#"{{"id":0,"result":{{"capabilities":{{{tools}}},"n":99999999999999999999}}}}"#)
        };
        let announced = |tools: &str| String::from_utf8(announcing(hello(tools).into_bytes())).unwrap();
        let expected = hello(r#""tools":{"listChanged":true}"#);
        assert_eq!(announced(r#""tools":{}"#), expected);
        assert_eq!(announced(r#""tools":{"listChanged":false}"#), expected);
        assert_eq!(announced(r#""tools":{"listChanged":true}"#), expected);
        assert_eq!(announced(r#""tools":{"x":1}"#), hello(r#""tools":{"listChanged":true,"x":1}"#));
        assert_eq!(announced(r#""prompts":{}"#), hello(r#""prompts":{}"#));
        let refused = br#"{"id":0,"error":{"code":-32602,"message":"no"}}"#.to_vec();
        assert_eq!(announcing(refused.clone()), refused);
    }

    #[test]
    fn our_tools_come_last_and_only_on_the_last_page() {
        let with =
            |line: &str| with_tools(line.as_bytes(), "{}").map(|line| String::from_utf8(line).unwrap());
        let list = r#"{"id":1,"result":{"tools":[{"name":"a"}],"n":99999999999999999999}}"#;
        assert_eq!(with(list).unwrap(), list.replace("}]", "},{}]"));
        assert_eq!(
            with(r#"{"id":1,"result":{"tools":[ ]}}"#).unwrap(),
            r#"{"id":1,"result":{"tools":[ {}]}}"#
        );
        assert_eq!(with(r#"{"id":1,"result":{"tools":[],"nextCursor":"x"}}"#), None);
        assert_eq!(with(r#"{"id":1,"error":{}}"#), None);
    }
}
