//! One attempt of a call: concurrency limit, named lock, probe and check.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use onceward::{
    Attempt, Class, Done, Error, Evidence, Failure, Intent, Outcome, ProbeAnswer, Receipt, Settings,
    ToolQuestion, Verification, WITNESS_META, Witness,
};
use tokio::sync::Semaphore;

use crate::call::ending::{Aim, ending, task_of};
use crate::call::question::{self, ProbeReply};
use crate::call::rejections::Called;
use crate::proxy_state::ProxyState;
use crate::sync::lock;
use crate::tools::rules::ToolRules;
use crate::transport::call_transport::{CallAnswer, CallTransport, Origin, Request, SendError, ServerReply};
use crate::wire::message::Head;
use crate::wire::tool_call::{PREFIX, ToolCall};

/// The most tasks that are remembered until they end.
const TASKS: usize = 10_000;

/// Everything that one call needs to run.
pub(crate) struct GuardedCall {
    pub(crate) call: ToolCall,
    pub(crate) rules: ToolRules,
    /// The `_meta` members that the client's protocol revision requires in every request.
    pub(crate) era: String,
    pub(crate) transport: Arc<dyn CallTransport>,
    /// Whether this call has sent the server anything that may have an effect.
    pub(crate) sent: AtomicBool,
    /// The server's answer to the attempt that this call made.
    pub(crate) server_answer: Mutex<Option<CallAnswer>>,
    /// Whether that answer reports a failure although the operation is known to be done.
    pub(crate) denied: AtomicBool,
}

impl ProxyState {
    /// Runs the operation within its tool's concurrency limit, under its lock.
    pub(crate) async fn run(
        self: &Arc<Self>,
        job: &Arc<GuardedCall>,
        intent: Intent,
    ) -> Result<Receipt, Error> {
        let permits = usize::try_from(job.rules.settings.tool.concurrency).unwrap_or(usize::MAX);
        let _permit = match permits {
            0 => None,
            _ => {
                let new = || Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
                let limit = Arc::clone(lock(&self.limits).entry(job.call.tool.clone()).or_insert_with(new));
                limit.acquire_owned().await.ok()
            }
        };
        let template = job.rules.settings.tool.lock.as_deref();
        match template.map(|template| question::fill(template, job.call.arguments())) {
            Some(name) => {
                let work = self.execute(job, intent);
                crate::call::named_lock::holding(&self.ledger, &name, self.options.wait_ms, work).await?
            }
            None => self.execute(job, intent).await,
        }
    }

    async fn execute(self: &Arc<Self>, job: &Arc<GuardedCall>, intent: Intent) -> Result<Receipt, Error> {
        let mut call = self.ledger.call(intent);
        let asks = &job.rules.settings.tool;
        if let Some(probe) = asks.probe.clone() {
            let (state, job) = (Arc::clone(self), Arc::clone(job));
            call = call.probe(move |_| {
                let (state, job, probe) = (Arc::clone(&state), Arc::clone(&job), probe.clone());
                async move {
                    let asked = state.ask_reader(&job, &probe).await;
                    probe_answer(asked, &probe.tool, &job.rules.settings)
                }
            });
        }
        if let Some(check) = asks.verify.clone() {
            let (state, job) = (Arc::clone(self), Arc::clone(job));
            call = call.verify(move |_| {
                let (state, job, check) = (Arc::clone(&state), Arc::clone(&job), check.clone());
                async move {
                    let asked = state.ask_reader(&job, &check).await;
                    verification(asked, &check.tool)
                }
            });
        }
        let receipt = call
            .run(|attempt| {
                let (state, job) = (Arc::clone(self), Arc::clone(job));
                async move { state.attempt(&job, attempt).await }
            })
            .await?;
        self.remember_task(job, &receipt).await;
        Ok(receipt)
    }

    /// Asks another tool of the server, if that tool is known to be read-only.
    async fn ask_reader(&self, job: &GuardedCall, question: &ToolQuestion) -> ProbeReply {
        self.know_tools(&question.tool, &job.era, &job.transport).await;
        let reads = self.tool_rules(&question.tool).is_ok_and(|rules| rules.class == Class::Read);
        if !reads {
            let tool = &question.tool;
            return ProbeReply::CannotTell(format!(
                "{tool} was not asked: it is not known to be read-only (readOnlyHint, or class = \"read\" in \
                 the policy)"
            ));
        }
        question::ask((&*job.transport, self.ledger.clock()), question, job.call.arguments(), &job.era).await
    }

    /// Sends the call to the server and waits for its answer without a time limit. If the attempt is asked to stop,
    /// the server gets a cancellation and a grace period to answer.
    async fn attempt(&self, job: &GuardedCall, attempt: Attempt) -> Result<Done, Failure> {
        let listing = || lock(&self.catalogue).listing(&job.call.tool);
        let witness = listing().filter(|listing| listing.takes_witness).and_then(|_| new_witness());
        let request = outgoing(job, &attempt, witness.as_ref());
        let sent = attempt.dispatch()?;
        job.sent.store(true, Ordering::SeqCst);
        let asked =
            attempt.finish_or_give_up(job.transport.ask(request), job.transport.cancel_request()).await;
        let Some(reply) = asked else { return Err(Failure::stopped_unanswered("the server")) };
        let reply = match reply {
            Ok(reply) => reply,
            Err(SendError::NotSent(reason)) => {
                let reason = format!("it could not be sent to the server: {reason}");
                return Err(Failure::no_effect(Evidence::NotSent, reason));
            }
            Err(SendError::MaybeSent(reason)) => {
                return Err(Failure::in_doubt(format!("sending it to the server broke off: {reason}")));
            }
        };
        let (server_answer, ending) = match reply {
            ServerReply::Answer(line) => {
                let (tool, arguments) = (&job.call.tool, job.call.arguments());
                let called = Called { tool, arguments, listing: &listing, witness: witness.as_ref() };
                let aim = if attempt.is_compensation() { Aim::Undo } else { Aim::Effect };
                let ended = ending(&line, &called, &job.rules, aim, sent);
                job.denied.store(ended.denies, Ordering::SeqCst);
                (CallAnswer::FromServer(line), ended.outcome)
            }
            ServerReply::Rejected(reason) => {
                let rule = Evidence::refused("a status of the transport, before the call was read");
                (CallAnswer::Held, Err(Failure::no_effect(rule, reason)))
            }
            ServerReply::Unclear(reason) => (CallAnswer::Held, Err(Failure::in_doubt(reason))),
            ServerReply::Over(reason) => return Err(Failure::in_doubt(reason)),
        };
        if attempt.is_cancel_requested() {
            // An error that answers the cancellation would read as if nothing had happened, so the proxy answers.
            let ending = ending.map_err(Failure::stopped);
            if ending.is_ok() {
                *lock(&job.server_answer) = Some(server_answer);
            }
            return ending;
        }
        *lock(&job.server_answer) = Some(server_answer);
        ending
    }

    /// A result that is only a task means accepted, not done. The operation waits for its confirmation.
    async fn remember_task(&self, job: &GuardedCall, receipt: &Receipt) {
        let Some(task) = receipt.data().filter(|_| !receipt.replayed()).and_then(task_of) else {
            return;
        };
        {
            let mut tasks = lock(&self.tasks);
            if tasks.len() < TASKS {
                tasks.insert(task, receipt.record().id.clone());
            }
        }
        let reason = Some(format!("{} was accepted as a task", job.call.tool));
        drop(self.ledger.attempts().verified(&receipt.record().id, Verification::Pending, reason).await);
    }
}

/// A new witness. Without random numbers there is none, and no tool is believed.
fn new_witness() -> Option<Witness> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok().map(|()| Witness::new(random))
}

/// The request as it is sent. A tool that honours keys gets ours, and one that is an Onceward itself gets the witness.
fn outgoing(job: &GuardedCall, attempt: &Attempt, witness: Option<&Witness>) -> Request {
    let request = |line: &Arc<String>, id_place: &std::ops::Range<usize>| Request {
        line: Arc::clone(line),
        id_place: id_place.clone(),
        origin: Origin::Caller,
    };
    if job.rules.class != Class::Keyed && witness.is_none() {
        return request(&job.call.line, &job.call.id_place);
    }
    let Some(mut call) = Head::parse(&job.call.line).as_ref().and_then(ToolCall::parse) else {
        return request(&job.call.line, &job.call.id_place);
    };
    if let Some(witness) = witness {
        call.put_meta(WITNESS_META, witness.as_str());
    }
    match &job.rules.settings.tool.key_argument {
        _ if job.rules.class != Class::Keyed => {}
        Some(argument) => call.put_argument(argument, attempt.downstream_key()),
        None => call.put_meta(&format!("{PREFIX}key"), attempt.downstream_key()),
    }
    request(&call.line, &call.id_place)
}

fn probe_answer(asked: ProbeReply, tool: &str, settings: &Settings) -> ProbeAnswer {
    match asked {
        ProbeReply::Yes => ProbeAnswer::Yes(Outcome {
            reason: Some(format!("{tool} says that it happened")),
            ..Outcome::with_effect(settings.effect)
        }),
        ProbeReply::No => ProbeAnswer::No,
        ProbeReply::CannotTell(why) => ProbeAnswer::CannotTell(why),
    }
}

fn verification(asked: ProbeReply, tool: &str) -> (Verification, String) {
    match asked {
        ProbeReply::Yes => (Verification::Confirmed, format!("{tool} confirms it")),
        ProbeReply::No => (Verification::Refuted, format!("{tool} denies it")),
        ProbeReply::CannotTell(why) => (Verification::Pending, why),
    }
}
