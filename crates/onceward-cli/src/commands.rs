//! One file a command.

mod ask;
mod cancel;
mod config;
mod demo;
mod doctor;
mod export;
mod forget;
mod gc;
mod key;
mod ls;
mod man;
mod report;
pub(crate) mod run;
mod settle;
mod show;
mod stats;
mod verify;
mod wait;

use std::process::ExitCode;

use crate::answer;
use crate::cli::{Cli, Command};
use crate::context::Context;
use crate::exit::Ended;

/// Runs what was typed and answers.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let json = cli.global.json;
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            answer::error(&error, json);
            ExitCode::from(error.exit())
        }
    }
}

fn dispatch(cli: Cli) -> Ended {
    // These need neither a policy nor a ledger, and must work when both are broken.
    match cli.command {
        Command::Completions { shell } => return Ok(man::completions(shell)),
        Command::Man { folder } => return man::pages(folder.as_deref()),
        Command::Demo(args) => return demo::run(&args, cli.global.json),
        Command::Config(crate::cli::ConfigCommand::Init { file, dry }) => {
            return config::init(&file, dry, cli.global.json);
        }
        Command::Doctor => return doctor::run(cli.global),
        _ => {}
    }
    let context = Context::new(cli.global)?;
    match cli.command {
        Command::Run(args) => run::run(&context, &args),
        Command::Ls(args) => ls::run(&context, &args),
        Command::Show(args) => show::run(&context, &args),
        Command::Wait(args) => wait::run(&context, &args),
        Command::Settle(args) => settle::run(&context, &args),
        Command::Verify(args) => verify::run(&context, &args),
        Command::Cancel(args) => cancel::run(&context, &args),
        Command::Forget(args) => forget::run(&context, &args),
        Command::Report(args) => report::run(&context, &args),
        Command::Gc(args) => gc::run(&context, args),
        Command::Stats => stats::run(&context),
        Command::Export(args) => export::run(&context, &args),
        Command::Key(args) => key::run(&context, &args),
        Command::Config(crate::cli::ConfigCommand::Show { name }) => config::show(&context, &name),
        Command::Config(crate::cli::ConfigCommand::Init { .. })
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Demo(_)
        | Command::Doctor => Ok(ExitCode::SUCCESS),
    }
}
