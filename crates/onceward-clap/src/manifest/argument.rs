//! An argument of clap's as others write it: a flag of the manifest, a property of a JSON schema.

use std::any::TypeId;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value, json};

use super::leaf::{Given, Leaf};

/// The type of an argument's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    Boolean,
    Integer,
    Number,
    Text,
}

/// A flag of the manifest, by its long name. Help, version and hidden flags are left out.
pub(super) fn flag(argument: &Arg) -> Option<(String, Value)> {
    let long = argument.get_long()?;
    if matches!(
        argument.get_action(),
        ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
    ) || argument.is_hide_set()
    {
        return None;
    }
    let mut flag = described(argument);
    if let Some(short) = argument.get_short() {
        flag.insert("short".to_owned(), short.to_string().into());
    }
    if let Some(variable) = argument.get_env().and_then(|variable| variable.to_str()) {
        flag.insert("env_vars".to_owned(), json!([{"name": variable}]));
    }
    if let Some(default) = default_of(argument) {
        flag.insert("default".to_owned(), default);
    }
    Some((long.to_owned(), flag.into()))
}

/// A positional argument of the manifest.
pub(super) fn positional(argument: &Arg) -> Value {
    let mut positional = described(argument);
    positional.insert("name".to_owned(), argument.get_id().as_str().into());
    if is_list(argument) {
        positional.insert("type".to_owned(), "string".into());
        positional.insert("variadic".to_owned(), true.into());
    }
    positional.into()
}

fn described(argument: &Arg) -> Map<String, Value> {
    let mut map = Map::new();
    let choices = choices(argument);
    let word = match kind(argument) {
        _ if is_list(argument) => "array",
        ValueKind::Boolean => "boolean",
        ValueKind::Integer => "integer",
        ValueKind::Number => "number",
        ValueKind::Text if !choices.is_empty() => "enum",
        ValueKind::Text => "string",
    };
    map.insert("type".to_owned(), word.into());
    map.insert("required".to_owned(), argument.is_required_set().into());
    map.insert("description".to_owned(), help(argument).into());
    if word == "enum" {
        map.insert("enum_values".to_owned(), choices.into());
    }
    map
}

/// The JSON schema of a call's arguments.
pub(crate) fn input_schema(root: &Command, leaf: &Leaf<'_>) -> Value {
    let mut all = Map::new();
    let mut required = Vec::new();
    for Given { name, argument, .. } in leaf.arguments(root) {
        if argument.is_required_set() {
            required.push(name.clone());
        }
        all.insert(name, property(argument));
    }
    json!({"type": "object", "properties": all, "required": required, "additionalProperties": false})
}

fn property(argument: &Arg) -> Value {
    let mut one = match kind(argument) {
        ValueKind::Boolean => json!({"type": "boolean"}),
        ValueKind::Integer => json!({"type": "integer"}),
        ValueKind::Number => json!({"type": "number"}),
        ValueKind::Text => json!({"type": "string"}),
    };
    let choices = choices(argument);
    if !choices.is_empty() {
        one["enum"] = choices.into();
    }
    let mut property = if is_list(argument) { json!({"type": "array", "items": one}) } else { one };
    property["description"] = help(argument).into();
    if let Some(default) = default_of(argument) {
        property["default"] = default;
    }
    property
}

fn help(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string);
    help.unwrap_or_else(|| argument.get_id().as_str().to_owned())
}

fn choices(argument: &Arg) -> Vec<String> {
    if kind(argument) == ValueKind::Boolean {
        return Vec::new();
    }
    let shown = argument.get_possible_values();
    shown.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name().to_owned()).collect()
}

fn default_of(argument: &Arg) -> Option<Value> {
    let text = argument.get_default_values().first()?.to_str()?;
    Some(match kind(argument) {
        ValueKind::Boolean | ValueKind::Integer | ValueKind::Number => {
            serde_json::from_str(text).unwrap_or_else(|_| text.into())
        }
        ValueKind::Text => text.into(),
    })
}

pub(crate) fn is_list(argument: &Arg) -> bool {
    let many = argument.get_num_args().is_some_and(|range| range.max_values() > 1);
    many || matches!(argument.get_action(), ArgAction::Append)
}

fn kind(argument: &Arg) -> ValueKind {
    let action = argument.get_action();
    if matches!(action, ArgAction::SetTrue | ArgAction::SetFalse) {
        ValueKind::Boolean
    } else if matches!(action, ArgAction::Count) {
        ValueKind::Integer
    } else {
        kind_of_values(argument.get_value_parser(), argument)
    }
}

fn kind_of_values(parser: &ValueParser, argument: &Arg) -> ValueKind {
    let is = |types: &[TypeId]| types.iter().any(|of_type| parser.type_id() == *of_type);
    // A span of time is typed as text with a unit, whatever it becomes.
    if argument.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "TIME")) {
        return ValueKind::Text;
    }
    let integers = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i8>(),
        TypeId::of::<i16>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<isize>(),
    ];
    if is(&integers) {
        ValueKind::Integer
    } else if is(&[TypeId::of::<f64>(), TypeId::of::<f32>()]) {
        ValueKind::Number
    } else if is(&[TypeId::of::<bool>()]) {
        ValueKind::Boolean
    } else {
        ValueKind::Text
    }
}
