//! Tracks whether the server on a stream runs, and whether the client needs it. Hosts that never reconnect keep
//! working: a server that ended is started again with the client's next message, and initialized as before.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::sync::lock;

/// What to do after the server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// The client sent a message: start the server again.
    Restart,
    /// The client has left.
    End,
}

/// The state of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Life {
    #[default]
    Running,
    /// It has ended and is not needed.
    Gone,
    /// It has ended and the client needs it.
    Wanted,
    /// It was started again and must be initialized.
    New,
}

/// Whether the server had to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Started {
    /// It was running.
    Before,
    /// It was just started.
    Anew,
    /// It could not be started.
    Not,
}

#[derive(Default)]
struct State {
    life: Life,
    client_left: bool,
    /// Whether the server will not be started again.
    ended: bool,
    has_spoken: bool,
    restarts: u64,
    initialize: Option<String>,
}

/// Tracks the life of the server.
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

    /// Remembers the client's `initialize` request.
    pub(crate) fn remember_initialize(&self, initialize: &str) {
        self.change(|state| state.initialize = Some(initialize.to_owned()));
    }

    /// The client's `initialize` request.
    pub(crate) fn initialize_request(&self) -> Option<String> {
        lock(&self.state).initialize.clone()
    }

    pub(crate) fn client_left(&self) {
        self.change(|state| state.client_left = true);
    }

    pub(crate) fn note_server_output(&self) {
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

    /// Waits until there is a server for the client's message.
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

    /// Waits until the client needs a server that has ended, or leaves.
    pub(crate) fn wait_for_client(&self) -> Next {
        let mut state = lock(&self.state);
        while state.life == Life::Gone && !state.client_left {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.life == Life::Wanted && !state.client_left { Next::Restart } else { Next::End }
    }

    /// The server is not started again: releases everyone who waits for it.
    pub(crate) fn end(&self) {
        self.change(|state| state.ended = true);
    }
}
