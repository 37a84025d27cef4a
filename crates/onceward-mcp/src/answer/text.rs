//! The texts that the agent reads when an answer does not come from the server. Their content is the core's
//! [`Answer`]; only how to repeat a call is worded here.

use onceward::{
    Answer, Error, Kind, NextStep, Preview, Ran, Receipt, Record, State, Surface, rfc3339, span_in_words,
};
use serde_json::{Value, json};

use crate::answer::closest;
use crate::wire::raw::{self, Object};
use crate::wire::tool_call::{KEY_ARGUMENT, PREFIX};

/// The most reader tools that a text names.
const NAMED: usize = 5;

/// The most characters of a doubt's reason in a text.
const WHY: usize = 120;
/// The length of an operation id in a text: enough to identify it, in few tokens.
pub(crate) const SHORT_ID: usize = 15;

/// A JSON-RPC response with this result.
pub(crate) fn response(id: &str, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}")
}

/// How a caller requests a deliberate repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Make the same call again: after this answer it is a new operation, unless `after` other answers come first.
    CallAgain { after: usize },
    /// Make the same call, but only after this time.
    CallAfter(i64),
    /// Pass a new key in the argument that the model sees.
    Argument,
    /// Pass a new key in `_meta`, which only the client can do.
    Meta,
}

impl Repeat {
    fn in_words(self) -> String {
        let how = match self {
            Self::CallAgain { after: 0 } => "make the same call once more".to_owned(),
            Self::CallAgain { after: 1 } => {
                "make the same call twice more: the answer of another one comes first".to_owned()
            }
            Self::CallAgain { after } => {
                format!(
                    "make the same call {} times more: the answers of {after} others come first",
                    after + 1
                )
            }
            Self::CallAfter(ms) => format!("make the same call after {}", seconds(ms)),
            Self::Argument => format!("call with a new `{KEY_ARGUMENT}`"),
            Self::Meta => format!("the client must give a new key (_meta \"{PREFIX}key\")"),
        };
        format!("To do it again on purpose, {how}")
    }
}

/// Writes the answers to one call.
pub(crate) struct AnswerText<'a> {
    /// The request's id.
    pub(crate) id: &'a str,
    /// The tool.
    pub(crate) tool: &'a str,
    /// Who can resolve a doubt, and how.
    pub(crate) surface: &'a Surface,
    /// How to repeat the action on purpose.
    pub(crate) repeat: Repeat,
    /// The current time on the ledger's clock.
    pub(crate) now_ms: i64,
}

impl AnswerText<'_> {
    /// Structured facts for programs: the core's answer without the result, which is sent next to it.
    fn about(answer: Answer, status: &str) -> Value {
        let mut about = json!(Answer { data: None, ..answer });
        about["status"] = json!(status);
        about
    }

    /// The stored answer of an operation that is done. This call ran nothing.
    pub(crate) fn replayed(&self, receipt: &Receipt, joined: bool, schema: Option<&str>) -> String {
        let record = receipt.record();
        let answer = Answer::of(&Ok(receipt.clone()), self.surface, self.now_ms);
        let said = answer.reason.as_deref().unwrap_or_default();
        let (status, said) = match joined {
            true => (
                "joined",
                "the same call was already running, and this is its answer; nothing else was run".to_owned(),
            ),
            false => ("replayed", said.to_owned()),
        };
        let about = Self::about(answer, status);
        let repeat = self.repeat.in_words();
        let data = record.outcome.as_ref().and_then(|outcome| outcome.data.as_ref());
        match data.filter(|data| Object::parse(data.get()).is_some()) {
            Some(data) => {
                let note = format!("[once] {}: {said}. {repeat}.", capital(status));
                response(self.id, &with_note(data.get(), &note, &about))
            }
            None => {
                let note =
                    format!("[once] Done: {} is {said}. Its result is not available. {repeat}.", self.tool);
                response(self.id, &success(&note, &about, schema))
            }
        }
    }

    /// The stored answer of an operation that failed. This call ran nothing.
    fn replayed_failure(&self, error: &Error, record: &Record) -> Option<String> {
        let outcome = record.outcome.as_ref().filter(|outcome| outcome.sealed_with().is_none())?;
        let data = outcome.data.as_ref()?;
        let note = format!(
            "[once] Replayed: this is the answer that the same call got before; nothing was run. {}.",
            self.repeat.in_words()
        );
        let about = Self::about(Answer::failed(error, self.surface), "replayed");
        Some(response(self.id, &with_note(data.get(), &note, &about)))
    }

    /// The answer to a call that was not executed. `readers` are tools that can check whether it happened.
    pub(crate) fn refused(&self, error: &Error, readers: &[String]) -> String {
        if let Error::Failed { record, ran: Ran::No, .. } = error
            && let Some(answer) = self.replayed_failure(error, record)
        {
            return answer;
        }
        let text = format!("[once] {}: {}.{}", error.code(), self.what(error), self.next(error, readers));
        let about = Self::about(Answer::failed(error, self.surface), "refused");
        response(self.id, &failure(&[text], &about))
    }

    /// The answer to a call that is held back. It is not an error, unless the tool has an output schema, which a client
    /// would check a result against.
    pub(crate) fn held(&self, record: &std::sync::Arc<Record>, has_schema: bool) -> String {
        let error = Error::Held { record: std::sync::Arc::clone(record) };
        let text = format!("[once] Held: {}: {error}.{}", self.tool, self.next(&error, &[]));
        let about = Self::about(Answer::failed(&error, self.surface), "held");
        let result = if has_schema { failure(&[text], &about) } else { success(&text, &about, None) };
        response(self.id, &result)
    }

    /// The answer to a call whose success was refuted. The server's own answer follows.
    pub(crate) fn unverified(&self, error: &Error, servers: &[u8], readers: &[String]) -> String {
        let text = format!("[once] {}: {}.{}", error.code(), self.what(error), self.next(error, readers));
        let about = Self::about(Answer::failed(error, self.surface), "unverified");
        let theirs = std::str::from_utf8(servers)
            .ok()
            .and_then(|text| crate::wire::message::Head::parse(text)?.result);
        let theirs = theirs.and_then(Object::parse).map(|result| crate::call::question::text_of(&result));
        let theirs = theirs.map(|theirs| format!("The server had answered: {theirs}"));
        response(self.id, &failure(&[Some(text), theirs].into_iter().flatten().collect::<Vec<_>>(), &about))
    }

    /// What happened to the call.
    fn what(&self, error: &Error) -> String {
        let tool = self.tool;
        match error {
            Error::InProgress { record, .. } if record.kind == Kind::Marker => format!(
                "another call has held the lock that {tool} needs since {}; nothing was run",
                seconds(record.updated_ms)
            ),
            Error::InProgress { record, ran: Ran::Yes } => format!(
                "this call of {tool} was sent at {} and is still running; it continues",
                seconds(record.updated_ms)
            ),
            Error::InProgress { record, ran: Ran::No } => format!(
                "the same call of {tool} has been running since {} and has not ended yet; nothing was run now",
                seconds(record.updated_ms)
            ),
            Error::InDoubt { record, ran: Ran::Yes, .. } | Error::Timeout { record, .. } => format!(
                "this call of {tool} was sent {} and may have happened: {}",
                ago(self.now_ms, sent_ms(record)),
                why(record)
            ),
            Error::InDoubt { record, ran: Ran::No, .. } => format!(
                "the same call of {tool} was sent {} (attempt {}) and may have happened: {}; nothing was run now",
                ago(self.now_ms, sent_ms(record)),
                record.attempt,
                why(record)
            ),
            Error::Invalid(_)
            | Error::KeyMissing { .. }
            | Error::NotFound { .. }
            | Error::WrongState { .. }
            | Error::Held { .. }
            | Error::KeyExpired { .. }
            | Error::Cancelled { .. }
            | Error::Undone { .. }
            | Error::Stopped { .. }
            | Error::BudgetExhausted { .. }
            | Error::ResultSealed { .. }
            | Error::ResultLost { .. }
            | Error::KeyReused { .. }
            | Error::Failed { .. }
            | Error::Unverified { .. }
            | Error::Unavailable(_)
            | Error::Unrecorded { .. }
            | _ => format!("{tool}: {error}"),
        }
    }

    /// The next step, in sentences.
    fn next(&self, error: &Error, readers: &[String]) -> String {
        let in_doubt = |record: &&std::sync::Arc<Record>| record.state == State::InDoubt;
        let reused_in_doubt =
            error.record().filter(|_| error.code() == onceward::Code::KeyReused).filter(in_doubt);
        let reused_in_doubt = reused_in_doubt.map(|record| NextStep::settle(record));
        // If a reused key hits an operation in doubt, that doubt has to be settled first.
        let step = reused_in_doubt.or_else(|| error.next_step());
        let Some(step) = step else { return String::new() };
        match &step {
            NextStep::Repeat | NextStep::OtherKey(..) => return format!(" {}.", self.repeat.in_words()),
            NextStep::Wait(_) => return " Make the same call again: it waits for the answer.".to_owned(),
            NextStep::Settle(_)
            | NextStep::Lost(_)
            | NextStep::Record(..)
            | NextStep::Probe { .. }
            | NextStep::Cancelled
            | NextStep::Release(_)
            | NextStep::Show(_)
            | NextStep::CallAgain
            | NextStep::RaiseAttempts { .. }
            | NextStep::Undo(_)
            | NextStep::Resume { .. }
            | NextStep::CheckLedger => {}
        }
        let guidance = self.surface.spell(&step);
        let mut text = String::new();
        let mut say = capital(&guidance.say);
        if !readers.is_empty() {
            let named: Vec<&str> = readers.iter().take(NAMED).map(String::as_str).collect();
            let with_tools = format!("whether it happened (for example with {})", named.join(", "));
            say = say.replacen("whether it happened", &with_tools, 1);
        }
        if !say.is_empty() {
            text.push_str(&format!(" {say}."));
        }
        let mut first: Option<String> = None;
        for choice in &guidance.options {
            let command = shortened(&choice.command);
            let said = first.as_ref().and_then(|first| other_verdict(first, &command));
            let said = said.unwrap_or_else(|| format!("`{command}`"));
            text.push_str(&format!(" If {}: {said}.", choice.found));
            first.get_or_insert(command);
        }
        if let (true, Some(command)) = (guidance.options.is_empty(), &guidance.command) {
            text.push_str(&format!(" `{}`.", shortened(command)));
        }
        text
    }

    /// What the call would do.
    pub(crate) fn dry_run(&self, preview: &Preview) -> String {
        let changes = vec![format!("would call {}", self.tool)];
        let about = Self::about(Answer::preview(preview, changes, self.surface), "dry_run");
        let text = format!("[once] Dry run of {}: {}. Nothing was run.", self.tool, preview.sentence);
        response(self.id, &failure(&[text], &about))
    }
}

/// A shorter form of a command that differs from the previous one only in its verdict.
fn other_verdict(before: &str, command: &str) -> Option<String> {
    const VERDICT: &str = "\"verdict\":";
    let (start, rest) = command.split_once(VERDICT)?;
    let (start_before, rest_before) = before.split_once(VERDICT)?;
    let ((verdict, end), (_, end_before)) = (rest.split_once(',')?, rest_before.split_once(',')?);
    (start == start_before && end == end_before).then(|| format!("the same with `{VERDICT}{verdict}`"))
}

/// The command with a shortened operation id, which still identifies the operation.
fn shortened(command: &str) -> String {
    let Some(at) = command.find("op_") else { return command.to_owned() };
    let rest = &command[at..];
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    format!("{}{}{}", &command[..at], &rest[..end.min(SHORT_ID)], &rest[end..])
}

/// Why the operation is in doubt. Kept short for models; `once show` prints all of it.
fn why(record: &Record) -> String {
    let why = record.reason().unwrap_or("no answer came back").trim_end_matches('.');
    let short: String = why.chars().take(WHY).collect();
    if short.len() < why.len() { format!("{short}…") } else { short }
}

/// When the newest attempt was sent, as far as the record knows.
fn sent_ms(record: &Record) -> i64 {
    record.detail.history.last().map_or(record.created_ms, |past| past.at_ms)
}

/// The time without its fraction of a second.
pub(crate) fn seconds(ms: i64) -> String {
    let text = rfc3339(ms);
    text.split_once('.').map_or(text.clone(), |(whole, _)| format!("{whole}Z"))
}

/// The time since `ms`.
pub(crate) fn ago(now_ms: i64, ms: i64) -> String {
    format!("{} ago", span_in_words(now_ms - ms))
}

fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

/// The result with an additional first text block, and with our facts in its `_meta`.
fn with_note(result: &str, note: &str, about: &Value) -> String {
    let about = format!("\"{PREFIX}effect\":{about}");
    let block = json!({"type": "text", "text": note}).to_string();
    let Some(object) = Object::parse(result) else {
        return result.to_owned();
    };
    let mut edits: Vec<(usize, String)> = Vec::new();
    if let Some(content) = object.get("content").filter(|content| content.starts_with('[')) {
        let comma = if content[1..].trim_start().starts_with(']') { "" } else { "," };
        edits.push((raw::range(result, content).start + 1, format!("{block}{comma}")));
    }
    match object.get("_meta").filter(|meta| meta.starts_with('{')) {
        Some(meta) => {
            let comma = if meta[1..].trim_start().starts_with('}') { "" } else { "," };
            edits.push((raw::range(result, meta).start + 1, format!("{about}{comma}")));
        }
        None => {
            let open = result.len() - result.trim_start().len() + 1;
            let comma = if result[open..].trim_start().starts_with('}') { "" } else { "," };
            edits.push((open, format!("\"_meta\":{{{about}}}{comma}")));
        }
    }
    edits.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    edits.into_iter().fold(result.to_owned(), |text, (at, added)| raw::spliced(&text, at..at, &added))
}

/// An error result from the proxy. An error violates no output schema, and no model takes it for a success.
pub(crate) fn failure(texts: &[String], about: &Value) -> String {
    let blocks: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
    json!({
        "content": blocks,
        "isError": true,
        "resultType": "complete",
        "_meta": {(format!("{PREFIX}effect")): about},
    })
    .to_string()
}

/// A success result from the proxy. If the tool's schema requires more than we know, the result is an error that says
/// so.
pub(crate) fn success(text: &str, about: &Value, schema: Option<&str>) -> String {
    let structured = match schema.map(|schema| closest::to(schema, text)) {
        Some(None) => return failure(&[text.to_owned()], about),
        Some(Some(structured)) => Some(structured),
        None => None,
    };
    let mut result = json!({
        "content": [{"type": "text", "text": text}],
        "isError": false,
        "resultType": "complete",
        "_meta": {(format!("{PREFIX}effect")): about},
    });
    if let Some(structured) = structured {
        result["structuredContent"] = structured;
    }
    result.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_verdict_is_abbreviated() {
        let call = |verdict: &str| {
            format!(r#"once_settle {{"operation":"op_1","verdict":"{verdict}","evidence":"…"}}"#)
        };
        let said = other_verdict(&call("done"), &call("failed"));
        assert_eq!(said.as_deref(), Some(r#"the same with `"verdict":"failed"`"#));
        assert_eq!(other_verdict(&call("done"), &call("failed").replace("op_1", "op_2")), None);
        assert_eq!(other_verdict("once settle op_1 --as done", "once settle op_1 --as failed"), None);
    }

    #[test]
    fn a_note_is_inserted_first_and_the_rest_is_unchanged() {
        let about = json!({"a": 1});
        for (result, expected) in [
            (
                r#"{"content":[{"text":"x"}],"n":12345678901234567890123}"#,
                concat!(
                    r#"{"_meta":{"dev.onceward/effect":{"a":1}},"content":[{"text":"note","type":"text"},"#,
                    r#"{"text":"x"}],"n":12345678901234567890123}"#
                ),
            ),
            (
                r#"{"_meta":{"k":[]},"content":[ ]}"#,
                r#"{"_meta":{"dev.onceward/effect":{"a":1},"k":[]},"content":[{"text":"note","type":"text"} ]}"#,
            ),
            ("{}", r#"{"_meta":{"dev.onceward/effect":{"a":1}}}"#),
        ] {
            assert_eq!(with_note(result, "note", &about), expected);
        }
    }

    #[test]
    fn done_is_a_success_unless_the_schema_requires_more() {
        let about = json!({});
        let result = |schema| serde_json::from_str::<Value>(&success("done", &about, schema)).unwrap();
        assert_eq!(result(None)["isError"], json!(false));
        let wrapped = result(Some(
            r#"{"type":"object","properties":{"result":{"type":"string"}},"required":["result"]}"#,
        ));
        assert_eq!(
            (&wrapped["isError"], &wrapped["structuredContent"]["result"]),
            (&json!(false), &json!("done"))
        );
        let more =
            result(Some(r#"{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}"#));
        assert_eq!((&more["isError"], &more["structuredContent"]), (&json!(true), &Value::Null));
    }
}
