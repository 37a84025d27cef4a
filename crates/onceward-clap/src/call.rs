//! One call of a mutating command: the operation, its preview, its execution.

use std::sync::{Arc, Mutex};

use onceward::answer::OperationView;
use onceward::{
    Attempt, Blocking, Class, Decision, Done, Error, Failure, Inherit, Intent, Operation, ProbeAnswer,
    Receipt, Record, Refusal, Replayed, State,
};

use crate::command::{Danger, Mutating, World};
use crate::envelope::{self, Envelope, ErrorBody};
use crate::fault::{Fault, FaultKind};
use crate::flags::MutatingFlags;
use crate::manifest::DangerLevel;
use crate::op::Op;
use crate::plan::Plan;
use crate::probe::Doubt;
use crate::referee::{Gate, Stop, Supervised, lock};
use crate::session::{Rules, Session, quoted};
use crate::voice::Voice;

/// Whether the caller has said that something may be destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    Yes,
    No,
}

/// Runs a mutating command, or says what it would do.
pub(crate) fn mutate<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: C,
    flags: &MutatingFlags,
    confirmed: Confirmed,
) -> Envelope {
    let called = try_mutate::<C, D>(session, Arc::new(command), flags, confirmed);
    called.unwrap_or_else(|error| session.failed(error))
}

fn try_mutate<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: Arc<C>,
    flags: &MutatingFlags,
    confirmed: Confirmed,
) -> Result<Envelope, Error> {
    let rules = session.rules(C::NAME, class_of::<C, D>(), C::TIMEOUT_MS, flags)?;
    let operation = session.operation(C::NAME, &*command, flags, &rules.settings)?;
    // A mistake in the input must not leave a new ledger behind.
    let intent = operation.intent()?;
    let with_time = |envelope| Envelope { timeout_ms: rules.timeout_ms, ..envelope };
    if flags.dry_run {
        return Ok(with_time(preview::<C, D>(session, &command, &intent, &rules)?));
    }
    if D::LEVEL == DangerLevel::Destructive && confirmed == Confirmed::No {
        return Ok(with_time(unconfirmed::<C, D>(session, &command, &rules)));
    }
    let ledger = session.ledger(onceward::Missing::Make)?;
    if flags.key.is_none() && Voice::person_watches() {
        explain_key(session, &intent);
    }
    let unfinished = |view, stop| {
        let envelope = session.finish(envelope::in_doubt(view, stop, session.tool));
        session.voice.answer(&envelope);
        envelope.exit
    };
    let executed = execute::<C, D>(session, &ledger, &command, operation, rules.timeout_ms, &unfinished);
    let mut envelope = Envelope::of(&executed.result, ledger.ledger().clock_ms(), session.tool);
    if let Some(stop) = executed.stopped {
        envelope = Envelope { operation: envelope.operation, ..Envelope::stopped(stop) };
    }
    if envelope.is_replay() && rules.settings.terms.class == Class::Idempotent {
        envelope.warnings.extend(changed_since::<C, D>(session, &command, &rules));
    }
    Ok(session.finish(with_time(envelope)))
}

/// The class that the command's own types say.
pub(crate) fn class_of<C: Mutating<D>, D: Danger>() -> Class {
    match C::PROBE {
        Some(_) if C::CLASS == Class::Once => Class::Probed,
        Some(_) | None => C::CLASS,
    }
}

/// What an execution came to.
pub(crate) struct Executed {
    pub(crate) result: Result<Receipt, Error>,
    /// It was stopped before its dispatch.
    pub(crate) stopped: Option<Stop>,
}

/// Executes the operation once. Where it is stopped after its dispatch, `unfinished` says so, and the process ends
/// without another word to the ledger: the lock is then free exactly when the work cannot go on any more.
pub(crate) fn execute<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    ledger: &Blocking,
    command: &Arc<C>,
    operation: Operation,
    timeout_ms: u64,
    unfinished: &(dyn Fn(OperationView, Stop) -> u8 + Sync),
) -> Executed {
    let intent = operation.intent();
    let stopped = Mutex::new(None);
    // Whatever the work starts keeps the attempt alive: a child that outlives us may still have its effect.
    let mut call = ledger.ledger().call(operation).inherit(Inherit::Children).dispatch_marked();
    if C::PROBE.is_some() {
        call = call.probe(|record| std::future::ready(ask::<C, D>(session, command, &record, timeout_ms)));
    }
    let result = ledger.run_call(call, |attempt| {
        let gate = Arc::new(Gate::default());
        let work = work::<C, D>(session, command, attempt.clone(), &gate);
        match session.referee.supervise(timeout_ms, &gate, work) {
            Supervised::Finished(Ok(done)) => Ok(done),
            Supervised::Finished(Err(fault)) => Err(fault.into_failure(gate.passed())),
            Supervised::Panicked => {
                let fault = Fault::from(std::io::Error::other("the command's own code gave up (a panic)"));
                Err(fault.into_failure(gate.passed()))
            }
            Supervised::StoppedBefore(stop) => {
                *lock(&stopped) = Some(stop);
                Err(Failure::no_effect(format!("{stop} before anything was dispatched")))
            }
            Supervised::StoppedAfter(stop) => {
                let view = intent.as_ref().map(|intent| view_of(intent, &attempt));
                let code = view.map_or(stop.exit(), |view| unfinished(view, stop));
                std::process::exit(i32::from(code));
            }
        }
    });
    Executed { result, stopped: lock(&stopped).take() }
}

/// What runs on the thread that can be given up.
fn work<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: &Arc<C>,
    attempt: Attempt,
    gate: &Arc<Gate>,
) -> impl FnOnce() -> Result<Done, Fault> + Send + 'static {
    let (command, gate) = (Arc::clone(command), Arc::clone(gate));
    let (options, shared) = (session.options.clone(), Arc::clone(&session.world));
    move || {
        let kept = lock(&shared).take();
        let mut world = match kept {
            Some(world) => world,
            None => C::World::open(&options)?,
        };
        let applied = command.apply(Op::new(&mut world, attempt, gate)).map(|applied| applied.done());
        *lock(&shared) = Some(world);
        applied
    }
}

/// Asks the command's probe, in a world that is open for reading only.
fn ask<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: &Arc<C>,
    record: &Arc<Record>,
    timeout_ms: u64,
) -> ProbeAnswer {
    let Some(probe) = C::PROBE else {
        return ProbeAnswer::CannotTell("there is no probe".to_owned());
    };
    let (command, record, options) = (Arc::clone(command), Arc::clone(record), session.options.clone());
    let asked = session.referee.supervise(timeout_ms, &Gate::default(), move || {
        let world = C::World::open_read_only(&options)?;
        probe(&command, &world, &Doubt::of(&record)).map(crate::probe::Probed::answer)
    });
    match asked {
        Supervised::Finished(Ok(answer)) => answer,
        Supervised::Finished(Err(fault)) => ProbeAnswer::CannotTell(fault.message().to_owned()),
        Supervised::Panicked => ProbeAnswer::CannotTell("the probe gave up".to_owned()),
        Supervised::StoppedBefore(stop) | Supervised::StoppedAfter(stop) => {
            ProbeAnswer::CannotTell(format!("the probe was {stop}"))
        }
    }
}

/// Says what would happen, and writes nothing: not even a ledger where there is none.
pub(crate) fn preview<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: &Arc<C>,
    intent: &Intent,
    rules: &Rules,
) -> Result<Envelope, Error> {
    let plan = match session.existing_ledger()? {
        Some(ledger) => Some(ledger.wait_for(ledger.ledger().plan(intent))?),
        None => None,
    };
    let (decision, record) = match plan {
        Some(plan) => (plan.decision, plan.record),
        None => (Decision::Start { attempt: 1 }, None),
    };
    let attempt = record.as_ref().map_or(0, |record| record.attempt);
    let envelope = match foreseen(&decision, attempt) {
        Some(reason) => Envelope::preview(&Plan::noop(reason)),
        None => match plan_of::<C, D>(session, command, rules.timeout_ms) {
            Ok(plan) => Envelope::preview(&plan),
            Err(failed) => return Ok(*failed),
        },
    };
    let shown =
        record.map_or_else(|| onceward::transition::stage(intent, 0), |record| Record::clone(&record));
    let operation = Some(OperationView::of(&shown, shown.state, Replayed::No));
    Ok(Envelope { operation, ..envelope })
}

/// Why the ledger would run nothing, in words; `None` where it would run.
fn foreseen(decision: &Decision, attempt: u32) -> Option<String> {
    Some(match decision {
        Decision::Start { .. } => return None,
        Decision::Replay => format!("already done by attempt {attempt}: would replay its result"),
        Decision::ReplayFailure => format!("would replay the failure of attempt {attempt}"),
        Decision::Wait => format!("would wait: attempt {attempt} is running"),
        Decision::Probe => format!("would ask the probe whether attempt {attempt} happened"),
        Decision::Doubt | Decision::Refuse(Refusal::InDoubt) => {
            format!("would refuse: nobody can say whether attempt {attempt} happened")
        }
        Decision::Refuse(Refusal::KeyReused(fields)) => {
            format!("would refuse: the key was used with other inputs ({})", fields.join(", "))
        }
        Decision::Refuse(Refusal::KeyExpired) => "would refuse: the key has expired".to_owned(),
        Decision::Refuse(Refusal::Cancelled) => "would refuse: it was cancelled".to_owned(),
        Decision::Refuse(Refusal::BudgetExhausted) => {
            format!("would refuse: {attempt} attempts were made and the budget allows no more")
        }
    })
}

/// The command's own plan, made in a world that is open for reading only.
fn plan_of<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: &Arc<C>,
    timeout_ms: u64,
) -> Result<Plan, Box<Envelope>> {
    let (command, options) = (Arc::clone(command), session.options.clone());
    supervise_read(session, timeout_ms, move || {
        let world = C::World::open_read_only(&options)?;
        command.plan(&world)
    })
}

/// Work that changes nothing, under supervision.
pub(crate) fn supervise_read<W: World, T: Send + 'static>(
    session: &Session<W>,
    timeout_ms: u64,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Box<Envelope>> {
    let failed = match session.referee.supervise(timeout_ms, &Gate::default(), work) {
        Supervised::Finished(Ok(value)) => return Ok(value),
        Supervised::Finished(Err(fault)) => Envelope::fault(&fault),
        Supervised::Panicked => {
            Envelope::fault(&Fault::no_effect("the command's own code gave up (a panic)"))
        }
        Supervised::StoppedBefore(stop) | Supervised::StoppedAfter(stop) => Envelope::stopped(stop),
    };
    Err(Box::new(failed))
}

/// Nothing is destroyed without a word: what would be is shown, and how to look closer.
fn unconfirmed<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: &Arc<C>,
    rules: &Rules,
) -> Envelope {
    let changes = match plan_of::<C, D>(session, command, rules.timeout_ms) {
        Ok(plan) => plan.changes().to_vec(),
        Err(failed) => return *failed,
    };
    let error = ErrorBody {
        code: FaultKind::InvalidInput.as_str().to_owned(),
        fix_command: Some(typed_with(session.tool, C::NAME, "--dry-run")),
        ..ErrorBody::certain(format!(
            "{} is destructive and was not confirmed, so nothing was done; add --confirm to do it",
            C::NAME
        ))
    };
    Envelope { changes, ..Envelope::error(error, FaultKind::InvalidInput.exit()) }
}

/// The command line as it was typed, with a flag after the command's name: at its end a `--` may make it an argument.
fn typed_with(tool: &str, command: &str, flag: &str) -> String {
    let mut words: Vec<String> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
    let place = words.iter().position(|word| word == command).map_or(words.len(), |place| place + 1);
    words.insert(place, flag.to_owned());
    format!("{tool} {}", words.join(" "))
}

/// A command that converges may be wanted again because the world has moved on since: a rollback, then the same
/// version.
fn changed_since<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: &Arc<C>,
    rules: &Rules,
) -> Option<String> {
    let plan = plan_of::<C, D>(session, command, rules.timeout_ms).ok()?;
    let changes = plan.changes().join(", ");
    (plan.effect() != onceward::Effect::WouldNoop)
        .then(|| format!("the world has changed since: done anew it {changes}; another --occurrence does it"))
}

fn explain_key<W: World>(session: &Session<W>, intent: &Intent) {
    session.voice.talk(&format!(
        "{}: key {} is derived from the command and its arguments: the same again is a retry, and --occurrence 2 \
         repeats it",
        session.tool, intent.key.text
    ));
}

fn view_of(intent: &Intent, attempt: &Attempt) -> OperationView {
    OperationView {
        id: intent.id.to_string(),
        scope: intent.scope.clone(),
        name: intent.name.clone(),
        key: intent.key.text.clone(),
        state: State::Running,
        attempt: attempt.number(),
        replayed: false,
        original_effect: None,
        verified: None,
        expires_at: None,
    }
}
