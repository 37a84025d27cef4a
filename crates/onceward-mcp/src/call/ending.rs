//! Derives the effect of a call from the server's answer.

use std::sync::Arc;

use onceward::{
    Dispatched, Done, Effect, Evidence, Failure, OnToolError, Settings, Told, Witness, Witnessed,
};
use serde_json::value::RawValue;

use crate::call::question;
use crate::call::rejections::{Called, Proof, has_no_tools, proof};
use crate::tools::rules::ToolRules;
use crate::wire::message::Head;
use crate::wire::raw::{self, Object};
use crate::wire::tool_call::PREFIX;

/// Error codes of a transport that could not parse a message, or found its headers or version wrong. Under the id of a
/// call they prove nothing: the message was read, and a tool can answer with any code.
const UNREAD: [i64; 3] = [-32700, -32020, -32022];
/// Error codes with which SDKs reject a request. A tool can cause them too, so the text must be an SDK's own.
const REJECTED: [i64; 3] = [-32600, -32601, -32602];
/// The client lacks a capability. A tool that asks the client after its effect causes it, too.
const MISSING_CAPABILITY: i64 = -32021;
/// The user must visit an address before the call can be made; the client then repeats it.
const URL_NEEDED: i64 = -32042;
/// How many characters of the server's message are stored as the reason.
const WORDS: usize = 500;

/// How an attempt ended.
pub(crate) struct Ended {
    pub(crate) outcome: Result<Done, Failure>,
    /// Whether the answer reports a failure although the operation is known to be done.
    pub(crate) denies: bool,
}

/// Derives the effect from the server's answer.
pub(crate) fn ending(
    line: &[u8],
    called: &Called<'_>,
    rules: &ToolRules,
    aim: Aim,
    sent: Dispatched,
) -> Ended {
    let plain = |outcome| Ended { outcome, denies: false };
    let head = std::str::from_utf8(line).ok().and_then(Head::parse);
    let Some(head) = head else {
        return plain(Err(Failure::in_doubt("the server's answer is not JSON")));
    };
    if head.error.is_some_and(|error| error != "null") && head.result.is_some_and(|result| result != "null") {
        return plain(Err(Failure::in_doubt("the server's answer has both a result and an error")));
    }
    if let Some(error) = head.error.filter(|error| *error != "null" || head.result.is_none()) {
        return of_error(error, called, rules, sent);
    }
    let Some(text) = head.result else {
        return plain(Err(Failure::in_doubt("the server's answer has neither a result nor an error")));
    };
    // A success is an object. Anything else was not written by a tool, or its meaning is not known.
    let Some(result) = Object::parse(text) else {
        return plain(Err(Failure::in_doubt("the server's answer is not a result of a tool")));
    };
    let kept = (text.len() <= onceward::MAX_RESULT)
        .then(|| RawValue::from_string(text.to_owned()).ok())
        .flatten()
        .map(Arc::<RawValue>::from);
    let doubt = |why: &str| plain(Err(Failure::in_doubt(why).with(kept.clone(), None)));
    match result.get("resultType") {
        None | Some("\"complete\"") => {}
        Some("\"input_required\"") => {
            let why = "the server asked for input before it acted";
            let rule = Evidence::refused("MCP: a result of the type input_required");
            return plain(Err(Failure::no_effect(rule, why).with(kept, None)));
        }
        Some("\"task\"") if task_of(text).is_some() => {}
        Some(_) => return doubt("the server's answer is a kind of result that is not known here"),
    }
    if result.get("task").is_some() && task_of(text).is_none() {
        return doubt("the server's answer is a task without an id");
    }
    // The answer of a tool or a proxy that is an Onceward itself says whether the effect happened.
    let told = own_word(&result, called.witness);
    let told = told.map(|(told, own)| (if aim == Aim::Undo { told.of_compensation() } else { told }, own));
    let unchanged = match told {
        Some((Told::NoEffect(said), Some(own))) => {
            let failure = Failure::no_effect(Evidence::OwnWord(own), format!("the tool {said}"));
            return plain(Err(failure.with(kept, None)));
        }
        Some((Told::NoEffect(said), None)) => return doubt(&format!("the tool {said}, but {UNPROVEN}")),
        // It may take a person to release it, so another try now tells nothing new.
        Some((Told::InDoubt(said), _)) => {
            return plain(Err(Failure::in_doubt(format!("the tool {said}")).with(kept, None).stopped()));
        }
        Some((Told::Unchanged(_), _)) => true,
        None => false,
    };
    match result.get("isError") {
        None | Some("false") => {}
        Some("true") => {
            // A result that is too long to store is not searched either.
            let words = kept.as_ref().map(|_| question::words_of(&result)).unwrap_or_default();
            return of_tool_error(&words.join("\n"), called, rules, sent, kept);
        }
        Some(_) => {
            return doubt(
                "the server's answer does not say whether the tool failed: isError is not a boolean",
            );
        }
    }
    let effect = if unchanged { Effect::Noop } else { rules.settings.effect };
    plain(Ok(match kept {
        Some(kept) => sent.done_with_json(effect, kept),
        None => sent.done_without_result(effect),
    }))
}

/// What the call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Its own effect.
    Effect,
    /// It takes another call back.
    Undo,
}

/// Why an envelope without the witness does not count.
const UNPROVEN: &str = "nothing shows that this is about all that it did";

/// What a tool says about its effect in the contract's envelope, in its structured content or in the note of another
/// proxy, and whether the witness shows that it is its own word. The worse of the two counts.
fn own_word(result: &Object<'_>, witness: Option<&Witness>) -> Option<(Told, Option<Witnessed>)> {
    let note = result.object("_meta").and_then(|meta| meta.get(&format!("{PREFIX}effect")));
    let told = [result.get("structuredContent"), note].into_iter().flatten();
    told.filter_map(|text| {
        let shown = Object::parse(text).and_then(|envelope| envelope.string("witness"));
        let own = witness.and_then(|witness| witness.confirms(shown.as_deref()));
        Some((Told::by_envelope(text.as_bytes())?, own))
    })
    .max_by(|one, other| one.0.cmp(&other.0))
}

/// A result with `isError`. SDKs create one for every exception, so it alone proves nothing.
fn of_tool_error(
    words: &str,
    called: &Called<'_>,
    rules: &ToolRules,
    sent: Dispatched,
    kept: Option<Arc<RawValue>>,
) -> Ended {
    let said = shortened(words, "the tool gave no reason");
    let failure = match (proof(words, called), rules.settings.tool.on_tool_error) {
        (Some(Proof::Ran), _) => return ran_without_result(&rules.settings, sent),
        (Some(Proof::NotRun), _) => rejected(&said),
        (None, OnToolError::NoEffect) => {
            let reason = format!("failed without effect, as the policy takes the tool's word: {said}");
            Failure::no_effect(Evidence::declared("on_tool_error"), reason)
        }
        (None, OnToolError::InDoubt) => Failure::answered(format!("the tool answered with an error: {said}")),
    };
    Ended { outcome: Err(failure.with(kept, None)), denies: false }
}

/// A protocol error. Some prove that nothing was started, all others prove nothing.
fn of_error(error: &str, called: &Called<'_>, rules: &ToolRules, sent: Dispatched) -> Ended {
    let words = Object::parse(error).and_then(|error| error.string("message")).unwrap_or_default();
    let said = shortened(&words, "no message");
    let code = code_of(error);
    let known = proof(&words, called);
    let failure = match code {
        _ if known == Some(Proof::Ran) => return ran_without_result(&rules.settings, sent),
        Some(code) if REJECTED.contains(&code) && known == Some(Proof::NotRun) => rejected(&said),
        Some(-32601) if has_no_tools(&words, called) => {
            let rule = Evidence::refused("MCP: -32601 of a server that lists no tools");
            Failure::no_effect(rule, format!("the server has no tools: {said}"))
        }
        Some(URL_NEEDED) if asks_for_url(error) => {
            let rule = Evidence::refused("MCP: -32042, an address must be visited first");
            Failure::no_effect(rule, format!("the server asked for input before it acted: {said}"))
        }
        Some(_) | None => Failure::answered(format!("the server answered with an error: {said}")),
    };
    Ended { outcome: Err(failure), denies: false }
}

/// The server's SDK rejected the arguments, in words that it writes before it calls the tool.
fn rejected(said: &str) -> Failure {
    let reason = format!("the server's SDK rejected the input before the tool ran: {said}");
    Failure::no_effect(Evidence::refused("the SDK's validation of the arguments"), reason)
}

/// The tool ran, but its result cannot be used.
fn ran_without_result(settings: &Settings, sent: Dispatched) -> Ended {
    Ended { outcome: Ok(sent.done_without_result(settings.effect)), denies: true }
}

fn shortened(words: &str, otherwise: &str) -> String {
    if words.is_empty() { otherwise.to_owned() } else { words.chars().take(WORDS).collect() }
}

fn code_of(error: &str) -> Option<i64> {
    Object::parse(error).and_then(|error| error.get("code")?.parse::<i64>().ok())
}

/// Whether the error names an address that the user must visit first.
fn asks_for_url(error: &str) -> bool {
    let data = Object::parse(error).and_then(|error| error.object("data"));
    let asked = data.as_ref().and_then(|data| data.get("elicitations")).and_then(raw::items);
    asked.is_some_and(|asked| !asked.is_empty())
}

/// Whether SDKs send this error with an HTTP status of their own (4xx). If it does not answer a request by its id, the
/// transport wrote it and nothing was started; if it does, a tool can have caused it.
pub(crate) fn has_own_status(error: &str) -> bool {
    let own = |code: i64| UNREAD.contains(&code) || REJECTED.contains(&code) || code == MISSING_CAPABILITY;
    code_of(error).is_some_and(own)
}

/// The task id, if the result is only a task.
pub(crate) fn task_of(result: &str) -> Option<String> {
    let result = Object::parse(result)?;
    let own = (result.get("resultType") == Some("\"task\"")).then(|| result.string("taskId")).flatten();
    own.or_else(|| result.object("task")?.string("taskId"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::rules::{Listing, RuleSet, Trust};

    fn tool_rules(policy: &str) -> ToolRules {
        RuleSet { policy: onceward::Policy::parse(policy).unwrap(), ..RuleSet::of("s", Trust::Annotations) }
            .tool_rules("pay", None)
            .unwrap()
    }

    fn witness() -> Witness {
        Witness::new([7; 16])
    }

    fn outcome_of(line: &str, rules: &ToolRules) -> String {
        let listing = || Some(Listing { input: "{}".to_owned(), has_output: true, takes_witness: true });
        let witness = witness();
        let called = Called { tool: "pay", arguments: "[]", listing: &listing, witness: Some(&witness) };
        let ended = ending(line.as_bytes(), &called, rules, Aim::Effect, onceward::atomic::dispatch());
        match ended.outcome {
            Ok(_) if ended.denies => "done, denied".to_owned(),
            Ok(_) => "done".to_owned(),
            Err(failure) => format!("{failure:?}"),
        }
    }

    #[test]
    fn what_an_answer_says_about_the_effect() {
        let plain = tool_rules("");
        let tool_error = |text: &str| {
            serde_json::json!({"id": 1, "result": {"isError": true, "content": [{"text": text}]}}).to_string()
        };
        assert_eq!(outcome_of(r#"{"id":1,"result":{"content":[]}}"#, &plain), "done");
        let tasks =
            [r#"{"resultType":"task","taskId":"t"}"#, r#"{"resultType":"task","task":{"taskId":"t"}}"#];
        for done in ["{}", r#"{"isError":false}"#, r#"{"resultType":"complete"}"#].into_iter().chain(tasks) {
            assert_eq!(outcome_of(&format!(r#"{{"id":1,"result":{done}}}"#), &plain), "done", "{done}");
        }
        let of_no_tool = ["null", "\"text\"", "7", "true", "[]", "[{}]"];
        let unknown = [r#"{"resultType":"task"}"#, r#"{"resultType":7}"#, r#"{"resultType":"partial"}"#]
            .into_iter()
            .chain([r#"{"task":{}}"#, r#"{"task":null,"content":[]}"#]);
        for result in unknown {
            let outcome = outcome_of(&format!(r#"{{"id":1,"result":{result}}}"#), &plain);
            assert!(outcome.contains("InDoubt"), "{result}: {outcome}");
        }
        let undecided =
            ["null", "\"true\"", "\"false\"", "1", "[]", "{}"].map(|is| format!(r#"{{"isError":{is}}}"#));
        for result in of_no_tool.map(str::to_owned).iter().chain(&undecided) {
            let outcome = outcome_of(&format!(r#"{{"id":1,"result":{result}}}"#), &plain);
            assert!(outcome.contains("InDoubt"), "{result}: {outcome}");
        }
        assert!(outcome_of(&tool_error("read timed out"), &plain).contains("InDoubt"));
        assert!(outcome_of(&tool_error("Unknown tool: pay"), &plain).contains("NoEffect"));
        assert_eq!(outcome_of(&tool_error("Output validation error: x"), &plain), "done, denied");
        let believed =
            outcome_of(&tool_error("no funds"), &tool_rules("[operation.pay]\non_tool_error = 'no_effect'"));
        assert!(believed.contains("NoEffect") && believed.contains("the tool's word"), "{believed}");
        assert!(
            outcome_of(r#"{"id":1,"result":{"resultType":"input_required"}}"#, &plain).contains("NoEffect")
        );
        for (certain, line) in [
            (true, r#"{"id":1,"error":{"code":-32602,"message":"Unknown tool: pay"}}"#),
            (false, r#"{"id":1,"error":{"code":-32700,"message":"?"}}"#),
            (false, r#"{"id":1,"error":{"code":-32020,"message":"?"}}"#),
            (false, r#"{"id":1,"error":{"code":-32022,"message":"?"}}"#),
            (false, r#"{"id":1,"error":{"code":-32602,"message":"Unknown tool: pay"},"result":{}}"#),
            (
                true,
                r#"{"id":1,"error":{"code":-32042,"message":"?","data":{"elicitations":[{"mode":"url"}]}}}"#,
            ),
            (false, r#"{"id":1,"error":{"code":-32042,"message":"?","data":{"elicitations":[]}}}"#),
            (false, r#"{"id":1,"error":{"code":-32042,"message":"?"}}"#),
            // The tool asked the client for something that the client does not support.
            (false, r#"{"id":1,"error":{"code":-32601,"message":"Method not found"}}"#),
            (false, r#"{"id":1,"error":{"code":-32021,"message":"?"}}"#),
            (false, r#"{"id":1,"error":{"code":-32602,"message":"bad arguments"}}"#),
            (false, r#"{"id":1,"error":{"code":-32600,"message":"x"}}"#),
            (false, r#"{"id":1,"error":{"code":-32603,"message":"Unknown tool: pay"}}"#),
            (false, r#"{"id":1,"error":{"code":0}}"#),
            (false, r#"{"id":1}"#),
            (false, "x"),
        ] {
            assert_eq!(outcome_of(line, &plain).contains("NoEffect"), certain, "{line}");
        }
        let output = concat!(
            r#"{"id":1,"error":{"code":-32602,"#,
            r#""message":"Tool pay has an output schema but no structured content was provided"}}"#
        );
        assert_eq!(outcome_of(output, &plain), "done, denied");
    }

    #[test]
    fn the_word_of_another_onceward_counts() {
        let rules = tool_rules("");
        let said = |ok: bool, effect: &str, happened: &str, ran: bool| {
            let (ok, ran) = (serde_json::Value::from(ok), serde_json::Value::from(ran));
            let witness = witness().as_str().to_owned();
            serde_json::json!({"ok": ok, "effect": effect, "happened": happened, "ran": ran, "witness": witness})
        };
        let unsigned = |envelope: &serde_json::Value| {
            let mut envelope = envelope.clone();
            envelope["witness"] = "another".into();
            envelope
        };
        let of_tool = |envelope| serde_json::json!({"structuredContent": envelope, "isError": false});
        let of_proxy =
            |envelope| serde_json::json!({"_meta": {"dev.onceward/effect": envelope}, "content": []});
        let failed = |result: &serde_json::Value| {
            let mut result = result.clone();
            result["isError"] = true.into();
            result
        };
        let (held, planned) = (said(true, "held", "no", false), said(true, "would_create", "no", false));
        let (unknown, refused) = (said(true, "updated", "unknown", true), said(false, "noop", "no", false));
        let done = said(true, "created", "yes", true);
        for (result, expected) in [
            (of_tool(held.clone()), "InDoubt"),
            (of_proxy(held.clone()), "InDoubt"),
            (of_tool(planned.clone()), "NoEffect"),
            (of_proxy(planned.clone()), "NoEffect"),
            // A tool that passes on what a server told it does not know the witness.
            (of_tool(unsigned(&planned)), "InDoubt"),
            (of_proxy(unsigned(&planned)), "InDoubt"),
            (failed(&of_tool(unsigned(&refused))), "InDoubt"),
            (of_tool(unknown), "InDoubt"),
            (failed(&of_tool(refused)), "NoEffect"),
            (of_tool(said(true, "noop", "no", true)), "done"),
            (of_tool(done.clone()), "done"),
            (of_proxy(done.clone()), "done"),
            // The proxy took the word of a tool for a success.
            (
                serde_json::json!({"structuredContent": held, "_meta": {"dev.onceward/effect": done}}),
                "InDoubt",
            ),
        ] {
            let line = serde_json::json!({"id": 1, "result": result}).to_string();
            let outcome = outcome_of(&line, &rules);
            assert!(outcome.contains(expected), "{line}: {outcome}");
        }
        let read =
            serde_json::json!({"id": 1, "result": of_tool(said(true, "noop", "no", true))}).to_string();
        let called = Called { tool: "pay", arguments: "[]", listing: &|| None, witness: None };
        let ended = ending(read.as_bytes(), &called, &rules, Aim::Undo, onceward::atomic::dispatch());
        assert!(ended.outcome.is_err(), "a read takes nothing back");
    }

    #[test]
    fn a_task_is_found_in_either_era() {
        assert_eq!(task_of(r#"{"resultType":"task","taskId":"t"}"#).as_deref(), Some("t"));
        assert_eq!(task_of(r#"{"task":{"taskId":"u"}}"#).as_deref(), Some("u"));
        assert_eq!(task_of(r#"{"resultType":"task","task":{"taskId":"v"}}"#).as_deref(), Some("v"));
        assert_eq!(task_of(r#"{"taskId":"t"}"#), None);
    }
}
