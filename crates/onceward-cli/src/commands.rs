//! One file per command.

mod allow;
mod ask;
mod backup;
mod cancel;
mod config;
mod cost;
mod demo;
mod doctor;
pub(crate) mod edit;
mod export;
mod forget;
mod gc;
mod held;
mod import;
pub(crate) mod inbox;
mod key;
mod listing;
mod ls;
mod man;
pub(crate) mod mcp;
mod new_key;
mod output;
mod person;
mod release;
mod report;
mod restored;
pub(crate) mod run;
pub(crate) mod serve;
mod settle;
mod settlement;
mod show;
mod signed;
mod stats;
mod stop;
mod stored;
#[cfg(feature = "top")]
pub(crate) mod top;
mod undo;
mod usage;
mod verify;
mod wait;
pub(crate) mod watch;

use std::cell::OnceCell;
use std::process::ExitCode;

use onceward::{Audience, Surface};

use crate::answer;
use crate::cli::{Cli, Command, ConfigCommand};
use crate::context::Context;
use crate::exit::{CommandError, Ended};

/// The process that renews a lease. `once run` starts it; it is not for users.
pub(crate) fn keeper() -> Option<ExitCode> {
    let word = std::env::args_os().nth(1)?;
    if word != run::keeper::COMMAND {
        return None;
    }
    Some(run::keeper::run().unwrap_or_else(|error| {
        answer::error(&error, false, &Surface::shell("once"));
        ExitCode::from(error.exit())
    }))
}

/// Runs the command and prints its answer.
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
    let is_call = matches!(command, Command::Run(_) | Command::Wait(_));
    let reader = if is_call && !answer::person_watches() { Audience::Caller } else { Audience::Person };
    let context = || -> Result<&Context, CommandError> {
        let context = Context::new(global.clone(), reader)?;
        Ok(made.get_or_init(|| context))
    };
    match command {
        Command::Run(args) => run::run(context()?, &args),
        Command::Mcp(args) => mcp::run(context()?, &args),
        Command::Serve(args) => serve::run(context()?, &args),
        Command::Inbox(args) => inbox::run(context()?, &args),
        Command::Ls(args) => ls::run(context()?, &args),
        Command::Show(args) => show::run(context()?, &args),
        Command::Watch(args) => watch::run(context()?, &args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(context()?, &args),
        Command::Wait(args) => wait::run(context()?, &args),
        Command::Settle(args) => settle::run(context()?, &args),
        Command::Verify(args) => verify::run(context()?, &args),
        Command::Undo(args) => undo::run(context()?, &args),
        Command::Cancel(args) => cancel::run(context()?, &args),
        Command::Held(args) => held::run(context()?, &args),
        Command::Release(args) => release::run(context()?, &args),
        Command::Edit(args) => edit::run(context()?, &args),
        Command::Stop(args) => stop::stop(context()?, &args),
        Command::Resume(args) => stop::resume(context()?, &args),
        Command::Forget(args) => forget::run(context()?, &args),
        Command::Report(args) => report::run(context()?, &args),
        Command::VerifyReport(args) => signed::verify(&args, json),
        Command::Cost(args) => cost::run(context()?, &args),
        Command::Gc(args) => gc::run(context()?, &args),
        Command::Stats => stats::run(context()?),
        Command::Backup(args) => backup::run(context()?, &args),
        Command::Restored(args) => restored::run(context()?, &args),
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
        Command::Config(ConfigCommand::NewKey { file, dry }) => new_key::run(&file, dry, json),
        Command::Demo(args) => demo::run(&args, json),
        Command::Completions { shell } => Ok(man::completions(shell)),
        Command::Help { command } => Ok(man::help(&command, json)),
        Command::Man { folder } => man::pages(folder.as_deref()),
    }
}
