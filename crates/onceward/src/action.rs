//! An action: everything that was asked for, as one value.
//!
//! It answers four questions in one place: what tells it from another action (`identity`), what is needed to start it
//! later or again ([`Action::stored`]), whether it is still what was asked ([`CommandAction::changed`]), and what a
//! person sees who decides about it ([`Action::shown`]). Surfaces supply the bytes and the hashes.

mod command;
mod content;
mod shown;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::json::Json;
use crate::record::Held;
use crate::sealed;

pub use command::{Changed, CommandAction, Counted, Relevance};
pub use content::{ByteString, Content, FileState};
pub use shown::ShownAction;

/// How much of a request's body is stored for the person who decides about it. Its size and its hash are always stored.
const MOST_BODY: usize = 1024 * 1024;

/// Everything that was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A command of `once run`.
    Command(CommandAction),
    /// A tool call over MCP.
    ToolCall(ToolAction),
    /// A request through the gateway.
    Request(RequestAction),
    /// A call of a function, such as a Python function.
    Function(FunctionAction),
}

/// A tool call: the server, the tool, and what the tool gets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToolAction {
    /// The command or the address of the server. Another server is not sent the call.
    pub server: String,
    /// The tool's name.
    pub tool: String,
    /// Its arguments, as its caller wrote them.
    pub arguments: Box<RawValue>,
    /// The other members of the request that make it another request, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<String, Box<RawValue>>,
}

/// A request: its line, and its body. Headers are not part of it, because they can be credentials.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestAction {
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query, without passwords and tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The content type.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// The body, or its beginning if it is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Content>,
}

/// A call of a function, with arguments that are the same after JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FunctionAction {
    /// The name under which the function is guarded.
    pub function: String,
    /// Its arguments.
    pub arguments: FunctionArguments,
}

/// The arguments of a function.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionArguments {
    /// The positional arguments.
    pub args: Vec<Box<RawValue>>,
    /// The named arguments.
    pub kwargs: BTreeMap<String, Box<RawValue>>,
}

/// Why a stored action cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is sealed, and the key is not configured here.
    #[error("it is sealed with the key {key}, and that key is not configured here")]
    Sealed {
        /// The id of the key.
        key: String,
    },
    /// It is not an action that this version stores.
    #[error("it is not a stored action: {0}")]
    Broken(String),
}

/// The stored form: the action, and how its surface executes it.
#[derive(Serialize)]
struct Stored<'a, H> {
    action: &'a Action,
    how: &'a H,
}

#[derive(Deserialize)]
struct Read<H> {
    action: Action,
    how: H,
}

impl Action {
    /// The form in which a record stores it, with what only its surface needs to execute it: limits, exit codes, or
    /// members that a protocol requires.
    #[must_use]
    #[expect(clippy::expect_used, reason = "what is stored has no map with keys that are not text")]
    pub fn stored<H: Serialize>(&self, how: &H) -> String {
        serde_json::to_string(&Stored { action: self, how }).expect("an action is JSON")
    }

    /// The action of a stored form, and how its surface executes it.
    ///
    /// # Errors
    /// [`Unreadable`] if it is sealed or broken.
    pub fn read<H: DeserializeOwned>(stored: &str) -> Result<(Self, H), Unreadable> {
        if let Some(key) = sealed::key_of(stored) {
            return Err(Unreadable::Sealed { key: key.to_owned() });
        }
        let Read { action, how } =
            serde_json::from_str(stored).map_err(|error| Unreadable::Broken(error.to_string()))?;
        Ok((action, how))
    }
}

impl ToolAction {
    /// What tells a call from another one. A surface may have condensed long values.
    #[must_use]
    pub fn identity<'a>(
        server: &str,
        tool: &str,
        arguments: Json,
        members: impl IntoIterator<Item = (&'a str, Json)>,
    ) -> Json {
        let own = [("server", Json::from(server)), ("tool", Json::from(tool)), ("arguments", arguments)];
        Json::object(members.into_iter().chain(own))
    }
}

impl RequestAction {
    /// A request without a body.
    #[must_use]
    pub fn new(method: &str, path: &str, query: Option<&str>, content_type: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.map(str::to_owned),
            content_type: content_type.to_owned(),
            body: None,
        }
    }

    /// The request with this body. Only the beginning of a large one is kept.
    #[must_use]
    pub fn body(self, bytes: &[u8]) -> Self {
        let body = Content::beginning(bytes, MOST_BODY);
        Self { body: (!bytes.is_empty()).then_some(body), ..self }
    }

    /// What tells it from another request, with the body and the headers in the form in which they are compared.
    #[must_use]
    pub fn identity(&self, body: Json, headers: Option<Json>) -> Json {
        let query = self.query.as_deref().map_or(Json::Null, Json::from);
        let members = [
            ("body", Some(body)),
            ("headers", headers),
            ("method", Some(Json::from(self.method.as_str()))),
            ("path", Some(Json::from(self.path.as_str()))),
            ("query", Some(query)),
            ("type", Some(Json::from(self.content_type.as_str()))),
        ];
        Json::object(members.into_iter().filter_map(|(name, value)| Some((name, value?))))
    }
}

impl Held {
    /// The stored action in words, for a person who decides about it. `None` if there is none: then only its caller
    /// can start it.
    #[must_use]
    pub fn shown(&self) -> Option<ShownAction> {
        let request = self.request.as_deref()?;
        Some(match Action::read::<serde::de::IgnoredAny>(request) {
            Ok((action, _)) => action.shown(),
            Err(unreadable) => ShownAction::unreadable(&unreadable),
        })
    }
}
