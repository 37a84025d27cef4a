//! The messages of MCP, of both eras: with the `initialize` handshake, and without any session.

use onceward::WITNESS_META;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The newest of each era, and all that are understood.
const MODERN: &str = "2026-07-28";
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// Which rules a request follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// A session that begins with `initialize`.
    Legacy,
    /// Each request names its version.
    Modern,
}

/// A request, or a notification where its id is null.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: Value,
    pub(super) method: String,
    pub(super) params: Value,
    pub(super) era: Era,
}

impl Request {
    /// Reads a line. Anything but a request is answered with the refusal.
    pub(super) fn parse(line: &[u8]) -> Result<Self, Value> {
        let refuse = |code: i64, message: &str| {
            let error = json!({"code": code, "message": message});
            json!({"jsonrpc": "2.0", "id": null, "error": error})
        };
        let mut message: Value =
            serde_json::from_slice(line).map_err(|error| refuse(-32700, &format!("not JSON: {error}")))?;
        let Some(method) = message["method"].as_str().map(str::to_owned) else {
            return Err(refuse(-32600, "a request needs a method"));
        };
        let params = message["params"].take();
        let names_version = params["_meta"].get(VERSION_KEY).is_some();
        let era = if names_version || method == "server/discover" { Era::Modern } else { Era::Legacy };
        Ok(Self { id: message["id"].take(), method, params, era })
    }

    /// Refuses a version that is not understood.
    pub(super) fn supported(&self) -> Result<(), Value> {
        match self.params["_meta"].get(VERSION_KEY).and_then(Value::as_str) {
            None | Some(MODERN) => Ok(()),
            Some(version) => Err(json!({
                "code": -32022,
                "message": format!("the protocol version {version:?} is not supported"),
                "data": {"supported": [MODERN], "requested": version},
            })),
        }
    }
}

pub(super) fn initialize(request: &Request, tool: &str, version: &str) -> Result<Value, Value> {
    let asked = request.params["protocolVersion"].as_str().unwrap_or_default();
    let spoken = LEGACY.iter().find(|known| **known == asked).unwrap_or(&LEGACY[0]);
    Ok(json!({
        "protocolVersion": spoken,
        "capabilities": {"tools": {"listChanged": false}},
        "serverInfo": {"name": tool, "version": version},
        "instructions": INSTRUCTIONS,
    }))
}

pub(super) fn discover(tool: &str, version: &str) -> Result<Value, Value> {
    Ok(cacheable(json!({
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}},
        "instructions": INSTRUCTIONS,
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": tool, "version": version}},
    })))
}

/// The one notification that matters here.
pub(super) const CANCELLED: &str = "notifications/cancelled";

const INSTRUCTIONS: &str = "Every tool may be retried: while its first answer has not reached you, the same call \
again changes nothing and returns that answer with effect \"noop\"; with an idempotency_key this always holds. \
dry_run shows what would change. If error.happened is \"unknown\", do not work around it: check first whether it \
happened, then record what you found with once_settle. once_status shows what is recorded.";

/// A result that may be kept by the client.
pub(super) fn cacheable(result: Value) -> Value {
    let mut result = complete(result);
    result["ttlMs"] = 60_000.into();
    result["cacheScope"] = "private".into();
    result
}

/// A result that is whole.
fn complete(mut result: Value) -> Value {
    result["resultType"] = "complete".into();
    result
}

/// The same without what only the modern era knows.
pub(super) fn legacy(mut result: Value) -> Value {
    if let Some(fields) = result.as_object_mut() {
        for field in ["resultType", "ttlMs", "cacheScope"] {
            fields.remove(field);
        }
    }
    result
}

/// The envelope with the witness of the call. A proxy that guards this server believes only that.
pub(super) fn witnessed(envelope: Box<RawValue>, params: &Value) -> Box<RawValue> {
    let Some(witness) = params["_meta"].get(WITNESS_META).filter(|witness| witness.is_string()) else {
        return envelope;
    };
    // As text, so that no digit of a number is lost.
    let with = envelope.get().strip_suffix('}').map(|open| format!("{open},\"witness\":{witness}}}"));
    with.and_then(|text| RawValue::from_string(text).ok()).unwrap_or(envelope)
}

/// The result of a call.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolResult {
    content: [Value; 1],
    structured_content: Box<RawValue>,
    is_error: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
}

/// An envelope as the result of a call, as the text it came as: no digit of a number is lost on the way.
pub(super) fn tool_result(envelope: Box<RawValue>, era: Era) -> ToolResult {
    #[derive(Deserialize)]
    struct Verdict {
        ok: bool,
    }
    let verdict = serde_json::from_str::<Verdict>(envelope.get());
    ToolResult {
        content: [json!({"type": "text", "text": envelope.get()})],
        is_error: !verdict.is_ok_and(|verdict| verdict.ok),
        result_type: (era == Era::Modern).then_some("complete"),
        structured_content: envelope,
    }
}

/// An answer to a request.
pub(super) struct Response<'a, T> {
    id: &'a Value,
    word: &'static str,
    value: &'a T,
}

impl<'a, T: Serialize> Response<'a, T> {
    /// `word` is `result` or `error`.
    pub(super) fn new(id: &'a Value, word: &'static str, value: &'a T) -> Self {
        Self { id, word, value }
    }
}

impl<T: Serialize> Serialize for Response<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(3))?;
        fields.serialize_entry("jsonrpc", "2.0")?;
        fields.serialize_entry("id", self.id)?;
        fields.serialize_entry(self.word, self.value)?;
        fields.end()
    }
}

pub(super) fn invalid_params(problem: &str) -> Value {
    json!({"code": -32602, "message": problem})
}

pub(super) fn no_such_method(method: &str) -> Value {
    json!({"code": -32601, "message": format!("there is no method {method:?}")})
}
