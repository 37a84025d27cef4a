//! What a reply that is not a message means, and what to do about it.

use hyper::StatusCode;
use onceward::StoreError;
use onceward::text::one_line;
use onceward::wire::{self, ErrorKind, Problem};

/// The longest part of another program's words that is repeated.
const MAX_WORDS: usize = 300;

/// Why a request has no reply.
#[derive(Debug)]
pub(super) enum SendError {
    /// It was not sent, or the server refused it before it did anything.
    NotSent(String),
    /// It may have been carried out.
    MaybeSent(String),
    /// The reply is final: trying again does not help.
    Final(StoreError),
}

/// A server that has answered, for messages.
pub(super) struct Server<'a> {
    pub(super) at: &'a str,
    /// Whether the request had a token.
    pub(super) got_token: bool,
}

pub(super) fn explain(
    server: &Server<'_>,
    status: StatusCode,
    version: Option<&[u8]>,
    problem: Option<Problem>,
) -> SendError {
    let ours = version == Some(wire::VERSION.as_bytes());
    match problem {
        Some(problem) if ours && problem.store_error.is_some() => {
            SendError::Final(of_store(server.at, problem))
        }
        problem => by_status(server, status, version, problem),
    }
}

/// The error of the server's store.
pub(super) fn of_store(at: &str, problem: Problem) -> StoreError {
    let kind = problem.store_error.unwrap_or(ErrorKind::Unavailable);
    kind.into_error(format!("{} (the server at {at})", problem.detail))
}

fn by_status(
    server: &Server<'_>,
    status: StatusCode,
    version: Option<&[u8]>,
    problem: Option<Problem>,
) -> SendError {
    let at = server.at;
    let said = problem.map_or_else(String::new, |problem| {
        let words: String = problem.detail.chars().take(MAX_WORDS).collect();
        format!(" ({})", one_line(&words))
    });
    let unusable = |what: String| SendError::Final(StoreError::Unusable { what });
    match status {
        StatusCode::UNAUTHORIZED if server.got_token => {
            unusable(format!("the ledger's server at {at} does not accept the token{said}; get a valid one"))
        }
        StatusCode::UNAUTHORIZED => unusable(format!(
            "the ledger's server at {at} requires a token{said}; set ONCE_TOKEN, or name a file that contains it with \
             ?token_file=PATH"
        )),
        StatusCode::FORBIDDEN => {
            unusable(format!("the ledger's server at {at} does not allow this with your token{said}"))
        }
        // Refused before the request was read: it can be sent again.
        StatusCode::TOO_MANY_REQUESTS => {
            SendError::NotSent(format!("it answers that there are too many requests{said}"))
        }
        _ if version.is_some_and(|version| version != wire::VERSION.as_bytes()) => unusable(format!(
            "the ledger's server at {at} speaks version {} of the protocol, and this program version {}; use the same \
             version of Onceward on both sides",
            one_line(&String::from_utf8_lossy(version.unwrap_or_default())),
            wire::VERSION
        )),
        StatusCode::PAYLOAD_TOO_LARGE => {
            unusable(format!("the ledger's server at {at} refuses a record as too large{said}"))
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => unusable(format!(
            "the server at {at} has no ledger under {}: it is another program, an older version of `once serve`, or \
             behind a proxy with another path",
            wire::ROOT
        )),
        status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => {
            SendError::MaybeSent(format!("it answered {status}{said}"))
        }
        StatusCode::OK => {
            unusable(format!("the server at {at} is not a ledger's server: its answer is another one's"))
        }
        status => unusable(format!("the ledger's server at {at} refused the request with {status}{said}")),
    }
}
