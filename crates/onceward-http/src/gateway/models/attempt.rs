//! One attempt of a model call: the request, and the provider's answer as it arrives.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, StatusCode};
use onceward::{Attempt, Dispatched, Done, Effect, Evidence, Failure, Redaction, Usage};
use serde_json::value::RawValue;

use super::super::content::Request;
use super::super::exchange::forwarded;
use super::super::reply::{Reply, kept};
use super::super::upstream::Upstream;
use super::dialect::{Dialect, model_of};
use super::encoding::Decoder;
use super::generation::{ChunkPlace, Generation, Head};
use super::scanner::{AnswerEnd, Progress, Scanner};
use super::settings::Settings;
use super::unattended::{LOOK, Watch};
use crate::client::{Connection, SendError, in_words};
use crate::headers;
use crate::tenant::Tenant;
use crate::time;

/// How long the rest of an answer after its end is awaited: the end of its body, so that its connection can be used
/// again, or something that shows that it is not the end.
const REST: Duration = Duration::from_secs(1);
/// Chunks below this size are copied.
const SMALL: usize = 16 * 1024;
/// Events that arrive together are read together: readers learn of them after this many bytes or milliseconds, and of
/// the first one at once.
const TOGETHER: (usize, i64) = (16 * 1024, 1);
/// The longest pause that a provider may ask for and that the gateway itself waits.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Why a generation that was asked to stop has no answer.
const STOPPED: &str = "it was asked to stop, so the generation was cancelled";

/// A model call, for any number of attempts.
pub(crate) struct ModelRequest {
    pub(crate) tenant: Tenant,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) settings: Settings,
    pub(crate) dialect: Dialect,
    /// What is removed from answers before they are stored.
    pub(crate) redact: Redaction,
    pub(crate) request: Arc<Request>,
    /// Which layer asked for the first attempt of this call.
    pub(crate) layer: &'static str,
    pub(crate) generation: Arc<Generation>,
}

/// Why a call without an answer had no effect: it changes nothing at the provider, so it may be sampled again.
const SAMPLED: &str = "a model call only produces an answer";

/// Why an attempt has no answer, with what it used.
struct Broken {
    why: String,
    usage: Option<Box<Usage>>,
    /// The provider's own answer, for the client.
    reply: Option<Box<Reply>>,
    /// Whether the same request may succeed later.
    is_retryable: bool,
    /// The pause that the provider asks for.
    pause: Option<Duration>,
}

impl Broken {
    fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), usage: None, reply: None, is_retryable: true, pause: None }
    }

    /// The same request would fail again, or is not wanted any more.
    fn for_good(self) -> Self {
        Self { is_retryable: false, ..self }
    }
}

impl ModelRequest {
    /// Makes one attempt. `is_first` says whether it is the first of this call: later ones are the gateway's own.
    pub(crate) async fn attempt(&self, attempt: Attempt, is_first: bool) -> Result<Done, Failure> {
        let sent = attempt.dispatch()?;
        let layer = if is_first { self.layer } else { "gateway" };
        match self.answer(layer, sent, &attempt).await {
            Ok(done) => Ok(done),
            Err(broken) => {
                let is_bound = self.generation.fail(&broken.why);
                let is_over =
                    is_bound || !broken.is_retryable || broken.pause.is_some_and(|pause| pause > MAX_PAUSE);
                if let Some(pause) = broken.pause.filter(|_| !is_over) {
                    tokio::select! {
                        () = time::sleep(self.tenant.ledger.clock(), pause) => {}
                        () = attempt.cancel_requested() => {}
                    }
                }
                let mut failure = Failure::no_effect(Evidence::declared(SAMPLED), &broken.why);
                if let Some(reply) = broken.reply {
                    failure =
                        failure.with(status_data(reply.status), Some(reply.redacted(&self.redact).encode()));
                }
                if let Some(usage) = broken.usage {
                    failure = failure.usage(Usage { layer: layer.to_owned(), ..*usage });
                }
                Err(if is_over { failure.stopped() } else { failure })
            }
        }
    }

    async fn answer(&self, layer: &str, sent: Dispatched, attempt: &Attempt) -> Result<Done, Broken> {
        let mut watch = self.settings.unattended.watch(&self.tenant);
        let mut stopped = std::pin::pin!(attempt.cancel_requested());
        // What loses against a stop is dropped, which cancels the request at the provider.
        let (mut head, rest) = tokio::select! {
            biased;
            begun = self.send(&mut watch) => begun?,
            () = &mut stopped => return Err(Broken::new(STOPPED).for_good()),
        };
        let request_id = request_id(&head.headers);
        if head.status.is_redirection() {
            // An SDK would follow it past the gateway, and that answer would not be recorded.
            let to = headers::only(&head.headers, "location").unwrap_or("an unknown address");
            let why = format!("the provider redirects to {to}; set the url of the upstream to that address");
            return Err(Broken::new(why).for_good());
        }
        if !head.status.is_success() {
            return Err(self.refused(head, rest).await);
        }
        let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let mut scanner = Scanner::new(self.dialect, content_type.unwrap_or_default());
        let received = match Decoder::take(&mut head.headers) {
            Ok(decoder) => {
                self.generation.begin(Head { status: head.status, headers: kept(&head.headers) });
                let received = tokio::select! {
                    biased;
                    received = self.receive(rest, decoder, &mut scanner, &mut watch) => received,
                    () = &mut stopped => Err(Broken::new(STOPPED).for_good()),
                };
                self.generation.tell();
                received
            }
            Err(encoding) => {
                let why = format!(
                    "the provider compressed its answer with {encoding}, although it was asked not to"
                );
                Err(Broken::new(why).for_good())
            }
        };
        let whole = self.generation.bytes();
        let received = received.and_then(|()| match scanner.end(&whole) {
            AnswerEnd::Complete => Ok(()),
            AnswerEnd::Failed(why) | AnswerEnd::Cut(why) => Err(Broken::new(why)),
        });
        let asked = self.request.payload.bytes().map_or(&[][..], |bytes| bytes);
        let model = model_of(&self.request.path, asked);
        let usage = scanner.usage(&model, self.request.payload.len(), &whole);
        let usage = Usage { layer: layer.to_owned(), request_id, ..usage };
        match received {
            Ok(()) => Ok(self.done(sent, head, whole, usage)),
            Err(broken) => Err(Broken { usage: Some(Box::new(usage)), ..broken }),
        }
    }

    /// Receives the answer until the protocol's end, or the end of the body.
    async fn receive(
        &self,
        mut rest: Incoming,
        mut decoder: Decoder,
        scanner: &mut Scanner,
        watch: &mut Watch<'_>,
    ) -> Result<(), Broken> {
        let clock = self.tenant.ledger.clock();
        let mut last_byte_ms = clock.now_ms();
        let mut size = 0;
        // A body of a given length is at its end there, and not before.
        let may_end = rest.size_hint().exact().is_none() && decoder.is_identity();
        let mut is_over = false;
        let mut untold = Untold::default();
        // One timer for all frames: a new one for each would cost more than most frames do.
        let mut look = pin!(time::sleep(clock, LOOK));
        loop {
            let frame = tokio::select! {
                biased;
                frame = rest.frame() => Some(frame),
                () = turn(), if untold.is_any() => {
                    untold.tell(&self.generation);
                    continue;
                }
                () = &mut look => None,
            };
            watch.look(|| self.generation.is_unattended()).map_err(|why| Broken::new(why).for_good())?;
            let frame = match frame {
                Some(Some(Ok(frame))) => frame,
                Some(Some(Err(_))) if is_over => return Ok(()),
                Some(Some(Err(error))) => {
                    return Err(Broken::new(format!("the answer broke off: {}", in_words(&error))));
                }
                Some(None) => return finished(&mut decoder, is_over),
                None if is_over && !time::is_within(clock, REST, last_byte_ms) => return Ok(()),
                None if !time::is_within(clock, self.settings.idle, last_byte_ms) => {
                    let why = format!("the provider sent nothing for {:?}", self.settings.idle);
                    return Err(Broken::new(why));
                }
                None => {
                    look.set(time::sleep(clock, LOOK));
                    continue;
                }
            };
            last_byte_ms = clock.now_ms();
            let Ok(chunk) = frame.into_data() else { continue };
            let chunk = decoder.push(chunk).map_err(unreadable).map(alone)?;
            size += chunk.len();
            let progress = scanner.push(&chunk);
            is_over = progress.is_end() || (progress == Progress::Whole && may_end);
            match progress {
                Progress::Open => {
                    untold.add(chunk.len(), last_byte_ms);
                    self.generation.push(chunk, ChunkPlace::Inside);
                }
                Progress::Complete if decoder.is_identity() => {
                    self.generation.push(chunk, ChunkPlace::End);
                    read_to_end(rest);
                    return Ok(());
                }
                // A document is checked as a whole before a client gets any of it.
                Progress::Closed | Progress::Whole | Progress::Ended | Progress::Complete => {
                    self.generation.push(chunk, ChunkPlace::End);
                }
                Progress::Failed(why) => {
                    self.generation.push_error(chunk);
                    return Err(Broken::new(why));
                }
            }
            if size > self.settings.max_answer {
                let why = format!("the answer is longer than {} bytes", self.settings.max_answer);
                return Err(Broken::new(why).for_good());
            }
            if untold.is_any() && (untold.is_new() || untold.is_due(last_byte_ms)) {
                untold.tell(&self.generation);
            }
        }
    }

    fn done(&self, sent: Dispatched, head: Parts, body: Bytes, usage: Usage) -> Done {
        let reply = Reply { status: head.status, headers: head.headers, body, trailers: None };
        match status_data(reply.status) {
            Some(data) => sent.done_with_json(Effect::Created, data),
            None => sent.done(Effect::Created, &()),
        }
        .body(reply.redacted(&self.redact).encode_compressed())
        .usage(usage)
    }

    async fn send(&self, watch: &mut Watch<'_>) -> Result<(Parts, Incoming), Broken> {
        let mut headers = forwarded(&self.request.headers);
        headers.remove(header::EXPECT);
        headers.remove(headers::KEY);
        headers.insert(header::CONTENT_LENGTH, self.request.payload.len().into());
        // The answer is read here, and its replay must suit every client.
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let (method, path) = (self.request.method.clone(), self.request.path_and_query());
        let remote = &self.upstream.remote;
        let request = remote.request(method, &path, headers, self.request.payload.body());
        let sending = remote.send(request, Connection::Kept);
        let clock = self.tenant.ledger.clock();
        let begun_ms = clock.now_ms();
        tokio::pin!(sending);
        loop {
            match time::within(clock, LOOK, &mut sending).await {
                Some(Ok(response)) => return Ok(response.into_parts()),
                Some(Err(SendError::NotSent(why) | SendError::MaybeSent(why))) => {
                    return Err(Broken::new(why));
                }
                None if !time::is_within(clock, self.settings.first_byte, begun_ms) => {
                    let patience = self.settings.first_byte;
                    return Err(Broken::new(format!("the provider did not answer within {patience:?}")));
                }
                None => watch
                    .look(|| self.generation.is_unattended())
                    .map_err(|why| Broken::new(why).for_good())?,
            }
        }
    }

    /// The provider's refusal, or its failure.
    async fn refused(&self, mut head: Parts, rest: Incoming) -> Broken {
        let status = head.status;
        let is_temporary = status.is_server_error()
            || matches!(
                status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS
            );
        let told_to_stop = headers::only(&head.headers, "x-should-retry") == Some("false");
        let pause = pause(&head.headers);
        let limited = http_body_util::Limited::new(rest, self.settings.max_answer);
        let body = match limited.collect().await {
            Ok(body) => readable(&mut head.headers, body.to_bytes()),
            Err(error) => {
                let why = format!("status {} broke off: {error}", status.as_u16());
                return Broken { pause, ..Broken::new(why) };
            }
        };
        let reply = Reply { status, headers: head.headers, body, trailers: None };
        Broken {
            why: format!("the provider answered with status {}", status.as_u16()),
            usage: None,
            reply: Some(Box::new(reply)),
            is_retryable: is_temporary && !told_to_stop,
            pause,
        }
    }
}

/// What readers do not know of yet.
#[derive(Default)]
struct Untold {
    bytes: usize,
    since_ms: Option<i64>,
    has_told: bool,
}

impl Untold {
    fn add(&mut self, bytes: usize, at_ms: i64) {
        self.bytes += bytes;
        self.since_ms.get_or_insert(at_ms);
    }

    /// Whether readers know of nothing.
    fn is_new(&self) -> bool {
        !self.has_told
    }

    fn is_any(&self) -> bool {
        self.since_ms.is_some()
    }

    fn is_due(&self, now_ms: i64) -> bool {
        let (most, longest_ms) = TOGETHER;
        self.bytes >= most || self.since_ms.is_some_and(|since_ms| now_ms - since_ms >= longest_ms)
    }

    fn tell(&mut self, generation: &Generation) {
        *self = Self { has_told: self.has_told || self.is_any(), ..Self::default() };
        generation.tell();
    }
}

/// Resolves when the other tasks that can run had their turn, among them the one that reads from the provider: it hands
/// over one event at a time, although more may have arrived.
async fn turn() {
    let mut is_over = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Checks the sum of a compressed answer whose body has ended. An answer may break off after its protocol's end, so the
/// sum may be missing then.
fn finished(decoder: &mut Decoder, is_over: bool) -> Result<(), Broken> {
    match decoder.finish() {
        Err(error) if is_over && error.kind() == ErrorKind::UnexpectedEof => Ok(()),
        finished => finished.map_err(unreadable),
    }
}

fn unreadable(error: std::io::Error) -> Broken {
    Broken::new(format!("the compressed answer cannot be read: {error}"))
}

/// A chunk for which no larger buffer is kept. A small one is a part of the buffer that the connection reads into, and
/// an open stream would hold one such buffer for each of its events.
fn alone(chunk: Bytes) -> Bytes {
    if chunk.len() < SMALL { Bytes::copy_from_slice(&chunk) } else { chunk }
}

/// The body of a refusal without its compression. One that cannot be read is passed on as it is.
fn readable(headers: &mut HeaderMap, body: Bytes) -> Bytes {
    let mut plain = headers.clone();
    match Decoder::take(&mut plain).map(|mut decoder| decoder.push(body.clone())) {
        Ok(Ok(read)) => {
            *headers = plain;
            read
        }
        Ok(Err(_)) | Err(_) => body,
    }
}

/// Reads what follows the end of an answer, so that its connection can be used again.
fn read_to_end(mut rest: Incoming) {
    let reading = async move { while rest.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    drop(tokio::spawn(tokio::time::timeout(REST, reading)));
}

fn status_data(status: StatusCode) -> Option<Arc<RawValue>> {
    RawValue::from_string(format!("{{\"status\":{}}}", status.as_u16())).ok().map(Arc::from)
}

/// The provider's id of a request.
fn request_id(headers: &HeaderMap) -> Option<String> {
    ["x-request-id", "request-id"].iter().find_map(|name| headers::only(headers, name)).map(str::to_owned)
}

/// The pause that the provider asks for.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers::only(headers, name)?.trim().parse::<f64>().ok();
    let ms = number("retry-after-ms").or_else(|| Some(number("retry-after")? * 1_000.0))?;
    Duration::try_from_secs_f64(ms / 1_000.0).ok()
}

#[cfg(test)]
mod tests {
    use super::super::generation::Stored;
    use super::*;

    #[test]
    fn readers_learn_of_a_burst_before_it_is_long() {
        let (most, longest) = TOGETHER;
        let begun = 1_000;
        let mut untold = Untold::default();
        assert!(!untold.is_any() && !untold.is_due(begun));
        untold.add(1, begun);
        assert!(untold.is_any() && !untold.is_due(begun) && untold.is_due(begun + longest));
        untold.add(most, begun);
        assert!(untold.is_due(begun));
        untold.tell(&Generation::new(Stored::Whole));
        assert!(!untold.is_any() && !untold.is_due(begun + longest));
    }

    #[tokio::test]
    async fn a_turn_lets_other_tasks_run_first() {
        let other = tokio::spawn(std::future::ready(()));
        turn().await;
        assert!(other.is_finished());
    }
}
