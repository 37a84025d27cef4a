//! Requests in the three forms of CloudEvents over HTTP: binary, structured and batched.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Source, digest_of, short, time_ms};
use crate::inbox::judgement::{Event, Reason, Rejection};
use crate::inbox::scheme::one;
use crate::inbox::scheme::template::Piece;
use crate::inbox::selectors::{Trust, View};

const STRUCTURED: &str = "application/cloudevents+json";
const BATCHED: &str = "application/cloudevents-batch+json";

/// The attributes that identify an event. Together, `source` and `id` are unique.
struct Attributes {
    id: String,
    source: String,
    kind: String,
    time: Option<String>,
}

impl Source {
    pub(super) fn cloudevents(&self, view: &View<'_>) -> Result<Vec<Event>, Rejection> {
        let content_type = one(view.headers, &header::CONTENT_TYPE)?.unwrap_or_default();
        let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            STRUCTURED => {
                let found = Attributes::in_json(view.body)?;
                Ok(vec![self.cloudevent(found, view, view.body, content_type, self.body_trust())])
            }
            BATCHED => {
                let items: Vec<&RawValue> = serde_json::from_slice(view.body)
                    .map_err(|_| Rejection::new(Reason::Body, "the batch is not a JSON array"))?;
                let event = |item: &&RawValue| {
                    let body = item.get().as_bytes();
                    let found = Attributes::in_json(body)?;
                    Ok(self.cloudevent(found, view, body, STRUCTURED, self.body_trust()))
                };
                items.iter().map(event).collect()
            }
            _ => {
                // A token vouches for the headers as much as for the body; a signature of the body does not.
                let trust = if self.template.covers_content() { Trust::Unsigned } else { Trust::Signed };
                let found = Attributes::in_headers(view)?;
                Ok(vec![self.cloudevent(found, view, view.body, content_type, trust)])
            }
        }
    }

    fn body_trust(&self) -> Trust {
        let is_signed = self.template.has(&Piece::Body) || !self.template.covers_content();
        if is_signed { Trust::Signed } else { Trust::Unsigned }
    }

    fn cloudevent(
        &self,
        found: Attributes,
        view: &View<'_>,
        body: &[u8],
        content_type: &str,
        trust: Trust,
    ) -> Event {
        let escaped = [&found.source, &found.id].map(|part| part.replace('%', "%25").replace(' ', "%20"));
        let digest = match trust {
            Trust::Signed => digest_of(&[found.source.as_bytes(), found.id.as_bytes(), body]),
            // With attributes that anyone can change, a replay would have a new digest.
            Trust::Unsigned => digest_of(&[body]),
        };
        let attributes = view.headers.iter().filter(|(name, _)| name.as_str().starts_with("ce-"));
        let attributes: Vec<(HeaderName, HeaderValue)> =
            attributes.map(|(name, value)| (name.clone(), value.clone())).collect();
        Event {
            id: Some(short(escaped.join(" "))),
            digest,
            is_id_signed: trust == Trust::Signed,
            is_digest_of_content: true,
            kind: Some(found.kind),
            occurred_ms: found.time.as_deref().and_then(time_ms),
            body: Bytes::copy_from_slice(body),
            content_type: Some(content_type.to_owned()).filter(|kind| !kind.is_empty()),
            headers: [attributes, self.kept(view)].concat(),
        }
    }
}

impl Attributes {
    fn in_json(body: &[u8]) -> Result<Self, Rejection> {
        let wrong = |what: &str| Rejection::new(Reason::Body, format!("the event has no {what}"));
        let event: Value = serde_json::from_slice(body)
            .map_err(|_| Rejection::new(Reason::Body, "the event is not JSON"))?;
        let text = |name: &str| event.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let needed = |name: &str| text(name).map(str::to_owned).ok_or_else(|| wrong(name));
        needed("specversion")?;
        Ok(Self {
            id: needed("id")?,
            source: needed("source")?,
            kind: needed("type")?,
            time: text("time").map(str::to_owned),
        })
    }

    fn in_headers(view: &View<'_>) -> Result<Self, Rejection> {
        let text = |name: &'static str| {
            let found = one(view.headers, &HeaderName::from_static(name))?;
            Ok::<_, Rejection>(found.filter(|text| !text.is_empty()).map(str::to_owned))
        };
        let needed = |name: &'static str| {
            text(name)?.ok_or_else(|| Rejection::new(Reason::Body, format!("the header {name} is missing")))
        };
        needed("ce-specversion")?;
        Ok(Self {
            id: needed("ce-id")?,
            source: needed("ce-source")?,
            kind: needed("ce-type")?,
            time: text("ce-time")?,
        })
    }
}
