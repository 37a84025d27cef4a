//! What the agent reads when the answer does not come from the server.

use onceward::answer::{rfc3339, span_in_words};
use onceward::{Answer, Code, Error, NextStep, Preview, Ran, Record, State, Surface};
use serde_json::{Value, json};

use crate::call::{KEY_ARGUMENT, PREFIX};
use crate::raw::{self, Object};

/// How many tools are named that can check something.
const NAMED: usize = 8;

/// A response with that result, to the request with that id.
pub(crate) fn response(id: &str, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}")
}

/// How a caller says that a repeat is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The same call once more: after this answer it is a new one.
    CallAgain,
    /// A new key, in the argument that the model sees.
    Argument,
    /// A new key, which only the client can give.
    Meta,
}

impl Repeat {
    fn in_words(self) -> String {
        let how = match self {
            Self::CallAgain => "make the same call once more".to_owned(),
            Self::Argument => format!("call with a new `{KEY_ARGUMENT}`"),
            Self::Meta => format!("the client must give a new key (_meta \"{PREFIX}key\")"),
        };
        format!("to do it again on purpose, {how}")
    }
}

fn effect(record: &Record, state: State, what: &str, effect: &str) -> Value {
    json!({
        "status": what,
        "effect": effect,
        "state": state.as_str(),
        "operation": record.id.as_str(),
        "scope": record.scope,
        "name": record.name,
        "key": record.key.text,
        "attempts": record.attempt,
        "first_at": rfc3339(record.created_ms),
    })
}

/// The stored answer of an operation that is done, to a call that ran nothing.
pub(crate) fn replayed(id: &str, record: &Record, repeat: Repeat, now_ms: i64) -> String {
    let ago = span_in_words(now_ms - record.updated_ms);
    let note = format!(
        "[once] Replayed: this call was already done {ago} ago (attempt {}), and this is its result. Nothing was run \
         now; {}. Operation {}.",
        record.attempt,
        repeat.in_words(),
        record.id
    );
    let about = effect(record, State::Done, "replayed", "noop");
    match record.outcome.as_ref().and_then(|outcome| outcome.data.as_ref()) {
        Some(data) => response(id, &with_note(data.get(), &note, &about)),
        None => {
            let why = "Its result is not kept, so only this can be said.";
            response(id, &synthetic(&format!("{note} {why}"), &about))
        }
    }
}

/// The stored answer of an operation that failed, to a call that ran nothing.
fn replayed_failure(id: &str, record: &Record) -> Option<String> {
    let data = record.outcome.as_ref()?.data.as_ref()?;
    let note = format!(
        "[once] Replayed: this is the answer to the same call, sent before. Nothing was run now. Operation {}.",
        record.id
    );
    Some(response(id, &with_note(data.get(), &note, &effect(record, State::Failed, "replayed", "noop"))))
}

/// A result with a text block more, and with what we know in its `_meta`.
fn with_note(result: &str, note: &str, about: &Value) -> String {
    let about = format!("\"{PREFIX}effect\":{about}");
    let block = json!({"type": "text", "text": note}).to_string();
    let Some(object) = Object::parse(result) else {
        return result.to_owned();
    };
    let mut edits: Vec<(usize, String)> = Vec::new();
    if let Some(content) = object.get("content").filter(|content| content.starts_with('[')) {
        let comma = if content[1..].trim_start().starts_with(']') { "" } else { "," };
        edits.push((raw::range(result, content).end - 1, format!("{comma}{block}")));
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

/// A result of our own. It is an error to the client: no schema of the tool's is broken, and no model takes it
/// for done.
fn synthetic(text: &str, about: &Value) -> String {
    json!({
        "content": [{"type": "text", "text": text}],
        "isError": true,
        "resultType": "complete",
        "_meta": {(format!("{PREFIX}effect")): about},
    })
    .to_string()
}

/// The answer to a call that was not done. `surface` says what the agent, or a person, can do about it.
pub(crate) fn refused(
    id: &str,
    tool: &str,
    error: &Error,
    repeat: Repeat,
    surface: &Surface,
    readers: &[String],
) -> String {
    if let Error::Failed { record, ran: Ran::No, .. } = error
        && let Some(answer) = replayed_failure(id, record)
    {
        return answer;
    }
    let answer = Answer::failed(error, surface);
    let code = error.code();
    let mut text = format!("[once] {code}: {tool}: {error}.");
    if let Some(view) = &answer.error {
        if matches!(code, Code::InDoubt | Code::Timeout | Code::Unverified) && !readers.is_empty() {
            let named: Vec<&str> = readers.iter().take(NAMED).map(String::as_str).collect();
            text.push_str(&format!(" These tools change nothing and may tell: {}.", named.join(", ")));
        }
        for line in view.lines(answer.ran).iter().skip(2) {
            text.push_str(&format!(" {}", line.trim()));
        }
        if matches!(error.next_step(), Some(NextStep::Repeat | NextStep::OtherKey)) {
            text.push_str(&format!(" ({})", repeat.in_words()));
        }
    }
    let mut about = json!(answer);
    about["status"] = json!("refused");
    response(id, &synthetic(&text, &about))
}

/// What a call would get.
pub(crate) fn dry_run(id: &str, tool: &str, preview: &Preview, surface: &Surface) -> String {
    let changes = vec![format!("would call {tool}")];
    let mut about = json!(Answer::preview(preview, changes, surface));
    about["status"] = json!("dry_run");
    response(
        id,
        &synthetic(&format!("[once] Dry run of {tool}: {}. Nothing was run.", preview.sentence), &about),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_put_in_and_the_rest_stays_as_it_was() {
        let about = json!({"a": 1});
        for (result, expected) in [
            (
                r#"{"content":[{"text":"x"}],"n":12345678901234567890123}"#,
                concat!(
                    r#"{"_meta":{"dev.onceward/effect":{"a":1}},"content":[{"text":"x"},"#,
                    r#"{"text":"note","type":"text"}],"n":12345678901234567890123}"#
                ),
            ),
            (
                r#"{"_meta":{"k":[]},"content":[ ]}"#,
                r#"{"_meta":{"dev.onceward/effect":{"a":1},"k":[]},"content":[ {"text":"note","type":"text"}]}"#,
            ),
            ("{}", r#"{"_meta":{"dev.onceward/effect":{"a":1}}}"#),
        ] {
            assert_eq!(with_note(result, "note", &about), expected);
        }
    }
}
