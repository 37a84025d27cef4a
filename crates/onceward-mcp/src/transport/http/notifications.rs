//! Streams for notifications that do not concern a call. The proxy writes to them when the tools that a client sees
//! have changed.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::call::waiters::Caller;
use crate::sync::lock;
use crate::wire::message::Head;
use crate::wire::raw::{self, Object};
use onceward_http::events::Event;

/// How many messages are queued for a client that reads slowly. Further ones are dropped: one is enough.
const WAITING: usize = 4;

/// What a stream is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listening {
    /// All notifications (a `GET` in revisions with sessions).
    Everything,
    /// A subscription with this id that includes changes of the tools (`subscriptions/listen`).
    Subscribed(String),
}

impl Listening {
    /// Whether a `subscriptions/listen` request includes changes of the tools.
    pub(crate) fn of(message: &Head<'_>) -> Option<Self> {
        let wanted = message.params.and_then(Object::parse)?.object("notifications")?;
        let id = message.id?.to_owned();
        (wanted.get("toolsListChanged") == Some("true")).then_some(Self::Subscribed(id))
    }

    /// Our notification for this stream. For a subscription it carries its id.
    fn event(&self, method: &str) -> Bytes {
        let method = raw::quoted(method);
        let params = match self {
            Self::Everything => String::new(),
            Self::Subscribed(id) => {
                format!(",\"params\":{{\"_meta\":{{\"io.modelcontextprotocol/subscriptionId\":{id}}}}}")
            }
        };
        Event::of(format!("{{\"jsonrpc\":\"2.0\",\"method\":{method}{params}}}").as_bytes())
    }
}

/// An open stream.
struct Stream {
    listening: Listening,
    sender: mpsc::Sender<Bytes>,
}

/// The open streams.
#[derive(Default)]
pub(crate) struct NotificationStreams {
    streams: Mutex<HashMap<Caller, Vec<Stream>>>,
}

impl NotificationStreams {
    /// Registers a stream of that caller and returns the events that we send on it. It ends when the receiver is
    /// dropped.
    pub(crate) fn open(&self, caller: &Caller, listening: Listening) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let mut streams = lock(&self.streams);
        streams.retain(|_, all| {
            all.retain(|stream| !stream.sender.is_closed());
            !all.is_empty()
        });
        streams.entry(caller.clone()).or_default().push(Stream { listening, sender });
        receiver
    }

    /// Sends a notification on every matching stream of that caller.
    pub(crate) fn tell(&self, caller: &Caller, method: &str) {
        for stream in lock(&self.streams).get(caller).into_iter().flatten() {
            drop(stream.sender.try_send(stream.listening.event(method)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_gets_tool_changes_only_if_it_asked_for_them() {
        let listening = |text: &str| Head::parse(text).as_ref().and_then(Listening::of);
        let asks = r#"{"id":"a","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}"#;
        let asked = listening(asks).unwrap();
        assert_eq!(asked, Listening::Subscribed("\"a\"".to_owned()));
        assert_eq!(listening(&asks.replace("true", "false")), None);
        assert_eq!(listening(&asks.replace("tools", "prompts")), None);
        let notifications = NotificationStreams::default();
        let (one, other) = (Caller::default(), Caller { session: Some("s".to_owned()), principal: None });
        let mut streams = [notifications.open(&one, asked), notifications.open(&one, Listening::Everything)];
        let mut others = notifications.open(&other, Listening::Everything);
        notifications.tell(&one, "notifications/x");
        let heard: Vec<String> = streams
            .iter_mut()
            .map(|stream| String::from_utf8(stream.try_recv().unwrap().to_vec()).unwrap())
            .collect();
        assert!(heard[0].contains(r#"{"io.modelcontextprotocol/subscriptionId":"a"}"#), "{heard:?}");
        assert!(heard[1].contains(r#"data: {"jsonrpc":"2.0","method":"notifications/x"}"#), "{heard:?}");
        assert!(others.try_recv().is_err());
        drop(streams);
        drop(notifications.open(&other, Listening::Everything));
        assert_eq!(lock(&notifications.streams).len(), 1);
    }
}
