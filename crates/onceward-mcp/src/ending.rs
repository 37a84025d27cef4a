//! What an answer of the server's says about the effect.

use std::sync::Arc;

use onceward::policy::OnToolError;
use onceward::{Dispatched, Done, Failure, Settings};
use serde_json::value::RawValue;

use crate::message::Head;
use crate::question;
use crate::raw::Object;

/// Errors by which a server says that it has not begun: parse error, invalid request, unknown method, invalid
/// parameters, wrong headers, missing capability, unsupported version.
const REJECTED: [i64; 7] = [-32700, -32600, -32601, -32602, -32020, -32021, -32022];

/// What the server's answer says about the effect.
pub(crate) fn ending(line: &[u8], settings: &Settings, sent: Dispatched) -> Result<Done, Failure> {
    let head = std::str::from_utf8(line).ok().and_then(Head::parse);
    let Some(head) = head else {
        return Err(Failure::in_doubt("the server's answer is not JSON"));
    };
    if let Some(error) = head.error {
        return Err(rejection(error));
    }
    let Some(text) = head.result else {
        return Err(Failure::in_doubt("the server's answer has neither a result nor an error"));
    };
    let kept = (text.len() <= onceward::operation::MAX_RESULT)
        .then(|| RawValue::from_string(text.to_owned()).ok())
        .flatten()
        .map(Arc::<RawValue>::from);
    let result = Object::parse(text);
    let result = result.as_ref();
    let says = |name: &str| result.and_then(|result| result.get(name));
    if says("resultType") == Some("\"input_required\"") {
        return Err(Failure::no_effect("the server asked for input before it acted").with(kept, None));
    }
    if says("isError") == Some("true") {
        // What is not kept is not looked through either.
        let words =
            result.filter(|_| kept.is_some()).map(question::text_of).filter(|words| !words.is_empty());
        let words: String = words.unwrap_or_else(|| "the tool failed".to_owned()).chars().take(500).collect();
        return Err(match settings.tool.on_tool_error {
            OnToolError::NoEffect => Failure::no_effect(words),
            OnToolError::InDoubt => Failure::in_doubt(words),
        }
        .with(kept, None));
    }
    Ok(match kept {
        Some(kept) => sent.done_with_json(settings.effect, kept),
        None => sent.done_without_result(settings.effect),
    })
}

/// An error of the protocol: some say that nothing was begun, all others say nothing.
fn rejection(error: &str) -> Failure {
    let words = Object::parse(error).and_then(|error| error.string("message")).unwrap_or_default();
    let words: String = words.chars().take(500).collect();
    if is_rejection(error) {
        Failure::no_effect(format!("the server rejected it: {words}"))
    } else {
        Failure::in_doubt(format!("the server answered with an error: {words}"))
    }
}

/// Whether an error of the protocol says that nothing was begun.
pub(crate) fn is_rejection(error: &str) -> bool {
    let code = Object::parse(error).and_then(|error| error.get("code")?.parse::<i64>().ok());
    code.is_some_and(|code| REJECTED.contains(&code))
}

/// The id of the task that a result stands for.
pub(crate) fn task_of(result: &str) -> Option<String> {
    let result = Object::parse(result)?;
    if result.get("resultType") == Some("\"task\"") {
        return result.string("taskId");
    }
    result.object("task")?.string("taskId")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> String {
        match ending(line.as_bytes(), &Settings::default(), onceward::atomic::dispatch()) {
            Ok(done) => format!(
                "done {}",
                done == onceward::atomic::dispatch().done_without_result(onceward::Effect::Updated)
            ),
            Err(failure) => format!("{failure:?}"),
        }
    }

    #[test]
    fn what_an_answer_says_about_the_effect() {
        assert_eq!(told(r#"{"id":1,"result":{"content":[]}}"#), "done false");
        assert!(
            told(r#"{"id":1,"result":{"isError":true,"content":[{"text":"no"}]}}"#)
                .contains("NoEffect, reason: \"no\"")
        );
        assert!(told(r#"{"id":1,"result":{"resultType":"input_required"}}"#).contains("NoEffect"));
        assert!(told(r#"{"id":1,"error":{"code":-32602,"message":"bad"}}"#).contains("NoEffect"));
        for doubtful in
            [r#"{"id":1,"error":{"code":-32603}}"#, r#"{"id":1,"error":{"code":0}}"#, r#"{"id":1}"#, "x"]
        {
            assert!(told(doubtful).contains("InDoubt"), "{doubtful}");
        }
    }

    #[test]
    fn a_task_is_found_in_either_era() {
        assert_eq!(task_of(r#"{"resultType":"task","taskId":"t"}"#).as_deref(), Some("t"));
        assert_eq!(task_of(r#"{"task":{"taskId":"u"}}"#).as_deref(), Some("u"));
        assert_eq!(task_of(r#"{"taskId":"t"}"#), None);
    }
}
