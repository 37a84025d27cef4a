//! Asks the human about an operation that is in doubt or held back, if the client supports it.
//!
//! In revisions with sessions the proxy sends the client a request. In the stateless revision it answers the call
//! with a question, and the client repeats the call with the human's answer. Either way the doubt is settled once, by
//! compare-and-swap on the attempt that the question was about.

use std::sync::Arc;
use std::time::Duration;

use onceward::{Error, InvalidInput, OperationId, Outcome, Record, Verdict, Word, rfc3339};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::answer::text::response;
use crate::call::attempt::GuardedCall;
use crate::call::seal::{Seal, SealError, SealedQuestion};
use crate::options::Asking;
use crate::proxy_state::ProxyState;
use crate::sync::lock;
use crate::wire::raw::{self, Object};
use crate::wire::tool_call::ToolCall;

/// Who decided, in a record.
const HUMAN: &str = "the human, asked through the client";
/// The name of our question in `inputRequests`.
const QUESTION: &str = "once_unknown";
/// The `_meta` member with the client's capabilities, in every request of the stateless revision.
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// How long a sealed question stays valid.
const ANSWER_MS: u64 = 3_600_000;
/// How long a client has to answer a question. Some clients declare the capability and never answer.
const MAX_PATIENCE_MS: u64 = 180_000;
/// The longest exchange state of the server that is carried inside ours.
const MAX_THEIRS: usize = 64 * 1024;
/// How many characters of the arguments the human sees.
const SHOWN: usize = 300;

/// The result of asking the human.
pub(crate) enum Elicited {
    /// The doubt is settled. The call continues.
    Settled,
    /// The call is answered with the question.
    Question(String),
    /// The client cannot ask, or the human did not know.
    NotAsked,
}

/// A human's answer, which the client sends back with the same call.
pub(crate) struct HumanAnswer {
    operation: String,
    attempt: u32,
    verdict: Option<HumanVerdict>,
}

/// What the human said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HumanVerdict {
    /// About a doubt: whether it happened.
    Settle(Verdict),
    /// About a held operation: send it now.
    Send,
    /// About a held operation: never send it.
    Cancel,
}

impl HumanAnswer {
    /// Whether the answer is about that operation.
    pub(crate) fn is_about(&self, id: &OperationId) -> bool {
        self.operation == id.as_str()
    }

    /// Whether the human did not know. Then the question is not asked again.
    pub(crate) fn says_nothing(&self) -> bool {
        self.verdict.is_none()
    }
}

/// Whether these capabilities include forms.
pub(crate) fn takes_forms(capabilities: &Object<'_>) -> bool {
    capabilities.object("elicitation").is_some_and(|kinds| {
        // Older clients declare forms with an empty object.
        kinds.members().next().is_none() || kinds.get("form").is_some()
    })
}

impl ProxyState {
    /// Removes an answer to our question from a call: the server did not ask it, and the identity of the call must
    /// not change.
    pub(crate) fn unseal_answer(&self, call: &mut ToolCall) -> Result<Option<HumanAnswer>, InvalidInput> {
        let Some((state, answers)) = call.exchange() else { return Ok(None) };
        let Some(state) = state.as_deref().and_then(raw::string).filter(|state| Seal::is_ours(state)) else {
            return Ok(None);
        };
        let seal = self.seal.as_ref().ok_or(SealError::Foreign);
        let sealed = seal.and_then(|seal| seal.open(&state, self.ledger.clock_ms())).map_err(|wrong| {
            InvalidInput::new(match wrong {
                SealError::Foreign => "the requestState was not issued by this proxy",
                SealError::Expired => "the answer is too late; make the call again without it",
            })
        })?;
        let said = answers.as_deref().and_then(Object::parse).and_then(|answers| answers.get(QUESTION));
        let verdict = said.and_then(verdict);
        call.restore(sealed.input_responses.as_deref(), sealed.request_state.as_deref());
        // The client means the same operation, whatever its state is now.
        call.says_retry = true;
        Ok(Some(HumanAnswer { operation: sealed.operation, attempt: sealed.attempt, verdict }))
    }

    /// Settles the operation as the human said. If it is already settled, or another attempt is in doubt by now,
    /// nothing changes.
    pub(crate) async fn apply_human_answer(
        &self,
        job: &GuardedCall,
        human_answer: &HumanAnswer,
        id: &OperationId,
    ) -> Result<(), Error> {
        match human_answer.verdict {
            Some(verdict) => self.decide_by_human(job, id, human_answer.attempt, verdict).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Asks the human about an operation that is in doubt or held back.
    pub(crate) async fn ask_human(&self, job: &GuardedCall, record: &Arc<Record>) -> Result<Elicited, Error> {
        if self.options.asking == Asking::Nobody {
            return Ok(Elicited::NotAsked);
        }
        let meta = job.call.meta();
        if let Some(capabilities) = meta.as_ref().and_then(|meta| meta.object(CAPABILITIES)) {
            let question = takes_forms(&capabilities).then(|| self.question(job, record)).flatten();
            return Ok(question.map_or(Elicited::NotAsked, Elicited::Question));
        }
        // Only one question at a time. A repeat of the call meanwhile is answered without asking.
        if !lock(&self.asking).insert(record.id.clone()) {
            return Ok(Elicited::NotAsked);
        }
        let patience = Duration::from_millis(self.options.wait_ms.min(MAX_PATIENCE_MS));
        let params = form(job, record).to_string();
        let answer = job.transport.ask_client("elicitation/create", &params, patience).await;
        lock(&self.asking).remove(&record.id);
        let said = answer.as_deref().and_then(Object::parse).and_then(|answer| answer.get("result"));
        match said.and_then(verdict) {
            Some(verdict) => self.decide_by_human(job, &record.id, record.attempt, verdict).await,
            None => Ok(Elicited::NotAsked),
        }
    }

    async fn decide_by_human(
        &self,
        job: &GuardedCall,
        id: &OperationId,
        attempt: u32,
        verdict: HumanVerdict,
    ) -> Result<Elicited, Error> {
        let decided = match verdict {
            HumanVerdict::Settle(verdict) => return self.settle_by_human(job, id, attempt, verdict).await,
            HumanVerdict::Send => self.ledger.admin().release(id, &Word::person(HUMAN)).await.map(drop),
            HumanVerdict::Cancel => self.ledger.admin().cancel(id, &Word::person(HUMAN)).await.map(drop),
        };
        match decided {
            // Another person may have decided meanwhile; the call finds out.
            Ok(()) | Err(Error::WrongState { .. }) => Ok(Elicited::Settled),
            Err(error) => Err(error),
        }
    }

    async fn settle_by_human(
        &self,
        job: &GuardedCall,
        id: &OperationId,
        attempt: u32,
        verdict: Verdict,
    ) -> Result<Elicited, Error> {
        let effect = (verdict == Verdict::Done).then_some(job.rules.settings.effect);
        let outcome = Outcome { effect, ..Outcome::because(None) };
        match self.ledger.attempts().settle(id, attempt, verdict, Word::person(HUMAN), outcome).await {
            Ok(_) | Err(Error::WrongState { .. }) => Ok(Elicited::Settled),
            Err(error) => Err(error),
        }
    }

    /// The question, as the answer to the call.
    fn question(&self, job: &GuardedCall, record: &Record) -> Option<String> {
        let (theirs, answers) = job.call.exchange().unwrap_or_default();
        if theirs.as_ref().map_or(0, String::len) + answers.as_ref().map_or(0, String::len) > MAX_THEIRS {
            return None;
        }
        let raw = |text: Option<String>| text.and_then(|text| RawValue::from_string(text).ok());
        let sealed = SealedQuestion {
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
            "requestState": self.seal.as_ref()?.close(&sealed)?,
        });
        Some(response(&job.transport.waiter().id_text, &result.to_string()))
    }
}

/// The form that the human sees.
fn form(job: &GuardedCall, record: &Record) -> Value {
    let arguments: String = job.call.arguments().chars().take(SHOWN).collect();
    let more = if arguments.len() < job.call.arguments().len() { " …" } else { "" };
    if record.held().is_some() {
        return held_form(job, record, &format!("{arguments}{more}"));
    }
    let message = format!(
        "{} was called at {} with {arguments}{more}, and it is unknown whether it happened: {}. Did it happen? \
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
                "title": "Did it happen?",
                "description": "happened: it is not run again. did_not_happen: it is run now. leave: nothing is done.",
                "enum": ["happened", "did_not_happen", "leave"],
            }},
            "required": ["outcome"],
        },
    })
}

/// The form about an operation that waits for a person.
fn held_form(job: &GuardedCall, record: &Record, arguments: &str) -> Value {
    let message = format!(
        "{} was called with {arguments}, and it is held until a person releases it: nothing was sent. Send it? \
         (Operation {}.)",
        job.call.tool, record.id,
    );
    json!({
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": {"outcome": {
                "type": "string",
                "title": "Send it?",
                "description": "send: it is sent now. cancel: it is never sent. leave: it stays held.",
                "enum": ["send", "cancel", "leave"],
            }},
            "required": ["outcome"],
        },
    })
}

/// The verdict in an answer to the form, if there is one.
fn verdict(answer: &str) -> Option<HumanVerdict> {
    let answer = Object::parse(answer)?;
    if answer.string("action").as_deref() != Some("accept") {
        return None;
    }
    match answer.object("content")?.string("outcome").as_deref() {
        Some("happened") => Some(HumanVerdict::Settle(Verdict::Done)),
        Some("did_not_happen") => Some(HumanVerdict::Settle(Verdict::Failed)),
        Some("send") => Some(HumanVerdict::Send),
        Some("cancel") => Some(HumanVerdict::Cancel),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_answer_settles() {
        let says = |answer: &str| verdict(answer);
        let happened = Some(HumanVerdict::Settle(Verdict::Done));
        assert_eq!(says(r#"{"action":"accept","content":{"outcome":"happened"}}"#), happened);
        assert_eq!(says(r#"{"action":"accept","content":{"outcome":"send"}}"#), Some(HumanVerdict::Send));
        assert_eq!(
            says(r#"{"action":"accept","content":{"outcome":"did_not_happen"}}"#),
            Some(HumanVerdict::Settle(Verdict::Failed))
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
