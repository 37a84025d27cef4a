//! The two pumps, and who sees which message.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{BufReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use onceward::{KeyPolicy, Ledger, OperationId, Policy, Verification};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::call::ToolCall;
use crate::delivery::Memory;
use crate::frame::{MAX_LINE, next_line};
use crate::message::{Head, Id, Message};
use crate::raw::{self, Object};
use crate::scope::HostScope;
use crate::tools::{Catalogue, Exposure, Rules, Standing, Trust, expose};
use crate::upstream::{Outlet, Reply, Upstream, Waiting, lock};

/// How much is read at once.
const CHUNK: usize = 64 * 1024;
/// How many answers are remembered for a cancellation that comes after them.
const ANSWERED: usize = 4_096;
/// How many requests are watched for their answers.
const WATCHED: usize = 10_000;

/// What the proxy is told.
pub struct Options {
    /// A short name of the server: operations are called `server/tool`.
    pub server: String,
    /// What tells this server from another one of the same name: its command, its address.
    pub identity: String,
    /// The policy.
    pub policy: Policy,
    /// Who shares keys.
    pub scope: HostScope,
    /// Where keys come from, unless the policy says so for a tool.
    pub keys: Option<KeyPolicy>,
    /// Whether the server is believed what it says about its tools.
    pub trust: Trust,
    /// Whether the model sees arguments for a key and a dry run.
    pub exposure: Exposure,
    /// Whether nothing is to be run that changes something.
    pub dry_run: bool,
    /// After how long a caller may have given up, so that its answer counts as delivered only later.
    pub slow_ms: u64,
    /// How much later.
    pub window_ms: u64,
    /// How long a call waits for the same one of another caller, and for a lock.
    pub wait_ms: u64,
    /// How long calls may go on when the client is gone.
    pub drain_ms: u64,
    /// Where notices for people go.
    pub notice: Box<dyn Fn(&str) + Send + Sync>,
}

/// The streams that are written to.
pub struct Streams {
    /// To the client.
    pub client: Box<dyn Write + Send>,
    /// To the server.
    pub server: Box<dyn Write + Send>,
}

/// A client's request that waits for its answer.
pub(crate) struct Waiter {
    pub(crate) id: Id,
    pub(crate) id_text: String,
    pub(crate) since: Instant,
    gone: AtomicBool,
}

impl Waiter {
    /// Whether the client has cancelled it.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
}

/// What the answer to a client's request is looked at for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    Tools,
    Task,
}

/// The proxy between one client and one server.
pub struct Proxy {
    pub(crate) ledger: Ledger,
    pub(crate) options: Options,
    pub(crate) rules: Rules,
    pub(crate) client: Outlet,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) memory: Memory,
    pub(crate) catalogue: Mutex<Catalogue>,
    pub(crate) listing: tokio::sync::Mutex<()>,
    pub(crate) limits: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Operations that were accepted as a task, by the task's id.
    pub(crate) tasks: Mutex<HashMap<String, OperationId>>,
    /// Whose progress tokens want to hear of whose progress.
    pub(crate) progress: Mutex<Progress>,
    runtime: Handle,
    waiters: Mutex<HashMap<Id, Arc<Waiter>>>,
    answered: Mutex<VecDeque<(Arc<Waiter>, OperationId)>>,
    watched: Mutex<HashMap<Id, Watched>>,
    active: (Mutex<usize>, Condvar),
}

/// Progress tokens of the calls that are under way here.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) tokens: HashMap<OperationId, String>,
    pub(crate) followers: HashMap<Id, HashSet<String>>,
}

/// Counts a call that is under way, until it is dropped.
pub(crate) struct Active(Arc<Proxy>);

impl Drop for Active {
    fn drop(&mut self) {
        let (count, changed) = &self.0.active;
        *lock(count) -= 1;
        changed.notify_all();
    }
}

impl Proxy {
    /// A proxy that writes to these streams and keeps its calls on that runtime.
    #[must_use]
    pub fn new(ledger: Ledger, mut options: Options, streams: Streams, runtime: Handle) -> Arc<Self> {
        let rules = Rules {
            policy: std::mem::take(&mut options.policy),
            server: options.server.clone(),
            keys: options.keys,
            trust: options.trust,
        };
        let HostScope::Connection(name) = HostScope::connection() else {
            // It never is another one; a fixed name only makes ids less unique.
            return Self::with_name(ledger, options, rules, streams, runtime, "once".to_owned());
        };
        Self::with_name(ledger, options, rules, streams, runtime, format!("once-{name}"))
    }

    fn with_name(
        ledger: Ledger,
        options: Options,
        rules: Rules,
        streams: Streams,
        runtime: Handle,
        name: String,
    ) -> Arc<Self> {
        Arc::new(Self {
            ledger,
            options,
            rules,
            client: Outlet::new(streams.client),
            upstream: Arc::new(Upstream::new(streams.server, name)),
            memory: Memory::default(),
            catalogue: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            limits: Mutex::default(),
            tasks: Mutex::default(),
            progress: Mutex::default(),
            runtime,
            waiters: Mutex::default(),
            answered: Mutex::default(),
            watched: Mutex::default(),
            active: (Mutex::new(0), Condvar::new()),
        })
    }

    /// Passes on what the client says, until it says no more; then lets the calls under way end, and closes the
    /// server's input. Blocks.
    pub fn pump_client(self: &Arc<Self>, client: impl Read) {
        let mut client = BufReader::with_capacity(CHUNK, client);
        loop {
            match next_line(&mut client, MAX_LINE) {
                Ok(Some(line)) => self.from_client(&line),
                Ok(None) => break,
                Err(error) => {
                    self.notice(&format!("the client's messages cannot be read any more: {error}"));
                    break;
                }
            }
        }
        // A server that is told to end would take its calls with it.
        self.wait_idle(self.options.drain_ms);
        self.upstream.close();
    }

    /// Passes on what the server says, until it says no more. Blocks.
    pub fn pump_server(self: &Arc<Self>, server: impl Read) {
        let mut server = BufReader::with_capacity(CHUNK, server);
        loop {
            match next_line(&mut server, MAX_LINE) {
                Ok(Some(line)) => self.from_server(line),
                Ok(None) => return,
                Err(error) => {
                    self.notice(&format!("the server's messages cannot be read any more: {error}"));
                    return;
                }
            }
        }
    }

    /// The server is gone: every call that was sent and not answered is in doubt. Waits until that is written down.
    pub fn server_gone(&self, reason: &str) {
        self.upstream.over(reason);
        self.wait_idle(self.options.drain_ms);
    }

    /// Waits until no call is under way, or for so long; tells whether none is.
    pub fn wait_idle(&self, patience_ms: u64) -> bool {
        let (count, changed) = &self.active;
        let patience = Duration::from_millis(patience_ms);
        let waited = changed.wait_timeout_while(lock(count), patience, |count| *count > 0);
        waited.is_ok_and(|(count, _)| *count == 0)
    }

    pub(crate) fn notice(&self, text: &str) {
        (self.options.notice)(text);
    }

    pub(crate) fn begin_activity(self: &Arc<Self>) -> Active {
        *lock(&self.active.0) += 1;
        Active(Arc::clone(self))
    }

    fn from_client(self: &Arc<Self>, line: &[u8]) {
        match Message::of(line) {
            Message::One(head) => self.one_from_client(&head, line),
            Message::Batch(items) if items.iter().any(|item| is_call(item)) => {
                for item in items {
                    match Head::parse(item) {
                        Some(head) => self.one_from_client(&head, item.as_bytes()),
                        None => self.upstream.pass(item.as_bytes()),
                    }
                }
            }
            Message::Batch(_) => self.upstream.pass(line),
            Message::Opaque => match unreadable_call(line) {
                // Some servers read what we cannot (a `NaN`, half a character), and would act on it unguarded.
                Some(id) => self.to_client(unreadable(&id).as_bytes()),
                None => self.upstream.pass(line),
            },
        }
    }

    fn one_from_client(self: &Arc<Self>, head: &Head<'_>, line: &[u8]) {
        match (head.method.as_deref(), head.id) {
            (Some("tools/call"), Some(_)) => self.tool_call(head, line),
            (Some("tools/call"), None) => {
                self.notice(
                    "a call of a tool came without an id: nobody could be told what became of it; not sent",
                );
            }
            (Some("tools/list"), Some(id)) => self.watch(id, Watched::Tools, head, line),
            (Some("tasks/get" | "tasks/result"), Some(id)) => self.watch(id, Watched::Task, head, line),
            (Some("notifications/cancelled"), None) => {
                if !self.cancelled(head) {
                    self.upstream.pass(line);
                }
            }
            (Some(_), Some(id)) => self.pass_request(id, head, line),
            (Some(_) | None, _) => self.upstream.pass(line),
        }
    }

    /// A request under an id that we may have used goes under one of ours.
    fn pass_request(&self, id: &str, head: &Head<'_>, line: &[u8]) {
        let place = head.id_place().filter(|_| self.upstream.is_ours(&Id::of(id)));
        let Some(place) = place else {
            self.upstream.pass(line);
            return;
        };
        if let Ok(ours) = self.upstream.register(id, Waiting::Relayed(id.to_owned())) {
            self.upstream.pass(raw::spliced(head.text, place, &ours).as_bytes());
        }
    }

    fn watch(&self, id: &str, what: Watched, head: &Head<'_>, line: &[u8]) {
        {
            let mut watched = lock(&self.watched);
            if watched.len() < WATCHED {
                watched.insert(Id::of(id), what);
            }
        }
        self.pass_request(id, head, line);
    }

    fn tool_call(self: &Arc<Self>, head: &Head<'_>, line: &[u8]) {
        let Some(call) = ToolCall::parse(head) else {
            // Nothing that a server could execute: it is the server's to say so.
            self.upstream.pass(line);
            return;
        };
        if self.passes(&call.tool) {
            self.pass_request(call.id(), head, line);
            return;
        }
        let id_text = call.id().to_owned();
        let waiter = Arc::new(Waiter {
            id: Id::of(&id_text),
            id_text,
            since: Instant::now(),
            gone: AtomicBool::new(false),
        });
        lock(&self.waiters).insert(waiter.id.clone(), Arc::clone(&waiter));
        let active = self.begin_activity();
        let proxy = Arc::clone(self);
        self.runtime.spawn(async move {
            proxy.guard(call, waiter).await;
            drop(active);
        });
    }

    /// Whether it is known at once that the tool changes nothing.
    fn passes(&self, tool: &str) -> bool {
        let catalogue = lock(&self.catalogue);
        let known = catalogue.is_listed() || self.rules.decide_alone(tool);
        known
            && self
                .standing_with(tool, &catalogue)
                .is_ok_and(|standing| standing.class == onceward::Class::Read)
    }

    pub(crate) fn standing_with(
        &self,
        tool: &str,
        catalogue: &Catalogue,
    ) -> Result<Standing, onceward::InvalidInput> {
        self.rules.standing(tool, catalogue.get(tool))
    }

    /// A cancellation of a call that the ledger knows: nobody waits for it any more, and it goes on, because to stop it
    /// would destroy the only witness. Tells whether it was such a call.
    fn cancelled(self: &Arc<Self>, head: &Head<'_>) -> bool {
        let params = head.params.and_then(Object::parse);
        let Some(id) = params.and_then(|params| params.get("requestId").map(Id::of)) else {
            return false;
        };
        if let Some(waiter) = lock(&self.waiters).remove(&id) {
            waiter.gone.store(true, Ordering::SeqCst);
            return true;
        }
        let late = lock(&self.answered).iter().rev().find(|(waiter, _)| waiter.id == id).cloned();
        let Some((waiter, operation)) = late else { return false };
        waiter.gone.store(true, Ordering::SeqCst);
        // The answer had left, and the client had given up before it came: it was not taken.
        let (proxy, active) = (Arc::clone(self), self.begin_activity());
        self.runtime.spawn(async move {
            proxy.memory.not_delivered(&operation);
            drop(proxy.ledger.note_delivery(&operation, None).await);
            drop(active);
        });
        true
    }

    /// Nobody waits for this one any more.
    pub(crate) fn forget_waiter(&self, waiter: &Arc<Waiter>) {
        let mut waiters = lock(&self.waiters);
        if waiters.get(&waiter.id).is_some_and(|other| Arc::ptr_eq(other, waiter)) {
            waiters.remove(&waiter.id);
        }
    }

    /// Remembers which operation an answer was about, for a cancellation that comes late.
    pub(crate) fn remember_answer(&self, waiter: &Arc<Waiter>, operation: &OperationId) {
        let mut answered = lock(&self.answered);
        if answered.len() >= ANSWERED {
            answered.pop_front();
        }
        answered.push_back((Arc::clone(waiter), operation.clone()));
    }

    fn from_server(self: &Arc<Self>, line: Vec<u8>) {
        match Message::of(&line) {
            Message::One(head) if head.is_response() => {
                let id = Id::of(head.id.unwrap_or_default());
                self.answer_from_server(&id, line);
            }
            Message::One(head) if head.method.as_deref() == Some("notifications/progress") => {
                self.to_client(&line);
                self.progress(&head);
            }
            Message::One(head) if head.method.as_deref() == Some("notifications/tools/list_changed") => {
                lock(&self.catalogue).note_changed();
                self.to_client(&line);
            }
            Message::Batch(items) if items.iter().any(|item| self.is_for_us(item)) => {
                for item in items {
                    self.from_server(item.as_bytes().to_vec());
                }
            }
            Message::One(_) | Message::Batch(_) => self.to_client(&line),
            Message::Opaque => match self.upstream.mentioned_in(&line).and_then(|id| self.upstream.take(&id))
            {
                Some(Waiting::Ours(sender)) => {
                    let reason = "the server's answer is not JSON".to_owned();
                    drop(sender.send(Reply::Over(reason)));
                }
                Some(Waiting::Relayed(_)) | None => self.to_client(&line),
            },
        }
    }

    fn is_for_us(&self, item: &str) -> bool {
        Head::parse(item).is_some_and(|head| {
            head.is_response() && head.id.is_some_and(|id| self.upstream.is_ours(&Id::of(id)))
        })
    }

    fn answer_from_server(&self, id: &Id, line: Vec<u8>) {
        let (waiting, id) = (self.upstream.take(id), id.clone());
        match waiting {
            // Whoever does not wait any more needs no answer.
            Some(Waiting::Ours(sender)) => drop(sender.send(Reply::Answer(line))),
            Some(Waiting::Relayed(theirs)) => {
                let line = respond_to(&line, &theirs);
                self.seen_by_client(&Id::of(&theirs), line);
            }
            None if self.upstream.was_given(&id) => {
                self.notice("the server answered a call twice; the first answer counts");
            }
            None => self.seen_by_client(&id, line),
        }
    }

    fn seen_by_client(&self, id: &Id, line: Vec<u8>) {
        let watched = lock(&self.watched).remove(id);
        match watched {
            None => self.to_client(&line),
            Some(Watched::Tools) => {
                let line = self.learn_tools(line);
                self.to_client(&line);
            }
            Some(Watched::Task) => {
                self.learn_task(&line);
                self.to_client(&line);
            }
        }
    }

    fn learn_tools(&self, line: Vec<u8>) -> Vec<u8> {
        let Ok(text) = std::str::from_utf8(&line) else { return line };
        let Some(result) = Head::parse(text).and_then(|head| head.result) else { return line };
        let mut catalogue = lock(&self.catalogue);
        drop(catalogue.learn(result));
        match self.options.exposure {
            Exposure::Hidden => line,
            Exposure::Arguments => {
                let guarded = |tool: &str| {
                    let standing = self.standing_with(tool, &catalogue);
                    standing.is_ok_and(|standing| standing.class != onceward::Class::Read)
                };
                let shown = expose(result, guarded);
                raw::spliced(text, raw::range(text, result), &shown).into_bytes()
            }
        }
    }

    /// A task that ended tells what became of the operation that it was accepted for.
    fn learn_task(&self, line: &[u8]) {
        let Ok(text) = std::str::from_utf8(line) else { return };
        let Some(result) = Head::parse(text).and_then(|head| head.result).and_then(Object::parse) else {
            return;
        };
        let Some(task) = result.string("taskId") else { return };
        let verification = match result.string("status").as_deref() {
            Some("completed") => Verification::Confirmed,
            Some("failed" | "cancelled") => Verification::Refuted,
            Some(_) | None => return,
        };
        let Some(operation) = lock(&self.tasks).remove(&task) else { return };
        let ledger = self.ledger.clone();
        self.runtime.spawn(async move {
            let reason = Some("its task ended without success".to_owned());
            drop(ledger.record_verification(&operation, verification, reason).await);
        });
    }

    /// Whoever waits for another's call hears of its progress under his own token.
    fn progress(&self, head: &Head<'_>) {
        let Some(params) = head.params else { return };
        let Some(token) = Object::parse(params).and_then(|params| params.get("progressToken")) else {
            return;
        };
        let followers = lock(&self.progress).followers.get(&Id::of(token)).cloned().unwrap_or_default();
        for follower in followers {
            let line = raw::spliced(head.text, raw::range(head.text, token), &follower);
            self.to_client(line.as_bytes());
        }
    }

    /// A client that does not read any more is seen when its own messages end.
    fn to_client(&self, line: &[u8]) {
        drop(self.client.send(&[line]));
    }
}

fn is_call(item: &str) -> bool {
    Head::parse(item).is_some_and(|head| head.method.as_deref() == Some("tools/call") && head.id.is_some())
}

/// The id of a call of a tool that cannot be read, as far as it can be seen; `null` where it cannot.
fn unreadable_call(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    if !text.contains("tools/call") && !text.contains("tools\\/call") {
        return None;
    }
    let after =
        text.split_once("\"id\"").map(|(_, rest)| rest.trim_start().trim_start_matches(':').trim_start());
    let number: String = after.unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
    let quoted =
        after.and_then(|rest| rest.strip_prefix('"')?.split_once('"')).map(|(id, _)| raw::quoted(id));
    Some(quoted.unwrap_or(if number.is_empty() { "null".to_owned() } else { number }))
}

/// What its caller is told.
fn unreadable(id: &str) -> String {
    let problem = "once: this is not JSON in UTF-8, so the call cannot be guarded; nothing was run";
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32700,\"message\":\"{problem}\"}}}}")
}

/// An answer under another id.
pub(crate) fn respond_to(line: &[u8], id: &str) -> Vec<u8> {
    let text = std::str::from_utf8(line).ok();
    match text.and_then(|text| Some((text, Head::parse(text)?.id_place()?))) {
        Some((text, place)) => raw::spliced(text, place, id).into_bytes(),
        None => line.to_vec(),
    }
}
