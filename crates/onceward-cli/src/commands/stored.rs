//! Commands that are stored with an operation. They are data, because anyone with write access to the ledger could
//! have written them. A stored command is run only if the caller's own flags, or a policy that the caller trusts,
//! contain the same text.

use onceward::{CompensationKind, Record, Settings, text};

use super::ask::Question;
use crate::context::{Context, quoted};
use crate::exit::CommandError;

/// One of an operation's stored commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Checks whether it happened.
    Probe,
    /// Checks a reported success.
    Check,
    /// Takes it back.
    Undo,
}

impl Which {
    fn noun(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Check => "check",
            Self::Undo => "compensation",
        }
    }

    fn stored(self, record: &Record) -> Option<&str> {
        match self {
            Self::Probe => record.detail.probe.as_deref(),
            Self::Check => record.detail.verify.as_deref(),
            Self::Undo => record.detail.undo.as_ref().map(|undo| undo.text.as_str()),
        }
    }

    /// The command in the caller's own policy, and the exit codes that mean "no".
    fn trusted(self, settings: Settings) -> Option<Question> {
        match self {
            Self::Probe => settings.probe.map(|command| Question { command, no: settings.probe_no }),
            Self::Check => settings.verify.map(|command| Question { command, no: Vec::new() }),
            Self::Undo => {
                let undo = settings.undo.filter(|undo| undo.runs == CompensationKind::Command)?;
                Some(Question { command: undo.text, no: Vec::new() })
            }
        }
    }

    /// The command line that runs this command on the caller's own authority.
    fn paste(self, context: &Context, record: &Record, command: &str) -> String {
        let program = context.program();
        let (id, command) = (&record.id, quoted(command));
        match self {
            Self::Probe => {
                let codes: Vec<String> = record.detail.probe_no.iter().map(i32::to_string).collect();
                let no =
                    if codes.is_empty() { String::new() } else { format!(" --probe-no {}", codes.join(",")) };
                format!("{program} settle {id} --probe {command}{no}")
            }
            Self::Check => format!("{program} verify {id} --check {command}"),
            Self::Undo => format!("{program} undo {id} --undo {command}"),
        }
    }
}

/// The command that may be run for an operation: the caller's own, or the one of a trusted policy if it is also the
/// stored one.
pub(super) fn question(
    context: &Context,
    record: &Record,
    which: Which,
    own: Option<Question>,
) -> Result<Question, CommandError> {
    if let Some(own) = own {
        return Ok(own);
    }
    let trusted = which.trusted(context.policy.settings(&record.name)?);
    match (trusted, which.stored(record)) {
        (Some(trusted), None) => Ok(trusted),
        (Some(trusted), Some(stored)) if trusted.command == stored => Ok(trusted),
        (Some(trusted), Some(stored)) => Err(another(context, record, which, &trusted.command, stored)),
        (None, Some(stored)) => Err(not_trusted(context, record, which, stored)),
        (None, None) => Err(CommandError::invalid(match which {
            Which::Probe => {
                "this operation has no probe; check whether it happened, then give --as done or --as failed, or \
                 your own probe with --probe COMMAND"
            }
            Which::Check => "this operation has no check; give --check COMMAND",
            Which::Undo => "nothing is registered that takes this operation back; give --undo COMMAND",
        })),
    }
}

/// The stored command, for a caller who says that the stored commands may run. One that cannot be reviewed may not.
pub(super) fn acknowledged(record: &Record, which: Which) -> Result<Option<Question>, CommandError> {
    let Some(stored) = which.stored(record) else { return Ok(None) };
    if onceward::sealed::key_of(stored).is_some() || text::one_line(stored) != stored {
        let noun = which.noun();
        return Err(CommandError::invalid(format!(
            "the {noun} stored with this operation cannot be reviewed: it is sealed or contains hidden characters"
        )));
    }
    let no = if which == Which::Probe { record.detail.probe_no.clone() } else { Vec::new() };
    Ok(Some(Question { command: stored.to_owned(), no }))
}

/// The stored command is not one of the caller's.
fn not_trusted(context: &Context, record: &Record, which: Which, stored: &str) -> CommandError {
    let noun = which.noun();
    let shown = text::one_line(stored);
    // A command with hidden characters cannot be reviewed, so it is not offered for pasting.
    let next = if shown == stored {
        format!("read it, and if you want to run it: {}", which.paste(context, record, stored))
    } else {
        "it contains hidden characters, which are escaped here; write your own command instead".to_owned()
    };
    CommandError::invalid(format!(
        "the {noun} stored with this operation was not run, because your policy does not have it and what a ledger \
         stores is not trusted: `{shown}`; {next}"
    ))
}

/// The caller's policy has a different command from the stored one.
fn another(context: &Context, record: &Record, which: Which, trusted: &str, stored: &str) -> CommandError {
    let noun = which.noun();
    CommandError::invalid(format!(
        "the {noun} stored with this operation, `{}`, is not the one of your policy, `{}`, so neither was run; to run \
         your own: {}",
        text::one_line(stored),
        text::one_line(trusted),
        which.paste(context, record, trusted)
    ))
}
