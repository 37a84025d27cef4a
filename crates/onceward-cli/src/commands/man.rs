//! `once completions` and `once man`: made from the one definition of what can be typed.

use std::path::Path;
use std::process::ExitCode;

use clap_complete::Shell;

use crate::answer;
use crate::cli;
use crate::exit::{CommandError, Ended};

pub(super) fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::definition(), "once", &mut script);
    answer::bytes(&script);
    ExitCode::SUCCESS
}

pub(super) fn pages(folder: Option<&Path>) -> Ended {
    let failed =
        |error: std::io::Error| CommandError::Outside(format!("the manual could not be written: {error}"));
    match folder {
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(failed)?;
            clap_mangen::generate_to(cli::definition(), folder).map_err(failed)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(cli::definition()).render(&mut page).map_err(failed)?;
            answer::bytes(&page);
        }
    }
    Ok(ExitCode::SUCCESS)
}
