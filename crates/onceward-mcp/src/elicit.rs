//! Asking the human about an operation in doubt, where the client can be asked.
//!
//! In the era with sessions the client is sent a request of its own; in the stateless one the call is answered with a
//! question, and made again with the answer. Either way the doubt is settled once: by compare-and-swap on the attempt
//! that the question was about.

use std::sync::Arc;
use std::time::Duration;

use onceward::answer::rfc3339;
use onceward::{Error, InvalidInput, OperationId, Outcome, Record, Verdict};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::answer::response;
use crate::attempt::Job;
use crate::call::ToolCall;
use crate::desk::Desk;
use crate::raw::{self, Object};
use crate::seal::{Matter, Seal, Unsealed};
use crate::upstream::lock;

/// The name of our question among those that a call is answered with.
const QUESTION: &str = "once_unknown";
/// What the stateless era has in the `_meta` of every request.
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// How long an answer counts that the client brings back with the next call.
const ANSWER_MS: u64 = 3_600_000;
/// How long a client has to answer a question. One that says it can be asked may not answer at all.
const MAX_PATIENCE_MS: u64 = 180_000;
/// How much of a server's own exchange is carried through ours.
const MAX_THEIRS: usize = 64 * 1024;
/// How much of the arguments a human is shown.
const SHOWN: usize = 300;

/// Whether the human may be asked through the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// Yes, where the client can.
    Human,
    /// No: the agent is told, and that is all.
    Nobody,
}

/// What asking came to.
pub(crate) enum Asked {
    /// The doubt is settled: the call goes on.
    Settled,
    /// The call is answered with the question.
    Question(String),
    /// Nobody could be asked, or nobody knew.
    Nobody,
}

/// What a human said, which the client brings back with the same call.
pub(crate) struct Brought {
    operation: String,
    attempt: u32,
    verdict: Option<Verdict>,
}

impl Brought {
    /// Whether it is about that operation: the same call, and no other.
    pub(crate) fn is_about(&self, id: &OperationId) -> bool {
        self.operation == id.as_str()
    }

    /// Whether the human knew nothing: then nobody is asked again.
    pub(crate) fn says_nothing(&self) -> bool {
        self.verdict.is_none()
    }
}

/// Whether a client that can do this can be asked with a form.
pub(crate) fn takes_forms(capabilities: &Object<'_>) -> bool {
    capabilities.object("elicitation").is_some_and(|kinds| {
        // An empty object is how it was said before there was another kind.
        kinds.members().next().is_none() || kinds.get("form").is_some()
    })
}

impl Desk {
    /// Takes an answer to our question out of a call: the server has not asked, and the key is the call's own.
    pub(crate) fn brought(&self, call: &mut ToolCall) -> Result<Option<Brought>, InvalidInput> {
        let Some((state, answers)) = call.exchange() else { return Ok(None) };
        let Some(state) = state.as_deref().and_then(raw::string).filter(|state| Seal::is_ours(state)) else {
            return Ok(None);
        };
        let seal = self.seal.as_ref().ok_or(Unsealed::Foreign);
        let matter = seal.and_then(|seal| seal.open(&state, self.ledger.clock_ms())).map_err(|wrong| {
            InvalidInput::new(match wrong {
                Unsealed::Foreign => "the requestState is not one that this proxy has given",
                Unsealed::Late => "the answer comes too late; make the call again without it",
            })
        })?;
        let said = answers.as_deref().and_then(Object::parse).and_then(|answers| answers.get(QUESTION));
        let verdict = said.and_then(verdict);
        call.restore(matter.input_responses.as_deref(), matter.request_state.as_deref());
        // The same operation is meant, whatever became of it meanwhile.
        call.says_retry = true;
        Ok(Some(Brought { operation: matter.operation, attempt: matter.attempt, verdict }))
    }

    /// Settles what the human was asked about. Where it is settled already, or another attempt is in doubt by now,
    /// that stands.
    pub(crate) async fn settle_as_brought(
        &self,
        job: &Job,
        brought: &Brought,
        id: &OperationId,
    ) -> Result<(), Error> {
        match brought.verdict {
            Some(verdict) => self.settle_as_said(job, id, brought.attempt, verdict).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Asks about an operation that is in doubt.
    pub(crate) async fn ask_human(&self, job: &Job, record: &Arc<Record>) -> Result<Asked, Error> {
        if self.options.asking == Asking::Nobody {
            return Ok(Asked::Nobody);
        }
        let meta = job.call.meta();
        if let Some(capabilities) = meta.as_ref().and_then(|meta| meta.object(CAPABILITIES)) {
            let question = takes_forms(&capabilities).then(|| self.question(job, record)).flatten();
            return Ok(question.map_or(Asked::Nobody, Asked::Question));
        }
        // One question at a time: the same call again is told what it was always told.
        if !lock(&self.asking).insert(record.id.clone()) {
            return Ok(Asked::Nobody);
        }
        let patience = Duration::from_millis(self.options.wait_ms.min(MAX_PATIENCE_MS));
        let params = form(job, record).to_string();
        let answer = job.ends.ask_client("elicitation/create", &params, patience).await;
        lock(&self.asking).remove(&record.id);
        let said = answer.as_deref().and_then(Object::parse).and_then(|answer| answer.get("result"));
        match said.and_then(verdict) {
            Some(verdict) => self.settle_as_said(job, &record.id, record.attempt, verdict).await,
            None => Ok(Asked::Nobody),
        }
    }

    async fn settle_as_said(
        &self,
        job: &Job,
        id: &OperationId,
        attempt: u32,
        verdict: Verdict,
    ) -> Result<Asked, Error> {
        let reason = match verdict {
            Verdict::Done => "the human says that it happened",
            Verdict::Failed => "the human says that it did not happen",
        };
        let effect = (verdict == Verdict::Done).then_some(job.standing.settings.effect);
        let settled_by = Some("the human, asked through the client".to_owned());
        let outcome = Outcome { effect, settled_by, ..Outcome::because(Some(reason.to_owned())) };
        match self.ledger.settle_attempt(id, attempt, verdict, outcome).await {
            Ok(_) | Err(Error::WrongState { .. }) => Ok(Asked::Settled),
            Err(error) => Err(error),
        }
    }

    /// The question as the answer to the call.
    fn question(&self, job: &Job, record: &Record) -> Option<String> {
        let (theirs, answers) = job.call.exchange().unwrap_or_default();
        if theirs.as_ref().map_or(0, String::len) + answers.as_ref().map_or(0, String::len) > MAX_THEIRS {
            return None;
        }
        let raw = |text: Option<String>| text.and_then(|text| RawValue::from_string(text).ok());
        let matter = Matter {
            operation: record.id.to_string(),
            attempt: record.attempt,
            until_ms: onceward::transition::later(self.ledger.clock_ms(), ANSWER_MS),
            input_responses: raw(answers),
            request_state: raw(theirs),
        };
        let mut params = form(job, record);
        params["mode"] = json!("form");
        let result = json!({
            "resultType": "input_required",
            "inputRequests": {QUESTION: {"method": "elicitation/create", "params": params}},
            "requestState": self.seal.as_ref()?.close(&matter)?,
        });
        Some(response(&job.ends.waiter().id_text, &result.to_string()))
    }
}

/// What the human is asked.
fn form(job: &Job, record: &Record) -> Value {
    let arguments: String = job.call.arguments().chars().take(SHOWN).collect();
    let more = if arguments.len() < job.call.arguments().len() { " …" } else { "" };
    let message = format!(
        "{} was called at {} with {arguments}{more}, and nobody can say whether it happened: {}. What became of it? \
         (Operation {}, attempt {}.)",
        job.call.tool,
        rfc3339(record.updated_ms),
        record.reason().unwrap_or("no answer came back"),
        record.id,
        record.attempt,
    );
    json!({
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": {"outcome": {
                "type": "string",
                "title": "What became of it?",
                "description": "happened: it is not run again. did_not_happen: it is run now. leave: nothing is done.",
                "enum": ["happened", "did_not_happen", "leave"],
            }},
            "required": ["outcome"],
        },
    })
}

/// What an answer to the form says, if it says anything.
fn verdict(answer: &str) -> Option<Verdict> {
    let answer = Object::parse(answer)?;
    if answer.string("action").as_deref() != Some("accept") {
        return None;
    }
    match answer.object("content")?.string("outcome").as_deref() {
        Some("happened") => Some(Verdict::Done),
        Some("did_not_happen") => Some(Verdict::Failed),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_word_settles_anything() {
        let says = |answer: &str| verdict(answer);
        assert_eq!(says(r#"{"action":"accept","content":{"outcome":"happened"}}"#), Some(Verdict::Done));
        assert_eq!(
            says(r#"{"action":"accept","content":{"outcome":"did_not_happen"}}"#),
            Some(Verdict::Failed)
        );
        for nothing in [
            r#"{"action":"accept","content":{"outcome":"leave"}}"#,
            r#"{"action":"accept","content":{}}"#,
            r#"{"action":"accept"}"#,
            r#"{"action":"decline","content":{"outcome":"happened"}}"#,
            r#"{"action":"cancel"}"#,
            r#"{"content":{"outcome":"happened"}}"#,
            "null",
        ] {
            assert_eq!(says(nothing), None, "{nothing}");
        }
    }
}
