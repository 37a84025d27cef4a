//! Sockets that systemd hands over, and messages to it.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use listenfd::ListenFd;

use crate::exit::CommandError;

/// The sockets of a unit with `Sockets=`, which were open before this process began.
#[derive(Default)]
pub(super) struct Inherited {
    pub(super) tcp: Vec<TcpListener>,
    pub(super) unix: Vec<UnixListener>,
}

impl Inherited {
    /// Takes the sockets that the environment names, if it names this process.
    pub(super) fn take() -> Result<Self, CommandError> {
        let mut given = ListenFd::from_env();
        let mut inherited = Self::default();
        for index in 0..given.len() {
            // A descriptor of the wrong kind stays where it is, so both kinds can be tried.
            if let Ok(Some(listener)) = given.take_tcp_listener(index) {
                listener.set_nonblocking(true).map_err(unusable)?;
                inherited.tcp.push(listener);
            } else if let Ok(Some(listener)) = given.take_unix_listener(index) {
                listener.set_nonblocking(true).map_err(unusable)?;
                inherited.unix.push(listener);
            } else {
                return Err(CommandError::invalid(format!(
                    "descriptor {index} that systemd hands over is not a stream socket"
                )));
            }
        }
        Ok(inherited)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.unix.is_empty()
    }
}

fn unusable(error: std::io::Error) -> CommandError {
    CommandError::Outside(format!("a socket that systemd hands over cannot be used: {error}"))
}

/// Tells systemd about the state of this process, if it asked to be notified.
pub(super) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::ffi::OsString::from_vec(path.into_vec())),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    match sent {
        // A service manager that is gone needs no message.
        Ok(_) | Err(_) => {}
    }
}
