//! Whether an answer reached its client: only then is an equal request without a known key a new one.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use onceward::{Clock, Record, State};
use tokio::task::JoinHandle;

use super::readers::Readers;
use crate::locks::lock;
use crate::tenant::{Place, Tenant};
use crate::time;

/// A client that waited longer than this may have given up just when its answer was sent.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an equal request after such an answer is still a retry.
const GRACE_MS: i64 = 2_000;
/// How long an equal request after a failure is still a retry, which uses the same budget.
pub(crate) const FAILURE_GRACE_MS: i64 = 60_000;

/// A reset within this time after the last byte means that the client had left.
const RESET: Duration = Duration::from_secs(1);
/// The size of the pieces in which a connection takes an answer.
const PIECE: usize = 16 * 1024;

/// When a request came.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// For metrics only.
    at: Instant,
    at_ms: i64,
}

impl Asked {
    pub(crate) fn now(tenant: &Tenant) -> Self {
        Self { at: Instant::now(), at_ms: tenant.ledger.clock_ms() }
    }

    /// How long ago that was, for metrics.
    pub(crate) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

/// An answer on its way.
pub(crate) struct Delivery {
    note: Note,
    asked: Asked,
    /// The deliveries of the client's connection.
    receipts: Receipts,
    /// How long an equal request is still a retry, if that does not depend on the answer.
    grace_ms: Option<i64>,
}

/// How a delivery is noted.
#[derive(Clone)]
struct Note {
    tenant: Tenant,
    readers: Arc<Readers>,
    record: Arc<Record>,
    place: Place,
}

impl Delivery {
    pub(crate) fn new(
        tenant: &Tenant,
        readers: &Arc<Readers>,
        record: &Arc<Record>,
        asked: Asked,
        receipts: &Receipts,
    ) -> Self {
        let place = tenant.place(&record.id);
        let (readers, record) = (Arc::clone(readers), Arc::clone(record));
        let note = Note { tenant: tenant.clone(), readers, record, place };
        Self { note, asked, receipts: receipts.clone(), grace_ms: None }
    }

    /// An equal request after the delivery is wanted, however long the client waited.
    pub(crate) fn without_grace(self) -> Self {
        Self { grace_ms: Some(0), ..self }
    }

    /// An equal request after the delivery of this failure is a retry for some time.
    pub(crate) fn of_failure(self) -> Self {
        Self { grace_ms: Some(FAILURE_GRACE_MS), ..self }
    }

    /// An equal request after the delivery of this refusal gets it again, for this window.
    pub(crate) fn of_refusal(self, window_ms: u64) -> Self {
        Self { grace_ms: Some(i64::try_from(window_ms).unwrap_or(i64::MAX)), ..self }
    }

    /// The response, which is noted as delivered when its last byte has been written to the connection.
    pub(crate) fn attach(self, response: Response) -> Response {
        if !matches!(self.note.record.state, State::Done | State::Failed | State::Cancelled) {
            return response;
        }
        let (head, body) = response.into_parts();
        let ended = body.is_end_stream();
        Response::from_parts(
            head,
            Body::new(Tracked { body, rest: Bytes::new(), delivery: Some(self), ended }),
        )
    }

    /// The last byte was written to the connection.
    pub(crate) fn end(self) {
        let Self { note, asked, receipts, grace_ms } = self;
        let (state, clock) = (note.record.state, note.clock());
        let grace = if let Some(grace_ms) = grace_ms {
            grace_ms
        } else if state == State::Failed {
            FAILURE_GRACE_MS
        } else if !time::is_within(clock, PATIENCE, asked.at_ms) {
            GRACE_MS
        } else {
            0
        };
        let now_ms = clock.now_ms();
        if let Some(writing) = note.at(now_ms.saturating_add(grace)) {
            let grace_from = (grace > 0 && state == State::Done).then_some(now_ms);
            receipts.add(Receipt { note, writing, at_ms: now_ms, grace_from });
        }
    }
}

impl Note {
    fn clock(&self) -> &dyn Clock {
        self.tenant.ledger.clock()
    }

    /// Notes that the answer counts as delivered from then on.
    fn at(&self, at_ms: i64) -> Option<Writing> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        // The client's next request may be faster than the write.
        self.readers.delivering(&self.place, self.record.attempt, at_ms);
        if self.record.delivered_ms().is_some_and(|known_ms| known_ms <= at_ms) {
            return Some(Writing::NotNeeded);
        }
        let note = self.clone();
        Some(Writing::Task(runtime.spawn(async move {
            // Without the note, an equal request is a retry, which repeats nothing.
            drop(note.tenant.ledger.attempts().delivered(&note.record, at_ms).await);
        })))
    }
}

/// The answers that a connection was given a moment ago. If the client resets the connection, it did not read them.
#[derive(Clone, Default)]
pub(crate) struct Receipts {
    all: Arc<Mutex<Vec<Receipt>>>,
    /// Whether requests follow each other, so that the next one shows that the answer before it was read.
    is_sequential: bool,
}

/// How a delivery is recorded.
enum Writing {
    /// By this task.
    Task(JoinHandle<()>),
    /// The answer of this attempt was delivered before.
    NotNeeded,
}

/// An answer that counts as delivered.
struct Receipt {
    note: Note,
    writing: Writing,
    at_ms: i64,
    /// When the answer was delivered, if an equal request is still a retry for some time after that.
    grace_from: Option<i64>,
}

impl Receipt {
    /// Whether a reset of the connection now means that the client had left.
    fn can_be_reset(&self) -> bool {
        time::is_within(self.note.clock(), RESET, self.at_ms)
    }
}

impl Receipts {
    /// The same for a request of HTTP/1.1.
    pub(crate) fn sequential(&self) -> Self {
        Self { is_sequential: true, ..self.clone() }
    }

    fn add(&self, receipt: Receipt) {
        if self.is_sequential {
            receipt.note.readers.unconfirmed(&receipt.note.place, receipt.at_ms);
        }
        let mut all = lock(&self.all);
        all.retain(|one| one.can_be_reset() || one.grace_from.is_some());
        all.push(receipt);
    }

    /// The client closed its connection, and has read everything.
    pub(crate) fn are_confirmed(&self) {
        for receipt in std::mem::take(&mut *lock(&self.all)) {
            receipt.note.readers.confirmed(&receipt.note.place);
        }
    }

    /// The client uses the connection again, so it has read the answers before: one that had given up would have
    /// closed the connection.
    pub(crate) fn are_read(&self) {
        let all = std::mem::take(&mut *lock(&self.all));
        for receipt in all {
            receipt.note.readers.confirmed(&receipt.note.place);
            if let Some(at_ms) = receipt.grace_from {
                drop(receipt.note.at(at_ms));
            }
        }
    }

    /// The client reset the connection.
    pub(crate) fn take_back(&self) {
        let all = std::mem::take(&mut *lock(&self.all));
        for receipt in all.into_iter().filter(Receipt::can_be_reset) {
            let Receipt { note, writing, .. } = receipt;
            note.readers.taking_back(&note.place);
            tokio::spawn(async move {
                // The later write counts.
                if let Writing::Task(writing) = writing {
                    drop(writing.await);
                }
                drop(note.tenant.ledger.attempts().not_delivered(&note.place.1).await);
                note.readers.taken_back(&note.place);
            });
        }
    }
}

/// A body that notes its delivery.
struct Tracked {
    body: Body,
    /// What is left of a piece of the body.
    rest: Bytes,
    delivery: Option<Delivery>,
    ended: bool,
}

impl HttpBody for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    /// The body in small pieces. A connection takes a piece when it has room for a part of it, so that the last one is
    /// taken when the client has read most of the body.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => {
                        self.ended = self.body.is_end_stream();
                        return Poll::Ready(Some(Ok(trailers)));
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.ended = true;
                    return Poll::Ready(None);
                }
            }
        }
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        self.ended = self.is_end_stream();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(inner.lower() + rest);
        hint
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        // The connection drops the body once it has written all of it, or when it breaks.
        if self.ended
            && let Some(delivery) = self.delivery.take()
        {
            delivery.end();
        }
    }
}
