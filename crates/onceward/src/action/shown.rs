//! What a person sees who decides about an action: all of it, on one line each, with nothing hidden.

use std::borrow::Cow;
use std::fmt;

use serde_json::value::RawValue;

use super::command::CommandAction;
use super::content::{ByteString, Content, FileState, short_hash};
use super::{Action, FunctionAction, RequestAction, ToolAction, Unreadable};
use crate::text::{self, is_hidden};

/// How much of an input is shown.
const BEGINNING: usize = 60;

/// An action as a person sees it. Every text in it is safe to print and on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownAction {
    /// What would run.
    pub what: String,
    /// Where, and with what.
    pub with: Vec<String>,
}

impl fmt::Display for ShownAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.with.is_empty() { Ok(()) } else { write!(f, "  ({})", self.with.join("; ")) }
    }
}

impl ShownAction {
    pub(super) fn unreadable(unreadable: &Unreadable) -> Self {
        let what = match unreadable {
            Unreadable::Sealed { key } => format!("(sealed with the key {key})"),
            Unreadable::Broken(why) => format!("(cannot be read: {})", text::one_line(why)),
        };
        Self { what, with: Vec::new() }
    }
}

impl Action {
    /// The action as a person sees it.
    #[must_use]
    pub fn shown(&self) -> ShownAction {
        match self {
            Self::Command(command) => command.shown(),
            Self::ToolCall(call) => call.shown(),
            Self::Request(request) => request.shown(),
            Self::Function(call) => call.shown(),
        }
    }
}

impl CommandAction {
    /// The command line, in a form that a shell reads back.
    #[must_use]
    pub fn line(&self) -> String {
        self.argv.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    fn shown(&self) -> ShownAction {
        let mut with = vec![format!("in {}", self.folder)];
        with.extend(self.stdin.as_ref().filter(|stdin| stdin.size > 0).map(|stdin| part("input", stdin)));
        with.extend(self.env.iter().map(|(name, value)| {
            format!("with {}={}", text::one_line(name), ByteString::from(value.as_str()))
        }));
        with.extend(self.input.as_ref().map(|input| format!("with the declared input {}", compact(input))));
        with.extend(self.files.iter().map(|file| format!("with the file {}", state(file))));
        with.extend(self.programs.iter().map(|file| format!("program {}", state(file))));
        ShownAction { what: self.line(), with }
    }
}

impl ToolAction {
    fn shown(&self) -> ShownAction {
        let what = format!("{} {}", text::one_line(&self.tool), compact(&self.arguments));
        let with = std::iter::once(format!("at {}", text::one_line(&text::masked_in(&self.server))));
        let members = self.members.iter();
        let members =
            members.map(|(name, value)| format!("with {} {}", text::one_line(name), compact(value)));
        ShownAction { what, with: with.chain(members).collect() }
    }
}

impl RequestAction {
    fn shown(&self) -> ShownAction {
        let query = self.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        let line = format!("{} {}{query}", self.method, self.path);
        let mut what = text::one_line(&line).into_owned();
        let mut with = Vec::new();
        if let Some(body) = &self.body {
            // What a person decides about is in the body: the whole of it is shown, not its beginning.
            let text = std::str::from_utf8(body.bytes.as_bytes()).ok();
            let document = text.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
            let bytes = body.bytes.as_bytes();
            let shown = document.map_or_else(|| literal(bytes), |json| compact(json).into_owned());
            what = format!("{what} {shown}");
            let kind = text::one_line(&self.content_type);
            let size = body.size;
            with.push(format!("{size} bytes of {kind}, {}", short_hash(&body.sha256)));
            if (bytes.len() as u64) < size {
                with.push(format!("only the first {} bytes are shown", bytes.len()));
            }
        }
        ShownAction { what, with }
    }
}

impl FunctionAction {
    fn shown(&self) -> ShownAction {
        let args = self.arguments.args.iter().map(|value| compact(value).into_owned());
        let named = self.arguments.kwargs.iter();
        let named = named.map(|(name, value)| format!("{}={}", text::one_line(name), compact(value)));
        let all: Vec<String> = args.chain(named).collect();
        let what = format!("{}({})", text::one_line(&self.function), all.join(", "));
        ShownAction { what, with: Vec::new() }
    }
}

/// A word as a shell reads it. Hidden characters, and bytes that are not text, are escaped in `$'…'`, so that a line
/// break and a backslash before an `n` do not look alike.
impl fmt::Display for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.as_bytes()) {
            Ok(plain) if !plain.contains(is_hidden) => f.write_str(&text::shell_word(plain)),
            Ok(_) | Err(_) => write!(f, "$'{}'", escaped(self.as_bytes(), '\'')),
        }
    }
}

/// The beginning of an input, with its size and its hash.
fn part(what: &str, content: &Content) -> String {
    let bytes = content.bytes.as_bytes();
    let end = bytes.len().min(BEGINNING);
    // Not within a character.
    let end = (0..=end).rev().find(|at| bytes.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80)).unwrap_or(end);
    let more = if (end as u64) < content.size { "…" } else { "" };
    let hash = short_hash(&content.sha256);
    format!("with {} bytes of {what}: {}{more} {hash}", content.size, literal(&bytes[..end]))
}

/// All bytes in quotes, with escapes.
fn literal(bytes: &[u8]) -> String {
    format!("\"{}\"", escaped(bytes, '"'))
}

fn escaped(bytes: &[u8], quote: char) -> String {
    let mut out = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if c == quote => out.extend(['\\', c]),
                '\n' | '\t' | '\r' => out.extend(c.escape_default()),
                c if is_hidden(c) && c.is_ascii() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
                c if is_hidden(c) && u32::from(c) > 0xffff => {
                    out.push_str(&format!("\\U{:08x}", u32::from(c)));
                }
                c if is_hidden(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// JSON on one line: as it was written, without the white space between its parts, and with hidden characters escaped.
fn compact(json: &RawValue) -> Cow<'_, str> {
    let is_compact = |text: &str| !text.contains(|c: char| c.is_ascii_whitespace());
    if is_compact(json.get()) {
        return text::json(json.get());
    }
    let (mut quoted, mut after_backslash) = (false, false);
    let kept = json.get().chars().filter(|c| {
        let is_kept = quoted || !c.is_ascii_whitespace();
        match c {
            '"' if !after_backslash => quoted = !quoted,
            _ => {}
        }
        after_backslash = quoted && *c == '\\' && !after_backslash;
        is_kept
    });
    let text: String = kept.collect();
    Cow::Owned(text::json(&text).into_owned())
}

fn state(file: &FileState) -> String {
    format!("{}: {} bytes, {}", file.path, file.size, short_hash(&file.sha256))
}
