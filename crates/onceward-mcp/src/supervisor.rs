//! Whether the server on a stream lives, and who wants it when it does not. Hosts that never reconnect keep working: a
//! server that ended is started again with the client's next message, and greeted as before.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::stdio::Next;
use crate::upstream::lock;

/// How far the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Life {
    #[default]
    Running,
    /// It has ended, and nothing wants it.
    Gone,
    /// It has ended, and the client wants something of it.
    Wanted,
    /// It was started again, and is to be greeted.
    New,
}

/// Whether the server had to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Started {
    /// It runs.
    Before,
    /// It was started just now.
    Anew,
    /// It could not be started.
    Not,
}

#[derive(Default)]
struct State {
    life: Life,
    client_left: bool,
    /// Whether no one starts the server again any more.
    ended: bool,
    has_spoken: bool,
    restarts: u64,
    hello: Option<String>,
}

/// Watches over the server's life.
#[derive(Default)]
pub(crate) struct Supervisor {
    state: Mutex<State>,
    changed: Condvar,
}

impl Supervisor {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    /// The client greets the server.
    pub(crate) fn greeted(&self, hello: &str) {
        self.change(|state| state.hello = Some(hello.to_owned()));
    }

    /// What the client greeted the server with.
    pub(crate) fn hello(&self) -> Option<String> {
        lock(&self.state).hello.clone()
    }

    pub(crate) fn client_left(&self) {
        self.change(|state| state.client_left = true);
    }

    pub(crate) fn heard_server(&self) {
        let mut state = lock(&self.state);
        state.has_spoken = true;
    }

    pub(crate) fn server_has_spoken(&self) -> bool {
        lock(&self.state).has_spoken
    }

    pub(crate) fn was_restarted(&self) -> bool {
        lock(&self.state).restarts > 0
    }

    pub(crate) fn server_gone(&self) {
        self.change(|state| state.life = Life::Gone);
    }

    pub(crate) fn server_started(&self) {
        self.change(|state| {
            state.life = Life::New;
            state.has_spoken = false;
            state.restarts += 1;
        });
    }

    /// The client has something to say: waits until there is a server to say it to.
    pub(crate) fn want_server(&self) -> Started {
        let mut state = lock(&self.state);
        if state.life == Life::Gone && !state.client_left {
            state.life = Life::Wanted;
            self.changed.notify_all();
        }
        while state.life == Life::Wanted && !state.ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.life {
            Life::New => {
                state.life = Life::Running;
                Started::Anew
            }
            Life::Running => Started::Before,
            Life::Gone | Life::Wanted => Started::Not,
        }
    }

    /// Waits until the client wants a server that is gone, or leaves.
    pub(crate) fn wait_for_client(&self) -> Next {
        let mut state = lock(&self.state);
        while state.life == Life::Gone && !state.client_left {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.life == Life::Wanted && !state.client_left { Next::Restart } else { Next::End }
    }

    /// The server is not started again any more: nothing waits for it.
    pub(crate) fn end(&self) {
        self.change(|state| state.ended = true);
    }
}
