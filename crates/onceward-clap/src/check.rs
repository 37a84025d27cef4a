//! What is wrong with a tool's definition, or with a command line that clap would take.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::{Command, Subcommand};
use onceward::Class;

use crate::builtin::Builtin;
use crate::entry::Facts;
use crate::flags;

/// Names that are taken by the framework, or twice.
pub(crate) fn clashes(options: &Command, commands: &[(Facts, Command)]) -> Vec<String> {
    let taken = flags::taken();
    let mut problems = Vec::new();
    for argument in options.get_arguments() {
        let id = argument.get_id();
        if argument.is_required_set() {
            problems.push(format!(
                "the option {id} holds everywhere, so it cannot be required; give it a default"
            ));
        }
        if argument.get_long().is_none() {
            problems.push(format!("the option {id} holds everywhere, so it needs a long name"));
        }
    }
    let at_the_root: Vec<String> = taken.iter().cloned().chain(["version".to_owned()]).collect();
    problems.extend(taken_by(options, "the world's options have", &at_the_root));
    let everywhere: Vec<String> = longs(options);
    let reserved = Builtin::augment_subcommands(Command::new("all"));
    let reserved: BTreeSet<&str> = reserved.get_subcommands().map(Command::get_name).collect();
    let mut seen = BTreeSet::new();
    for (facts, command) in commands {
        let name = facts.name;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            problems.push(format!("a command is called {name:?}; use small letters, digits and -"));
        }
        if reserved.contains(name) || name == "help" {
            problems.push(format!("a command is called {name}, which every tool has already; rename it"));
        }
        if !seen.insert(name) {
            problems.push(format!("two commands are called {name}; rename one"));
        }
        if facts.class == Some(Class::Read) {
            problems.push(format!("the command {name} changes something, so its class cannot be read"));
        }
        if facts.class == Some(Class::Probed) && !facts.has_probe {
            problems.push(format!("the command {name} is of class probed, but it has no PROBE"));
        }
        let all: Vec<String> = taken.iter().chain(&everywhere).cloned().collect();
        problems.extend(taken_by(command, &format!("the command {name} has"), &all));
    }
    problems
}

/// Examples that the command line does not take.
pub(crate) fn examples(definition: &Command, facts: &[Facts]) -> Vec<String> {
    let mut problems = Vec::new();
    for facts in facts {
        let typed = [definition.get_name(), facts.name].into_iter().chain(facts.example.iter().copied());
        if let Err(error) = definition.clone().try_get_matches_from(typed) {
            let problem = error.render().to_string();
            let first = problem.lines().next().unwrap_or_default().to_owned();
            problems.push(format!("the example of {} does not work: {first}", facts.name));
        }
    }
    problems
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

fn taken_by(command: &Command, who: &str, taken: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for long in longs(command).iter().filter(|long| taken.contains(long)) {
        problems.push(format!("{who} an argument --{long}, which is taken; rename it"));
    }
    for short in
        command.get_arguments().filter_map(clap::Arg::get_short).filter(|short| "hV".contains(*short))
    {
        problems.push(format!("{who} an argument -{short}, which is taken; rename it"));
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
