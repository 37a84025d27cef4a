//! Explains which line of which rule sets each value for one operation.

use std::fmt;

use super::fields::RULE;
use super::read::title;
use super::{DEFAULT_POLICY, Policy};
use crate::record::Class;

/// A setting in effect, in the form in which a policy writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// The setting's name in the file.
    pub name: &'static str,
    /// The value, as TOML.
    pub value: String,
    /// The value, as JSON.
    pub json: serde_json::Value,
    /// Where the value comes from.
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The built-in default policy.
    BuiltIn,
    /// The section `[defaults]` of the policy file.
    Defaults,
    /// A rule of the policy file, identified by its pattern.
    Operation(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::Defaults => f.write_str("[defaults]"),
            Self::Operation(pattern) => f.write_str(&title("operation", pattern)),
        }
    }
}

impl Policy {
    /// The class that this policy sets for an operation, if it sets one.
    #[must_use]
    pub fn class_of(&self, name: &str) -> Option<Class> {
        self.rule(&[name]).class.or(self.defaults.class)
    }

    /// What the rules `[operation.…]` say about an operation with this name, without `[defaults]`, as TOML. Empty if no
    /// rule matches.
    #[must_use]
    pub fn operation_section(&self, names: &[&str]) -> toml::Table {
        let operations = self.source.get("operation").and_then(toml::Value::as_table);
        let mut section = toml::Table::new();
        for (pattern, _) in self.layered(names) {
            let rule = operations.and_then(|all| all.get(pattern)).and_then(toml::Value::as_table);
            section.extend(rule.cloned().unwrap_or_default());
        }
        section
    }

    /// Every setting for an operation with this name, and where its value comes from.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "the default policy is part of the build, and every TOML value fits JSON"
    )]
    pub fn explain(&self, name: &str) -> Vec<Setting> {
        let built_in: toml::Table = toml::from_str(DEFAULT_POLICY).expect("the default policy is TOML");
        let section = |table: &toml::Table, name: &str| -> toml::Table {
            table.get(name).and_then(toml::Value::as_table).cloned().unwrap_or_default()
        };
        let operations = section(&self.source, "operation");
        let mut layers = vec![
            (Origin::BuiltIn, section(&built_in, "defaults")),
            (Origin::Defaults, section(&self.source, "defaults")),
        ];
        for (pattern, _) in self.matching(&[name]) {
            layers.push((Origin::Operation(pattern.to_owned()), section(&operations, pattern)));
        }
        let decided = |field: &'static str| {
            let (origin, table) = layers.iter().rev().find(|(_, table)| table.contains_key(field))?;
            let value = &table[field];
            let json = serde_json::to_value(value).expect("the keys of TOML tables are strings");
            Some(Setting { name: field, value: to_toml(value), json, origin: origin.clone() })
        };
        RULE.into_iter().filter_map(|(field, _)| decided(field)).collect()
    }
}

/// A value as TOML. Strings, numbers and lists look the same in JSON.
fn to_toml(value: &toml::Value) -> String {
    match value {
        toml::Value::Table(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(key, value)| format!("{key} = {}", to_toml(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        toml::Value::Array(values) => {
            format!("[{}]", values.iter().map(to_toml).collect::<Vec<_>>().join(", "))
        }
        toml::Value::String(text) => serde_json::Value::from(text.as_str()).to_string(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(flag) => flag.to_string(),
        toml::Value::Datetime(time) => time.to_string(),
    }
}
