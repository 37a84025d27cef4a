//! A process that writes operations without pause and prints what is durable, for the power cuts.

use std::io::Write;
use std::process::ExitCode;

use onceward::{Failure, Ledger, Operation};

use crate::Trouble;

/// The first argument that makes this program a writer.
pub(crate) const ROLE: &str = "writer";

/// Writes until the disk is gone: `writer URL SCOPE`.
pub(crate) fn write(mut words: impl Iterator<Item = String>) -> ExitCode {
    let (Some(url), Some(scope)) = (words.next(), words.next()) else {
        return ExitCode::from(2);
    };
    match write_on(&url, &scope) {
        Ok(()) => ExitCode::SUCCESS,
        // The power was cut, as intended.
        Err(_) => ExitCode::from(12),
    }
}

/// Prints `begun` when the intent of an operation is durable, and `done` when its outcome is.
fn write_on(url: &str, scope: &str) -> Result<(), Trouble> {
    let ledger = Ledger::new(onceward_store::open(url)?).blocking();
    let say = |word: &str, operation: &str| writeln!(std::io::stdout(), "{word} {operation}");
    // Ended by the power cut; the limit only prevents an endless run.
    for number in 0..10_000_000_u64 {
        let operation = Operation::new("write").scope(scope).key(format!("key-{number}"));
        let receipt = ledger.run(operation, |attempt| {
            say("begun", attempt.operation().as_str()).map_err(Failure::in_doubt)?;
            Ok(attempt.dispatch()?.created(&number))
        })?;
        say("done", receipt.record().id.as_str())?;
    }
    Ok(())
}
