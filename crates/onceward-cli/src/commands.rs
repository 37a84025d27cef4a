//! One file per command.

mod allow;
mod ask;
mod backup;
mod cancel;
mod config;
mod demo;
mod doctor;
mod export;
mod forget;
mod gc;
mod import;
mod key;
mod listing;
mod ls;
mod man;
pub(crate) mod mcp;
mod output;
mod report;
pub(crate) mod run;
mod settle;
mod show;
mod stats;
mod verify;
mod wait;

use std::cell::OnceCell;
use std::process::ExitCode;

use onceward::Surface;

use crate::answer;
use crate::cli::{Cli, Command, ConfigCommand};
use crate::context::Context;
use crate::exit::{CommandError, Ended};

/// Runs what was typed and answers.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let json = cli.global.json;
    let context = OnceCell::new();
    match dispatch(cli, &context) {
        Ok(code) => code,
        Err(error) => {
            let surface = context.get().map_or_else(|| Surface::shell("once"), Context::surface);
            answer::error(&error, json, &surface);
            ExitCode::from(error.exit())
        }
    }
}

fn dispatch(cli: Cli, made: &OnceCell<Context>) -> Ended {
    let Cli { global, command } = cli;
    let json = global.json;
    // A command that needs neither a policy nor a ledger works when both are broken.
    let context = || -> Result<&Context, CommandError> {
        let context = Context::new(global.clone())?;
        Ok(made.get_or_init(|| context))
    };
    match command {
        Command::Run(args) => run::run(context()?, &args),
        Command::Mcp(args) => mcp::run(context()?, &args),
        Command::Ls(args) => ls::run(context()?, &args),
        Command::Show(args) => show::run(context()?, &args),
        Command::Wait(args) => wait::run(context()?, &args),
        Command::Settle(args) => settle::run(context()?, &args),
        Command::Verify(args) => verify::run(context()?, &args),
        Command::Cancel(args) => cancel::run(context()?, &args),
        Command::Forget(args) => forget::run(context()?, &args),
        Command::Report(args) => report::run(context()?, &args),
        Command::Gc(args) => gc::run(context()?, &args),
        Command::Stats => stats::run(context()?),
        Command::Backup(args) => backup::run(context()?, &args),
        Command::Export(args) => export::run(context()?, &args),
        Command::Import(args) => import::run(context()?, &args),
        Command::Key(args) => key::run(context()?, &args),
        Command::Doctor => doctor::run(global),
        Command::Config(ConfigCommand::Show { name }) => config::show(context()?, &name),
        Command::Config(ConfigCommand::Allow { file, dry }) => {
            allow::run(file.as_deref(), allow::Wish::Allow, dry, json)
        }
        Command::Config(ConfigCommand::Deny { file, dry }) => {
            allow::run(file.as_deref(), allow::Wish::Deny, dry, json)
        }
        Command::Config(ConfigCommand::Check { file }) => config::check(global, file),
        Command::Config(ConfigCommand::Init { file, dry }) => config::init(&file, dry, json),
        Command::Demo(args) => demo::run(&args, json),
        Command::Completions { shell } => Ok(man::completions(shell)),
        Command::Help { command } => Ok(man::help(&command, json)),
        Command::Man { folder } => man::pages(folder.as_deref()),
    }
}
