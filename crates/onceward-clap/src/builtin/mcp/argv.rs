//! From the arguments of a tool call to a command line.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};

use crate::facts::Facts;
use crate::manifest::{Given, Leaf, is_list};

/// From here on a double does not hold every integer.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// The command line of a call.
pub(super) struct Typed {
    /// The command's name and its flags.
    pub(super) flags: Vec<OsString>,
    /// What comes last, after `--`.
    pub(super) positionals: Vec<String>,
}

/// The command line of a call. Whether the values are right is for clap to say, as on every command line.
pub(super) fn of(root: &Command, leaf: &Leaf<'_>, facts: &Facts, arguments: &Value) -> Result<Typed, String> {
    let empty = Map::new();
    let arguments = match arguments {
        Value::Null => &empty,
        Value::Object(arguments) => arguments,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err("`arguments` is not an object".to_owned());
        }
    };
    let known = leaf.arguments(root);
    complain(&known, leaf, arguments)?;
    let (levels, mut typed, mut positionals) = (leaf.path(), Vec::new(), Vec::new());
    for (level, name) in levels.iter().enumerate() {
        typed.push(OsString::from(*name));
        for Given { name, argument, .. } in known.iter().filter(|given| given.level == level) {
            let Some(value) = arguments.get(name) else { continue };
            if argument.get_long().is_some() && is_switch(argument) {
                // Anything but a boolean could mean either, and one of them acts.
                let on = switch(name, value)?;
                typed.extend(
                    argument.get_long().filter(|_| on).map(|long| OsString::from(format!("--{long}"))),
                );
                continue;
            }
            if value.is_array() && !is_list(argument) {
                return Err(format!("the argument {name:?} is a list, and must be one value"));
            }
            let words = words(name, value)?;
            match argument.get_long() {
                None if level + 1 == levels.len() => positionals.extend(words),
                None => typed.extend(before_subcommand(name, words)?),
                Some(long) if matches!(argument.get_action(), ArgAction::Count) => {
                    typed.extend(repeated(name, long, value)?);
                }
                Some(long) => {
                    typed.extend(words.iter().map(|word| OsString::from(format!("--{long}={word}"))))
                }
            }
        }
    }
    if facts.streams {
        typed.push("--no-stream".into());
    }
    Ok(Typed { flags: typed, positionals })
}

/// Names what is unknown or missing in the words of the caller, who sees properties and no flags.
fn complain(known: &[Given<'_>], leaf: &Leaf<'_>, arguments: &Map<String, Value>) -> Result<(), String> {
    let tool = leaf.tool_name();
    if let Some(name) = arguments.keys().find(|name| known.iter().all(|given| given.name != **name)) {
        let all = known.iter().map(|given| given.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(format!("{tool} has no argument {name:?}; it has {all}"));
    }
    let missing = |given: &&Given<'_>| {
        given.argument.is_required_set() && arguments.get(&given.name).is_none_or(Value::is_null)
    };
    let missing: Vec<&str> = known.iter().filter(missing).map(|given| given.name.as_str()).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("{tool} needs {}", missing.join(", "))) }
}

/// Before a subcommand nothing can mark a value that looks like an option.
fn before_subcommand(name: &str, words: Vec<String>) -> Result<Vec<OsString>, String> {
    match words.iter().find(|word| word.starts_with('-')) {
        Some(word) => Err(format!("the argument {name:?} cannot begin with \"-\", as {word:?} does")),
        None => Ok(words.into_iter().map(OsString::from).collect()),
    }
}

/// Whether the argument is a flag without a value.
fn is_switch(argument: &Arg) -> bool {
    !argument.get_action().takes_values() && !matches!(argument.get_action(), ArgAction::Count)
}

fn switch(name: &str, value: &Value) -> Result<bool, String> {
    match value {
        Value::Null => Ok(false),
        Value::Bool(on) => Ok(*on),
        Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Err(format!("the argument {name:?} is {value}, and must be true or false; nothing was run"))
        }
    }
}

/// A flag that counts how often it is given.
fn repeated(name: &str, long: &str, value: &Value) -> Result<Vec<OsString>, String> {
    const MOST: u64 = 255;
    let times = value.as_u64().filter(|times| *times <= MOST);
    let times = times.ok_or_else(|| format!("the argument {name:?} is not a number from 0 to {MOST}"))?;
    Ok((0..times).map(|_| format!("--{long}").into()).collect())
}

/// What was typed for the server itself and holds for each of its calls. The environment is inherited anyway.
pub(super) fn everywhere(definition: &Command, matches: &ArgMatches) -> Vec<OsString> {
    let mine = ["once_json", "once_envelope", "once_connection"];
    let wanted = |argument: &&Arg| argument.is_global_set() && !mine.contains(&argument.get_id().as_str());
    let mut typed = Vec::new();
    for argument in definition.get_arguments().filter(wanted) {
        let id = argument.get_id().as_str();
        let Some(long) = argument.get_long() else { continue };
        if !matches!(matches.value_source(id), Some(ValueSource::CommandLine)) {
            continue;
        }
        if !argument.get_action().takes_values() {
            typed.push(format!("--{long}").into());
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            let mut word = OsString::from(format!("--{long}="));
            word.push(value);
            typed.push(word);
        }
    }
    typed
}

fn words(name: &str, value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text.clone()]),
        // Beyond 64 bits digits have been lost on the way, and another number would be acted on.
        Value::Number(number)
            if number.as_f64().is_some_and(|number| number.abs() >= MAX_EXACT) && number.is_f64() =>
        {
            Err(format!("the argument {name:?} is too large for a number; give it as a string"))
        }
        Value::Bool(_) | Value::Number(_) => Ok(vec![value.to_string()]),
        Value::Array(items) => {
            let words = items.iter().map(|item| words(name, item)).collect::<Result<Vec<_>, _>>()?;
            Ok(words.concat())
        }
        Value::Object(_) => Err(format!("the argument {name:?} is an object, which no command line holds")),
    }
}
