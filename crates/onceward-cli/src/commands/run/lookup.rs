//! Checks before a command is started: programs, shell builtins, and configuration files that add arguments.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use onceward::{ByteString, FileState};
use sha2::{Digest, Sha256};

/// The exit code of a shell that finds no such command, and of one that finds it but cannot start it.
const NOT_FOUND: i32 = 127;
const NOT_STARTED: i32 = 126;

/// Where systems install programs.
const SYSTEM_FOLDERS: &[&str] =
    &["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// Programs whose first argument can be the script that they interpret. Their version is not part of the name.
const INTERPRETERS: &[&str] = &["sh", "bash", "dash", "ksh", "zsh", "python", "node", "ruby", "perl", "php"];

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

/// The file of a program, as the system would find it, with links followed.
fn resolved(program: &OsStr) -> Option<PathBuf> {
    look_for(program).ok()?.canonicalize().ok()
}

/// Programs that replace themselves with their last words, and the words that may come before.
fn is_replaced(program: &str, word: &OsStr) -> bool {
    let word = word.to_string_lossy();
    match program {
        // Not its options: the value of one may look like a program.
        "env" => !word.starts_with('-') && word.contains('='),
        "nice" => word.starts_with('-') || word.parse::<i32>().is_ok(),
        _ => false,
    }
}

/// The file of the program that will run as the command: the first word, or the one that `env`, `nice` or `nohup`
/// replace themselves with.
pub(super) fn program_of(command: &[OsString]) -> Option<PathBuf> {
    resolved(words_of(command)?.first()?)
}

/// The words from that program on.
fn words_of(command: &[OsString]) -> Option<&[OsString]> {
    let (first, rest) = command.split_first()?;
    match Path::new(first).file_name()?.to_str() {
        Some(name @ ("env" | "nice" | "nohup")) if is_of_the_system(first) => {
            rest.get(rest.iter().position(|word| !is_replaced(name, word))?..)
        }
        _ => Some(command),
    }
}

/// The files that run: that of the program, and the script that it interprets, as they are now. What cannot be read is
/// left out.
pub(super) fn files_of(command: &[OsString]) -> Vec<FileState> {
    let Some((program, rest)) = words_of(command).and_then(<[OsString]>::split_first) else {
        return Vec::new();
    };
    let name = basename(program);
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let script = rest.iter().find(|word| !word.as_bytes().starts_with(b"-"));
    let script = script.filter(|_| INTERPRETERS.contains(&name)).map(PathBuf::from);
    let files = resolved(program).into_iter().chain(script);
    files.filter_map(|file| state_of(&file)).collect()
}

/// Whether a program is what its name says: a binary of that name which the system's administrator installed. A script,
/// or a file in a project, may do anything before it ends with the exit code of another program.
pub(super) fn is_of_the_system(program: &OsStr) -> bool {
    let Some(file) = resolved(program) else { return false };
    if std::env::current_exe().is_ok_and(|own| own == file) {
        return true;
    }
    let installed =
        |path: &Path| std::fs::metadata(path).is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o022 == 0);
    let folder =
        file.parent().filter(|folder| SYSTEM_FOLDERS.iter().any(|system| *folder == Path::new(system)));
    let mut begins = [0; 4];
    folder.is_some_and(installed)
        && installed(&file)
        && file.file_name() == Path::new(program).file_name()
        && File::open(&file).and_then(|mut file| file.read_exact(&mut begins)).is_ok()
        && begins == *b"\x7fELF"
}

/// A file as it is now, if it is one that can be read.
pub(super) fn state_of(file: &Path) -> Option<FileState> {
    let mut opened = File::open(file).ok().filter(|file| file.metadata().is_ok_and(|data| data.is_file()))?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 64 * 1024]);
    loop {
        match opened.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                hash.update(&buffer[..length]);
                size += length as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(FileState::hashed(bytes(file.as_os_str()), size, HEXLOWER.encode(&hash.finalize())))
}

/// Why a program was not started.
pub(super) fn unstartable(program: &OsStr, error: &std::io::Error) -> Unstartable {
    let found = error.kind() != ErrorKind::NotFound;
    let reason = format!("cannot start {}: {error}", program.to_string_lossy());
    Unstartable { reason, exit_code: if found { NOT_STARTED } else { NOT_FOUND } }
}

fn look_for(program: &OsStr) -> Result<PathBuf, Errno> {
    if program.as_bytes().contains(&b'/') {
        return executable(Path::new(program)).map(|()| program.into());
    }
    let mut worst = Errno::ENOENT;
    for folder in search_path() {
        let file = folder.join(program);
        match executable(&file) {
            Ok(()) => return Ok(file),
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

/// The name of a program, without its folder.
pub(super) fn basename(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}

/// A word or a path of a command, as an action stores it.
pub(super) fn bytes(text: &OsStr) -> ByteString {
    ByteString::from(text.as_bytes())
}
