//! Named locks for calls that must not overlap, across callers and processes. A lock is an attempt that never
//! completes. It is not an operation: it is not listed, stopped or reported as one.

use onceward::{
    Begun, Class, Ending, Error, Evidence, Json, Kind, Ledger, OnExpired, OnFailure, Operation, State, Terms,
};

/// The scope of all locks.
const SCOPE: &str = "onceward.locks";
/// How long an unused lock is remembered.
const RETENTION_MS: u64 = 3_600_000;

/// Runs the work while holding the lock, which excludes every process that shares the ledger. If the owner dies, the
/// lock is released.
///
/// # Errors
/// [`Error::InProgress`] if the lock was not released in time. Then the work was not started.
pub(crate) async fn holding<T>(
    ledger: &Ledger,
    name: &str,
    wait_ms: u64,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let terms = Terms {
        class: Class::Idempotent,
        on_failure: OnFailure::Retry,
        on_expired: OnExpired::Rerun,
        max_attempts: u32::MAX,
        retention_ms: RETENTION_MS,
        tombstone_ms: 0,
        wait_ms,
        ..Terms::default()
    };
    let input = Json::object([("lock", Json::from(name))]);
    let intent = Operation::of_kind(Kind::Marker, "lock").scope(SCOPE).input(input).terms(terms).intent()?;
    let claim = match ledger.begin(&intent).await? {
        Begun::Execute(claim) => claim,
        // A lock is never done, unless a user settled it as done on purpose.
        Begun::Replay(receipt) => {
            return Err(Error::WrongState { action: "locking", record: receipt.record().clone() });
        }
    };
    let output = claim.keep_alive(work).await;
    match claim
        .finish(Ending::failed(Evidence::declared("a lock has no effect of its own"), "released"))
        .await
    {
        Err(error) if error.record().is_some_and(|record| record.state == State::Running) => Err(error),
        // The work is done, whatever the release returned. An owner that is gone holds nothing.
        Ok(_) | Err(_) => Ok(output),
    }
}
