//! Requests that were answered with a stored answer. An equal request, byte for byte, refers to the same operation, so
//! its content is not parsed and hashed again. The ledger is asked every time whether the answer may still be replayed.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode};
use onceward::{Intent, OperationId, Receipt, Record, Verification};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};

use super::reply::Reply;
use super::upstream::Upstream;
use crate::tenant::Tenant;

/// The memory of all answers, in bytes.
const MEMORY: u64 = 16 * 1024 * 1024;
/// A larger request or answer is not remembered.
const LARGEST: usize = 16 * 1024;
/// The size of an entry without its answer.
const ENTRY: usize = 4 * 1024;
/// Headers that have no influence on the answer: they name the trace of one request.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// The hash of a request. The request itself is not kept, because it contains credentials.
type SentHash = [u8; 32];

/// The requests that were answered with a stored answer.
pub(crate) struct Replays {
    all: Cache<SentHash, Arc<Known>, ByBytes>,
}

/// A request as its client sent it.
#[derive(Clone, Copy)]
pub(crate) struct Sent<'a> {
    pub(crate) tenant: &'a Tenant,
    pub(crate) upstream: &'a Upstream,
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Bytes,
}

/// A record as it was when the answer was found.
struct Version {
    id: OperationId,
    version: u64,
}

/// The operation that a request refers to, and its answer.
pub(crate) struct Known {
    /// The record of the key, which names the operation.
    key: Version,
    intent: Intent,
    version: u64,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<SentHash, Arc<Known>> for ByBytes {
    fn weight(&self, _hash: &SentHash, known: &Arc<Known>) -> u64 {
        (ENTRY + known.body.len()) as u64
    }
}

impl Default for Replays {
    fn default() -> Self {
        let items = usize::try_from(MEMORY).unwrap_or(usize::MAX) / ENTRY;
        Self { all: Cache::with_weighter(items, MEMORY, ByBytes) }
    }
}

impl Replays {
    /// The receipt and the answer for this request, if an equal one was answered before and nothing has changed.
    pub(crate) async fn find(&self, sent: &Sent<'_>) -> Option<(Receipt, Arc<Known>)> {
        let hash = sent.hash()?;
        let known = self.all.get(&hash)?;
        let receipt = known.receipt(sent.tenant).await;
        if receipt.is_none() {
            self.all.remove(&hash);
        }
        receipt.map(|receipt| (receipt, known))
    }

    /// Remembers the answer to a request whose key is recorded.
    pub(crate) fn remember(
        &self,
        sent: &Sent<'_>,
        key: &Record,
        intent: Intent,
        receipt: &Receipt,
        response: &Response,
    ) {
        let (record, stored) = (receipt.record(), receipt.body());
        let is_final = receipt.replayed()
            && record.detail.delivered.is_some()
            && record.outcome.as_ref().is_some_and(|outcome| outcome.verified != Some(Verification::Pending));
        let stored = stored.filter(|stored| is_final && stored.len() <= LARGEST).and_then(Reply::decode);
        let Some(reply) = stored.filter(|reply| reply.trailers.is_none()) else { return };
        let Some(hash) = sent.hash() else { return };
        let known = Known {
            key: Version { id: key.id.clone(), version: key.version },
            intent,
            version: record.version,
            status: response.status(),
            headers: response.headers().clone(),
            body: reply.body,
        };
        self.all.insert(hash, Arc::new(known));
    }
}

impl Sent<'_> {
    /// The hash of everything that was sent, if the request can be remembered. Each part is preceded by its length.
    fn hash(&self) -> Option<SentHash> {
        if self.body.len() > LARGEST {
            return None;
        }
        let tenant = self.tenant.name.as_deref();
        let parts = [tenant, self.query].map(|part| (u8::from(part.is_some()), part.unwrap_or_default()));
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        for (is_there, part) in parts {
            add(&[is_there]);
            add(part.as_bytes());
        }
        for part in [self.upstream.name.as_str(), self.method.as_str(), self.path] {
            add(part.as_bytes());
        }
        for (name, value) in self.headers.iter().filter(|(name, _)| !TRACE.contains(&name.as_str())) {
            add(name.as_str().as_bytes());
            add(value.as_bytes());
        }
        add(self.body);
        Some(hash.finalize().into())
    }
}

impl Known {
    /// The receipt, if the records of key and operation are those that the answer was made of.
    async fn receipt(&self, tenant: &Tenant) -> Option<Receipt> {
        // If the ledger cannot be read, the ordinary way says so.
        let key = tenant.store.load_cached(&self.key.id).await.ok()??;
        let is_over = key.due_ms.is_some_and(|due_ms| due_ms <= tenant.ledger.clock_ms());
        if key.version != self.key.version || is_over {
            return None;
        }
        let receipt = tenant.ledger.attempts().replay_cached(&self.intent).await.ok()??;
        (receipt.record().version == self.version).then_some(receipt)
    }

    pub(crate) fn response(&self) -> Response {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.status_mut() = self.status;
        response.headers_mut().clone_from(&self.headers);
        response
    }
}
