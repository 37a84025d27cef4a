//! What a caller should do next, defined once for all surfaces.

use serde::Serialize;
use serde_json::{Value, json};

use crate::facts::{Ran, RepeatRule, Verdict};
use crate::key::OperationId;
use crate::record::{Class, Record};
use crate::text;

/// What a caller should do after an answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Find out whether it happened, then record the finding.
    Settle(OperationId),
    /// Record the outcome that this call knows but could not write.
    Record(OperationId, Verdict),
    /// Have the ledger ask the stored probe.
    Probe(OperationId),
    /// Wait for the call that is executing it.
    Wait(OperationId),
    /// Release the operation now, or cancel it, if its time is not to be waited for.
    Release(OperationId),
    /// Show the record.
    Show(OperationId),
    /// Repeat the same call, which is safe.
    CallAgain,
    /// Run the action again on purpose, as another occurrence.
    Repeat,
    /// Use another key, because this one belongs to a different action.
    OtherKey,
    /// Allow more attempts than this limit.
    RaiseAttempts {
        /// The current limit.
        limit: u32,
    },
    /// Finish an undo that has begun.
    Undo(OperationId),
    /// Leave it: its scope was stopped on purpose, until someone resumes it.
    Resume {
        /// The stopped scope.
        scope: String,
    },
    /// Check the ledger.
    CheckLedger,
}

impl NextStep {
    /// How to resolve a doubt, depending on the operation's class. If a call that ran nothing was refused, repeating
    /// it is refused as well: its downstream key or its budget is used up, or it has no probe.
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

/// How a surface presents a next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Surface {
    /// A command-line tool: its name, and the options that select the same ledger.
    Shell {
        /// The program.
        program: String,
        /// Options for every command, quoted for a shell.
        options: Vec<String>,
        /// For a program other than `once`: the command line with which `once` finds the same ledger. `None` if it
        /// cannot be shown.
        once: Option<String>,
    },
    /// Python code with a variable `ledger`.
    Python,
    /// The ledger API of a server.
    Http,
    /// Tools of an MCP server, for an agent that may settle a doubt without a person.
    McpAgent,
    /// Tools of an MCP server, if a person must settle a doubt with a command-line tool.
    McpPerson {
        /// The person's program, with the options that select the same ledger.
        program: String,
    },
}

/// A next step as a surface presents it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guidance {
    /// What to do, in one sentence.
    pub say: String,
    /// The command to run. It never settles a doubt.
    pub command: Option<String>,
    /// One command for each possible finding.
    pub options: Vec<Choice>,
}

/// The command for one finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Choice {
    /// The finding.
    #[serde(rename = "if")]
    pub found: &'static str,
    /// The command to run for it.
    pub command: String,
}

impl Surface {
    /// A shell tool with this name, without options.
    pub fn shell(program: impl Into<String>) -> Self {
        Self::Shell { program: program.into(), options: Vec::new(), once: None }
    }

    /// Presents a next step on this surface.
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
            NextStep::Release(id) => self.release_or_cancel(id),
            NextStep::Show(id) => paste_or_say(
                ("see what is recorded", self.command("show", id)),
                "ask a person to look at what is recorded",
            ),
            NextStep::CallAgain => say("make the same call again; it is safe"),
            NextStep::Repeat => say(match self {
                Self::Shell { .. } => "to do it again on purpose, add --occurrence 2 or use another key",
                Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => {
                    "to do it again on purpose, use another key or occurrence"
                }
            }),
            NextStep::OtherKey => say("use another key for this action"),
            NextStep::RaiseAttempts { limit } => say(match self {
                Self::Shell { .. } if self.is_other_tool() => {
                    format!("to allow more, raise `attempts` in the policy above {limit}, or use another key")
                }
                Self::Shell { .. } => format!("to allow more, raise --attempts above {limit}"),
                Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => {
                    format!("to allow more, raise the limit of attempts above {limit}")
                }
            }),
            NextStep::Undo(id) => {
                paste_or_say(("finish the undo", self.undo(id)), "ask a person to finish the undo")
            }
            NextStep::Resume { scope } => self.resume(scope),
            NextStep::CheckLedger => match self {
                Self::Shell { program, .. } if program == "once" => Guidance {
                    say: "make the ledger reachable, then make the same call again".to_owned(),
                    command: Some(self.line("doctor")),
                    options: Vec::new(),
                },
                Self::Shell { .. } | Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => {
                    say("make the ledger reachable, then make the same call again")
                }
            },
        }
    }

    /// A stopped scope: a person or the program that stopped it may resume it, an agent may not.
    fn resume(&self, scope: &str) -> Guidance {
        const SAY: &str = "do not repeat it: the scope was stopped on purpose. To let it continue";
        let command = match self {
            Self::Shell { .. } => match self.once(&format!("resume {}", text::shell_word(scope))) {
                Some(command) => command,
                None => return say(format!("{SAY}, use `once resume` with the URL of this ledger")),
            },
            Self::Python => format!("ledger.resume({})", Value::from(scope)),
            Self::Http => format!("POST /v1/resume {}", json!({ "scope": scope })),
            Self::McpAgent | Self::McpPerson { .. } => {
                return say(
                    "do not repeat it: the scope was stopped on purpose. Tell the user; only a person resumes it",
                );
            }
        };
        Guidance { say: SAY.to_owned(), command: Some(command), options: Vec::new() }
    }

    /// Whether it is a tool built with the framework, which has fewer commands and flags than `once`.
    fn is_other_tool(&self) -> bool {
        matches!(self, Self::Shell { program, .. } if program != "once")
    }

    /// How to repeat the same action on purpose, for a call that this rule distinguished from a repeat. `free` is a
    /// label that no call has used.
    #[must_use]
    pub fn repeat_hint(&self, rule: RepeatRule, free: Option<&str>) -> String {
        let hint = match (rule, self) {
            (RepeatRule::First | RepeatRule::Retry(_) | RepeatRule::Repeat, _) => {
                "This call counts as a retry because the earlier answer was not delivered; to run it again on purpose, \
                 make the same call once more"
            }
            (RepeatRule::Given | RepeatRule::Strict, Self::Shell { .. }) => {
                let label = free.map_or_else(|| "LABEL".to_owned(), text::shell_word);
                return format!("To run it again on purpose, add --occurrence {label}");
            }
            (RepeatRule::Given | RepeatRule::Strict, Self::Python) => {
                "To run it again on purpose, use another .occurrence(…)"
            }
            (RepeatRule::Given | RepeatRule::Strict, Self::Http) => {
                "To run it again on purpose, send another key or occurrence"
            }
            (RepeatRule::Given | RepeatRule::Strict, Self::McpAgent | Self::McpPerson { .. }) => {
                "To run it again on purpose, use another occurrence"
            }
        };
        hint.to_owned()
    }

    fn settle_in_words(&self) -> String {
        match self {
            Self::Http => "check first whether it happened, then record it".to_owned(),
            Self::Shell { .. } | Self::Python | Self::McpAgent => {
                "check first whether it happened, then record what you found".to_owned()
            }
            Self::McpPerson { .. } => {
                "check first whether it happened; do not repeat it. A person must record the finding"
                    .to_owned()
            }
        }
    }

    /// How to start a held operation now, or to cancel it.
    fn release_or_cancel(&self, id: &OperationId) -> Guidance {
        let (release, cancel) = match self {
            // A tool on the framework shares the ledger, but only `once` releases.
            Self::Shell { .. } => {
                let pair = self.once(&format!("release {id}")).zip(self.once(&format!("cancel {id}")));
                let Some(pair) = pair else {
                    return say("wait, or use `once release` or `once cancel` with the URL of this ledger");
                };
                pair
            }
            // An agent must not approve its own call, so it does not get the command.
            Self::McpAgent | Self::McpPerson { .. } => {
                return say(format!(
                    "do not repeat it before its time or its release. After that, make the same call again: it gives \
                     the result, and sends it if that was not done yet. A person can release or cancel it ({id} in \
                     `once held`)"
                ));
            }
            Self::Python => (format!("ledger.release(\"{id}\")"), format!("ledger.cancel(\"{id}\")")),
            Self::Http => {
                (format!("POST /v1/operations/{id}/release"), format!("POST /v1/operations/{id}/cancel"))
            }
        };
        Guidance {
            say: "wait, release it, or cancel it".to_owned(),
            command: None,
            options: vec![
                Choice { found: "it should be sent now", command: release },
                Choice { found: "it should not be sent", command: cancel },
            ],
        }
    }

    /// What an undo says about an operation that is held back.
    #[must_use]
    pub fn held_in_undo(&self, id: &OperationId) -> String {
        let cancel = self.spell(&NextStep::Release(id.clone())).options.pop();
        let cancel = cancel.map(|choice| format!(" with `{}`", choice.command)).unwrap_or_default();
        format!("it is held back and may still start: cancel it{cancel}, or stop the scope")
    }

    /// A command line of `once` on the same ledger.
    fn once(&self, rest: &str) -> Option<String> {
        match self {
            Self::Shell { program, once, .. } if program != "once" => {
                once.as_ref().map(|once| format!("{once} {rest}"))
            }
            Self::Shell { .. } | Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => {
                Some(self.line(rest))
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
            Self::Http => {
                format!("POST /v1/operations/{id}/settle {{\"verdict\":\"{verdict}\",\"evidence\":\"…\"}}")
            }
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
            // Repeating the call asks the probe.
            Self::Shell { .. } => None,
            Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => None,
        }
    }

    fn undo(&self, id: &OperationId) -> Option<String> {
        match self {
            Self::Shell { .. } => Some(self.line(&format!("undo {id}"))),
            Self::Python => Some(format!("ledger.compensate(\"{id}\")")),
            Self::Http | Self::McpAgent | Self::McpPerson { .. } => None,
        }
    }

    /// A command that only reads or waits.
    fn command(&self, verb: &str, id: &OperationId) -> Option<String> {
        match self {
            Self::Shell { .. } => Some(self.line(&format!("{verb} {id}"))),
            Self::Python if verb == "wait" => Some(format!("ledger.wait(\"{id}\")")),
            Self::Python => Some(format!("ledger.show(\"{id}\")")),
            Self::Http if verb == "wait" => Some(format!("GET /v1/operations/{id}/wait")),
            Self::Http => Some(format!("GET /v1/operations/{id}")),
            Self::McpAgent => Some(format!("once_status {{\"operation\":\"{id}\"}}")),
            Self::McpPerson { .. } => None,
        }
    }

    /// A command line for this surface's tool.
    pub(crate) fn line(&self, rest: &str) -> String {
        match self {
            Self::Shell { program, options, .. } if !options.is_empty() => {
                format!("{program} {} {rest}", options.join(" "))
            }
            Self::Shell { program, .. } | Self::McpPerson { program } => format!("{program} {rest}"),
            Self::Python | Self::Http | Self::McpAgent => rest.to_owned(),
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
