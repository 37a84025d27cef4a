//! Explains how the proxy classifies each tool of a server over HTTP.

use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method};
use onceward::InvalidInput;
use serde_json::json;

use super::call::answer_to;
use super::headers::{METHOD, SESSION, VERSION};
use super::remote::{Connection, Remote, full};
use crate::tools::explain::{self, Explained, HANDSHAKE, PAGES, Ruling, STATELESS};
use crate::tools::rules::Catalogue;
use crate::transport::call_transport::{SendError, ServerReply};
use crate::wire::message::{Head, Id};
use crate::wire::raw;

/// Lists the tools of a server over HTTP and explains each of them. `headers` are sent with every request.
///
/// # Errors
/// If the server does not answer like an MCP server, or a header is invalid.
pub async fn explain(
    rules: Ruling,
    remote: &Remote,
    headers: &[(String, String)],
) -> Result<Vec<Explained>, InvalidInput> {
    let mut visit = Visit { remote, headers: all_headers(headers)?, asked: 0 };
    let meta = match visit.ask("initialize", &explain::hello()).await {
        Ok(_) => {
            visit.headers.insert(VERSION, HeaderValue::from_static(HANDSHAKE));
            visit.notify("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}").await;
            json!({})
        }
        // A server without a handshake gets the protocol version with every request.
        Err(_) => {
            visit.headers.insert(VERSION, HeaderValue::from_static(STATELESS));
            explain::every_request()
        }
    };
    let mut catalogue = Catalogue::default();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES {
        let params = match cursor.take() {
            Some(cursor) => json!({"_meta": meta, "cursor": cursor}),
            None => json!({"_meta": meta}),
        };
        let result = visit.ask("tools/list", &params.to_string()).await;
        let result =
            result.map_err(|why| InvalidInput::new(format!("the server does not list its tools: {why}")))?;
        cursor = catalogue.learn(&result);
        if cursor.is_none() {
            break;
        }
    }
    visit.leave().await;
    explain::all(&rules.into(), &catalogue)
}

/// A short session with the server.
struct Visit<'a> {
    remote: &'a Remote,
    headers: HeaderMap,
    asked: usize,
}

impl Visit<'_> {
    /// Sends a request and returns the result.
    async fn ask(&mut self, method: &str, params: &str) -> Result<String, String> {
        self.asked += 1;
        let id = self.asked.to_string();
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{},\"params\":{params}}}",
            raw::quoted(method)
        );
        let mut headers = self.headers.clone();
        headers.extend(HeaderValue::from_str(method).ok().map(|method| (METHOD, method)));
        let request = self.remote.request(Method::POST, self.remote.path(), headers, full(line));
        let unsent = |unsent: SendError| match unsent {
            SendError::NotSent(why) | SendError::MaybeSent(why) => why,
        };
        let response = self.remote.send(request, Connection::Kept).await.map_err(unsent)?;
        if let Some(session) = response.headers().get(&SESSION) {
            self.headers.insert(SESSION, session.clone());
        }
        match answer_to(&Id::of(&id), response).await.map_err(unsent)? {
            ServerReply::Answer(line) => {
                let line = String::from_utf8(line).map_err(|error| error.to_string())?;
                let result = Head::parse(&line).and_then(|head| head.result).map(str::to_owned);
                result.ok_or(line)
            }
            ServerReply::Rejected(why) | ServerReply::Unclear(why) | ServerReply::Over(why) => Err(why),
        }
    }

    /// Sends a notification.
    async fn notify(&self, line: &'static str) {
        let (path, headers) = (self.remote.path(), self.headers.clone());
        let request = self.remote.request(Method::POST, path, headers, full(line));
        drop(self.remote.send(request, Connection::Kept).await);
    }

    /// Ends the session, if there is one. A server that does not support this will drop it on its own.
    async fn leave(&self) {
        if self.headers.contains_key(&SESSION) {
            let (path, headers) = (self.remote.path(), self.headers.clone());
            let request = self.remote.request(Method::DELETE, path, headers, full(""));
            drop(self.remote.send(request, Connection::Kept).await);
        }
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
