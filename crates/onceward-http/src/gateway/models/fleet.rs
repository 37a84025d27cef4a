//! Answers that another gateway on the same ledger generates, while they grow.
//!
//! Gateways share nothing but the ledger. A gateway whose client needs the answer of a call that another gateway makes
//! notes the call on the ledger's board. The gateway that makes the call reads the board while it has generations, and
//! then writes the answer in parts as it grows. Parts are records of their own, which are deleted at the end: the whole
//! answer is in the record of the operation, as always.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::{HeaderMap, StatusCode};
use onceward::{Clock, Effect, Error, Intent, Kind, Operation, OperationId, Outcome, Ran, Record, State};
use serde::{Deserialize, Serialize};

use super::super::Gateway;
use super::super::reply::Reply;
use super::generation::{ChunkPlace, Collected, Follower, Generation, Head, Opening, Published, Source};
use crate::locks::lock;
use crate::tenant::Tenant;
use crate::time;

/// How often the board and the next part are looked for, and how long the chunks of a part are collected.
const LOOK: Duration = Duration::from_millis(250);
/// How long a call stays on the board.
const WANTED_MS: i64 = 10_000;
/// How often a gateway renews its note on the board.
const RENEW: Duration = Duration::from_secs(3);
/// The most calls on the board. The others are answered when they are complete.
const MOST_WANTED: usize = 1_000;
/// The largest part, before it is compressed.
const PART: usize = 1024 * 1024;
/// How long parts are kept if their gateway is killed before it deletes them.
const KEPT_MS: u64 = 600_000;
/// The scope of all records of this module.
const SCOPE: &str = "models";

/// The tenants whose boards this process reads.
#[derive(Default)]
pub(crate) struct Boards(Mutex<HashSet<Option<Arc<str>>>>);

/// The calls whose answers other gateways want, each with the time until which it is wanted.
#[derive(Default, Serialize, Deserialize)]
struct Board {
    wanted: BTreeMap<String, i64>,
}

/// A record that gateways leave for each other.
struct Note<'a> {
    tenant: &'a Tenant,
    key: String,
}

impl<'a> Note<'a> {
    fn board(tenant: &'a Tenant) -> Self {
        Self { tenant, key: "wanted-answers".to_owned() }
    }

    fn part(tenant: &'a Tenant, id: &OperationId, attempt: u32, number: u64) -> Self {
        Self { tenant, key: format!("{id}:attempt-{attempt}:part-{number}") }
    }

    fn intent(&self) -> Result<Intent, Error> {
        let operation = Operation::of_kind(Kind::Marker, "answer").scope(SCOPE).key(self.key.clone());
        let mut intent = self.tenant.ledger.intent(operation)?;
        intent.terms.keep_results_for(KEPT_MS);
        intent.terms.tombstone_ms = 0;
        Ok(intent)
    }

    async fn read(&self) -> Result<Option<Arc<Record>>, Error> {
        self.tenant.ledger.notes().read(&self.intent()?).await
    }

    /// Writes the note over this version, and returns whether it was still that version.
    async fn write(&self, expected: Option<u64>, content: Outcome) -> Result<bool, Error> {
        self.tenant.ledger.notes().write(&self.intent()?, expected, content).await
    }

    async fn delete(&self) -> Result<(), Error> {
        self.tenant.ledger.notes().delete(&self.intent()?).await
    }
}

impl Board {
    async fn read(tenant: &Tenant) -> Result<(Option<u64>, Self), Error> {
        let Some(record) = Note::board(tenant).read().await? else { return Ok((None, Self::default())) };
        let data = record.outcome.as_ref().and_then(|outcome| outcome.data.as_ref());
        let board = data.and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or_default();
        Ok((Some(record.version), board))
    }

    /// Notes that the answer of this call is wanted.
    async fn want(tenant: &Tenant, id: &OperationId) -> Result<(), Error> {
        loop {
            let (version, mut board) = Self::read(tenant).await?;
            let now_ms = tenant.ledger.clock_ms();
            board.wanted.retain(|_, until_ms| *until_ms > now_ms);
            if board.wanted.len() >= MOST_WANTED {
                return Ok(());
            }
            board.wanted.insert(id.to_string(), now_ms + WANTED_MS);
            let data = serde_json::value::to_raw_value(&board).ok().map(Arc::from);
            let outcome = Outcome {
                data,
                reason: Some("answers that gateways wait for".to_owned()),
                ..Outcome::with_effect(Effect::Noop)
            };
            if Note::board(tenant).write(version, outcome).await? {
                return Ok(());
            }
        }
    }
}

/// Reads the board of a tenant for as long as this process has generations of that tenant.
pub(crate) fn watch(gateway: &Arc<Gateway>, tenant: &Tenant) {
    if !lock(&gateway.boards.0).insert(tenant.name.clone()) {
        return;
    }
    let (gateway, tenant) = (Arc::clone(gateway), tenant.clone());
    drop(tokio::spawn(async move {
        loop {
            time::sleep(tenant.ledger.clock(), LOOK).await;
            {
                let running = lock(&gateway.generations);
                if !running.keys().any(|(name, _)| *name == tenant.name) {
                    lock(&gateway.boards.0).remove(&tenant.name);
                    return;
                }
            }
            // Without the board, other gateways get the answer when it is complete.
            let Ok((_, board)) = Board::read(&tenant).await else { continue };
            let now_ms = tenant.ledger.clock_ms();
            for (id, until_ms) in board.wanted.into_iter().filter(|(_, until_ms)| *until_ms > now_ms) {
                let Ok(id) = OperationId::parse(&id) else { continue };
                let place = tenant.place(&id);
                let Some(generation) = lock(&gateway.generations).get(&place).cloned() else { continue };
                if let Some(from) = generation.want(until_ms) {
                    drop(tokio::spawn(publish(tenant.clone(), id, generation, from)));
                }
            }
        }
    }));
}

/// Writes the answer of a generation in parts, for as long as another gateway wants it.
async fn publish(tenant: Tenant, id: OperationId, generation: Arc<Generation>, mut from: Published) {
    let is_wanted = || generation.wanted_until_ms() > tenant.ledger.clock_ms();
    // Like every reader, it binds the attempt: another gateway's client has seen a part of this answer.
    let mut follower = generation.follow();
    let (mut head, mut is_over) = (None, false);
    while head.is_none() && is_wanted() {
        match time::within(tenant.ledger.clock(), LOOK, follower.opening()).await {
            Some(Opening::Begun(begun)) => head = Some(begun),
            Some(Opening::Settled(_) | Opening::Taken) => break,
            None => {}
        }
    }
    if let Some(head) = head {
        if from.attempt != head.attempt {
            from = Published { attempt: head.attempt, ..Published::default() };
        }
        follower.skip(from.chunks);
        while is_wanted() {
            let bytes = match collect(tenant.ledger.clock(), &mut follower).await {
                Some(bytes) if bytes.is_empty() => continue,
                Some(bytes) => bytes,
                None => {
                    is_over = true;
                    break;
                }
            };
            let headers = if from.parts == 0 { head.headers.clone() } else { HeaderMap::new() };
            let part = Reply { status: head.status, headers, body: bytes, trailers: None };
            let outcome = Outcome {
                body: Some(part.encode_compressed()),
                reason: Some(format!("a part of the answer of {id}")),
                ..Outcome::with_effect(Effect::Noop)
            };
            let note = Note::part(&tenant, &id, from.attempt, from.parts);
            if !matches!(note.write(None, outcome).await, Ok(true)) {
                break;
            }
            (from.parts, from.chunks) = (from.parts + 1, follower.taken());
        }
    }
    drop(follower);
    generation.published(from);
    if is_over {
        for number in 0..from.parts {
            // What cannot be deleted expires.
            drop(Note::part(&tenant, &id, from.attempt, number).delete().await);
        }
    }
}

/// The chunks of the next part, after the time in which they are collected. `None` at the end.
async fn collect(clock: &dyn Clock, follower: &mut Follower) -> Option<Bytes> {
    time::sleep(clock, LOOK).await;
    let mut all = BytesMut::new();
    while all.len() < PART {
        match follower.collect() {
            Collected::Chunk(bytes) => all.extend_from_slice(&bytes),
            Collected::Nothing => break,
            Collected::End => return None,
        }
    }
    Some(all.freeze())
}

/// The answer of another gateway, from its first part.
pub(crate) struct Elsewhere<'a> {
    tenant: &'a Tenant,
    id: &'a OperationId,
    generation: &'a Generation,
    attempt: u32,
    next: u64,
    renewed_ms: Option<i64>,
}

impl<'a> Elsewhere<'a> {
    /// Resolves when another gateway has begun to publish the answer of this call. If this gateway makes the call
    /// itself, that is never.
    pub(crate) async fn begun(
        tenant: &'a Tenant,
        id: &'a OperationId,
        generation: &'a Generation,
    ) -> Elsewhere<'a> {
        let mut answer = Self { tenant, id, generation, attempt: 0, next: 0, renewed_ms: None };
        loop {
            time::sleep(tenant.ledger.clock(), LOOK).await;
            if generation.has_begun() {
                std::future::pending::<()>().await;
            }
            let Ok((record, State::Running)) = tenant.ledger.find(id).await else { continue };
            answer.attempt = record.attempt;
            answer.renew().await;
            if let Ok(Some((status, headers, bytes))) = answer.part().await {
                generation.begin(Head {
                    status,
                    headers,
                    attempt: record.attempt,
                    source: Source::Elsewhere,
                });
                generation.push(bytes, ChunkPlace::Inside);
                generation.tell();
                return answer;
            }
        }
    }

    /// Receives the parts until the operation is done. The rest of the answer is in its record.
    ///
    /// # Errors
    /// Why there will be no rest.
    pub(crate) async fn receive(mut self) -> Result<(), Error> {
        loop {
            if let Some((_, _, bytes)) = self.part().await? {
                self.generation.push(bytes, ChunkPlace::Inside);
                self.generation.tell();
                continue;
            }
            let (record, state) = self.tenant.ledger.find(self.id).await?;
            match state {
                State::Done => return Ok(()),
                State::Running if record.attempt == self.attempt => {
                    self.renew().await;
                    time::sleep(self.tenant.ledger.clock(), LOOK).await;
                }
                State::Staged
                | State::Running
                | State::Failed
                | State::InDoubt
                | State::Cancelled
                | State::Expired => {
                    let reason = "the gateway that generated the answer did not complete it".to_owned();
                    return Err(Error::Failed { record, reason, ran: Ran::No });
                }
            }
        }
    }

    /// Keeps the call on the board while a client here reads its answer.
    async fn renew(&mut self) {
        let clock = self.tenant.ledger.clock();
        let is_due = self.renewed_ms.is_none_or(|at_ms| !time::is_within(clock, RENEW, at_ms));
        if is_due && !self.generation.is_unattended() && Board::want(self.tenant, self.id).await.is_ok() {
            self.renewed_ms = Some(clock.now_ms());
        }
    }

    /// The next part, if it is there.
    async fn part(&mut self) -> Result<Option<(StatusCode, HeaderMap, Bytes)>, Error> {
        let note = Note::part(self.tenant, self.id, self.attempt, self.next);
        let record = note.read().await?;
        let body = record.as_ref().and_then(|record| record.outcome.as_ref()?.body.as_deref());
        let Some(part) = body.and_then(Reply::decode) else { return Ok(None) };
        self.next += 1;
        Ok(Some((part.status, part.headers, part.body)))
    }
}
