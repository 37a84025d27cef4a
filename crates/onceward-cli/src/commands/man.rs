//! `once help`, `once completions` and `once man`, generated from the definition of the command line.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap_complete::Shell;
use clap_mangen::Man;

use crate::answer;
use crate::cli;
use crate::exit::{CommandError, Ended};

/// Environment variables, for the manual.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("ONCE_LEDGER", "The ledger, unless --ledger names one."),
    ("ONCE_CONFIG", "The policy file, unless --config names one."),
    ("ONCE_SCOPE", "The scope, unless --scope names one."),
    ("COLUMNS", "Width of tables. By default they fit the terminal; in a pipe, cells are not cut."),
    ("NO_COLOR", "If set, nothing is coloured."),
    (
        "ONCE_KEY, ONCE_OPERATION, ONCE_ATTEMPT, ONCE_SCOPE, IDEMPOTENCY_KEY",
        "Set for the command that `once run` starts. IDEMPOTENCY_KEY is the same for every attempt: pass it on.",
    ),
];

const FILES: [(&str, &str); 3] = [
    ("onceward.toml", "The policy: in the working folder or the nearest folder above it that has one."),
    ("~/.config/onceward/onceward.toml", "The user's policy, if the project has none."),
    ("~/.local/share/onceward/once.db", "The default ledger. The files beside it belong to it."),
];

/// Completes the command after `--`, which the generated script for bash does not do.
const BASH_COMMANDS: &str = r#"
_once_with_commands() {
    local at
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == "--" ]] || continue
        if ((at + 1 == COMP_CWORD)); then
            COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"))
        elif declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset $((at + 1))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        else
            COMPREPLY=()
        fi
        return 0
    done
    _once "$@"
}

complete -F _once_with_commands -o bashdefault -o default once
"#;

/// Prints the help of a command, as `--help` does.
pub(super) fn help(command: &[String], json: bool) -> ExitCode {
    let words =
        std::iter::once("once".to_owned()).chain(command.iter().cloned()).chain(["--help".to_owned()]);
    match cli::definition().try_get_matches_from(words) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => cli::print_parser_message(error, json),
    }
}

pub(super) fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::definition(), "once", &mut script);
    if shell == Shell::Bash {
        script.extend_from_slice(BASH_COMMANDS.as_bytes());
    }
    answer::bytes(&script);
    ExitCode::SUCCESS
}

pub(super) fn pages(folder: Option<&Path>) -> Ended {
    let failed =
        |error: std::io::Error| CommandError::Outside(format!("the manual could not be written: {error}"));
    let mut definition = cli::definition();
    definition.build();
    match folder {
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(failed)?;
            write_pages(&definition, folder).map_err(failed)?;
        }
        None => answer::bytes(&page(&definition).map_err(failed)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// The page of a command and of each command below it.
fn write_pages(command: &clap::Command, folder: &Path) -> std::io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_pages(command, folder)?;
    }
    let page = page(command)?;
    std::fs::write(folder.join(Man::new(command.clone()).get_filename()), page)
}

fn page(command: &clap::Command) -> std::io::Result<Vec<u8>> {
    let examples = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(examples) = examples {
        section(&mut page, "EXAMPLES")?;
        writeln!(page, ".nf")?;
        let lines = examples.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "Examples:");
        // The exit codes have their own section.
        for line in lines.take_while(|line| !line.starts_with("Exit codes")) {
            writeln!(page, "{}", escaped(line))?;
        }
        writeln!(page, ".fi")?;
    }
    section(&mut page, "EXIT STATUS")?;
    for (code, meaning) in cli::EXIT_CODES {
        term(&mut page, code, meaning)?;
    }
    section(&mut page, "ENVIRONMENT")?;
    for (name, meaning) in ENVIRONMENT {
        term(&mut page, name, meaning)?;
    }
    section(&mut page, "FILES")?;
    for (name, meaning) in FILES {
        term(&mut page, name, meaning)?;
    }
    man.render_version_section(&mut page)?;
    Ok(page)
}

fn section(page: &mut Vec<u8>, title: &str) -> std::io::Result<()> {
    writeln!(page, ".SH {title:?}")
}

fn term(page: &mut Vec<u8>, name: &str, meaning: &str) -> std::io::Result<()> {
    writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(meaning))
}

/// Text as roff reads it back.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}
