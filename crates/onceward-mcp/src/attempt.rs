//! One attempt of a call: within the limits of its tool, under its lock, beside its probe and its check.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use onceward::policy::ToolQuestion;
use onceward::{
    Attempt, Class, Done, Error, Failure, Intent, Outcome, ProbeAnswer, Receipt, Settings, Verification,
};
use tokio::sync::Semaphore;

use crate::call::{PREFIX, ToolCall};
use crate::desk::Desk;
use crate::ending::{ending, task_of};
use crate::ends::{Answer, Ends, Reply, Request, Unsent, Whose};
use crate::message::Head;
use crate::question::{self, Asked};
use crate::tools::Standing;
use crate::upstream::lock;

/// How many tasks are remembered until they end.
const TASKS: usize = 10_000;

/// All that one call needs to be run.
pub(crate) struct Job {
    pub(crate) call: ToolCall,
    pub(crate) standing: Standing,
    /// What the client's era wants in the `_meta` of every request.
    pub(crate) era: String,
    pub(crate) ends: Arc<dyn Ends>,
    /// Whether this call has sent anything to the server that may have an effect.
    pub(crate) sent: AtomicBool,
    /// The server's own answer to the attempt that this call made.
    pub(crate) said: Mutex<Option<Answer>>,
    /// Whether that answer says that it failed although it is known to be done.
    pub(crate) denied: AtomicBool,
}

impl Desk {
    /// Runs the operation within the limits of its tool, under its lock.
    pub(crate) async fn run(self: &Arc<Self>, job: &Arc<Job>, intent: Intent) -> Result<Receipt, Error> {
        let limit = self.limit(&job.call.tool, job.standing.settings.tool.concurrency);
        let _permit = match &limit {
            Some(limit) => limit.acquire().await.ok(),
            None => None,
        };
        let template = job.standing.settings.tool.lock.as_deref();
        match template.map(|template| question::fill(template, job.call.arguments())) {
            Some(name) => {
                let work = self.execute(job, intent);
                crate::lock::holding(&self.ledger, &name, self.options.wait_ms, work).await?
            }
            None => self.execute(job, intent).await,
        }
    }

    fn limit(&self, tool: &str, concurrency: u32) -> Option<Arc<Semaphore>> {
        let permits = usize::try_from(concurrency).ok().filter(|permits| *permits > 0)?;
        let mut limits = lock(&self.limits);
        let limit = limits.entry(tool.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(permits)));
        Some(Arc::clone(limit))
    }

    async fn execute(self: &Arc<Self>, job: &Arc<Job>, intent: Intent) -> Result<Receipt, Error> {
        let mut call = self.ledger.call(intent);
        let asks = &job.standing.settings.tool;
        if let Some(probe) = asks.probe.clone() {
            let (desk, job) = (Arc::clone(self), Arc::clone(job));
            call = call.probe(move |_| {
                let (desk, job, probe) = (Arc::clone(&desk), Arc::clone(&job), probe.clone());
                async move {
                    let asked = desk.ask_reader(&job, &probe).await;
                    probe_answer(asked, &probe.tool, &job.standing.settings)
                }
            });
        }
        if let Some(check) = asks.verify.clone() {
            let (desk, job) = (Arc::clone(self), Arc::clone(job));
            call = call.verify(move |_| {
                let (desk, job, check) = (Arc::clone(&desk), Arc::clone(&job), check.clone());
                async move {
                    let asked = desk.ask_reader(&job, &check).await;
                    verification(asked, &check.tool)
                }
            });
        }
        let receipt = call
            .run(|attempt| {
                let (desk, job) = (Arc::clone(self), Arc::clone(job));
                async move { desk.attempt(&job, attempt).await }
            })
            .await?;
        self.remember_task(job, &receipt).await;
        Ok(receipt)
    }

    /// Asks another tool of the server, if that one is known to change nothing.
    async fn ask_reader(&self, job: &Job, question: &ToolQuestion) -> Asked {
        self.know_tools(&question.tool, &job.era, &job.ends).await;
        let reads = self.standing(&question.tool).is_ok_and(|standing| standing.class == Class::Read);
        if !reads {
            let tool = &question.tool;
            return Asked::CannotTell(format!(
                "{tool} was not asked: it is not known to change nothing (readOnlyHint, or class = \"read\" in \
                 the policy)"
            ));
        }
        question::ask(&*job.ends, question, job.call.arguments(), &job.era).await
    }

    /// Sends the call to the server and waits for its answer, however long that takes.
    async fn attempt(&self, job: &Job, attempt: Attempt) -> Result<Done, Failure> {
        let request = outgoing(job, &attempt);
        let sent = attempt.dispatch()?;
        job.sent.store(true, Ordering::SeqCst);
        let reply = match job.ends.ask(request).await {
            Ok(reply) => reply,
            Err(Unsent::Nothing(reason)) => {
                return Err(Failure::no_effect(format!("it could not be sent to the server: {reason}")));
            }
            Err(Unsent::Perhaps(reason)) => {
                return Err(Failure::in_doubt(format!("sending it to the server broke off: {reason}")));
            }
        };
        let (said, ending) = match reply {
            Reply::Answer(line) => {
                let ended = ending(&line, &job.call.tool, &job.standing, sent);
                job.denied.store(ended.denies, Ordering::SeqCst);
                (Answer::Servers(line), ended.outcome)
            }
            Reply::Rejected(reason) => (Answer::Kept, Err(Failure::no_effect(reason))),
            Reply::Unclear(reason) => (Answer::Kept, Err(Failure::in_doubt(reason))),
            Reply::Over(reason) => return Err(Failure::in_doubt(reason)),
        };
        *lock(&job.said) = Some(said);
        ending
    }

    /// A success that is only a task is accepted, not done: it waits for its confirmation.
    async fn remember_task(&self, job: &Job, receipt: &Receipt) {
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
        drop(self.ledger.record_verification(&receipt.record().id, Verification::Pending, reason).await);
    }
}

/// The call as it leaves: for a tool that honours a key, with ours.
fn outgoing(job: &Job, attempt: &Attempt) -> Request {
    let request = |line: &Arc<String>, id_place: &std::ops::Range<usize>| Request {
        line: Arc::clone(line),
        id_place: id_place.clone(),
        whose: Whose::Callers,
    };
    if job.standing.class != Class::Keyed {
        return request(&job.call.line, &job.call.id_place);
    }
    let Some(mut call) = Head::parse(&job.call.line).as_ref().and_then(ToolCall::parse) else {
        return request(&job.call.line, &job.call.id_place);
    };
    match &job.standing.settings.tool.key_argument {
        Some(argument) => call.put_argument(argument, attempt.downstream_key()),
        None => call.put_meta(&format!("{PREFIX}key"), attempt.downstream_key()),
    }
    request(&call.line, &call.id_place)
}

fn probe_answer(asked: Asked, tool: &str, settings: &Settings) -> ProbeAnswer {
    match asked {
        Asked::Yes => ProbeAnswer::Yes(Outcome {
            reason: Some(format!("{tool} says that it happened")),
            ..Outcome::with_effect(settings.effect)
        }),
        Asked::No => ProbeAnswer::No,
        Asked::CannotTell(why) => ProbeAnswer::CannotTell(why),
    }
}

fn verification(asked: Asked, tool: &str) -> (Verification, String) {
    match asked {
        Asked::Yes => (Verification::Confirmed, format!("{tool} says so")),
        Asked::No => (Verification::Refuted, format!("{tool} says that it is not so")),
        Asked::CannotTell(why) => (Verification::Pending, why),
    }
}
