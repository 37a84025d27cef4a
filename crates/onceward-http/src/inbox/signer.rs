//! Signs requests as a vendor would, for samples and for tests.

use async_trait::async_trait;
use bytes::Bytes;
use data_encoding::{BASE64, HEXLOWER};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use onceward::InvalidInput;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
use ring::{digest, hmac};

use super::presets;
use super::scheme::certificate::{CertificateError, FetchCertificate};
use super::scheme::header::Carrier;
use super::scheme::keys::{bytes_of, hmac_algorithm};
use super::scheme::sns;
use super::scheme::template::{Piece, Values};
use super::scheme::twilio;
use super::settings::{Algorithm, KeyFormat, SourceConfig, TimeUnit};
use super::source::Source;

/// The key of samples of PayPal and Amazon SNS. Only a [`Trial`] accepts its certificate, so it is not a secret.
const SAMPLE_KEY: &[u8] = include_bytes!("sample-key.der");
const SAMPLE_CERTIFICATE: &[u8] = include_bytes!("sample-certificate.pem");
/// The variable in which a trial's source looks for its secret.
const VARIABLE: &str = "ONCE_TRIAL_SECRET";
/// A public key of P-256 in DER, up to its point.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A request that is to be signed.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The URL that the vendor would call.
    pub url: String,
    /// The id, if the vendor puts it into a signed header.
    pub id: String,
    /// Headers that are not signed, such as the type of the body.
    pub headers: HeaderMap,
    /// The body. For Amazon SNS, the text of the message.
    pub body: Bytes,
    /// When it is sent, in milliseconds since 1970.
    pub now_ms: i64,
}

/// A signed request. It is sent with `POST`.
#[derive(Debug, Clone)]
pub struct Signed {
    /// The URL. Twilio adds the hash of a body that is not a form.
    pub url: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// A key that signs.
pub struct Signer {
    key: SigningKey,
    random: SystemRandom,
}

enum SigningKey {
    /// The bytes of an HMAC key.
    Hmac(Vec<u8>),
    Token(String),
    Ed25519(Ed25519KeyPair),
    EcdsaP256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Source {
    /// A sample event of the source's vendor, with this number in its id.
    ///
    /// # Errors
    /// If the preset's sample is invalid, which a test excludes.
    pub fn sample(&self, url: &str, number: u64, now_ms: i64) -> Result<Sample, InvalidInput> {
        let sample = &self.preset.sample;
        let id = format!("{}{number:016x}", sample.id);
        let fill = |text: &str| {
            text.replace("{id}", &id)
                .replace("{now_s}", &TimeUnit::S.write(now_ms))
                .replace("{now_ms}", &TimeUnit::Ms.write(now_ms))
                .replace("{now}", &TimeUnit::Rfc3339.write(now_ms))
        };
        let mut headers = HeaderMap::new();
        put(&mut headers, header::CONTENT_TYPE.as_str(), &sample.content_type)?;
        for (name, value) in &sample.headers {
            put(&mut headers, name, &fill(value))?;
        }
        Ok(Sample { url: url.to_owned(), headers, body: fill(&sample.body).into(), now_ms, id: id.clone() })
    }

    /// A correctly signed sample event, made with the first secret that can sign.
    ///
    /// # Errors
    /// If the source has only public keys: then only the vendor can sign. See [`Trial`].
    pub fn sign_sample(&self, url: &str, number: u64, now_ms: i64) -> Result<Signed, InvalidInput> {
        self.sign(&self.sample(url, number, now_ms)?, &self.signer()?)
    }

    /// The first secret that can sign.
    ///
    /// # Errors
    /// If the source has only public keys.
    pub fn signer(&self) -> Result<Signer, InvalidInput> {
        let algorithms = self.algorithms();
        for secret in &self.secrets {
            for algorithm in &algorithms {
                if let Some(key) = SigningKey::of(secret, self.signature.key, *algorithm) {
                    return Ok(Signer { key, random: SystemRandom::new() });
                }
            }
        }
        let title = &self.preset.about.title;
        Err(InvalidInput::new(format!(
            "only {title} can sign requests of this source: it has no secret, or a public key"
        )))
    }

    fn algorithms(&self) -> Vec<Algorithm> {
        self.carrier.as_ref().map(Carrier::algorithms).unwrap_or_default()
    }

    /// Signs a request as the vendor would.
    ///
    /// # Errors
    /// If the key is for another algorithm, or a value is not a valid header.
    pub fn sign(&self, sample: &Sample, signer: &Signer) -> Result<Signed, InvalidInput> {
        let Some(carrier) = &self.carrier else { return self.sign_sns(sample, signer) };
        let mut headers = sample.headers.clone();
        let family = 0;
        let mut signed_time = None;
        if let Some(time) = self.timestamp.as_ref().filter(|time| !time.is_in_body()) {
            let text = time.unit.write(sample.now_ms);
            if let Some(name) = time.header(family) {
                put(&mut headers, name.as_str(), &text)?;
            }
            signed_time = Some((time.item(), text));
        }
        if let Some(name) = self.signed_id.get(family) {
            put(&mut headers, name.as_str(), &sample.id)?;
        }
        for (name, value) in &self.signature.require {
            put(&mut headers, name, value)?;
        }
        if let Some(name) = &self.signature.certificate {
            let host = self.config.certificate_hosts.as_deref().unwrap_or_default().first();
            let path = &self.signature.certificate_path;
            put(&mut headers, name, &format!("https://{}{path}SAMPLE", host.map_or("", String::as_str)))?;
        }
        let (url, form) = self.signed_url(sample, &headers)?;
        let text = self.template.fill(&Values {
            timestamp: signed_time.as_ref().map_or("", |(_, text)| text),
            id: &sample.id,
            body: &sample.body,
            url: &url,
            form: &form,
            webhook_id: self.config.webhook_id.as_deref().unwrap_or_default(),
        });
        let signed = self.algorithms().into_iter().find_map(|one| Some((one, signer.sign(one, &text)?)));
        let (algorithm, bytes) =
            signed.ok_or_else(|| InvalidInput::new("the key is not for an algorithm of this source"))?;
        let item = signed_time.as_ref().and_then(|(item, text)| Some(((*item)?, text.as_str())));
        put(&mut headers, carrier.names[family].as_str(), &carrier.write(algorithm, &bytes, item))?;
        Ok(Signed { url, headers, body: sample.body.clone() })
    }

    /// The URL, and what Twilio signs. It puts the hash of a body that is not a form into the URL.
    fn signed_url(&self, sample: &Sample, headers: &HeaderMap) -> Result<(String, Vec<u8>), InvalidInput> {
        let mut url = self.config.url.clone().unwrap_or_else(|| sample.url.clone());
        if !self.template.has(&Piece::Form) {
            return Ok((url, Vec::new()));
        }
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if twilio::contents(&url, content_type, &sample.body).is_err() {
            let hash = HEXLOWER.encode(digest::digest(&digest::SHA256, &sample.body).as_ref());
            let mark = if url.contains('?') { '&' } else { '?' };
            url = format!("{url}{mark}bodySHA256={hash}");
        }
        let contents = twilio::contents(&url, content_type, &sample.body);
        let contents = contents.map_err(|rejection| InvalidInput::new(rejection.words))?;
        // Twilio signs the URL as it is configured there.
        let as_it_is = contents.iter().find(|text| text.starts_with(url.as_bytes())).or(contents.first());
        Ok((url, as_it_is.cloned().unwrap_or_default()))
    }

    fn sign_sns(&self, sample: &Sample, signer: &Signer) -> Result<Signed, InvalidInput> {
        let message = sns::Message {
            kind: sns::NOTIFICATION.to_owned(),
            topic_arn: self.config.topics.first().cloned().unwrap_or_default(),
            ..sns::Message::default()
        };
        self.sign_message(message, sample, signer)
    }

    /// Signs a message of Amazon SNS with the content of the sample.
    fn sign_message(
        &self,
        message: sns::Message,
        sample: &Sample,
        signer: &Signer,
    ) -> Result<Signed, InvalidInput> {
        let region = message.topic_arn.split(':').nth(3).unwrap_or("us-east-1");
        let host = match self.config.certificate_hosts.as_deref() {
            Some([host, ..]) => host.clone(),
            Some([]) | None => format!("sns.{region}.amazonaws.com"),
        };
        let mut message = sns::Message {
            message_id: sample.id.clone(),
            message: String::from_utf8_lossy(&sample.body).into_owned(),
            timestamp: TimeUnit::Rfc3339.write(sample.now_ms),
            signature_version: "2".to_owned(),
            signing_cert_url: format!("https://{host}/SimpleNotificationService-5a3b.pem"),
            ..message
        };
        let signature = signer.sign(Algorithm::RsaSha256, &message.text(sns::Time::Included));
        let signature = signature.ok_or_else(|| InvalidInput::new("the key is not an RSA key"))?;
        message.signature = BASE64.encode(&signature);
        let body = serde_json::to_vec(&message).map_err(|error| InvalidInput::new(error.to_string()))?;
        let mut headers = sample.headers.clone();
        put(&mut headers, "x-amz-sns-message-type", &message.kind)?;
        put(&mut headers, "x-amz-sns-message-id", &message.message_id)?;
        Ok(Signed { url: sample.url.clone(), headers, body: body.into() })
    }
}

impl Signer {
    /// The signature of a message, if the key is for this algorithm.
    fn sign(&self, algorithm: Algorithm, message: &[u8]) -> Option<Vec<u8>> {
        match (&self.key, algorithm) {
            (SigningKey::Hmac(bytes), _) => {
                let key = hmac::Key::new(hmac_algorithm(algorithm)?, bytes);
                Some(hmac::sign(&key, message).as_ref().to_vec())
            }
            (SigningKey::Token(token), Algorithm::Token) => Some(token.as_bytes().to_vec()),
            (SigningKey::Ed25519(pair), Algorithm::Ed25519) => Some(pair.sign(message).as_ref().to_vec()),
            (SigningKey::EcdsaP256(pair), Algorithm::EcdsaP256) => {
                Some(pair.sign(&self.random, message).ok()?.as_ref().to_vec())
            }
            (SigningKey::Rsa(pair), Algorithm::RsaSha256) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &self.random, message, &mut signature).ok()?;
                Some(signature)
            }
            (
                SigningKey::Token(_) | SigningKey::Ed25519(_) | SigningKey::EcdsaP256(_) | SigningKey::Rsa(_),
                _,
            ) => None,
        }
    }
}

impl SigningKey {
    /// A secret as a key, if it can sign with this algorithm.
    fn of(secret: &str, format: KeyFormat, algorithm: Algorithm) -> Option<Self> {
        if algorithm == Algorithm::Token {
            return Some(Self::Token(secret.to_owned()));
        }
        let (bytes, _) = bytes_of(secret, format).ok()?;
        if algorithm == Algorithm::Ed25519 {
            let is_private = format == KeyFormat::Standard && secret.starts_with("whsk_");
            let pair = is_private.then(|| Ed25519KeyPair::from_seed_unchecked(bytes.get(..32)?).ok());
            return pair.flatten().map(Self::Ed25519);
        }
        let is_pair =
            format == KeyFormat::Standard && (secret.starts_with("whpk_") || secret.starts_with("whsk_"));
        hmac_algorithm(algorithm).filter(|_| !is_pair).map(|_| Self::Hmac(bytes))
    }
}

/// A source with keys of its own, so that every preset can be tried without an account of its vendor.
pub struct Trial {
    /// The source.
    pub source: Source,
    /// Its settings. Secrets are in the variable [`Trial::variable`] names.
    pub config: SourceConfig,
    secret: Option<String>,
    signer: Signer,
}

impl Trial {
    /// A source with this preset and new keys.
    ///
    /// # Errors
    /// If there is no such preset.
    pub fn new(preset: &str) -> Result<Self, InvalidInput> {
        Self::with(preset, SourceConfig::default())
    }

    /// The same with other settings. Secrets are not among them.
    ///
    /// # Errors
    /// If there is no such preset, or a setting is wrong.
    pub fn with(preset: &str, mut config: SourceConfig) -> Result<Self, InvalidInput> {
        let random = SystemRandom::new();
        config.preset = Some(preset.to_owned());
        let known = &presets::of(preset)?.config;
        if config.signature.is_none() && known.signature.is_none() {
            config.signature = toml::from_str("header = \"X-Signature\"").ok();
        }
        let signature = config.signature.clone().or_else(|| known.signature.clone()).unwrap_or_default();
        if known.signed.as_deref().is_some_and(|signed| signed.contains("{webhook_id}")) {
            config.webhook_id.get_or_insert_with(|| "8PT597110X687430LKGECATA".to_owned());
        }
        let is_sns = known.signed.as_deref() == Some("{sns}");
        if is_sns && config.topics.is_empty() {
            config.topics = vec!["arn:aws:sns:us-east-1:123456789012:sample".to_owned()];
        }
        let key = match signature.algorithm {
            Some(Algorithm::RsaSha256 | Algorithm::RsaSha1) => rsa()?,
            None if is_sns => rsa()?,
            Some(Algorithm::Ed25519) => {
                let seed = Ed25519KeyPair::generate_pkcs8(&random).map_err(failed)?;
                let pair = Ed25519KeyPair::from_pkcs8(seed.as_ref()).map_err(failed)?;
                config.secrets = vec![HEXLOWER.encode(pair.public_key().as_ref())];
                SigningKey::Ed25519(pair)
            }
            Some(Algorithm::EcdsaP256) => {
                let suite = &signature::ECDSA_P256_SHA256_ASN1_SIGNING;
                let made = EcdsaKeyPair::generate_pkcs8(suite, &random).map_err(failed)?;
                let pair = EcdsaKeyPair::from_pkcs8(suite, made.as_ref(), &random).map_err(failed)?;
                let public = [&P256_HEAD, pair.public_key().as_ref()].concat();
                config.secrets = vec![BASE64.encode(&public)];
                SigningKey::EcdsaP256(pair)
            }
            Some(
                Algorithm::HmacSha1
                | Algorithm::HmacSha256
                | Algorithm::HmacSha384
                | Algorithm::HmacSha512
                | Algorithm::Token,
            )
            | None => {
                let secret = new_secret(signature.key, &random)?;
                config.secrets = vec![format!("${VARIABLE}")];
                let source = Source::new(preset, &config, &|_| Some(secret.clone()))?;
                return Ok(Self { signer: source.signer()?, source, config, secret: Some(secret) });
            }
        };
        let source = Source::new(preset, &config, &|_| None)?;
        Ok(Self { source, config, secret: None, signer: Signer { key, random } })
    }

    /// The variable in which the source expects its secret, and the secret. None for public keys.
    #[must_use]
    pub fn variable(&self) -> Option<(&'static str, &str)> {
        Some((VARIABLE, self.secret.as_deref()?))
    }

    /// Signs a request as the vendor would.
    ///
    /// # Errors
    /// If a value is not a valid header.
    pub fn sign(&self, sample: &Sample) -> Result<Signed, InvalidInput> {
        self.source.sign(sample, &self.signer)
    }

    /// The question of Amazon SNS whether the endpoint wants the messages of a topic, with the URL that confirms it.
    ///
    /// # Errors
    /// If the trial is not one of Amazon SNS.
    pub fn sign_subscription(&self, sample: &Sample, topic: &str, url: &str) -> Result<Signed, InvalidInput> {
        let message = sns::Message {
            kind: sns::SUBSCRIPTION.to_owned(),
            topic_arn: topic.to_owned(),
            subscribe_url: Some(url.to_owned()),
            token: Some("2336412f37fb687f5d51e6e2425c464de12d6c1c".to_owned()),
            ..sns::Message::default()
        };
        self.source.sign_message(message, sample, &self.signer)
    }

    /// A correctly signed sample event with this number in its id.
    ///
    /// # Errors
    /// If the preset's sample is invalid, which a test excludes.
    pub fn sign_sample(&self, url: &str, number: u64, now_ms: i64) -> Result<Signed, InvalidInput> {
        self.sign(&self.source.sample(url, number, now_ms)?)
    }
}

/// A trial vouches for its own certificate, at any address.
#[async_trait]
impl FetchCertificate for Trial {
    async fn fetch(&self, _url: &str) -> Result<Bytes, CertificateError> {
        Ok(Bytes::from_static(SAMPLE_CERTIFICATE))
    }
}

fn rsa() -> Result<SigningKey, InvalidInput> {
    RsaKeyPair::from_pkcs8(SAMPLE_KEY).map(SigningKey::Rsa).map_err(failed)
}

fn new_secret(format: KeyFormat, random: &SystemRandom) -> Result<String, InvalidInput> {
    let mut bytes = [0; 32];
    random.fill(&mut bytes).map_err(failed)?;
    Ok(match format {
        KeyFormat::Text | KeyFormat::Hex | KeyFormat::Spki => HEXLOWER.encode(&bytes),
        KeyFormat::Base64 => BASE64.encode(&bytes),
        KeyFormat::Standard => format!("whsec_{}", BASE64.encode(&bytes)),
    })
}

fn failed(error: impl std::fmt::Display) -> InvalidInput {
    InvalidInput::new(format!("a key could not be made: {error}"))
}

fn put(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), InvalidInput> {
    let invalid = || InvalidInput::new(format!("{name} is not a valid header"));
    let name: HeaderName = name.parse().map_err(|_| invalid())?;
    let value = HeaderValue::from_str(value).map_err(|_| invalid())?;
    headers.insert(name, value);
    Ok(())
}
