//! One call that the ledger knows: from its intent to its answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::{
    Class, Error, Happened, Intent, InvalidInput, KeyPolicy, Operation, OperationId, Preview, Receipt,
    Surface,
};
use tokio::sync::oneshot;

use crate::answer::{self, Repeat};
use crate::attempt::Job;
use crate::call::ToolCall;
use crate::deliver::Told;
use crate::delivery::Chosen;
use crate::desk::Desk;
use crate::elicit::{Asked, Brought};
use crate::ends::{Answer, Ends};
use crate::errand;
use crate::message::Head;
use crate::orphans::Known;
use crate::question::{self, Unanswered};
use crate::raw;
use crate::scope::random_name;
use crate::tools::Standing;
use crate::upstream::lock;
use crate::waiters::Waiter;

/// How long the server has to list its tools before a call goes on without knowing them.
const LIST_PATIENCE: Duration = Duration::from_secs(5);
/// How many pages of tools are asked for.
const LIST_PAGES: usize = 100;

/// What became of a call.
enum Ran {
    /// It ended, with what the server said to this very call.
    Ended(Result<Receipt, Error>, Option<Answer>),
    /// It is answered with a question.
    Asked(String),
}

impl Desk {
    /// Answers a call that may change something, in its own time.
    pub(crate) fn take(self: &Arc<Self>, call: ToolCall, ends: Arc<dyn Ends>) {
        self.waiters.add(ends.waiter());
        let (desk, active) = (Arc::clone(self), self.begin_activity());
        drop(errand::begin(&self.runtime, async move {
            desk.guard(call, ends).await;
            drop(active);
        }));
    }

    async fn guard(self: &Arc<Self>, mut call: ToolCall, ends: Arc<dyn Ends>) {
        self.know_tools(&call, &ends).await;
        let told = match self.standing(&call.tool) {
            Ok(standing) if standing.class == Class::Read => {
                // A read that had to wait for the list of tools goes the way of all reads.
                self.waiters.forget(ends.waiter());
                ends.pass(call).await;
                return;
            }
            Ok(standing) => {
                if self.options.exposure == crate::Exposure::Arguments {
                    call.take_exposed();
                }
                call.key = call.key.take().or(call.key_beside.take());
                match self.brought(&mut call) {
                    Ok(brought) => {
                        let (scope, anywhere) = self.scope(&call, &standing, ends.waiter());
                        let told = self.told(call, standing, &scope, brought, &ends).await;
                        Told { anywhere, ..told }
                    }
                    Err(invalid) => self.refused(&call.tool, &Error::Invalid(invalid), ends.waiter()),
                }
            }
            Err(invalid) => self.refused(&call.tool, &Error::Invalid(invalid), ends.waiter()),
        };
        self.deliver(&ends, told).await;
    }

    /// Asks the server for its tools where nobody has yet.
    async fn know_tools(&self, call: &ToolCall, ends: &Arc<dyn Ends>) {
        let known = |desk: &Self| lock(&desk.catalogue).is_listed() || desk.rules.decide_alone(&call.tool);
        if known(self) {
            return;
        }
        let _one = self.listing.lock().await;
        if known(self) {
            return;
        }
        let era = era(call);
        let mut cursor: Option<String> = None;
        for _ in 0..LIST_PAGES {
            let page = cursor.take().map(|cursor| format!("\"cursor\":{},", raw::quoted(&cursor)));
            let params = format!("{{{}\"_meta\":{era}}}", page.unwrap_or_default());
            let line = match question::request(&**ends, "tools/list", &params, LIST_PATIENCE).await {
                Ok(line) => line,
                Err(Unanswered::Late) => break,
                // A server that is not there yet, or does not know this caller, is asked again for the next one.
                Err(Unanswered::Lost(_)) => return,
            };
            let Some(result) = Head::parse(&line).and_then(|head| head.result) else { break };
            cursor = lock(&self.catalogue).learn(result);
            if cursor.is_none() {
                break;
            }
        }
        // Whoever does not list its tools is not asked before every call.
        lock(&self.catalogue).note_listed();
    }

    fn operation(&self, call: &ToolCall, standing: &Standing, scope: &str) -> Operation {
        let name = operation_name(&self.options.server, &call.tool);
        let mut settings = standing.settings.clone();
        settings.terms.wait_ms = self.options.wait_ms;
        call.operation(name, scope.to_owned(), &self.options.identity, &settings)
    }

    /// The scope of the call; and, where it is only a session, what the call is in any of them.
    fn scope(
        &self,
        call: &ToolCall,
        standing: &Standing,
        waiter: &Arc<Waiter>,
    ) -> (String, Option<OperationId>) {
        let scope = self.options.scope.of(call.meta().as_ref(), &waiter.caller);
        let anywhere = format!("sessions~{}", waiter.caller.principal.as_deref().unwrap_or_default());
        let intent = scope.is_session.then(|| self.operation(call, standing, &anywhere).intent());
        let Some(Ok(intent)) = intent else { return (scope.name, None) };
        let window = Duration::from_millis(self.options.window_ms);
        let scope = self.orphans.scope_of(&intent.id, window).unwrap_or(scope.name);
        self.orphans.begin(intent.id.clone(), waiter, scope.clone());
        (scope, Some(intent.id))
    }

    /// Which operation the call is.
    async fn choose(&self, call: &ToolCall, standing: &Standing, scope: &str) -> Result<Chosen, Error> {
        let operation = self.operation(call, standing, scope);
        if call.key.is_some() {
            return Ok(Chosen { operation, joined: false });
        }
        match standing.keys {
            KeyPolicy::Strict => Ok(Chosen { operation, joined: false }),
            // Nobody can name it again, so it is an operation of its own.
            KeyPolicy::Keyed => Ok(Chosen { operation: operation.occurrence(random_name()), joined: false }),
            KeyPolicy::Auto => {
                let call_id = call.call_id.as_deref();
                self.memory.choose(&self.ledger, &operation, standing.class, call.says_retry, call_id).await
            }
        }
    }

    async fn told(
        self: &Arc<Self>,
        call: ToolCall,
        standing: Standing,
        scope: &str,
        brought: Option<Brought>,
        ends: &Arc<dyn Ends>,
    ) -> Told {
        let waiter = ends.waiter();
        let tool = call.tool.clone();
        let refuse = |error: &Error| self.refused(&tool, error, waiter);
        let chosen = match self.choose(&call, &standing, scope).await {
            Ok(chosen) => chosen,
            Err(error) => return refuse(&error),
        };
        let effect = standing.settings.effect;
        let intent = match chosen.operation.intent() {
            Ok(intent) => intent,
            Err(error) => return refuse(&error),
        };
        if brought.as_ref().is_some_and(|brought| !brought.is_about(&intent.id)) {
            return refuse(&InvalidInput::new("the requestState was given for another call").into());
        }
        if self.options.dry_run || call.says_dry_run {
            return match self.ledger.plan(&intent).await {
                Ok(plan) => {
                    let preview = Preview::of(&plan, &intent, effect);
                    Told::ours(answer::dry_run(&waiter.id_text, &call.tool, &preview, &self.surface()))
                }
                Err(error) => refuse(&error),
            };
        }
        // Whoever has given up before anything was begun wants nothing.
        if waiter.is_gone() {
            return Told::known(Answer::Nothing, None);
        }
        if chosen.joined {
            self.memory.note_repeated(&intent.id);
        }
        let job = Arc::new(Job {
            era: era(&call),
            call,
            standing,
            ends: Arc::clone(ends),
            sent: AtomicBool::new(false),
            said: Mutex::default(),
        });
        if let Some(token) = &job.call.progress_token {
            self.progress.follow(&intent.id, token, chosen.joined, ends);
        }
        let id = intent.id.clone();
        let ran = self.settled(&job, intent, brought).await;
        if let Some(token) = &job.call.progress_token {
            self.progress.end(&id, token, ends);
        }
        self.told_of(&job, ran)
    }

    /// What the caller is told of what became of its call.
    fn told_of(&self, job: &Job, ran: Ran) -> Told {
        let id = &job.ends.waiter().id_text;
        let noted = job.call.key.is_none() && job.standing.keys == KeyPolicy::Auto;
        let ended = match &ran {
            Ran::Ended(Ok(receipt), _) => Some(Arc::clone(receipt.record())),
            Ran::Ended(Err(Error::Failed { record, .. }), _) => Some(Arc::clone(record)),
            Ran::Ended(Err(_), _) | Ran::Asked(_) => None,
        };
        let delivers = ended.filter(|_| noted);
        match ran {
            Ran::Asked(question) => Told { known: Known::No, ..Told::ours(question) },
            Ran::Ended(Ok(receipt), None) => {
                let now_ms = self.ledger.clock_ms();
                let repeat = if noted { Repeat::CallAgain } else { self.repeat() };
                let text = answer::replayed(id, receipt.record(), repeat, now_ms);
                Told::known(Answer::Ours(text), delivers)
            }
            Ran::Ended(Ok(_) | Err(Error::Failed { .. }), Some(answer)) => Told::known(answer, delivers),
            // The first error is passed on as it came: it is the next call that is told of the doubt.
            Ran::Ended(Err(error), Some(answer)) => {
                if let Error::Unrecorded { .. } = error {
                    self.notice(&format!("{}: {error}", job.call.tool));
                }
                Told { known: Known::No, ..Told::known(answer, None) }
            }
            Ran::Ended(Err(error), None) => {
                let told = self.refused(&job.call.tool, &error, job.ends.waiter());
                let known = if error.happened() == Some(Happened::Unknown) { Known::No } else { Known::Yes };
                Told { known, delivers, ..told }
            }
        }
    }

    fn refused(&self, tool: &str, error: &Error, waiter: &Waiter) -> Told {
        let surface = self.surface();
        Told::ours(answer::refused(&waiter.id_text, tool, error, self.repeat(), &surface, &self.readers()))
    }

    /// Runs the operation. Where it is in doubt and a human can be asked, what he says settles it, and it goes on.
    async fn settled(self: &Arc<Self>, job: &Arc<Job>, intent: Intent, brought: Option<Brought>) -> Ran {
        let id = intent.id.clone();
        if let Some(brought) = &brought
            && let Err(error) = self.settle_as_brought(job, brought, &id).await
        {
            return Ran::Ended(Err(error), None);
        }
        let (result, said) = self.ran(job, intent.clone()).await;
        let nobody_knew = brought.is_some_and(|brought| brought.says_nothing());
        let doubtful = match &result {
            // A call whose own attempt is in doubt has just been told so by the server, or the server is gone.
            Err(_) if nobody_knew || said.is_some() || job.sent.load(Ordering::SeqCst) => None,
            Err(Error::InDoubt { record, .. } | Error::Unverified { record, .. }) => Some(Arc::clone(record)),
            Ok(_) | Err(_) => None,
        };
        let Some(record) = doubtful else { return Ran::Ended(result, said) };
        match self.ask_human(job, &record).await {
            Ok(Asked::Nobody) => Ran::Ended(result, said),
            Ok(Asked::Question(text)) => Ran::Asked(text),
            Ok(Asked::Settled) => {
                let (result, said) = self.ran(job, intent).await;
                Ran::Ended(result, said)
            }
            Err(error) => Ran::Ended(Err(error), None),
        }
    }

    /// Runs the operation, and gives what became of it and what the server said to this very call.
    async fn ran(
        self: &Arc<Self>,
        job: &Arc<Job>,
        intent: Intent,
    ) -> (Result<Receipt, Error>, Option<Answer>) {
        let (desk, active, running) = (Arc::clone(self), self.begin_activity(), Arc::clone(job));
        let id = intent.id.clone();
        let task = errand::begin(&self.runtime, async move {
            let result = desk.run(&running, intent).await;
            drop(active);
            result
        });
        let result = self.wait_for(task, &id, job.standing.settings.timeout_ms).await;
        let said = lock(&job.said).take();
        (result, said)
    }

    /// Waits for the call to end, or for as long as the policy lets its caller wait. The call itself goes on.
    async fn wait_for(
        &self,
        task: oneshot::Receiver<Result<Receipt, Error>>,
        id: &OperationId,
        timeout_ms: u64,
    ) -> Result<Receipt, Error> {
        let lost = |_| Err(InvalidInput::new("the call broke off here").into());
        if timeout_ms == 0 {
            return task.await.unwrap_or_else(lost);
        }
        match tokio::time::timeout(Duration::from_millis(timeout_ms), task).await {
            Ok(ended) => ended.unwrap_or_else(lost),
            Err(_) => {
                let (record, _) = self.ledger.find(id).await?;
                Err(Error::InProgress { record, ran: onceward::Ran::No })
            }
        }
    }

    /// Who can do what about a call that was not done.
    fn surface(&self) -> Surface {
        Surface::McpPerson { program: "once".to_owned() }
    }

    /// How a caller can give a new key.
    fn repeat(&self) -> Repeat {
        match self.options.exposure {
            crate::Exposure::Arguments => Repeat::Argument,
            crate::Exposure::Hidden => Repeat::Meta,
        }
    }
}

/// What the client's era wants in the `_meta` of every request.
fn era(call: &ToolCall) -> String {
    let meta = call.meta();
    let kept =
        meta.as_ref().map(|meta| raw::without(meta, |name| !name.starts_with("io.modelcontextprotocol/")));
    kept.unwrap_or_else(|| "{}".to_owned())
}

/// `server/tool`, as the ledger takes it: a name has no control characters and an end.
fn operation_name(server: &str, tool: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    format!("{server}/{tool}").chars().map(clean).take(onceward::key::MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_the_ledger_takes() {
        assert_eq!(operation_name("s", "a\nb"), "s/a\u{fffd}b");
        assert_eq!(operation_name("s", &"x".repeat(300)).chars().count(), 255);
    }
}
