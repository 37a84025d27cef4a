//! A command as it can be called: itself, or one of its nested subcommands.

use clap::{Arg, ArgAction, Command};

/// A path through nested subcommands that can be called.
#[derive(Debug, Clone)]
pub(crate) struct Leaf<'a> {
    /// The registered command first, then a subcommand per level.
    levels: Vec<&'a Command>,
}

/// An argument that a caller may give.
#[derive(Debug, Clone)]
pub(crate) struct Given<'a> {
    /// Its property in JSON.
    pub(crate) name: String,
    /// The level whose command takes it.
    pub(crate) level: usize,
    pub(crate) argument: &'a Arg,
}

impl<'a> Leaf<'a> {
    /// Every way to call the command: once for each innermost subcommand, and itself where it needs none.
    pub(crate) fn all(command: &'a Command) -> Vec<Self> {
        let mut leaves = Vec::new();
        descend(vec![command], &mut leaves);
        leaves
    }

    /// The one at the end of these names, below `root`.
    pub(crate) fn find(root: &'a Command, path: &[String]) -> Option<Self> {
        let mut levels: Vec<&Command> = Vec::new();
        for name in path {
            let at = levels.last().copied().unwrap_or(root);
            levels.push(at.find_subcommand(name)?);
        }
        (!levels.is_empty()).then_some(Self { levels })
    }

    /// What is typed after the tool's name.
    pub(crate) fn path(&self) -> Vec<&'a str> {
        self.levels.iter().map(|level| level.get_name()).collect()
    }

    /// Its name as an MCP tool: `order-create`.
    pub(crate) fn tool_name(&self) -> String {
        self.path().join("-")
    }

    pub(crate) fn levels(&self) -> &[&'a Command] {
        &self.levels
    }

    /// What it is for.
    pub(crate) fn about(&self) -> String {
        self.levels.last().map(|level| super::about(level)).unwrap_or_default()
    }

    /// The arguments of all levels that a caller may give in JSON. Those of the root hold for the whole tool.
    pub(crate) fn arguments(&self, root: &Command) -> Vec<Given<'a>> {
        let of_root = |argument: &Arg| root.get_arguments().any(|other| other.get_id() == argument.get_id());
        let mut given: Vec<Given<'a>> = Vec::new();
        for (level, command) in self.levels.iter().enumerate() {
            for argument in command.get_arguments() {
                let seen = |other: &Given<'_>| other.argument.get_id() == argument.get_id();
                let inherited = argument.is_global_set() && given.iter().any(seen);
                if of_root(argument) || inherited || !is_for_callers(argument) {
                    continue;
                }
                let name = argument.get_long().unwrap_or(argument.get_id().as_str()).replace('-', "_");
                given.push(Given { name, level, argument });
            }
        }
        given
    }
}

fn descend<'a>(levels: Vec<&'a Command>, leaves: &mut Vec<Leaf<'a>>) {
    let Some(last) = levels.last().copied() else { return };
    let nested = subcommands(last);
    if nested.is_empty() || !last.is_subcommand_required_set() {
        leaves.push(Leaf { levels: levels.clone() });
    }
    for command in nested {
        descend(levels.iter().copied().chain([command]).collect(), leaves);
    }
}

/// The author's own subcommands: clap adds `help` to those that have any.
pub(crate) fn subcommands(command: &Command) -> Vec<&Command> {
    command.get_subcommands().filter(|nested| nested.get_name() != "help").collect()
}

/// Help and version are not arguments of a call, and only the command line can answer with a stream.
fn is_for_callers(argument: &Arg) -> bool {
    let asks = matches!(
        argument.get_action(),
        ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
    );
    let can_be_given = argument.get_long().is_some() || argument.is_positional();
    !asks && can_be_given && !argument.is_hide_set() && argument.get_id() != "once_no_stream"
}
