//! One call that the ledger knows: from its intent to its delivery.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::policy::OnToolError;
use onceward::{
    Attempt, Class, Done, Error, Failure, InvalidInput, KeyPolicy, Operation, OperationId, Outcome,
    ProbeAnswer, Receipt, Settings, Verification,
};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use crate::answer::{self, Repeat};
use crate::call::{PREFIX, ToolCall};
use crate::delivery::Chosen;
use crate::message::{Head, Id};
use crate::proxy::{Proxy, Waiter};
use crate::question::{self, Asked};
use crate::raw::{self, Object};
use crate::scope::HostScope;
use crate::tools::Standing;
use crate::upstream::{Reply, Unsent, lock};

/// How long the server has to list its tools before a call goes on without knowing them.
const LIST_PATIENCE: Duration = Duration::from_secs(5);
/// How many pages of tools are asked for.
const LIST_PAGES: usize = 100;
/// Errors by which a server says that it has not begun: parse error, invalid request, unknown method, invalid
/// parameters, wrong headers, missing capability, unsupported version.
const REJECTED: [i64; 7] = [-32700, -32600, -32601, -32602, -32020, -32021, -32022];
/// How long a delivery waits to be written down: several share one write, and none stands in the way of the next call.
/// A proxy that dies before takes a repeat for a retry.
const DELIVERY_PAUSE: Duration = Duration::from_millis(20);
/// How many tasks are remembered until they end.
const TASKS: usize = 10_000;

/// What a waiter gets.
enum Answer {
    /// What the server said, under the client's own id.
    Servers(Vec<u8>),
    /// What we say.
    Ours(String),
}

/// An answer, and the operation whose delivery is to be remembered with it.
struct Told {
    answer: Answer,
    delivers: Option<OperationId>,
}

impl Told {
    fn ours(text: String) -> Self {
        Self { answer: Answer::Ours(text), delivers: None }
    }
}

/// All that one call needs to be run.
struct Job {
    call: ToolCall,
    standing: Standing,
    era: String,
    /// The server's own answer to the attempt that this call made.
    said: Mutex<Option<Vec<u8>>>,
}

impl Proxy {
    /// Answers a call that may change something.
    pub(crate) async fn guard(self: &Arc<Self>, mut call: ToolCall, waiter: Arc<Waiter>) {
        self.know_tools(&call).await;
        let standing = self.standing_with(&call.tool, &lock(&self.catalogue));
        let told = match standing {
            Ok(standing) if standing.class == Class::Read => {
                self.forget_waiter(&waiter);
                self.pass_late(call, &waiter).await;
                return;
            }
            Ok(standing) => {
                if self.options.exposure == crate::Exposure::Arguments {
                    call.take_exposed();
                }
                self.told(call, standing, &waiter).await
            }
            Err(invalid) => Told::ours(answer::refused(
                &waiter.id_text,
                &call.tool,
                &Error::Invalid(invalid),
                self.repeat(),
                &[],
            )),
        };
        self.deliver(&waiter, told).await;
    }

    /// A read that had to wait for the list of tools goes the way of all reads.
    async fn pass_late(self: &Arc<Self>, call: ToolCall, waiter: &Waiter) {
        if waiter.is_gone() {
            return;
        }
        let upstream = Arc::clone(&self.upstream);
        drop(tokio::task::spawn_blocking(move || upstream.pass(call.line.as_bytes())).await);
    }

    /// Asks the server for its tools where nobody has yet.
    async fn know_tools(self: &Arc<Self>, call: &ToolCall) {
        let known = |proxy: &Self| lock(&proxy.catalogue).is_listed() || proxy.rules.decide_alone(&call.tool);
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
            let Ok(line) = question::request(&self.upstream, "tools/list", &params, LIST_PATIENCE).await
            else {
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

    fn operation(&self, call: &ToolCall, standing: &Standing) -> Operation {
        let scope = self.options.scope.of(call.meta().as_ref());
        let name = operation_name(&self.options.server, &call.tool);
        let mut settings = standing.settings.clone();
        settings.terms.wait_ms = self.options.wait_ms;
        call.operation(name, scope, &self.options.identity, &settings)
    }

    /// Which operation the call is.
    async fn choose(&self, call: &ToolCall, standing: &Standing) -> Result<Chosen, Error> {
        let operation = self.operation(call, standing);
        if call.key.is_some() {
            return Ok(Chosen { operation, joined: false });
        }
        match standing.keys {
            KeyPolicy::Strict => Ok(Chosen { operation, joined: false }),
            // Nobody can name it again, so it is an operation of its own.
            KeyPolicy::Keyed => {
                let HostScope::Connection(label) = HostScope::connection() else {
                    return Err(InvalidInput::new("there is no name for this call").into());
                };
                Ok(Chosen { operation: operation.occurrence(label), joined: false })
            }
            KeyPolicy::Auto => {
                let call_id = call.call_id.as_deref();
                self.memory.choose(&self.ledger, &operation, standing.class, call.says_retry, call_id).await
            }
        }
    }

    async fn told(self: &Arc<Self>, call: ToolCall, standing: Standing, waiter: &Arc<Waiter>) -> Told {
        let refuse = |error: &Error, tool: &str| {
            answer::refused(&waiter.id_text, tool, error, self.repeat(), &self.readers())
        };
        let chosen = match self.choose(&call, &standing).await {
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
            return Told::ours(String::new());
        }
        if chosen.joined {
            self.memory.note_repeated(&intent.id);
        }
        self.follow(&intent.id, &call, chosen.joined);
        let delivers = (call.key.is_none() && standing.keys == KeyPolicy::Auto).then(|| intent.id.clone());
        let (tool, timeout_ms) = (call.tool.clone(), standing.settings.timeout_ms);
        let job = Arc::new(Job { era: era(&call), call, standing, said: Mutex::default() });
        let (proxy, active, running) = (Arc::clone(self), self.begin_activity(), Arc::clone(&job));
        let task = tokio::spawn(async move {
            let result = proxy.run(&running, chosen.operation).await;
            drop(active);
            result
        });
        let result = self.wait_for(task, &intent.id, timeout_ms).await;
        lock(&self.progress).tokens.remove(&intent.id);
        let said = lock(&job.said).take();
        match (result, said) {
            (Ok(receipt), None) => {
                let now_ms = self.ledger.clock_ms();
                let repeat = if delivers.is_some() { Repeat::CallAgain } else { self.repeat() };
                let text = answer::replayed(&waiter.id_text, receipt.record(), repeat, now_ms);
                Told { answer: Answer::Ours(text), delivers }
            }
            (Ok(_) | Err(Error::Failed { .. }), Some(line)) => {
                Told { answer: Answer::Servers(line), delivers }
            }
            // The first error is passed on as it came: it is the next call that is told of the doubt.
            (Err(error), Some(line)) => {
                if let Error::Unrecorded { .. } = error {
                    self.notice(&format!("{tool}: {error}"));
                }
                Told { answer: Answer::Servers(line), delivers: None }
            }
            (Err(error), None) => {
                let delivers = delivers.filter(|_| matches!(error, Error::Failed { .. }));
                Told { answer: Answer::Ours(refuse(&error, &tool)), delivers }
            }
        }
    }

    /// Waits for the call to end, or for as long as the policy lets its caller wait. The call itself goes on.
    async fn wait_for(
        &self,
        task: tokio::task::JoinHandle<Result<Receipt, Error>>,
        id: &OperationId,
        timeout_ms: u64,
    ) -> Result<Receipt, Error> {
        let lost = |error: tokio::task::JoinError| {
            Err(InvalidInput::new(format!("the call broke off here: {error}")).into())
        };
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

    /// Lets whoever joins a call that is under way here hear of its progress.
    fn follow(&self, id: &OperationId, call: &ToolCall, joined: bool) {
        let Some(token) = &call.progress_token else { return };
        let mut progress = lock(&self.progress);
        match progress.tokens.get(id).cloned() {
            Some(first) if joined => {
                progress.followers.entry(Id::of(&first)).or_default().insert(token.clone());
            }
            Some(_) | None => {
                progress.followers.remove(&Id::of(token));
                progress.tokens.insert(id.clone(), token.clone());
            }
        }
    }

    /// Runs the operation within the limits of its tool, under its lock.
    async fn run(self: &Arc<Self>, job: &Arc<Job>, operation: Operation) -> Result<Receipt, Error> {
        let limit = self.limit(&job.call.tool, job.standing.settings.tool.concurrency);
        let _permit = match &limit {
            Some(limit) => limit.acquire().await.ok(),
            None => None,
        };
        let template = job.standing.settings.tool.lock.as_deref();
        match template.map(|template| question::fill(template, job.call.arguments())) {
            Some(name) => {
                let work = self.execute(job, operation);
                crate::lock::holding(&self.ledger, &name, self.options.wait_ms, work).await?
            }
            None => self.execute(job, operation).await,
        }
    }

    fn limit(&self, tool: &str, concurrency: u32) -> Option<Arc<Semaphore>> {
        let permits = usize::try_from(concurrency).ok().filter(|permits| *permits > 0)?;
        let mut limits = lock(&self.limits);
        let limit = limits.entry(tool.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(permits)));
        Some(Arc::clone(limit))
    }

    async fn execute(self: &Arc<Self>, job: &Arc<Job>, operation: Operation) -> Result<Receipt, Error> {
        let mut call = self.ledger.call(operation).dispatch_marked();
        let asks = &job.standing.settings.tool;
        if let Some(probe) = asks.probe.clone() {
            let (proxy, job) = (Arc::clone(self), Arc::clone(job));
            call = call.probe(move |_| {
                let (proxy, job, probe) = (Arc::clone(&proxy), Arc::clone(&job), probe.clone());
                async move {
                    let asked = question::ask(&proxy.upstream, &probe, job.call.arguments(), &job.era).await;
                    probe_answer(asked, &probe.tool, &job.standing.settings)
                }
            });
        }
        if let Some(check) = asks.verify.clone() {
            let (proxy, job) = (Arc::clone(self), Arc::clone(job));
            call = call.verify(move |_| {
                let (proxy, job, check) = (Arc::clone(&proxy), Arc::clone(&job), check.clone());
                async move {
                    let asked = question::ask(&proxy.upstream, &check, job.call.arguments(), &job.era).await;
                    verification(asked, &check.tool)
                }
            });
        }
        let receipt = call
            .run(|attempt| {
                let (proxy, job) = (Arc::clone(self), Arc::clone(job));
                async move { proxy.attempt(&job, attempt).await }
            })
            .await?;
        self.remember_task(job, &receipt).await;
        Ok(receipt)
    }

    /// Sends the call to the server and waits for its answer, however long that takes.
    async fn attempt(&self, job: &Job, attempt: Attempt) -> Result<Done, Failure> {
        let (line, place) = outgoing(job, &attempt);
        attempt.dispatched()?;
        let receiver = match self.upstream.ask(line, place).await {
            Ok(receiver) => receiver,
            Err(Unsent::Nothing(reason)) => {
                return Err(Failure::no_effect(format!("it could not be sent to the server: {reason}")));
            }
            Err(Unsent::Perhaps(reason)) => {
                return Err(Failure::in_doubt(format!("sending it to the server broke off: {reason}")));
            }
        };
        match receiver.await {
            Ok(Reply::Answer(line)) => {
                let ending = ending(&line, &job.standing.settings);
                *lock(&job.said) = Some(line);
                ending
            }
            Ok(Reply::Over(reason)) => Err(Failure::in_doubt(reason)),
            Err(_) => Err(Failure::in_doubt("the server's answer was lost")),
        }
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

    /// How a caller can give a new key.
    fn repeat(&self) -> Repeat {
        match self.options.exposure {
            crate::Exposure::Arguments => Repeat::Argument,
            crate::Exposure::Hidden => Repeat::Meta,
        }
    }

    /// The tools that change nothing, for whoever has to look.
    fn readers(&self) -> Vec<String> {
        let catalogue = lock(&self.catalogue);
        let is_reader = |tool: &&String| {
            self.standing_with(tool, &catalogue).is_ok_and(|standing| standing.class == Class::Read)
        };
        catalogue.all().keys().filter(is_reader).cloned().collect()
    }

    async fn deliver(self: &Arc<Self>, waiter: &Arc<Waiter>, told: Told) {
        let taken = !waiter.is_gone();
        if let Some(operation) = told.delivers.as_ref().filter(|_| taken) {
            self.remember_answer(waiter, operation);
        }
        self.forget_waiter(waiter);
        if !taken {
            return;
        }
        // Whoever has the answer may call again at once, so this is known before it leaves.
        let repeated = told.delivers.as_ref().is_some_and(|operation| self.memory.was_repeated(operation));
        let at_ms = self.delivered_at(waiter, repeated);
        if let Some(operation) = &told.delivers {
            self.memory.delivering(operation, at_ms);
        }
        let (proxy, id) = (Arc::clone(self), waiter.id_text.clone());
        let send = move || match told.answer {
            Answer::Ours(text) => proxy.client.send(&[text.as_bytes()]),
            Answer::Servers(line) => {
                let place = std::str::from_utf8(&line).ok().and_then(|text| Head::parse(text)?.id_place());
                match place {
                    Some(place) => {
                        proxy.client.send(&[&line[..place.start], id.as_bytes(), &line[place.end..]])
                    }
                    None => proxy.client.send(&[&line]),
                }
            }
        };
        // A client that does not read holds its own answer up, and nobody's call.
        let sent = tokio::task::spawn_blocking(send).await;
        let Some(operation) = told.delivers else { return };
        if matches!(sent, Ok(Ok(()))) {
            self.note_delivery(waiter, &operation, at_ms).await;
        }
        self.memory.delivery_written(&operation, at_ms);
    }

    /// From when on an answer that leaves now counts as delivered.
    fn delivered_at(&self, waiter: &Waiter, repeated: bool) -> i64 {
        let waited_ms = u64::try_from(waiter.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        // A client that repeats itself while the call runs gives up sooner than we would think.
        let patience_ms = if repeated { self.options.slow_ms / 8 } else { self.options.slow_ms };
        let later_ms = if waited_ms < patience_ms { 0 } else { self.options.window_ms };
        onceward::transition::later(self.ledger.clock_ms(), later_ms)
    }

    /// Writes the delivery down. Where it cannot be written, a repeat is taken for a retry: nothing runs twice for
    /// that.
    async fn note_delivery(&self, waiter: &Waiter, operation: &OperationId, at_ms: i64) {
        tokio::time::sleep(DELIVERY_PAUSE).await;
        drop(self.ledger.note_delivery(operation, Some(at_ms)).await);
        // A cancellation that came meanwhile has the last word.
        if waiter.is_gone() {
            drop(self.ledger.note_delivery(operation, None).await);
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

/// The call as it leaves: for a tool that honours a key, with ours.
fn outgoing(job: &Job, attempt: &Attempt) -> (String, std::ops::Range<usize>) {
    if job.standing.class != Class::Keyed {
        return (job.call.line.clone(), job.call.id_place.clone());
    }
    let Some(mut call) = Head::parse(&job.call.line).as_ref().and_then(ToolCall::parse) else {
        return (job.call.line.clone(), job.call.id_place.clone());
    };
    match &job.standing.settings.tool.key_argument {
        Some(argument) => call.put_argument(argument, attempt.downstream_key()),
        None => call.put_meta(&format!("{PREFIX}key"), attempt.downstream_key()),
    }
    (call.line, call.id_place)
}

/// What the server's answer says about the effect.
fn ending(line: &[u8], settings: &Settings) -> Result<Done, Failure> {
    let head = std::str::from_utf8(line).ok().and_then(Head::parse);
    let Some(head) = head else {
        return Err(Failure::in_doubt("the server's answer is not JSON"));
    };
    if let Some(error) = head.error {
        return Err(rejection(error));
    }
    let Some(text) = head.result else {
        return Err(Failure::in_doubt("the server's answer has neither a result nor an error"));
    };
    let kept = (text.len() <= onceward::operation::MAX_RESULT)
        .then(|| RawValue::from_string(text.to_owned()).ok())
        .flatten();
    let result = Object::parse(text);
    let result = result.as_ref();
    let says = |name: &str| result.and_then(|result| result.get(name));
    if says("resultType") == Some("\"input_required\"") {
        return Err(Failure::no_effect("the server asked for input before it acted").with(kept, None));
    }
    if says("isError") == Some("true") {
        let words = result.map(question::text_of).filter(|words| !words.is_empty());
        let words: String = words.unwrap_or_else(|| "the tool failed".to_owned()).chars().take(500).collect();
        return Err(match settings.tool.on_tool_error {
            OnToolError::Failed => Failure::no_effect(words),
            OnToolError::InDoubt => Failure::in_doubt(words),
        }
        .with(kept, None));
    }
    Ok(match kept {
        Some(kept) => Done::with_json(settings.effect, kept),
        None => Done::new(settings.effect, &TooLarge),
    })
}

/// An error of the protocol: some say that nothing was begun, all others say nothing.
fn rejection(error: &str) -> Failure {
    let error = Object::parse(error);
    let code = error.as_ref().and_then(|error| error.get("code")?.parse::<i64>().ok());
    let words = error.as_ref().and_then(|error| error.string("message")).unwrap_or_default();
    let words: String = words.chars().take(500).collect();
    match code {
        Some(code) if REJECTED.contains(&code) => {
            Failure::no_effect(format!("the server rejected it: {words}"))
        }
        Some(_) | None => Failure::in_doubt(format!("the server answered with an error: {words}")),
    }
}

/// Stands for a result that is not kept.
struct TooLarge;

impl serde::Serialize for TooLarge {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("too large to keep"))
    }
}

/// The id of the task that a result stands for.
fn task_of(result: &str) -> Option<String> {
    let result = Object::parse(result)?;
    if result.get("resultType") == Some("\"task\"") {
        return result.string("taskId");
    }
    result.object("task")?.string("taskId")
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

/// `server/tool`, as the ledger takes it: a name has no control characters and an end.
fn operation_name(server: &str, tool: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    format!("{server}/{tool}").chars().map(clean).take(onceward::key::MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> String {
        match ending(line.as_bytes(), &Settings::default()) {
            Ok(done) => format!("done {}", done == Done::new(onceward::Effect::Updated, &TooLarge)),
            Err(failure) => format!("{failure:?}"),
        }
    }

    #[test]
    fn what_an_answer_says_about_the_effect() {
        assert_eq!(told(r#"{"id":1,"result":{"content":[]}}"#), "done false");
        assert!(
            told(r#"{"id":1,"result":{"isError":true,"content":[{"text":"no"}]}}"#)
                .contains("NoEffect, reason: \"no\"")
        );
        assert!(told(r#"{"id":1,"result":{"resultType":"input_required"}}"#).contains("NoEffect"));
        assert!(told(r#"{"id":1,"error":{"code":-32602,"message":"bad"}}"#).contains("NoEffect"));
        for doubtful in
            [r#"{"id":1,"error":{"code":-32603}}"#, r#"{"id":1,"error":{"code":0}}"#, r#"{"id":1}"#, "x"]
        {
            assert!(told(doubtful).contains("InDoubt"), "{doubtful}");
        }
    }

    #[test]
    fn names_and_tasks() {
        assert_eq!(operation_name("s", "a\nb"), "s/a\u{fffd}b");
        assert_eq!(operation_name("s", &"x".repeat(300)).chars().count(), 255);
        assert_eq!(task_of(r#"{"resultType":"task","taskId":"t"}"#).as_deref(), Some("t"));
        assert_eq!(task_of(r#"{"task":{"taskId":"u"}}"#).as_deref(), Some("u"));
        assert_eq!(task_of(r#"{"taskId":"t"}"#), None);
    }
}
