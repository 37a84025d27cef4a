//! Judges requests: signature, time, identity, handshakes.

mod cloudevents;
mod handshake;

use std::borrow::Cow;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use onceward::{InvalidInput, Json};
use ring::digest;
use serde_json::value::RawValue;

use super::judgement::{Event, Judgement, Reason, Received, Rejection, Reply};
use super::presets::{self, Preset};
use super::scheme::certificate;
use super::scheme::certificate::FetchCertificate;
use super::scheme::header::{Carried, Carrier, Timestamp, header_names, signed_id};
use super::scheme::keys::{self, Key, Privacy};
use super::scheme::template::{Piece, Template, Values};
use super::scheme::{needed, one, sns, twilio};
use super::selectors::{Selector, Trust, View};
use super::settings::{Algorithm, Handshake, Shape, SignatureConfig, SourceConfig, TimeUnit};

/// The longest id that is kept as it is.
const MAX_ID: usize = 255;
/// How far a signed time may be in the future, however long the past may be.
const MAX_AHEAD_MS: i64 = 5 * 60 * 1_000;

/// A source of webhooks: it decides which requests are authentic, and which event they are.
pub struct Source {
    pub(super) name: String,
    pub(super) preset: &'static Preset,
    /// Where signatures are. Messages of Amazon SNS contain their own.
    pub(super) carrier: Option<Carrier>,
    pub(super) signature: SignatureConfig,
    pub(super) template: Template,
    pub(super) timestamp: Option<Timestamp>,
    pub(super) signed_id: Vec<HeaderName>,
    pub(super) secrets: Vec<String>,
    keys: Vec<Key>,
    /// Settings with those of the preset filled in.
    pub(super) config: SourceConfig,
    id: Vec<Selector>,
    kind: Vec<Selector>,
    time: Vec<Selector>,
    distinct: Vec<HeaderName>,
    keep: Vec<HeaderName>,
    require: Vec<(HeaderName, String)>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Source {
    /// A source with these settings. Secrets in files are read now; `variable` reads an environment variable.
    ///
    /// # Errors
    /// If a setting is wrong, or a secret is missing. Secrets are not part of the error.
    pub fn new(
        name: &str,
        config: &SourceConfig,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidInput> {
        let preset = presets::of(config.preset.as_deref().unwrap_or(name))?;
        let config = with_preset(config.clone(), &preset.config);
        let signature = config.signature.clone().unwrap_or_default();
        let shape = config.events.unwrap_or_default();
        let carrier = (shape != Shape::Sns).then(|| Carrier::new(&signature)).transpose()?;
        let algorithms = carrier.as_ref().map(Carrier::algorithms).unwrap_or_default();
        let template = Template::parse(config.signed.as_deref().unwrap_or("{body}"))?;
        let needs_key =
            algorithms.iter().any(|one| !matches!(one, Algorithm::RsaSha1 | Algorithm::RsaSha256));
        let secrets = read_secrets(&config.secrets, &signature, &algorithms, variable)?;
        let keys = secrets.iter().map(|(place, secret)| {
            Key::read(secret, signature.key, &algorithms)
                .map_err(|error| InvalidInput::new(format!("the secret {place}: {error}")))
        });
        let keys: Vec<Key> = keys.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        if needs_key && keys.is_empty() {
            let why =
                "there is no secret: name a file with secrets = [\"@FILE\"], or a variable with [\"$NAME\"]";
            return Err(InvalidInput::new(why));
        }
        let names = |names: &Option<Vec<String>>| header_names(names.as_deref().unwrap_or_default());
        let selectors =
            |texts: &Option<Vec<String>>| Selector::parse_all(texts.as_deref().unwrap_or_default());
        let mut require = Vec::new();
        for (name, value) in &signature.require {
            require.push((header_names(std::slice::from_ref(name))?.remove(0), value.clone()));
        }
        let source = Self {
            name: name.to_owned(),
            preset,
            carrier,
            template,
            timestamp: config.timestamp.as_ref().map(Timestamp::new).transpose()?,
            signed_id: names(&config.signed_id)?,
            secrets: secrets.into_iter().map(|(_, secret)| secret).collect(),
            keys,
            id: selectors(&config.id)?,
            kind: selectors(&config.kind)?,
            time: selectors(&config.time)?,
            distinct: names(&config.distinct)?,
            keep: names(&config.keep)?,
            require,
            signature,
            config,
        };
        source.check(&algorithms)?;
        Ok(source)
    }

    /// Settings that do not fit together.
    fn check(&self, algorithms: &[Algorithm]) -> Result<(), InvalidInput> {
        let wrong = |what: &str| Err(InvalidInput::new(what));
        let is_token = algorithms == [Algorithm::Token];
        if !is_token && !self.template.covers_content() {
            return wrong("signed has no {body}: anything could be sent with a captured signature");
        }
        // A CloudEvent has an id and a source of its own. Only the content distinguishes other events.
        if is_token && self.config.events != Some(Shape::Cloudevents) && !self.template.covers_content() {
            return wrong("signed has no {body}: with a token, all events would count as one");
        }
        let signs_time = self.template.has(&Piece::Timestamp);
        match &self.timestamp {
            None if signs_time => {
                return wrong("signed has {timestamp}, but timestamp does not say where it is");
            }
            Some(time) if time.is_in_body() && !self.template.has(&Piece::Body) => {
                return wrong("timestamp.path is in the body, which is not signed");
            }
            Some(time) if !time.is_in_body() && !signs_time => {
                return wrong("timestamp is not signed: add {timestamp} to signed");
            }
            Some(_) | None => {}
        }
        if self.template.has(&Piece::Id) && self.signed_id.is_empty() {
            return wrong("signed has {id}, but signed_id does not name its header");
        }
        if self.template.has(&Piece::WebhookId) && self.config.webhook_id.as_deref().is_none_or(str::is_empty)
        {
            return wrong("webhook_id is missing: it is part of what is signed");
        }
        if self.config.events == Some(Shape::Sns) && self.config.topics.is_empty() {
            return wrong(
                "topics is empty: any AWS account can send signed messages, so name the topics you trust",
            );
        }
        if self.signature.certificate.is_some()
            && self.config.certificate_hosts.as_ref().is_none_or(Vec::is_empty)
        {
            return wrong("certificate_hosts is missing: anyone can publish a certificate");
        }
        Ok(())
    }

    /// The name of the source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known about its vendor.
    #[must_use]
    pub fn preset(&self) -> &'static Preset {
        self.preset
    }

    /// The answer to an event that was accepted, or that is a duplicate.
    #[must_use]
    pub fn accepted(&self) -> Reply {
        let status = StatusCode::from_u16(self.preset.about.answer).unwrap_or(StatusCode::OK);
        Reply { status, headers: Vec::new(), body: Bytes::new() }
    }

    /// Says whether a request is authentic, and what it is. `now_ms` is the time in milliseconds since 1970.
    pub async fn judge(
        &self,
        received: &Received<'_>,
        now_ms: i64,
        fetch: &dyn FetchCertificate,
    ) -> Judgement {
        self.examine(received, now_ms, fetch).await.unwrap_or_else(Judgement::Rejected)
    }

    async fn examine(
        &self,
        received: &Received<'_>,
        now_ms: i64,
        fetch: &dyn FetchCertificate,
    ) -> Result<Judgement, Rejection> {
        if self.config.handshake == Some(Handshake::Cloudevents) && received.method == Method::OPTIONS {
            return handshake::cloudevents(received, &self.config.origins);
        }
        if received.method != Method::POST {
            return Err(Rejection::new(Reason::Method, "webhooks are sent with POST"));
        }
        let Some(carrier) = &self.carrier else { return self.sns(received, now_ms, fetch).await };
        let carried = carrier.read(received.headers, self.timestamp.as_ref())?;
        for (name, value) in &self.require {
            if needed(received.headers, name)? != value {
                return Err(Rejection::new(Reason::Version, format!("the header {name} is not {value}")));
            }
        }
        let id = signed_id(&self.signed_id, carried.family, received.headers)?;
        let view = View::new(received.headers, received.body, id);
        let time = match &self.timestamp {
            Some(time) if !time.is_in_body() => Some(time.read(&carried, &view)?),
            Some(_) | None => None,
        };
        let contents = self.contents(received, id, time.as_deref())?;
        self.verify(received, &carried, &contents, now_ms, fetch).await?;
        self.check_time(&carried, time.as_deref(), &view, now_ms)?;
        if let Some(reply) = self.config.handshake.and_then(|kind| handshake::after(kind, &view)) {
            return Ok(Judgement::Challenge(reply));
        }
        self.events(&view, &contents).map(Judgement::Events)
    }

    /// What may be signed. Twilio's URL can be written in several ways; the first is the same for each of them.
    fn contents(
        &self,
        received: &Received<'_>,
        id: Option<&str>,
        time: Option<&str>,
    ) -> Result<Vec<Vec<u8>>, Rejection> {
        let url = &*self.vendor_url(received.url);
        let mut values = Values {
            timestamp: time.unwrap_or_default(),
            id: id.unwrap_or_default(),
            body: received.body,
            url,
            form: &[],
            webhook_id: self.config.webhook_id.as_deref().unwrap_or_default(),
        };
        if !self.template.has(&Piece::Form) {
            return Ok(vec![self.template.fill(&values)]);
        }
        let content_type = one(received.headers, &header::CONTENT_TYPE)?;
        let forms = twilio::contents(url, content_type, received.body)?;
        let mut filled = Vec::with_capacity(forms.len());
        for form in &forms {
            values.form = form;
            filled.push(self.template.fill(&values));
        }
        Ok(filled)
    }

    /// The URL that the vendor signed: the configured one with the query of the request, which differs from request to
    /// request.
    fn vendor_url<'a>(&'a self, received: &'a str) -> Cow<'a, str> {
        let Some(own) = self.config.url.as_deref() else { return Cow::Borrowed(received) };
        match received.split_once('?') {
            Some((_, query)) => {
                let place = own.split_once('?').map_or(own, |(place, _)| place);
                Cow::Owned(format!("{place}?{query}"))
            }
            None => Cow::Borrowed(own),
        }
    }

    async fn verify(
        &self,
        received: &Received<'_>,
        carried: &Carried,
        contents: &[Vec<u8>],
        now_ms: i64,
        fetch: &dyn FetchCertificate,
    ) -> Result<(), Rejection> {
        if let Some(name) = &self.signature.certificate {
            let name = header_names(std::slice::from_ref(name)).unwrap_or_default();
            let name =
                name.first().ok_or_else(|| Rejection::new(Reason::Missing, "there is no certificate"))?;
            let url = needed(received.headers, name)?;
            let hosts = self.config.certificate_hosts.as_deref().unwrap_or_default();
            let is_own = certificate::https(url).is_some_and(|(host, path)| {
                hosts.iter().any(|known| known == host) && path.starts_with(&self.signature.certificate_path)
            });
            if !is_own {
                let words = format!("the header {name} is not an address of {}", self.preset.about.title);
                return Err(Rejection::new(Reason::Certificate, words));
            }
            let (algorithm, signature) = &carried.signatures[0];
            return certificate::verify(url, (*algorithm, signature), &contents[0], now_ms, fetch).await;
        }
        let is_authentic = carried.signatures.iter().any(|(algorithm, signature)| {
            let with = |key: &Key| contents.iter().any(|text| key.verifies(*algorithm, text, signature));
            self.keys.iter().any(with)
        });
        let words = "the signature does not belong to this content and any of the secrets";
        if is_authentic { Ok(()) } else { Err(Rejection::new(Reason::Signature, words)) }
    }

    fn check_time(
        &self,
        carried: &Carried,
        time: Option<&str>,
        view: &View<'_>,
        now_ms: i64,
    ) -> Result<(), Rejection> {
        let Some(timestamp) = &self.timestamp else { return Ok(()) };
        let ms = match time {
            Some(time) => Some(timestamp.ms(time)?),
            None => timestamp.ms_in_body(carried, view)?,
        };
        ms.map_or(Ok(()), |ms| self.check_age(ms, now_ms))
    }

    fn check_age(&self, ms: i64, now_ms: i64) -> Result<(), Rejection> {
        let Some(tolerance) = self.config.tolerance else { return Ok(()) };
        let most = i64::try_from(tolerance.as_millis()).unwrap_or(i64::MAX);
        let age = now_ms.saturating_sub(ms);
        let words = |direction: &str| {
            let limit = humantime::format_duration(tolerance);
            format!("the signed time is {} s in the {direction}; the tolerance is {limit}", age.abs() / 1_000)
        };
        if age > most {
            Err(Rejection::new(Reason::Old, words("past")))
        } else if age < -most.min(MAX_AHEAD_MS) {
            Err(Rejection::new(Reason::Future, words("future")))
        } else {
            Ok(())
        }
    }

    async fn sns(
        &self,
        received: &Received<'_>,
        now_ms: i64,
        fetch: &dyn FetchCertificate,
    ) -> Result<Judgement, Rejection> {
        let hosts = self.config.certificate_hosts.as_deref().unwrap_or_default();
        let message = sns::Message::parse(received.body)?;
        let (algorithm, signature) = message.signature()?;
        let url = message.certificate_url(hosts)?;
        // Checked before anything is fetched: any AWS account can send signed messages.
        if !self.config.topics.contains(&message.topic_arn) {
            return Err(Rejection::new(Reason::NotConfigured, "the topic is not one of the configured ones"));
        }
        let text = message.text(sns::Time::Included);
        certificate::verify(url, (algorithm, &signature), &text, now_ms, fetch).await?;
        let ms = TimeUnit::Rfc3339.ms(&message.timestamp);
        let ms = ms.ok_or_else(|| Rejection::new(Reason::Malformed, "Timestamp is not a time"))?;
        self.check_age(ms, now_ms)?;
        if let Some(confirmation) = message.confirmation(hosts)? {
            return Ok(Judgement::Confirm(confirmation));
        }
        let view = View::new(received.headers, received.body, None);
        let digest = digest_of(&[&message.text(sns::Time::LeftOut)]);
        Ok(Judgement::Events(vec![self.event(&view, Trust::Signed, digest, None)]))
    }

    fn events(&self, view: &View<'_>, contents: &[Vec<u8>]) -> Result<Vec<Event>, Rejection> {
        match self.config.events.unwrap_or_default() {
            Shape::One | Shape::Sns => {
                let content = if self.template.has(&Piece::Body) { Trust::Signed } else { Trust::Unsigned };
                Ok(vec![self.event(view, content, self.digest(view, contents), None)])
            }
            Shape::Array => {
                let items: Vec<&RawValue> = serde_json::from_slice(view.body)
                    .map_err(|_| Rejection::new(Reason::Body, "the body is not a JSON array of events"))?;
                let event = |item: &&RawValue| {
                    let body = item.get().as_bytes();
                    let view = View::new(view.headers, body, None);
                    self.event(&view, Trust::Signed, digest_of(&[body]), Some("application/json"))
                };
                Ok(items.iter().map(event).collect())
            }
            Shape::Cloudevents => self.cloudevents(view),
        }
    }

    /// What a redelivery has in common with the first delivery.
    fn digest(&self, view: &View<'_>, contents: &[Vec<u8>]) -> [u8; 32] {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        if self.template.has(&Piece::Id) {
            parts.push(view.signed_id.unwrap_or_default().as_bytes().to_vec());
        }
        if self.template.has(&Piece::Body) {
            parts.push(self.without_volatile(view));
        }
        if self.template.has(&Piece::Form) {
            parts.extend(contents.first().cloned());
        }
        for name in &self.distinct {
            let values: Vec<&[u8]> = view.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
            parts.push(digest_of(&values).to_vec());
        }
        digest_of(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    fn without_volatile(&self, view: &View<'_>) -> Vec<u8> {
        let volatile = self.config.volatile.as_deref().unwrap_or_default();
        let whole = || view.body.to_vec();
        if volatile.is_empty() {
            return whole();
        }
        // The strict form: it keeps the digits of integers, and a body with a repeated member has none.
        let parsed = std::str::from_utf8(view.body).ok().and_then(|text| Json::parse(text).ok());
        let Some(Json::Object(mut fields)) = parsed else { return whole() };
        fields.retain(|(name, _)| !volatile.contains(name));
        Json::Object(fields).canonical().into_bytes()
    }

    fn event(&self, view: &View<'_>, content: Trust, digest: [u8; 32], content_type: Option<&str>) -> Event {
        let id = view.first(&self.id, content);
        let header_type = || one(view.headers, &header::CONTENT_TYPE).ok().flatten().map(str::to_owned);
        Event {
            is_id_signed: id.as_ref().is_some_and(|(_, trust)| *trust == Trust::Signed),
            id: id.map(|(id, _)| short(id)),
            is_digest_of_content: self.template.has(&Piece::Body) || !self.template.has(&Piece::Crc32),
            digest,
            kind: view.first(&self.kind, content).map(|(kind, _)| kind),
            occurred_ms: view.first(&self.time, content).and_then(|(time, _)| time_ms(&time)),
            body: Bytes::copy_from_slice(view.body),
            content_type: content_type.map(str::to_owned).or_else(header_type),
            headers: self.kept(view),
        }
    }

    fn kept(&self, view: &View<'_>) -> Vec<(HeaderName, HeaderValue)> {
        let found = self
            .keep
            .iter()
            .flat_map(|name| view.headers.get_all(name).iter().map(move |value| (name, value)));
        found.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// SHA-256 of some parts; no other parts have the same.
pub(super) fn digest_of(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    bytes
}

/// An id of limited length.
fn short(id: String) -> String {
    if id.len() <= MAX_ID {
        return id;
    }
    format!("sha256:{}", HEXLOWER.encode(digest::digest(&digest::SHA256, id.as_bytes()).as_ref()))
}

/// A time as vendors write them: seconds, milliseconds, or RFC 3339 with any offset.
fn time_ms(text: &str) -> Option<i64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let unit = if text.len() > 11 { TimeUnit::Ms } else { TimeUnit::S };
        return unit.ms(text);
    }
    let at = text.len().checked_sub(6).filter(|at| text.is_char_boundary(*at));
    let Some((time, offset)) =
        at.map(|at| text.split_at(at)).filter(|(_, tail)| tail.starts_with(['+', '-']))
    else {
        return TimeUnit::Rfc3339.ms(text);
    };
    let (hours, minutes) = offset[1..].split_once(':')?;
    let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    Some(TimeUnit::Rfc3339.ms(&format!("{time}Z"))? - sign * minutes * 60_000)
}

/// The settings of a source, with those of its preset where it has none.
fn with_preset(own: SourceConfig, preset: &SourceConfig) -> SourceConfig {
    let preset = preset.clone();
    SourceConfig {
        preset: own.preset,
        secrets: own.secrets,
        url: own.url,
        tolerance: own.tolerance.or(preset.tolerance),
        id: own.id.or(preset.id),
        kind: own.kind.or(preset.kind),
        time: own.time.or(preset.time),
        distinct: own.distinct.or(preset.distinct),
        volatile: own.volatile.or(preset.volatile),
        events: own.events.or(preset.events),
        handshake: own.handshake.or(preset.handshake),
        keep: Some([preset.keep.unwrap_or_default(), own.keep.unwrap_or_default()].concat()),
        webhook_id: own.webhook_id,
        topics: own.topics,
        certificate_hosts: own.certificate_hosts.or(preset.certificate_hosts),
        origins: own.origins,
        signature: own.signature.or(preset.signature),
        signed: own.signed.or(preset.signed),
        signed_id: own.signed_id.or(preset.signed_id),
        timestamp: own.timestamp.or(preset.timestamp),
    }
}

/// The secrets, each with its place for errors.
fn read_secrets(
    places: &[String],
    signature: &SignatureConfig,
    algorithms: &[Algorithm],
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, InvalidInput> {
    let mut secrets = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let (shown, text) = if let Some(path) = place.strip_prefix('@') {
            let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
            (format!("in {path}"), text)
        } else if let Some(name) = place.strip_prefix('$') {
            let text = variable(name).ok_or_else(|| "it is not set".to_owned());
            (format!("in the variable {name}"), text)
        } else if keys::privacy(place, signature.key, algorithms) == Privacy::Public {
            (format!("number {}", at + 1), Ok(place.clone()))
        } else {
            let why = "a secret is not written in the configuration: name a file with @FILE, or a variable with $NAME";
            return Err(InvalidInput::new(why));
        };
        let text =
            text.map_err(|why| InvalidInput::new(format!("the secret {shown} cannot be read: {why}")))?;
        let text = text.trim_matches(['\r', '\n', ' ', '\t']);
        if text.is_empty() {
            return Err(InvalidInput::new(format!("the secret {shown} is empty")));
        }
        secrets.push((shown, text.to_owned()));
    }
    Ok(secrets)
}
