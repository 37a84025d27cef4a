//! The protocols of model APIs: which requests are model calls, and which documents are answers and errors.

use serde::Deserialize;
use serde_json::Value;

/// The family of APIs that an upstream belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelApi {
    /// OpenAI, and every API that is compatible with it.
    Openai,
    /// Anthropic.
    Anthropic,
    /// Google Gemini.
    Gemini,
}

/// How the answer to one model call is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's chat completions and completions. A stream ends with `[DONE]`.
    Chat,
    /// OpenAI's responses. A stream ends with one of three events.
    Responses,
    /// Anthropic's messages. A stream ends with `message_stop`.
    Messages,
    /// Gemini's contents. A stream has no end of its own: its last chunk has a `finishReason`.
    Contents,
    /// One JSON document that has no text. Images can be streamed: a stream ends after the completed image.
    Document,
    /// One JSON document that costs nothing, such as a number of tokens.
    Free,
}

impl ModelApi {
    /// The preset with its rules.
    pub(crate) fn preset(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// The dialect of a request's answer. `None` if the request is not a model call.
    pub(crate) fn dialect(self, path: &str) -> Option<Dialect> {
        let path = path.trim_end_matches('/');
        match self {
            Self::Openai => match path {
                path if path.ends_with("/chat/completions") || path.ends_with("/completions") => {
                    Some(Dialect::Chat)
                }
                path if path.ends_with("/responses") => Some(Dialect::Responses),
                path if path.ends_with("/embeddings") || path.ends_with("/images/generations") => {
                    Some(Dialect::Document)
                }
                path if path.ends_with("/moderations") => Some(Dialect::Free),
                _ => None,
            },
            Self::Anthropic => match path {
                path if path.ends_with("/messages") => Some(Dialect::Messages),
                path if path.ends_with("/messages/count_tokens") => Some(Dialect::Free),
                _ => None,
            },
            Self::Gemini => match path.rsplit_once(':')?.1 {
                "generateContent" | "streamGenerateContent" => Some(Dialect::Contents),
                "embedContent" | "batchEmbedContents" => Some(Dialect::Document),
                "countTokens" => Some(Dialect::Free),
                _ => None,
            },
        }
    }
}

impl Dialect {
    /// Whether a document has what every answer of its API has. A server in between may answer with something else, and
    /// with status 200.
    pub(crate) fn is_answer(self, value: &Value) -> bool {
        let has = |names: &[&str]| names.iter().any(|name| !value[*name].is_null());
        match self {
            // llama.cpp has completions without choices.
            Self::Chat => has(&["choices", "content"]),
            Self::Responses => {
                has(&["output"]) || matches!(value["status"].as_str(), Some("queued" | "in_progress"))
            }
            Self::Messages => has(&["content"]),
            Self::Contents => has(&["candidates", "promptFeedback", "usageMetadata"]),
            Self::Document => value.is_array() || has(&["data", "embedding", "embeddings", "images"]),
            Self::Free => has(&["results", "input_tokens", "totalTokens"]),
        }
    }
}

/// Whether an operation with this name is a model call at the gateway.
///
/// ```
/// assert!(onceward_http::is_model_call("openai POST /v1/chat/completions"));
/// assert!(!onceward_http::is_model_call("stripe POST /v1/charges"));
/// ```
#[must_use]
pub fn is_model_call(name: &str) -> bool {
    let Some((_, path)) = name.split_once(" POST ") else { return false };
    [ModelApi::Openai, ModelApi::Anthropic, ModelApi::Gemini].iter().any(|api| api.dialect(path).is_some())
}

/// The model that a request names, in its body or in its path.
pub(crate) fn model_of(path: &str, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Named {
        model: String,
    }
    if let Ok(named) = serde_json::from_slice::<Named>(body) {
        return named.model;
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    last.split_once(':').map_or("unknown", |(model, _)| model).to_owned()
}

/// The error that a chunk or document reports, in words.
pub(crate) fn error_in(value: &Value) -> Option<String> {
    let is_error = |value: &&Value| !value.is_null();
    let named = ["/error", "/response/error"].iter().find_map(|place| value.pointer(place).filter(is_error));
    let is_failed = matches!(value["type"].as_str(), Some("error" | "response.failed"))
        || value["object"] == "error"
        || (value["object"] == "response"
            && matches!(value["status"].as_str(), Some("failed" | "cancelled")));
    if named.is_none() && !is_failed {
        return None;
    }
    Some(in_words(named.unwrap_or(value)))
}

/// What an error says.
pub(crate) fn in_words(error: &Value) -> String {
    let said = [error, &error["message"], &error["type"]].into_iter().find_map(Value::as_str);
    format!("the provider reported an error: {}", said.unwrap_or("no reason is given"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_calls_are_recognised_by_their_path() {
        for (api, path, expected) in [
            (ModelApi::Openai, "/v1/chat/completions", Some(Dialect::Chat)),
            (ModelApi::Openai, "/v1/responses", Some(Dialect::Responses)),
            (ModelApi::Openai, "/v1/responses/resp_1/cancel", None),
            (ModelApi::Openai, "/v1/files", None),
            (ModelApi::Anthropic, "/v1/messages", Some(Dialect::Messages)),
            (ModelApi::Anthropic, "/v1/messages/batches", None),
            (ModelApi::Anthropic, "/v1/messages/count_tokens", Some(Dialect::Free)),
            (ModelApi::Gemini, "/v1beta/models/g:streamGenerateContent", Some(Dialect::Contents)),
            (ModelApi::Gemini, "/v1beta/cachedContents", None),
        ] {
            assert_eq!(api.dialect(path), expected, "{path}");
        }
        assert_eq!(model_of("/v1/messages", b"{\"model\":\"c\",\"messages\":[]}"), "c");
        assert_eq!(model_of("/v1beta/models/gemini-3:generateContent", b"{}"), "gemini-3");
        assert_eq!(model_of("/v1/chat/completions", b"too long to be parsed"), "unknown");
    }
}
