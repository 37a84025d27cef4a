//! Policy settings for the tools of an MCP server.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{KeyPolicy, Policy, Rule, Settings};
use crate::invalid::InvalidInput;
use crate::record::Class;

/// What a tool's error says about its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum OnToolError {
    /// The tool is known to have no effect when it returns an error.
    #[serde(alias = "failed")]
    NoEffect,
    /// The error says nothing about the effect.
    #[default]
    InDoubt,
}

/// A question that another tool of the same server answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolQuestion {
    /// The tool, which must be read-only.
    pub tool: String,
    /// Its arguments; `{name}` is replaced by an argument of the call in question.
    #[serde(default)]
    pub args: Value,
    /// The answer is yes if it contains this text.
    pub expect: String,
    /// The answer is no if it, or the error, contains this text. An answer with neither cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Settings that apply only to tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
#[non_exhaustive]
pub struct ToolSettings {
    /// The argument that takes the downstream key.
    pub key_argument: Option<String>,
    /// What a tool's error says about its effect.
    pub on_tool_error: OnToolError,
    /// Calls with the same lock never overlap; `{name}` is replaced by an argument.
    pub lock: Option<String>,
    /// How many calls of the tool may run at the same time in one proxy; 0 means no limit.
    pub concurrency: u32,
    /// The tool that tells whether it happened.
    pub probe: Option<ToolQuestion>,
    /// The tool that checks a reported success.
    pub verify: Option<ToolQuestion>,
    /// Whether an agent may settle a doubt without a person.
    pub agents_settle: bool,
}

impl ToolSettings {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The settings for a tool, and which of them a rule sets explicitly.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolRule {
    /// All settings in effect.
    pub settings: Settings,
    /// The class, if a rule sets one.
    pub class: Option<Class>,
    /// The key policy, if a rule for this tool sets one.
    pub keys: Option<KeyPolicy>,
    /// The key policy, if only the defaults set one.
    pub default_keys: Option<KeyPolicy>,
    /// What the tool's error says about its effect, if a rule for this tool sets it.
    pub on_tool_error: Option<OnToolError>,
}

impl Policy {
    /// The settings for a tool with these names: alone, and prefixed with its server.
    ///
    /// # Errors
    /// When the terms are inconsistent.
    pub fn tool(&self, names: &[&str]) -> Result<ToolRule, InvalidInput> {
        let rule = self.rule(names);
        // For tools, `keyed` lets a call without a key run, so an untrusted file must not set it.
        let counts = |keys: &KeyPolicy| !self.is_untrusted || *keys != KeyPolicy::Keyed;
        let (keys, default_keys) = (rule.keys.filter(counts), self.defaults.keys.filter(counts));
        let on_tool_error = rule.on_tool_error;
        let rule = rule.over(self.defaults.clone());
        let class = rule.class;
        let settings = rule.complete(Some(Settings::default()))?;
        settings.terms.check()?;
        Ok(ToolRule { settings, class, keys, default_keys, on_tool_error })
    }
}

/// A question as a policy writes it: a command, or a tool.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Question {
    Command(String),
    Tool(ToolQuestion),
}

impl Question {
    pub(super) fn command(self) -> Option<String> {
        match self {
            Self::Command(command) => Some(command),
            Self::Tool(_) => None,
        }
    }

    fn tool(&self) -> Option<ToolQuestion> {
        match self {
            Self::Command(_) => None,
            Self::Tool(question) => Some(question.clone()),
        }
    }
}

impl Rule {
    pub(super) fn tool_settings(&self, base: Option<&Settings>) -> Result<ToolSettings, InvalidInput> {
        let base = base.map(|settings| settings.tool.clone()).unwrap_or_default();
        let ask = |question: &Option<Question>| question.as_ref().and_then(Question::tool);
        if self.key_argument.as_deref() == Some("") {
            return Err(InvalidInput::new("key_argument is empty; name the argument, or leave it out"));
        }
        Ok(ToolSettings {
            key_argument: self.key_argument.clone().or(base.key_argument),
            on_tool_error: self.on_tool_error.unwrap_or(base.on_tool_error),
            lock: self.lock.clone().or(base.lock),
            concurrency: self.concurrency.unwrap_or(base.concurrency),
            probe: ask(&self.probe).or(base.probe),
            verify: ask(&self.verify).or(base.verify),
            agents_settle: self.agents_settle.unwrap_or(base.agents_settle),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_a_command_or_a_tool() {
        let policy = Policy::parse(
            r#"
            [operation."order"]
            probe = {tool = "get_order", args = {id = "{id}"}, expect = "{id}"}
            lock = "customer:{customer}"
            [operation."shop/*"]
            keys = "keyed"
            probe = "exit 0"
            "#,
        )
        .unwrap();
        let rule = policy.tool(&["order", "shop/order"]).unwrap();
        assert_eq!(rule.settings.tool.probe.unwrap().tool, "get_order");
        assert_eq!((rule.settings.probe, rule.keys, rule.class), (None, Some(KeyPolicy::Keyed), None));
        assert_eq!(policy.tool(&["mail", "shop/mail"]).unwrap().settings.probe.as_deref(), Some("exit 0"));
        assert_eq!(policy.tool(&["mail"]).unwrap().keys, None);
        assert!(Policy::parse("[defaults]\nprobe = {tool = \"x\"}").is_err());
    }

    #[test]
    fn a_tools_error_says_nothing_unless_the_policy_says_so() {
        let policy = Policy::parse(
            r#"
            [operation."old"]
            on_tool_error = "failed"
            [operation."new"]
            on_tool_error = "no_effect"
            agents_settle = true
            "#,
        )
        .unwrap();
        let of = |tool: &str| policy.tool(&[tool]).unwrap().settings.tool;
        assert_eq!(of("old").on_tool_error, OnToolError::NoEffect);
        assert_eq!(of("new").on_tool_error, OnToolError::NoEffect);
        assert_eq!(of("other").on_tool_error, OnToolError::InDoubt);
        assert!(of("new").agents_settle && !of("other").agents_settle);
    }
}
