//! `once demo`: soon.

use crate::cli::DemoArgs;
use crate::exit::Ended;

pub(super) fn run(_args: &DemoArgs, _json: bool) -> Ended {
    Ok(std::process::ExitCode::SUCCESS)
}
