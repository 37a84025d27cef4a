//! `once settle`: records what became of an operation in doubt, as found by a person or a probe.

use std::process::ExitCode;
use std::sync::Arc;

use onceward::decide::seen_as;
use onceward::text::one_line;
use onceward::{
    Blocking, Class, Effect, Error, Json, Outcome, ProbeAnswer, Ran, Record, State, Verdict, Word, rfc3339,
    span_in_words,
};
use serde::Serialize;

use super::ask::{self, Question};
use super::listing::Line;
use super::person::person;
use super::stored::{self, Which};
use crate::answer;
use crate::cli::{SettleArgs, SettleAs};
use crate::context::{Context, IfMissing, quoted};
use crate::environment::PassLedger;
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};

#[derive(Serialize)]
struct Settled {
    #[serde(flatten)]
    line: Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<AskedProbe>,
}

/// The question that was asked.
#[derive(Serialize)]
struct AskedProbe {
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
}

pub(super) fn run(context: &Context, args: &SettleArgs) -> Ended {
    let data = match &args.data {
        Some(text) => {
            Json::parse(text).map_err(|invalid| CommandError::invalid(format!("--data: {invalid}")))?;
            serde_json::from_str(text).ok()
        }
        None => None,
    };
    let ledger = context.ledger(IfMissing::Fail)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.find(&id)?;
    let json = context.global.json;
    // A person can settle a doubt even while a process that the attempt left behind still runs; a probe cannot.
    let left_behind = record.state == State::InDoubt && state == State::Running && args.verdict.is_some();
    if state != State::InDoubt && !left_behind {
        return settled_before(args, record, state, ledger.clock_ms(), json);
    }
    let question = match args.verdict {
        Some(_) => None,
        None => Some(stored::question(context, &record, Which::Probe, own_probe(args))?),
    };
    if let Some(question) = question.as_ref().filter(|_| args.dry.dry_run) {
        would_ask(&record, state, question, json);
        return Ok(ExitCode::SUCCESS);
    }
    let finding = match (args.verdict, &question) {
        (Some(verdict), _) => Finding::Person { verdict, note: args.note.clone(), tool: "once settle" },
        (None, Some(question)) => {
            Finding::Probe { question, early: if args.force { Early::Counts } else { Early::Flag } }
        }
        (None, None) => return Err(CommandError::invalid("no finding given; give --as or --probe")),
    };
    let Found { verdict, word, mut outcome } = finding.found(context, &ledger, &record, state)?;
    outcome.data = data;
    let redact = context.policy.settings(&record.name)?.terms.redact;
    let (outcome, word) = (redact.outcome(outcome), redact.word(word));
    let ended = if verdict == Verdict::Done { State::Done } else { State::Failed };
    let shown = |record: &Record| Settled {
        line: Line::of(record, ended),
        probe: question.as_ref().map(|question| AskedProbe::of(question, record)),
    };
    if args.dry.dry_run {
        let text = format!("would_update: would settle {id} as {ended}");
        answer::success(json, "would_update", &shown(&record), || text);
        return Ok(ExitCode::SUCCESS);
    }
    let record = ledger.attempts().settle(&id, record.attempt, verdict, word, outcome)?;
    answer::success(json, "updated", &shown(&record), || {
        let meaning = if ended == State::Done { "retries get its result" } else { "the next call runs it" };
        format!("{id} is {}: {meaning}", styled(BOLD, ended))
    });
    Ok(ExitCode::SUCCESS)
}

/// What a probe's "no" is worth before the quarantine is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Early {
    /// It counts, because the caller said so.
    Counts,
    /// It does not, and the flag that changes it is one of this command.
    Flag,
    /// It does not, and another command changes it.
    OtherCommand,
}

/// Where a finding about a doubt comes from.
enum Finding<'a> {
    /// A person looked.
    Person { verdict: SettleAs, note: Option<String>, tool: &'static str },
    /// A probe is asked.
    Probe { question: &'a Question, early: Early },
}

/// What was found, and who says so.
struct Found {
    verdict: Verdict,
    word: Word,
    outcome: Outcome,
}

impl Finding<'_> {
    fn found(
        self,
        context: &Context,
        ledger: &Blocking,
        record: &Arc<Record>,
        state: State,
    ) -> Result<Found, CommandError> {
        match self {
            Self::Person { verdict, note, tool } => {
                let (verdict, outcome) = match verdict {
                    SettleAs::Done => (Verdict::Done, Outcome::with_effect(Effect::Updated)),
                    SettleAs::Failed => (Verdict::Failed, Outcome::because(None)),
                };
                Ok(Found { verdict, word: person(tool).note(note), outcome })
            }
            Self::Probe { question, early } => {
                Asking { context, ledger, early, question }.found(record, state)
            }
        }
    }
}

/// Settles a doubt as a person found it, for `once top`.
#[cfg(feature = "top")]
pub(super) fn by_person(
    context: &Context,
    ledger: &Blocking,
    record: &Arc<Record>,
    state: State,
    verdict: SettleAs,
    note: String,
) -> Result<Arc<Record>, CommandError> {
    let finding = Finding::Person { verdict, note: Some(note), tool: "once top" };
    settled(context, ledger, record, state, finding)
}

/// Asks the probe of a doubt and settles it by the answer, for `once top`. Only a command that the policy has is run.
#[cfg(feature = "top")]
pub(super) fn by_probe(
    context: &Context,
    ledger: &Blocking,
    record: &Arc<Record>,
    state: State,
) -> Result<Arc<Record>, CommandError> {
    let question = stored::question(context, record, Which::Probe, None)?;
    settled(
        context,
        ledger,
        record,
        state,
        Finding::Probe { question: &question, early: Early::OtherCommand },
    )
}

/// Asks a question about a doubt and settles it by the answer, for `once undo`.
pub(super) fn by_question(
    context: &Context,
    ledger: &Blocking,
    record: &Arc<Record>,
    state: State,
    question: &Question,
) -> Result<Arc<Record>, CommandError> {
    settled(context, ledger, record, state, Finding::Probe { question, early: Early::OtherCommand })
}

fn settled(
    context: &Context,
    ledger: &Blocking,
    record: &Arc<Record>,
    state: State,
    finding: Finding<'_>,
) -> Result<Arc<Record>, CommandError> {
    let Found { verdict, word, outcome } = finding.found(context, ledger, record, state)?;
    let redact = context.policy.settings(&record.name)?.terms.redact;
    let (outcome, word) = (redact.outcome(outcome), redact.word(word));
    let settled = ledger.ledger().attempts().settle(&record.id, record.attempt, verdict, word, outcome);
    Ok(ledger.wait_for(settled)?)
}

/// The same finding again changes nothing; another one is refused.
fn settled_before(args: &SettleArgs, record: Arc<Record>, state: State, now_ms: i64, json: bool) -> Ended {
    let ended = if state == State::Expired { record.detail.ended.unwrap_or(record.state) } else { state };
    let same = match (args.verdict, ended) {
        (Some(SettleAs::Done), State::Done) | (Some(SettleAs::Failed), State::Failed) => true,
        // The probe has nothing left to answer.
        (None, State::Done | State::Failed) => true,
        (
            _,
            State::Staged
            | State::Running
            | State::InDoubt
            | State::Cancelled
            | State::Expired
            | State::Done
            | State::Failed,
        ) => false,
    };
    if !same {
        return Err(Error::WrongState { action: "settling", record: seen_as(record, state) }.into());
    }
    let ago = span_in_words(now_ms - record.updated_ms);
    let by = record.outcome.as_ref().and_then(|outcome| outcome.settled_by.as_ref());
    let by = by.map_or_else(
        || format!("by the answer of attempt {}", record.attempt),
        |by| format!("settled by {by}"),
    );
    let reason = format!("{} is {ended} already, {ago} ago, {by}", record.id);
    let lost = args.note.is_some() || args.data.is_some();
    let warnings: Vec<String> = lost
        .then(|| "--note and --data were not recorded: it was settled before".to_owned())
        .into_iter()
        .collect();
    let effect = if args.dry.dry_run { "would_noop" } else { "noop" };
    answer::nothing_to_do(json, effect, Some(&Line::of(&record, state)), &reason, warnings);
    Ok(ExitCode::SUCCESS)
}

/// The caller's own probe, where one was given.
fn own_probe(args: &SettleArgs) -> Option<Question> {
    let command = args.probe.clone().flatten()?;
    Some(Question { command, no: args.probe_no.clone() })
}

/// A dry run does not run the probe, because a probe is a command like any other.
fn would_ask(record: &Record, state: State, question: &Question, json: bool) {
    let shown = Settled { line: Line::of(record, state), probe: Some(AskedProbe::of(question, record)) };
    answer::success(json, "would_update", &shown, || {
        format!(
            "would_update: would run the probe {} and settle {} by its answer",
            asked(question, record),
            record.id
        )
    });
}

/// The question in words.
fn asked(question: &Question, record: &Record) -> String {
    let folder = record.detail.folder.as_deref();
    let folder = folder.map(|folder| format!(" in {}", one_line(folder))).unwrap_or_default();
    format!("`{}`{folder}", one_line(&question.command))
}

/// A probe that is asked.
struct Asking<'a> {
    context: &'a Context,
    ledger: &'a Blocking,
    early: Early,
    question: &'a Question,
}

impl Asking<'_> {
    /// The probe's answer. Its "no" counts only when nothing of the attempt can still be in flight, or with
    /// --force.
    fn found(&self, record: &Arc<Record>, state: State) -> Result<Found, CommandError> {
        // The quarantine begins when the doubt is recorded.
        let record = &self.ledger.attempts().note_doubt(&record.id)?;
        if !self.context.global.json {
            answer::talk(&format!("once: running the probe {}", asked(self.question, record)));
        }
        let in_doubt = |class: Class, reason: String| {
            let mut record = Record::clone(&seen_as(Arc::clone(record), state));
            // The next step names the probe that was asked.
            record.detail.class = class;
            record.detail.probe = Some(self.question.command.clone());
            record.detail.probe_no.clone_from(&self.question.no);
            CommandError::from(Error::InDoubt { record: Arc::new(record), reason, ran: Ran::No })
        };
        match ask::probe(self.question, record, &self.context.environment(PassLedger::No)) {
            ProbeAnswer::Yes(outcome) => Ok(Found { verdict: Verdict::Done, word: Word::probe(), outcome }),
            ProbeAnswer::No => {
                let word = self.who_says_no(record).map_err(|why| in_doubt(Class::Probed, why))?;
                let reason = "the probe found that it did not happen".to_owned();
                Ok(Found { verdict: Verdict::Failed, word, outcome: Outcome::because(Some(reason)) })
            }
            // Asking again would get the same answer, so the next step is to check by hand and record the finding.
            ProbeAnswer::CannotTell(reason) => Err(in_doubt(Class::Once, reason)),
        }
    }

    /// How to have a "no" count now.
    fn way_to_force(&self, record: &Record) -> String {
        match self.early {
            Early::Counts | Early::Flag => "--force".to_owned(),
            Early::OtherCommand => {
                let codes: Vec<String> = self.question.no.iter().map(i32::to_string).collect();
                let no =
                    if codes.is_empty() { String::new() } else { format!(" --probe-no {}", codes.join(",")) };
                let command = quoted(&one_line(&self.question.command));
                format!("`{} settle {} --probe {command}{no} --force`", self.context.program(), record.id)
            }
        }
    }

    /// Who is recorded as the source of a "no" that counts now, or why it does not count yet.
    fn who_says_no(&self, record: &Record) -> Result<Word, String> {
        let now_ms = self.ledger.clock_ms();
        match record.detail.quarantine_until_ms.filter(|until| now_ms < *until) {
            None => Ok(Word::probe()),
            // The person who accepts an early "no" says so, not the probe.
            Some(_) if self.early == Early::Counts => {
                let why = "accepted the probe's \"no\" before the quarantine was over";
                Ok(person("once settle --force").note(why.to_owned()))
            }
            Some(until) => Err(format!(
                "the probe found no effect, but a request of attempt {} may still be in flight; \
                 a \"no\" counts from {} \
                 (in {}), or at once with {}",
                record.attempt,
                rfc3339(until),
                span_in_words(until - now_ms),
                self.way_to_force(record)
            )),
        }
    }
}

impl AskedProbe {
    fn of(question: &Question, record: &Record) -> Self {
        Self { command: question.command.clone(), folder: record.detail.folder.clone() }
    }
}
