//! Who calls, and which records a caller can see.
//!
//! # Layout
//! - `view`: a tenant's view of the ledger. `token`: tokens and their hashes. `rate`: the rate of requests.

mod rate;
mod token;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use onceward::{InvalidInput, Store};
use serde::Deserialize;

pub use token::{TokenHash, new_token};
pub use view::TenantStore;

use crate::App;
use crate::intake::Refused;
use crate::mistake::Mistake;
use crate::problem::{self, ProblemResponse};
use crate::tenant::Tenant;
use rate::Bucket;

/// The token of a caller whose `Authorization` is for an upstream.
const ONCE_TOKEN: HeaderName = HeaderName::from_static("once-token");
/// What a caller of the gateway asks of it, beside the request.
const WISHES: [&str; 5] = ["Once-Scope", OCCURRENCE, "Once-Dry-Run", "Once-Run", "Once-Sample"];
const OCCURRENCE: &str = "Once-Occurrence";
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
enum Credential {
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
    fn of(&self, headers: &HeaderMap, credential: Credential) -> Option<(&Tenant, Option<&Bucket>)> {
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

/// Admits callers of the ledger API: finds the tenant of `Authorization: Bearer …`, keeps its rate, reads the body
/// within its limit, and adds the [`Tenant`] to the request.
pub(crate) async fn admit_api(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut request, tenant) = match identify(&app, request, Credential::Bearer) {
        Ok(identified) => identified,
        Err(refused) => return refused.into_response(),
    };
    let most = tenant.max_body(app.limits().body_bytes);
    request.extensions_mut().insert(tenant);
    let (head, body) = request.into_parts();
    match app.intake.whole_up_to(body, most).await {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(refused) => problem::of_body(&refused, most),
    }
}

/// Admits callers of the gateway: finds the tenant of `Once-Token`, which is removed, and keeps its rate. The gateway
/// reads the body, which may not be longer than the tenant's limit nor slower than the server's.
pub(crate) fn admit_to_gateway(
    app: &Arc<App>,
    request: Request,
) -> Result<(Request, Tenant), ProblemResponse> {
    let (request, tenant) = identify(app, request, Credential::OnceToken)?;
    check_wishes(request.headers())?;
    let most = tenant.max_body(usize::MAX);
    if request.body().size_hint().lower() > most as u64 {
        return Err(problem::of_body(&Refused::TooLong, most).into());
    }
    Ok((request.map(|body| Body::new(app.intake.paced(body, most as u64))), tenant))
}

/// Refuses a header of the gateway that is empty, occurs twice or cannot be read: without it, the request would mean
/// something else.
fn check_wishes(headers: &HeaderMap) -> Result<(), ProblemResponse> {
    for name in WISHES {
        let mut all = headers.get_all(name).iter();
        let Some(first) = all.next() else { continue };
        if all.next().is_some() {
            let problem = format!("the request has the header {name} more than once; nothing was sent");
            return Err(InvalidInput::new(problem).into());
        }
        let Ok(text) = first.to_str() else {
            let problem = format!("the header {name} has characters other than ASCII; nothing was sent");
            return Err(InvalidInput::new(problem).into());
        };
        if text.trim().is_empty() {
            let problem = format!("the header {name} is empty; nothing was sent");
            return Err(InvalidInput::new(problem).into());
        }
        if name == OCCURRENCE && text.trim() == "0" {
            let problem =
                format!("{name}: must be 1, 2, 3, … or a label; the first one is 1; nothing was sent");
            return Err(InvalidInput::new(problem).into());
        }
    }
    Ok(())
}

fn identify(
    app: &Arc<App>,
    mut request: Request,
    credential: Credential,
) -> Result<(Request, Tenant), ProblemResponse> {
    let Some((tenant, rate)) = app.tenants.of(request.headers(), credential) else {
        return Err(unauthenticated(credential).into());
    };
    if let Some(rate) = rate {
        rate.take(tenant.ledger.clock_ms()).map_err(problem::rate_limited)?;
    }
    let tenant = tenant.clone();
    request.headers_mut().remove(ONCE_TOKEN);
    Ok((request, tenant))
}

fn unauthenticated(credential: Credential) -> Response {
    let how = match credential {
        Credential::Bearer => "send `Authorization: Bearer TOKEN`",
        Credential::OnceToken => "send `Once-Token: TOKEN`",
    };
    let message =
        format!("the request shows no token of a tenant of this server; nothing was run. To be known, {how}");
    let mut response = problem::refusal(StatusCode::UNAUTHORIZED, "AUTH_REQUIRED", message);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
