//! Who may read `/metrics`. The numbers are those of all tenants, so a tenant's token is not enough.

use std::net::SocketAddr;

use axum::http::HeaderMap;
use onceward::InvalidInput;

use crate::config::{MetricsAccess, ServeConfig};
use crate::limits::Reach;
use crate::tenants::{self, TokenHash};

/// How a request reached the server. Every request has it as an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The address of the listener; `None` for a Unix socket.
    pub(crate) local: Option<SocketAddr>,
}

/// The rule of the configuration.
pub(crate) struct MetricsGate {
    access: MetricsAccess,
    tokens: Vec<TokenHash>,
}

impl MetricsGate {
    pub(crate) fn new(serve: &ServeConfig) -> Result<Self, InvalidInput> {
        let tokens: Result<Vec<TokenHash>, InvalidInput> =
            serve.metrics_tokens.iter().map(|token| TokenHash::parse(token)).collect();
        let tokens =
            tokens.map_err(|invalid| InvalidInput::new(format!("[serve] metrics_tokens: {invalid}")))?;
        if serve.metrics == MetricsAccess::Token && tokens.is_empty() {
            return Err(InvalidInput::new(
                "[serve] metrics = \"token\", but there are no metrics_tokens, so no program could read them; `once \
                 serve token --metrics` makes one",
            ));
        }
        Ok(Self { access: serve.metrics, tokens })
    }

    /// Whether a request may read the metrics. A request that did not arrive at one of our listeners may be from
    /// anywhere.
    pub(super) fn admits(&self, arrival: Option<&Arrival>, headers: &HeaderMap) -> bool {
        let is_local = arrival.is_some_and(|arrival| {
            arrival.local.is_none_or(|local| Reach::of(local.ip()) == Reach::Loopback)
        });
        match self.access {
            MetricsAccess::Open => true,
            MetricsAccess::Local if is_local => true,
            MetricsAccess::Local | MetricsAccess::Token => self.knows(headers),
        }
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(shown) = tenants::bearer(headers).map(TokenHash::of) else { return false };
        // All tokens are compared, so the time says nothing about which one it was.
        self.tokens.iter().fold(false, |known, hash| hash.matches(&shown) | known)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, header};

    use super::*;

    #[test]
    fn metrics_are_for_this_machine_unless_the_configuration_says_otherwise() {
        let (token, hash) = tenants::new_token().unwrap();
        let gate = |metrics, tokens: &[String]| {
            let serve = ServeConfig { metrics, metrics_tokens: tokens.to_vec(), ..ServeConfig::default() };
            MetricsGate::new(&serve)
        };
        let tokens = [hash.to_string()];
        let mut shown = HeaderMap::new();
        shown.insert(header::AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap());
        let mut wrong = HeaderMap::new();
        wrong.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer once_x"));
        let at = |address: &str| Some(Arrival { local: Some(address.parse().unwrap()) });
        let socket = Some(Arrival { local: None });
        for (access, arrival, without, with) in [
            (MetricsAccess::Local, at("127.0.0.1:1"), true, true),
            (MetricsAccess::Local, at("[::1]:1"), true, true),
            (MetricsAccess::Local, socket, true, true),
            (MetricsAccess::Local, at("0.0.0.0:1"), false, true),
            (MetricsAccess::Local, at("192.0.2.1:1"), false, true),
            (MetricsAccess::Local, None, false, true),
            (MetricsAccess::Token, at("127.0.0.1:1"), false, true),
            (MetricsAccess::Token, socket, false, true),
            (MetricsAccess::Open, at("192.0.2.1:1"), true, true),
        ] {
            let gate = gate(access, &tokens).unwrap();
            assert_eq!(gate.admits(arrival.as_ref(), &HeaderMap::new()), without, "{access:?} {arrival:?}");
            assert_eq!(gate.admits(arrival.as_ref(), &wrong), without, "{access:?} {arrival:?}");
            assert_eq!(gate.admits(arrival.as_ref(), &shown), with, "{access:?} {arrival:?}");
        }
        assert!(gate(MetricsAccess::Token, &[]).is_err());
        assert!(gate(MetricsAccess::Local, &["once_x".to_owned()]).is_err());
    }
}
