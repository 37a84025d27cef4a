//! Secrets, and the algorithms that use them. All come from `ring`; comparisons take constant time.

use data_encoding::{BASE64, BASE64_NOPAD, HEXLOWER_PERMISSIVE};
use onceward::InvalidInput;
use ring::signature::{self, UnparsedPublicKey};
use ring::{hmac, signature::KeyPair};
use subtle::ConstantTimeEq;
use x509_cert::der::Decode;
use x509_cert::spki::SubjectPublicKeyInfoRef;

use crate::inbox::settings::{Algorithm, KeyFormat};

/// A key that can check signatures of one algorithm.
pub(crate) struct Key {
    algorithm: Algorithm,
    material: Material,
}

enum Material {
    Hmac(hmac::Key),
    /// A public key, as its algorithm writes it.
    Public(Vec<u8>),
    Token(Vec<u8>),
}

/// Whether a secret may be written in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privacy {
    /// With it, one could sign.
    Secret,
    /// It can only check signatures.
    Public,
}

impl Key {
    /// The keys that a secret is for, with these algorithms. The text of a secret is not part of the error.
    pub(crate) fn read(
        secret: &str,
        format: KeyFormat,
        algorithms: &[Algorithm],
    ) -> Result<Vec<Self>, InvalidInput> {
        let (bytes, privacy) = bytes_of(secret, format)?;
        let mut keys = Vec::new();
        for algorithm in algorithms {
            let material = match algorithm {
                Algorithm::HmacSha1
                | Algorithm::HmacSha256
                | Algorithm::HmacSha384
                | Algorithm::HmacSha512 => {
                    if privacy == Privacy::Public {
                        continue;
                    }
                    hmac_algorithm(*algorithm).map(|digest| Material::Hmac(hmac::Key::new(digest, &bytes)))
                }
                Algorithm::Token => Some(Material::Token(bytes.clone())),
                Algorithm::Ed25519 => {
                    // In the notation of Standard Webhooks, the prefix says what kind of key it is.
                    if format == KeyFormat::Standard && !is_standard_pair(secret) {
                        continue;
                    }
                    ed25519_public(&bytes, format, secret).map(Material::Public)
                }
                Algorithm::EcdsaP256 => p256_point(&bytes).map(Material::Public),
                // Their keys come with certificates.
                Algorithm::RsaSha1 | Algorithm::RsaSha256 => continue,
            };
            let material =
                material.ok_or_else(|| InvalidInput::new(format!("it is not a key for {algorithm:?}")))?;
            keys.push(Self { algorithm: *algorithm, material });
        }
        if keys.is_empty() { Err(InvalidInput::new("it is not a key for this source")) } else { Ok(keys) }
    }

    /// Whether the signature was made with this key for this message. Takes as long for every wrong signature.
    pub(crate) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if algorithm != self.algorithm {
            return false;
        }
        match &self.material {
            Material::Hmac(key) => hmac::verify(key, message, signature).is_ok(),
            Material::Token(token) => token.as_slice().ct_eq(signature).into(),
            Material::Public(public) => {
                let verify = |algorithm: &'static dyn signature::VerificationAlgorithm| {
                    UnparsedPublicKey::new(algorithm, public).verify(message, signature).is_ok()
                };
                match algorithm {
                    Algorithm::Ed25519 => verify(&signature::ED25519),
                    Algorithm::EcdsaP256 => verify(&signature::ECDSA_P256_SHA256_ASN1),
                    Algorithm::HmacSha1
                    | Algorithm::HmacSha256
                    | Algorithm::HmacSha384
                    | Algorithm::HmacSha512
                    | Algorithm::RsaSha1
                    | Algorithm::RsaSha256
                    | Algorithm::Token => false,
                }
            }
        }
    }
}

/// Whether a text is a public key in this notation, so that it may be written in the configuration.
pub(crate) fn privacy(secret: &str, format: KeyFormat, algorithms: &[Algorithm]) -> Privacy {
    let only_public = algorithms.iter().all(|algorithm| {
        matches!(
            algorithm,
            Algorithm::Ed25519 | Algorithm::EcdsaP256 | Algorithm::RsaSha1 | Algorithm::RsaSha256
        )
    });
    if secret.starts_with("whpk_") || (only_public && format != KeyFormat::Standard) {
        Privacy::Public
    } else {
        Privacy::Secret
    }
}

pub(crate) fn hmac_algorithm(algorithm: Algorithm) -> Option<hmac::Algorithm> {
    match algorithm {
        Algorithm::HmacSha1 => Some(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
        Algorithm::HmacSha256 => Some(hmac::HMAC_SHA256),
        Algorithm::HmacSha384 => Some(hmac::HMAC_SHA384),
        Algorithm::HmacSha512 => Some(hmac::HMAC_SHA512),
        Algorithm::Ed25519
        | Algorithm::EcdsaP256
        | Algorithm::RsaSha1
        | Algorithm::RsaSha256
        | Algorithm::Token => None,
    }
}

/// The bytes of a secret.
pub(crate) fn bytes_of(secret: &str, format: KeyFormat) -> Result<(Vec<u8>, Privacy), InvalidInput> {
    let wrong = |what: &str| InvalidInput::new(format!("it is not {what}"));
    let base64 = |text: &str| {
        BASE64_NOPAD.decode(text.trim_end_matches('=').as_bytes()).map_err(|_| wrong("valid base64"))
    };
    let mut privacy = Privacy::Secret;
    let bytes = match format {
        KeyFormat::Text => secret.as_bytes().to_vec(),
        KeyFormat::Hex => HEXLOWER_PERMISSIVE.decode(secret.as_bytes()).map_err(|_| wrong("hexadecimal"))?,
        KeyFormat::Base64 => base64(secret)?,
        KeyFormat::Standard => {
            if is_standard_pair(secret) {
                privacy = Privacy::Public;
            }
            let text = ["whsec_", "whpk_", "whsk_"].iter().find_map(|prefix| secret.strip_prefix(prefix));
            base64(text.unwrap_or(secret))?
        }
        KeyFormat::Spki => {
            let text: String = secret.lines().filter(|line| !line.starts_with("-----")).collect();
            BASE64.decode(text.trim().as_bytes()).map_err(|_| wrong("the base64 of a public key"))?
        }
    };
    if bytes.is_empty() { Err(InvalidInput::new("it is empty")) } else { Ok((bytes, privacy)) }
}

/// Whether it is a half of a key pair in the notation of Standard Webhooks.
fn is_standard_pair(secret: &str) -> bool {
    secret.starts_with("whpk_") || secret.starts_with("whsk_")
}

fn ed25519_public(bytes: &[u8], format: KeyFormat, secret: &str) -> Option<Vec<u8>> {
    if format == KeyFormat::Spki {
        let info = SubjectPublicKeyInfoRef::from_der(bytes).ok()?;
        return info.subject_public_key.as_bytes().filter(|key| key.len() == 32).map(<[u8]>::to_vec);
    }
    if secret.starts_with("whsk_") {
        let pair = signature::Ed25519KeyPair::from_seed_unchecked(bytes.get(..32)?).ok()?;
        return Some(pair.public_key().as_ref().to_vec());
    }
    (bytes.len() == 32).then(|| bytes.to_vec())
}

/// The point of a public key in DER.
fn p256_point(der: &[u8]) -> Option<Vec<u8>> {
    let info = SubjectPublicKeyInfoRef::from_der(der).ok()?;
    let point = info.subject_public_key.as_bytes()?;
    // Uncompressed: ring checks whether it is on the curve.
    (point.len() == 65 && point.first() == Some(&4)).then(|| point.to_vec())
}
