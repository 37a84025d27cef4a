//! Probes and checks: questions that another tool of the same server answers.

use std::sync::Arc;
use std::time::Duration;

use onceward::policy::ToolQuestion;
use serde_json::Value;

use crate::ends::{Ends, Reply, Request, Whose};
use crate::message::Head;
use crate::raw::{self, Object};

/// How long a tool has to answer a question.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a question came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is so.
    Yes,
    /// It is not so.
    No,
    /// The answer does not tell, and why.
    CannotTell(String),
}

/// Why a request of our own has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// None came in time.
    Late,
    /// It did not get there, or was not understood, and why.
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

/// Sends a request of our own and gives the answer.
pub(crate) async fn request(
    ends: &dyn Ends,
    method: &str,
    params: &str,
    patience: Duration,
) -> Result<String, Unanswered> {
    let head = "{\"jsonrpc\":\"2.0\",\"id\":";
    let line = format!("{head}0,\"method\":{},\"params\":{params}}}", raw::quoted(method));
    let request = Request { line: Arc::new(line), id_place: head.len()..head.len() + 1, whose: Whose::Ours };
    match tokio::time::timeout(patience, ends.ask(request)).await {
        Ok(Ok(Reply::Answer(line))) => {
            String::from_utf8(line).map_err(|error| Unanswered::Lost(error.to_string()))
        }
        Ok(Ok(Reply::Rejected(reason) | Reply::Unclear(reason) | Reply::Over(reason))) => {
            Err(Unanswered::Lost(reason))
        }
        Ok(Err(unsent)) => Err(Unanswered::Lost(format!("it could not be sent: {unsent:?}"))),
        Err(_) => Err(Unanswered::Late),
    }
}

/// Asks another tool. `era` is what the client's era wants in `_meta`.
pub(crate) async fn ask(ends: &dyn Ends, question: &ToolQuestion, arguments: &str, era: &str) -> Asked {
    let params = format!(
        "{{\"name\":{},\"arguments\":{},\"_meta\":{era}}}",
        raw::quoted(&question.tool),
        filled_in(&question.args, arguments)
    );
    let line = match request(ends, "tools/call", &params, PATIENCE).await {
        Ok(line) => line,
        Err(reason) => return Asked::CannotTell(format!("{}: {reason}", question.tool)),
    };
    judge(question, &line, arguments)
}

fn judge(question: &ToolQuestion, line: &str, arguments: &str) -> Asked {
    let result = Head::parse(line).and_then(|head| head.result).and_then(Object::parse);
    let Some(result) = result else {
        return Asked::CannotTell(format!("{} answered with an error", question.tool));
    };
    let said = text_of(&result);
    if question.missing.as_ref().is_some_and(|missing| said.contains(&fill(missing, arguments))) {
        return Asked::No;
    }
    if result.get("isError") == Some("true") {
        return Asked::CannotTell(format!("{} failed", question.tool));
    }
    match (said.contains(&fill(&question.expect, arguments)), &question.missing) {
        (true, _) => Asked::Yes,
        (false, None) => Asked::No,
        (false, Some(_)) => Asked::CannotTell(format!("the answer of {} holds neither text", question.tool)),
    }
}

/// The texts of a result, without what is structured.
pub(crate) fn words_of(result: &Object<'_>) -> Vec<String> {
    let blocks = result.get("content").and_then(raw::items).unwrap_or_default();
    blocks.into_iter().filter_map(Object::parse).filter_map(|block| block.string("text")).collect()
}

/// All that a result says in words.
pub(crate) fn text_of(result: &Object<'_>) -> String {
    let mut texts = words_of(result);
    texts.extend(result.get("structuredContent").map(str::to_owned));
    texts.join("\n")
}

/// A text with each `{name}` replaced by the argument of that name.
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

/// The arguments of a question. A text that is nothing but `{name}` becomes the argument itself, of whatever type.
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
        assert_eq!(judged(None, &said("has order 7", false)), Asked::Yes);
        assert_eq!(judged(None, &said("has order 8", false)), Asked::No);
        assert_eq!(judged(Some("not found"), &said("order 8 not found", true)), Asked::No);
        assert!(matches!(judged(Some("not found"), &said("busy", false)), Asked::CannotTell(_)));
        assert!(matches!(judged(None, &said("order 7", true)), Asked::CannotTell(_)));
        assert!(matches!(judged(None, r#"{"id":1,"error":{"code":1}}"#), Asked::CannotTell(_)));
    }
}
