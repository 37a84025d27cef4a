//! A response as the ledger keeps it.

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use onceward::Receipt;
use serde::{Deserialize, Serialize};

use super::body::ResponseBody;
use super::key::latin1;

/// The header that marks a replay.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Headers about one connection, or set again for each answer.
const NOT_KEPT: [&str; 5] = ["connection", "keep-alive", "transfer-encoding", "date", "server"];

/// Status and headers. The body is stored beside them, as bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head {
    status: u16,
    headers: Vec<(String, String)>,
    /// Whether its size was not known in advance, so that no answer says it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    streamed: bool,
}

impl Head {
    pub(super) fn of(parts: &Parts, streamed: bool) -> Self {
        let kept = parts.headers.iter().filter(|(name, _)| !NOT_KEPT.contains(&name.as_str()));
        let headers = kept.map(|(name, value)| (name.to_string(), latin1(value.as_bytes()))).collect();
        Self { status: parts.status.as_u16(), headers, streamed }
    }

    fn response<B>(self, body: Bytes) -> Option<Response<ResponseBody<B>>> {
        let body =
            if self.streamed { ResponseBody::of_unknown_size(body) } else { ResponseBody::whole(body) };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        for (name, value) in self.headers {
            let bytes: Vec<u8> = value.chars().map(|c| u8::try_from(c).ok()).collect::<Option<_>>()?;
            response
                .headers_mut()
                .append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(&bytes).ok()?);
        }
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        Some(response)
    }
}

/// The stored response; `None` if the request was carried out and its response was not kept.
pub(super) fn replay<B>(receipt: &Receipt) -> Option<Response<ResponseBody<B>>> {
    let outcome = receipt.record().outcome.as_ref()?;
    if outcome.unavailable {
        return None;
    }
    let head: Head = serde_json::from_str(receipt.data()?).ok()?;
    head.response(Bytes::copy_from_slice(receipt.body()?))
}
