//! Records the output of a command in order, up to a limit.
//!
//! Kept as frames: a byte for the stream (1 or 2), four for the length, then the bytes. Small output stays in memory;
//! larger output is spooled to a file that has no name.

use std::io::{Read, Seek, Write};
use std::sync::Arc;

use onceward::{Edit, Effect, MAX_RESULT, Redaction};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// How much is kept in memory before the rest is spooled.
const IN_MEMORY: usize = 256 * 1024;
const HEADER: usize = 5;
/// Maximum size of all frames. The ledger also stores the summary and the ending with them, and refuses anything
/// above its own limit.
const MAX_FRAMES: u64 = MAX_RESULT as u64 - 64 * 1024;

/// The stream that bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// Output that is being recorded.
pub(crate) struct Recording {
    memory: Vec<u8>,
    spool: Option<std::fs::File>,
    limit: u64,
    kept: u64,
    framed: u64,
    summary: Summary,
}

/// A summary of the output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The command's exit code; `None` if it was killed.
    pub(crate) exit_code: Option<i32>,
    /// How much it wrote to stdout.
    pub(crate) stdout_bytes: u64,
    /// How much it wrote to stderr.
    pub(crate) stderr_bytes: u64,
    /// Whether the stored output is incomplete.
    pub(crate) cut: bool,
    /// How much of the standard input that was read for it the command did not read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) stdin_unread: u64,
    /// The command says that the same call would fail in the same way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) hopeless: bool,
    /// The command could not be started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) not_started: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Recording {
    pub(crate) fn new(limit: u64) -> Self {
        Self { memory: Vec::new(), spool: None, limit, kept: 0, framed: 0, summary: Summary::default() }
    }

    /// Stores bytes up to the limit.
    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let (tag, total) = match stream {
            Stream::Out => (1, &mut self.summary.stdout_bytes),
            Stream::Err => (2, &mut self.summary.stderr_bytes),
        };
        *total += bytes.len() as u64;
        let unframed = MAX_FRAMES.saturating_sub(self.framed + HEADER as u64);
        let room = self.limit.saturating_sub(self.kept).min(unframed);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let kept = &bytes[..bytes.len().min(room)];
        self.summary.cut |= kept.len() < bytes.len();
        if kept.is_empty() {
            return;
        }
        self.kept += kept.len() as u64;
        self.framed += (HEADER + kept.len()) as u64;
        let mut frame = Vec::with_capacity(HEADER + kept.len());
        push_frame(&mut frame, tag, kept);
        self.write(&frame);
    }

    fn write(&mut self, frame: &[u8]) {
        if self.spool.is_none() && self.memory.len() + frame.len() > IN_MEMORY {
            self.spool = tempfile::tempfile().ok();
        }
        match &mut self.spool {
            None => self.memory.extend_from_slice(frame),
            Some(file) => {
                // A full disk truncates the copy but does not stop the command: the caller already has the output.
                if file.write_all(frame).is_err() {
                    self.summary.cut = true;
                    self.limit = 0;
                }
            }
        }
    }

    /// Records that the command sees no sense in a retry.
    pub(crate) fn is_hopeless(&mut self) {
        self.summary.hopeless = true;
    }

    /// Records that the command did not read all of its standard input.
    pub(crate) fn unread_stdin(&mut self, bytes: u64) {
        self.summary.stdin_unread = bytes;
    }

    /// The effect that the command's own JSON answer reports.
    pub(crate) fn reported_effect(&self) -> Option<Effect> {
        #[derive(Deserialize)]
        struct Reported {
            effect: Option<Effect>,
            data: Option<Inner>,
        }
        #[derive(Deserialize)]
        struct Inner {
            effect: Option<Effect>,
        }
        let reported: Reported = serde_json::from_slice(&self.whole_stdout()?).ok()?;
        let effect = reported.effect.or_else(|| reported.data?.effect)?;
        Effect::REAL.contains(&effect).then_some(effect)
    }

    /// All of stdout, unless less is kept than the command wrote.
    pub(crate) fn whole_stdout(&self) -> Option<Vec<u8>> {
        if self.summary.cut {
            return None;
        }
        let mut frames = self.memory.clone();
        if let Some(mut file) = self.spool.as_ref() {
            file.rewind().and_then(|()| file.read_to_end(&mut frames)).ok()?;
        }
        Some(collect(&frames, Stream::Out))
    }

    /// The summary as JSON, and the frames.
    pub(crate) fn into_parts(
        mut self,
        exit_code: Option<i32>,
        redact: &Redaction,
    ) -> (Option<Arc<RawValue>>, Option<Arc<[u8]>>) {
        if let Some(mut file) = self.spool.take() {
            let read = file.rewind().and_then(|()| file.read_to_end(&mut self.memory));
            self.summary.cut |= read.is_err();
        }
        self.summary.exit_code = exit_code;
        if !redact.is_empty() {
            self.memory = redacted(&self.memory, redact);
        }
        let data = serde_json::value::to_raw_value(&self.summary).ok().map(Arc::from);
        (data, (!self.memory.is_empty()).then(|| self.memory.into()))
    }
}

/// Redacts the frames. Each stream is searched as a whole, because a secret may be split over two frames; the
/// replacement is put where the secret began.
fn redacted(body: &[u8], redact: &Redaction) -> Vec<u8> {
    let [out, err] = [Stream::Out, Stream::Err].map(|stream| redact.edits(&collect(body, stream)));
    let (mut out, mut err) = ((0, out.as_slice()), (0, err.as_slice()));
    let mut kept = Vec::with_capacity(body.len());
    for (stream, bytes) in frames(body) {
        let (tag, (at, edits)) = match stream {
            Stream::Out => (1, &mut out),
            Stream::Err => (2, &mut err),
        };
        push_frame(&mut kept, tag, &edited(bytes, *at, edits));
        *at += bytes.len();
    }
    kept
}

/// A piece of a stream that begins at `at`, edited. Edits that end within it are used up.
fn edited(piece: &[u8], at: usize, edits: &mut &[Edit]) -> Vec<u8> {
    let end = at + piece.len();
    let mut kept = Vec::with_capacity(piece.len());
    let mut from = at;
    while let Some(edit) = edits.first().filter(|edit| edit.range.start < end) {
        if edit.range.start >= at {
            kept.extend_from_slice(&piece[from - at..edit.range.start - at]);
            kept.extend_from_slice(edit.by.as_bytes());
        }
        from = edit.range.end.min(end);
        if edit.range.end > end {
            break;
        }
        *edits = &edits[1..];
    }
    kept.extend_from_slice(&piece[from - at..]);
    kept
}

fn push_frame(frames: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    if let Some(length) = u32::try_from(bytes.len()).ok().filter(|length| *length > 0) {
        frames.push(tag);
        frames.extend_from_slice(&length.to_le_bytes());
        frames.extend_from_slice(bytes);
    }
}

/// The summary of a command that never ran.
pub(crate) fn exit_data(exit_code: i32) -> Option<Arc<RawValue>> {
    let summary = Summary { exit_code: Some(exit_code), not_started: true, ..Summary::default() };
    serde_json::value::to_raw_value(&summary).ok().map(Arc::from)
}

/// The frames of a body, in order. Stops at the first incomplete one.
pub(crate) fn frames(mut body: &[u8]) -> impl Iterator<Item = (Stream, &[u8])> {
    std::iter::from_fn(move || {
        let (header, rest) = body.split_at_checked(HEADER)?;
        let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
        let (bytes, rest) = rest.split_at_checked(length)?;
        body = rest;
        Some((if header[0] == 1 { Stream::Out } else { Stream::Err }, bytes))
    })
}

/// All bytes of one stream.
pub(crate) fn collect(body: &[u8], stream: Stream) -> Vec<u8> {
    frames(body).filter(|(of, _)| *of == stream).flat_map(|(_, bytes)| bytes.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_bytes_survive_also_through_the_spool() {
        for chunk in [3, 100_000] {
            let mut recording = Recording::new(u64::MAX);
            for n in 0..10_u8 {
                let stream = if n % 2 == 0 { Stream::Out } else { Stream::Err };
                recording.push(stream, &vec![n; chunk]);
            }
            let (data, body) = recording.into_parts(Some(0), &Redaction::default());
            let body = body.unwrap();
            let seen: Vec<_> = frames(&body).map(|(stream, bytes)| (stream, bytes[0], bytes.len())).collect();
            let expect: Vec<_> =
                (0..10_u8).map(|n| (if n % 2 == 0 { Stream::Out } else { Stream::Err }, n, chunk)).collect();
            assert_eq!(seen, expect);
            assert!(data.unwrap().get().contains("\"cut\":false"));
        }
    }

    #[test]
    fn what_is_over_the_limit_is_cut_and_said() {
        let mut recording = Recording::new(5);
        recording.push(Stream::Out, b"abc");
        recording.push(Stream::Err, b"defg");
        recording.push(Stream::Out, b"h");
        let (data, body) = recording.into_parts(Some(0), &Redaction::default());
        let body = body.unwrap();
        assert_eq!(
            frames(&body).collect::<Vec<_>>(),
            [(Stream::Out, &b"abc"[..]), (Stream::Err, &b"de"[..])]
        );
        assert_eq!(data.unwrap().get(), r#"{"exit_code":0,"stdout_bytes":4,"stderr_bytes":4,"cut":true}"#);
    }

    #[test]
    fn a_secret_that_came_in_parts_is_not_kept() {
        let mut recording = Recording::new(1_000);
        for (stream, bytes) in [
            (Stream::Out, "a sk_"),
            (Stream::Err, "sk_1 b"),
            (Stream::Out, "1"),
            (Stream::Out, "23 c sk_4"),
            (Stream::Out, " d"),
        ] {
            recording.push(stream, bytes.as_bytes());
        }
        let (_, body) = recording.into_parts(Some(0), &Redaction::parse(&["re:sk_[0-9]+"]).unwrap());
        let body = body.unwrap();
        let text = |stream| String::from_utf8(collect(&body, stream)).unwrap();
        assert_eq!(text(Stream::Out), "a [redacted] c [redacted] d");
        assert_eq!(text(Stream::Err), "[redacted] b");
    }

    #[test]
    fn the_effect_is_read_from_a_json_answer() {
        let effect = |text: &str| {
            let mut recording = Recording::new(1_000);
            recording.push(Stream::Out, text.as_bytes());
            recording.reported_effect()
        };
        assert_eq!(effect(r#"{"ok":true,"effect":"created"}"#), Some(Effect::Created));
        assert_eq!(effect(r#"{"data":{"effect":"deleted"}}"#), Some(Effect::Deleted));
        assert_eq!(effect(r#"{"effect":"would_create"}"#), None);
        assert_eq!(effect("plain text"), None);
    }
}
