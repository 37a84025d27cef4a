//! The output of a command, in the order in which it came, up to a limit.
//!
//! Kept as frames: a byte for the stream (1 or 2), four for the length, then the bytes. Small output stays in memory;
//! larger output is spooled to a file that has no name.

use std::io::{Read, Seek, Write};
use std::sync::Arc;

use onceward::Effect;
use onceward::operation::MAX_RESULT;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What is kept in memory before the rest is spooled.
const IN_MEMORY: usize = 256 * 1024;
const HEADER: usize = 5;
/// The most that frames may take together: beside them the ledger keeps the summary and what else it says of an end,
/// and what is larger than its limit it does not keep at all.
const MAX_FRAMES: u64 = MAX_RESULT as u64 - 64 * 1024;

/// Where bytes came from and go to.
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

/// What is told about an output without showing it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The command's own exit code; none where it was killed.
    pub(crate) exit_code: Option<i32>,
    /// How much it wrote.
    pub(crate) stdout_bytes: u64,
    /// How much it wrote beside that.
    pub(crate) stderr_bytes: u64,
    /// Whether not all of it was kept.
    pub(crate) cut: bool,
    /// How much of the standard input that was read for it the command did not read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) stdin_unread: u64,
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

    /// Keeps bytes, as far as the limit allows.
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
        let length = u32::try_from(kept.len()).unwrap_or(u32::MAX);
        let mut frame = Vec::with_capacity(HEADER + kept.len());
        frame.push(tag);
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(kept);
        self.write(&frame);
    }

    fn write(&mut self, frame: &[u8]) {
        if self.spool.is_none() && self.memory.len() + frame.len() > IN_MEMORY {
            self.spool = tempfile::tempfile().ok();
        }
        match &mut self.spool {
            None => self.memory.extend_from_slice(frame),
            Some(file) => {
                // A full disk cuts the copy, never the command: its output went to the caller already.
                if file.write_all(frame).is_err() {
                    self.summary.cut = true;
                    self.limit = 0;
                }
            }
        }
    }

    /// Notes that the command did not read all of its standard input.
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

    /// All of stdout, where it is kept in memory.
    pub(crate) fn whole_stdout(&self) -> Option<Vec<u8>> {
        (!self.summary.cut && self.spool.is_none()).then(|| collect(&self.memory, Stream::Out))
    }

    /// The summary as JSON, and the frames.
    pub(crate) fn into_parts(mut self, exit_code: Option<i32>) -> (Option<Arc<RawValue>>, Option<Arc<[u8]>>) {
        if let Some(mut file) = self.spool.take() {
            let read = file.rewind().and_then(|()| file.read_to_end(&mut self.memory));
            self.summary.cut |= read.is_err();
        }
        self.summary.exit_code = exit_code;
        let data = serde_json::value::to_raw_value(&self.summary).ok().map(Arc::from);
        (data, (!self.memory.is_empty()).then(|| self.memory.into()))
    }
}

/// The summary of a command that never ran.
pub(crate) fn exit_data(exit_code: i32) -> Option<Arc<RawValue>> {
    let summary = Summary { exit_code: Some(exit_code), not_started: true, ..Summary::default() };
    serde_json::value::to_raw_value(&summary).ok().map(Arc::from)
}

/// The frames of a body, in order. Stops at the first one that is not whole.
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
            let (data, body) = recording.into_parts(Some(0));
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
        let (data, body) = recording.into_parts(Some(0));
        let body = body.unwrap();
        assert_eq!(
            frames(&body).collect::<Vec<_>>(),
            [(Stream::Out, &b"abc"[..]), (Stream::Err, &b"de"[..])]
        );
        assert_eq!(data.unwrap().get(), r#"{"exit_code":0,"stdout_bytes":4,"stderr_bytes":4,"cut":true}"#);
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
