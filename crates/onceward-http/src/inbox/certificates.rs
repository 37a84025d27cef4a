//! The signing certificates of vendors that publish them: PayPal and Amazon SNS.
//!
//! A request names the URL of its certificate, so a forged request can name any URL. The source accepts only `https`
//! URLs on the vendor's own hosts, and [`Certificates`] fetches them with limits and without redirects.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio::sync::Semaphore;

use super::judgement::Confirmation;
use super::scheme::certificate::{Certificate, CertificateError, FetchCertificate};
use crate::client::{Connection, Reach, Remote, SendError, full};
use crate::locks::lock;

/// How long a fetch may take. The tightest vendor waits three seconds for its answer.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// The largest certificate or answer.
const MAX_BYTES: usize = 64 * 1024;
/// How long a certificate is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How many certificates are kept. Vendors have a few.
const MAX_KEPT: usize = 64;
/// How many fetches there may be at once, so that forged requests cannot cause a flood.
const AT_ONCE: usize = 4;

/// Fetches certificates over HTTPS from public addresses, and keeps them.
pub struct Certificates {
    kept: Mutex<HashMap<String, (Instant, Bytes)>>,
    turns: Semaphore,
}

impl Default for Certificates {
    fn default() -> Self {
        Self { kept: Mutex::default(), turns: Semaphore::new(AT_ONCE) }
    }
}

impl Certificates {
    /// Confirms a subscription by visiting its URL.
    ///
    /// # Errors
    /// If the vendor did not answer with success. It offers the subscription again.
    pub async fn confirm(&self, confirmation: &Confirmation) -> Result<(), CertificateError> {
        self.get(&confirmation.url).await.map(drop)
    }

    async fn get(&self, url: &str) -> Result<Bytes, CertificateError> {
        let fetched = tokio::time::timeout(PATIENCE, async {
            let _turn = self.turns.acquire().await.map_err(|error| CertificateError(error.to_string()))?;
            get(url).await
        });
        let late = |_| CertificateError(format!("no answer within {} ms", PATIENCE.as_millis()));
        fetched.await.map_err(late)?
    }

    fn find(&self, url: &str) -> Option<Bytes> {
        let kept = lock(&self.kept);
        let (since, certificate) = kept.get(url)?;
        (since.elapsed() < KEPT).then(|| certificate.clone())
    }

    fn keep(&self, url: &str, certificate: &Bytes) {
        let mut kept = lock(&self.kept);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(url.to_owned(), (Instant::now(), certificate.clone()));
    }
}

#[async_trait]
impl FetchCertificate for Certificates {
    async fn fetch(&self, url: &str) -> Result<Bytes, CertificateError> {
        if let Some(found) = self.find(url) {
            return Ok(found);
        }
        let certificate = self.get(url).await?;
        // What is not a certificate is not kept: it could replace one.
        if Certificate::parse(&certificate).is_some() {
            self.keep(url, &certificate);
        }
        Ok(certificate)
    }
}

async fn get(url: &str) -> Result<Bytes, CertificateError> {
    let failed = |why: String| CertificateError(why);
    if !url.starts_with("https://") {
        return Err(failed("the URL does not begin with https://".to_owned()));
    }
    let remote = Remote::within(url, Reach::Public).map_err(|error| failed(error.to_string()))?;
    let request = remote.request(Method::GET, remote.path(), HeaderMap::new(), full(""));
    let response = remote.send(request, Connection::Fresh).await.map_err(|error| match error {
        SendError::NotSent(why) | SendError::MaybeSent(why) => failed(why),
    })?;
    if response.status() != StatusCode::OK {
        return Err(failed(format!("{} answered with {}", remote.host(), response.status())));
    }
    let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
    body.map(http_body_util::Collected::to_bytes).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_https_on_public_addresses_is_fetched() {
        for (url, words) in [
            ("http://sns.us-east-1.amazonaws.com/a.pem", "https"),
            ("https://127.0.0.1:1/a.pem", "private"),
            ("https://[::1]/a.pem", "private"),
            ("https://localhost:1/a.pem", "private"),
            ("https://user:pass@127.0.0.1/", "password"),
        ] {
            let error = get(url).await.unwrap_err();
            assert!(error.0.contains(words), "{url}: {error}");
        }
    }
}
