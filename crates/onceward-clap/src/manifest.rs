//! What programs can learn about a tool before they run a command: names, arguments, danger, exit codes.

mod argument;
mod exits;
mod leaf;

use clap::Command;
use onceward::Class;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::command::DangerLevel;
use crate::facts::Facts;
use crate::session::quoted;

pub(crate) use argument::{input_schema, is_list};
pub(crate) use leaf::{Given, Leaf, subcommands};

/// Whether the manifest holds only what the CLI Agent Spec names, or also what Onceward knows of retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    Spec,
    Retries,
}

/// All commands of the tool. `root` must be built.
pub(crate) fn manifest(root: &Command, facts: &[Facts], detail: Detail) -> Value {
    let commands: Map<String, Value> = root
        .get_subcommands()
        .map(|command| (command.get_name().to_owned(), entry(root, command, facts, detail)))
        .collect();
    let flags: Map<String, Value> =
        root.get_arguments().filter(|argument| argument.is_global_set()).filter_map(argument::flag).collect();
    let etag = Sha256::digest(json!([commands, flags]).to_string().as_bytes());
    json!({
        "schema_version": "3.0",
        "framework_version": root.get_version().unwrap_or("0.0.0"),
        "etag": format!("sha256:{}", data_encoding::HEXLOWER.encode(&etag[..12])),
        "flags": flags,
        "exit_codes": exits::table(),
        "commands": commands,
    })
}

/// Everything about one command, or one of its subcommands.
pub(crate) fn schema(root: &Command, leaf: &Leaf<'_>, facts: &[Facts]) -> Value {
    let Some(command) = leaf.levels().first() else { return Value::Null };
    let mut entry = entry(root, command, facts, Detail::Retries);
    if let Some(entry) = entry.as_object_mut() {
        entry.insert("command".to_owned(), leaf.path().join(" ").into());
        entry.insert("description".to_owned(), leaf.about().into());
        entry.insert("input_schema".to_owned(), input_schema(root, leaf));
        entry.insert("exit_codes".to_owned(), exits::table());
        if leaf.levels().len() > 1 {
            entry.remove("subcommands");
        }
    }
    entry
}

fn entry(root: &Command, command: &Command, facts: &[Facts], detail: Detail) -> Value {
    let name = command.get_name();
    let own = facts.iter().find(|facts| facts.name == name);
    let (flags, positionals) = own_arguments(&[root], command);
    let mut entry = json!({
        "description": about(command),
        "danger_level": own.map_or_else(|| builtin_danger(name), |facts| facts.danger),
        "required_scopes": [],
        "flags": flags,
        "exit_codes": {},
    });
    if let Some(entry) = entry.as_object_mut() {
        if !positionals.is_empty() {
            entry.insert("positionals".to_owned(), positionals.into());
        }
        let nested = nested(&[root, command], command);
        if !nested.is_empty() {
            entry.insert("subcommands".to_owned(), nested.into());
        }
        match own {
            Some(facts) => application(root, command, facts, entry, detail),
            None => builtin(name, entry),
        }
    }
    entry
}

/// The arguments that a command does not share with those above it.
fn own_arguments(above: &[&Command], command: &Command) -> (Map<String, Value>, Vec<Value>) {
    let inherited = |argument: &&clap::Arg| {
        let same = |other: &clap::Arg| other.get_id() == argument.get_id();
        argument.is_global_set() && above.iter().any(|command| command.get_arguments().any(same))
    };
    let flags = command.get_arguments().filter(|argument| !inherited(argument)).filter_map(argument::flag);
    (flags.collect(), command.get_positionals().map(argument::positional).collect())
}

/// The nested subcommands of a command.
fn nested(above: &[&Command], command: &Command) -> Map<String, Value> {
    let mut all = Map::new();
    for nested_command in subcommands(command) {
        let (flags, positionals) = own_arguments(above, nested_command);
        let mut entry = json!({"description": about(nested_command), "flags": flags});
        if !positionals.is_empty() {
            entry["positionals"] = positionals.into();
        }
        let below: Vec<&Command> = above.iter().copied().chain([nested_command]).collect();
        let further = nested(&below, nested_command);
        if !further.is_empty() {
            entry["subcommands"] = further.into();
        }
        all.insert(nested_command.get_name().to_owned(), entry);
    }
    all
}

fn application(
    root: &Command,
    command: &Command,
    facts: &Facts,
    entry: &mut Map<String, Value>,
    detail: Detail,
) {
    // It works when pasted: without confirmation something destructive is refused.
    let confirmed = (facts.danger == DangerLevel::Destructive).then_some("--confirm");
    let words = [root.get_name(), facts.name].into_iter().chain(confirmed);
    let words = words.chain(facts.example.iter().copied());
    let example = words.map(quoted).collect::<Vec<_>>().join(" ");
    entry.insert("examples".to_owned(), json!([{"description": about(command), "command": example}]));
    if facts.class == Some(Class::Idempotent) {
        entry.insert("idempotent".to_owned(), true.into());
    }
    if facts.streams {
        entry.insert("streaming_default".to_owned(), true.into());
    }
    if detail == Detail::Retries {
        entry.insert("retry".to_owned(), retry(facts));
    }
}

/// What a caller may do again, and how.
fn retry(facts: &Facts) -> Value {
    let changes = facts.class.is_some();
    json!({
        "safe": true,
        "class": facts.class.unwrap_or(Class::Read),
        "key_flag": changes.then_some("--idempotency-key"),
        "dry_run_flag": changes.then_some("--dry-run"),
        "confirm_flag": (facts.danger == DangerLevel::Destructive).then_some("--confirm"),
        "undo_command": facts.undo.map(|_| "undo"),
        "timeout_ms": facts.timeout_ms,
        "example": facts.example,
    })
}

fn builtin(name: &str, entry: &mut Map<String, Value>) {
    entry.insert("builtin".to_owned(), true.into());
    match name {
        "mcp" => {
            entry.insert("stdout".to_owned(), "protocol".into());
            entry.insert("protocol".to_owned(), "mcp-stdio".into());
        }
        "settle" | "undo" => {
            entry.insert("idempotent".to_owned(), true.into());
        }
        _ => {}
    }
}

fn builtin_danger(name: &str) -> DangerLevel {
    if matches!(name, "settle" | "undo") { DangerLevel::Mutating } else { DangerLevel::Safe }
}

pub(crate) fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).filter(|about| !about.is_empty());
    about.unwrap_or_else(|| command.get_name().to_owned())
}
