//! The messages between a server and the stores that use its ledger: [`Store`](crate::Store) over HTTP.
//!
//! Each method of a store is a `POST` to [`ROOT`] and its name. A message is the length of a JSON text as four bytes
//! (big-endian), the text, and after it one entry for each record in the text, in order: what follows the JSON is the
//! body of the record's result, byte for byte. The entry begins with one byte: 0 for no body, 1 for a body (eight bytes
//! of length, then the body), 2 for a body that the store has lost.
//!
//! ```
//! use onceward::OperationId;
//! use onceward::wire::{self, Load};
//!
//! let asked = Load { id: OperationId::of("default", "pay", "order-7") };
//! let bytes = wire::encode(&asked)?;
//! assert_eq!(wire::decode::<Load>(&bytes)?.id, asked.id);
//! # Ok::<(), wire::Malformed>(())
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::barrier::Barrier;
use crate::facts::Liveness;
use crate::identity::Identity;
use crate::key::OperationId;
use crate::record::MAX_RESULT;
use crate::record::{Owner, Record};
use crate::store::{
    Applied, Begin, Change, Counts, Filter, Listed, LivenessSource, StoreError, Swap, WriteMode, Writing,
};
use crate::text;

/// The version of this protocol. Both sides send it in [`VERSION_HEADER`], and refuse every other one.
pub const VERSION: &str = "2";
/// The path under which the messages are served.
pub const ROOT: &str = "/v1/store/";
/// The header with the version of the protocol. A reply without it does not come from a ledger's server.
pub const VERSION_HEADER: &str = "once-store";
/// The header of a request with the ledger's name and epoch ([`Identity::mark`]), except of [`HELLO`].
pub const LEDGER_HEADER: &str = "once-ledger";
/// The header of a reply with the ledger's time in milliseconds since 1970.
pub const NOW_HEADER: &str = "once-now";
/// The type of every message.
pub const CONTENT_TYPE: &str = "application/vnd.onceward.store";
/// The type of an error, a JSON object ([`Problem`]).
pub const PROBLEM_TYPE: &str = "application/problem+json";
/// The longest request. It fits any record: the result in its body, and a late one in its JSON.
pub const MAX_MESSAGE: usize = 3 * MAX_RESULT;
/// How long the server lets a caller wait for a change of a record.
pub const MAX_WAIT_MS: u64 = 20_000;

/// The name of the first request: [`Empty`], answered by [`Hello`].
pub const HELLO: &str = "hello";
/// [`Identity`], answered by [`Empty`].
pub const SET_IDENTITY: &str = "set_identity";
/// [`Load`], answered by [`Loaded`].
pub const LOAD: &str = "load";
/// [`SwapRequest`], answered by [`SwapReply`].
pub const SWAP: &str = "swap";
/// [`SwapsRequest`], answered by [`SwapsReply`]. Only for a server whose [`Hello`] says so.
pub const SWAPS: &str = "swaps";
/// [`Barrier`], answered by the [`Barrier`] that is there then.
pub const STOP: &str = "stop";
/// [`ResumeRequest`], answered by [`Barriers`]: the one that was lifted, or none.
pub const RESUME: &str = "resume";
/// [`Empty`], answered by [`Barriers`].
pub const BARRIERS: &str = "barriers";
/// [`DeleteRequest`], answered by [`Deleted`].
pub const DELETE: &str = "delete";
/// [`ApplyRequest`], answered by [`ApplyReply`].
pub const APPLY: &str = "apply";
/// [`OccurrencesRequest`], answered by [`RecordsReply`].
pub const OCCURRENCES: &str = "occurrences";
/// [`Filter`], answered by [`ListReply`].
pub const LIST: &str = "list";
/// [`DueRequest`], answered by [`RecordsReply`].
pub const DUE: &str = "due";
/// [`Filter`], answered by [`Counts`].
pub const COUNTS: &str = "counts";
/// [`ChangedRequest`], answered by [`Empty`] when the record may have changed, or after the time.
pub const CHANGED: &str = "changed";
/// [`Owner`], answered by [`Liveness`].
pub const LIVENESS: &str = "liveness";
/// [`Tallies`], answered by [`Empty`].
pub const TALLY: &str = "tally";

/// A message without content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// What a store learns when it opens the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The identity of the caller's view of the ledger. It contains the secret that keys the hashes of this view.
    pub identity: Identity,
    /// How the server's own store finds out whether an owner is alive.
    pub watch: LivenessSource,
    /// Whether the server answers [`SWAPS`].
    #[serde(default)]
    pub takes_swaps: bool,
}

/// Asks for a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The record's id.
    pub id: OperationId,
}

/// A record, if there is one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Loaded {
    /// The record.
    pub record: Option<Arc<Record>>,
}

/// A compare-and-swap.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SwapRequest {
    /// The version that must be stored.
    pub expected: Option<u64>,
    /// What the write is for.
    pub writing: Writing,
    /// Whether the write may wait for another one.
    pub mode: WriteMode,
    /// The new record.
    pub record: Arc<Record>,
}

/// The result of a compare-and-swap.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapReply {
    /// The record was written as it was sent.
    Written,
    /// The stored version was a different one.
    Conflict(Option<Arc<Record>>),
    /// The scope is stopped, so nothing in it begins. Nothing was written.
    Stopped(Barrier),
}

impl From<Begin> for SwapReply {
    fn from(begin: Begin) -> Self {
        match begin {
            Begin::Swapped(swap) => swap.into(),
            Begin::Stopped(barrier) => Self::Stopped(barrier),
        }
    }
}

impl From<Swap> for SwapReply {
    fn from(swap: Swap) -> Self {
        match swap {
            Swap::Written(_) => Self::Written,
            Swap::Conflict(found) => Self::Conflict(found),
        }
    }
}

/// Compare-and-swaps of several callers, which are carried out together.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SwapsRequest {
    /// The compare-and-swaps.
    pub swaps: Vec<Arc<SwapRequest>>,
}

/// The result of each compare-and-swap, in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SwapsReply {
    /// The results.
    pub swapped: Vec<Swapped>,
}

/// The result of one of several compare-and-swaps.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Swapped {
    /// It was carried out.
    Replied(SwapReply),
    /// The store could not carry it out.
    Failed(Problem),
}

/// Asks to lift the barrier of a scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeRequest {
    /// The scope.
    pub scope: String,
}

/// Stopped scopes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barriers {
    /// The barriers, ordered by scope.
    pub barriers: Vec<Barrier>,
}

/// Asks to delete a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRequest {
    /// The record's id.
    pub id: OperationId,
    /// The version that must be stored.
    pub expected: u64,
    /// Whether the write may wait for another one.
    pub mode: WriteMode,
}

/// Whether a record was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// Whether it was.
    pub deleted: bool,
}

/// A batch of changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ApplyRequest {
    /// The changes, no two of them about one operation.
    pub changes: Vec<Change>,
    /// Whether the write may wait for another one.
    pub mode: WriteMode,
}

/// The result of each change, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReply {
    /// The results.
    pub applied: Vec<Applied>,
}

/// A page of a listing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ListReply {
    /// The records, newest first, without bodies.
    pub listed: Vec<Listed>,
    /// Whether the listing continues after the last record. The server ends a page early if it is long.
    pub more: bool,
}

/// Asks for what is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DueRequest {
    /// The time that counts as now.
    pub now_ms: i64,
    /// The maximum number of records.
    pub limit: usize,
}

/// Asks for the occurrences of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OccurrencesRequest {
    /// The action.
    pub action: OperationId,
    /// The ledger's time.
    pub now_ms: i64,
}

/// Some records: what is due, most overdue first, or the occurrences of an action.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordsReply {
    /// The records, without bodies.
    pub records: Vec<Record>,
}

/// Waits for a record to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRequest {
    /// The record's id.
    pub id: OperationId,
    /// The version that the caller has seen.
    pub seen: u64,
    /// How long to wait; the server waits no longer than [`MAX_WAIT_MS`].
    pub timeout_ms: u64,
}

/// Whether an owner is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivenessReply {
    /// What the server observes.
    pub liveness: Liveness,
}

/// How often results were replayed since the last report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tallies {
    /// The number for each operation.
    pub replays: BTreeMap<OperationId, u32>,
}

/// Why a request was refused: a problem document (RFC 9457) with the kind of error of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A short name of the problem.
    pub title: String,
    /// The status of the reply.
    pub status: u16,
    /// What happened, and what to do about it.
    pub detail: String,
    /// The error of the store, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_error: Option<ErrorKind>,
}

/// The kinds of [`StoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// [`StoreError::Unavailable`]
    Unavailable,
    /// [`StoreError::Missing`]
    Missing,
    /// [`StoreError::Replaced`]
    Replaced,
    /// [`StoreError::Unusable`]
    Unusable,
}

impl From<&StoreError> for Problem {
    fn from(error: &StoreError) -> Self {
        let (kind, title, status) = match error {
            StoreError::Unavailable { .. } => (ErrorKind::Unavailable, "the ledger is unavailable", 503),
            StoreError::Missing { .. } => (ErrorKind::Missing, "there is no ledger", 503),
            StoreError::Replaced { .. } => (ErrorKind::Replaced, "the ledger was replaced", 503),
            StoreError::Unusable { .. } => (ErrorKind::Unusable, "the ledger cannot be used", 503),
        };
        // A client does not learn where the server keeps its files.
        let detail = text::without_paths(&error.to_string()).into_owned();
        Self { title: title.to_owned(), status, detail, store_error: Some(kind) }
    }
}

impl ErrorKind {
    /// The error of the store, as the client reports it.
    #[must_use]
    pub fn into_error(self, what: String) -> StoreError {
        match self {
            Self::Unavailable => StoreError::Unavailable { what },
            Self::Missing => StoreError::Missing { what },
            Self::Replaced => StoreError::Replaced { what },
            Self::Unusable => StoreError::Unusable { what },
        }
    }
}

/// A message: JSON, and the records in it whose bodies follow.
pub trait Message: Serialize + DeserializeOwned {
    /// Calls `visit` with every record of the message, in order.
    fn visit<'a>(&'a self, _visit: &mut dyn FnMut(&'a Record)) {}

    /// The same, to attach the bodies that follow a message that was just read.
    fn visit_mut(
        &mut self,
        _visit: &mut dyn FnMut(&mut Record) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        Ok(())
    }
}

macro_rules! impl_without_records {
    ($($message:ty),* $(,)?) => { $(impl Message for $message {})* };
}

impl_without_records!(
    Empty,
    Hello,
    Identity,
    Load,
    Barrier,
    ResumeRequest,
    Barriers,
    DeleteRequest,
    Deleted,
    ApplyReply,
    Filter,
    DueRequest,
    OccurrencesRequest,
    Counts,
    ChangedRequest,
    Owner,
    LivenessReply,
    Tallies
);

macro_rules! impl_with_records {
    ($($message:ty: $self:ident => $all:expr, $all_mut:expr);* $(;)?) => {$(
        impl Message for $message {
            fn visit<'a>(&'a $self, visit: &mut dyn FnMut(&'a Record)) {
                $all.for_each(visit);
            }

            fn visit_mut(
                &mut $self,
                visit: &mut dyn FnMut(&mut Record) -> Result<(), Malformed>,
            ) -> Result<(), Malformed> {
                $all_mut.try_for_each(visit)
            }
        }
    )*};
}

impl_with_records! {
    Loaded: self => self.record.iter().map(|record| &**record), self.record.iter_mut().map(Arc::make_mut);
    SwapRequest: self => std::iter::once(&*self.record), std::iter::once(Arc::make_mut(&mut self.record));
    SwapReply: self => self.found().map(|record| &**record), self.found_mut().map(Arc::make_mut);
    SwapsRequest: self =>
        self.swaps.iter().map(|swap| &*swap.record),
        self.swaps.iter_mut().map(|swap| Arc::make_mut(&mut Arc::make_mut(swap).record));
    SwapsReply: self =>
        self.swapped.iter().filter_map(Swapped::replied).flat_map(SwapReply::found).map(|record| &**record),
        self.swapped.iter_mut().filter_map(Swapped::replied_mut).flat_map(SwapReply::found_mut).map(Arc::make_mut);
    ApplyRequest: self => self.changes.iter().filter_map(record_of), self.changes.iter_mut().filter_map(record_mut);
    ListReply: self =>
        self.listed.iter().map(|listed| &listed.record), self.listed.iter_mut().map(|listed| &mut listed.record);
    RecordsReply: self => self.records.iter(), self.records.iter_mut();
}

impl SwapReply {
    fn found(&self) -> std::option::Iter<'_, Arc<Record>> {
        match self {
            Self::Written | Self::Stopped(_) => None.iter(),
            Self::Conflict(found) => found.iter(),
        }
    }

    fn found_mut(&mut self) -> std::option::IntoIter<&mut Arc<Record>> {
        match self {
            Self::Written | Self::Stopped(_) => None.into_iter(),
            Self::Conflict(found) => found.as_mut().into_iter(),
        }
    }
}

impl Swapped {
    fn replied(&self) -> Option<&SwapReply> {
        match self {
            Self::Replied(reply) => Some(reply),
            Self::Failed(_) => None,
        }
    }

    fn replied_mut(&mut self) -> Option<&mut SwapReply> {
        match self {
            Self::Replied(reply) => Some(reply),
            Self::Failed(_) => None,
        }
    }
}

fn record_of(change: &Change) -> Option<&Record> {
    match change {
        Change::Swap { record, .. } => Some(record),
        Change::Delete { .. } => None,
    }
}

fn record_mut(change: &mut Change) -> Option<&mut Record> {
    match change {
        Change::Swap { record, .. } => Some(record),
        Change::Delete { .. } => None,
    }
}

/// A message that does not have the form that this module describes.
#[derive(Debug, thiserror::Error)]
#[error("the message is malformed: {0}")]
pub struct Malformed(String);

const NO_BODY: u8 = 0;
const BODY: u8 = 1;
const LOST_BODY: u8 = 2;

/// The bytes of a message.
///
/// # Errors
/// If the message has no JSON form, or it is longer than four gigabytes.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, Malformed> {
    let mut bytes = Vec::with_capacity(1_024);
    bytes.extend_from_slice(&[0; 4]);
    serde_json::to_writer(&mut bytes, message).map_err(|error| Malformed(error.to_string()))?;
    let length = u32::try_from(bytes.len() - 4).map_err(|_| Malformed("it is too long".to_owned()))?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    message.visit(&mut |record| match &record.outcome {
        Some(outcome) if outcome.lost => bytes.push(LOST_BODY),
        Some(outcome) => match &outcome.body {
            Some(body) => {
                bytes.push(BODY);
                bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
                bytes.extend_from_slice(body);
            }
            None => bytes.push(NO_BODY),
        },
        None => bytes.push(NO_BODY),
    });
    Ok(bytes)
}

/// The message that these bytes encode.
///
/// # Errors
/// If they are not exactly one message of this type.
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, Malformed> {
    let mut rest = bytes;
    let length = take(&mut rest, 4)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let json = take(&mut rest, length)?;
    let mut message: M = serde_json::from_slice(json).map_err(|error| Malformed(error.to_string()))?;
    message.visit_mut(&mut |record| attach(record, &mut rest))?;
    if !rest.is_empty() {
        return Err(Malformed(format!("{} bytes follow it", rest.len())));
    }
    Ok(message)
}

fn attach(record: &mut Record, rest: &mut &[u8]) -> Result<(), Malformed> {
    let kind = take(rest, 1)?[0];
    let body = match kind {
        NO_BODY => return Ok(()),
        BODY => {
            let length = take(rest, 8)?.iter().fold(0_u64, |length, byte| length << 8 | u64::from(*byte));
            let length = usize::try_from(length).map_err(|_| Malformed("a body is too long".to_owned()))?;
            Some(take(rest, length)?.into())
        }
        LOST_BODY => None,
        other => return Err(Malformed(format!("{other} is not a kind of body"))),
    };
    match &mut record.outcome {
        Some(outcome) => {
            outcome.set_body(body);
            Ok(())
        }
        None => Err(Malformed("a record without an outcome has a body".to_owned())),
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (taken, left) =
        rest.split_at_checked(length).ok_or_else(|| Malformed("it ends too early".to_owned()))?;
    *rest = left;
    Ok(taken)
}
