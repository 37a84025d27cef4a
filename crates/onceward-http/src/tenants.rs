//! The tenants of a server: their tokens, and which records each of them can see.
//!
//! # Layout
//! - `view`: a tenant's view of the ledger. `token`: tokens and their hashes. `rate`: the rate of requests.

mod rate;
mod token;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use onceward::{InvalidInput, Store};
use serde::Deserialize;

pub use token::{TokenHash, new_token};
pub use view::TenantStore;

use crate::mistake::Mistake;
use crate::tenant::Tenant;
pub(crate) use rate::Bucket;

/// The token of a caller whose `Authorization` is for an upstream.
pub(crate) const ONCE_TOKEN: HeaderName = HeaderName::from_static("once-token");
/// The longest name of a tenant.
const MAX_NAME: usize = 32;

/// A `[tenant.NAME]` section.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TenantConfig {
    /// The hashes of the tokens that identify this tenant: `sha256:…`.
    pub tokens: Vec<String>,
    /// How many requests per second this tenant may send. Without it there is no limit.
    pub rate: Option<f64>,
    /// How many requests it may send at once before the rate counts; the rate by default, and at least 1.
    pub burst: Option<f64>,
    /// The longest request body, in bytes, if it is less than the server's limit.
    pub max_body: Option<usize>,
}

/// All tenants.
pub(crate) struct Tenants {
    open: Option<Tenant>,
    known: Vec<Known>,
}

/// A token, and whose it is.
struct Known {
    token: TokenHash,
    tenant: Tenant,
    /// The tenant's rate, which all of its tokens share.
    rate: Option<Arc<Bucket>>,
}

/// Which header carries a caller's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credential {
    /// `Authorization: Bearer …`, or `Once-Token`.
    Bearer,
    /// `Once-Token` only: `Authorization` is for the upstream.
    OnceToken,
}

impl Tenants {
    pub(crate) fn new(
        store: &Arc<dyn Store>,
        tenants: &BTreeMap<String, TenantConfig>,
    ) -> Result<Self, InvalidInput> {
        if let Some(invalid) = Mistake::all(mistakes(tenants), |_| None) {
            return Err(invalid);
        }
        let mut known = Vec::new();
        for (name, config) in tenants {
            let rate = config.rate.map(|rate| {
                let burst = config.burst.unwrap_or(rate).max(1.0);
                Arc::new(Bucket::new(rate, burst, store.clock().now_ms()))
            });
            let view = Arc::new(TenantStore::new(Arc::clone(store), name));
            let tenant = Tenant::new(view, Some(name), config.max_body);
            for token in &config.tokens {
                let (tenant, rate) = (tenant.clone(), rate.clone());
                known.push(Known { token: TokenHash::parse(token)?, tenant, rate });
            }
        }
        let open = tenants.is_empty().then(|| Tenant::new(Arc::clone(store), None, None));
        Ok(Self { open, known })
    }

    /// The tenant of callers without a token, if there are no tokens.
    pub(crate) fn open(&self) -> Option<&Tenant> {
        self.open.as_ref()
    }

    /// The tenant with this name; without one, the tenant of callers without a token.
    pub(crate) fn named(&self, name: Option<&str>) -> Option<Tenant> {
        self.all().into_iter().find(|tenant| tenant.name.as_deref() == name)
    }

    /// Every tenant, once.
    pub(crate) fn all(&self) -> Vec<Tenant> {
        let mut all: Vec<Tenant> = self.open.iter().cloned().collect();
        for Known { tenant, .. } in &self.known {
            if all.iter().all(|other| other.name != tenant.name) {
                all.push(tenant.clone());
            }
        }
        all
    }

    /// The tenant of these headers, and its rate.
    pub(crate) fn of(
        &self,
        headers: &HeaderMap,
        credential: Credential,
    ) -> Option<(&Tenant, Option<&Bucket>)> {
        if let Some(open) = &self.open {
            return Some((open, None));
        }
        let shown = TokenHash::of(token(headers, credential)?);
        // All tokens are compared, so the time says nothing about which one it was.
        let mut found = None;
        for Known { token, tenant, rate } in &self.known {
            if token.matches(&shown) {
                found = Some((tenant, rate.as_deref()));
            }
        }
        found
    }
}

/// What is wrong with the sections of tenants.
pub(crate) fn mistakes(tenants: &BTreeMap<String, TenantConfig>) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut known: Vec<TokenHash> = Vec::new();
    for (name, config) in tenants {
        let mut note = |setting: &str, what: &str| {
            mistakes.push(Mistake::at(["tenant", name, setting], format!("[tenant.{name}] {what}")));
        };
        if let Err(invalid) = check_name(name) {
            note("", &invalid.to_string());
        }
        let positive = |number: Option<f64>| number.is_none_or(|number| number.is_finite() && number > 0.0);
        for (setting, number) in [("rate", config.rate), ("burst", config.burst)] {
            if !positive(number) {
                note(setting, "rate and burst must be numbers above 0");
            }
        }
        if config.tokens.is_empty() {
            note("tokens", "there is no token, so no caller could use it; `once serve token` makes one");
        }
        for token in &config.tokens {
            match TokenHash::parse(token) {
                Ok(hash) if known.contains(&hash) => note("tokens", "one of its tokens is configured twice"),
                Ok(hash) => known.push(hash),
                Err(invalid) => note("tokens", &invalid.to_string()),
            }
        }
    }
    mistakes
}

/// The token of `Authorization: Bearer …`, or of `Once-Token`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    token(headers, Credential::Bearer)
}

/// The token that the headers show. A header that occurs twice is refused: two programs could read it differently.
fn token(headers: &HeaderMap, credential: Credential) -> Option<&[u8]> {
    let only = |name: HeaderName| {
        let mut all = headers.get_all(name).iter();
        all.next().filter(|_| all.next().is_none()).map(HeaderValue::as_bytes)
    };
    match (headers.contains_key(&ONCE_TOKEN), credential) {
        (true, _) => only(ONCE_TOKEN),
        (false, Credential::OnceToken) => None,
        (false, Credential::Bearer) => {
            let value = only(header::AUTHORIZATION)?;
            let (scheme, token) = value.split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
        }
    }
}

/// Checks the name of a tenant.
///
/// # Errors
/// Says what a name looks like.
pub fn check_name(name: &str) -> Result<(), InvalidInput> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_name = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().next().is_some_and(plain)
        && name.bytes().all(|byte| plain(byte) || matches!(byte, b'-' | b'_'));
    if is_name {
        return Ok(());
    }
    let what = "the name of a tenant must be 1 to 32 of a-z, 0-9, - and _, and begin with a letter or digit";
    Err(InvalidInput::new(what))
}
