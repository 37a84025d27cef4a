//! Requests from the proxy to a client on a stream. The server does not see their answers.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::call::elicit::takes_forms;
use crate::sync::lock;
use crate::wire::message::Id;
use crate::wire::raw::{self, Object};

/// The open requests, and whether the client supports them.
pub(crate) struct ClientRequests {
    /// Makes our ids unique: the server sends the client requests too.
    name: String,
    next: AtomicU64,
    takes_forms: AtomicBool,
    waiting: Mutex<Option<HashMap<Id, oneshot::Sender<String>>>>,
}

/// A request that waits for the client's answer.
pub(crate) struct ClientRequest {
    /// Its id, as text.
    pub(crate) id: String,
    /// The client's answer.
    pub(crate) answer: oneshot::Receiver<String>,
}

impl ClientRequests {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            next: AtomicU64::new(1),
            takes_forms: AtomicBool::new(false),
            waiting: Mutex::new(Some(HashMap::new())),
        }
    }

    /// Notes the capabilities that the client declares in `initialize`.
    pub(crate) fn note_capabilities(&self, params: Option<&str>) {
        let capabilities = params.and_then(Object::parse).and_then(|params| params.object("capabilities"));
        let takes = capabilities.is_some_and(|capabilities| takes_forms(&capabilities));
        self.takes_forms.store(takes, Ordering::SeqCst);
    }

    /// Registers a new request, if the client supports forms.
    pub(crate) fn begin(&self) -> Option<ClientRequest> {
        if !self.takes_forms.load(Ordering::SeqCst) {
            return None;
        }
        let id = raw::quoted(&format!("{}-{}", self.name, self.next.fetch_add(1, Ordering::SeqCst)));
        let (sender, answer) = oneshot::channel();
        lock(&self.waiting).as_mut()?.insert(Id::of(&id), sender);
        Some(ClientRequest { id, answer })
    }

    /// Drops a request that is no longer awaited.
    pub(crate) fn forget(&self, id: &str) {
        if let Some(waiting) = lock(&self.waiting).as_mut() {
            waiting.remove(&Id::of(id));
        }
    }

    /// Whether the id belongs to one of our requests.
    pub(crate) fn is_ours(&self, id: &str) -> bool {
        let id = Id::of(id);
        let (text, quoted) = id.bare();
        quoted && text.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with('-'))
    }

    /// Hands over the client's answer to one of our requests. A late answer is dropped.
    pub(crate) fn complete(&self, id: &str, line: &str) {
        let sender = lock(&self.waiting).as_mut().and_then(|waiting| waiting.remove(&Id::of(id)));
        if let Some(sender) = sender {
            // The receiver may be gone; then the answer is not needed.
            drop(sender.send(line.to_owned()));
        }
    }

    /// The client is gone: open requests end without an answer.
    pub(crate) fn close(&self) {
        drop(lock(&self.waiting).take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_with_forms_are_asked_and_only_our_ids_match() {
        let client_requests = ClientRequests::new("once-x".to_owned());
        assert!(client_requests.begin().is_none());
        for (initialize, takes) in [
            (r#"{"capabilities":{"elicitation":{}}}"#, true),
            (r#"{"capabilities":{"elicitation":{"url":{}}}}"#, false),
            (r#"{"capabilities":{}}"#, false),
            (r#"{"capabilities":{"elicitation":{"form":{},"url":{}}}}"#, true),
        ] {
            client_requests.note_capabilities(Some(initialize));
            assert_eq!(client_requests.begin().is_some(), takes, "{initialize}");
        }
        let mut request = client_requests.begin().unwrap();
        assert!(
            client_requests.is_ours(&request.id)
                && !client_requests.is_ours("\"once-y-1\"")
                && !client_requests.is_ours("1")
        );
        client_requests.complete(&request.id, "yes");
        assert_eq!(request.answer.try_recv().as_deref(), Ok("yes"));
        let mut late = client_requests.begin().unwrap();
        client_requests.close();
        assert!(late.answer.try_recv().is_err() && client_requests.begin().is_none());
    }
}
