//! What takes an operation back, as a policy writes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::invalid::InvalidInput;
use crate::record::{Compensation, CompensationKind};
use crate::template::{Template, check_json};

/// A tool of the same MCP server that takes a call back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolUndo {
    /// The tool.
    pub tool: String,
    /// Its arguments; `{result.…}` is replaced by a field of the result.
    #[serde(default)]
    pub args: Value,
    /// The server through which the call was made, in a ledger. A policy does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

/// A request to the same API that takes a request through the gateway back: `{post = "/v1/refunds", json = {…}}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestUndo {
    /// The path, for this method. `{…}` is replaced by a field of the first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post: Option<String>,
    /// The same for `PUT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub put: Option<String>,
    /// The same for `PATCH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// The same for `DELETE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete: Option<String>,
    /// The body, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// The body, as the fields of a form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<BTreeMap<String, String>>,
}

/// A compensation as a policy writes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Undo {
    Command(String),
    Tool(ToolUndo),
    Request(RequestUndo),
}

impl Undo {
    pub(super) fn compensation(self) -> Compensation {
        match self {
            Self::Command(text) => Compensation { runs: CompensationKind::Command, text },
            Self::Tool(tool) => tool.compensation(),
            Self::Request(request) => request.compensation(),
        }
    }
}

impl Compensation {
    /// Checks the fields of the result that it names.
    ///
    /// # Errors
    /// Names what looks like a field and is none.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let checked = match self.runs {
            CompensationKind::Command => Template::parse(&self.text).map(drop),
            CompensationKind::Tool => ToolUndo::of(self).map_or(Ok(()), |undo| check_json(&undo.args)),
            CompensationKind::Request => RequestUndo::of(self).map_or(Ok(()), |undo| undo.check()),
            CompensationKind::Code | CompensationKind::Program => Ok(()),
        };
        checked.map_err(|invalid| InvalidInput::new(format!("undo: {invalid}")))
    }
}

impl ToolUndo {
    /// The compensation that is stored.
    #[must_use]
    pub fn compensation(&self) -> Compensation {
        Compensation { runs: CompensationKind::Tool, text: json(self) }
    }

    /// Reads a stored compensation. `None` if it is of another kind, or sealed.
    #[must_use]
    pub fn of(undo: &Compensation) -> Option<Self> {
        (undo.runs == CompensationKind::Tool).then(|| serde_json::from_str(&undo.text).ok()).flatten()
    }

    /// Whether both call the same tool with the same arguments.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.tool == other.tool && self.args == other.args
    }
}

impl RequestUndo {
    /// The compensation that is stored.
    #[must_use]
    pub fn compensation(&self) -> Compensation {
        Compensation { runs: CompensationKind::Request, text: json(self) }
    }

    /// Reads a stored compensation. `None` if it is of another kind, or sealed.
    #[must_use]
    pub fn of(undo: &Compensation) -> Option<Self> {
        (undo.runs == CompensationKind::Request).then(|| serde_json::from_str(&undo.text).ok()).flatten()
    }

    /// Checks its target and the fields of the answer that it names.
    ///
    /// # Errors
    /// If there is not exactly one target, or two bodies, or something looks like a field and is none.
    pub fn check(&self) -> Result<(), InvalidInput> {
        Template::parse(self.target()?.1)?;
        self.json.as_ref().map_or(Ok(()), check_json)?;
        self.form.iter().flat_map(BTreeMap::values).try_for_each(|text| Template::parse(text).map(drop))
    }

    /// The method and the path.
    ///
    /// # Errors
    /// If there is not exactly one, or if there are two bodies.
    pub fn target(&self) -> Result<(&'static str, &str), InvalidInput> {
        let all =
            [("POST", &self.post), ("PUT", &self.put), ("PATCH", &self.patch), ("DELETE", &self.delete)];
        let mut given = all.into_iter().filter_map(|(method, path)| Some((method, path.as_deref()?)));
        let invalid = |why: &str| Err(InvalidInput::new(why));
        match (given.next(), given.next()) {
            (Some((_, path)), None) if !path.starts_with('/') => invalid("the path must begin with `/`"),
            (Some(_), None) if self.json.is_some() && self.form.is_some() => {
                invalid("give `json` or `form`, not both")
            }
            (Some(target), None) => Ok(target),
            (_, _) => invalid("give one of `post`, `put`, `patch` and `delete`, with a path"),
        }
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::{CompensationKind, Policy};

    #[test]
    fn an_undo_is_a_command_a_tool_or_a_request() {
        let policy = Policy::parse(
            r#"
            [operation.a]
            undo = "refund {data.id}"
            [operation.b]
            undo = {tool = "cancel_order", args = {id = "{result.id}"}}
            [operation.c]
            undo = {post = "/v1/refunds", form = {charge = "{id}"}}
            "#,
        )
        .unwrap();
        let undo = |name: &str| policy.settings(name).unwrap().undo.map(|undo| (undo.runs, undo.text));
        assert_eq!(undo("a"), Some((CompensationKind::Command, "refund {data.id}".to_owned())));
        let tool = r#"{"tool":"cancel_order","args":{"id":"{result.id}"}}"#;
        assert_eq!(undo("b"), Some((CompensationKind::Tool, tool.to_owned())));
        let request = r#"{"post":"/v1/refunds","form":{"charge":"{id}"}}"#;
        assert_eq!(undo("c"), Some((CompensationKind::Request, request.to_owned())));
        assert_eq!(undo("d"), None);
        for wrong in [
            "\" \"",
            "true",
            "{}",
            "{tool = 1}",
            "{tool = 'a', json = 1}",
            "{tool = 'a', server = 'x'}",
            "{tool = 'a', post = '/b'}",
            "{post = 'v1/refunds'}",
            "{post = '/a', delete = '/b'}",
            "{post = 1}",
            "{json = {a = 1}}",
            "{post = '/a', json = {a = 1}, form = {a = '1'}}",
            "{post = '/a', form = {a = 1}}",
            "{get = '/a'}",
        ] {
            assert!(Policy::parse(&format!("[defaults]\nundo = {wrong}")).is_err(), "{wrong}");
        }
    }
}
