//! One guarded call, from its intent to its answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::answer::send_answer::Response;
use crate::answer::text::{AnswerText, Repeat};
use crate::call::attempt::GuardedCall;
use crate::call::elicit::{Elicited, HumanAnswer};
use crate::call::orphans::Known;
use crate::call::question::{self, Unanswered};
use crate::call::retry_or_repeat::{CallFacts, Occurrence, is_closed};
use crate::call::scope::{Scope, random_name};
use crate::call::waiters::{AnswerSource, Waiter};
use crate::proxy_state::ProxyState;
use crate::sync::lock;
use crate::tools::rules::ToolRules;
use crate::transport::call_transport::{CallAnswer, CallTransport};
use crate::transport::inline_executor;
use crate::wire::message::Head;
use crate::wire::raw;
use crate::wire::tool_call::ToolCall;
use onceward::{
    Class, Error, Happened, Intent, InvalidInput, KeyPolicy, OperationId, Preview, Ran, Receipt, Record,
    RepeatRule, Surface, delivered_by,
};
use onceward_http::time;

/// How long the server has to list its tools before a call continues without the list.
const LIST_PATIENCE: Duration = Duration::from_secs(5);
/// The most pages of tools that are requested.
const LIST_PAGES: usize = 100;
/// How often a call whose time is over is looked for, until its intent is written.
const BEGINNING: Duration = Duration::from_millis(20);

/// How a call relates to the calls before it.
struct Reached {
    /// Whether the same operation is in flight for another request.
    joined: bool,
    /// How many other parallel calls of the action are open.
    others_open: usize,
}

/// The result of running a call.
enum RunResult {
    /// It ended. The second field is the server's answer to this call, if it made an attempt.
    Ended(Result<Receipt, Error>, Option<CallAnswer>),
    /// It is answered with a question to the human.
    Asked(String),
}

impl ProxyState {
    /// Starts a task that answers a call of a tool that may not be read-only.
    pub(crate) fn take(self: &Arc<Self>, call: ToolCall, transport: Arc<dyn CallTransport>) {
        self.waiters.add(transport.waiter());
        let (state, active) = (Arc::clone(self), self.begin_activity());
        drop(inline_executor::spawn(&self.runtime, async move {
            state.guard(call, transport).await;
            drop(active);
        }));
    }

    async fn guard(self: &Arc<Self>, mut call: ToolCall, transport: Arc<dyn CallTransport>) {
        let scope = match self.options.scope.of(call.meta().as_ref(), &transport.waiter().caller) {
            Ok(scope) => scope,
            Err(invalid) => {
                return self
                    .send_answer(&transport, self.refusal(&call.tool, &invalid.into(), &transport))
                    .await;
            }
        };
        if self.is_own_tool(&call.tool) {
            let text = self.own_tool(&call, &scope.name, &transport).await;
            self.send_answer(&transport, Response::from_proxy(text)).await;
            self.announce(&transport, &scope.name, false).await;
            return;
        }
        self.know_tools(&call.tool, &era(&call), &transport).await;
        let rules = match self.tool_rules(&call.tool) {
            Ok(rules) if rules.class == Class::Read => {
                // A read that had to wait for the list of tools is forwarded like every read.
                self.waiters.forget(transport.waiter());
                transport.pass(call).await;
                return;
            }
            Ok(rules) => rules,
            Err(invalid) => {
                return self
                    .send_answer(&transport, self.refusal(&call.tool, &invalid.into(), &transport))
                    .await;
            }
        };
        self.note_scope(&transport.waiter().caller, &scope.name);
        let name = scope.name.clone();
        let tool = call.tool.clone();
        let response = match self.prepare(&mut call, &rules, scope, &transport) {
            Ok((action, anywhere, human_answer)) => {
                let response = self.respond(call, rules, action, human_answer, &transport).await;
                Response { anywhere, ..response }
            }
            Err(error) => self.refusal(&tool, &error, &transport),
        };
        let in_doubt = response.known == Known::No;
        self.send_answer(&transport, response).await;
        self.announce(&transport, &name, in_doubt).await;
    }

    /// Reads the request: the action, its id across sessions, and the human's answer, if it carries one.
    fn prepare(
        &self,
        call: &mut ToolCall,
        rules: &ToolRules,
        scope: Scope,
        transport: &Arc<dyn CallTransport>,
    ) -> Result<(Intent, Option<OperationId>, Option<HumanAnswer>), Error> {
        if self.options.exposure == crate::Exposure::Arguments {
            let own = lock(&self.catalogue).arguments(&call.tool).map(<[String]>::to_vec);
            match own {
                Some(own) => call.take_exposed(&own),
                // A tool that is not listed was not shown with our arguments. It may ignore a dry run, too.
                None => call.note_dry_run(),
            }
        }
        if let Some(invalid) = InvalidInput::all(std::mem::take(&mut call.problems)) {
            return Err(invalid.into());
        }
        call.key = call.key.take().or(call.key_beside.take());
        let human_answer = self.unseal_answer(call)?;
        let action = self.action(call, rules, &scope)?;
        let (action, anywhere) = self.across_sessions(call, rules, scope, action, transport.waiter())?;
        Ok((action, anywhere, human_answer))
    }

    /// Lists the server's tools, unless they are known already or the policy says that this one is read-only. A
    /// guarded call needs the schemas even if the policy decides its class: they say which arguments are the tool's
    /// own, and which errors its SDK can have written.
    pub(crate) async fn know_tools(&self, tool: &str, era: &str, transport: &Arc<dyn CallTransport>) {
        let known = |state: &Self| lock(&state.catalogue).is_listed() || state.is_known_read(tool);
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
            let line = match question::request(
                (&**transport, self.ledger.clock()),
                "tools/list",
                &params,
                LIST_PATIENCE,
            )
            .await
            {
                Ok(line) => line,
                Err(Unanswered::Late) => break,
                // A server that is not ready, or rejects this caller, is asked again for the next call.
                Err(Unanswered::Lost(_)) => return,
            };
            let Some(result) = Head::parse(&line).and_then(|head| head.result) else { break };
            cursor = lock(&self.catalogue).learn(result);
            if cursor.is_none() {
                break;
            }
        }
        // A server that does not list its tools is not asked before every call.
        lock(&self.catalogue).note_listed();
    }

    /// The action that the call requests. Its identity is computed here, once.
    fn action(&self, call: &ToolCall, rules: &ToolRules, scope: &Scope) -> Result<Intent, Error> {
        let name = operation_name(&self.options.server, &call.tool);
        let mut settings = rules.settings.clone();
        settings.terms.wait_ms = self.options.wait_ms;
        let operation = call.operation(name, &self.options.identity, &settings);
        let operation = self.with_request(operation, call, &settings);
        let operation =
            if scope.is_chosen { operation.scope(&scope.name) } else { operation.host_scope(&scope.name) };
        match (rules.keys, &call.key) {
            // Without a key the action cannot be repeated, so it is an operation of its own.
            (KeyPolicy::Keyed, None) => self.ledger.intent(operation.occurrence(random_name())),
            (KeyPolicy::Auto | KeyPolicy::Strict | KeyPolicy::Keyed, _) => self.ledger.intent(operation),
        }
    }

    /// The action in the scope where a lost session left it open, and its id across sessions.
    fn across_sessions(
        &self,
        call: &ToolCall,
        rules: &ToolRules,
        scope: Scope,
        action: Intent,
        waiter: &Arc<Waiter>,
    ) -> Result<(Intent, Option<OperationId>), Error> {
        if !scope.is_session {
            return Ok((action, None));
        }
        let all = format!("sessions~{}", waiter.caller.principal.as_deref().unwrap_or_default());
        let anywhere = OperationId::of(&all, &action.name, &action.key.text);
        let now_ms = self.ledger.clock_ms();
        let after_ms = now_ms.saturating_sub_unsigned(rules.settings.terms.repeat_window_ms);
        let open = self.orphans.scope_of(&anywhere, after_ms).filter(|open| *open != scope.name);
        let name = open.clone().unwrap_or(scope.name.clone());
        self.orphans.begin(anywhere.clone(), waiter, name.clone(), now_ms);
        let action = match open {
            Some(_) => self.action(call, rules, &Scope { name, ..scope })?,
            None => action,
        };
        Ok((action, Some(anywhere)))
    }

    async fn respond(
        self: &Arc<Self>,
        call: ToolCall,
        rules: ToolRules,
        action: Intent,
        human_answer: Option<HumanAnswer>,
        transport: &Arc<dyn CallTransport>,
    ) -> Response {
        let waiter = transport.waiter();
        let facts = CallFacts {
            waiter,
            class: rules.class,
            guessed: rules.guessed,
            says_retry: call.says_retry,
            call_id: call.call_id.as_deref(),
        };
        let chosen = if call.key.is_some() || rules.keys != KeyPolicy::Auto {
            let wanted = self.ledger.repeats().identified(action, RepeatRule::Given).await;
            wanted.map(|wanted| Occurrence {
                intent: wanted.intent,
                joined: false,
                action: None,
                others_open: 0,
            })
        } else {
            self.memory.choose(&self.ledger, action, &facts).await
        };
        let occurrence = match chosen {
            Ok(occurrence) => occurrence,
            Err(error) => return self.refusal(&call.tool, &error, transport),
        };
        let action = occurrence.action.clone();
        let response = self.respond_to_occurrence(call, rules, occurrence, human_answer, transport).await;
        action.iter().for_each(|action| self.memory.end_call(action, waiter));
        response
    }

    async fn respond_to_occurrence(
        self: &Arc<Self>,
        call: ToolCall,
        rules: ToolRules,
        occurrence: Occurrence,
        human_answer: Option<HumanAnswer>,
        transport: &Arc<dyn CallTransport>,
    ) -> Response {
        let Occurrence { intent, joined, others_open, .. } = occurrence;
        let waiter = transport.waiter();
        if human_answer.as_ref().is_some_and(|human_answer| !human_answer.is_about(&intent.id)) {
            let wrong = InvalidInput::new("the requestState was issued for another call");
            return self.refusal(&call.tool, &wrong.into(), transport);
        }
        if self.options.dry_run || call.says_dry_run {
            return self.dry_run(&call.tool, &intent, rules.settings.effect, transport).await;
        }
        // The client gave up before anything was started.
        if waiter.is_gone() {
            return Response::known(CallAnswer::Nothing, None);
        }
        let job = Arc::new(GuardedCall {
            era: era(&call),
            call,
            rules,
            transport: Arc::clone(transport),
            sent: AtomicBool::new(false),
            server_answer: Mutex::default(),
            denied: AtomicBool::new(false),
        });
        if let Some(token) = &job.call.progress_token {
            self.progress.follow(&intent.id, token, joined, transport);
        }
        let id = intent.id.clone();
        let ran = self.run_or_ask_human(&job, intent, human_answer).await;
        if let Some(token) = &job.call.progress_token {
            self.progress.end(&id, token, transport);
        }
        let response = self.response_for(&job, &Reached { joined, others_open }, ran);
        if response.known == Known::No {
            self.note_sent(&id, &job.call);
        }
        response
    }

    async fn dry_run(
        &self,
        tool: &str,
        intent: &Intent,
        effect: onceward::Effect,
        transport: &Arc<dyn CallTransport>,
    ) -> Response {
        match self.ledger.plan(intent).await {
            Ok(plan) => {
                let preview = Preview::of(&plan, intent, effect);
                let surface = self.surface(tool);
                Response::from_proxy(
                    self.answer_text(&transport.waiter().id_text, tool, &surface).dry_run(&preview),
                )
            }
            Err(error) => self.refusal(tool, &error, transport),
        }
    }

    /// The response for the result of a call.
    fn response_for(&self, job: &GuardedCall, reached: &Reached, ran: RunResult) -> Response {
        let delivers = match &ran {
            RunResult::Ended(result, _) => delivered_by(result).cloned(),
            RunResult::Asked(_) => None,
        };
        let window_ms = job.rules.settings.terms.repeat_window_ms;
        let response = self.response_with(job, reached, ran, delivers);
        Response { window_ms, ..response }
    }

    /// The same, with the record whose answer it delivers.
    fn response_with(
        &self,
        job: &GuardedCall,
        reached: &Reached,
        ran: RunResult,
        delivers: Option<Arc<Record>>,
    ) -> Response {
        let tool = &job.call.tool;
        match ran {
            RunResult::Asked(question) => Response { known: Known::No, ..Response::from_proxy(question) },
            RunResult::Ended(Ok(receipt), None) => self.replay_response(job, &receipt, reached, delivers),
            RunResult::Ended(Ok(_), Some(answer)) => {
                let closes = job.denied.load(Ordering::SeqCst);
                Response { closes, ..Response::known(answer, delivers) }
            }
            RunResult::Ended(Err(Error::Failed { .. }), Some(answer)) => Response::known(answer, delivers),
            // A success that a check refuted is not reported as one.
            RunResult::Ended(Err(error @ Error::Unverified { .. }), Some(CallAnswer::FromServer(line))) => {
                let (id, surface) = (&job.transport.waiter().id_text, self.surface(tool));
                let text = self.answer_text(id, tool, &surface).unverified(&error, &line, &self.readers());
                Response { known: Known::No, ..Response::from_proxy(text) }
            }
            // The first error is forwarded unchanged. The answer to the next call describes the doubt.
            RunResult::Ended(Err(error), Some(answer)) => {
                if let Error::Unrecorded { .. } = error {
                    self.notice(&format!("{tool}: {error}"));
                }
                Response { known: Known::No, ..Response::known(answer, None) }
            }
            RunResult::Ended(Err(Error::Held { record }), None) => {
                let has_schema = lock(&self.catalogue).output(tool).is_some();
                let (id, surface) = (&job.transport.waiter().id_text, self.surface(tool));
                Response::from_proxy(self.answer_text(id, tool, &surface).held(&record, has_schema))
            }
            RunResult::Ended(Err(error), None) => {
                let response = self.refusal(tool, &error, &job.transport);
                let closes = matches!(error, Error::Cancelled { .. });
                let known = if error.happened() == Some(Happened::Unknown) { Known::No } else { Known::Yes };
                Response { known, delivers, closes, source: AnswerSource::Replay, ..response }
            }
        }
    }

    /// The response to a call whose operation was already done. What it says about the next call must stay true.
    fn replay_response(
        &self,
        job: &GuardedCall,
        receipt: &Receipt,
        reached: &Reached,
        delivers: Option<Arc<Record>>,
    ) -> Response {
        let now_ms = self.ledger.clock_ms();
        let closes = is_closed(receipt.record());
        let is_counted = job.call.key.is_none() && job.rules.keys == KeyPolicy::Auto;
        let repeat = match (delivers.as_ref().filter(|_| is_counted), closes) {
            (None, _) => self.repeat(),
            (Some(_), false) => Repeat::CallAgain { after: reached.others_open },
            (Some(record), true) => {
                // A time that has passed since the call was judged is still the one that the earlier answer named.
                let window_ms = job.rules.settings.terms.repeat_window_ms;
                let later = onceward::transition::later(now_ms, window_ms);
                Repeat::CallAfter(record.delivered_ms().unwrap_or(later))
            }
        };
        let schema = lock(&self.catalogue).output(&job.call.tool).map(str::to_owned);
        let (id, surface) = (&job.transport.waiter().id_text, self.surface(&job.call.tool));
        let words = AnswerText { repeat, ..self.answer_text(id, &job.call.tool, &surface) };
        let text = words.replayed(receipt, reached.joined, schema.as_deref());
        Response {
            source: AnswerSource::Replay,
            closes,
            ..Response::known(CallAnswer::FromProxy(text), delivers)
        }
    }

    fn refusal(&self, tool: &str, error: &Error, transport: &Arc<dyn CallTransport>) -> Response {
        let surface = self.surface(tool);
        Response::from_proxy(
            self.answer_text(&transport.waiter().id_text, tool, &surface).refused(error, &self.readers()),
        )
    }

    fn answer_text<'a>(&self, id: &'a str, tool: &'a str, surface: &'a Surface) -> AnswerText<'a> {
        AnswerText { id, tool, surface, repeat: self.repeat(), now_ms: self.ledger.clock_ms() }
    }

    /// Runs the operation. If it is in doubt, or held for a person, and the human can be asked, the human's answer
    /// settles it and it runs again.
    async fn run_or_ask_human(
        self: &Arc<Self>,
        job: &Arc<GuardedCall>,
        intent: Intent,
        human_answer: Option<HumanAnswer>,
    ) -> RunResult {
        let id = intent.id.clone();
        if let Some(human_answer) = &human_answer
            && let Err(error) = self.apply_human_answer(job, human_answer, &id).await
        {
            return RunResult::Ended(Err(error), None);
        }
        let (result, server_answer) = self.run_detached(job, intent.clone()).await;
        let human_did_not_know = human_answer.is_some_and(|human_answer| human_answer.says_nothing());
        let doubtful = match &result {
            // If this call's own attempt is in doubt, the server just said so, or it is gone.
            Err(_) if human_did_not_know || server_answer.is_some() || job.sent.load(Ordering::SeqCst) => {
                None
            }
            Err(Error::InDoubt { record, .. } | Error::Unverified { record, .. }) => Some(Arc::clone(record)),
            // Without a time, a person decides.
            Err(Error::Held { record }) if record.held().is_some_and(|held| held.until_ms.is_none()) => {
                Some(Arc::clone(record))
            }
            Ok(_) | Err(_) => None,
        };
        let Some(record) = doubtful else { return RunResult::Ended(result, server_answer) };
        match self.ask_human(job, &record).await {
            Ok(Elicited::NotAsked) => RunResult::Ended(result, server_answer),
            Ok(Elicited::Question(text)) => RunResult::Asked(text),
            Ok(Elicited::Settled) => {
                let (result, server_answer) = self.run_detached(job, intent).await;
                RunResult::Ended(result, server_answer)
            }
            Err(error) => RunResult::Ended(Err(error), None),
        }
    }

    /// Runs the operation in a task of its own, and waits for it up to the timeout of the policy; the task itself
    /// continues. Returns its result and the server's answer to this call.
    async fn run_detached(
        self: &Arc<Self>,
        job: &Arc<GuardedCall>,
        intent: Intent,
    ) -> (Result<Receipt, Error>, Option<CallAnswer>) {
        let (state, active, running) = (Arc::clone(self), self.begin_activity(), Arc::clone(job));
        let id = intent.id.clone();
        let task = inline_executor::spawn(&self.runtime, async move {
            let result = state.run(&running, intent).await;
            drop(active);
            result
        });
        let mut task = std::pin::pin!(task);
        let mut patience = Duration::from_millis(job.rules.settings.timeout_ms);
        let result = loop {
            let ended = if patience.is_zero() {
                Some(task.as_mut().await)
            } else {
                time::within(self.ledger.clock(), patience, task.as_mut()).await
            };
            let ran = if job.sent.load(Ordering::SeqCst) { Ran::Yes } else { Ran::No };
            match ended {
                Some(Ok(result)) => break result,
                Some(Err(_)) => break Err(self.interrupted(&id, ran).await),
                None => match self.ledger.find(&id).await {
                    Ok((record, _)) => break Err(Error::InProgress { record, ran }),
                    // Its intent is being written: the answer waits until it is known what continues.
                    Err(Error::NotFound { .. }) => patience = BEGINNING,
                    Err(error) => break Err(error),
                },
            }
        };
        let server_answer = lock(&job.server_answer).take();
        (result, server_answer)
    }

    /// The error of a call whose task is gone. What was sent may have had an effect.
    async fn interrupted(&self, id: &OperationId, ran: Ran) -> Error {
        match (self.ledger.find(id).await, ran) {
            (Ok((record, _)), Ran::Yes) => {
                let reason = "the call was interrupted in the proxy. It may have taken effect".to_owned();
                Error::InDoubt { record, reason, ran }
            }
            (Ok(_) | Err(Error::NotFound { .. }), _) => {
                InvalidInput::new("the call was interrupted in the proxy before it was sent").into()
            }
            (Err(error), _) => error,
        }
    }

    /// Who can resolve a doubt about a call of that tool.
    fn surface(&self, tool: &str) -> Surface {
        if self.tool_rules(tool).is_ok_and(|rules| rules.settings.tool.agents_settle) {
            return Surface::McpAgent;
        }
        Surface::McpPerson { program: self.options.program.clone() }
    }

    /// How a caller can pass a new key.
    fn repeat(&self) -> Repeat {
        match self.options.exposure {
            crate::Exposure::Arguments => Repeat::Argument,
            crate::Exposure::Hidden => Repeat::Meta,
        }
    }
}

/// The `_meta` members that the client's protocol revision requires in every request.
pub(crate) fn era(call: &ToolCall) -> String {
    let meta = call.meta();
    let kept =
        meta.as_ref().map(|meta| raw::without(meta, |name| !name.starts_with("io.modelcontextprotocol/")));
    kept.unwrap_or_else(|| "{}".to_owned())
}

/// `server/tool`, without hidden characters and cut to the length that the ledger accepts.
fn operation_name(server: &str, tool: &str) -> String {
    let clean = |c: char| if onceward::text::is_hidden(c) { '\u{fffd}' } else { c };
    format!("{server}/{tool}").chars().map(clean).take(onceward::MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_names_are_valid_for_the_ledger() {
        assert_eq!(operation_name("s", "a\nb"), "s/a\u{fffd}b");
        assert_eq!(operation_name("s", &"x".repeat(300)).chars().count(), 255);
    }
}
