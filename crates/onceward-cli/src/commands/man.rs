//! `once completions` and `once man`: made from the one definition of what can be typed.

use std::path::Path;
use std::process::ExitCode;

use clap_complete::Shell;

use crate::cli;
use crate::exit::{CommandError, Ended};

pub(super) fn completions(shell: Shell) -> ExitCode {
    clap_complete::generate(shell, &mut cli::definition(), "once", &mut std::io::stdout());
    ExitCode::SUCCESS
}

pub(super) fn pages(folder: Option<&Path>) -> Ended {
    let failed = |error: std::io::Error| CommandError::Outside(format!("the manual could not be written: {error}"));
    match folder {
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(failed)?;
            clap_mangen::generate_to(cli::definition(), folder).map_err(failed)?;
        }
        None => clap_mangen::Man::new(cli::definition()).render(&mut std::io::stdout()).map_err(failed)?,
    }
    Ok(ExitCode::SUCCESS)
}
