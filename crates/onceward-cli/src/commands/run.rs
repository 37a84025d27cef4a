//! `once run`: any command, once.

mod child;
mod delivery;
mod dry_run;
mod evidence;
mod family;
pub(crate) mod input;
mod lookup;
mod preflight;
pub(crate) mod recording;
mod respond;
mod stdin;

use std::ffi::OsString;

use clap::Args;
use onceward::{
    Attempt, Blocking, Class, Decision, Effect, Error, Inherit, Intent, Operation, Outcome, Refusal,
    RepeatRule, Settings, Verdict, Wanted,
};

use super::ask;
use crate::cli::{self, DryRunArgs, IdentityArgs};
use crate::context::{Context, Missing, quoted};
use crate::exit::{CommandError, Ended};
use child::Child;
use delivery::Delivery;
use evidence::Judge;
pub(crate) use respond::Text;

/// Run a command once: a retry gets the first result, byte for byte, and nothing is run.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// What may be done when it is in doubt
    #[arg(long, value_parser = cli::class(), help_heading = "Safety")]
    class: Option<Class>,
    /// Tells whether an operation in doubt happened, for `sh -c`: exit 0 yes, exit 10 no, anything else cannot tell
    #[arg(long, value_name = "COMMAND", help_heading = "Safety")]
    probe: Option<String>,
    /// More exit codes of the probe that mean "no", for probes like grep (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', help_heading = "Safety",
          value_parser = cli::exit_code)]
    probe_no: Vec<i32>,
    /// How long a request may still be under way after a doubt: a probe's "no" counts only after that
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Safety")]
    quarantine: Option<u64>,
    /// Checks a reported success, for `sh -c`: exit 0 confirmed, exit 10 refuted, anything else not yet
    #[arg(long, value_name = "COMMAND", help_heading = "Safety")]
    verify: Option<String>,
    /// How long the check is asked again before the answer is "pending"
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Safety")]
    verify_deadline: Option<u64>,
    /// Exit codes by which the command says that it did nothing (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', help_heading = "Safety",
          value_parser = cli::exit_code)]
    fail_exit: Vec<i32>,
    /// Exit codes that leave the effect in doubt, even if the table of known programs says otherwise (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', help_heading = "Safety",
          value_parser = cli::exit_code)]
    doubt_exit: Vec<i32>,
    /// What a success changes [default: the command's own JSON answer, else updated]
    #[arg(long, value_parser = cli::effect(), help_heading = "Safety")]
    effect: Option<Effect>,
    /// Settle a doubt as "did not happen" and run the command again: on your word, which is recorded
    #[arg(long, help_heading = "Safety")]
    again: bool,
    /// How long the command may take
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    timeout: Option<u64>,
    /// How long to wait for another caller that runs the same operation
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    wait: Option<u64>,
    /// How long the result is replayed
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    ttl: Option<u64>,
    /// Retry up to N times when the command definitely had no effect, with exponential back-off
    #[arg(long, value_name = "N", value_parser = cli::count, help_heading = "Time and tries")]
    retries: Option<u32>,
    /// The retry budget: how many attempts the operation may have in its life
    #[arg(long, value_name = "N", value_parser = cli::count, help_heading = "Time and tries")]
    attempts: Option<u32>,
    /// How much output is kept for replay, in bytes
    #[arg(long, value_name = "BYTES", value_parser = cli::bytes, help_heading = "Output")]
    max_output: Option<u64>,
    /// Store the command line with the operation, to be shown in lists (it may hold secrets)
    #[arg(long, help_heading = "Output")]
    store_command: bool,
    /// Say nothing on stderr about a call that succeeded
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    /// Exit with this code instead of 0 when the result is replayed and nothing was run
    #[arg(long, value_name = "CODE", value_parser = cli::exit_code, help_heading = "Output")]
    noop_exit: Option<i32>,
    /// Also write the JSON answer to this file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    status_file: Option<std::path::PathBuf>,
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
    /// The command and its arguments; options of `once` come before it
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND",
          value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

pub(crate) fn run(context: &Context, args: &RunArgs) -> Ended {
    let show = respond::Show::from(context, args);
    // What stops a call before it begins is told as the answer to a call, not to a command about the ledger.
    call(context, args, show).or_else(|error| match error {
        CommandError::Ledger(error) => Ok(respond::refused(&error, show, &context.surface())),
        CommandError::Outside(_) => Err(error),
    })
}

fn call(context: &Context, args: &RunArgs, show: respond::Show<'_>) -> Ended {
    let gathered = input::gather(&args.identity, &args.command)?;
    let settings = args.settings(context, &gathered)?;
    let operation = args.operation(&gathered, &settings);
    if args.dry.dry_run {
        return dry_run::run(context, args, operation, &settings, show);
    }
    // A mistake in the input must not leave a new ledger behind.
    operation.clone().intent()?;
    let ledger = context.ledger(Missing::Make)?;
    let Wanted { intent, rule } = ledger.wait_for(ledger.ledger().wanted(operation))?;
    if args.again {
        run_again(&ledger, &intent)?;
    }
    if let Some(obstacle) = preflight::look(&ledger, &intent, &args.command)? {
        return Ok(respond::stopped_short(&obstacle, show, &context.surface()));
    }
    let delivery = Delivery::watch();
    let run = Run { args, context, settings: &settings, gathered: &gathered, ledger: &ledger };
    let result = run.execute(intent, show, &delivery);
    let shown = respond::answer(&run, &result, rule, show, &delivery);
    if let Some(record) = shown.delivers.filter(|_| !matches!(rule, RepeatRule::Given | RepeatRule::Strict)) {
        delivery.note(&ledger, &record);
    }
    Ok(shown.exit)
}

/// The caller says that an attempt in doubt did not happen: recorded as the caller's word. A call that would be refused
/// for another reason, or that finds a process of the attempt still running, settles nothing.
fn run_again(ledger: &Blocking, intent: &Intent) -> Result<(), CommandError> {
    let plan = ledger.wait_for(ledger.ledger().plan(intent))?;
    let (Decision::Refuse(Refusal::InDoubt) | Decision::Probe, Some(record)) = (plan.decision, plan.record)
    else {
        return Ok(());
    };
    if record.spent_attempts() >= intent.terms.max_attempts {
        return Ok(());
    }
    let outcome = Outcome {
        settled_by: Some("the caller (--again)".to_owned()),
        ..Outcome::because(Some("the caller said to run it again".to_owned()))
    };
    let settled = ledger.ledger().settle_attempt(&record.id, record.attempt, Verdict::Failed, outcome);
    match ledger.wait_for(settled) {
        // Another caller was faster, and the call finds what it did.
        Ok(_) | Err(Error::NotFound { .. } | Error::WrongState { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A call of `once run` that is under way.
pub(super) struct Run<'a> {
    args: &'a RunArgs,
    context: &'a Context,
    settings: &'a Settings,
    gathered: &'a input::Gathered,
    ledger: &'a Blocking,
}

impl Run<'_> {
    fn execute(
        &self,
        intent: Intent,
        show: respond::Show<'_>,
        delivery: &Delivery,
    ) -> Result<onceward::Receipt, Error> {
        let settings = self.settings;
        let mut call = self.ledger.ledger().call(intent).inherit(Inherit::Children);
        if let Some(probe) = &settings.probe {
            call = call.probe(move |record| std::future::ready(ask::probe(probe, &record)));
        }
        if let Some(check) = &settings.verify {
            call = call.verify(move |outcome| std::future::ready(ask::verify(check, &outcome, None)));
        }
        let judge = Judge::new(&self.context.policy, settings, &self.args.command);
        self.ledger.run_call(call, |attempt| {
            let child = Child {
                command: &self.args.command,
                stdin: self.gathered.stdin.as_ref(),
                timeout_ms: settings.timeout_ms,
                max_output: settings.max_output,
                relay: show.relay(),
            };
            let sent = attempt.dispatch()?;
            judge.ending(child.run(&attempt, self.ledger, delivery), sent)
        })
    }
}

/// The operation that flags and policy describe.
pub(crate) fn operation(
    identity: &IdentityArgs,
    gathered: &input::Gathered,
    settings: &Settings,
) -> Operation {
    let operation = match &identity.name {
        Some(name) => Operation::new(name),
        // A program's file name is not chosen: under a given key it does not count.
        None => Operation::unnamed(&gathered.name),
    };
    let mut volatile = input::in_document(&settings.volatile);
    if !settings.key_fields.is_empty() {
        // Chosen fields identify the action, wherever it is asked for.
        volatile.push("/folder".to_owned());
    }
    let mut operation = operation
        .scope(&identity.scope)
        .input(gathered.input.clone())
        .key_fields(input::in_document(&settings.key_fields))
        .volatile(volatile)
        .terms(settings.terms.clone());
    if let Some(key) = &identity.key {
        operation = operation.key(key);
    }
    if let Some(occurrence) = &identity.occurrence {
        operation = operation.occurrence(occurrence);
    }
    match identity.keys {
        Some(keys) => operation.keys(keys.into()),
        None => operation,
    }
}

impl RunArgs {
    fn operation(&self, gathered: &input::Gathered, settings: &Settings) -> Operation {
        let folder = std::env::current_dir().ok().map(|folder| folder.to_string_lossy().into_owned());
        let words = self.command.iter().map(|word| word.to_string_lossy().into_owned());
        let line = words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ");
        operation(&self.identity, gathered, settings)
            .probe_command(settings.probe.clone())
            .probe_no(settings.probe_no.clone())
            .verify_command(settings.verify.clone())
            .folder(folder.filter(|_| settings.probe.is_some() || settings.verify.is_some()))
            .command_line(settings.store_command.then_some(line))
    }

    /// The policy's settings, with what the flags say over them.
    fn settings(&self, context: &Context, gathered: &input::Gathered) -> Result<Settings, CommandError> {
        let mut settings = input::settings(context, &self.identity, gathered)?;
        let terms = &mut settings.terms;
        terms.class = self.class.unwrap_or(terms.class);
        terms.wait_ms = self.wait.unwrap_or(terms.wait_ms);
        if let Some(ttl) = self.ttl {
            terms.keep_results_for(ttl);
        }
        terms.retries = self.retries.unwrap_or(terms.retries);
        terms.max_attempts = self.attempts.unwrap_or(terms.max_attempts);
        terms.quarantine_ms = self.quarantine.unwrap_or(terms.quarantine_ms);
        terms.verify_deadline_ms = self.verify_deadline.unwrap_or(terms.verify_deadline_ms);
        settings.timeout_ms = self.timeout.unwrap_or(settings.timeout_ms);
        settings.effect = self.effect.unwrap_or(settings.effect);
        settings.max_output = self.max_output.unwrap_or(settings.max_output);
        settings.probe = self.probe.clone().or(settings.probe);
        settings.verify = self.verify.clone().or(settings.verify);
        settings.store_command |= self.store_command;
        for (said, setting) in [
            (&self.fail_exit, &mut settings.no_effect_exits),
            (&self.doubt_exit, &mut settings.doubt_exit),
            (&self.probe_no, &mut settings.probe_no),
        ] {
            if !said.is_empty() {
                setting.clone_from(said);
            }
        }
        if settings.terms.class == Class::Probed && settings.probe.is_none() {
            return Err(CommandError::invalid(
                "the class is probed, but there is no probe to ask; give --probe COMMAND",
            ));
        }
        Ok(settings)
    }
}

/// The attempt's environment, for a command that passes the key on.
pub(crate) fn environment(attempt: &Attempt) -> [(&'static str, String); 6] {
    [
        (preflight::INSIDE, preflight::inside(attempt)),
        ("ONCE_KEY", attempt.key().to_owned()),
        ("IDEMPOTENCY_KEY", attempt.downstream_key().to_owned()),
        ("ONCE_ATTEMPT", attempt.number().to_string()),
        ("ONCE_SCOPE", attempt.scope().to_owned()),
        ("ONCE_OPERATION", attempt.operation().to_string()),
    ]
}
