//! Certificates that vendors publish, and the URLs where they may be.

use async_trait::async_trait;
use bytes::Bytes;
use ring::signature::{self, UnparsedPublicKey};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_cert::der::Decode;

use crate::inbox::judgement::{Reason, Rejection};
use crate::inbox::settings::Algorithm;

/// Why there is no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CertificateError(pub String);

/// Fetches signing certificates.
#[async_trait]
pub trait FetchCertificate: Send + Sync {
    /// The certificate at this URL, as PEM or DER. The caller has checked that the URL belongs to the vendor.
    async fn fetch(&self, url: &str) -> Result<Bytes, CertificateError>;
}

/// A certificate with an RSA key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    key: Vec<u8>,
    from_ms: i64,
    until_ms: i64,
}

impl Certificate {
    /// Reads the first certificate of a PEM file, or one in DER.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let der = if text.first() == Some(&0x30) {
            CertificateDer::from_slice(text)
        } else {
            CertificateDer::from_pem_slice(text).ok()?
        };
        let certificate = x509_cert::Certificate::from_der(&der).ok()?.tbs_certificate;
        let ms = |time: x509_cert::time::Time| i64::try_from(time.to_unix_duration().as_millis()).ok();
        Some(Self {
            key: certificate.subject_public_key_info.subject_public_key.as_bytes()?.to_vec(),
            from_ms: ms(certificate.validity.not_before)?,
            until_ms: ms(certificate.validity.not_after)?,
        })
    }

    fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &dyn signature::VerificationAlgorithm = match algorithm {
            Algorithm::RsaSha256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::RsaSha1 => &signature::RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            Algorithm::HmacSha1
            | Algorithm::HmacSha256
            | Algorithm::HmacSha384
            | Algorithm::HmacSha512
            | Algorithm::Ed25519
            | Algorithm::EcdsaP256
            | Algorithm::Token => return false,
        };
        UnparsedPublicKey::new(algorithm, &self.key).verify(message, signature).is_ok()
    }
}

/// Checks a signature with the certificate at this URL, which must already be known to belong to the vendor.
pub(crate) async fn verify(
    url: &str,
    (algorithm, signature): (Algorithm, &[u8]),
    message: &[u8],
    now_ms: i64,
    fetch: &dyn FetchCertificate,
) -> Result<(), Rejection> {
    let text: Bytes = fetch.fetch(url).await.map_err(|error| {
        let words = format!("the signing certificate could not be fetched: {error}");
        Rejection::new(Reason::Unavailable, words)
    })?;
    let certificate = Certificate::parse(&text).ok_or_else(|| {
        Rejection::new(Reason::Certificate, "the signing certificate cannot be read".to_owned())
    })?;
    if !(certificate.from_ms..=certificate.until_ms).contains(&now_ms) {
        let words = "the signing certificate has expired, or is not valid yet".to_owned();
        return Err(Rejection::new(Reason::Certificate, words));
    }
    if !certificate.verifies(algorithm, message, signature) {
        let words = "the signature does not belong to this content".to_owned();
        return Err(Rejection::new(Reason::Signature, words));
    }
    Ok(())
}

/// The host and the path of an `https` URL that every parser reads in the same way: no port, no credentials, no
/// fragment, nothing unusual.
pub(crate) fn https(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("https://")?;
    let (host, path) = rest.split_at(rest.find('/')?);
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.' || byte == b'-';
    let is_host = !host.is_empty() && host.bytes().all(plain);
    // The characters of RFC 3986 without `@`. Parsers differ about the others.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:/?".contains(&byte);
    let is_path = path.bytes().all(is_plain);
    (is_host && is_path && !path.contains("..")).then_some((host, path))
}

/// Whether a host is that of Amazon SNS in a region. A bucket can have a name such as `sns`, and then the host
/// `sns.s3-us-west-2.amazonaws.com`: that is not a region.
pub(crate) fn is_sns_host(host: &str) -> bool {
    let Some(rest) = host.strip_prefix("sns.") else { return false };
    let region = rest.strip_suffix(".amazonaws.com").or_else(|| rest.strip_suffix(".amazonaws.com.cn"));
    let Some(region) = region else { return false };
    let parts: Vec<&str> = region.split('-').collect();
    let [first, middle @ .., last] = &parts[..] else { return false };
    let letters = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase());
    let number = last.len() <= 2 && !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    first.len() == 2 && letters(first) && !middle.is_empty() && middle.iter().all(letters) && number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_https_urls_are_read() {
        assert_eq!(https("https://api.paypal.com/v1/x"), Some(("api.paypal.com", "/v1/x")));
        for url in [
            "http://api.paypal.com/x",
            "https://api.paypal.com",
            "https://api.paypal.com:443/x",
            "https://api.paypal.com@evil.example/x",
            "https://evil.example\\@api.paypal.com/x",
            "https://api.paypal.com/x#y",
            "https://api.paypal.com/../x",
            "https://API.paypal.com/x",
            "https:///x",
            "https://api.paypal.com/x y",
            "https://api.paypal.com/x`y",
            "https://api.paypal.com/x|y",
            "https://api.paypal.com/{x}",
            "https://api.paypal.com/x^y",
            "https://api.paypal.com/[x]",
            "https://[::1]/x",
            "",
        ] {
            assert_eq!(https(url), None, "{url}");
        }
    }

    #[test]
    fn only_regions_of_sns_are_hosts_of_its_certificates() {
        for host in [
            "sns.us-east-1.amazonaws.com",
            "sns.ap-southeast-4.amazonaws.com",
            "sns.us-gov-west-1.amazonaws.com",
            "sns.cn-north-1.amazonaws.com.cn",
        ] {
            assert!(is_sns_host(host), "{host}");
        }
        for host in [
            "sns.s3.amazonaws.com",
            "sns.s3-us-west-2.amazonaws.com",
            "sns.us-east-1.amazonaws.com.evil.example",
            "sns.evil.example",
            "sns.amazonaws.com",
            "sns.us-east-1.evil.amazonaws.com",
            "xsns.us-east-1.amazonaws.com",
            "sns.us--1.amazonaws.com",
            "sns.us-east-.amazonaws.com",
            "sns..amazonaws.com",
            "us-east-1.amazonaws.com",
        ] {
            assert!(!is_sns_host(host), "{host}");
        }
    }

    #[test]
    fn what_is_not_a_certificate_is_not_read() {
        for text in
            [&b""[..], b"0", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"0\x82"]
        {
            assert_eq!(Certificate::parse(text), None);
        }
    }
}
