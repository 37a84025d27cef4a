//! A request to an upstream, and what is needed to answer it.

use std::sync::Arc;

use onceward::Record;

use super::Gateway;
use super::content::Request;
use super::delivery::{Asked, Delivery, Receipts};
use super::names;
use super::options::RequestOptions;
use super::readers::Reader;
use super::replays::Sent;
use super::upstream::Upstream;
use crate::headers;
use crate::tenant::Tenant;

/// A request that may change something, while it is answered.
pub(crate) struct RequestContext {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) tenant: Tenant,
    pub(crate) upstream: Arc<Upstream>,
    /// The path at the gateway, which names the operation.
    pub(crate) path: String,
    pub(crate) request: Arc<Request>,
    pub(crate) options: RequestOptions,
    pub(crate) asked: Asked,
    pub(crate) reader: Arc<Reader>,
    /// The deliveries of the client's connection.
    pub(crate) receipts: Receipts,
}

impl RequestContext {
    /// The name of the operation, without the action that a header may name.
    pub(crate) fn bare_name(&self) -> String {
        names::name(&self.upstream.name, self.request.method.as_str(), &self.path, None)
    }

    /// The caller's trace, which is stored with the operation.
    pub(crate) fn trace_parent(&self) -> Option<&str> {
        headers::only(&self.request.headers, "traceparent")
    }

    /// The request as its client sent it, if its body is in memory.
    pub(crate) fn sent(&self) -> Option<Sent<'_>> {
        let Request { method, path, query, headers, payload, .. } = &*self.request;
        let (tenant, upstream) = (&self.tenant, &self.upstream);
        Some(Sent {
            tenant,
            upstream,
            method,
            path,
            query: query.as_deref(),
            headers,
            body: payload.bytes()?,
        })
    }

    /// The delivery of this operation's answer to the client.
    pub(crate) fn delivery(&self, record: &Arc<Record>) -> Delivery {
        Delivery::new(&self.tenant, &self.gateway.readers, record, self.asked, &self.receipts)
    }
}
