//! What an answer of the server's says about the effect.

use std::sync::Arc;

use onceward::policy::OnToolError;
use onceward::{Dispatched, Done, Failure, Settings};
use serde_json::value::RawValue;

use crate::message::Head;
use crate::question;
use crate::raw::Object;
use crate::rejections::{Evidence, evidence};
use crate::tools::Standing;

/// Errors that no tool can have caused: the message could not be read, or its headers or version are wrong.
const UNREAD: [i64; 3] = [-32700, -32020, -32022];
/// Errors by which SDKs reject a request. A tool can cause them too, so the text must be an SDK's own.
const REJECTED: [i64; 3] = [-32600, -32601, -32602];
/// How much of a server's words is kept as the reason.
const WORDS: usize = 500;

/// How an attempt ended, and what its answer was.
pub(crate) struct Ended {
    pub(crate) outcome: Result<Done, Failure>,
    /// Whether the answer says that it failed although it is known to be done.
    pub(crate) denies: bool,
}

/// What the server's answer says about the effect.
pub(crate) fn ending(line: &[u8], tool: &str, standing: &Standing, sent: Dispatched) -> Ended {
    let plain = |outcome| Ended { outcome, denies: false };
    let head = std::str::from_utf8(line).ok().and_then(Head::parse);
    let Some(head) = head else {
        return plain(Err(Failure::in_doubt("the server's answer is not JSON")));
    };
    if let Some(error) = head.error {
        return of_error(error, tool, standing, sent);
    }
    let Some(text) = head.result else {
        return plain(Err(Failure::in_doubt("the server's answer has neither a result nor an error")));
    };
    let kept = (text.len() <= onceward::operation::MAX_RESULT)
        .then(|| RawValue::from_string(text.to_owned()).ok())
        .flatten()
        .map(Arc::<RawValue>::from);
    let result = Object::parse(text);
    let says = |name: &str| result.as_ref().and_then(|result| result.get(name));
    if says("resultType") == Some("\"input_required\"") {
        return plain(Err(Failure::no_effect("the server asked for input before it acted").with(kept, None)));
    }
    if says("isError") == Some("true") {
        // What is not kept is not looked through either.
        let words = result.as_ref().filter(|_| kept.is_some()).map(question::words_of).unwrap_or_default();
        return of_tool_error(&words.join("\n"), tool, standing, sent, kept);
    }
    let effect = standing.settings.effect;
    plain(Ok(match kept {
        Some(kept) => sent.done_with_json(effect, kept),
        None => sent.done_without_result(effect),
    }))
}

/// A result that is an error. Every SDK makes one of every exception, so it proves nothing by itself.
fn of_tool_error(
    words: &str,
    tool: &str,
    standing: &Standing,
    sent: Dispatched,
    kept: Option<Arc<RawValue>>,
) -> Ended {
    let said = shortened(words, "the tool gave no reason");
    let failure = match (evidence(words, tool), standing.settings.tool.on_tool_error) {
        (Some(Evidence::Ran), _) => return ran(&standing.settings, sent),
        (Some(Evidence::NotRun), _) => {
            Failure::no_effect(format!("the server's SDK rejected the input before the tool ran: {said}"))
        }
        (None, OnToolError::NoEffect) => {
            Failure::no_effect(format!("failed without effect, as the policy takes the tool's word: {said}"))
        }
        (None, OnToolError::InDoubt) => unexplained(standing, "the tool answered with an error", &said),
    };
    Ended { outcome: Err(failure.with(kept, None)), denies: false }
}

/// An error of the protocol: some say that nothing was begun, all others say nothing.
fn of_error(error: &str, tool: &str, standing: &Standing, sent: Dispatched) -> Ended {
    let words = Object::parse(error).and_then(|error| error.string("message")).unwrap_or_default();
    let said = shortened(&words, "no message");
    let code = code_of(error);
    let known = evidence(&words, tool);
    let failure = match code {
        _ if known == Some(Evidence::Ran) => return ran(&standing.settings, sent),
        Some(code) if UNREAD.contains(&code) => {
            Failure::no_effect(format!("the server could not read the request: {said}"))
        }
        Some(code) if REJECTED.contains(&code) && known == Some(Evidence::NotRun) => {
            Failure::no_effect(format!("the server's SDK rejected the input before the tool ran: {said}"))
        }
        Some(_) | None => unexplained(standing, "the server answered with an error", &said),
    };
    Ended { outcome: Err(failure), denies: false }
}

/// An error that says nothing about the effect. A tool that only reads, as far as its name tells, has none.
fn unexplained(standing: &Standing, what: &str, said: &str) -> Failure {
    if standing.guessed {
        return Failure::no_effect(format!("{what}, and by its name the tool only reads (a guess): {said}"));
    }
    Failure::in_doubt(format!("{what}: {said}"))
}

/// The tool ran and its result cannot be used.
fn ran(settings: &Settings, sent: Dispatched) -> Ended {
    Ended { outcome: Ok(sent.done_without_result(settings.effect)), denies: true }
}

fn shortened(words: &str, otherwise: &str) -> String {
    if words.is_empty() { otherwise.to_owned() } else { words.chars().take(WORDS).collect() }
}

fn code_of(error: &str) -> Option<i64> {
    Object::parse(error).and_then(|error| error.get("code")?.parse::<i64>().ok())
}

/// Whether the body of a refusal by HTTP (a status of 4xx) says that nothing was begun. A tool that ran is answered
/// with a success of the transport, so here the code is enough.
pub(crate) fn is_rejection(error: &str) -> bool {
    code_of(error).is_some_and(|code| UNREAD.contains(&code) || REJECTED.contains(&code) || code == -32021)
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
    use crate::tools::{Rules, Trust};

    fn standing(policy: &str) -> Standing {
        Rules { policy: onceward::Policy::parse(policy).unwrap(), ..Rules::of("s", Trust::Annotations) }
            .standing("pay", None)
            .unwrap()
    }

    fn told(line: &str, standing: &Standing) -> String {
        let ended = ending(line.as_bytes(), "pay", standing, onceward::atomic::dispatch());
        match ended.outcome {
            Ok(_) if ended.denies => "done, denied".to_owned(),
            Ok(_) => "done".to_owned(),
            Err(failure) => format!("{failure:?}"),
        }
    }

    #[test]
    fn what_an_answer_says_about_the_effect() {
        let plain = standing("");
        let tool_error = |text: &str| {
            serde_json::json!({"id": 1, "result": {"isError": true, "content": [{"text": text}]}}).to_string()
        };
        assert_eq!(told(r#"{"id":1,"result":{"content":[]}}"#, &plain), "done");
        assert!(told(&tool_error("read timed out"), &plain).contains("InDoubt"));
        assert!(told(&tool_error("Unknown tool: pay"), &plain).contains("NoEffect"));
        assert_eq!(told(&tool_error("Output validation error: x"), &plain), "done, denied");
        let believed =
            told(&tool_error("no funds"), &standing("[operation.pay]\non_tool_error = 'no_effect'"));
        assert!(believed.contains("NoEffect") && believed.contains("the tool's word"), "{believed}");
        assert!(told(r#"{"id":1,"result":{"resultType":"input_required"}}"#, &plain).contains("NoEffect"));
        for (certain, line) in [
            (true, r#"{"id":1,"error":{"code":-32602,"message":"Unknown tool: pay"}}"#),
            (true, r#"{"id":1,"error":{"code":-32700,"message":"?"}}"#),
            (true, r#"{"id":1,"error":{"code":-32601,"message":"Method not found"}}"#),
            (false, r#"{"id":1,"error":{"code":-32602,"message":"bad arguments"}}"#),
            (false, r#"{"id":1,"error":{"code":-32600,"message":"x"}}"#),
            (false, r#"{"id":1,"error":{"code":-32603,"message":"Unknown tool: pay"}}"#),
            (false, r#"{"id":1,"error":{"code":0}}"#),
            (false, r#"{"id":1}"#),
            (false, "x"),
        ] {
            assert_eq!(told(line, &plain).contains("NoEffect"), certain, "{line}");
        }
        let output = concat!(
            r#"{"id":1,"error":{"code":-32602,"#,
            r#""message":"Tool pay has an output schema but no structured content was provided"}}"#
        );
        assert_eq!(told(output, &plain), "done, denied");
    }

    #[test]
    fn a_task_is_found_in_either_era() {
        assert_eq!(task_of(r#"{"resultType":"task","taskId":"t"}"#).as_deref(), Some("t"));
        assert_eq!(task_of(r#"{"task":{"taskId":"u"}}"#).as_deref(), Some("u"));
        assert_eq!(task_of(r#"{"taskId":"t"}"#), None);
    }
}
