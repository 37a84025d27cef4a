//! An outcome as JSON with its body inside. Only the record's own outcome has a place for the body beside the JSON.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Outcome;

#[derive(Serialize)]
struct WholeRef<'a> {
    outcome: &'a Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

#[derive(Deserialize)]
struct Whole {
    outcome: Outcome,
    body: Option<String>,
}

pub(super) fn serialize<S: Serializer>(outcome: &Option<Outcome>, serializer: S) -> Result<S::Ok, S::Error> {
    let shown = outcome.as_ref().map(|outcome| WholeRef {
        outcome,
        body: outcome.body.as_ref().map(|body| data_encoding::BASE64.encode(body)),
    });
    shown.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Outcome>, D::Error> {
    let Some(Whole { outcome, body }) = Option::deserialize(deserializer)? else {
        return Ok(None);
    };
    let body = match body {
        None => None,
        Some(text) => {
            Some(data_encoding::BASE64.decode(text.as_bytes()).map_err(serde::de::Error::custom)?.into())
        }
    };
    Ok(Some(Outcome { body, ..outcome }))
}
