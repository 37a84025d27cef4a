//! `once run`: any command, once.

mod child;
pub(crate) mod input;
pub(crate) mod recording;
mod respond;

use std::ffi::OsString;

use clap::Args;
use onceward::{
    Attempt, Blocking, Class, Done, Effect, Failure, Inherit, Operation, Outcome, Settings, Verification,
};

use super::ask;
use crate::cli::{self, DryRunArgs, IdentityArgs};
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};
use child::{Child, Finished};

/// Run a command once: a retry gets the first result, byte for byte, and nothing is run.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// What may be done when it is in doubt: read, idempotent, keyed, probed, once
    #[arg(long, value_parser = cli::class, help_heading = "Safety")]
    class: Option<Class>,
    /// Tells whether an operation in doubt happened, for `sh -c`: exit 0 yes, 1 no, else cannot tell
    #[arg(long, value_name = "COMMAND", help_heading = "Safety")]
    probe: Option<String>,
    /// Checks a reported success, for `sh -c`: exit 0 confirmed, 1 refuted, else not yet
    #[arg(long, value_name = "COMMAND", help_heading = "Safety")]
    verify: Option<String>,
    /// How long the check is asked again before the answer is "pending"
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Safety")]
    verify_deadline: Option<u64>,
    /// Exit codes after which nobody can say what the command did (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', help_heading = "Safety",
          value_parser = cli::exit_code)]
    doubt_exit: Vec<i32>,
    /// What a success changes: created, updated, deleted, noop [default: the command's own JSON answer, else updated]
    #[arg(long, value_parser = cli::effect, help_heading = "Safety")]
    effect: Option<Effect>,
    /// How long the command may take
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    timeout: Option<u64>,
    /// How long to wait for another caller that runs the same operation
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    wait: Option<u64>,
    /// How long the result is replayed
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    ttl: Option<u64>,
    /// How often to try again after a certain failure, with growing pauses
    #[arg(long, value_name = "N", value_parser = cli::count, help_heading = "Time and tries")]
    retries: Option<u32>,
    /// The retry budget: how many attempts the operation may have in its life
    #[arg(long, value_name = "N", value_parser = cli::count, help_heading = "Time and tries")]
    attempts: Option<u32>,
    /// How much output is kept for replay, in bytes
    #[arg(long, value_name = "BYTES", value_parser = cli::bytes, help_heading = "Output")]
    max_output: Option<u64>,
    #[command(flatten)]
    dry: DryRunArgs,
    /// With --dry-run: also run the command with these arguments added, for its own plan
    #[arg(
        long,
        value_name = "ARGS",
        value_delimiter = ' ',
        allow_hyphen_values = true,
        requires = "dry_run"
    )]
    dry_run_args: Vec<OsString>,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(context: &Context, args: &RunArgs) -> Ended {
    let gathered = input::gather(&args.identity, &args.command)?;
    let settings = args.settings(context, &gathered)?;
    let operation = operation(&args.identity, &gathered, &settings);
    let operation = operation.probe_command(settings.probe.clone()).verify_command(settings.verify.clone());
    if args.dry.dry_run {
        return respond::dry_run(context, args, &operation, &settings, &gathered);
    }
    // A mistake in the input must not leave a new ledger behind.
    operation.intent()?;
    let ledger = context.ledger(Missing::Make)?;
    let show = respond::Show::from(context);
    let result = execute(args, &ledger, operation, &settings, &gathered, show);
    Ok(respond::answer(&ledger, result, show))
}

fn execute(
    args: &RunArgs,
    ledger: &Blocking,
    operation: Operation,
    settings: &Settings,
    gathered: &input::Gathered,
    show: respond::Show,
) -> Result<onceward::Receipt, onceward::Error> {
    let mut call = ledger.ledger().call(operation).inherit(Inherit::Children).dispatch_marked();
    if let Some(probe) = &settings.probe {
        call = call.probe(move |record| {
            let answer = ask::probe(probe, &record);
            std::future::ready(answer)
        });
    }
    if let Some(check) = &settings.verify {
        call = call.verify(move |outcome: Outcome| {
            let answer: (Verification, String) = ask::verify(check, &outcome);
            std::future::ready(answer)
        });
    }
    ledger.run_call(call, |attempt| {
        let child = Child {
            command: &args.command,
            stdin: gathered.stdin.as_deref(),
            timeout_ms: settings.timeout_ms,
            max_output: settings.max_output,
            relay: show.relay(),
        };
        ending(child.run(&attempt, ledger), settings)
    })
}

/// What the end of the command says about its effect.
fn ending(finished: Finished, settings: &Settings) -> Result<Done, Failure> {
    match finished {
        Finished::NotStarted { reason, exit_code } => {
            Err(Failure::no_effect(reason).with(recording::exit_data(exit_code), None))
        }
        Finished::TimedOut { after_ms, output } => {
            let (data, body) = output.into_parts(None);
            let took = onceward::answer::span_in_words(i64::try_from(after_ms).unwrap_or(i64::MAX));
            Err(Failure::timed_out(format!("the command was stopped after {took}")).with(data, body))
        }
        Finished::Killed { signal, output } => {
            let (data, body) = output.into_parts(None);
            Err(Failure::in_doubt(format!("the command was killed by {signal}")).with(data, body))
        }
        Finished::Exited { code: 0, output } => {
            let effect = output.reported_effect().unwrap_or(settings.effect);
            let (data, body) = output.into_parts(Some(0));
            let done = match data {
                Some(data) => Done::with_json(effect, data),
                None => Done::new(effect, &()),
            };
            Ok(match body {
                Some(body) => done.body(body),
                None => done,
            })
        }
        Finished::Exited { code, output } => {
            let (data, body) = output.into_parts(Some(code));
            let failure = if settings.doubt_exit.contains(&code) {
                Failure::in_doubt(format!(
                    "the command ended with exit code {code}, which leaves its effect in doubt"
                ))
            } else {
                Failure::no_effect(format!("the command failed with exit code {code}"))
            };
            Err(failure.with(data, body))
        }
    }
}

/// The operation that flags and policy describe.
pub(crate) fn operation(
    identity: &IdentityArgs,
    gathered: &input::Gathered,
    settings: &Settings,
) -> Operation {
    let mut operation = Operation::new(&gathered.name)
        .scope(&identity.scope)
        .input(gathered.input.clone())
        .key_fields(input::in_document(&settings.key_fields))
        .volatile(input::in_document(&settings.volatile))
        .terms(settings.terms.clone());
    if let Some(key) = &identity.key {
        operation = operation.key(key);
    }
    if let Some(occurrence) = &identity.occurrence {
        operation = operation.occurrence(occurrence);
    }
    operation
}

impl RunArgs {
    /// The policy's settings, with what the flags say over them.
    fn settings(&self, context: &Context, gathered: &input::Gathered) -> Result<Settings, CommandError> {
        let mut settings = input::settings(context, &self.identity, gathered)?;
        let terms = &mut settings.terms;
        terms.class = self.class.unwrap_or(terms.class);
        terms.wait_ms = self.wait.unwrap_or(terms.wait_ms);
        terms.retention_ms = self.ttl.unwrap_or(terms.retention_ms);
        terms.retries = self.retries.unwrap_or(terms.retries);
        terms.max_attempts = self.attempts.unwrap_or(terms.max_attempts);
        terms.verify_deadline_ms = self.verify_deadline.unwrap_or(terms.verify_deadline_ms);
        settings.timeout_ms = self.timeout.unwrap_or(settings.timeout_ms);
        settings.effect = self.effect.unwrap_or(settings.effect);
        settings.max_output = self.max_output.unwrap_or(settings.max_output);
        settings.probe = self.probe.clone().or(settings.probe);
        settings.verify = self.verify.clone().or(settings.verify);
        if !self.doubt_exit.is_empty() {
            settings.doubt_exit.clone_from(&self.doubt_exit);
        }
        if settings.terms.class == Class::Probed && settings.probe.is_none() {
            return Err(CommandError::invalid(
                "the class is probed, but there is no probe to ask; give --probe COMMAND",
            ));
        }
        // A probe is there to be asked.
        if settings.probe.is_some() && settings.terms.class == Class::Once {
            settings.terms.class = Class::Probed;
        }
        Ok(settings)
    }
}

/// The attempt's environment, for a command that passes the key on.
pub(crate) fn environment(attempt: &Attempt) -> [(&'static str, String); 5] {
    [
        ("ONCE_KEY", attempt.key().to_owned()),
        ("IDEMPOTENCY_KEY", attempt.downstream_key().to_owned()),
        ("ONCE_ATTEMPT", attempt.number().to_string()),
        ("ONCE_SCOPE", attempt.scope().to_owned()),
        ("ONCE_OPERATION", attempt.operation().to_string()),
    ]
}
