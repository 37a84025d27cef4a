//! One call of a mutating command: the operation, its preview, its execution.

use std::sync::{Arc, Mutex};

use onceward::{
    Answer, Attempt, Blocking, Call, Class, Decision, Done, Effect, Error, ErrorView, Evidence, Failure,
    Inherit, Intent, KeyPolicy, Operation, Preview, ProbeAnswer, Ran, Receipt, Record, RepeatRule, State,
    Wanted, delivered_by,
};

use crate::command::{Danger, DangerLevel, Mutating, World};
use crate::envelope::Envelope;
use crate::fault::{Fault, FaultKind};
use crate::flags::MutatingFlags;
use crate::op::{Applied, Op};
use crate::output::CalledBy;
use crate::plan::Plan;
use crate::probe::Doubt;
use crate::session::{Rules, Session, quoted};
use crate::supervisor::{DispatchGate, Stop, Supervised, lock};
use crate::undo::stored;

/// Whether the caller has said that something may be destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmed {
    Yes,
    No,
}

/// Runs a mutating command, or shows what it would do. Also returns what must record the delivery of the answer, unless
/// the caller is a server that knows more about it.
pub(crate) fn mutate<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: C,
    flags: &MutatingFlags,
    confirmed: Confirmed,
) -> (Envelope, Option<Observed>) {
    let mut observed = None;
    let called = try_mutate::<C, D>(session, Arc::new(command), flags, confirmed, &mut observed);
    (called.unwrap_or_else(|error| session.failed(error)), observed)
}

fn try_mutate<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: Arc<C>,
    flags: &MutatingFlags,
    confirmed: Confirmed,
    observed: &mut Option<Observed>,
) -> Result<Envelope, Error> {
    let rules = session.rules(C::NAME, class_of::<C, D>(), C::TIMEOUT_MS, flags)?;
    let operation = session.operation(C::NAME, &*command, flags, &rules.settings)?;
    let operation = declared::<C, D>(session, operation, &rules);
    // Check the input first, so that a mistake in it does not create a ledger.
    let intent = operation.clone().intent()?;
    let with_time = |envelope| Envelope { timeout_ms: rules.timeout_ms, ..envelope };
    let call = Called { session, command: &command, operation: &operation, rules: &rules };
    if flags.dry_run {
        let ledger = session.existing_ledger()?;
        let intent = match &ledger {
            Some(ledger) => choose::<C, D>(&call, ledger, intent)?.intent,
            None => intent,
        };
        return Ok(with_time(preview::<C, D>(session, ledger.as_ref(), &command, &intent, &rules)?));
    }
    if D::LEVEL == DangerLevel::Destructive && confirmed == Confirmed::No {
        return Ok(with_time(unconfirmed::<C, D>(session, &command, &rules)));
    }
    let ledger = &session.ledger(onceward::IfMissing::Create)?;
    let wanted = choose::<C, D>(&call, ledger, intent)?;
    if session.output.called_by == CalledBy::Shell {
        let window_ms = wanted.intent.terms.repeat_window_ms;
        *observed = Some(Observed { ledger: ledger.clone(), answered: None, window_ms });
    }
    let action = wanted.intent.clone();
    let unfinished = |intent: &Intent, attempt, stop| {
        let envelope = Envelope::in_doubt(intent, attempt, stop, &session.surface);
        session.output.answer(&envelope);
        envelope.exit
    };
    let executed = execute::<C, D>(session, ledger, &command, wanted.intent, rules.timeout_ms, &unfinished);
    if let Some(observed) = observed {
        observed.answered = delivered_by(&executed.result).cloned();
    }
    let mut envelope = executed.envelope(session, ledger, &action, wanted.rule);
    if envelope.is_replay() {
        let record = envelope.record.clone();
        let drift = record.and_then(|record| drift::<C, D>(session, &command, &rules, &record));
        envelope.answer.warnings.extend(drift);
    }
    Ok(with_time(envelope))
}

/// What records that the caller has the answer.
pub(crate) struct Observed {
    ledger: Blocking,
    /// The record whose answer it is. An error of the framework's own is none.
    answered: Option<Arc<Record>>,
    window_ms: u64,
}

impl Observed {
    /// The caller has the answer. If that cannot be recorded, a repeat is treated as a retry, and nothing runs twice.
    pub(crate) fn note(self) {
        let Self { ledger, answered, window_ms } = self;
        if let Some(record) = answered {
            let from_ms = record.answer_counts_from_ms(ledger.clock_ms(), window_ms);
            drop(ledger.attempts().delivered(&record, from_ms));
        }
    }
}

/// A call whose operation is put together.
struct Called<'a, C, W: World> {
    session: &'a Session<W>,
    command: &'a Arc<C>,
    operation: &'a Operation,
    rules: &'a Rules,
}

/// The class that the command's own types say.
pub(crate) fn class_of<C: Mutating<D>, D: Danger>() -> Class {
    if C::PROBE.is_some() { C::CLASS.with_probe() } else { C::CLASS }
}

/// The operation with what the command declares: whether it has a probe, and what takes it back.
pub(crate) fn declared<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    operation: Operation,
    rules: &Rules,
) -> Operation {
    let own = C::UNDO.map(|_| stored(session.tool, &session.place).compensation());
    let operation = operation.undo(own.or_else(|| rules.settings.undo.clone()));
    if C::PROBE.is_some() { operation.with_probe() } else { operation }
}

/// Which operation the call is: a retry of an earlier one, or an intended repeat. `intent` is its first occurrence.
fn choose<C: Mutating<D>, D: Danger>(
    call: &Called<'_, C, C::World>,
    ledger: &Blocking,
    intent: Intent,
) -> Result<Wanted, Error> {
    let operation = call.operation;
    if operation.is_identified() {
        return ledger.repeats().identified(intent, RepeatRule::Given);
    }
    match operation.key_policy() {
        KeyPolicy::Strict | KeyPolicy::Keyed => ledger.repeats().identified(intent, RepeatRule::Strict),
        KeyPolicy::Auto => {
            let wanted = ledger.repeats().wanted_by_content(intent.clone())?;
            // Such a command looks before it acts, so it runs whenever there is something to do.
            let converges = wanted.intent.terms.class == Class::Idempotent;
            if converges && wanted.rule == RepeatRule::Retry(State::Done) && is_needed::<C, D>(call) {
                return ledger.repeats().occurrences(&intent)?.next(ledger.keyed(intent));
            }
            Ok(wanted)
        }
    }
}

fn is_needed<C: Mutating<D>, D: Danger>(call: &Called<'_, C, C::World>) -> bool {
    let plan = plan_of::<C, D>(call.session, call.command, call.rules.timeout_ms);
    plan.is_ok_and(|plan| plan.effect() != Effect::WouldNoop)
}

/// How an execution ended.
pub(crate) struct Executed {
    pub(crate) result: Result<Receipt, Error>,
    /// It was stopped before its dispatch.
    stopped: Option<Stop>,
}

impl Executed {
    pub(crate) fn envelope<W: World>(
        &self,
        session: &Session<W>,
        ledger: &Blocking,
        action: &Intent,
        rule: RepeatRule,
    ) -> Envelope {
        let is_replay = self.result.as_ref().is_ok_and(Receipt::replayed);
        let free = is_replay.then(|| ledger.repeats().free_label(action).ok()).flatten();
        let envelope = Envelope::of(&self.result, rule, free.as_deref(), &session.surface, ledger.clock_ms());
        let Some(stop) = self.stopped else { return envelope };
        let stopped = Envelope::stopped(stop);
        let Answer { operation, ran, .. } = envelope.answer;
        Envelope { answer: Answer { operation, ran, ..stopped.answer }, record: envelope.record, ..stopped }
    }
}

/// Executes the operation once. If it is stopped after its dispatch, `unfinished` answers, and the process ends
/// without another write to the ledger: the lock is then released exactly when the work can no longer continue.
pub(crate) fn execute<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    ledger: &Blocking,
    command: &Arc<C>,
    intent: Intent,
    timeout_ms: u64,
    unfinished: &(dyn Fn(&Intent, u32, Stop) -> u8 + Sync),
) -> Executed {
    // Processes that the work starts keep the attempt alive: a child that outlives us may still have its effect.
    let mut call = ledger.call(intent.clone()).inherit(Inherit::Children);
    if C::PROBE.is_some() {
        call = call.probe(|record| std::future::ready(ask::<C, D>(session, command, &record, timeout_ms)));
    }
    drive(&Driven { session, ledger, timeout_ms, unfinished }, call, &intent, |attempt, gate| {
        let command = Arc::clone(command);
        in_world(session, attempt, gate, move |op| command.apply(op).map(Applied::done))
    })
}

/// What an execution needs besides its work.
pub(crate) struct Driven<'a, W: World> {
    pub(crate) session: &'a Session<W>,
    pub(crate) ledger: &'a Blocking,
    pub(crate) timeout_ms: u64,
    /// Answers if the work is stopped after its dispatch.
    pub(crate) unfinished: &'a (dyn Fn(&Intent, u32, Stop) -> u8 + Sync),
}

/// Executes a call of the ledger with this work, within its time limit.
pub(crate) fn drive<W: World, F, T>(
    driven: &Driven<'_, W>,
    call: Call<'_>,
    intent: &Intent,
    work: F,
) -> Executed
where
    F: Fn(Attempt, Arc<DispatchGate>) -> T + Send + Sync,
    T: FnOnce() -> Result<Done, Fault> + Send + 'static,
{
    let Driven { session, ledger, timeout_ms, unfinished } = *driven;
    let stopped = Mutex::new(None);
    let result = ledger.run_call(call, |attempt| {
        let gate = Arc::new(DispatchGate::default());
        let number = attempt.number();
        let work = work(attempt.clone(), Arc::clone(&gate));
        // A ledger that cannot be read now is read again later.
        let is_asked = || ledger.wait_for(attempt.check_cancel_requested()).unwrap_or(false);
        match session.supervisor.supervise_attempt(timeout_ms, &gate, Some(&is_asked), work) {
            Supervised::Finished(Ok(done)) => Ok(done),
            Supervised::Finished(Err(fault)) => Err(fault.into_failure(gate.passed())),
            Supervised::Panicked => {
                let fault = Fault::from(std::io::Error::other("the command panicked"));
                Err(fault.into_failure(gate.passed()))
            }
            Supervised::StoppedBefore(stop) => {
                // The ledger says what a request to stop means for the next call.
                *lock(&stopped) = Some(stop).filter(|stop| *stop != Stop::Requested);
                let reason = format!("{stop} before anything was sent");
                Err(Failure::no_effect(Evidence::NotStarted, reason).stopped())
            }
            Supervised::StoppedAfter(stop) => {
                std::process::exit(i32::from(unfinished(intent, number, stop)));
            }
        }
    });
    Executed { result, stopped: lock(&stopped).take() }
}

/// What runs on the thread that can be given up: `act`, in a world that is open for changes.
pub(crate) fn in_world<W: World>(
    session: &Session<W>,
    attempt: Attempt,
    gate: Arc<DispatchGate>,
    act: impl FnOnce(Op<'_, W>) -> Result<Done, Fault> + Send + 'static,
) -> impl FnOnce() -> Result<Done, Fault> + Send + 'static {
    let (options, shared) = (session.options.clone(), Arc::clone(&session.world));
    move || {
        let kept = lock(&shared).take();
        let mut world = match kept {
            Some(world) => world,
            None => W::open(&options)?,
        };
        let applied = act(Op::new(&mut world, attempt, gate));
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
    let asked = session.supervisor.supervise(timeout_ms, &DispatchGate::default(), move || {
        let world = C::World::open_read_only(&options)?;
        probe(&command, &world, &Doubt::of(&record)).map(crate::probe::Probed::answer)
    });
    match asked {
        Supervised::Finished(Ok(answer)) => answer,
        Supervised::Finished(Err(fault)) => ProbeAnswer::CannotTell(fault.message().to_owned()),
        Supervised::Panicked => ProbeAnswer::CannotTell("the probe panicked".to_owned()),
        Supervised::StoppedBefore(stop) | Supervised::StoppedAfter(stop) => {
            ProbeAnswer::CannotTell(format!("the probe {stop}"))
        }
    }
}

/// Shows what the call would do. Writes nothing and creates no ledger.
pub(crate) fn preview<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    ledger: Option<&Blocking>,
    command: &Arc<C>,
    intent: &Intent,
    rules: &Rules,
) -> Result<Envelope, Error> {
    let found = match ledger {
        Some(ledger) => ledger.plan(intent)?,
        None => {
            let decision = onceward::decide::begin(None, intent, onceward::Liveness::Gone, 0);
            onceward::Plan { decision, record: None }
        }
    };
    match plan_of::<C, D>(session, command, rules.timeout_ms) {
        Ok(plan) => {
            let preview = Preview::of(&found, intent, plan.effect());
            let mut envelope = Envelope::preview(&preview, Some(&plan), &session.surface);
            if let (Decision::Replay, Some(record)) = (&found.decision, &found.record) {
                envelope.answer.warnings.extend(drift_of(&plan, record));
            }
            Ok(envelope)
        }
        // The real call would ask the ledger first, and then fail as its plan does.
        Err(failed) => {
            let preview = Preview::of(&found, intent, Effect::Noop);
            let runs = matches!(found.decision, Decision::Start { .. } | Decision::Probe);
            Ok(if runs { failed.about(&found) } else { Envelope::preview(&preview, None, &session.surface) })
        }
    }
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
    let failed = match session.supervisor.supervise(timeout_ms, &DispatchGate::default(), work) {
        Supervised::Finished(Ok(value)) => return Ok(value),
        Supervised::Finished(Err(fault)) => Envelope::fault(&fault),
        Supervised::Panicked => Envelope::fault(&Fault::no_effect("the command panicked")),
        Supervised::StoppedBefore(stop) | Supervised::StoppedAfter(stop) => Envelope::stopped(stop),
    };
    Err(Box::new(failed))
}

/// Nothing is destroyed without confirmation: the answer shows what would be, and how to confirm.
fn unconfirmed<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: &Arc<C>,
    rules: &Rules,
) -> Envelope {
    let changes = match plan_of::<C, D>(session, command, rules.timeout_ms) {
        Ok(plan) => plan.changes().to_vec(),
        Err(failed) => return *failed,
    };
    let kind = FaultKind::InvalidInput;
    let message = format!("{} is destructive and was not confirmed; nothing was done", C::NAME);
    let (next, fix_command) = match session.output.called_by {
        CalledBy::Shell => (
            "check the changes, then add --confirm to do it",
            Some(typed_with(session.tool, C::NAME, "--confirm")),
        ),
        CalledBy::Mcp => ("check the changes, then make the same call with confirm: true", None),
    };
    let error =
        ErrorView { next: Some(next.to_owned()), fix_command, ..ErrorView::new(kind.as_str(), message) };
    let refused = Envelope::error(error, Ran::No, kind.exit());
    Envelope { answer: Answer { changes: Some(changes), ..refused.answer }, ..refused }
}

/// The command line as it was typed, with a flag after the command's name: at its end a `--` may make it an argument.
fn typed_with(tool: &str, command: &str, flag: &str) -> String {
    let mut words: Vec<String> = std::env::args().skip(1).map(|word| quoted(&word)).collect();
    let place = words.iter().position(|word| word == command).map_or(words.len(), |place| place + 1);
    words.insert(place, flag.to_owned());
    format!("{tool} {}", words.join(" "))
}

/// What running a replayed command now would change.
fn drift<C: Mutating<D>, D: Danger>(
    session: &Session<C::World>,
    command: &Arc<C>,
    rules: &Rules,
    record: &Record,
) -> Option<String> {
    let plan = plan_of::<C, D>(session, command, rules.timeout_ms).ok()?;
    drift_of(&plan, record)
}

/// A replayed answer may describe a state that is gone. A command that creates something new each time always plans to,
/// so for such a one that says nothing.
fn drift_of(plan: &Plan, record: &Record) -> Option<String> {
    let original = record.outcome.as_ref().and_then(|outcome| outcome.effect);
    let creates_again = (original, plan.effect()) == (Some(Effect::Created), Effect::WouldCreate);
    if plan.effect() == Effect::WouldNoop || (creates_again && record.detail.class != Class::Idempotent) {
        return None;
    }
    let changes = plan.changes().join(", ");
    Some(format!("the answer is from then, and things may have changed since: running it now {changes}"))
}
