//! Calls that must not overlap, whoever makes them: a lock is an operation that is never done.

use onceward::{
    Begun, Class, Ending, Error, Json, Ledger, OnExpired, OnFailure, Operation, Outcome, State, Terms,
};

/// The scope of all locks.
pub(crate) const SCOPE: &str = "onceward.locks";
/// How long a lock that nobody takes is remembered.
const RETENTION_MS: u64 = 3_600_000;

/// Does the work while no other call holds the lock, in any process that shares the ledger. An owner that dies
/// frees it.
///
/// # Errors
/// [`Error::InProgress`] where it was not free in time; then the work was not begun.
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
    let intent = Operation::new("lock").scope(SCOPE).input(input).terms(terms).intent()?;
    let claim = match ledger.begin(&intent).await? {
        Begun::Execute(claim) => claim,
        // It is never done; somebody who settled it as done has broken it, and knows.
        Begun::Replay(receipt) => {
            return Err(Error::WrongState { action: "locking", record: receipt.record().clone() });
        }
    };
    let output = claim.keep_alive(work).await;
    match claim.finish(Ending::Failed(Outcome::because(Some("released".to_owned())))).await {
        Err(error) if error.record().is_some_and(|record| record.state == State::Running) => Err(error),
        // However the release ended, the work is done, and an owner that is gone holds nothing.
        Ok(_) | Err(_) => Ok(output),
    }
}
