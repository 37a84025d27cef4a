//! What a caller does next, said once for every surface.

use serde::Serialize;

use crate::error::Ran;
use crate::key::OperationId;
use crate::ledger::RepeatRule;
use crate::record::{Class, Record};
use crate::transition::Verdict;

/// What takes a caller on after an answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Find out whether it happened, then record the finding.
    Settle(OperationId),
    /// Record what this call knows and could not write.
    Record(OperationId, Verdict),
    /// Let the ledger ask the stored probe.
    Probe(OperationId),
    /// Wait for the call that runs it.
    Wait(OperationId),
    /// Read what is recorded about it.
    Show(OperationId),
    /// Make the same call again: it is safe.
    CallAgain,
    /// Repeat the action on purpose, as another occurrence.
    Repeat,
    /// Use another key: this one names a different action.
    OtherKey,
    /// Allow more attempts than this limit.
    RaiseAttempts {
        /// The limit that is reached.
        limit: u32,
    },
    /// Look at the ledger.
    CheckLedger,
}

impl NextStep {
    /// The way out of a doubt, as the operation's class allows it. Where a call that ran nothing was refused, the same
    /// call is refused again: its downstream key or its budget is used up, or it has no probe.
    pub(crate) fn out_of_doubt(record: &Record, ran: Ran) -> Self {
        let settle = || Self::Settle(record.id.clone());
        if record.spent_attempts() >= record.detail.max_attempts {
            return settle();
        }
        match record.detail.class {
            Class::Probed if record.detail.probe.is_some() => Self::Probe(record.id.clone()),
            Class::Read | Class::Idempotent | Class::Keyed | Class::Probed if ran == Ran::Yes => {
                Self::CallAgain
            }
            Class::Read | Class::Idempotent | Class::Keyed | Class::Probed | Class::Once => settle(),
        }
    }
}

/// How a surface spells a next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Surface {
    /// A command-line tool: its name, and the options that make it find the same ledger.
    Shell {
        /// The program.
        program: String,
        /// Options that belong to every command, quoted for a shell.
        options: Vec<String>,
    },
    /// Python code that has a `ledger`.
    Python,
    /// Tools of an MCP server, for an agent that may settle a doubt by itself.
    McpAgent,
    /// The same, where a person must settle it with a command-line tool.
    McpPerson {
        /// The person's program, with the options that make it find the same ledger.
        program: String,
    },
}

/// A next step in the words of a surface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guidance {
    /// What to do, in one sentence.
    pub say: String,
    /// The one thing to paste. It never decides a doubt.
    pub command: Option<String>,
    /// One thing to paste for each finding.
    pub options: Vec<Choice>,
}

/// What to paste if something is found to be so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// What was found.
    #[serde(rename = "if")]
    pub found: &'static str,
    /// What to run then.
    pub command: String,
}

impl Surface {
    /// The shell tool of that name, without options.
    pub fn shell(program: impl Into<String>) -> Self {
        Self::Shell { program: program.into(), options: Vec::new() }
    }

    /// A next step in the words of this surface.
    #[must_use]
    pub fn spell(&self, step: &NextStep) -> Guidance {
        match step {
            NextStep::Settle(id) => Guidance {
                say: self.settle_in_words(),
                command: None,
                options: [Verdict::Done, Verdict::Failed].map(|verdict| self.choice(id, verdict)).into(),
            },
            NextStep::Record(id, verdict) => Guidance {
                say: "make the ledger writable, then record what is known".to_owned(),
                command: None,
                options: vec![self.choice(id, *verdict)],
            },
            NextStep::Probe(id) => paste_or_say(
                ("ask the probe whether it happened", self.probe(id)),
                "make the same call again; it asks the probe whether it happened",
            ),
            NextStep::Wait(id) if self.is_other_tool() => paste_or_say(
                ("see whether it has ended, then make the same call", self.command("show", id)),
                "wait, then make the same call again; it is safe",
            ),
            NextStep::Wait(id) => paste_or_say(
                ("wait for it, then make the same call", self.command("wait", id)),
                "wait, then make the same call again; it is safe",
            ),
            NextStep::Show(id) => paste_or_say(
                ("see what is recorded", self.command("show", id)),
                "ask a person to look at what is recorded",
            ),
            NextStep::CallAgain => say("make the same call again; it is safe"),
            NextStep::Repeat => say(match self {
                Self::Shell { .. } => "to do it again on purpose, add --occurrence 2 or use another key",
                Self::Python | Self::McpAgent | Self::McpPerson { .. } => {
                    "to do it again on purpose, use another key or occurrence"
                }
            }),
            NextStep::OtherKey => say("use another key for this action"),
            NextStep::RaiseAttempts { limit } => say(match self {
                Self::Shell { .. } if self.is_other_tool() => {
                    format!("to allow more, raise `attempts` in the policy above {limit}, or use another key")
                }
                Self::Shell { .. } => format!("to allow more, raise --attempts above {limit}"),
                Self::Python | Self::McpAgent | Self::McpPerson { .. } => {
                    format!("to allow more, raise the limit of attempts above {limit}")
                }
            }),
            NextStep::CheckLedger => match self {
                Self::Shell { program, .. } if program == "once" => Guidance {
                    say: "make the ledger reachable, then make the same call again".to_owned(),
                    command: Some(self.line("doctor")),
                    options: Vec::new(),
                },
                Self::Shell { .. } | Self::Python | Self::McpAgent | Self::McpPerson { .. } => {
                    say("make the ledger reachable, then make the same call again")
                }
            },
        }
    }

    /// Whether it is a tool of the framework's, which has fewer commands and flags than `once`.
    fn is_other_tool(&self) -> bool {
        matches!(self, Self::Shell { program, .. } if program != "once")
    }

    /// How the same action is repeated on purpose.
    #[must_use]
    pub fn repeat_hint(&self) -> &'static str {
        match self {
            Self::Shell { .. } => "To run it again on purpose, add --occurrence 2",
            Self::Python => "To run it again on purpose, use .occurrence(2)",
            Self::McpAgent | Self::McpPerson { .. } => {
                "To run it again on purpose, make the same call once more"
            }
        }
    }

    /// The same, for a call that this rule told from a repeat.
    #[must_use]
    pub fn repeat_hint_under(&self, rule: RepeatRule) -> &'static str {
        match (rule, self) {
            (RepeatRule::First | RepeatRule::Retry(_) | RepeatRule::Repeat, _) => {
                "This call counts as a retry because the earlier answer was not delivered; to run it again on purpose, \
                 make the same call once more"
            }
            (RepeatRule::Given | RepeatRule::Strict, Self::McpAgent | Self::McpPerson { .. }) => {
                "To run it again on purpose, use another occurrence"
            }
            (RepeatRule::Given | RepeatRule::Strict, Self::Shell { .. } | Self::Python) => self.repeat_hint(),
        }
    }

    fn settle_in_words(&self) -> String {
        match self {
            Self::Shell { .. } | Self::Python | Self::McpAgent => {
                "check first whether it happened, then record what you found".to_owned()
            }
            Self::McpPerson { .. } => {
                "check first whether it happened; do not repeat it. A person records what was found"
                    .to_owned()
            }
        }
    }

    fn choice(&self, id: &OperationId, verdict: Verdict) -> Choice {
        let (found, verdict) = match verdict {
            Verdict::Done => ("it happened", "done"),
            Verdict::Failed => ("it did not", "failed"),
        };
        Choice { found, command: self.settle(id, verdict) }
    }

    fn settle(&self, id: &OperationId, verdict: &str) -> String {
        match self {
            Self::Shell { .. } => self.line(&format!("settle {id} --as {verdict}")),
            Self::Python => format!("ledger.settle(\"{id}\", \"{verdict}\")"),
            Self::McpAgent => {
                format!("once_settle {{\"operation\":\"{id}\",\"verdict\":\"{verdict}\",\"evidence\":\"…\"}}")
            }
            Self::McpPerson { program } => format!("{program} settle {id} --as {verdict}"),
        }
    }

    fn probe(&self, id: &OperationId) -> Option<String> {
        match self {
            Self::Shell { program, .. } if program == "once" => {
                Some(self.line(&format!("settle {id} --probe")))
            }
            // The same call asks the probe.
            Self::Shell { .. } => None,
            Self::Python | Self::McpAgent | Self::McpPerson { .. } => None,
        }
    }

    /// A command that only looks or waits.
    fn command(&self, verb: &str, id: &OperationId) -> Option<String> {
        match self {
            Self::Shell { .. } => Some(self.line(&format!("{verb} {id}"))),
            Self::Python if verb == "wait" => Some(format!("ledger.wait(\"{id}\")")),
            Self::Python => Some(format!("ledger.show(\"{id}\")")),
            Self::McpAgent => Some(format!("once_status {{\"operation\":\"{id}\"}}")),
            Self::McpPerson { .. } => None,
        }
    }

    /// A command of this surface's tool.
    pub(crate) fn line(&self, rest: &str) -> String {
        match self {
            Self::Shell { program, options } if !options.is_empty() => {
                format!("{program} {} {rest}", options.join(" "))
            }
            Self::Shell { program, .. } | Self::McpPerson { program } => format!("{program} {rest}"),
            Self::Python | Self::McpAgent => rest.to_owned(),
        }
    }
}

fn paste_or_say((what, command): (&str, Option<String>), otherwise: &str) -> Guidance {
    match command {
        Some(command) => Guidance { say: what.to_owned(), command: Some(command), options: Vec::new() },
        None => say(otherwise),
    }
}

fn say(what: impl Into<String>) -> Guidance {
    Guidance { say: what.into(), ..Guidance::default() }
}
