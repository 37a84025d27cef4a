//! Which line of which rule decides: a policy as its author wrote it, for one operation.

use std::fmt;

use super::fields::RULE;
use super::read::title;
use super::{DEFAULT_POLICY, Policy};

/// A setting that holds, as a policy writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name in the file.
    pub name: &'static str,
    /// Its value, as TOML.
    pub value: String,
    /// The same value.
    pub json: serde_json::Value,
    /// What decided it.
    pub origin: Origin,
}

/// What decided a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The default policy that is built in.
    BuiltIn,
    /// The section `[defaults]` of the policy file.
    Defaults,
    /// A rule of the policy file, by the pattern of its name.
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
    /// Every setting that holds for an operation of that name, and what decided it.
    #[must_use]
    pub fn explain(&self, name: &str) -> Vec<Setting> {
        let built_in: toml::Table = toml::from_str(DEFAULT_POLICY).unwrap_or_default();
        let section = |table: &toml::Table, name: &str| -> toml::Table {
            table.get(name).and_then(toml::Value::as_table).cloned().unwrap_or_default()
        };
        let operations = section(&self.source, "operation");
        let mut layers = vec![
            (Origin::BuiltIn, section(&built_in, "defaults")),
            (Origin::Defaults, section(&self.source, "defaults")),
        ];
        for (pattern, _) in self.fitting(&[name]) {
            layers.push((Origin::Operation(pattern.to_owned()), section(&operations, pattern)));
        }
        let decided = |field: &'static str| {
            let (origin, table) = layers.iter().rev().find(|(_, table)| table.contains_key(field))?;
            let value = &table[field];
            let json = serde_json::to_value(value).unwrap_or_default();
            Some(Setting { name: field, value: written(value), json, origin: origin.clone() })
        };
        RULE.into_iter().filter_map(|(field, _)| decided(field)).collect()
    }
}

/// A value as TOML. Texts, numbers and lists look the same in JSON.
fn written(value: &toml::Value) -> String {
    match value {
        toml::Value::Table(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(key, value)| format!("{key} = {}", written(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        toml::Value::Array(values) => {
            format!("[{}]", values.iter().map(written).collect::<Vec<_>>().join(", "))
        }
        toml::Value::String(text) => serde_json::Value::from(text.as_str()).to_string(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        toml::Value::Boolean(flag) => flag.to_string(),
        toml::Value::Datetime(time) => time.to_string(),
    }
}
