//! Single records, for the remote back end of `onceward-store`: [`Store`] over HTTP, as [`onceward::wire`] describes.
//!
//! The server adds nothing to the caller's view of the ledger and keeps no state for a caller. Requests that arrive
//! together are carried out together, so they share commits. What a caller that is gone had asked to write is written
//! or not, as after a lost reply; its record shows which.
//!
//! # Layout
//! - `call`: one request, from its headers to its message, and the reply. `wait`: waiting for a record to change.

mod call;
mod wait;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use axum::routing::post;
use futures_util::future::join_all;
use onceward::wire::{
    self, ApplyReply, ApplyRequest, Barriers, ChangedRequest, DeleteRequest, Deleted, DueRequest, Empty,
    Hello, ListReply, LivenessReply, Load, Loaded, OccurrencesRequest, Problem, RecordsReply, ResumeRequest,
    SwapReply, SwapRequest, Swapped, SwapsReply, SwapsRequest, Tallies,
};
use onceward::{Barrier, Filter, Identity, Owner, Store, StoreError, WriteMode, Writing};

use crate::App;
use call::{Asked, Greeting, reply};

/// The largest number of records in one page of a listing.
const MAX_PAGE: usize = 1_000;
/// The largest number of records in one answer about what is due. More than the ledger asks for in one step.
const MAX_DUE: usize = 10_000;
/// The size of the results in one page of a listing from which it ends early.
const MAX_PAGE_BYTES: usize = 8 * 1024 * 1024;
/// The largest number of replays of one operation in one report.
const MAX_TALLY: u32 = 10_000;

pub(super) fn router() -> Router<Arc<App>> {
    let path = |name: &str| format!("{}{name}", wire::ROOT);
    Router::new()
        .route(&path(wire::HELLO), post(hello))
        .route(&path(wire::SET_IDENTITY), post(set_identity))
        .route(&path(wire::LOAD), post(load))
        .route(&path(wire::SWAP), post(swap))
        .route(&path(wire::SWAPS), post(swaps))
        .route(&path(wire::STOP), post(stop))
        .route(&path(wire::RESUME), post(resume))
        .route(&path(wire::BARRIERS), post(barriers))
        .route(&path(wire::DELETE), post(delete))
        .route(&path(wire::APPLY), post(apply))
        .route(&path(wire::OCCURRENCES), post(occurrences))
        .route(&path(wire::LIST), post(list))
        .route(&path(wire::DUE), post(due))
        .route(&path(wire::COUNTS), post(counts))
        .route(&path(wire::CHANGED), post(changed))
        .route(&path(wire::LIVENESS), post(liveness))
        .route(&path(wire::TALLY), post(tally))
        .layer(DefaultBodyLimit::max(wire::MAX_MESSAGE))
}

async fn hello(Greeting(store): Greeting) -> Response {
    let hello = Hello { identity: store.identity().clone(), watch: store.watch(), takes_swaps: true };
    reply(&*store, Ok(hello))
}

async fn set_identity(Asked { store, message }: Asked<Identity>) -> Response {
    let set = store.set_identity(&message).await;
    reply(&*store, set.map(|()| Empty {}))
}

async fn load(Asked { store, message }: Asked<Load>) -> Response {
    let loaded = store.load(&message.id).await;
    reply(&*store, loaded.map(|record| Loaded { record }))
}

async fn swap(Asked { store, message }: Asked<SwapRequest>) -> Response {
    let swapped = swap_in(&*store, message).await;
    reply(&*store, swapped)
}

/// All at once, so that they share a commit.
async fn swaps(Asked { store, message }: Asked<SwapsRequest>) -> Response {
    let swaps = message.swaps.into_iter().map(|asked| swap_in(&*store, Arc::unwrap_or_clone(asked)));
    let swapped = join_all(swaps).await.into_iter().map(|swapped| match swapped {
        Ok(swapped) => Swapped::Replied(swapped),
        Err(error) => Swapped::Failed(Problem::from(&error)),
    });
    let reply = SwapsReply { swapped: swapped.collect() };
    call::reply(&*store, Ok(reply))
}

async fn swap_in(store: &dyn Store, asked: SwapRequest) -> Result<SwapReply, StoreError> {
    // A store that does not know whether a record exists tries to create it. If it is a replay, the cache answers.
    if asked.expected.is_none()
        && let Some(found) = store.load_cached(&asked.record.id).await?
    {
        return Ok(SwapReply::Conflict(Some(found)));
    }
    let (record, mode) = (Arc::unwrap_or_clone(asked.record), without_blocking(asked.mode));
    match asked.writing {
        Writing::Begin => store.begin(asked.expected, record, mode).await.map(SwapReply::from),
        Writing::Change => store.swap(asked.expected, record, mode).await.map(SwapReply::from),
    }
}

async fn stop(Asked { store, message }: Asked<Barrier>) -> Response {
    let stopped = store.stop(&message).await;
    reply(&*store, stopped)
}

async fn resume(Asked { store, message }: Asked<ResumeRequest>) -> Response {
    let lifted = store.resume(&message.scope).await;
    reply(&*store, lifted.map(|lifted| Barriers { barriers: lifted.into_iter().collect() }))
}

async fn barriers(Asked { store, .. }: Asked<Empty>) -> Response {
    let barriers = store.barriers().await;
    reply(&*store, barriers.map(|barriers| Barriers { barriers }))
}

async fn delete(Asked { store, message }: Asked<DeleteRequest>) -> Response {
    let deleted = store.delete(&message.id, message.expected, without_blocking(message.mode)).await;
    reply(&*store, deleted.map(|deleted| Deleted { deleted }))
}

async fn apply(Asked { store, message }: Asked<ApplyRequest>) -> Response {
    let applied = store.apply(message.changes, without_blocking(message.mode)).await;
    reply(&*store, applied.map(|applied| ApplyReply { applied }))
}

async fn occurrences(Asked { store, message }: Asked<OccurrencesRequest>) -> Response {
    // A caller's clock that is ahead must not make an occurrence seem over.
    let now_ms = message.now_ms.min(store.clock().now_ms());
    let found = store.occurrences(&message.action, now_ms).await;
    reply(&*store, found.map(|records| RecordsReply { records }))
}

async fn list(Asked { store, message }: Asked<Filter>) -> Response {
    let wanted = message.limit;
    let filter = Filter { limit: wanted.min(MAX_PAGE), ..message };
    let listed = store.list(&filter).await;
    reply(
        &*store,
        listed.map(|mut listed| {
            let mut bytes = 0;
            let fits = listed.iter().take_while(|listed| {
                let fits = bytes < MAX_PAGE_BYTES;
                bytes += listed.record.outcome.as_ref().map_or(0, onceward::Outcome::size);
                fits
            });
            let fits = fits.count();
            let more = fits < listed.len() || (fits == filter.limit && fits < wanted);
            listed.truncate(fits);
            ListReply { listed, more }
        }),
    )
}

async fn due(Asked { store, message }: Asked<DueRequest>) -> Response {
    let due = store.due(message.now_ms, message.limit.min(MAX_DUE)).await;
    reply(&*store, due.map(|records| RecordsReply { records }))
}

async fn counts(Asked { store, message }: Asked<Filter>) -> Response {
    let counts = store.counts(&message).await;
    reply(&*store, counts)
}

async fn changed(Asked { store, message }: Asked<ChangedRequest>) -> Response {
    wait::for_change(&*store, &message).await;
    reply(&*store, Ok(Empty {}))
}

async fn liveness(Asked { store, message }: Asked<Owner>) -> Response {
    let liveness = store.liveness(&message).await;
    reply(&*store, liveness.map(|liveness| LivenessReply { liveness }))
}

async fn tally(Asked { store, message }: Asked<Tallies>) -> Response {
    for (id, replays) in &message.replays {
        (0..*replays.min(&MAX_TALLY)).for_each(|_| store.tally_replay(id));
    }
    reply(&*store, Ok(Empty {}))
}

/// The server's threads run other requests, so no write blocks one.
fn without_blocking(mode: WriteMode) -> WriteMode {
    match mode {
        WriteMode::Blocking | WriteMode::Async => WriteMode::Async,
        WriteMode::Deferred => WriteMode::Deferred,
    }
}
