//! One call that the ledger knows: from its intent to its answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::{
    Class, Error, Happened, Intent, InvalidInput, KeyPolicy, OperationId, Preview, Receipt, Surface,
};
use tokio::sync::oneshot;

use crate::answer::{Repeat, Words};
use crate::attempt::Job;
use crate::call::ToolCall;
use crate::deliver::Told;
use crate::delivery::{Asker, Chosen, is_closed};
use crate::desk::Desk;
use crate::elicit::{Asked, Brought};
use crate::ends::{Answer, Ends};
use crate::errand;
use crate::message::Head;
use crate::orphans::Known;
use crate::question::{self, Unanswered};
use crate::raw;
use crate::scope::{Scope, random_name};
use crate::tools::Standing;
use crate::upstream::lock;
use crate::waiters::{Said, Waiter};

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
        if self.is_own_tool(&call.tool) {
            let (text, scope) = self.own_tool(&call, &ends).await;
            self.deliver(&ends, Told::ours(text)).await;
            self.announce(&ends, &scope, false).await;
            return;
        }
        self.know_tools(&call.tool, &era(&call), &ends).await;
        let standing = match self.standing(&call.tool) {
            Ok(standing) if standing.class == Class::Read => {
                // A read that had to wait for the list of tools goes the way of all reads.
                self.waiters.forget(ends.waiter());
                ends.pass(call).await;
                return;
            }
            Ok(standing) => standing,
            Err(invalid) => {
                return self.deliver(&ends, self.refused(&call.tool, &invalid.into(), &ends)).await;
            }
        };
        let scope = self.options.scope.of(call.meta().as_ref(), &ends.waiter().caller);
        self.note_scope(&ends.waiter().caller, &scope.name);
        let name = scope.name.clone();
        let tool = call.tool.clone();
        let told = match self.prepared(&mut call, &standing, scope, &ends) {
            Ok((action, anywhere, brought)) => {
                let told = self.told(call, standing, action, brought, &ends).await;
                Told { anywhere, ..told }
            }
            Err(error) => self.refused(&tool, &error, &ends),
        };
        let in_doubt = told.known == Known::No;
        self.deliver(&ends, told).await;
        self.announce(&ends, &name, in_doubt).await;
    }

    /// What the call asks for: the action, what it is in any session, and what a human said about it.
    fn prepared(
        &self,
        call: &mut ToolCall,
        standing: &Standing,
        scope: Scope,
        ends: &Arc<dyn Ends>,
    ) -> Result<(Intent, Option<OperationId>, Option<Brought>), Error> {
        if self.options.exposure == crate::Exposure::Arguments {
            let own = lock(&self.catalogue).arguments(&call.tool).map(<[String]>::to_vec);
            // A tool that is not listed was shown without our arguments.
            own.iter().for_each(|own| call.take_exposed(own));
        }
        if let Some(invalid) = InvalidInput::all(std::mem::take(&mut call.problems)) {
            return Err(invalid.into());
        }
        call.key = call.key.take().or(call.key_beside.take());
        let brought = self.brought(call)?;
        let action = self.action(call, standing, &scope)?;
        let (action, anywhere) = self.across_sessions(call, standing, scope, action, ends.waiter())?;
        Ok((action, anywhere, brought))
    }

    /// Asks the server for its tools where nothing has yet.
    pub(crate) async fn know_tools(&self, tool: &str, era: &str, ends: &Arc<dyn Ends>) {
        let known = |desk: &Self| lock(&desk.catalogue).is_listed() || desk.rules.decide_alone(tool);
        if known(self) {
            return;
        }
        let _one = self.listing.lock().await;
        if known(self) {
            return;
        }
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

    /// The action that the call asks for. Its identity is worked out here, once.
    fn action(&self, call: &ToolCall, standing: &Standing, scope: &Scope) -> Result<Intent, Error> {
        let name = operation_name(&self.options.server, &call.tool);
        let mut settings = standing.settings.clone();
        settings.terms.wait_ms = self.options.wait_ms;
        let operation = call.operation(name, &self.options.identity, &settings);
        let operation =
            if scope.is_chosen { operation.scope(&scope.name) } else { operation.host_scope(&scope.name) };
        match (standing.keys, &call.key) {
            // Without a key it cannot be named again, so it is an operation of its own.
            (KeyPolicy::Keyed, None) => operation.occurrence(random_name()).intent(),
            (KeyPolicy::Auto | KeyPolicy::Strict | KeyPolicy::Keyed, _) => operation.intent(),
        }
    }

    /// The same action in the scope where a session that was lost left it open; and what it is in any session.
    fn across_sessions(
        &self,
        call: &ToolCall,
        standing: &Standing,
        scope: Scope,
        action: Intent,
        waiter: &Arc<Waiter>,
    ) -> Result<(Intent, Option<OperationId>), Error> {
        if !scope.is_session {
            return Ok((action, None));
        }
        let all = format!("sessions~{}", waiter.caller.principal.as_deref().unwrap_or_default());
        let anywhere = OperationId::of(&all, &action.name, &action.key.text);
        let window = Duration::from_millis(self.options.window_ms);
        let open = self.orphans.scope_of(&anywhere, window).filter(|open| *open != scope.name);
        let name = open.clone().unwrap_or(scope.name.clone());
        self.orphans.begin(anywhere.clone(), waiter, name.clone());
        let action = match open {
            Some(_) => self.action(call, standing, &Scope { name, ..scope })?,
            None => action,
        };
        Ok((action, Some(anywhere)))
    }

    /// Which occurrence of the action the call is.
    async fn choose(
        &self,
        call: &ToolCall,
        standing: &Standing,
        action: Intent,
        waiter: &Arc<Waiter>,
    ) -> Result<Chosen, Error> {
        if call.key.is_some() || standing.keys != KeyPolicy::Auto {
            return Ok(Chosen { intent: action, joined: false, action: None });
        }
        let asker = Asker {
            waiter,
            class: standing.class,
            says_retry: call.says_retry,
            call_id: call.call_id.as_deref(),
        };
        self.memory.choose(&self.ledger, action, &asker).await
    }

    async fn told(
        self: &Arc<Self>,
        call: ToolCall,
        standing: Standing,
        action: Intent,
        brought: Option<Brought>,
        ends: &Arc<dyn Ends>,
    ) -> Told {
        let waiter = ends.waiter();
        let tool = call.tool.clone();
        let chosen = match self.choose(&call, &standing, action, waiter).await {
            Ok(chosen) => chosen,
            Err(error) => return self.refused(&tool, &error, ends),
        };
        let action = chosen.action.clone();
        let told = self.told_chosen(call, standing, chosen, brought, ends).await;
        action.iter().for_each(|action| self.memory.landed(action, waiter));
        told
    }

    async fn told_chosen(
        self: &Arc<Self>,
        call: ToolCall,
        standing: Standing,
        chosen: Chosen,
        brought: Option<Brought>,
        ends: &Arc<dyn Ends>,
    ) -> Told {
        let Chosen { intent, joined, .. } = chosen;
        let waiter = ends.waiter();
        if brought.as_ref().is_some_and(|brought| !brought.is_about(&intent.id)) {
            let wrong = InvalidInput::new("the requestState was given for another call");
            return self.refused(&call.tool, &wrong.into(), ends);
        }
        if self.options.dry_run || call.says_dry_run {
            return self.dry_run(&call.tool, &intent, standing.settings.effect, ends).await;
        }
        // A client that has given up before anything was begun wants nothing.
        if waiter.is_gone() {
            return Told::known(Answer::Nothing, None);
        }
        let job = Arc::new(Job {
            era: era(&call),
            call,
            standing,
            ends: Arc::clone(ends),
            sent: AtomicBool::new(false),
            said: Mutex::default(),
            denied: AtomicBool::new(false),
        });
        if let Some(token) = &job.call.progress_token {
            self.progress.follow(&intent.id, token, joined, ends);
        }
        let id = intent.id.clone();
        let ran = self.settled(&job, intent, brought).await;
        if let Some(token) = &job.call.progress_token {
            self.progress.end(&id, token, ends);
        }
        let told = self.told_of(&job, joined, ran);
        if told.known == Known::No {
            self.note_sent(&id, &job.call);
        }
        told
    }

    async fn dry_run(
        &self,
        tool: &str,
        intent: &Intent,
        effect: onceward::Effect,
        ends: &Arc<dyn Ends>,
    ) -> Told {
        match self.ledger.plan(intent).await {
            Ok(plan) => {
                let preview = Preview::of(&plan, intent, effect);
                let surface = self.surface(tool);
                Told::ours(self.words(&ends.waiter().id_text, tool, &surface).dry_run(&preview))
            }
            Err(error) => self.refused(tool, &error, ends),
        }
    }

    /// What the caller is told of what became of its call.
    fn told_of(&self, job: &Job, joined: bool, ran: Ran) -> Told {
        let tool = &job.call.tool;
        let noted = job.call.key.is_none() && job.standing.keys == KeyPolicy::Auto;
        let ended = match &ran {
            Ran::Ended(Ok(receipt), _) => Some(Arc::clone(receipt.record())),
            Ran::Ended(Err(Error::Failed { record, .. }), _) => Some(Arc::clone(record)),
            Ran::Ended(Err(_), _) | Ran::Asked(_) => None,
        };
        let delivers = ended.filter(|_| noted);
        match ran {
            Ran::Asked(question) => Told { known: Known::No, ..Told::ours(question) },
            Ran::Ended(Ok(receipt), None) => self.told_again(job, &receipt, joined, delivers),
            Ran::Ended(Ok(_), Some(answer)) => {
                let closes = job.denied.load(Ordering::SeqCst);
                Told { closes, ..Told::known(answer, delivers) }
            }
            Ran::Ended(Err(Error::Failed { .. }), Some(answer)) => Told::known(answer, delivers),
            // A success that a check refuted is not told as one.
            Ran::Ended(Err(error @ Error::Unverified { .. }), Some(Answer::Servers(line))) => {
                let (id, surface) = (&job.ends.waiter().id_text, self.surface(tool));
                let text = self.words(id, tool, &surface).unverified(&error, &line, &self.readers());
                Told { known: Known::No, ..Told::ours(text) }
            }
            // The first error is passed on as it came: it is the next call that is told of the doubt.
            Ran::Ended(Err(error), Some(answer)) => {
                if let Error::Unrecorded { .. } = error {
                    self.notice(&format!("{tool}: {error}"));
                }
                Told { known: Known::No, ..Told::known(answer, None) }
            }
            Ran::Ended(Err(error), None) => {
                let told = self.refused(tool, &error, &job.ends);
                let known = if error.happened() == Some(Happened::Unknown) { Known::No } else { Known::Yes };
                Told { known, delivers, said: Said::Replay, ..told }
            }
        }
    }

    /// What a call is told whose operation was done before. What it says of the same call's next answer is kept.
    fn told_again(
        &self,
        job: &Job,
        receipt: &Receipt,
        joined: bool,
        delivers: Option<Arc<onceward::Record>>,
    ) -> Told {
        let now_ms = self.ledger.clock_ms();
        let closes = is_closed(receipt.record());
        let repeat = match (&delivers, closes) {
            (None, _) => self.repeat(),
            (Some(_), false) => Repeat::CallAgain,
            (Some(record), true) => {
                let told_before = record.detail.delivered_ms.filter(|until| *until > now_ms);
                let later = onceward::transition::later(now_ms, self.options.window_ms);
                Repeat::CallAfter(told_before.unwrap_or(later))
            }
        };
        let schema = lock(&self.catalogue).output(&job.call.tool).map(str::to_owned);
        let (id, surface) = (&job.ends.waiter().id_text, self.surface(&job.call.tool));
        let words = Words { repeat, ..self.words(id, &job.call.tool, &surface) };
        let text = words.replayed(receipt, joined, schema.as_deref());
        Told { said: Said::Replay, closes, ..Told::known(Answer::Ours(text), delivers) }
    }

    fn refused(&self, tool: &str, error: &Error, ends: &Arc<dyn Ends>) -> Told {
        let surface = self.surface(tool);
        Told::ours(self.words(&ends.waiter().id_text, tool, &surface).refused(error, &self.readers()))
    }

    fn words<'a>(&self, id: &'a str, tool: &'a str, surface: &'a Surface) -> Words<'a> {
        Words { id, tool, surface, repeat: self.repeat(), now_ms: self.ledger.clock_ms() }
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
        let result = self.wait_for(task, &id, job).await;
        let said = lock(&job.said).take();
        (result, said)
    }

    /// Waits for the call to end, or for as long as the policy lets its caller wait. The call itself goes on.
    async fn wait_for(
        &self,
        task: oneshot::Receiver<Result<Receipt, Error>>,
        id: &OperationId,
        job: &Job,
    ) -> Result<Receipt, Error> {
        let lost = |_| Err(InvalidInput::new("the call broke off here").into());
        let timeout_ms = job.standing.settings.timeout_ms;
        if timeout_ms == 0 {
            return task.await.unwrap_or_else(lost);
        }
        match tokio::time::timeout(Duration::from_millis(timeout_ms), task).await {
            Ok(ended) => ended.unwrap_or_else(lost),
            Err(_) => {
                let (record, _) = self.ledger.find(id).await?;
                let ran =
                    if job.sent.load(Ordering::SeqCst) { onceward::Ran::Yes } else { onceward::Ran::No };
                Err(Error::InProgress { record, ran })
            }
        }
    }

    /// Who can do what about a call of that tool that was not done.
    fn surface(&self, tool: &str) -> Surface {
        if self.standing(tool).is_ok_and(|standing| standing.settings.tool.agents_settle) {
            return Surface::McpAgent;
        }
        Surface::McpPerson { program: self.options.program.clone() }
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
