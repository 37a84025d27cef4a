//! What the end of a command proves about its effect. Without proof, the operation is in doubt.

use std::ffi::OsString;

use onceward::{
    Dispatched, Done, Doubt, Effect, Evidence, ExitRule, Failure, Policy, Settings, Told, Witness, Witnessed,
    span_in_words,
};
use serde::Deserialize;

use super::child::{Finished, Stopped};
use super::lookup::{self, Unstartable, basename};
use super::recording::{self, Recording};

/// What decides whether an exit code means "no effect".
pub(super) struct Judge<'a> {
    policy: &'a Policy,
    settings: &'a Settings,
    program: String,
    arguments: Vec<&'a str>,
    /// The built-in table is about this program.
    is_known: bool,
    /// The exit code with which the shell would report that it cannot start its one command, determined before the
    /// start.
    shell_gap: Option<i32>,
    /// Whether the command takes an operation back.
    takes_back: bool,
}

/// What an exit proves, and why.
enum Proof {
    NoEffect(Evidence, String),
    InDoubt(Doubt, String),
}

impl<'a> Judge<'a> {
    /// Inspects the command before it runs, because it may change what is there.
    pub(super) fn new(policy: &'a Policy, settings: &'a Settings, command: &'a [OsString]) -> Self {
        let program = command.first().map(|program| basename(program)).unwrap_or_default();
        let arguments: Vec<&str> = command.iter().skip(1).filter_map(|word| word.to_str()).collect();
        let shell_gap = lookup::shell_gap(&program, &arguments);
        let is_known = command.first().is_some_and(|program| lookup::is_of_the_system(program));
        Self { policy, settings, program, arguments, is_known, shell_gap, takes_back: false }
    }

    /// The same for a command that takes an operation back. One that changes nothing has not done that.
    pub(super) fn of_compensation(self) -> Self {
        Self { takes_back: true, ..self }
    }

    /// What the end of the command says about its effect. The witness is what the program was given.
    pub(super) fn ending(
        &self,
        finished: Finished,
        sent: Dispatched,
        witness: Option<&Witness>,
    ) -> Result<Done, Failure> {
        match finished {
            // Starting it again immediately would fail in the same way.
            Finished::NotStarted(Unstartable { reason, exit_code }) => {
                let failure = Failure::no_effect(Evidence::NotStarted, reason);
                Err(failure.stopped().with(recording::exit_data(exit_code), None))
            }
            Finished::Ended { code, signal, stopped: Some(stopped), output } => {
                Err(self.stopped(stopped, code, signal, output))
            }
            Finished::Ended { code: Some(0), stopped: None, output, .. } => {
                let effect = match self.denial(&output, witness) {
                    Some(Denial::Proof(proof)) => return Err(self.failed(0, proof, output, witness)),
                    Some(Denial::Unchanged) => Effect::Noop,
                    None => output.reported_effect().unwrap_or(self.settings.effect),
                };
                let (data, body) = output.into_parts(Some(0), &self.settings.terms.redact);
                let done = match data {
                    Some(data) => sent.done_with_json(effect, data),
                    None => sent.done_without_result(effect),
                };
                Ok(match body {
                    Some(body) => done.body(body),
                    None => done,
                })
            }
            Finished::Ended { code: Some(code), stopped: None, output, .. } => {
                let proof = self.proof(code, &output, witness);
                Err(self.failed(code, proof, output, witness))
            }
            Finished::Ended { code: None, signal, stopped: None, output } => {
                let (data, body) = output.into_parts(None, &self.settings.terms.redact);
                let signal = signal.as_deref().unwrap_or("a signal");
                Err(Failure::in_doubt(format!("the command was killed by {signal}")).with(data, body))
            }
        }
    }

    fn failed(&self, code: i32, proof: Proof, mut output: Recording, witness: Option<&Witness>) -> Failure {
        let own = Signature::read(&output).filter(|said| said.is_of(witness).is_some());
        let said = own.and_then(|said| said.error);
        let is_hopeless = said.is_some_and(|error| error.retryable == Some(false));
        if is_hopeless {
            output.is_hopeless();
        }
        let (data, body) = output.into_parts(Some(code), &self.settings.terms.redact);
        match proof {
            Proof::NoEffect(evidence, reason) if is_hopeless => {
                Failure::no_effect(evidence, reason).stopped()
            }
            Proof::NoEffect(evidence, reason) => Failure::no_effect(evidence, reason),
            Proof::InDoubt(Doubt::Answered, reason) => Failure::answered(reason),
            Proof::InDoubt(Doubt::Lost, reason) => Failure::in_doubt(reason),
        }
        .with(data, body)
    }

    /// What a command says against its own exit code 0, in the contract's envelope.
    fn denial(&self, output: &Recording, witness: Option<&Witness>) -> Option<Denial> {
        let doubt = |why| Some(Denial::Proof(Proof::InDoubt(Doubt::Lost, why)));
        match self.told(output, witness)? {
            (Told::NoEffect(said), Some(own)) => {
                Some(Denial::Proof(Proof::NoEffect(Evidence::OwnWord(own), said)))
            }
            (Told::InDoubt(said), Some(_)) => doubt(said),
            (Told::Unchanged(_), Some(_)) => Some(Denial::Unchanged),
            // The output of curl was written by a server.
            (_, None) if self.exit_rule().is_some() => None,
            // It is the answer of one of the commands that it ran.
            (Told::NoEffect(said), None) => doubt(format!("{said}, but its exit code is 0")),
            (Told::InDoubt(said), None) => doubt(said),
            (Told::Unchanged(_), None) => None,
        }
    }

    /// What an envelope on stdout says against a success, and whether the program that was started says it.
    fn told(&self, output: &Recording, witness: Option<&Witness>) -> Option<(Told, Option<Witnessed>)> {
        let told = Told::by_envelope(&output.whole_stdout()?)?;
        let told = if self.takes_back { told.of_compensation() } else { told };
        let of_command = |said| format!("the command {said}");
        let told = match told {
            Told::Unchanged(said) => Told::Unchanged(of_command(said)),
            Told::NoEffect(said) => Told::NoEffect(of_command(said)),
            Told::InDoubt(said) => Told::InDoubt(of_command(said)),
        };
        Some((told, Signature::read(output).and_then(|signature| signature.is_of(witness))))
    }

    /// The exit codes of the program: the policy's own, or those of a program of the system.
    fn exit_rule(&self) -> Option<&ExitRule> {
        let counts = self.is_known || self.policy.declares_exits(&self.program);
        self.policy.exit_rule(&self.program).filter(|_| counts)
    }

    /// A command that was stopped after its dispatch may have acted, whatever it ended with.
    fn stopped(
        &self,
        stopped: Stopped,
        code: Option<i32>,
        signal: Option<String>,
        output: Recording,
    ) -> Failure {
        let (data, body) = output.into_parts(code, &self.settings.terms.redact);
        let end = match (code, signal) {
            (Some(code), _) => format!("and ended with exit code {code}"),
            (None, Some(signal)) => format!("and was killed by {signal}"),
            (None, None) => "and was killed".to_owned(),
        };
        match stopped {
            Stopped::TimedOut { after_ms } => {
                let limit = span_in_words(i64::try_from(after_ms).unwrap_or(i64::MAX));
                Failure::timed_out(format!("the command was stopped after its time limit of {limit}"))
            }
            Stopped::Cancelled => Failure::in_doubt(format!("the command was asked to stop {end}")).stopped(),
            Stopped::Signal(name) => {
                Failure::in_doubt(format!("the command was interrupted by {name} {end}")).stopped()
            }
        }
        .with(data, body)
    }

    fn proof(&self, code: i32, output: &Recording, witness: Option<&Witness>) -> Proof {
        let program = &self.program;
        if self.settings.doubt_exit.contains(&code) {
            let reason = format!("the command ended with exit code {code}, declared to be in doubt");
            return Proof::InDoubt(Doubt::Lost, reason);
        }
        if self.settings.no_effect_exits.contains(&code) {
            let reason = format!("the command failed with exit code {code}, declared to have no effect");
            return Proof::NoEffect(
                Evidence::declared(format!("no_effect_exits or --fail-exit {code}")),
                reason,
            );
        }
        let told = self.told(output, witness);
        match told.clone() {
            Some((Told::NoEffect(said), Some(own))) => return Proof::NoEffect(Evidence::OwnWord(own), said),
            Some((Told::InDoubt(said), Some(_))) => return Proof::InDoubt(Doubt::Lost, said),
            // Its exit code denies that it succeeded.
            Some((Told::Unchanged(_), _) | (_, None)) | None => {}
        }
        if let Some(rule) = self.exit_rule() {
            let configured = lookup::configured(program, &self.arguments);
            let known = self.arguments.iter().copied().chain(configured.iter().map(String::as_str));
            return if rule.proves_no_effect(code, &known.collect::<Vec<_>>()) {
                Proof::NoEffect(
                    Evidence::declared(format!("the table of exit codes: {program} {code}")),
                    format!("{program} failed with exit code {code}, which means that it did nothing"),
                )
            } else {
                Proof::InDoubt(Doubt::Answered, format!("{program} ended with exit code {code}"))
            };
        }
        if self.shell_gap == Some(code) {
            let reason = format!("the shell could not start the command (exit code {code})");
            return Proof::NoEffect(Evidence::NotStarted, reason);
        }
        match told {
            Some((Told::NoEffect(said), _)) => {
                Proof::InDoubt(Doubt::Answered, format!("{said}, but {UNPROVEN}"))
            }
            Some((Told::InDoubt(said), _)) => Proof::InDoubt(Doubt::Lost, said),
            Some((Told::Unchanged(_), _)) | None => {
                Proof::InDoubt(Doubt::Answered, format!("the command ended with exit code {code}"))
            }
        }
    }
}

/// Why an envelope without the witness does not count.
const UNPROVEN: &str = "nothing shows that this is about all that the command did";

/// What an envelope says against the exit code 0.
enum Denial {
    /// It had no effect, or it is in doubt.
    Proof(Proof),
    /// It succeeded and changed nothing.
    Unchanged,
}

/// The members of an envelope that say whose it is, and whether a retry makes sense.
#[derive(Deserialize)]
struct Signature {
    error: Option<Refusal>,
    witness: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    retryable: Option<bool>,
}

impl Signature {
    /// Reads one envelope, or the summary with which a batch ends.
    fn read(output: &Recording) -> Option<Self> {
        let stdout = output.whole_stdout()?;
        let last = || stdout.trim_ascii_end().rsplit(|byte| *byte == b'\n').next();
        serde_json::from_slice(&stdout).ok().or_else(|| serde_json::from_slice(last()?).ok())
    }

    /// Whether the program that was started speaks, and not one that it ran.
    fn is_of(&self, witness: Option<&Witness>) -> Option<Witnessed> {
        witness?.confirms(self.witness.as_deref())
    }
}
