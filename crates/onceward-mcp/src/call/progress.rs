//! Progress of a call with several callers: each gets it under its own token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use onceward::OperationId;

use crate::sync::lock;
use crate::transport::call_transport::CallTransport;
use crate::wire::message::{Head, Id};
use crate::wire::raw::{self, Object};

/// A channel and the progress token that was given on it.
type Token = (u64, Id);

/// The progress tokens of the calls in flight.
#[derive(Default)]
pub(crate) struct Progress {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    leaders: HashMap<OperationId, Token>,
    followers: HashMap<Token, Vec<Follower>>,
}

#[derive(Clone)]
struct Follower {
    token: String,
    transport: Arc<dyn CallTransport>,
}

impl Progress {
    /// Lets a caller that joins a call in flight receive its progress.
    pub(crate) fn follow(
        &self,
        id: &OperationId,
        token: &str,
        joined: bool,
        transport: &Arc<dyn CallTransport>,
    ) {
        let mut table = lock(&self.table);
        match table.leaders.get(id).cloned() {
            Some(leader) if joined => {
                let follower = Follower { token: token.to_owned(), transport: Arc::clone(transport) };
                table.followers.entry(leader).or_default().push(follower);
            }
            Some(_) | None => {
                let leader = (transport.waiter().channel, Id::of(token));
                table.followers.remove(&leader);
                table.leaders.insert(id.clone(), leader);
            }
        }
    }

    /// Forgets a token. If it belongs to the first caller, the callers that joined get no more progress.
    pub(crate) fn end(&self, id: &OperationId, token: &str, transport: &Arc<dyn CallTransport>) {
        let mut table = lock(&self.table);
        let leader = (transport.waiter().channel, Id::of(token));
        if table.leaders.get(id) == Some(&leader) {
            table.leaders.remove(id);
            table.followers.remove(&leader);
        }
    }

    /// Forwards a progress notification from that channel to the callers that joined.
    pub(crate) fn tell(&self, channel: u64, head: &Head<'_>) {
        let Some(params) = head.params else { return };
        let Some(token) = Object::parse(params).and_then(|params| params.get("progressToken")) else {
            return;
        };
        let followers = lock(&self.table).followers.get(&(channel, Id::of(token))).cloned();
        for Follower { token: own, transport } in followers.unwrap_or_default() {
            let line = raw::spliced(head.text, raw::range(head.text, token), &own);
            transport.tell(line.as_bytes());
        }
    }
}
