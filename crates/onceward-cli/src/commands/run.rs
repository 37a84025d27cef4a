//! `once run`: runs a command at most once.

mod child;
pub(super) mod compensate;
mod delivery;
mod dry_run;
mod evidence;
pub(super) mod family;
pub(crate) mod held;
pub(crate) mod input;
pub(crate) mod keeper;
mod lookup;
mod outlet;
mod preflight;
pub(crate) mod recording;
mod respond;
pub(crate) mod rules;
mod stdin;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use onceward::{
    Attempt, Blocking, Decision, Error, HeldBy, Hold, Inherit, Intent, LivenessSource, OnExpired, Operation,
    Outcome, Refusal, Settings, Verdict, Wanted, Witness, Word, delivered_by,
};

use super::ask::{self, Question};
use crate::cli::{self, DryRunArgs, IdentityArgs, IfKilled};
use crate::context::{Context, IfMissing, quoted};
use crate::environment::Environment;
use crate::exit::{CommandError, Ended};
use child::{Child, Keeping};
use delivery::Delivery;
use evidence::Judge;
pub(crate) use respond::Text;
use rules::RuleArgs;

/// The variable in which tools for continuous integration and shells pass the W3C trace context on.
const TRACE_PARENT: &str = "TRACEPARENT";

/// Run a command once: a retry gets the first result, byte for byte, and nothing is run.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    rules: RuleArgs,
    /// Hold the command back: nothing runs until this time has passed, or until you `once release` it (`approve`)
    #[arg(long, value_name = "TIME|approve", value_parser = cli::hold, help_heading = "Safety")]
    hold: Option<Hold>,
    /// Settle a doubt as "did not happen" on your word, which is recorded, and run the command again
    #[arg(long, help_heading = "Safety")]
    again: bool,
    /// How long to wait for another caller that runs the same operation
    #[arg(long, value_name = "TIME", value_parser = cli::span, help_heading = "Time and tries")]
    wait: Option<u64>,
    /// Print nothing on stderr about a call that succeeded
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    /// Exit with this code instead of 0 when the result is replayed and nothing was run
    #[arg(long, value_name = "CODE", value_parser = cli::exit_code, help_heading = "Output")]
    noop_exit: Option<i32>,
    /// Also write the JSON answer to this file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    status_file: Option<std::path::PathBuf>,
    /// It delivers an event of the inbox: a command that cannot be started is an attempt that failed, and what failed
    /// is tried again also after its record has expired
    #[arg(long, hide = true)]
    delivery: bool,
    #[command(flatten)]
    dry: DryRunArgs,
    /// With --dry-run: also run the command with these arguments added, to show its own plan
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
    let checked = show.check_status_file();
    let show = if checked.is_ok() { show } else { show.without_status_file() };
    // An error before the call begins is the answer to a call, not to a command about the ledger.
    checked.and_then(|()| call(context, args, show)).or_else(|error| match error {
        CommandError::Ledger(error) => Ok(respond::refused(&error, show, &context.surface())),
        CommandError::Outside(_) => Err(error),
    })
}

fn call(context: &Context, args: &RunArgs, show: respond::Show<'_>) -> Ended {
    let gathered = input::gather(&args.identity, &args.command)?;
    let settings = args.settings(context, &gathered)?;
    let gathered = gathered.keeping_input(&args.identity, &settings)?;
    let operation = args.operation(&gathered, &settings)?;
    let operation = if args.delivery { operation.distinct() } else { operation };
    if args.dry.dry_run {
        return dry_run::run(context, args, operation, &settings, show);
    }
    // Check the input first, so that a mistake in it does not create a ledger.
    operation.clone().intent()?;
    let ledger = context.ledger(IfMissing::Create)?;
    let Wanted { mut intent, rule } = ledger.repeats().wanted(operation)?;
    if args.delivery {
        intent.terms.on_expired = OnExpired::RetryFailed;
    }
    let action = intent.clone();
    if args.again {
        run_again(&ledger, &intent)?;
    }
    if let Some(exit) = held::repeated(context, &ledger, &intent, show)? {
        return Ok(exit);
    }
    // A caller that repeats the call needs the attempt: it counts, and its reason is kept.
    if !args.delivery
        && let Some(obstacle) = preflight::look(&ledger, &intent, &args.command)?
    {
        return Ok(respond::stopped_short(&obstacle, show, &context.surface()));
    }
    let delivery = Delivery::watch();
    let run = Run {
        context,
        settings: &settings,
        ledger: &ledger,
        command: &args.command,
        stdin: gathered.stdin(),
        environment: args.environment(context),
        if_killed: args.rules.if_killed,
        said: Some(args),
        begins: &|| {},
    };
    let result = run.execute(intent, show, &delivery);
    let exit = respond::answer(&run, &result, (rule, Some(&action)), show, &delivery);
    if let Some(record) = delivered_by(&result) {
        delivery.note(&ledger, record, action.terms.repeat_window_ms);
    }
    Ok(exit)
}

/// Records the caller's statement that an attempt in doubt did not happen. Settles nothing if the call would be
/// refused for another reason, or if a process of the attempt is still running.
fn run_again(ledger: &Blocking, intent: &Intent) -> Result<(), CommandError> {
    // After a restore, the doubt about an operation that the ledger does not know must be there to be settled.
    ledger.attempts().note_lost(intent)?;
    let plan = ledger.plan(intent)?;
    let (Decision::Refuse(Refusal::InDoubt) | Decision::Probe, Some(record)) = (plan.decision, plan.record)
    else {
        return Ok(());
    };
    let is_stopped = ledger.scopes().stopped()?.iter().any(|barrier| barrier.covers(&intent.scope));
    if is_stopped || record.spent_attempts() >= intent.terms.max_attempts {
        return Ok(());
    }
    let word = Word::program("the caller (--again)").note("the caller said to run it again".to_owned());
    let (attempt, outcome) = (record.attempt, Outcome::because(None));
    let settled = ledger.ledger().attempts().settle(&record.id, attempt, Verdict::Failed, word, outcome);
    match ledger.wait_for(settled) {
        // Another caller settled it first; the call uses that finding.
        Ok(_) | Err(Error::NotFound { .. } | Error::WrongState { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A call of `once run` in progress.
pub(super) struct Run<'a> {
    context: &'a Context,
    settings: &'a Settings,
    ledger: &'a Blocking,
    command: &'a [OsString],
    stdin: Option<Arc<[u8]>>,
    environment: Environment,
    if_killed: IfKilled,
    /// The flags of the call. A released command has none.
    said: Option<&'a RunArgs>,
    /// Called when the command is about to start.
    begins: &'a (dyn Fn() + Sync),
}

impl Run<'_> {
    fn execute(
        &self,
        intent: Intent,
        show: respond::Show<'_>,
        delivery: &Delivery,
    ) -> Result<onceward::Receipt, Error> {
        let settings = self.settings;
        let environment = &self.environment;
        let mut call = self.ledger.call(intent).inherit(Inherit::Children);
        if let Some(probe) = &settings.probe {
            let question = Question { command: probe.clone(), no: settings.probe_no.clone() };
            call = call.probe(move |record| std::future::ready(ask::probe(&question, &record, environment)));
        }
        if let Some(check) = &settings.verify {
            let question = Question { command: check.clone(), no: Vec::new() };
            call = call.verify(move |outcome| {
                std::future::ready(ask::verify(&question, &outcome, None, environment))
            });
        }
        let judge = Judge::new(&self.context.policy, settings, self.command);
        let result = self.ledger.run_call(call, |attempt| {
            let child = Child {
                command: self.command,
                stdin: self.stdin.as_ref(),
                timeout_ms: settings.timeout_ms,
                max_output: settings.max_output,
                relay: show.relay(),
                keeper: self.keeping(),
                environment,
                folder: None,
                variables: &[],
                witness: new_witness(),
            };
            let sent = attempt.dispatch()?;
            (self.begins)();
            judge.ending(child.run(&attempt, self.ledger, delivery), sent, child.witness.as_ref())
        });
        child::outcome_is_recorded();
        delivery.finish_output((settings.timeout_ms > 0).then(|| Duration::from_millis(settings.timeout_ms)));
        result
    }
}

impl Run<'_> {
    /// How much was read from standard input.
    fn stdin_bytes(&self) -> usize {
        self.stdin.as_ref().map_or(0, |bytes| bytes.len())
    }

    /// On back ends with leases, a command that may outlive this process needs a lease keeper.
    fn keeping(&self) -> Option<Keeping> {
        let leased = self.ledger.watch() == LivenessSource::Lease;
        let ledger = self.context.ledger_url().ok().filter(|_| leased)?;
        Some(Keeping { ledger, lease_ms: self.settings.terms.lease_ms, if_killed: self.if_killed })
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
        // The caller did not choose the program's file name, so it is ignored if a key is given.
        None => Operation::unnamed(&gathered.name),
    };
    let mut volatile = input::in_document(&settings.volatile);
    if !settings.key_fields.is_empty() {
        // Chosen fields identify the action, whatever the working folder is.
        volatile.push("/folder".to_owned());
    }
    let mut operation = operation
        .scope(&identity.scope)
        .input(gathered.input())
        .key_fields(input::in_document(&settings.key_fields))
        .volatile(volatile)
        .terms(settings.terms.clone());
    if let Some(key) = &identity.key {
        operation = operation.key(key).whole(gathered.whole());
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
    /// The environment for the command.
    fn environment(&self, context: &Context) -> Environment {
        context.environment(self.rules.pass_ledger())
    }

    fn operation(&self, gathered: &input::Gathered, settings: &Settings) -> Result<Operation, CommandError> {
        let needs_folder = settings.probe.is_some() || settings.verify.is_some() || settings.undo.is_some();
        let folder = std::env::current_dir().ok().map(|folder| folder.to_string_lossy().into_owned());
        let operation = operation(&self.identity, gathered, settings)
            .probe_command(settings.probe.clone())
            .probe_no(settings.probe_no.clone())
            .verify_command(settings.verify.clone())
            .undo(settings.undo.clone())
            .folder(folder.filter(|_| needs_folder))
            .command_line(settings.store_command.then(|| line(&self.command)))
            .trace_parent(std::env::var(TRACE_PARENT).ok().as_deref());
        Ok(match settings.terms.hold {
            Hold::No => operation,
            Hold::For(_) | Hold::Approve => {
                let is_asked = self.hold == Some(settings.terms.hold);
                let by = if is_asked { HeldBy::Caller } else { HeldBy::Policy };
                operation.held(
                    held::SURFACE,
                    by,
                    Some(held::HeldCommand::of(self, gathered, settings)?.stored()),
                )
            }
        })
    }

    /// The policy's settings, overridden by flags.
    fn settings(&self, context: &Context, gathered: &input::Gathered) -> Result<Settings, CommandError> {
        let mut settings = input::settings(context, &self.identity, gathered)?;
        let terms = &mut settings.terms;
        terms.wait_ms = self.wait.unwrap_or(terms.wait_ms);
        // A flag does not loosen what the policy says.
        terms.hold = self.hold.map_or(terms.hold, |hold| hold.stricter(terms.hold));
        self.rules.override_settings(&mut settings)?;
        Ok(settings)
    }
}

/// A command line, as a shell reads it back.
pub(crate) fn line(command: &[OsString]) -> String {
    command.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// What the program of an attempt prints in its envelope, if it is the one that was started. Without random numbers, no
/// envelope is believed.
fn new_witness() -> Option<Witness> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok().map(|()| Witness::new(random))
}

/// Variables that describe the attempt, so that the command can pass the key on.
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
