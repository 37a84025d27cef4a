//! Messages of Amazon SNS, which contain their signature.

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::certificate::{https, is_sns_host};
use crate::inbox::judgement::{Confirmation, Reason, Rejection};
use crate::inbox::settings::Algorithm;

/// The path of the certificates on every host of SNS.
const CERTIFICATE_PATH: &str = "/SimpleNotificationService-";

/// A message. Fields that are not signed, such as `MessageAttributes`, are not read.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Message {
    #[serde(rename = "Type")]
    pub(crate) kind: String,
    pub(crate) message_id: String,
    pub(crate) topic_arn: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<String>,
    pub(crate) message: String,
    pub(crate) timestamp: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    #[serde(default, rename = "SubscribeURL", skip_serializing_if = "Option::is_none")]
    pub(crate) subscribe_url: Option<String>,
    #[serde(default)]
    pub(crate) signature_version: String,
    #[serde(default)]
    pub(crate) signature: String,
    #[serde(default, rename = "SigningCertURL")]
    pub(crate) signing_cert_url: String,
}

/// Whether the time is part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    Included,
    LeftOut,
}

pub(crate) const NOTIFICATION: &str = "Notification";
pub(crate) const SUBSCRIPTION: &str = "SubscriptionConfirmation";
pub(crate) const UNSUBSCRIPTION: &str = "UnsubscribeConfirmation";

impl Message {
    /// Reads a message whose signed text can be read in one way only.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Rejection> {
        let message: Self = serde_json::from_slice(body).map_err(|error| {
            let words = format!(
                "the body is not a message of Amazon SNS: {}",
                crate::problem::without_value(&error.to_string())
            );
            Rejection::new(Reason::Malformed, words)
        })?;
        if ![NOTIFICATION, SUBSCRIPTION, UNSUBSCRIPTION].contains(&message.kind.as_str()) {
            return Err(Rejection::new(Reason::Malformed, "the message has an unknown Type"));
        }
        // Line breaks separate the signed fields. Only the message itself, which is the first, may contain any.
        let fields = [
            Some(&message.message_id),
            Some(&message.topic_arn),
            Some(&message.timestamp),
            message.subject.as_ref(),
            message.token.as_ref(),
            message.subscribe_url.as_ref(),
        ];
        if fields.into_iter().flatten().any(|field| field.contains(['\n', '\r'])) {
            return Err(Rejection::new(Reason::Malformed, "a field of the message has a line break"));
        }
        if message.message_id.is_empty() {
            return Err(Rejection::new(Reason::Missing, "the message has no MessageId"));
        }
        Ok(message)
    }

    /// The signature and its algorithm.
    pub(crate) fn signature(&self) -> Result<(Algorithm, Vec<u8>), Rejection> {
        let algorithm = match self.signature_version.as_str() {
            "1" => Algorithm::RsaSha1,
            "2" => Algorithm::RsaSha256,
            "" => return Err(Rejection::new(Reason::Missing, "the message has no SignatureVersion")),
            _ => return Err(Rejection::new(Reason::Version, "SignatureVersion is neither 1 nor 2")),
        };
        if self.signature.is_empty() {
            return Err(Rejection::new(Reason::Missing, "the message has no Signature"));
        }
        let signature = BASE64.decode(self.signature.as_bytes());
        let signature =
            signature.map_err(|_| Rejection::new(Reason::Malformed, "Signature is not base64"))?;
        Ok((algorithm, signature))
    }

    /// The URL of the certificate, if it belongs to Amazon SNS.
    pub(crate) fn certificate_url(&self, hosts: &[String]) -> Result<&str, Rejection> {
        if self.signing_cert_url.is_empty() {
            return Err(Rejection::new(Reason::Missing, "the message has no SigningCertURL"));
        }
        let is_own = https(&self.signing_cert_url).is_some_and(|(host, path)| {
            let name = path.strip_prefix(CERTIFICATE_PATH).and_then(|name| name.strip_suffix(".pem"));
            let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric());
            is_host(host, hosts) && name.is_some_and(is_name)
        });
        let words = "SigningCertURL is not an address of Amazon SNS";
        if is_own { Ok(&self.signing_cert_url) } else { Err(Rejection::new(Reason::Certificate, words)) }
    }

    /// What is signed.
    pub(crate) fn text(&self, time: Time) -> Vec<u8> {
        let subject = self.subject.as_deref();
        let is_notification = self.kind == NOTIFICATION;
        let other = |field: Option<&'_ str>| field.filter(|_| !is_notification).map(str::to_owned);
        let fields = [
            ("Message", Some(self.message.clone())),
            ("MessageId", Some(self.message_id.clone())),
            ("Subject", subject.filter(|_| is_notification).map(str::to_owned)),
            ("SubscribeURL", other(self.subscribe_url.as_deref())),
            ("Timestamp", (time == Time::Included).then(|| self.timestamp.clone())),
            ("Token", other(self.token.as_deref())),
            ("TopicArn", Some(self.topic_arn.clone())),
            ("Type", Some(self.kind.clone())),
        ];
        let lines = fields.into_iter().filter_map(|(name, value)| Some(format!("{name}\n{}\n", value?)));
        lines.collect::<String>().into_bytes()
    }

    /// The subscription that the message offers, if it offers one.
    pub(crate) fn confirmation(&self, hosts: &[String]) -> Result<Option<Confirmation>, Rejection> {
        if self.kind != SUBSCRIPTION {
            return Ok(None);
        }
        let url = self.subscribe_url.as_deref().unwrap_or_default();
        let is_own = https(url).is_some_and(|(host, path)| {
            let query = path.strip_prefix("/?").unwrap_or_default();
            let is_action = query.split('&').any(|pair| pair == "Action=ConfirmSubscription");
            let topics = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "TopicArn");
            let is_topic = topics.map(|(_, topic)| topic == self.topic_arn).collect::<Vec<_>>() == [true];
            is_host(host, hosts) && is_action && is_topic
        });
        if !is_own {
            let words = "SubscribeURL does not confirm this topic at Amazon SNS";
            return Err(Rejection::new(Reason::Body, words));
        }
        Ok(Some(Confirmation { url: url.to_owned(), topic: self.topic_arn.clone() }))
    }
}

fn is_host(host: &str, hosts: &[String]) -> bool {
    if hosts.is_empty() { is_sns_host(host) } else { hosts.iter().any(|known| known == host) }
}
