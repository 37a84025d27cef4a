//! The commands that every tool has: `show` and `settle`, and descriptions of the tool for programs and people.

mod mcp;
mod settle;
mod undo;

use clap::{ArgMatches, Command, Subcommand};

use crate::command::World;
use crate::envelope::Envelope;
use crate::facts::{Facts, Undoable};
use crate::manifest::{self, Detail};
use crate::output::EnvelopeFormat;
use crate::session::Session;

pub(crate) use settle::SettleArgs;
pub(crate) use undo::UndoArgs;

/// A built-in command.
#[derive(Debug, Subcommand)]
pub(crate) enum Builtin {
    /// Show everything recorded about an operation
    Show {
        /// The operation (op_…)
        #[arg(value_name = "OPERATION")]
        operation: String,
    },
    /// Record whether an operation in doubt happened
    Settle(SettleArgs),
    /// Take back what an operation, or everything in a scope, did
    Undo(UndoArgs),
    /// Describe every command for programs: arguments, danger, exit codes
    Manifest,
    /// Describe one command for programs
    Schema {
        /// The command, and its subcommand if it has any
        #[arg(value_name = "COMMAND", required = true)]
        command: Vec<String>,
    },
    /// Serve the commands as MCP tools on stdin and stdout, guarded by the same ledger
    Mcp,
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual, or write one page per command to a directory
    Man {
        /// The directory for the pages
        #[arg(value_name = "FOLDER")]
        folder: Option<std::path::PathBuf>,
    },
}

/// Runs a built-in command, prints its answer and returns the exit code.
pub(crate) fn run<W: World>(
    session: &Session<W>,
    command: &Builtin,
    mut definition: Command,
    (facts, undoables): (&[Facts], &[Undoable<W>]),
    matches: &ArgMatches,
) -> u8 {
    let envelope = match command {
        Builtin::Show { operation } => settle::show(session, operation),
        Builtin::Settle(args) => settle::settle(session, args),
        Builtin::Undo(args) => undo::undo(session, args, undoables),
        Builtin::Manifest => {
            definition.build();
            let detail = match session.output.format {
                EnvelopeFormat::Contract => Detail::Retries,
                EnvelopeFormat::Strict => Detail::Spec,
            };
            Envelope::info(&manifest::manifest(&definition, facts, detail))
        }
        Builtin::Schema { command } => {
            definition.build();
            match manifest::Leaf::find(&definition, command) {
                Some(found) => Envelope::info(&manifest::schema(&definition, &found, facts)),
                None => Envelope::invalid(format!(
                    "there is no command {}; `{} manifest` lists all",
                    command.join(" "),
                    session.tool
                )),
            }
        }
        Builtin::Mcp => return mcp::serve(session, definition, facts, matches),
        Builtin::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut definition, session.tool, &mut script);
            session.output.bytes(&script);
            return 0;
        }
        Builtin::Man { folder } => match pages(session, definition, folder.as_deref()) {
            Ok(()) => return 0,
            Err(error) => Envelope::broken(format!("the manual could not be written: {error}")),
        },
    };
    session.output.answer(&envelope);
    envelope.exit
}

fn pages<W: World>(
    session: &Session<W>,
    definition: Command,
    folder: Option<&std::path::Path>,
) -> std::io::Result<()> {
    match folder {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            clap_mangen::generate_to(definition, folder)
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(definition).render(&mut page)?;
            session.output.bytes(&page);
            Ok(())
        }
    }
}
