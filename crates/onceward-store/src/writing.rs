//! What a write is for: stores on servers and files use one path for both kinds.

use onceward::{Begin, StoreError, Swap};

pub(crate) use onceward::Writing;

/// The result of a write that no barrier refuses.
pub(crate) fn only_swap(begin: Begin) -> Result<Swap, StoreError> {
    match begin {
        Begin::Swapped(swap) => Ok(swap),
        Begin::Stopped(barrier) => Err(StoreError::unavailable(format!(
            "the barrier of {:?} refused a change that begins nothing",
            barrier.scope
        ))),
    }
}
