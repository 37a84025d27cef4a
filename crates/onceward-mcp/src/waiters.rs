//! Which requests wait for an answer, which clients gave up, and whether an answer was read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use onceward::OperationId;
use quick_cache::sync::Cache;

use crate::message::Id;
use crate::upstream::lock;

/// How many answers are remembered for a cancellation that comes long after them.
const ANSWERED: usize = 4_096;
/// How many callers are remembered that cancel requests which are answered already.
const TIDY: usize = 1_024;
/// A cancellation that comes later than this after the answer cannot have crossed it.
const CROSSING_MS: i64 = 1_000;
/// How clients call a cancellation that only cleans up: the reason of a signal that is aborted after the call has
/// ended.
const CLEANING: [&str; 2] = ["AbortError", "undefined"];

/// The channel of a client on a stream: its messages, and its going, are seen in their order.
pub(crate) const ONE_STREAM: u64 = 0;

/// Whose requests share their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// The session that the transport names, where it has any.
    pub(crate) session: Option<String>,
    /// A hash of the caller's credentials, where it has any.
    pub(crate) principal: Option<String>,
}

/// A client's request that waits for its answer.
pub(crate) struct Waiter {
    pub(crate) id: Id,
    pub(crate) id_text: String,
    /// When it came, by the ledger's clock.
    pub(crate) since_ms: i64,
    pub(crate) caller: Caller,
    /// Where news of it come in: tokens of progress are unique in it.
    pub(crate) channel: u64,
    /// Slow answers that its client was given before, and has not been seen to read.
    pub(crate) unread: Vec<OperationId>,
    gone: AtomicBool,
}

impl Waiter {
    pub(crate) fn new(
        id_text: &str,
        caller: Caller,
        channel: u64,
        since_ms: i64,
        unread: Vec<OperationId>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id: Id::of(id_text),
            id_text: id_text.to_owned(),
            since_ms,
            caller,
            channel,
            unread,
            gone: AtomicBool::new(false),
        })
    }

    /// Whether the client has cancelled it, or left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// The client has cancelled it, or left.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

/// What a cancellation was about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// A call that is under way.
    Waiting,
    /// One whose answer has left, at the same time: it was not taken.
    Crossed(OperationId),
    /// One whose answer was read before: the client only cleans up.
    Late,
    /// None that we know.
    Unknown,
}

/// Whose words an answer was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// The server's, to this very call.
    Own,
    /// The stored answer of an earlier call.
    Replay,
}

/// An answer that has left, until its client makes another request.
pub(crate) struct Answered {
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) operation: OperationId,
    pub(crate) at_ms: i64,
    pub(crate) said: Said,
    /// Whether the client may have given up before it came.
    pub(crate) slow: bool,
}

/// A client's id may name several requests, where clients share a caller.
type Waiting = HashMap<(Caller, Id), Vec<Arc<Waiter>>>;

/// All who wait.
pub(crate) struct Waiters {
    waiting: Mutex<Waiting>,
    /// Answers after which their caller has made no other request yet.
    fresh: Mutex<HashMap<Caller, Vec<Answered>>>,
    fresh_count: AtomicUsize,
    /// Requests whose answers were read.
    read: Cache<(Caller, Id), ()>,
    /// Callers that cancel requests which are answered already, to clean up.
    tidy: Cache<Caller, ()>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            fresh: Mutex::default(),
            fresh_count: AtomicUsize::new(0),
            read: Cache::new(ANSWERED),
            tidy: Cache::new(TIDY),
        }
    }
}

impl Waiters {
    pub(crate) fn add(&self, waiter: &Arc<Waiter>) {
        let key = (waiter.caller.clone(), waiter.id.clone());
        lock(&self.waiting).entry(key).or_default().push(Arc::clone(waiter));
    }

    /// This one waits no more.
    pub(crate) fn forget(&self, waiter: &Arc<Waiter>) {
        let key = (waiter.caller.clone(), waiter.id.clone());
        remove(&mut lock(&self.waiting), &key, waiter);
    }

    /// Ends a wait because its answer leaves now, and tells whether the answer is still wanted. Only then `leaves` is
    /// called, in one step with the end of the wait: a cancellation finds a request that waits, or an answer that left.
    pub(crate) fn end_wait(&self, waiter: &Arc<Waiter>, leaves: impl FnOnce()) -> bool {
        let key = (waiter.caller.clone(), waiter.id.clone());
        let mut waiting = lock(&self.waiting);
        let is_wanted = !waiter.is_gone();
        if is_wanted {
            leaves();
        }
        remove(&mut waiting, &key, waiter);
        is_wanted
    }

    /// Remembers an answer that leaves now, for a cancellation that may cross it.
    pub(crate) fn remember_answer(&self, answered: Answered) {
        let mut fresh = lock(&self.fresh);
        if fresh.len() >= ANSWERED && !fresh.contains_key(&answered.waiter.caller) {
            let oldest = fresh.iter().min_by_key(|(_, all)| all.first().map_or(0, |one| one.at_ms));
            let oldest = oldest.map(|(caller, _)| caller.clone());
            oldest.iter().for_each(|caller| self.age(&mut fresh, caller));
        }
        fresh.entry(answered.waiter.caller.clone()).or_default().push(answered);
        self.fresh_count.fetch_add(1, Ordering::SeqCst);
    }

    /// The caller makes another request: it has read what it was answered before. Gives the operations whose
    /// answers were slow.
    pub(crate) fn heard(&self, caller: &Caller) -> Vec<OperationId> {
        if self.fresh_count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut fresh = lock(&self.fresh);
        let slow = fresh.get(caller).into_iter().flatten().filter(|one| one.slow);
        let slow = slow.map(|one| one.operation.clone()).collect();
        self.age(&mut fresh, caller);
        slow
    }

    fn age(&self, fresh: &mut HashMap<Caller, Vec<Answered>>, caller: &Caller) {
        for one in fresh.remove(caller).unwrap_or_default() {
            self.fresh_count.fetch_sub(1, Ordering::SeqCst);
            self.read.insert((caller.clone(), one.waiter.id.clone()), ());
        }
    }

    /// The caller has given up what it asked under this id.
    pub(crate) fn cancel(&self, caller: &Caller, id: Id, reason: Option<&str>, now_ms: i64) -> Cancelled {
        let key = (caller.clone(), id);
        if let Some(same) = lock(&self.waiting).remove(&key) {
            same.iter().for_each(|waiter| waiter.leave());
            return Cancelled::Waiting;
        }
        let mut fresh = lock(&self.fresh);
        let all = fresh.get_mut(caller);
        let late = all.and_then(|all| all.iter_mut().rev().find(|one| one.waiter.id == key.1));
        match late {
            Some(one) if has_crossed(one, reason, self.tidy.get(caller).is_some(), now_ms) => {
                one.waiter.leave();
                Cancelled::Crossed(one.operation.clone())
            }
            None if self.read.get(&key).is_none() => Cancelled::Unknown,
            Some(_) | None => {
                self.tidy.insert(caller.clone(), ());
                Cancelled::Late
            }
        }
    }
}

fn remove(waiting: &mut Waiting, key: &(Caller, Id), waiter: &Arc<Waiter>) {
    if let Some(same) = waiting.get_mut(key) {
        same.retain(|other| !Arc::ptr_eq(other, waiter));
        if same.is_empty() {
            waiting.remove(key);
        }
    }
}

/// Whether a cancellation after the answer can have been sent before the answer was read. TypeScript clients cancel
/// what was answered long ago when a signal is aborted, so only a cancellation at the same moment counts, and none
/// by a client that cleans up unless it says that its time was over. What replays an answer says what the same call
/// gets next; no cancellation makes that untrue.
fn has_crossed(answered: &Answered, reason: Option<&str>, is_tidy: bool, now_ms: i64) -> bool {
    let says_timeout = reason.is_some_and(|reason| {
        let reason = reason.to_ascii_lowercase();
        reason.contains("timed out") || reason.contains("timeout") || reason.contains("deadline")
    });
    let cleans = reason.is_some_and(|reason| CLEANING.iter().any(|word| reason.starts_with(word)));
    answered.said == Said::Own
        && now_ms - answered.at_ms <= CROSSING_MS
        && (says_timeout || !(cleans || is_tidy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(waiters: &Waiters, id: &str, said: Said, at_ms: i64) {
        let waiter = Waiter::new(id, Caller::default(), 0, 0, Vec::new());
        let operation = OperationId::of("s", "n", id);
        waiters.remember_answer(Answered { waiter, operation, at_ms, said, slow: false });
    }

    #[test]
    fn a_late_cancellation_counts_only_where_it_can_have_crossed_the_answer() {
        let timeout = Some("McpError: MCP error -32001: Request timed out");
        let abort = Some("AbortError: This operation was aborted");
        let cases = [
            // said, followed by another request, the reason, how late, whether it counts
            (Said::Own, false, None, 0, true),
            (Said::Own, false, None, 1_000, true),
            (Said::Own, false, None, 1_001, false),
            (Said::Own, true, None, 0, false),
            (Said::Own, false, abort, 0, false),
            (Said::Own, false, Some("undefined"), 5, false),
            (Said::Own, false, timeout, 500, true),
            (Said::Own, true, timeout, 0, false),
            (Said::Own, false, timeout, 30_000, false),
            (Said::Replay, false, None, 0, false),
            (Said::Replay, false, timeout, 0, false),
        ];
        for (said, followed, reason, late_ms, counts) in cases {
            let waiters = Waiters::default();
            answered(&waiters, "1", said, 100);
            if followed {
                waiters.heard(&Caller::default());
            }
            let cancelled = waiters.cancel(&Caller::default(), Id::of("1"), reason, 100 + late_ms);
            let expected =
                if counts { Cancelled::Crossed(OperationId::of("s", "n", "1")) } else { Cancelled::Late };
            assert_eq!(cancelled, expected, "{said:?} {followed} {reason:?} {late_ms}");
        }
    }

    #[test]
    fn a_client_that_cleans_up_is_known_by_it() {
        let waiters = Waiters::default();
        answered(&waiters, "1", Said::Replay, 0);
        assert_eq!(waiters.cancel(&Caller::default(), Id::of("1"), None, 0), Cancelled::Late);
        answered(&waiters, "2", Said::Own, 0);
        assert_eq!(waiters.cancel(&Caller::default(), Id::of("2"), None, 0), Cancelled::Late);
        answered(&waiters, "3", Said::Own, 0);
        let timeout = waiters.cancel(&Caller::default(), Id::of("3"), Some("Request timed out"), 0);
        assert!(matches!(timeout, Cancelled::Crossed(_)));
        assert_eq!(waiters.cancel(&Caller::default(), Id::of("4"), None, 0), Cancelled::Unknown);
        let other = Caller { session: Some("s".to_owned()), principal: None };
        assert_eq!(waiters.cancel(&other, Id::of("1"), None, 0), Cancelled::Unknown);
    }
}
