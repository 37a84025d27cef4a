//! The tools that every server has besides the author's: an operation in doubt is looked at and settled here.

use serde_json::{Map, Value, json};

use super::argv::Typed;

/// Records what an agent found out about an operation in doubt.
const SETTLE: &str = "once_settle";
/// Shows what is recorded about an operation.
const STATUS: &str = "once_status";

pub(super) fn tools() -> [Value; 2] {
    let operation =
        json!({"type": "string", "description": "The operation's id (op_…), from an earlier answer"});
    let settle = json!({
        "name": SETTLE,
        "description": "Record whether an operation in doubt happened. Find out first; do not guess.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "operation": operation,
                "verdict": {
                    "type": "string",
                    "enum": ["done", "failed"],
                    "description": "done: it happened, and retries get its result. failed: it did not, and the next \
                                    call runs it",
                },
                "evidence": {"type": "string", "description": "What you saw, and where"},
            },
            "required": ["operation", "verdict", "evidence"],
            "additionalProperties": false,
        },
        "annotations": {"readOnlyHint": false, "destructiveHint": false, "idempotentHint": true},
    });
    let status = json!({
        "name": STATUS,
        "description": "Show everything recorded about an operation: its state, its result, and what to do next.",
        "inputSchema": {
            "type": "object",
            "properties": {"operation": operation},
            "required": ["operation"],
            "additionalProperties": false,
        },
        "annotations": {"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true},
    });
    [settle, status]
}

/// The command line of a call of one of these tools; `None` for every other tool.
pub(super) fn typed(name: &str, arguments: &Value) -> Option<Result<Typed, String>> {
    match name {
        SETTLE => Some(settle(arguments)),
        STATUS => Some(status(arguments)),
        _ => None,
    }
}

fn settle(arguments: &Value) -> Result<Typed, String> {
    let given = texts(SETTLE, arguments, &["operation", "verdict", "evidence"])?;
    let flags = vec![
        "settle".into(),
        format!("--as={}", text(given, "verdict")).into(),
        format!("--note={}", text(given, "evidence")).into(),
    ];
    Ok(Typed { flags, positionals: vec![text(given, "operation").to_owned()] })
}

fn status(arguments: &Value) -> Result<Typed, String> {
    let given = texts(STATUS, arguments, &["operation"])?;
    Ok(Typed { flags: vec!["show".into()], positionals: vec![text(given, "operation").to_owned()] })
}

/// The arguments, if they are exactly these and each is a text.
fn texts<'a>(tool: &str, arguments: &'a Value, wanted: &[&str]) -> Result<&'a Map<String, Value>, String> {
    let usage = || format!("{tool} takes exactly these texts: {}", wanted.join(", "));
    let given = arguments.as_object().ok_or_else(usage)?;
    let right = given.len() == wanted.len()
        && wanted.iter().all(|name| given.get(*name).is_some_and(Value::is_string));
    if right { Ok(given) } else { Err(usage()) }
}

fn text<'a>(given: &'a Map<String, Value>, name: &str) -> &'a str {
    given.get(name).and_then(Value::as_str).unwrap_or_default()
}
