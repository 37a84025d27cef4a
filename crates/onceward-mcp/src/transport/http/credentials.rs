//! Asks the server whether it accepts the credentials of a call that the ledger would answer.

use hyper::http::request::Parts;
use hyper::http::response;
use hyper::{HeaderMap, header};

use super::callers::shows_proof;
use super::gate::Gate;
use super::headers::{KEY, METHOD, NAME, PARAM, passed_on};
use super::principals::is_denial;
use super::reader::answer_to;
use super::remote::{Connection, ForwardTo};
use super::reply;
use crate::call::waiters::Caller;
use crate::transport::call_transport::ServerReply;
use crate::wire::message::{Head, Id};
use crate::wire::raw;
use crate::wire::tool_call::ToolCall;

/// The server's reaction to credentials.
enum CredentialCheck {
    Accepted,
    /// Denied, with this response head.
    Denied(response::Parts),
    /// No clear reaction.
    Unclear,
}

impl Gate {
    /// The caller of a guarded call. With a new token it is the same principal as before if the server accepts the
    /// token.
    pub(crate) async fn principal(&self, head: &Parts, call: &ToolCall) -> Caller {
        let shown = self.callers.of(head);
        let caller = self.principals.known(shown.clone());
        let Some(known) = self.principals.candidate(&head.headers, &caller) else { return caller };
        match self.check_credentials(head, call, &shown).await {
            CredentialCheck::Accepted => {}
            CredentialCheck::Denied(_) | CredentialCheck::Unclear => return caller,
        }
        if let Some(renewed) = shown.principal {
            self.principals.note_renewal(renewed, known.clone());
        }
        Caller { principal: Some(known), ..caller }
    }

    /// The server's refusal of the credentials of a call that the ledger would answer, if it refuses them.
    pub(crate) async fn denial(&self, head: &Parts, call: &ToolCall) -> Option<response::Parts> {
        let (shown, now_ms) = (self.callers.of(head), self.state.ledger.clock_ms());
        if shown.principal.as_ref().is_none_or(|principal| self.principals.is_vouched(principal, now_ms)) {
            return None;
        }
        match self.check_credentials(head, call, &shown).await {
            CredentialCheck::Denied(denial) => Some(denial),
            CredentialCheck::Accepted | CredentialCheck::Unclear => None,
        }
    }

    /// Sends the server a read-only request with the credentials of that request.
    async fn check_credentials(&self, head: &Parts, call: &ToolCall, shown: &Caller) -> CredentialCheck {
        // A single-use proof that was used here would be missing for the call.
        if shows_proof(head) {
            return CredentialCheck::Unclear;
        }
        let id = self.own_id();
        let method = if shown.session.is_some() { "ping" } else { "tools/list" };
        let meta =
            call.meta().map(|meta| raw::without(&meta, |name| !name.starts_with("io.modelcontextprotocol/")));
        let params = meta.map_or_else(String::new, |meta| format!(",\"params\":{{\"_meta\":{meta}}}"));
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\"{params}}}");
        let request = self.remote.posted(head, headers_for(head, method), line);
        let Ok(response) = self.remote.send(request, Connection::Kept).await else {
            return CredentialCheck::Unclear;
        };
        self.principals.answered(&head.headers, shown, response.status(), self.state.ledger.clock_ms());
        if is_denial(response.status()) {
            let mut denial = reply::message(response.status());
            let challenges = response.headers().get_all(header::WWW_AUTHENTICATE);
            denial.headers.extend(challenges.iter().map(|how| (header::WWW_AUTHENTICATE, how.clone())));
            return CredentialCheck::Denied(denial);
        }
        match answer_to(&Id::of(&id), response).await {
            Ok(ServerReply::Answer(line)) => {
                let text = std::str::from_utf8(&line).ok();
                let is_result = text.and_then(Head::parse).is_some_and(|head| head.result.is_some());
                if is_result { CredentialCheck::Accepted } else { CredentialCheck::Unclear }
            }
            Ok(ServerReply::Rejected(_) | ServerReply::Unclear(_) | ServerReply::Over(_)) | Err(_) => {
                CredentialCheck::Unclear
            }
        }
    }
}

/// The headers of a request, adapted to another method.
fn headers_for(head: &Parts, method: &str) -> HeaderMap {
    let mut headers = passed_on(&head.headers);
    let doubled: Vec<_> = headers
        .keys()
        .filter(|name| **name == NAME || **name == KEY || name.as_str().starts_with(PARAM))
        .cloned()
        .collect();
    doubled.iter().for_each(|name| drop(headers.remove(name)));
    headers.remove(header::ACCEPT_ENCODING);
    if headers.contains_key(&METHOD) {
        headers.extend(method.parse().ok().map(|method| (METHOD, method)));
    }
    headers
}
