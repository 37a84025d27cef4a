//! Traces over OTLP (protobuf over HTTP), for programs that want them.
//!
//! [`exporter`] returns a layer for a `tracing` subscriber. The crate's spans carry `onceward.*` attributes, and
//! `gen_ai.tool.*` where a call is an agent's tool call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;
use tracing::Span;
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt};
use tracing_subscriber::registry::LookupSpan;

/// How long one export may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much of a collector's answer is read.
const LARGEST_ANSWER: usize = 64 * 1024;

/// Why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
#[error("cannot export traces: {0}")]
pub struct OtelError(String);

/// Sends spans to a collector until it is shut down.
#[derive(Debug)]
pub struct Exporter {
    provider: SdkTracerProvider,
}

impl Exporter {
    /// Sends what is left. Blocks until it is sent, or for a few seconds. Call it outside the runtime.
    pub fn shut_down(self) {
        // A collector that cannot be reached must not stop the program.
        drop(self.provider.shutdown());
    }

    /// The layer that passes spans to this exporter.
    #[must_use]
    pub fn layer<S>(&self) -> OpenTelemetryLayer<S, SdkTracer>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("onceward"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
    }
}

/// An exporter to the collector at `url`, the full address of its endpoint for traces. `runtime` makes the requests.
///
/// # Errors
/// If the address is not valid.
pub fn exporter(url: &str, service: &str, runtime: Handle) -> Result<Exporter, OtelError> {
    let address = url.parse::<Uri>().ok();
    let is_http = |address: &Uri| matches!(address.scheme_str(), Some("http" | "https"));
    if !address.is_some_and(|address| is_http(&address) && address.host().is_some()) {
        // The address is not repeated: it may contain a password.
        return Err(OtelError("the address must be like http://HOST:4318".to_owned()));
    }
    let client = Collector::new(runtime)?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(url)
        .with_timeout(PATIENCE)
        .build()
        .map_err(|error| OtelError(error.to_string()))?;
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", service.to_owned()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ])
        .build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    Ok(Exporter { provider })
}

/// Makes the caller's trace the parent of a span.
pub(super) fn continue_trace(span: &Span, trace_parent: Option<&str>) {
    if let Some(context) = trace_parent.and_then(parsed) {
        let parent = Context::new().with_remote_span_context(context);
        // Without a layer for OpenTelemetry there is no trace to continue.
        drop(span.set_parent(parent));
    }
}

/// The `traceparent` of a span that is exported.
pub(super) fn trace_parent(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span().span_context().clone();
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    span.is_valid().then(|| format!("00-{trace}-{id}-{flags:02x}"))
}

fn parsed(text: &str) -> Option<SpanContext> {
    let [version, trace, span, flags] = text.split('-').collect::<Vec<_>>().try_into().ok()?;
    let lengths = [version.len(), trace.len(), span.len(), flags.len()];
    if version != "00" || lengths != [2, 32, 16, 2] {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

/// The client of a collector. Exports are made on a thread of the SDK, requests on the runtime.
struct Collector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl Collector {
    fn new(runtime: Handle) -> Result<Self, OtelError> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| OtelError(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector), runtime })
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let answer = tokio::time::timeout(PATIENCE, client.request(request.map(Full::new))).await??;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, LARGEST_ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(parts, body))
        });
        sent.await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trace_parent_is_taken_for_one() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(parsed(valid).is_some_and(|context| context.is_remote() && context.is_sampled()));
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        ] {
            assert!(parsed(wrong).is_none(), "{wrong}");
        }
    }
}
