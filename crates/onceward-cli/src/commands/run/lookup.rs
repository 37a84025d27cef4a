//! Checks before a command is started: programs, shell builtins, and configuration files that add arguments.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

/// The exit code of a shell that finds no such command, and of one that finds it but cannot start it.
const NOT_FOUND: i32 = 127;
const NOT_STARTED: i32 = 126;

/// Builtins and keywords of the usual shells. Their effect cannot be determined here.
const BUILT_IN: &[&str] = &[
    ".",
    ":",
    "alias",
    "autoload",
    "bg",
    "bind",
    "break",
    "builtin",
    "case",
    "cd",
    "command",
    "continue",
    "coproc",
    "declare",
    "dirs",
    "disown",
    "do",
    "done",
    "echo",
    "elif",
    "else",
    "emulate",
    "enable",
    "esac",
    "eval",
    "exec",
    "exit",
    "export",
    "false",
    "fc",
    "fg",
    "fi",
    "for",
    "function",
    "getopts",
    "hash",
    "help",
    "history",
    "if",
    "in",
    "jobs",
    "kill",
    "let",
    "local",
    "logout",
    "mapfile",
    "nocorrect",
    "noglob",
    "popd",
    "print",
    "printf",
    "pushd",
    "pwd",
    "read",
    "readarray",
    "readonly",
    "repeat",
    "return",
    "select",
    "set",
    "shift",
    "shopt",
    "source",
    "suspend",
    "test",
    "then",
    "time",
    "times",
    "trap",
    "true",
    "type",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unset",
    "unsetopt",
    "until",
    "wait",
    "whence",
    "while",
    "zmodload",
];

/// A program that cannot be started.
pub(super) struct Unstartable {
    pub(super) reason: String,
    pub(super) exit_code: i32,
}

/// Checks whether a program can be found and executed, as the system would search for it.
pub(super) fn startable(program: &OsStr) -> Result<(), Unstartable> {
    let Err(errno) = look_for(program) else { return Ok(()) };
    Err(unstartable(program, &errno.into()))
}

/// Why a program was not started.
pub(super) fn unstartable(program: &OsStr, error: &std::io::Error) -> Unstartable {
    let found = error.kind() != ErrorKind::NotFound;
    let reason = format!("cannot start {}: {error}", program.to_string_lossy());
    Unstartable { reason, exit_code: if found { NOT_STARTED } else { NOT_FOUND } }
}

fn look_for(program: &OsStr) -> Result<(), Errno> {
    if program.as_bytes().contains(&b'/') {
        return executable(Path::new(program));
    }
    let mut worst = Errno::ENOENT;
    for folder in search_path() {
        match executable(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(Errno::EACCES) => worst = Errno::EACCES,
            Err(_) => {}
        }
    }
    Err(worst)
}

fn executable(path: &Path) -> Result<(), Errno> {
    access(path, AccessFlags::X_OK)?;
    if path.is_dir() { Err(Errno::EACCES) } else { Ok(()) }
}

fn search_path() -> Vec<PathBuf> {
    // Without PATH the system uses a default that is not known here; these folders are in all of them.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let here = |folder: PathBuf| if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
    std::env::split_paths(&path).map(here).collect()
}

/// The exit code with which a shell would report that it cannot start its one command, if it cannot. A builtin, a
/// function or a start-up file may do anything before that.
pub(super) fn shell_gap(program: &str, arguments: &[&str]) -> Option<i32> {
    if !matches!(program, "sh" | "bash" | "dash" | "ksh") {
        return None;
    }
    let ["-c", script] = arguments else { return None };
    let special = |c: char| !(c.is_ascii_alphanumeric() || " /._-+:,@%".contains(c));
    let word = script.split(' ').find(|word| !word.is_empty())?;
    if script.contains(special) || BUILT_IN.contains(&word) || shell_is_prepared() {
        return None;
    }
    startable(OsStr::new(word)).err().map(|gap| gap.exit_code)
}

/// Whether a shell imports functions or reads a start-up file.
fn shell_is_prepared() -> bool {
    std::env::vars_os().any(|(name, _)| {
        let name = name.as_bytes();
        name == b"ENV" || name == b"BASH_ENV" || name.starts_with(b"BASH_FUNC_")
    })
}

/// The options that a program takes from its configuration file, as arguments: curl reads one unless `-q` is given.
pub(super) fn configured(program: &str, arguments: &[&str]) -> Vec<String> {
    if program != "curl" || matches!(arguments.first(), Some(&("-q" | "--disable"))) {
        return Vec::new();
    }
    let named = |name: &str, file: &str| std::env::var_os(name).map(|folder| Path::new(&folder).join(file));
    let files = [
        named("CURL_HOME", ".curlrc"),
        named("CURL_HOME", "curlrc"),
        named("XDG_CONFIG_HOME", "curlrc"),
        named("XDG_CONFIG_HOME", ".curlrc"),
        named("HOME", ".curlrc"),
        named("HOME", ".config/curlrc"),
    ];
    let texts = files.into_iter().flatten().filter_map(|file| std::fs::read_to_string(file).ok());
    texts.flat_map(|text| text.lines().filter_map(configured_option).collect::<Vec<_>>()).collect()
}

/// The option of a line such as `location`, `--retry 3` or `-L`, followed by `=`, because its value is not the next
/// word.
fn configured_option(line: &str) -> Option<String> {
    let word = line.trim().split([' ', '\t', '=', ':']).next().filter(|word| !word.is_empty())?;
    match word.chars().next() {
        Some('#') => None,
        Some('-') => Some(format!("{word}=")),
        _ => Some(format!("--{word}=")),
    }
}
