//! A process that writes operations without pause and says of each what is on disk, for the power cuts.

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
        // The power is gone: that is what was wanted.
        Err(_) => ExitCode::from(12),
    }
}

/// Each operation says `begun` when its intent is on disk and `done` when its outcome is.
fn write_on(url: &str, scope: &str) -> Result<(), Trouble> {
    let ledger = Ledger::new(onceward_store::open(url)?).blocking();
    let say = |word: &str, operation: &str| writeln!(std::io::stdout(), "{word} {operation}");
    // Bounded by the power cut; the number is only there so that nothing runs for ever.
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
