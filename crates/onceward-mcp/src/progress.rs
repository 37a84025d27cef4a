//! Progress of a call that several wait for: each hears of it under his own token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use onceward::OperationId;

use crate::ends::Ends;
use crate::message::{Head, Id};
use crate::raw::{self, Object};
use crate::upstream::lock;

/// Where a token was given, and which.
type Token = (u64, Id);

/// Progress tokens of the calls that are under way here.
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
    ends: Arc<dyn Ends>,
}

impl Progress {
    /// Lets whoever joins a call that is under way here hear of its progress.
    pub(crate) fn follow(&self, id: &OperationId, token: &str, joined: bool, ends: &Arc<dyn Ends>) {
        let mut table = lock(&self.table);
        match table.leaders.get(id).cloned() {
            Some(leader) if joined => {
                let follower = Follower { token: token.to_owned(), ends: Arc::clone(ends) };
                table.followers.entry(leader).or_default().push(follower);
            }
            Some(_) | None => {
                let leader = (ends.waiter().channel, Id::of(token));
                table.followers.remove(&leader);
                table.leaders.insert(id.clone(), leader);
            }
        }
    }

    /// Whoever was told first waits no more, and with him nobody hears of it.
    pub(crate) fn end(&self, id: &OperationId, token: &str, ends: &Arc<dyn Ends>) {
        let mut table = lock(&self.table);
        let leader = (ends.waiter().channel, Id::of(token));
        if table.leaders.get(id) == Some(&leader) {
            table.leaders.remove(id);
            table.followers.remove(&leader);
        }
    }

    /// A notification of progress that came in there.
    pub(crate) fn tell(&self, channel: u64, head: &Head<'_>) {
        let Some(params) = head.params else { return };
        let Some(token) = Object::parse(params).and_then(|params| params.get("progressToken")) else {
            return;
        };
        let followers = lock(&self.table).followers.get(&(channel, Id::of(token))).cloned();
        for Follower { token: own, ends } in followers.unwrap_or_default() {
            let line = raw::spliced(head.text, raw::range(head.text, token), &own);
            ends.tell(line.as_bytes());
        }
    }
}
