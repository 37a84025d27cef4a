//! What the end of a command proves about its effect. Without proof, the operation is in doubt.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use onceward::{Dispatched, Done, Effect, Failure, Policy, Settings, Told, span_in_words};

use super::child::{Finished, Stopped};
use super::lookup::{self, Unstartable};
use super::recording::{self, Recording};

/// Programs that run several commands, one after the other.
const RUNNERS: &[&str] = &[
    "sh", "ash", "bash", "busybox", "csh", "dash", "find", "fish", "gmake", "just", "ksh", "make", "mksh",
    "ninja", "parallel", "ssh", "tcsh", "xargs", "zsh",
];

/// What decides whether an exit code means "no effect".
pub(super) struct Judge<'a> {
    policy: &'a Policy,
    settings: &'a Settings,
    program: String,
    arguments: Vec<&'a str>,
    /// The exit code with which the shell would report that it cannot start its one command, determined before the
    /// start.
    shell_gap: Option<i32>,
    /// Whether the command takes an operation back.
    takes_back: bool,
}

/// What an exit proves, and why.
enum Proof {
    NoEffect(String),
    InDoubt(String),
}

impl<'a> Judge<'a> {
    /// Inspects the command before it runs, because it may change what is there.
    pub(super) fn new(policy: &'a Policy, settings: &'a Settings, command: &'a [OsString]) -> Self {
        let program = command.first().map(|program| basename(program)).unwrap_or_default();
        let arguments: Vec<&str> = command.iter().skip(1).filter_map(|word| word.to_str()).collect();
        let shell_gap = lookup::shell_gap(&program, &arguments);
        Self { policy, settings, program, arguments, shell_gap, takes_back: false }
    }

    /// The same for a command that takes an operation back. One that changes nothing has not done that.
    pub(super) fn of_compensation(self) -> Self {
        Self { takes_back: true, ..self }
    }

    /// What the end of the command says about its effect.
    pub(super) fn ending(&self, finished: Finished, sent: Dispatched) -> Result<Done, Failure> {
        match finished {
            // Starting it again immediately would fail in the same way.
            Finished::NotStarted(Unstartable { reason, exit_code }) => {
                Err(Failure::no_effect(reason).stopped().with(recording::exit_data(exit_code), None))
            }
            Finished::Ended { code, signal, stopped: Some(stopped), output } => {
                Err(self.stopped(stopped, code, signal, output))
            }
            Finished::Ended { code: Some(0), stopped: None, output, .. } => {
                let effect = match self.denial(&output) {
                    Some(Told::NoEffect(why)) => {
                        return Err(self.failed(0, Proof::NoEffect(why), output));
                    }
                    Some(Told::InDoubt(why)) => return Err(self.failed(0, Proof::InDoubt(why), output)),
                    Some(Told::Unchanged(_)) => Effect::Noop,
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
                let proof = self.proof(code, &output);
                Err(self.failed(code, proof, output))
            }
            Finished::Ended { code: None, signal, stopped: None, output } => {
                let (data, body) = output.into_parts(None, &self.settings.terms.redact);
                let signal = signal.as_deref().unwrap_or("a signal");
                Err(Failure::in_doubt(format!("the command was killed by {signal}")).with(data, body))
            }
        }
    }

    fn failed(&self, code: i32, proof: Proof, output: Recording) -> Failure {
        let (data, body) = output.into_parts(Some(code), &self.settings.terms.redact);
        match proof {
            Proof::NoEffect(reason) => Failure::no_effect(reason),
            Proof::InDoubt(reason) => Failure::in_doubt(reason),
        }
        .with(data, body)
    }

    /// What a command says against its own exit code 0, in the contract's envelope.
    fn denial(&self, output: &Recording) -> Option<Told> {
        // `once` prints its own statement. The output of curl was written by a server.
        if self.program != "once" && self.policy.exit_rule(&self.program).is_some() {
            return None;
        }
        let several = self.program != "once" && self.runs_several();
        match self.own_word(output)? {
            // It is the answer of one of the commands.
            Told::NoEffect(said) if several => Some(Told::InDoubt(format!("{said}, but its exit code is 0"))),
            Told::Unchanged(_) if several => None,
            told @ (Told::NoEffect(_) | Told::InDoubt(_) | Told::Unchanged(_)) => Some(told),
        }
    }

    /// A tool that answers in the contract's envelope is trusted.
    fn own_word(&self, output: &Recording) -> Option<Told> {
        let told = Told::by_envelope(&output.whole_stdout()?)?;
        let told = if self.takes_back { told.of_compensation() } else { told };
        let of_command = |said| format!("the command {said}");
        Some(match told {
            Told::Unchanged(said) => Told::Unchanged(of_command(said)),
            Told::NoEffect(said) => Told::NoEffect(of_command(said)),
            Told::InDoubt(said) => Told::InDoubt(of_command(said)),
        })
    }

    /// What a tool says that ended with another exit code.
    fn own_proof(&self, output: &Recording) -> Option<Proof> {
        match self.own_word(output)? {
            Told::NoEffect(said) => Some(Proof::NoEffect(said)),
            Told::InDoubt(said) => Some(Proof::InDoubt(said)),
            // Its exit code denies that it succeeded.
            Told::Unchanged(_) => None,
        }
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

    fn proof(&self, code: i32, output: &Recording) -> Proof {
        let program = &self.program;
        if self.settings.doubt_exit.contains(&code) {
            return Proof::InDoubt(format!(
                "the command ended with exit code {code}, declared to be in doubt"
            ));
        }
        if self.settings.no_effect_exits.contains(&code) {
            return Proof::NoEffect(format!(
                "the command failed with exit code {code}, declared to have no effect"
            ));
        }
        // `once` prints its own statement. The output of curl was written by a server.
        if program == "once"
            && let Some(proof) = self.own_proof(output)
        {
            return proof;
        }
        if let Some(rule) = self.policy.exit_rule(program) {
            let configured = lookup::configured(program, &self.arguments);
            let known = self.arguments.iter().copied().chain(configured.iter().map(String::as_str));
            return if rule.proves_no_effect(code, &known.collect::<Vec<_>>()) {
                Proof::NoEffect(format!(
                    "{program} failed with exit code {code}, which means that it did nothing"
                ))
            } else {
                Proof::InDoubt(format!("{program} ended with exit code {code}"))
            };
        }
        if !self.runs_several()
            && let Some(proof) = self.own_proof(output)
        {
            return proof;
        }
        if self.shell_gap == Some(code) {
            return Proof::NoEffect(format!("the shell could not start the command (exit code {code})"));
        }
        Proof::InDoubt(format!("the command ended with exit code {code}"))
    }

    /// Whether the command may run several others, directly or through `env`, `timeout` and the like. Its output
    /// may then be the answer of only one of them.
    fn runs_several(&self) -> bool {
        let words = std::iter::once(self.program.as_str()).chain(self.arguments.iter().copied());
        words.map(|word| basename(OsStr::new(word))).any(|word| RUNNERS.contains(&word.as_str()))
    }
}

pub(super) fn basename(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}
