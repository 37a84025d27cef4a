//! `once key`: derives a key and explains it.

use std::process::ExitCode;

use onceward::KeyOrigin;
use serde::Serialize;

use super::run::{input, operation};
use crate::answer;
use crate::cli::KeyArgs;
use crate::context::Context;
use crate::exit::Ended;
use crate::style::{BOLD, styled};

#[derive(Serialize)]
struct Explained {
    key: String,
    origin: KeyOrigin,
    operation: String,
    fingerprint: String,
    name: String,
    scope: String,
    inputs: Vec<String>,
}

pub(super) fn run(context: &Context, args: &KeyArgs) -> Ended {
    let gathered = input::gather(&args.identity, &args.command)?;
    let settings = input::settings(context, &args.identity, &gathered)?;
    let portable = operation(&args.identity, &gathered, &settings).intent()?;
    let inputs = portable.fields().into_keys().collect();
    // Derived keys depend on the ledger's secret.
    let intent = match context.existing_ledger()? {
        Some(ledger) => ledger.keyed(portable),
        None => portable,
    };
    let explained = Explained {
        key: intent.key.text.clone(),
        origin: intent.key.origin,
        operation: intent.id.to_string(),
        fingerprint: intent.fingerprint.as_str().to_owned(),
        name: intent.name.clone(),
        scope: intent.scope.clone(),
        inputs,
    };
    answer::success(context.global.json, "noop", &explained, || {
        let from = match explained.origin {
            KeyOrigin::Given => "given by the caller".to_owned(),
            KeyOrigin::Derived if settings.key_fields.is_empty() => {
                "derived from the name and all inputs".to_owned()
            }
            KeyOrigin::Derived => format!("derived from the name and {}", settings.key_fields.join(", ")),
        };
        format!(
            "{}\n  {from}\n  name         {}\n  scope        {} (not part of the key, but of the operation)\n  \
             inputs       {}\n  fingerprint  {}\n  operation    {}",
            styled(BOLD, &explained.key),
            explained.name,
            explained.scope,
            explained.inputs.join(" "),
            explained.fingerprint,
            explained.operation
        )
    });
    Ok(ExitCode::SUCCESS)
}
