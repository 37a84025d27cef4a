//! Probes and checks: questions to another tool of the same server.

use std::sync::Arc;
use std::time::Duration;

use onceward::{Clock, ToolQuestion};
use onceward_http::time;
use serde_json::Value;

use crate::transport::call_transport::{CallTransport, Origin, Request, SendError, ServerReply};
use crate::wire::message::Head;
use crate::wire::raw::{self, Object};

/// How long a tool has to answer a question.
const PATIENCE: Duration = Duration::from_secs(30);

/// The reply to a probe or a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeReply {
    /// It happened.
    Yes,
    /// It did not happen.
    No,
    /// The reply does not say; with the reason.
    CannotTell(String),
}

/// Why a request of the proxy has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// No answer in time.
    Late,
    /// It was not sent, or the answer was not understood; with the reason.
    Lost(String),
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Late => f.write_str("no answer came in time"),
            Self::Lost(why) => f.write_str(why),
        }
    }
}

/// Sends a request of the proxy and returns the answer.
pub(crate) async fn request(
    (transport, clock): (&dyn CallTransport, &dyn Clock),
    method: &str,
    params: &str,
    patience: Duration,
) -> Result<String, Unanswered> {
    let head = "{\"jsonrpc\":\"2.0\",\"id\":";
    let line = format!("{head}0,\"method\":{},\"params\":{params}}}", raw::quoted(method));
    let request =
        Request { line: Arc::new(line), id_place: head.len()..head.len() + 1, origin: Origin::Proxy };
    match time::within(clock, patience, transport.ask(request)).await {
        Some(Ok(ServerReply::Answer(line))) => {
            String::from_utf8(line).map_err(|error| Unanswered::Lost(error.to_string()))
        }
        Some(Ok(
            ServerReply::Rejected(reason) | ServerReply::Unclear(reason) | ServerReply::Over(reason),
        )) => Err(Unanswered::Lost(reason)),
        Some(Err(SendError::NotSent(why) | SendError::MaybeSent(why))) => {
            Err(Unanswered::Lost(format!("it could not be sent: {why}")))
        }
        None => Err(Unanswered::Late),
    }
}

/// Asks another tool. `era` is the `_meta` that the client's protocol revision requires.
pub(crate) async fn ask(
    (transport, clock): (&dyn CallTransport, &dyn Clock),
    question: &ToolQuestion,
    arguments: &str,
    era: &str,
) -> ProbeReply {
    let params = format!(
        "{{\"name\":{},\"arguments\":{},\"_meta\":{era}}}",
        raw::quoted(&question.tool),
        filled_in(&question.args, arguments)
    );
    let line = match request((transport, clock), "tools/call", &params, PATIENCE).await {
        Ok(line) => line,
        Err(reason) => return ProbeReply::CannotTell(format!("{}: {reason}", question.tool)),
    };
    judge(question, &line, arguments)
}

fn judge(question: &ToolQuestion, line: &str, arguments: &str) -> ProbeReply {
    let result = Head::parse(line).and_then(|head| head.result).and_then(Object::parse);
    let Some(result) = result else {
        return ProbeReply::CannotTell(format!("{} answered with an error", question.tool));
    };
    let said = text_of(&result);
    if question.missing.as_ref().is_some_and(|missing| said.contains(&fill(missing, arguments))) {
        return ProbeReply::No;
    }
    if !matches!(result.get("isError"), None | Some("false")) {
        return ProbeReply::CannotTell(format!("{} failed", question.tool));
    }
    match (said.contains(&fill(&question.expect, arguments)), &question.missing) {
        (true, _) => ProbeReply::Yes,
        (false, None) => ProbeReply::No,
        (false, Some(_)) => {
            ProbeReply::CannotTell(format!("the answer of {} holds neither text", question.tool))
        }
    }
}

/// The text blocks of a result, without structured content.
pub(crate) fn words_of(result: &Object<'_>) -> Vec<String> {
    let blocks = result.get("content").and_then(raw::items).unwrap_or_default();
    blocks.into_iter().filter_map(Object::parse).filter_map(|block| block.string("text")).collect()
}

/// The text of a result, with structured content.
pub(crate) fn text_of(result: &Object<'_>) -> String {
    let mut texts = words_of(result);
    texts.extend(result.get("structuredContent").map(str::to_owned));
    texts.join("\n")
}

/// Replaces each `{name}` by the argument of that name.
pub(crate) fn fill(template: &str, arguments: &str) -> String {
    let Some(arguments) = Object::parse(arguments) else {
        return template.to_owned();
    };
    let mut filled = String::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        filled.push_str(before);
        let name = from[1..].split_once('}').map(|(name, _)| name);
        match name.and_then(|name| Some((name, arguments.get(name)?))) {
            Some((name, value)) => {
                filled.push_str(&raw::string(value).unwrap_or_else(|| value.to_owned()));
                rest = &from[name.len() + 2..];
            }
            None => {
                filled.push('{');
                rest = &from[1..];
            }
        }
    }
    filled + rest
}

/// The arguments of a question. A string that is only `{name}` becomes the argument itself, with its type.
fn filled_in(template: &Value, arguments: &str) -> String {
    match template {
        Value::Null => "{}".to_owned(),
        Value::String(text) => {
            let name = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
            let whole = name.and_then(|name| Object::parse(arguments)?.get(name).map(str::to_owned));
            whole.unwrap_or_else(|| raw::quoted(&fill(text, arguments)))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| filled_in(item, arguments)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(name, value)| format!("{}:{}", raw::quoted(name), filled_in(value, arguments)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Bool(_) | Value::Number(_) => template.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: &str = r#"{"id":12345678901234567890123,"name":"a \"b\"","on":true}"#;

    #[test]
    fn arguments_are_filled_in_as_they_are() {
        assert_eq!(fill("x {id} {name} {none} {", ARGUMENTS), "x 12345678901234567890123 a \"b\" {none} {");
        let template = serde_json::json!({"id": "{id}", "all": ["{on}", "n={name}", 5]});
        assert_eq!(
            filled_in(&template, ARGUMENTS),
            r#"{"all":[true,"n=a \"b\"",5],"id":12345678901234567890123}"#
        );
    }

    #[test]
    fn what_an_answer_tells() {
        let question = |missing: Option<&str>| ToolQuestion {
            tool: "get".to_owned(),
            args: Value::Null,
            expect: "order {id}".to_owned(),
            missing: missing.map(str::to_owned),
        };
        let said = |text: &str, error: bool| {
            let content = serde_json::json!([{"type": "text", "text": text}]);
            serde_json::json!({"id": 1, "result": {"content": content, "isError": error}}).to_string()
        };
        let judged = |missing, line: &str| judge(&question(missing), line, r#"{"id":7}"#);
        assert_eq!(judged(None, &said("has order 7", false)), ProbeReply::Yes);
        assert_eq!(judged(None, &said("has order 8", false)), ProbeReply::No);
        assert_eq!(judged(Some("not found"), &said("order 8 not found", true)), ProbeReply::No);
        assert!(matches!(judged(Some("not found"), &said("busy", false)), ProbeReply::CannotTell(_)));
        assert!(matches!(judged(None, &said("order 7", true)), ProbeReply::CannotTell(_)));
        let unclear = said("order 7", true).replace("true", "\"true\"");
        assert!(matches!(judged(None, &unclear), ProbeReply::CannotTell(_)), "{unclear}");
        assert!(matches!(judged(None, r#"{"id":1,"error":{"code":1}}"#), ProbeReply::CannotTell(_)));
    }
}
