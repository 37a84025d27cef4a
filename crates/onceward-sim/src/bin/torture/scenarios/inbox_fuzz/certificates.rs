//! Damaged certificates, and addresses that are not those of a vendor.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Method, Uri};
use onceward_http::inbox::{CertificateError, FetchCertificate, Judgement, Signed, Trial};
use onceward_sim::random::Random;
use serde_json::Value;

use super::mutate::Mutator;
use super::{Counts, NOW_MS, URL, judge};
use crate::Trouble;
use crate::report::Rule;

const TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:sample";
const SNS_CERTIFICATE: &str = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-5a3b.pem";
const PAYPAL_CERTIFICATE: &str = "https://api.paypal.com/v1/notifications/certs/CERT-1";
const SUBSCRIPTION: &str = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=1&\
     TopicArn=arn:aws:sns:us-east-1:123456789012:sample";
/// One in this many addresses is that of a subscription. These must be signed, which takes a thousand times longer.
const SUBSCRIPTIONS: u64 = 2_000;

/// Serves this as the certificate.
pub(super) struct Served(Option<Bytes>);

/// Has no certificates.
pub(super) const NONE: Served = Served(None);

#[async_trait]
impl FetchCertificate for Served {
    async fn fetch(&self, _url: &str) -> Result<Bytes, CertificateError> {
        self.0.clone().ok_or_else(|| CertificateError("there is none".to_owned()))
    }
}

/// Damaged certificates, with a request that the undamaged one verifies. A changed key cannot verify it, so the oracle
/// is that nothing panics.
pub(super) fn round(random: &mut Random, executions: u64, counts: &Counts<'_>) -> Result<(), Trouble> {
    let trial = Trial::new("paypal")?;
    let request = trial.sign_sample(URL, random.draw(), NOW_MS)?;
    let mut mutator = Mutator { random, samples: &[] };
    for _ in 0..executions {
        let served = Served(Some(mutator.certificate()));
        counts.judged(&judge(&trial.source, &Method::POST, &request, NOW_MS, &served));
    }
    Ok(())
}

/// Notes which address a certificate was asked from.
#[derive(Default)]
struct Asked(Mutex<Option<String>>);

#[async_trait]
impl FetchCertificate for Asked {
    async fn fetch(&self, url: &str) -> Result<Bytes, CertificateError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(url.to_owned());
        Err(CertificateError("it is only noted".to_owned()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Vendor {
    Sns,
    Paypal,
}

/// Changed addresses of certificates and subscriptions. What would be visited must be on a host of the vendor
/// according to a second parser.
pub(super) fn addresses(random: &mut Random, executions: u64, counts: &Counts<'_>) -> Result<(), Trouble> {
    let (sns, paypal) = (Trial::new("sns")?, Trial::new("paypal")?);
    let message = sns.sign_sample(URL, random.draw(), NOW_MS)?;
    let message: Value = serde_json::from_slice(&message.body)?;
    let payment = paypal.sign_sample(URL, random.draw(), NOW_MS)?;
    let mut mutator = Mutator { random, samples: &[] };
    for _ in 0..executions {
        let asked = Asked::default();
        if mutator.random.below(SUBSCRIPTIONS) == 0 {
            subscription(&mut mutator, &sns, counts)?;
            continue;
        }
        let vendor = if mutator.random.permille(500) { Vendor::Sns } else { Vendor::Paypal };
        let judgement = match vendor {
            Vendor::Sns => {
                let url = mutator.address(SNS_CERTIFICATE);
                let mut message = message.clone();
                message["SigningCertURL"] = Value::String(String::from_utf8_lossy(&url).into_owned());
                let body = serde_json::to_vec(&message)?.into();
                let request = Signed { url: URL.to_owned(), headers: http::HeaderMap::new(), body };
                judge(&sns.source, &Method::POST, &request, NOW_MS, &asked)
            }
            Vendor::Paypal => {
                let Ok(url) = HeaderValue::from_bytes(&mutator.address(PAYPAL_CERTIFICATE)) else { continue };
                let mut request = payment.clone();
                request.headers.insert("paypal-cert-url", url);
                judge(&paypal.source, &Method::POST, &request, NOW_MS, &asked)
            }
        };
        counts.judged(&judgement);
        let asked = asked.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(url) = asked.filter(|url| !is_own(vendor, url)) {
            counts.found(Rule::Forged, || format!("a certificate was asked from {url:?}"));
        }
    }
    Ok(())
}

fn subscription(mutator: &mut Mutator<'_>, sns: &Trial, counts: &Counts<'_>) -> Result<(), Trouble> {
    let url = String::from_utf8_lossy(&mutator.address(SUBSCRIPTION)).into_owned();
    let sample = sns.source.sample(URL, mutator.random.draw(), NOW_MS)?;
    let request = sns.sign_subscription(&sample, TOPIC, &url)?;
    let judgement = judge(&sns.source, &Method::POST, &request, NOW_MS, sns);
    counts.judged(&judgement);
    let is_fine = match &judgement {
        Judgement::Confirm(confirmation) => {
            is_own(Vendor::Sns, &confirmation.url) && confirmation.url.contains("Action=ConfirmSubscription")
        }
        Judgement::Rejected(_) => true,
        Judgement::Events(_) | Judgement::Challenge(_) => false,
    };
    if !is_fine {
        counts.found(Rule::Forged, || format!("{judgement:?} for the address {url:?}"));
    }
    Ok(())
}

/// Whether an address is one of the vendor, as the parser of the HTTP client reads it.
fn is_own(vendor: Vendor, url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let host = authority.host();
    let is_host = match vendor {
        Vendor::Paypal => host == "api.paypal.com",
        Vendor::Sns => {
            let labels: Vec<&str> = host.split('.').collect();
            matches!(labels[..], ["sns", _, "amazonaws", "com"] | ["sns", _, "amazonaws", "com", "cn"])
        }
    };
    // No port and no credentials.
    uri.scheme_str() == Some("https") && authority.as_str() == host && is_host && !url.contains('#')
}
