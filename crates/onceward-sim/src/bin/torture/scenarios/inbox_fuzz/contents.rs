//! Changed requests that the vendor signed: the parsers behind the verifier must cope with every content, and a
//! redelivery must have the same identity.

use http::Method;
use onceward_http::inbox::{Event, Judgement, Reason, Sample, SourceConfig, Trial};
use onceward_sim::random::Random;

use super::mutate::Mutator;
use super::{Counts, NOW_MS, URL, judge};
use crate::Trouble;
use crate::report::Rule;

const SAMPLES: u64 = 4;
/// One in this many requests is signed and judged again at another time.
const REDELIVERED: u64 = 8;
/// Shorter than every tolerance.
const LATER_MS: i64 = 2_000;
/// Presets with public keys. They are signed with an HMAC here: what follows the verifier is the same, and an
/// execution takes a tenth of the time.
const PUBLIC_KEYS: [&str; 3] = ["paypal", "sendgrid", "discord"];
/// Presets with several events in a request.
const SEVERAL: [&str; 2] = ["sendgrid", "cloudevents"];

pub(super) fn round(
    preset: &str,
    random: &mut Random,
    executions: u64,
    counts: &Counts<'_>,
) -> Result<(), Trouble> {
    let mut config = SourceConfig::default();
    // A token says nothing about the body. The other half of the rounds has a signature.
    let is_signed = preset == "cloudevents" && random.permille(500);
    if PUBLIC_KEYS.contains(&preset) || is_signed {
        config.signature = Some(toml::from_str("header = \"X-Signature\"")?);
    }
    if is_signed {
        config.signed = Some("{body}".to_owned());
    }
    let trial = Trial::with(preset, config)?;
    let samples = (0..SAMPLES).map(|_| trial.source.sample(URL, random.draw(), NOW_MS));
    let samples: Vec<Sample> = samples.collect::<Result<_, _>>()?;
    let mut mutator = Mutator { random, samples: &[] };
    for _ in 0..executions {
        let mut sample = samples[mutator.random.index(samples.len())].clone();
        mutator.change_content(&mut sample);
        // What cannot be signed cannot be sent: an id that is not a header, or several hashes in Twilio's URL.
        let Ok(request) = trial.sign(&sample) else { continue };
        let judgement = judge(&trial.source, &Method::POST, &request, NOW_MS, &trial);
        counts.judged(&judgement);
        match &judgement {
            Judgement::Rejected(rejection) if rejection.reason == Reason::Signature => {
                counts.found(Rule::Unexpected, || format!("a signed request was refused: {request:?}"));
            }
            Judgement::Events(events) => {
                let is_whole = SEVERAL.contains(&preset) || events.iter().all(|one| one.body == request.body);
                if !is_whole || !events.iter().all(is_sound) {
                    counts.found(Rule::Unexpected, || format!("{events:?} of {request:?}"));
                }
                if mutator.random.below(REDELIVERED) == 0 {
                    sample.now_ms += LATER_MS;
                    let later = trial.sign(&sample)?;
                    let again = judge(&trial.source, &Method::POST, &later, NOW_MS + LATER_MS, &trial);
                    check_redelivery(events, &again, counts);
                }
            }
            Judgement::Rejected(_) | Judgement::Challenge(_) | Judgement::Confirm(_) => {}
        }
    }
    Ok(())
}

/// Whether an event is one that the ledger can record.
fn is_sound(event: &Event) -> bool {
    event.id.as_ref().is_none_or(|id| (1..=255).contains(&id.len()))
        && (event.id.is_some() || !event.is_id_signed)
}

fn check_redelivery(first: &[Event], again: &Judgement, counts: &Counts<'_>) {
    let same = match again {
        Judgement::Events(again) => {
            let identity = |event: &Event| (event.id.clone(), event.digest);
            first.iter().map(identity).eq(again.iter().map(identity))
        }
        // A time in the body can be too old two seconds later.
        Judgement::Rejected(rejection) => rejection.reason == Reason::Old,
        Judgement::Challenge(_) | Judgement::Confirm(_) => false,
    };
    if !same {
        counts.found(Rule::Unexpected, || format!("a redelivery of {first:?} is {again:?}"));
    }
}
