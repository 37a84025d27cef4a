//! What takes an operation back, as a policy writes it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{Compensation, CompensationKind};

/// A tool of the same MCP server that takes a call back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolUndo {
    /// The tool.
    pub tool: String,
    /// Its arguments; `{result.…}` is replaced by a field of the result.
    #[serde(default)]
    pub args: Value,
}

/// A compensation as a policy writes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Undo {
    Command(String),
    Tool(ToolUndo),
}

impl Undo {
    pub(super) fn compensation(self) -> Compensation {
        match self {
            Self::Command(text) => Compensation { runs: CompensationKind::Command, text },
            Self::Tool(tool) => Compensation { runs: CompensationKind::Tool, text: json(&tool) },
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
    fn an_undo_is_a_command_or_a_tool() {
        let policy = Policy::parse(
            r#"
            [operation.a]
            undo = "refund {data.id}"
            [operation.b]
            undo = {tool = "cancel_order", args = {id = "{result.id}"}}
            "#,
        )
        .unwrap();
        let undo = |name: &str| policy.settings(name).unwrap().undo.map(|undo| (undo.runs, undo.text));
        assert_eq!(undo("a"), Some((CompensationKind::Command, "refund {data.id}".to_owned())));
        let tool = r#"{"tool":"cancel_order","args":{"id":"{result.id}"}}"#;
        assert_eq!(undo("b"), Some((CompensationKind::Tool, tool.to_owned())));
        assert_eq!(undo("d"), None);
        for wrong in ["\" \"", "true", "{}", "{tool = 1}", "{tool = 'a', json = 1}", "{post = '/v1/refunds'}"]
        {
            assert!(Policy::parse(&format!("[defaults]\nundo = {wrong}")).is_err(), "{wrong}");
        }
    }
}
