//! The names of operations: `UPSTREAM METHOD PATH`, and the action if a header names it.

use onceward::{MAX_NAME, Policy};
use sha2::{Digest, Sha256};

use super::policy::OperationRule;

/// What tokens begin with, although ids begin in the same way.
const SECRET_PREFIXES: [&str; 9] = ["sk", "rk", "pk", "whsec", "ghp", "gho", "ghs", "xoxb", "xoxp"];

/// The name of an operation, with its action if a header names that. A name that is too long ends with its hash.
pub(crate) fn name(upstream: &str, method: &str, path: &str, action: Option<&str>) -> String {
    let segments: Vec<&str> = path.split('/').map(shown_segment).collect();
    let action = action.map(|action| format!(" {action}")).unwrap_or_default();
    let name = format!("{upstream} {method} {}{action}", segments.join("/"));
    if name.chars().count() <= MAX_NAME {
        return name;
    }
    let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(&name)[..16]);
    let kept: String = name.chars().take(MAX_NAME - hash.len() - 1).collect();
    format!("{kept}…{hash}")
}

/// What the name of an operation says about its request.
pub(crate) struct Named<'a> {
    pub(crate) upstream: &'a str,
    pub(crate) method: hyper::Method,
    pub(crate) path: &'a str,
    pub(crate) action: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// Reads the name of an operation of the gateway.
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let mut words = name.splitn(4, ' ');
        let (upstream, method, path) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        Some(Self { upstream, method, path, action: words.next() })
    }

    /// What the policy says about it.
    pub(crate) fn rule(&self, policy: &Policy) -> Option<OperationRule> {
        let Self { upstream, method, path, action } = self;
        let bare = format!("{upstream} {method} {path}");
        let full = action.map_or(bare.clone(), |action| format!("{bare} {action}"));
        OperationRule::of_any(policy, &[&full, &bare]).ok()
    }
}

/// A part of a path as it is stored. Some vendors have credentials in their paths, such as `/bot123:TOKEN/sendMessage`
/// and the last part of a webhook's address.
fn shown_segment(segment: &str) -> &str {
    if is_secret(segment) { "…" } else { segment }
}

/// Whether a part of a path looks like a credential: long and random, without the prefix that ids have.
fn is_secret(segment: &str) -> bool {
    let has = |of: fn(&char) -> bool| segment.chars().any(|char| of(&char));
    let is_mixed =
        has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(char::is_ascii_digit);
    let is_random =
        |text: &str| text.chars().all(|char| char.is_ascii_alphanumeric() || "-_.~:%".contains(char));
    let prefix = segment.split_once('_').map(|(prefix, _)| prefix);
    let is_id = prefix.is_some_and(|prefix| {
        prefix.len() <= 8
            && prefix.chars().all(|char| char.is_ascii_lowercase())
            && !SECRET_PREFIXES.contains(&prefix)
    });
    let is_prefixed = prefix.is_some_and(|prefix| SECRET_PREFIXES.contains(&prefix)) && segment.len() >= 16;
    is_prefixed || (segment.len() >= 24 && is_mixed && is_random(segment) && !is_id)
}

#[cfg(test)]
mod tests {
    use super::{Named, name};

    #[test]
    fn credentials_in_a_path_are_not_part_of_the_name() {
        for (path, shown) in [
            ("/v1/charges", "/v1/charges"),
            (
                "/v1/payment_intents/pi_3MtwBwLkdIwHu7ix28a3tqPa/confirm",
                "/v1/payment_intents/pi_3MtwBwLkdIwHu7ix28a3tqPa/confirm",
            ),
            ("/v2/orders/5O190127TN364715T/capture", "/v2/orders/5O190127TN364715T/capture"),
            ("/o/9f1c2d3e-0000-4000-8000-9f1c2d3e0000", "/o/9f1c2d3e-0000-4000-8000-9f1c2d3e0000"),
            ("/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage", "/…/sendMessage"),
            ("/services/T00000000/B00000000/x1X2x3X4x5X6x7X8x9X0x1X2", "/services/T00000000/B00000000/…"),
            ("/api/webhooks/123/aB3-dE_fGhIjKlMnOpQrStUvWxYz0123456789", "/api/webhooks/123/…"),
            ("/t/sk_live_0123456789abcdef", "/t/…"),
        ] {
            assert_eq!(name("up", "POST", path, None), format!("up POST {shown}"));
        }
        let named = name("up", "POST", "/", Some("urn:Do it"));
        let parsed = Named::parse(&named).unwrap();
        assert_eq!((parsed.upstream, parsed.path, parsed.action), ("up", "/", Some("urn:Do it")));
    }
}
