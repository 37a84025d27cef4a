//! A short session with a server over HTTP, in which the proxy itself is the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use data_encoding::BASE64;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Response};
use onceward::InvalidInput;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::header_check::value_at;
use super::headers::{METHOD, NAME, PARAM, SESSION, VERSION};
use super::reader::answer_to;
use super::remote::{Connection, Remote, full};
use crate::call::waiters::Waiter;
use crate::proxy_state::ProxyState;
use crate::sync::lock;
use crate::tools::explain::{self, HANDSHAKE, STATELESS};
use crate::tools::mirrored::Mirrored;
use crate::transport::call_transport::{
    CallAnswer, CallTransport, Delivered, Origin, Request, STOPPED, SendError, ServerReply,
};
use crate::wire::message::{Head, Id, cancelled};
use crate::wire::raw;
use crate::wire::tool_call::ToolCall;

/// A session with a server.
pub(crate) struct Visit {
    remote: Remote,
    headers: HeaderMap,
    /// The `_meta` of every request.
    meta: Value,
    asked: AtomicU64,
    /// Whether no answer is waited for any longer.
    given_up: watch::Sender<bool>,
}

impl Visit {
    /// Makes the handshake. `headers` are sent with every request.
    ///
    /// # Errors
    /// If the server cannot be reached, or a header is invalid.
    pub(crate) async fn begin(remote: Remote, headers: &[(String, String)]) -> Result<Self, InvalidInput> {
        let (asked, given_up) = (AtomicU64::new(0), watch::Sender::new(false));
        let mut visit = Self { remote, headers: all_headers(headers)?, meta: json!({}), asked, given_up };
        let id = visit.next_id();
        let response = visit.post(request(&id, "initialize", &explain::hello()), Connection::Kept, &[]).await;
        let unreached = |why: &str| InvalidInput::new(format!("the server cannot be reached: {why}"));
        let response = response.map_err(|error| unreached(in_words(&error)))?;
        if let Some(session) = response.headers().get(&SESSION) {
            visit.headers.insert(SESSION, session.clone());
        }
        let answer = answer_to(&Id::of(&id), response).await.map_err(|error| unreached(in_words(&error)))?;
        if result_of(answer).is_ok() {
            visit.headers.insert(VERSION, HeaderValue::from_static(HANDSHAKE));
            visit.notify("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}".to_owned()).await;
        } else {
            // A server without a handshake gets the protocol version with every request.
            visit.headers.insert(VERSION, HeaderValue::from_static(STATELESS));
            visit.meta = explain::every_request();
        }
        Ok(visit)
    }

    /// The `_meta` of every request.
    pub(crate) fn meta(&self) -> &Value {
        &self.meta
    }

    /// Sends a request and returns the result.
    pub(crate) async fn ask(&self, method: &str, params: &Value) -> Result<String, String> {
        let id = self.next_id();
        let line = request(&id, method, &params.to_string());
        let response = self.post(line, Connection::Kept, &[]).await;
        let response = response.map_err(|error| in_words(&error).to_owned())?;
        let answer = answer_to(&Id::of(&id), response).await;
        result_of(answer.map_err(|error| in_words(&error).to_owned())?)
    }

    /// Ends the session, if there is one. A server that does not support this will drop it on its own.
    pub(crate) async fn leave(&self) {
        if self.headers.contains_key(&SESSION) {
            let (path, headers) = (self.remote.path(), self.headers.clone());
            let request = self.remote.request(Method::DELETE, path, headers, full(""));
            drop(self.remote.send(request, Connection::Kept).await);
        }
    }

    /// Waits for no answer any longer: calls that were sent are in doubt.
    pub(crate) fn give_up(&self) {
        self.given_up.send_replace(true);
    }

    fn next_id(&self) -> String {
        (self.asked.fetch_add(1, Ordering::Relaxed) + 1).to_string()
    }

    async fn notify(&self, line: String) {
        drop(self.post(line, Connection::Kept, &[]).await);
    }

    /// Sends a message. Its headers say which one it is, as the stateless revision requires.
    async fn post(
        &self,
        line: String,
        connection: Connection,
        mirrored: &[Mirrored],
    ) -> Result<Response<Incoming>, SendError> {
        let mut headers = self.headers.clone();
        if let Some(message) = Head::parse(&line) {
            let method = message.method.as_deref();
            headers.extend(method.and_then(|method| Some((METHOD, header_value(method)?))));
            if let Some(call) = ToolCall::parse(&message) {
                headers.extend(header_value(&call.tool).map(|tool| (NAME, tool)));
                headers.extend(mirrored.iter().filter_map(|one| mirrored_header(&call, one)));
            }
        }
        let request = self.remote.request(Method::POST, self.remote.path(), headers, full(line));
        self.remote.send(request, connection).await
    }
}

/// A call in such a session. Only the proxy waits for its answer.
pub(crate) struct VisitTransport {
    visit: Arc<Visit>,
    state: Arc<ProxyState>,
    waiter: Arc<Waiter>,
}

impl VisitTransport {
    pub(crate) fn new(visit: Arc<Visit>, state: Arc<ProxyState>, waiter: Arc<Waiter>) -> Self {
        Self { visit, state, waiter }
    }

    async fn answer_of(&self, line: String, id: &Id, origin: Origin) -> Result<ServerReply, SendError> {
        let connection = match origin {
            Origin::Caller => Connection::Fresh,
            Origin::Proxy => Connection::Kept,
        };
        let call = Head::parse(&line).as_ref().and_then(ToolCall::parse);
        let mirrored = call.map(|call| lock(&self.state.catalogue).mirrored(&call.tool)).unwrap_or_default();
        let response = self.visit.post(line, connection, &mirrored).await?;
        match (answer_to(id, response).await, origin) {
            // It was sent, so a broken answer proves nothing.
            (Err(SendError::NotSent(why) | SendError::MaybeSent(why)), Origin::Caller) => {
                Ok(ServerReply::Over(format!("the server's answer broke off: {why}")))
            }
            (answer, _) => answer,
        }
    }
}

#[async_trait::async_trait]
impl CallTransport for VisitTransport {
    fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    async fn ask(&self, request: Request) -> Result<ServerReply, SendError> {
        let (line, id) = match request.origin {
            Origin::Caller => {
                let id = Id::of(&request.line[request.id_place.clone()]);
                (Arc::unwrap_or_clone(request.line), id)
            }
            Origin::Proxy => {
                let id = self.visit.next_id();
                (raw::spliced(&request.line, request.id_place, &id), Id::of(&id))
            }
        };
        let mut given_up = self.visit.given_up.subscribe();
        tokio::select! {
            answer = self.answer_of(line, &id, request.origin) => answer,
            _ = given_up.wait_for(|given_up| *given_up) => {
                Ok(ServerReply::Over("the server did not answer in time".to_owned()))
            }
        }
    }

    async fn cancel_request(&self) {
        self.visit.notify(cancelled(&self.waiter.id_text, Some(STOPPED))).await;
    }

    async fn pass(&self, _call: ToolCall) {}

    async fn answer(&self, _answer: CallAnswer) -> Delivered {
        Delivered::No
    }

    async fn announce(&self, _method: &'static str) {}

    fn tell(&self, _line: &[u8]) {}
}

fn request(id: &str, method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{},\"params\":{params}}}", raw::quoted(method))
}

fn result_of(answer: ServerReply) -> Result<String, String> {
    match answer {
        ServerReply::Answer(line) => {
            let line = String::from_utf8(line).map_err(|error| error.to_string())?;
            let result = Head::parse(&line).and_then(|head| head.result).map(str::to_owned);
            result.ok_or(line)
        }
        ServerReply::Rejected(why) | ServerReply::Unclear(why) | ServerReply::Over(why) => Err(why),
    }
}

fn in_words(error: &SendError) -> &str {
    match error {
        SendError::NotSent(why) | SendError::MaybeSent(why) => why,
    }
}

/// The header that repeats an argument. Values that a header cannot hold are left out.
fn mirrored_header(call: &ToolCall, mirrored: &Mirrored) -> Option<(HeaderName, HeaderValue)> {
    let value = value_at(call.arguments(), &mirrored.path).filter(|value| value != "null")?;
    if value.starts_with(['{', '[']) {
        return None;
    }
    let name = HeaderName::try_from(format!("{PARAM}{}", mirrored.token.to_ascii_lowercase())).ok()?;
    Some((name, header_value(&raw::string(&value).unwrap_or(value))?))
}

/// The value of a header, encoded if it is not visible ASCII.
fn header_value(text: &str) -> Option<HeaderValue> {
    let is_plain =
        !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.trim() == text;
    match is_plain && !text.starts_with("=?base64?") {
        true => HeaderValue::from_str(text).ok(),
        false => HeaderValue::from_str(&format!("=?base64?{}?=", BASE64.encode(text.as_bytes()))).ok(),
    }
}

fn all_headers(given: &[(String, String)]) -> Result<HeaderMap, InvalidInput> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    for (name, value) in given {
        let header = (HeaderName::try_from(name), HeaderValue::try_from(value));
        let (Ok(name), Ok(value)) = header else {
            return Err(InvalidInput::new(format!("{name:?} cannot be sent as a header")));
        };
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_holds_any_text() {
        for (text, expected) in [
            ("count", "count"),
            ("zähl", "=?base64?esOkaGw=?="),
            (" a", "=?base64?IGE=?="),
            ("", "=?base64??="),
        ] {
            assert_eq!(header_value(text).unwrap(), expected, "{text}");
        }
    }
}
