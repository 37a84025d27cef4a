//! What to do next, and who reads it, defined once for all surfaces. A caller is never given a command that overrides a
//! person: a release, a resume, the cancel of a hold, the settlement of a lost answer.

use serde::Serialize;

use crate::evidence::Doubt;
use crate::facts::{Ran, RepeatRule, Verdict};
use crate::key::OperationId;
use crate::record::{Class, Record, State};
use crate::text;

/// What a caller should do after an answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Find out whether it happened, then record the finding: the attempt has answered, and its answer proves nothing.
    Settle(OperationId),
    /// Find out whether it happened: the answer was lost, so a person or a probe records the finding.
    Lost(OperationId),
    /// Record the outcome that this call knows but could not write.
    Record(OperationId, Verdict),
    /// Have the ledger ask the probe.
    Probe {
        /// The operation.
        id: OperationId,
        /// The probe's command.
        command: String,
        /// Exit codes of the probe that mean "no", in addition to 10.
        no: Vec<i32>,
    },
    /// Wait for the call that is executing it.
    Wait(OperationId),
    /// Wait for its time or its release: a person releases it, or cancels it.
    Release(OperationId),
    /// Show the record.
    Show(OperationId),
    /// Repeat the same call, which is safe.
    CallAgain,
    /// Run the action again on purpose, as another occurrence.
    Repeat,
    /// Leave it: a person, or a program, cancelled it.
    Cancelled,
    /// Look at the operation that has this key: the same action is done, another one needs another key.
    OtherKey(OperationId, State),
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
    /// How to settle a doubt without its probe: it depends on whether the attempt has answered.
    #[must_use]
    pub fn settle(record: &Record) -> Self {
        match record.outcome.as_ref().and_then(|outcome| outcome.doubt) {
            Some(Doubt::Answered) => Self::Settle(record.id.clone()),
            Some(Doubt::Lost) | None => Self::Lost(record.id.clone()),
        }
    }

    /// How to resolve a doubt, depending on the operation's class. If a call that ran nothing was refused, repeating
    /// it is refused as well: its downstream key or its budget is used up, or it has no probe.
    pub(crate) fn out_of_doubt(record: &Record, ran: Ran) -> Self {
        let settle = || Self::settle(record);
        if record.spent_attempts() >= record.detail.max_attempts {
            return settle();
        }
        match record.detail.class {
            Class::Probed if record.detail.probe.is_some() => Self::Probe {
                id: record.id.clone(),
                command: record.detail.probe.clone().unwrap_or_default(),
                no: record.detail.probe_no.clone(),
            },
            Class::Read | Class::Idempotent | Class::Keyed | Class::Probed if ran == Ran::Yes => {
                Self::CallAgain
            }
            Class::Read | Class::Idempotent | Class::Keyed | Class::Probed | Class::Once => settle(),
        }
    }
}

/// Who reads what to do next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Audience {
    /// The caller of an operation: a program or an agent.
    #[default]
    Caller,
    /// A person, who may decide.
    Person,
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
        /// Who reads the answers.
        to: Audience,
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
pub struct Advice {
    /// Who reads it.
    pub to: Audience,
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
        Self::Shell { program: program.into(), options: Vec::new(), to: Audience::Caller, once: None }
    }

    /// The same surface, read by a person.
    #[must_use]
    pub fn to_person(self) -> Self {
        match self {
            Self::Shell { program, options, once, .. } => {
                Self::Shell { program, options, to: Audience::Person, once }
            }
            Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => self,
        }
    }

    /// Who reads the answers of this surface.
    #[must_use]
    pub const fn audience(&self) -> Audience {
        match self {
            Self::Shell { to, .. } => *to,
            Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => Audience::Caller,
        }
    }

    /// Whether this audience may be given the command that settles a lost answer: a person, or an agent that the policy
    /// trusts with it.
    const fn may_settle(&self) -> bool {
        match self {
            Self::Shell { to, .. } => matches!(to, Audience::Person),
            Self::McpAgent => true,
            Self::Python | Self::Http | Self::McpPerson { .. } => false,
        }
    }

    /// Presents a next step on this surface.
    #[must_use]
    pub fn spell(&self, step: &NextStep) -> Advice {
        Advice { to: self.audience(), ..self.spelled(step) }
    }

    fn spelled(&self, step: &NextStep) -> Advice {
        match step {
            NextStep::Lost(id) if !self.may_settle() => self.lost(id),
            NextStep::Settle(id) | NextStep::Lost(id) => Advice {
                options: [Verdict::Done, Verdict::Failed].map(|verdict| self.choice(id, verdict)).into(),
                ..say(self.settle_in_words())
            },
            NextStep::Record(id, verdict) => Advice {
                options: vec![self.choice(id, *verdict)],
                ..say("make the ledger writable, then record what is known")
            },
            NextStep::Probe { id, command, no } => paste_or_say(
                ("ask the probe whether it happened", self.probe(id, command, no)),
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
            NextStep::Release(id) => self.held(id),
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
            NextStep::Cancelled => say("do not repeat it, unless a person asks for it"),
            NextStep::OtherKey(id, state) => self.other_key(id, *state),
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
                Self::Shell { program, .. } if program == "once" => Advice {
                    command: Some(self.line("doctor")),
                    ..say("make the ledger reachable, then make the same call again")
                },
                Self::Shell { .. } | Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => {
                    say("make the ledger reachable, then make the same call again")
                }
            },
        }
    }

    /// A stopped scope: a person resumes it.
    fn resume(&self, scope: &str) -> Advice {
        const SAY: &str = "do not repeat it: the scope was stopped on purpose; a person resumes it";
        match self.audience() {
            Audience::Caller => say(SAY),
            Audience::Person => match self.once(&format!("resume {}", text::shell_word(scope))) {
                Some(command) => Advice {
                    command: Some(command),
                    ..say("the scope was stopped on purpose. To let it continue")
                },
                None => say(format!("{SAY}, with `once resume` and the URL of this ledger")),
            },
        }
    }

    /// A lost answer, for a caller: another one decides.
    fn lost(&self, id: &OperationId) -> Advice {
        const SAY: &str =
            "check first whether it happened; do not repeat it. A person or a probe must record the finding";
        paste_or_say((SAY, self.command("show", id)), SAY)
    }

    /// Another action has the key.
    fn other_key(&self, id: &OperationId, state: State) -> Advice {
        let what = match state {
            State::Done => {
                "if this is the same action, it is done; only for a different action use another key"
            }
            State::Staged
            | State::Running
            | State::Failed
            | State::InDoubt
            | State::Cancelled
            | State::Expired => {
                "if this is the same action, see what became of it; only for a different action use another key"
            }
        };
        paste_or_say((what, self.command("show", id)), what)
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

    /// A held operation: a person starts it before its time, or cancels it.
    fn held(&self, id: &OperationId) -> Advice {
        let (release, cancel) = match self.audience() {
            Audience::Caller => {
                return say(format!(
                    "do not repeat it before its time or its release. After that, make the same call again: it gives \
                     the result, and sends it if that was not done yet. A person can release or cancel it ({id} in \
                     `once held`)"
                ));
            }
            Audience::Person => (self.once(&format!("release {id}")), self.once(&format!("cancel {id}"))),
        };
        let Some((release, cancel)) = release.zip(cancel) else {
            return say("wait, or use `once release` or `once cancel` with the URL of this ledger");
        };
        let options = vec![
            Choice { found: "it should be sent now", command: release },
            Choice { found: "it should not be sent", command: cancel },
        ];
        Advice { options, ..say("wait, release it, or cancel it") }
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

    /// The command that asks a probe. One that cannot be printed as it is cannot be pasted either.
    fn probe(&self, id: &OperationId, probe: &str, no: &[i32]) -> Option<String> {
        if probe.chars().any(|c| text::is_hidden(c) && c != '\n') {
            return None;
        }
        let codes: Vec<String> = no.iter().map(i32::to_string).collect();
        let no = if codes.is_empty() { String::new() } else { format!(" --probe-no {}", codes.join(",")) };
        match self {
            Self::Shell { program, .. } if program == "once" => {
                Some(self.line(&format!("settle {id} --probe {}{no}", text::shell_word(probe))))
            }
            // Repeating the call asks the probe.
            Self::Shell { .. } | Self::Python | Self::Http | Self::McpAgent | Self::McpPerson { .. } => None,
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

fn paste_or_say((what, command): (&str, Option<String>), otherwise: &str) -> Advice {
    match command {
        Some(command) => Advice { command: Some(command), ..say(what) },
        None => say(otherwise),
    }
}

fn say(what: impl Into<String>) -> Advice {
    Advice { say: what.into(), ..Advice::default() }
}
