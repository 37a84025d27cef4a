//! Read-only questions that commands answer: did it happen, and is it so?

use std::process::{Command, Stdio};

use onceward::{Effect, Outcome, ProbeAnswer, Record, Verification};

/// Asks whether an operation happened: exit 0 yes, 1 no, anything else cannot tell.
pub(crate) fn probe(command: &str, record: &Record) -> ProbeAnswer {
    let environment = [
        ("ONCE_OPERATION", record.id.to_string()),
        ("ONCE_KEY", record.key.text.clone()),
        ("ONCE_SCOPE", record.scope.clone()),
        ("ONCE_ATTEMPT", record.attempt.to_string()),
        ("IDEMPOTENCY_KEY", record.id.to_string()),
    ];
    match exit_code(command, &environment) {
        Ok(Some(0)) => ProbeAnswer::Yes(Outcome {
            reason: Some("the probe says that it happened; the output of the attempt is lost".to_owned()),
            ..Outcome::with_effect(Effect::Updated)
        }),
        Ok(Some(1)) => ProbeAnswer::No,
        Ok(Some(code)) => ProbeAnswer::CannotTell(format!("the probe ended with exit code {code}")),
        Ok(None) => ProbeAnswer::CannotTell("the probe was killed".to_owned()),
        Err(error) => ProbeAnswer::CannotTell(format!("the probe could not be asked: {error}")),
    }
}

/// Checks a reported success: exit 0 confirmed, 1 refuted, anything else not yet.
pub(crate) fn verify(command: &str, outcome: &Outcome) -> (Verification, String) {
    let data = outcome.data.as_ref().map(|data| data.get().to_owned()).unwrap_or_default();
    match exit_code(command, &[("ONCE_RESULT", data)]) {
        Ok(Some(0)) => (Verification::Confirmed, String::new()),
        Ok(Some(1)) => (Verification::Refuted, format!("`{command}` says that it is not so")),
        Ok(_) | Err(_) => (Verification::Pending, String::new()),
    }
}

fn exit_code(command: &str, environment: &[(&str, String)]) -> std::io::Result<Option<i32>> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).envs(environment.iter().map(|(name, value)| (name, value)));
    // What a question prints is not the command's output.
    let status = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).status()?;
    Ok(status.code())
}
