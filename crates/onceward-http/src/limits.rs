//! The limits of a listener, and who can reach it.

use std::net::IpAddr;

/// Limits of a listener.
///
/// ```
/// let mut limits = onceward_http::Limits::default();
/// limits.body_bytes = 1024 * 1024;
/// assert_eq!(limits.connections, 1_024);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The longest request body, in bytes. Longer requests are refused and nothing is run.
    pub body_bytes: usize,
    /// How many bytes all request bodies may take together, small ones not counted. A request that finds no room in
    /// time is refused and nothing is run.
    pub bodies_bytes: usize,
    /// The most connections. For one more, the connection whose client has been silent longest is closed. If all are
    /// busy, the new one waits.
    pub connections: usize,
    /// How long a client has to send the head of a request, and how long it may be idle between two.
    pub header_ms: u64,
    /// How long a client has to send a request body. A longer body must arrive at `body_rate` in each such period.
    pub body_ms: u64,
    /// The lowest rate of a request body, in bytes per second.
    pub body_rate: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 * 1024 * 1024,
            bodies_bytes: 256 * 1024 * 1024,
            connections: 1_024,
            header_ms: 30_000,
            body_ms: 15_000,
            body_rate: 32 * 1024,
        }
    }
}

/// Who can reach a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// This machine only. Requests from cross-origin pages in its browsers are refused.
    Loopback,
    /// Other machines too. Clients must present a token.
    Network,
}

impl Reach {
    /// Who can reach a listener at this address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_loopback() { Self::Loopback } else { Self::Network }
    }
}
