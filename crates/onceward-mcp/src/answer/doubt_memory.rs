//! What the proxy remembers about operations in doubt.

use std::sync::Arc;

use onceward::OperationId;
use quick_cache::sync::Cache;

use crate::call::waiters::Caller;

/// The most calls, and callers, that are remembered.
const CALLS: usize = 1_024;

/// What the proxy remembers for its own tools.
pub(crate) struct DoubtMemory {
    /// The arguments of calls in doubt. Kept in memory only.
    pub(crate) sent: Cache<OperationId, Arc<str>>,
    /// The scope that a caller used last.
    pub(crate) scopes: Cache<Caller, String>,
    /// Callers that listed the tools, and whether the list contained ours.
    pub(crate) shown: Cache<Caller, bool>,
}

impl Default for DoubtMemory {
    fn default() -> Self {
        Self { sent: Cache::new(CALLS), scopes: Cache::new(CALLS), shown: Cache::new(CALLS) }
    }
}
