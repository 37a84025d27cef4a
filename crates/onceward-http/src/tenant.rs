//! A caller's view of the ledger.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use onceward::{Ledger, OperationId, Store};

use crate::problem;

/// An operation of a tenant: two tenants with the same key have operations with the same id.
pub(crate) type Place = (Option<Arc<str>>, OperationId);

/// A caller's view of the ledger. A request gets it as an extension.
#[derive(Clone)]
pub(crate) struct Tenant {
    /// The view as a store, for the remote store's protocol.
    pub(crate) store: Arc<dyn Store>,
    /// The view as a ledger.
    pub(crate) ledger: Ledger,
    /// The name. `None` if the server has no tenants.
    pub(crate) name: Option<Arc<str>>,
    /// The longest request body, in bytes, if it is less than the server's limit.
    max_body: Option<usize>,
}

impl Tenant {
    pub(crate) fn new(store: Arc<dyn Store>, name: Option<&str>, max_body: Option<usize>) -> Self {
        let ledger = Ledger::new(Arc::clone(&store));
        Self { store, ledger, name: name.map(Arc::from), max_body }
    }

    /// One of its operations.
    pub(crate) fn place(&self, id: &OperationId) -> Place {
        (self.name.clone(), id.clone())
    }

    /// The longest request body of this tenant, in bytes.
    pub(crate) fn max_body(&self, general: usize) -> usize {
        self.max_body.map_or(general, |own| own.min(general))
    }

    /// A key for a downstream that deduplicates. Two tenants with the same key of their own have two, also if they
    /// share an account there.
    pub(crate) fn downstream_key(&self, id: &OperationId) -> String {
        match &self.name {
            None => id.to_string(),
            Some(name) => OperationId::of(name, "downstream", id.as_str()).to_string(),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Tenant {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Response> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            let message = "the caller was not identified; nothing was run";
            problem::refusal(StatusCode::UNAUTHORIZED, "AUTH_REQUIRED", message)
        })
    }
}
