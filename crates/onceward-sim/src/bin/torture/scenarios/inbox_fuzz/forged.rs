//! Signed requests of every preset, changed by someone without the keys.
//!
//! The oracle does not know the schemes: an accepted request must have the digest of a request that was really signed,
//! and where the whole body is signed, its body.

use http::{HeaderMap, Method};
use onceward_http::inbox::{Event, Judgement, Sample, Signed, Trial};
use onceward_sim::random::Random;

use super::mutate::Mutator;
use super::{Counts, NOW_MS, Sender, URL, judge};
use crate::Trouble;
use crate::report::Rule;

const SAMPLES: u64 = 4;
/// Presets whose signature covers the body byte for byte. Twilio signs decoded fields, PayPal a CRC-32, Amazon SNS
/// some fields; a token signs nothing.
const NOT_BYTE_FOR_BYTE: [&str; 4] = ["twilio", "paypal", "sns", "cloudevents"];

pub(super) fn round(
    preset: &str,
    sender: Sender,
    random: &mut Random,
    executions: u64,
    counts: &Counts<'_>,
) -> Result<(), Trouble> {
    let fuzzed = Fuzzed::new(preset, Trial::new(preset)?, random, SAMPLES)?;
    let mut mutator = Mutator { random, samples: &fuzzed.requests };
    for _ in 0..executions {
        let mut request = fuzzed.requests[mutator.random.index(fuzzed.requests.len())].clone();
        let mut now_ms = NOW_MS;
        for _ in 0..=mutator.random.below(3) {
            mutator.change(&mut request, &mut now_ms);
        }
        if sender == Sender::KeyHolder {
            request = fuzzed.signed_again(request)?;
        }
        let method = mutator.method();
        let judgement = judge(&fuzzed.trial.source, &method, &request, now_ms, &fuzzed.trial);
        counts.judged(&judgement);
        fuzzed.check(&method, &request, &judgement, counts);
    }
    Ok(())
}

/// A source with keys of its own, and requests that they signed.
pub(super) struct Fuzzed {
    preset: String,
    pub(super) trial: Trial,
    pub(super) requests: Vec<Signed>,
    events: Vec<Event>,
}

impl Fuzzed {
    pub(super) fn new(
        preset: &str,
        trial: Trial,
        random: &mut Random,
        samples: u64,
    ) -> Result<Self, Trouble> {
        let mut fuzzed = Self { preset: preset.to_owned(), trial, requests: Vec::new(), events: Vec::new() };
        for _ in 0..samples {
            let request = fuzzed.trial.sign_sample(URL, random.draw(), NOW_MS)?;
            let judgement = judge(&fuzzed.trial.source, &Method::POST, &request, NOW_MS, &fuzzed.trial);
            let Judgement::Events(events) = judgement else {
                return Err(format!("{preset}: a signed sample was refused: {judgement:?}").into());
            };
            fuzzed.events.extend(events);
            fuzzed.requests.push(request);
        }
        Ok(fuzzed)
    }

    fn signed_again(&self, request: Signed) -> Result<Signed, Trouble> {
        let Signed { url, headers, body } = request;
        Ok(self.trial.sign(&Sample { url, id: "forged".to_owned(), headers, body, now_ms: NOW_MS })?)
    }

    /// Finds what was accepted and not signed.
    pub(super) fn check(
        &self,
        method: &Method,
        request: &Signed,
        judgement: &Judgement,
        counts: &Counts<'_>,
    ) {
        let is_token = self.preset == "cloudevents";
        let is_genuine = match judgement {
            Judgement::Rejected(_) => true,
            // A sender may ask whether it may send; this accepts nothing.
            Judgement::Challenge(_) => is_token && method == Method::OPTIONS,
            // No sample is a handshake, and without a key none can be made of one.
            Judgement::Confirm(_) => false,
            Judgement::Events(_) if method != Method::POST => false,
            // Only the token is secret. Spaces around a header's value are not part of it.
            Judgement::Events(_) if is_token => token(&request.headers) == token(&self.requests[0].headers),
            Judgement::Events(events) => {
                !events.is_empty() && events.iter().all(|event| self.is_genuine(event))
            }
        };
        if !is_genuine {
            counts.found(Rule::Forged, || format!("{judgement:?} for {method} {request:?}"));
        }
    }

    fn is_genuine(&self, event: &Event) -> bool {
        let is_exact = !NOT_BYTE_FOR_BYTE.contains(&self.preset.as_str());
        self.events.iter().any(|known| {
            let same_id = !event.is_id_signed || event.id == known.id;
            let same_body = !is_exact || event.body == known.body;
            known.digest == event.digest && same_id && same_body
        })
    }
}

fn token(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get("authorization").map(|value| value.as_bytes().trim_ascii())
}
