//! What the end of a command proves about its effect. What proves nothing leaves it in doubt.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use onceward::answer::span_in_words;
use onceward::{Dispatched, Done, Failure, Policy, Settings};
use serde::Deserialize;

use super::child::{Finished, Stopped};
use super::recording::{self, Recording};

/// What decides whether an exit code means "no effect".
pub(super) struct Judge<'a> {
    pub(super) policy: &'a Policy,
    pub(super) settings: &'a Settings,
    pub(super) command: &'a [OsString],
}

/// Why an exit is taken for what it is.
enum Proof {
    NoEffect(String),
    InDoubt(String),
}

impl Judge<'_> {
    /// What the end of the command says about its effect.
    pub(super) fn ending(&self, finished: Finished, sent: Dispatched) -> Result<Done, Failure> {
        match finished {
            Finished::NotStarted { reason, exit_code } => {
                Err(Failure::no_effect(reason).with(recording::exit_data(exit_code), None))
            }
            Finished::Ended { code, signal, stopped: Some(stopped), output } => {
                Err(self.stopped(stopped, code, signal, output))
            }
            Finished::Ended { code: Some(0), stopped: None, output, .. } => {
                let effect = output.reported_effect().unwrap_or(self.settings.effect);
                let (data, body) = output.into_parts(Some(0));
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
                let (data, body) = output.into_parts(Some(code));
                Err(match proof {
                    Proof::NoEffect(reason) => Failure::no_effect(reason),
                    Proof::InDoubt(reason) => Failure::in_doubt(reason),
                }
                .with(data, body))
            }
            Finished::Ended { code: None, signal, stopped: None, output } => {
                let (data, body) = output.into_parts(None);
                let signal = signal.as_deref().unwrap_or("a signal");
                Err(Failure::in_doubt(format!("the command was killed by {signal}")).with(data, body))
            }
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
        let (data, body) = output.into_parts(code);
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
            Stopped::Cancelled => {
                Failure::in_doubt(format!("the command was asked to stop by `once cancel` {end}")).stopped()
            }
            Stopped::Signal(name) => {
                Failure::in_doubt(format!("the command was interrupted by {name} {end}")).stopped()
            }
        }
        .with(data, body)
    }

    fn proof(&self, code: i32, output: &Recording) -> Proof {
        let program = self.command.first().map(|program| basename(program)).unwrap_or_default();
        if self.settings.no_effect_exits.contains(&code) {
            return Proof::NoEffect(format!(
                "the command failed with exit code {code}, declared to have no effect"
            ));
        }
        if self.settings.doubt_exit.contains(&code) {
            return Proof::InDoubt(format!(
                "the command ended with exit code {code}, declared to be in doubt"
            ));
        }
        let arguments: Vec<&str> = self.command.iter().skip(1).filter_map(|word| word.to_str()).collect();
        if let Some(rule) = self.policy.exit_rule(&program) {
            return if rule.proves_no_effect(code, &arguments) {
                Proof::NoEffect(format!(
                    "{program} failed with exit code {code}, by which it says that it did nothing"
                ))
            } else {
                Proof::InDoubt(format!("{program} ended with exit code {code}"))
            };
        }
        if let Some(proof) = own_word(output) {
            return proof;
        }
        if shell_found_no_command(&program, &arguments, code) {
            return Proof::NoEffect(format!("the shell could not start the command (exit code {code})"));
        }
        Proof::InDoubt(format!("the command ended with exit code {code}"))
    }
}

/// A tool that answers in the contract's envelope is taken at its word.
fn own_word(output: &Recording) -> Option<Proof> {
    #[derive(Deserialize)]
    struct Envelope {
        ok: bool,
        #[expect(dead_code, reason = "an envelope has it; its value does not matter here")]
        effect: String,
        error: Told,
    }
    #[derive(Deserialize)]
    struct Told {
        code: String,
        message: String,
        happened: Option<String>,
    }
    let answer: Envelope = serde_json::from_slice(&output.whole_stdout()?).ok()?;
    if answer.ok {
        return None;
    }
    let Told { code, message, happened } = answer.error;
    let said = format!("the command says {code}: {message}");
    match (happened.as_deref(), code.as_str()) {
        (Some("no"), _) | (None, "INVALID_INPUT" | "KEY_MISSING") => Some(Proof::NoEffect(said)),
        _ => Some(Proof::InDoubt(said)),
    }
}

/// Whether the shell that was started could not start the one command that it was given.
fn shell_found_no_command(program: &str, arguments: &[&str], code: i32) -> bool {
    let is_shell = matches!(program, "sh" | "bash" | "dash" | "zsh" | "ksh");
    let ["-c", script] = arguments else { return false };
    let simple = !script
        .contains(['\n', ';', '&', '|', '`', '$', '(', ')', '{', '}', '<', '>', '!', '=', '\'', '"', '\\']);
    let Some(word) = script.split_whitespace().next().filter(|_| is_shell && simple) else { return false };
    match code {
        127 => !is_found(word),
        126 => word.contains('/') && Path::new(word).exists() && !is_executable(Path::new(word)),
        _ => false,
    }
}

fn is_found(word: &str) -> bool {
    if word.contains('/') {
        return Path::new(word).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(word).exists())
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

pub(super) fn basename(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}
