//! Checks of a tool's definition, and of command lines that clap would accept.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::{Command, Subcommand};
use onceward::Class;

use crate::builtin::Builtin;
use crate::facts::Facts;
use crate::flags;
use crate::manifest::{Leaf, subcommands};
use crate::output::CalledBy;

/// Names that the framework reserves, names used twice, and shapes that cannot be described to programs.
pub(crate) fn clashes(options: &Command, commands: &[(Facts, Command)]) -> Vec<String> {
    let taken = flags::taken();
    let mut problems = Vec::new();
    for argument in options.get_arguments() {
        let id = argument.get_id();
        if argument.is_required_set() {
            problems.push(format!(
                "the world's option {id} applies everywhere and cannot be required; give it a default"
            ));
        }
        if argument.get_long().is_none() {
            problems.push(format!("the world's option {id} applies everywhere and needs a long name"));
        }
    }
    let at_the_root: Vec<String> = taken.iter().cloned().chain(["version".to_owned()]).collect();
    problems.extend(taken_by(options, "the world's options define", &at_the_root));
    let all: Vec<String> = taken.iter().cloned().chain(longs(options)).collect();
    let mut seen = BTreeSet::new();
    for (facts, command) in commands {
        problems.extend(of_command(facts, command));
        if !seen.insert(facts.name.to_owned()) {
            problems.push(format!("two commands are called {}; rename one", facts.name));
        }
        problems.extend(of_levels(command, command.get_name(), &all));
    }
    problems.extend(of_nested(commands, &mut seen));
    // Clap knows these only once it has put a command together, for which its names must be right.
    if problems.is_empty() {
        problems.extend(commands.iter().filter_map(|(_, command)| external(command.clone())));
    }
    problems
}

/// What is wrong with subcommands as MCP tools. `seen` are the names of the commands.
fn of_nested(commands: &[(Facts, Command)], seen: &mut BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let leaves = commands.iter().flat_map(|(_, command)| Leaf::all(command));
    for leaf in leaves.filter(|leaf| leaf.levels().len() > 1) {
        if !seen.insert(leaf.tool_name()) {
            let (name, path) = (leaf.tool_name(), leaf.path().join(" "));
            problems.push(format!("`{path}` and another command are both the MCP tool {name}; rename one"));
        }
        problems.extend(twice(&leaf));
    }
    problems
}

/// Subcommands that are not listed cannot be described to programs.
fn external(mut command: Command) -> Option<String> {
    fn first(command: &Command) -> Option<&str> {
        let own = command.is_allow_external_subcommands_set().then(|| command.get_name());
        own.or_else(|| command.get_subcommands().find_map(first))
    }
    command.build();
    let name = first(&command)?;
    Some(format!("command `{name}` accepts subcommands that it does not list; list them"))
}

fn of_command(facts: &Facts, command: &Command) -> Vec<String> {
    let name = facts.name;
    let mut problems = Vec::new();
    if !is_plain(name) {
        problems.push(format!("a command is called {name:?}; use lowercase letters, digits and -"));
    }
    let reserved = Builtin::augment_subcommands(Command::new("all"));
    if reserved.get_subcommands().any(|builtin| builtin.get_name() == name) || name == "help" {
        problems.push(format!("a command is called {name}, which onceward-clap reserves; rename it"));
    }
    if facts.class == Some(Class::Read) {
        problems.push(format!("the command {name} changes something, so its class cannot be read"));
    }
    if facts.class == Some(Class::Probed) && !facts.has_probe {
        problems.push(format!("the command {name} is of class probed, but it has no PROBE"));
    }
    if matches!(facts.undo, Some(Class::Read | Class::Probed)) {
        problems.push(format!("the UNDO of {name} can be of class once, idempotent or keyed"));
    }
    if command.get_name() != name {
        problems.push(format!(
            "the command {name} renames itself to {}; NAME must be the same",
            command.get_name()
        ));
    }
    problems
}

/// What is wrong with a command or one of its nested subcommands.
fn of_levels(command: &Command, path: &str, taken: &[String]) -> Vec<String> {
    let mut problems = taken_by(command, &format!("command `{path}` defines"), taken);
    for nested in command.get_subcommands() {
        let name = nested.get_name();
        if name == "help" || !is_plain(name) {
            problems.push(format!(
                "a subcommand of `{path}` is called {name:?}; use lowercase letters, digits and -, and not help"
            ));
        }
        problems.extend(of_levels(nested, &format!("{path} {name}"), taken));
    }
    problems
}

/// Two levels that have an argument of one name: in JSON they would be one property.
fn twice(leaf: &Leaf<'_>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let arguments = leaf.arguments(&Command::new("none"));
    let again: BTreeSet<String> =
        arguments.into_iter().map(|given| given.name).filter(|name| !seen.insert(name.clone())).collect();
    let path = leaf.path().join(" ");
    again.iter().map(|name| format!("`{path}` has two arguments called {name}; rename one")).collect()
}

/// Examples that the command line does not accept.
pub(crate) fn examples(definition: &Command, facts: &[Facts]) -> Vec<String> {
    let mut problems = Vec::new();
    for facts in facts {
        let typed = [definition.get_name(), facts.name].into_iter().chain(facts.example.iter().copied());
        if let Err(error) = definition.clone().try_get_matches_from(typed) {
            let problem = error.render().to_string();
            let first = problem.lines().next().unwrap_or_default().to_owned();
            problems.push(format!("the example of {} does not parse: {first}", facts.name));
        }
    }
    problems
}

/// The subcommands of the innermost command that was typed.
pub(crate) fn missing_subcommand(definition: &Command, typed: &[OsString]) -> String {
    let mut at = definition;
    for word in typed.iter().skip(1).filter_map(|word| word.to_str()) {
        at = at.find_subcommand(word).unwrap_or(at);
    }
    let names: Vec<&str> = subcommands(at).into_iter().map(Command::get_name).collect();
    format!("{} needs a subcommand: {}", at.get_name(), names.join(", "))
}

/// A global option that is given twice with two values: clap would take one of them.
pub(crate) fn contradiction(definition: &Command, typed: &[OsString]) -> Option<String> {
    let words: Vec<&str> =
        typed.iter().map_while(|word| word.to_str()).take_while(|word| *word != "--").collect();
    let takes_value =
        |argument: &&clap::Arg| argument.is_global_set() && argument.get_action().takes_values();
    for argument in definition.get_arguments().filter(takes_value) {
        let long = argument.get_long().unwrap_or_default();
        let values: BTreeSet<&str> = values_of(long, &words).into_iter().collect();
        if values.len() > 1 {
            return Some(format!("--{long} was given twice with different values; give it once"));
        }
    }
    None
}

/// The values that were typed for a long option.
pub(crate) fn values_of<'a>(long: &str, words: &[&'a str]) -> Vec<&'a str> {
    let mut values = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let Some(rest) = word.strip_prefix("--").and_then(|word| word.strip_prefix(long)) else { continue };
        match rest.strip_prefix('=') {
            Some(value) => values.push(value),
            None if rest.is_empty() => values.extend(words.get(index + 1)),
            None => {}
        }
    }
    values
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && name.chars().all(plain)
}

fn taken_by(command: &Command, who: &str, taken: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for long in longs(command).iter().filter(|long| taken.contains(long)) {
        problems
            .push(format!("{who} --{long}, which onceward-clap or the world's options reserve; rename it"));
    }
    for short in
        command.get_arguments().filter_map(clap::Arg::get_short).filter(|short| "hV".contains(*short))
    {
        problems.push(format!("{who} -{short}, which is reserved; rename it"));
    }
    problems
}

fn longs(command: &Command) -> Vec<String> {
    let mut longs = Vec::new();
    for argument in command.get_arguments() {
        longs.extend(argument.get_long().map(str::to_owned));
        longs.extend(argument.get_all_aliases().unwrap_or_default().into_iter().map(str::to_owned));
    }
    longs
}

/// The problem with a command line, without what only helps at a prompt.
pub(crate) fn problem(error: &clap::Error, called_by: CalledBy) -> String {
    let text = error.render().to_string();
    let text = text.trim().trim_start_matches("error: ");
    let text = text.split("\n\nFor more information").next().unwrap_or_default();
    match called_by {
        CalledBy::Shell => text.to_owned(),
        CalledBy::Mcp => {
            let first = text.split("\n\n").next().unwrap_or_default();
            first.split_whitespace().fold(String::new(), in_properties)
        }
    }
}

/// Adds a word of such a text for a reader who knows properties and no flags: `'--dry-run <X>'` is `'dry_run'`.
fn in_properties(mut text: String, word: &str) -> String {
    if word.starts_with('<')
        && let Some((_, after)) = word.rsplit_once('>')
    {
        return text + after.trim_start_matches('.');
    }
    if !text.is_empty() {
        text.push(' ');
    }
    let (quote, bare) = word.strip_prefix('\'').map_or(("", word), |bare| ("'", bare));
    match bare.strip_prefix("--") {
        Some(flag) => text + quote + &flag.replace('-', "_"),
        None => text + word,
    }
}
