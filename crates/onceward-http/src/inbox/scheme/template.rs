//! What is signed: a text with placeholders.

use onceward::InvalidInput;

/// What is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    /// The time, as it was written.
    Timestamp,
    /// The id of the delivery, as it was written.
    Id,
    /// The body, byte for byte.
    Body,
    /// The URL of the endpoint.
    Url,
    /// The URL and the fields of a form, as Twilio joins them.
    Form,
    /// The CRC-32 of the body, as PayPal writes it.
    Crc32,
    /// The id of the webhook, as configured.
    WebhookId,
    /// The fields of a message of Amazon SNS.
    Sns,
}

/// The values of the placeholders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Values<'a> {
    pub(crate) timestamp: &'a str,
    pub(crate) id: &'a str,
    pub(crate) body: &'a [u8],
    pub(crate) url: &'a str,
    /// The URL and the fields of a form together.
    pub(crate) form: &'a [u8],
    pub(crate) webhook_id: &'a str,
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidInput> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            let (name, tail) = after.split_once('}').ok_or_else(|| unknown(text))?;
            pieces.push(match name {
                "timestamp" => Piece::Timestamp,
                "id" => Piece::Id,
                "body" => Piece::Body,
                "url" => Piece::Url,
                "form" => Piece::Form,
                "crc32" => Piece::Crc32,
                "webhook_id" => Piece::WebhookId,
                "sns" => Piece::Sns,
                _ => return Err(unknown(text)),
            });
            rest = tail;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    pub(crate) fn has(&self, piece: &Piece) -> bool {
        self.0.contains(piece)
    }

    /// Whether the content of a request is signed, at least in part.
    pub(crate) fn covers_content(&self) -> bool {
        [Piece::Body, Piece::Form, Piece::Crc32, Piece::Sns].iter().any(|piece| self.has(piece))
    }

    /// What is signed.
    pub(crate) fn fill(&self, values: &Values<'_>) -> Vec<u8> {
        let mut message = Vec::with_capacity(values.body.len() + 128);
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => message.extend_from_slice(text.as_bytes()),
                Piece::Timestamp => message.extend_from_slice(values.timestamp.as_bytes()),
                Piece::Id => message.extend_from_slice(values.id.as_bytes()),
                Piece::Body => message.extend_from_slice(values.body),
                Piece::Url => message.extend_from_slice(values.url.as_bytes()),
                Piece::Form => message.extend_from_slice(values.form),
                Piece::Crc32 => {
                    message.extend_from_slice(crc32fast::hash(values.body).to_string().as_bytes())
                }
                Piece::WebhookId => message.extend_from_slice(values.webhook_id.as_bytes()),
                // The text of a message of SNS is made in `sns`.
                Piece::Sns => {}
            }
        }
        message
    }
}

fn unknown(text: &str) -> InvalidInput {
    InvalidInput::new(format!(
        "signed = {text:?}: the placeholders are {{body}}, {{timestamp}}, {{id}}, {{url}}, {{form}}, {{crc32}} and \
         {{webhook_id}}"
    ))
}
