//! One call that the ledger knows: from its intent to its answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::{Class, Error, InvalidInput, KeyPolicy, Operation, OperationId, Receipt};
use tokio::sync::oneshot;

use crate::answer::{self, Repeat};
use crate::attempt::Job;
use crate::call::ToolCall;
use crate::deliver::Told;
use crate::delivery::Chosen;
use crate::desk::Desk;
use crate::ends::{Answer, Ends};
use crate::errand;
use crate::message::Head;
use crate::question;
use crate::raw;
use crate::scope::random_name;
use crate::tools::Standing;
use crate::upstream::lock;
use crate::waiters::Waiter;

/// How long the server has to list its tools before a call goes on without knowing them.
const LIST_PATIENCE: Duration = Duration::from_secs(5);
/// How many pages of tools are asked for.
const LIST_PAGES: usize = 100;

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
                self.told(call, standing, &ends).await
            }
            Err(invalid) => {
                let id = &ends.waiter().id_text;
                let error = Error::Invalid(invalid);
                Told::ours(answer::refused(id, &call.tool, &error, self.repeat(), &[]))
            }
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
            let Ok(line) = question::request(&**ends, "tools/list", &params, LIST_PATIENCE).await else {
                break;
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

    fn operation(&self, call: &ToolCall, standing: &Standing, waiter: &Waiter) -> Operation {
        let scope = self.options.scope.of(call.meta().as_ref(), &waiter.caller);
        let name = operation_name(&self.options.server, &call.tool);
        let mut settings = standing.settings.clone();
        settings.terms.wait_ms = self.options.wait_ms;
        call.operation(name, scope, &self.options.identity, &settings)
    }

    /// Which operation the call is.
    async fn choose(&self, call: &ToolCall, standing: &Standing, waiter: &Waiter) -> Result<Chosen, Error> {
        let operation = self.operation(call, standing, waiter);
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

    async fn told(self: &Arc<Self>, call: ToolCall, standing: Standing, ends: &Arc<dyn Ends>) -> Told {
        let waiter = ends.waiter();
        let refuse = |error: &Error, tool: &str| {
            answer::refused(&waiter.id_text, tool, error, self.repeat(), &self.readers())
        };
        let chosen = match self.choose(&call, &standing, waiter).await {
            Ok(chosen) => chosen,
            Err(error) => return Told::ours(refuse(&error, &call.tool)),
        };
        let intent = match chosen.operation.intent() {
            Ok(intent) => intent,
            Err(error) => return Told::ours(refuse(&error, &call.tool)),
        };
        if self.options.dry_run || call.says_dry_run {
            return Told::ours(match self.ledger.plan(&intent).await {
                Ok(plan) => answer::dry_run(
                    &waiter.id_text,
                    &call.tool,
                    &intent.name,
                    &intent.key.text,
                    &plan.decision,
                ),
                Err(error) => refuse(&error, &call.tool),
            });
        }
        // Whoever has given up before anything was begun wants nothing.
        if waiter.is_gone() {
            return Told { answer: Answer::Nothing, delivers: None };
        }
        if chosen.joined {
            self.memory.note_repeated(&intent.id);
        }
        let token = call.progress_token.clone();
        if let Some(token) = &token {
            self.progress.follow(&intent.id, token, chosen.joined, ends);
        }
        let noted = call.key.is_none() && standing.keys == KeyPolicy::Auto;
        let tool = call.tool.clone();
        let (result, said) = self.ran(call, standing, chosen.operation, &intent.id, ends).await;
        if let Some(token) = &token {
            self.progress.end(&intent.id, token, ends);
        }
        let ended = match &result {
            Ok(receipt) => Some(Arc::clone(receipt.record())),
            Err(Error::Failed { record, .. }) => Some(Arc::clone(record)),
            Err(_) => None,
        };
        let delivers = ended.filter(|_| noted);
        match (result, said) {
            (Ok(receipt), None) => {
                let now_ms = self.ledger.clock_ms();
                let repeat = if noted { Repeat::CallAgain } else { self.repeat() };
                let text = answer::replayed(&waiter.id_text, receipt.record(), repeat, now_ms);
                Told { answer: Answer::Ours(text), delivers }
            }
            (Ok(_), Some(answer)) => Told { answer, delivers },
            // The first error is passed on as it came: it is the next call that is told of the doubt.
            (Err(error), Some(answer)) => {
                if let Error::Unrecorded { .. } = error {
                    self.notice(&format!("{tool}: {error}"));
                }
                Told { answer, delivers }
            }
            (Err(error), None) => Told { answer: Answer::Ours(refuse(&error, &tool)), delivers },
        }
    }

    /// Runs the operation, and gives what became of it and what the server said to this very call.
    async fn ran(
        self: &Arc<Self>,
        call: ToolCall,
        standing: Standing,
        operation: Operation,
        id: &OperationId,
        ends: &Arc<dyn Ends>,
    ) -> (Result<Receipt, Error>, Option<Answer>) {
        let (era, timeout_ms) = (era(&call), standing.settings.timeout_ms);
        let job = Arc::new(Job { call, standing, era, ends: Arc::clone(ends), said: Mutex::default() });
        let (desk, active, running) = (Arc::clone(self), self.begin_activity(), Arc::clone(&job));
        let task = errand::begin(&self.runtime, async move {
            let result = desk.run(&running, operation).await;
            drop(active);
            result
        });
        let result = self.wait_for(task, id, timeout_ms).await;
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
                Err(Error::InProgress { record, retry_after_ms: timeout_ms })
            }
        }
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
