//! Tracks which requests wait for an answer, which clients gave up, and which answers were read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use onceward::OperationId;
use onceward_http::socket::Peer;
use quick_cache::sync::Cache;

use crate::sync::lock;
use crate::wire::message::Id;

/// The most answers that are remembered for late cancellations.
const ANSWERED: usize = 4_096;
/// The most callers that are remembered because they cancel answered requests.
const TIDY: usize = 1_024;
/// A cancellation that arrives later than this after the answer cannot have crossed it.
const CROSSING_MS: i64 = 1_000;
/// How the reason of a cancellation begins that only cleans up: its signal was aborted after the call had ended.
const CLEANING: [&str; 2] = ["AbortError", "undefined"];

/// The channel of a client on a stream, whose messages and end are seen in order.
pub(crate) const ONE_STREAM: u64 = 0;

/// A caller. The request ids of one caller are comparable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// The session id of the transport, if it has one.
    pub(crate) session: Option<String>,
    /// A hash of the caller's credentials, if it has any.
    pub(crate) principal: Option<String>,
}

/// A client's request that waits for its answer.
pub(crate) struct Waiter {
    pub(crate) id: Id,
    pub(crate) id_text: String,
    /// When it arrived, on the ledger's clock.
    pub(crate) since_ms: i64,
    pub(crate) caller: Caller,
    /// Where its progress notifications arrive. Progress tokens are unique per channel.
    pub(crate) channel: u64,
    /// Slow answers that its client was sent before and may not have read.
    pub(crate) unread: Vec<OperationId>,
    /// Its connection, if it has one of its own.
    peer: Peer,
    /// Whether its answer is on its way. A client that closes its connection after that has read it.
    answered: AtomicBool,
    gone: AtomicBool,
}

impl Waiter {
    pub(crate) fn new(
        id_text: &str,
        caller: Caller,
        channel: u64,
        since_ms: i64,
        unread: Vec<OperationId>,
        peer: Peer,
    ) -> Arc<Self> {
        Arc::new(Self {
            id: Id::of(id_text),
            id_text: id_text.to_owned(),
            since_ms,
            caller,
            channel,
            unread,
            peer,
            answered: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Whether the client cancelled it or left before its answer.
    pub(crate) fn is_gone(&self) -> bool {
        let has_left = || !self.answered.load(Ordering::SeqCst) && self.peer.is_gone();
        self.gone.load(Ordering::SeqCst) || has_left()
    }

    /// Notes that its answer is sent now. Returns whether the client is there to read it.
    pub(crate) fn begin_answer(&self) -> bool {
        if self.peer.is_gone() {
            self.leave();
        }
        self.answered.store(true, Ordering::SeqCst);
        !self.is_gone()
    }

    /// Notes that the client cancelled it or left.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

/// What a cancellation refers to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// A call in flight.
    Waiting,
    /// A call whose answer was sent at the same moment and not received.
    Crossed(OperationId),
    /// A call whose answer was read before: the client only cleans up.
    Late,
    /// An unknown call.
    Unknown,
}

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerSource {
    /// It belongs to this call.
    Own,
    /// It is the stored answer of an earlier call.
    Replay,
}

/// An answer that was sent, until its client makes another request.
pub(crate) struct Answered {
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) operation: OperationId,
    pub(crate) at_ms: i64,
    pub(crate) source: AnswerSource,
    /// Whether the client may have given up before it arrived.
    pub(crate) slow: bool,
}

/// One id may name several requests, if clients share a caller.
type WaitersById = HashMap<(Caller, Id), Vec<Arc<Waiter>>>;

/// All requests that wait.
pub(crate) struct Waiters {
    waiting: Mutex<WaitersById>,
    /// Answers whose caller has made no other request since.
    fresh: Mutex<HashMap<Caller, Vec<Answered>>>,
    fresh_count: AtomicUsize,
    /// Requests whose answers were read.
    read: Cache<(Caller, Id), ()>,
    /// Callers that cancel answered requests to clean up.
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

    /// Removes a request that no longer waits.
    pub(crate) fn forget(&self, waiter: &Arc<Waiter>) {
        let key = (waiter.caller.clone(), waiter.id.clone());
        remove(&mut lock(&self.waiting), &key, waiter);
    }

    /// Ends a wait because its answer is being sent. Returns whether the answer is still wanted, and calls `leaves`
    /// only then. Both happen in one step, so that a cancellation finds either a waiting request or a sent answer.
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

    /// Remembers an answer that is being sent, for a cancellation that may cross it.
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

    /// Notes another request of the caller, which has therefore read its earlier answers. Returns the operations
    /// whose answers were slow.
    pub(crate) fn note_request_from(&self, caller: &Caller) -> Vec<OperationId> {
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

    /// Handles a cancellation of the request with this id.
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

fn remove(waiting: &mut WaitersById, key: &(Caller, Id), waiter: &Arc<Waiter>) {
    if let Some(same) = waiting.get_mut(key) {
        same.retain(|other| !Arc::ptr_eq(other, waiter));
        if same.is_empty() {
            waiting.remove(key);
        }
    }
}

/// Whether a cancellation after the answer can have been sent before the answer was read. TypeScript clients cancel
/// requests that were answered long ago when a signal is aborted. So only a cancellation at the same moment counts,
/// and from a client that cleans up only if it reports a timeout. A replay says what the same call gets next, so a
/// cancellation must not change that.
fn has_crossed(answered: &Answered, reason: Option<&str>, is_tidy: bool, now_ms: i64) -> bool {
    let says_timeout = reason.is_some_and(|reason| {
        let reason = reason.to_ascii_lowercase();
        reason.contains("timed out") || reason.contains("timeout") || reason.contains("deadline")
    });
    let cleans = reason.is_some_and(|reason| CLEANING.iter().any(|word| reason.starts_with(word)));
    answered.source == AnswerSource::Own
        && now_ms - answered.at_ms <= CROSSING_MS
        && (says_timeout || !(cleans || is_tidy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(waiters: &Waiters, id: &str, source: AnswerSource, at_ms: i64) {
        let waiter = Waiter::new(id, Caller::default(), 0, 0, Vec::new(), Peer::default());
        let operation = OperationId::of("s", "n", id);
        waiters.remember_answer(Answered { waiter, operation, at_ms, source, slow: false });
    }

    #[tokio::test]
    async fn a_client_that_leaves_before_its_answer_is_gone_and_one_that_leaves_after_it_is_not() {
        let connected = || {
            let (client, served) = tokio::net::UnixStream::pair().unwrap();
            let served = onceward_http::socket::Shared::new(served);
            let waiter = Waiter::new("1", Caller::default(), 0, 0, Vec::new(), served.peer());
            (client, served, waiter)
        };
        let (client, _served, left) = connected();
        assert!(!left.is_gone());
        drop(client);
        assert!(left.is_gone() && !left.begin_answer() && left.is_gone());
        let (client, served, read) = connected();
        assert!(read.begin_answer());
        drop((client, served));
        assert!(!read.is_gone(), "it closed its connection after its answer");
    }

    #[test]
    fn a_late_cancellation_counts_only_if_it_can_have_crossed_the_answer() {
        let timeout = Some("McpError: MCP error -32001: Request timed out");
        let abort = Some("AbortError: This operation was aborted");
        let cases = [
            // source, another request in between, reason, delay, whether it counts
            (AnswerSource::Own, false, None, 0, true),
            (AnswerSource::Own, false, None, 1_000, true),
            (AnswerSource::Own, false, None, 1_001, false),
            (AnswerSource::Own, true, None, 0, false),
            (AnswerSource::Own, false, abort, 0, false),
            (AnswerSource::Own, false, Some("undefined"), 5, false),
            (AnswerSource::Own, false, timeout, 500, true),
            (AnswerSource::Own, true, timeout, 0, false),
            (AnswerSource::Own, false, timeout, 30_000, false),
            (AnswerSource::Replay, false, None, 0, false),
            (AnswerSource::Replay, false, timeout, 0, false),
        ];
        for (source, followed, reason, late_ms, counts) in cases {
            let waiters = Waiters::default();
            answered(&waiters, "1", source, 100);
            if followed {
                waiters.note_request_from(&Caller::default());
            }
            let cancelled = waiters.cancel(&Caller::default(), Id::of("1"), reason, 100 + late_ms);
            let expected =
                if counts { Cancelled::Crossed(OperationId::of("s", "n", "1")) } else { Cancelled::Late };
            assert_eq!(cancelled, expected, "{source:?} {followed} {reason:?} {late_ms}");
        }
    }

    #[test]
    fn a_client_that_cleans_up_is_recognized() {
        let waiters = Waiters::default();
        answered(&waiters, "1", AnswerSource::Replay, 0);
        assert_eq!(waiters.cancel(&Caller::default(), Id::of("1"), None, 0), Cancelled::Late);
        answered(&waiters, "2", AnswerSource::Own, 0);
        assert_eq!(waiters.cancel(&Caller::default(), Id::of("2"), None, 0), Cancelled::Late);
        answered(&waiters, "3", AnswerSource::Own, 0);
        let timeout = waiters.cancel(&Caller::default(), Id::of("3"), Some("Request timed out"), 0);
        assert!(matches!(timeout, Cancelled::Crossed(_)));
        assert_eq!(waiters.cancel(&Caller::default(), Id::of("4"), None, 0), Cancelled::Unknown);
        let other = Caller { session: Some("s".to_owned()), principal: None };
        assert_eq!(waiters.cancel(&other, Id::of("1"), None, 0), Cancelled::Unknown);
    }
}
