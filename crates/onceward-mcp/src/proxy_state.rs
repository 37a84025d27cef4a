//! What all calls of one server share, on every transport: the ledger, the rules, and what is known about its tools.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onceward::{Class, InvalidInput, Ledger, OperationId, Verification};
use onceward_http::socket::Peer;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::answer::doubt_memory::DoubtMemory;
use crate::call::orphans::Orphans;
use crate::call::progress::Progress;
use crate::call::retry_or_repeat::CallMemory;
use crate::call::seal::Seal;
use crate::call::waiters::{Caller, Cancelled, Waiter, Waiters};
use crate::options::Options;
use crate::sync::lock;
use crate::tools::rules::{Catalogue, Exposure, RuleSet, ToolRules, expose};
use crate::wire::message::{Head, Id};
use crate::wire::raw::{self, Object};

/// Clients that give up without a cancellation, by their name in `initialize`: the Python SDK 1.x, and the AI SDK
/// over stdio.
const SILENT_CLIENTS: [&str; 2] = ["mcp", "ai-sdk-mcp-client"];

/// What all calls of one server share.
pub(crate) struct ProxyState {
    pub(crate) ledger: Ledger,
    pub(crate) options: Options,
    pub(crate) rule_set: RuleSet,
    pub(crate) memory: CallMemory,
    pub(crate) catalogue: Mutex<Catalogue>,
    pub(crate) listing: tokio::sync::Mutex<()>,
    pub(crate) limits: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Operations that were accepted as a task, by task id.
    pub(crate) tasks: Mutex<HashMap<String, OperationId>>,
    pub(crate) progress: Progress,
    pub(crate) waiters: Waiters,
    pub(crate) orphans: Orphans,
    pub(crate) doubts: DoubtMemory,
    /// Whether the client is known to give up silently.
    pub(crate) silent_client: AtomicBool,
    /// Whether the client's input has ended. It may still read, but there is no evidence that it does.
    pub(crate) client_left: AtomicBool,
    /// Signs our questions to the human. `None` if there is no source of randomness.
    pub(crate) seal: Option<Seal>,
    /// Operations that the human is being asked about.
    pub(crate) asking: Mutex<HashSet<OperationId>>,
    pub(crate) runtime: Handle,
    active: (Mutex<usize>, Condvar),
}

/// Counts a call in flight until it is dropped.
pub(crate) struct Active(Arc<ProxyState>);

impl Drop for Active {
    fn drop(&mut self) {
        let (count, changed) = &self.0.active;
        *lock(count) -= 1;
        changed.notify_all();
    }
}

impl ProxyState {
    /// Creates the state. Its calls run on that runtime.
    pub(crate) fn new(ledger: Ledger, mut options: Options, runtime: Handle) -> Arc<Self> {
        let rule_set = RuleSet {
            policy: std::mem::take(&mut options.policy),
            server: options.server.clone(),
            keys: options.keys,
            trust: options.trust,
            guess: options.guess,
            on_tool_error: options.on_tool_error,
        };
        Arc::new(Self {
            ledger,
            options,
            rule_set,
            memory: CallMemory::default(),
            catalogue: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            limits: Mutex::default(),
            tasks: Mutex::default(),
            progress: Progress::default(),
            waiters: Waiters::default(),
            orphans: Orphans::default(),
            doubts: DoubtMemory::default(),
            silent_client: AtomicBool::new(false),
            client_left: AtomicBool::new(false),
            seal: Seal::new(),
            asking: Mutex::default(),
            runtime,
            active: (Mutex::new(0), Condvar::new()),
        })
    }

    pub(crate) fn notice(&self, text: &str) {
        (self.options.notice)(text);
    }

    pub(crate) fn begin_activity(self: &Arc<Self>) -> Active {
        *lock(&self.active.0) += 1;
        Active(Arc::clone(self))
    }

    /// Waits until no call is in flight, or until the time is over. Returns whether none is. Blocks.
    pub(crate) fn wait_idle(&self, patience_ms: u64) -> bool {
        let (count, changed) = &self.active;
        let patience = Duration::from_millis(patience_ms);
        let waited = changed.wait_timeout_while(lock(count), patience, |count| *count > 0);
        waited.is_ok_and(|(count, _)| *count == 0)
    }

    pub(crate) fn tool_rules(&self, tool: &str) -> Result<ToolRules, InvalidInput> {
        self.rule_set.tool_rules(tool, lock(&self.catalogue).get(tool))
    }

    /// Whether the tool is read-only, as far as is known.
    fn is_read(&self, tool: &str, catalogue: &Catalogue) -> bool {
        self.rule_set.tool_rules(tool, catalogue.get(tool)).is_ok_and(|rules| rules.class == Class::Read)
    }

    /// Whether the tool is known to be read-only without asking the server.
    pub(crate) fn is_known_read(&self, tool: &str) -> bool {
        let catalogue = lock(&self.catalogue);
        let known = catalogue.is_listed() || self.rule_set.decide_alone(tool);
        known && self.is_read(tool, &catalogue)
    }

    /// The read-only tools, with which an agent can check an outcome.
    pub(crate) fn readers(&self) -> Vec<String> {
        let catalogue = lock(&self.catalogue);
        catalogue.all().keys().filter(|tool| self.is_read(tool, &catalogue)).cloned().collect()
    }

    /// Handles a cancellation. A guarded call continues without its request, because stopping it would make its
    /// outcome unknowable. Returns whether it was a guarded call.
    pub(crate) fn cancel(self: &Arc<Self>, caller: &Caller, head: &Head<'_>) -> bool {
        let params = head.params.and_then(Object::parse);
        let Some(id) = params.as_ref().and_then(|params| params.get("requestId").map(Id::of)) else {
            return false;
        };
        let reason = params.and_then(|params| params.string("reason"));
        match self.waiters.cancel(caller, id, reason.as_deref(), self.ledger.clock_ms()) {
            Cancelled::Waiting | Cancelled::Late => true,
            // The answer was already sent, but the client gave up before it arrived.
            Cancelled::Crossed(operation) => {
                self.not_delivered(operation);
                true
            }
            Cancelled::Unknown => false,
        }
    }

    /// Notes that an answer was not received. The client's next message takes this into account.
    pub(crate) fn not_delivered(self: &Arc<Self>, operation: OperationId) {
        self.memory.not_delivered(&operation);
        self.memory.taking_back(&operation);
        let (state, active) = (Arc::clone(self), self.begin_activity());
        self.runtime.spawn(async move {
            state.take_delivery_back(&operation).await;
            state.memory.taken_back(&operation);
            drop(active);
        });
    }

    /// Notes which client this is, from `initialize`.
    pub(crate) fn note_client(&self, params: Option<&str>) {
        let client = params.and_then(Object::parse).and_then(|params| params.object("clientInfo"));
        let name = client.and_then(|client| client.string("name")).unwrap_or_default();
        self.silent_client.store(SILENT_CLIENTS.contains(&name.as_str()), Ordering::SeqCst);
    }

    /// Notes a request that is not a guarded call: the caller has read its earlier answers.
    pub(crate) fn note_request_from(&self, caller: &Caller) {
        for operation in self.waiters.note_request_from(caller) {
            self.memory.note_read(operation);
        }
    }

    /// The waiter of a new guarded call. Whether earlier answers were read depends on what it requests.
    pub(crate) fn waiter(&self, id: &str, caller: Caller, channel: u64, peer: Peer) -> Arc<Waiter> {
        let unread = self.waiters.note_request_from(&caller);
        Waiter::new(id, caller, channel, self.ledger.clock_ms(), unread, peer)
    }

    /// Learns the tools from an answer to `tools/list`. Returns the answer for the client.
    pub(crate) fn learn_tools(&self, line: Vec<u8>) -> Vec<u8> {
        let Ok(text) = std::str::from_utf8(&line) else { return line };
        let Some(result) = Head::parse(text).and_then(|head| head.result) else { return line };
        let mut catalogue = lock(&self.catalogue);
        drop(catalogue.learn(result));
        match self.options.exposure {
            Exposure::Hidden => line,
            Exposure::Arguments => {
                let guarded = |tool: &str| {
                    let rules = self.rule_set.tool_rules(tool, catalogue.get(tool));
                    rules.is_ok_and(|rules| rules.class != Class::Read)
                };
                let shown = expose(result, guarded);
                raw::spliced(text, raw::range(text, result), &shown).into_bytes()
            }
        }
    }

    /// Records the outcome of an operation that was accepted as a task, when the task has ended.
    pub(crate) fn learn_task(&self, line: &[u8]) {
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
            drop(ledger.attempts().verified(&operation, verification, reason).await);
        });
    }
}
