//! What all calls of one server share, whatever carries them: the ledger, the rules, and what is known of its tools.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onceward::policy::OnToolError;
use onceward::{Class, InvalidInput, KeyPolicy, Ledger, OperationId, Policy, Verification};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::delivery::Memory;
use crate::doubts::Doubts;
use crate::elicit::Asking;
use crate::message::{Head, Id};
use crate::orphans::Orphans;
use crate::progress::Progress;
use crate::raw::{self, Object};
use crate::scope::HostScope;
use crate::seal::Seal;
use crate::tools::{Catalogue, Exposure, Guess, Rules, Standing, Trust, expose};
use crate::upstream::lock;
use crate::waiters::{Caller, Cancelled, Waiter, Waiters};

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
    /// Whether a tool without annotations is judged by its name.
    pub guess: Guess,
    /// What a tool's own error means, unless the policy says so for the tool.
    pub on_tool_error: Option<OnToolError>,
    /// How a person's program is called so that it finds the same ledger.
    pub program: String,
    /// Whether the model sees arguments for a key and a dry run.
    pub exposure: Exposure,
    /// Whether nothing is to be run that changes something.
    pub dry_run: bool,
    /// When a client may have given up without saying so.
    pub slow: Slow,
    /// How long an operation that is known to be done, without its result, stays closed; and how long after a slow
    /// answer the same call is a retry.
    pub window_ms: u64,
    /// How long a call waits for the same one of another caller, and for a lock.
    pub wait_ms: u64,
    /// How long calls may go on when the client is gone.
    pub drain_ms: u64,
    /// Whether the human may be asked about an operation in doubt.
    pub asking: Asking,
    /// Where notices for people go.
    pub notice: Box<dyn Fn(&str) + Send + Sync>,
}

/// When a client may have given up without saying so: after an answer that took at least this long, the same call
/// as its next request is a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// How long such an answer takes.
    pub ms: u64,
    /// Whether that holds for every client, or only for those that are known to give up in silence.
    pub every_client: bool,
}

/// Clients that give up without a cancellation, as they call themselves in `initialize`: the Python SDK 1.x, and
/// the AI SDK by stdio.
const SILENT_CLIENTS: [&str; 2] = ["mcp", "ai-sdk-mcp-client"];

/// What all calls of one server share.
pub(crate) struct Desk {
    pub(crate) ledger: Ledger,
    pub(crate) options: Options,
    pub(crate) rules: Rules,
    pub(crate) memory: Memory,
    pub(crate) catalogue: Mutex<Catalogue>,
    pub(crate) listing: tokio::sync::Mutex<()>,
    pub(crate) limits: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Operations that were accepted as a task, by the task's id.
    pub(crate) tasks: Mutex<HashMap<String, OperationId>>,
    pub(crate) progress: Progress,
    pub(crate) waiters: Waiters,
    pub(crate) orphans: Orphans,
    pub(crate) doubts: Doubts,
    /// Whether the client is one that gives up in silence.
    pub(crate) silent_client: AtomicBool,
    /// Whether the client says no more: it may still read, but does not show that it does.
    pub(crate) client_left: AtomicBool,
    /// What makes our questions ours when they come back; none where there is no randomness.
    pub(crate) seal: Option<Seal>,
    /// Operations that a human is being asked about.
    pub(crate) asking: Mutex<HashSet<OperationId>>,
    pub(crate) runtime: Handle,
    active: (Mutex<usize>, Condvar),
}

/// Counts a call that is under way, until it is dropped.
pub(crate) struct Active(Arc<Desk>);

impl Drop for Active {
    fn drop(&mut self) {
        let (count, changed) = &self.0.active;
        *lock(count) -= 1;
        changed.notify_all();
    }
}

impl Desk {
    /// A desk that keeps its calls on that runtime.
    pub(crate) fn new(ledger: Ledger, mut options: Options, runtime: Handle) -> Arc<Self> {
        let rules = Rules {
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
            rules,
            memory: Memory::default(),
            catalogue: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            limits: Mutex::default(),
            tasks: Mutex::default(),
            progress: Progress::default(),
            waiters: Waiters::default(),
            orphans: Orphans::default(),
            doubts: Doubts::default(),
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

    /// Waits until no call is under way, or for so long; tells whether none is. Blocks.
    pub(crate) fn wait_idle(&self, patience_ms: u64) -> bool {
        let (count, changed) = &self.active;
        let patience = Duration::from_millis(patience_ms);
        let waited = changed.wait_timeout_while(lock(count), patience, |count| *count > 0);
        waited.is_ok_and(|(count, _)| *count == 0)
    }

    pub(crate) fn standing(&self, tool: &str) -> Result<Standing, InvalidInput> {
        self.standing_with(tool, &lock(&self.catalogue))
    }

    fn standing_with(&self, tool: &str, catalogue: &Catalogue) -> Result<Standing, InvalidInput> {
        self.rules.standing(tool, catalogue.get(tool))
    }

    /// Whether the tool changes nothing, as far as is known.
    fn is_read(&self, tool: &str, catalogue: &Catalogue) -> bool {
        self.standing_with(tool, catalogue).is_ok_and(|standing| standing.class == Class::Read)
    }

    /// Whether it is known at once that the tool changes nothing.
    pub(crate) fn passes(&self, tool: &str) -> bool {
        let catalogue = lock(&self.catalogue);
        let known = catalogue.is_listed() || self.rules.decide_alone(tool);
        known && self.is_read(tool, &catalogue)
    }

    /// The tools that change nothing, for whoever has to look.
    pub(crate) fn readers(&self) -> Vec<String> {
        let catalogue = lock(&self.catalogue);
        catalogue.all().keys().filter(|tool| self.is_read(tool, &catalogue)).cloned().collect()
    }

    /// A cancellation of a call that the ledger knows: no request waits for it any more, and it goes on, because to
    /// stop it would destroy the only witness. Tells whether it was such a call.
    pub(crate) fn cancelled(self: &Arc<Self>, caller: &Caller, head: &Head<'_>) -> bool {
        let params = head.params.and_then(Object::parse);
        let Some(id) = params.as_ref().and_then(|params| params.get("requestId").map(Id::of)) else {
            return false;
        };
        let reason = params.and_then(|params| params.string("reason"));
        match self.waiters.cancel(caller, id, reason.as_deref(), self.ledger.clock_ms()) {
            Cancelled::Waiting | Cancelled::Late => true,
            // The answer had left, and the client had given up before it came: it was not taken.
            Cancelled::Crossed(operation) => {
                self.not_delivered(operation);
                true
            }
            Cancelled::Unknown => false,
        }
    }

    /// An answer that has left was not taken. The next message of the client finds it so.
    pub(crate) fn not_delivered(self: &Arc<Self>, operation: OperationId) {
        self.memory.not_delivered(&operation);
        let (desk, active) = (Arc::clone(self), self.begin_activity());
        self.runtime.spawn(async move {
            drop(desk.ledger.take_delivery_back(&operation).await);
            drop(active);
        });
    }

    /// The client says hello, and who it is.
    pub(crate) fn greeted(&self, params: Option<&str>) {
        let client = params.and_then(Object::parse).and_then(|params| params.object("clientInfo"));
        let name = client.and_then(|client| client.string("name")).unwrap_or_default();
        self.silent_client.store(SILENT_CLIENTS.contains(&name.as_str()), Ordering::SeqCst);
    }

    /// The caller makes a request that is no guarded call: it has read what it was answered before.
    pub(crate) fn heard(&self, caller: &Caller) {
        for operation in self.waiters.heard(caller) {
            self.memory.note_read(operation);
        }
    }

    /// A guarded call comes: who waits for its answer. Whether earlier answers were read depends on what it asks for.
    pub(crate) fn waiter(&self, id: &str, caller: Caller, channel: u64) -> Arc<Waiter> {
        let unread = self.waiters.heard(&caller);
        Waiter::new(id, caller, channel, self.ledger.clock_ms(), unread)
    }

    /// Learns from the answer to `tools/list`, and gives it as the client is to see it.
    pub(crate) fn learn_tools(&self, line: Vec<u8>) -> Vec<u8> {
        let Ok(text) = std::str::from_utf8(&line) else { return line };
        let Some(result) = Head::parse(text).and_then(|head| head.result) else { return line };
        let mut catalogue = lock(&self.catalogue);
        drop(catalogue.learn(result));
        match self.options.exposure {
            Exposure::Hidden => line,
            Exposure::Arguments => {
                let guarded = |tool: &str| {
                    let standing = self.standing_with(tool, &catalogue);
                    standing.is_ok_and(|standing| standing.class != Class::Read)
                };
                let shown = expose(result, guarded);
                raw::spliced(text, raw::range(text, result), &shown).into_bytes()
            }
        }
    }

    /// A task that ended tells what became of the operation that it was accepted for.
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
            drop(ledger.record_verification(&operation, verification, reason).await);
        });
    }
}
