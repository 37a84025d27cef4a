//! Requests of ours to a client that is on a stream, and its answers, which the server does not see.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::elicit::takes_forms;
use crate::message::Id;
use crate::raw::{self, Object};
use crate::upstream::lock;

/// What the client is asked, and whether it can be.
pub(crate) struct Inquiries {
    /// Makes our ids nobody else's: the server asks the client too.
    name: String,
    next: AtomicU64,
    takes_forms: AtomicBool,
    waiting: Mutex<Option<HashMap<Id, oneshot::Sender<String>>>>,
}

/// A request that waits for the client.
pub(crate) struct Inquiry {
    /// Its id, as text.
    pub(crate) id: String,
    /// The client's answer.
    pub(crate) answer: oneshot::Receiver<String>,
}

impl Inquiries {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            next: AtomicU64::new(1),
            takes_forms: AtomicBool::new(false),
            waiting: Mutex::new(Some(HashMap::new())),
        }
    }

    /// The client says what it can do, as it says hello.
    pub(crate) fn hello(&self, params: Option<&str>) {
        let capabilities = params.and_then(Object::parse).and_then(|params| params.object("capabilities"));
        let takes = capabilities.is_some_and(|capabilities| takes_forms(&capabilities));
        self.takes_forms.store(takes, Ordering::SeqCst);
    }

    /// A new request, if the client can be asked with a form.
    pub(crate) fn begin(&self) -> Option<Inquiry> {
        if !self.takes_forms.load(Ordering::SeqCst) {
            return None;
        }
        let id = raw::quoted(&format!("{}-{}", self.name, self.next.fetch_add(1, Ordering::SeqCst)));
        let (sender, answer) = oneshot::channel();
        lock(&self.waiting).as_mut()?.insert(Id::of(&id), sender);
        Some(Inquiry { id, answer })
    }

    /// Nobody waits for it any more.
    pub(crate) fn forget(&self, id: &str) {
        if let Some(waiting) = lock(&self.waiting).as_mut() {
            waiting.remove(&Id::of(id));
        }
    }

    /// Whether the id is of a request of ours.
    pub(crate) fn is_ours(&self, id: &str) -> bool {
        let id = Id::of(id);
        let (text, quoted) = id.bare();
        quoted && text.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with('-'))
    }

    /// The client's answer to a request of ours. One that comes too late is nobody's.
    pub(crate) fn answered(&self, id: &str, line: &str) {
        let sender = lock(&self.waiting).as_mut().and_then(|waiting| waiting.remove(&Id::of(id)));
        if let Some(sender) = sender {
            // Whoever does not wait any more needs no answer.
            drop(sender.send(line.to_owned()));
        }
    }

    /// The client is gone: nobody answers any more.
    pub(crate) fn over(&self) {
        drop(lock(&self.waiting).take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_takes_forms_is_asked_and_only_its_own_answers_are_taken() {
        let inquiries = Inquiries::new("once-x".to_owned());
        assert!(inquiries.begin().is_none());
        for (hello, takes) in [
            (r#"{"capabilities":{"elicitation":{}}}"#, true),
            (r#"{"capabilities":{"elicitation":{"url":{}}}}"#, false),
            (r#"{"capabilities":{}}"#, false),
            (r#"{"capabilities":{"elicitation":{"form":{},"url":{}}}}"#, true),
        ] {
            inquiries.hello(Some(hello));
            assert_eq!(inquiries.begin().is_some(), takes, "{hello}");
        }
        let mut inquiry = inquiries.begin().unwrap();
        assert!(
            inquiries.is_ours(&inquiry.id) && !inquiries.is_ours("\"once-y-1\"") && !inquiries.is_ours("1")
        );
        inquiries.answered(&inquiry.id, "yes");
        assert_eq!(inquiry.answer.try_recv().as_deref(), Ok("yes"));
        let mut late = inquiries.begin().unwrap();
        inquiries.over();
        assert!(late.answer.try_recv().is_err() && inquiries.begin().is_none());
    }
}
