//! Reads an answer while it passes: where it ends, what clients may read of it, and what it used.

use std::collections::BTreeMap;

use memchr::memmem;
use onceward::Usage;
use serde_json::Value;

use super::dialect::{Dialect, error_in, in_words};
use super::elements::Elements;
use super::usage::{Tokens, has_usage, items, text_of_array, text_of_document, text_of_stream};
use crate::events::{Event, Events};

/// What some servers put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerEnd {
    /// It is complete.
    Complete,
    /// The provider reported an error in it.
    Failed(String),
    /// It broke off.
    Cut(String),
}

/// What is known after the next bytes of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Clients may not read them yet: the answer is a document, or its first event has not arrived as a whole.
    Closed,
    /// Clients may read them.
    Open,
    /// They end a JSON text. It is the answer if nothing follows.
    Whole,
    /// They end the answer, and the line feed of its last line may follow.
    Ended,
    /// They end the answer.
    Complete,
    /// The provider reports an error in them.
    Failed(String),
}

impl Progress {
    /// Whether the answer is complete by its protocol. Of a compressed one, the sum follows.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Ended | Self::Complete => true,
            Self::Closed | Self::Open | Self::Whole | Self::Failed(_) => false,
        }
    }
}

/// Reads an answer while it passes, and finds its end and what it used.
pub(crate) struct Scanner {
    dialect: Dialect,
    form: Form,
    /// The numbers that the provider reported.
    tokens: Tokens,
    end: Option<AnswerEnd>,
    /// The candidates of a stream without an end of its own, and whether a chunk said why it is a candidate's last.
    candidates: BTreeMap<u64, bool>,
    /// Whether an event or chunk has arrived as a whole.
    has_event: bool,
}

enum Form {
    /// Nothing has arrived that shows the form.
    Unknown(ContentType),
    Events(Events),
    /// An array of chunks, which Gemini streams if events are not requested.
    Array(Elements),
    Document(Elements),
}

/// What the headers say about the form of an answer. Some servers send events as plain text or as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentType {
    Events,
    Other,
}

impl Scanner {
    /// For an answer with this content type.
    pub(crate) fn new(dialect: Dialect, content_type: &str) -> Self {
        let is_stream = content_type.trim_start().to_ascii_lowercase().starts_with("text/event-stream");
        let form = Form::Unknown(if is_stream { ContentType::Events } else { ContentType::Other });
        let (tokens, candidates) = (Tokens::default(), BTreeMap::new());
        Self { dialect, form, tokens, end: None, candidates, has_event: false }
    }

    /// Reads the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Progress {
        let mut bytes = bytes;
        if let Form::Unknown(content_type) = self.form {
            let is_before = |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
            let Some(at) = bytes.iter().position(|byte| !is_before(byte)) else { return Progress::Closed };
            bytes = &bytes[at..];
            self.form = Form::of(bytes[0], content_type, self.dialect);
        }
        let mut form = std::mem::replace(&mut self.form, Form::Unknown(ContentType::Other));
        let progress = match &mut form {
            Form::Unknown(_) => Progress::Closed,
            Form::Document(elements) => {
                elements.push(bytes);
                if elements.is_whole() { Progress::Whole } else { Progress::Closed }
            }
            Form::Array(elements) => {
                elements.split(bytes, |chunk| self.event(chunk));
                match (elements.is_whole(), &self.end) {
                    (_, Some(AnswerEnd::Failed(why))) => Progress::Failed(why.clone()),
                    (true, _) if self.is_finished() => Progress::Whole,
                    (false, _) if self.has_event => Progress::Open,
                    (_, _) => Progress::Closed,
                }
            }
            Form::Events(events) => {
                events.push(bytes);
                while let Some(event) = events.next() {
                    self.named_event(&event);
                }
                match &self.end {
                    Some(AnswerEnd::Failed(why)) => Progress::Failed(why.clone()),
                    Some(AnswerEnd::Complete) if bytes.ends_with(b"\r") => Progress::Ended,
                    Some(AnswerEnd::Complete) => Progress::Complete,
                    Some(AnswerEnd::Cut(_)) | None if self.has_event => Progress::Open,
                    Some(AnswerEnd::Cut(_)) | None => Progress::Closed,
                }
            }
        };
        self.form = form;
        progress
    }

    /// How the answer ended, once its last byte was read.
    pub(crate) fn end(&mut self, whole: &[u8]) -> AnswerEnd {
        let is_whole = match &mut self.form {
            Form::Unknown(ContentType::Events) => false,
            Form::Unknown(ContentType::Other) | Form::Document(_) => return self.document(whole),
            Form::Array(elements) => elements.is_whole(),
            Form::Events(events) => {
                // Nothing but the end of its line is missing of such an end.
                events.push(b"\n\n");
                let last = events.next();
                if self.end.is_none() && last.is_some_and(|event| self.is_done(event.data())) {
                    return AnswerEnd::Complete;
                }
                true
            }
        };
        match self.end.clone() {
            Some(end) => end,
            None if is_whole && self.is_finished() => AnswerEnd::Complete,
            None => AnswerEnd::Cut("the stream ended before the answer did".to_owned()),
        }
    }

    /// Whether every candidate of a stream without an end of its own is at its end.
    fn is_finished(&self) -> bool {
        !self.candidates.is_empty() && self.candidates.values().all(|is_last| *is_last)
    }

    /// What was used so far. Numbers that the provider did not report are estimated from the answer and the length of
    /// the request.
    pub(crate) fn usage(&self, asked_model: &str, request_bytes: u64, answer: &[u8]) -> Usage {
        let text = || match self.form {
            Form::Events(_) => text_of_stream(answer),
            Form::Array(_) => text_of_array(answer),
            Form::Unknown(_) | Form::Document(_) => text_of_document(answer),
        };
        match self.dialect {
            Dialect::Free => self.tokens.free(asked_model),
            Dialect::Document => self.tokens.used(asked_model, request_bytes, || 0),
            Dialect::Chat | Dialect::Responses | Dialect::Messages | Dialect::Contents => {
                self.tokens.used(asked_model, request_bytes, text)
            }
        }
    }

    fn document(&mut self, all: &[u8]) -> AnswerEnd {
        let text = all.strip_prefix(BYTE_ORDER_MARK).unwrap_or(all);
        let value: Value = match serde_json::from_slice(text) {
            Ok(value) => value,
            Err(error) => return AnswerEnd::Cut(format!("it is not a complete JSON document: {error}")),
        };
        self.tokens.note(&value);
        match error_in(&value) {
            Some(why) => AnswerEnd::Failed(why),
            None if self.dialect.is_answer(&value) => AnswerEnd::Complete,
            None => AnswerEnd::Failed("the document is not an answer of this API".to_owned()),
        }
    }

    fn named_event(&mut self, event: &Event) {
        self.has_event = true;
        let Some(data) = event.data() else { return };
        // Some servers say only in the name of an event that it is an error.
        if self.end.is_none() && memmem::find(&event.raw, b"error").is_some() && event.is_named(b"error") {
            let value = serde_json::from_slice(data).unwrap_or_else(|_| String::from_utf8_lossy(data).into());
            self.tokens.note(&value);
            self.end = Some(AnswerEnd::Failed(error_in(&value).unwrap_or_else(|| in_words(&value))));
        }
        self.event(data);
    }

    /// Whether the data of an event are the end of a stream.
    fn is_done(&self, data: Option<&[u8]>) -> bool {
        self.dialect == Dialect::Chat && data.is_some_and(|data| data.trim_ascii() == b"[DONE]")
    }

    fn event(&mut self, data: &[u8]) {
        self.has_event = true;
        if self.end.is_some() {
            return;
        }
        if self.is_done(Some(data)) {
            self.end = Some(AnswerEnd::Complete);
            return;
        }
        if !self.may_matter(data) {
            return;
        }
        let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
        self.tokens.note(&value);
        if let Some(why) = error_in(&value) {
            self.end = Some(AnswerEnd::Failed(why));
            return;
        }
        match (self.dialect, value["type"].as_str().unwrap_or_default()) {
            (Dialect::Messages, "message_stop") => self.end = Some(AnswerEnd::Complete),
            (Dialect::Responses, "response.completed" | "response.incomplete") => {
                self.end = Some(AnswerEnd::Complete);
            }
            (Dialect::Contents, _) => self.note_candidates(&value),
            (Dialect::Document, "image_generation.partial_image") => drop(self.candidates.insert(0, false)),
            (Dialect::Document, "image_generation.completed") => drop(self.candidates.insert(0, true)),
            (
                Dialect::Chat | Dialect::Responses | Dialect::Messages | Dialect::Document | Dialect::Free,
                _,
            ) => {}
        }
    }

    /// Whether an event may have more than text in it. Most events of a stream do not, and are not parsed.
    fn may_matter(&self, data: &[u8]) -> bool {
        let has = |words: &[&str]| words.iter().any(|word| memmem::find(data, word.as_bytes()).is_some());
        match self.dialect {
            Dialect::Chat => !self.tokens.has_model() || has(&["error"]) || has_usage(data),
            Dialect::Responses => has(&["\"response\"", "error", "failed"]),
            Dialect::Messages => has(&["message", "usage", "error"]),
            Dialect::Contents | Dialect::Document | Dialect::Free => true,
        }
    }

    fn note_candidates(&mut self, value: &Value) {
        if value.pointer("/promptFeedback/blockReason").is_some_and(Value::is_string) {
            self.candidates.insert(0, true);
        }
        for candidate in items(&value["candidates"]) {
            let is_last = self.candidates.entry(candidate["index"].as_u64().unwrap_or(0)).or_default();
            *is_last |= candidate["finishReason"].is_string();
        }
    }
}

impl Form {
    /// The form of an answer that begins with this byte. No JSON document begins like a line of an event.
    fn of(first: u8, content_type: ContentType, dialect: Dialect) -> Self {
        match (first, content_type) {
            (b'[', _) if dialect == Dialect::Contents => Self::Array(Elements::default()),
            (b'{' | b'[', _) => Self::Document(Elements::default()),
            // `data`, `event`, `id`, `retry`, a comment.
            (b'd' | b'e' | b'i' | b'r' | b':', _) | (_, ContentType::Events) => {
                Self::Events(Events::default())
            }
            (_, ContentType::Other) => Self::Document(Elements::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(dialect: Dialect, text: &str) -> (AnswerEnd, Usage) {
        let mut ends = Vec::new();
        for size in [1, 7, text.len()] {
            let mut scanner = Scanner::new(dialect, "text/event-stream; charset=utf-8");
            for piece in text.as_bytes().chunks(size) {
                scanner.push(piece);
            }
            ends.push((scanner.end(text.as_bytes()), scanner.usage("asked", 400, text.as_bytes())));
        }
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{ends:?}");
        ends.remove(0)
    }

    fn is_cut(end: &AnswerEnd) -> bool {
        matches!(end, AnswerEnd::Cut(_))
    }

    #[test]
    fn a_stream_is_complete_only_at_its_protocols_own_end() {
        let chat = "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"abcdefgh\"}}]}\n\n";
        assert!(is_cut(&stream(Dialect::Chat, chat).0));
        let (end, usage) = stream(Dialect::Chat, &format!("{chat}data: [DONE]\n\n"));
        assert_eq!((end, usage.output, usage.input, usage.estimated), (AnswerEnd::Complete, 2, 100, true));
        // Some servers leave out the empty line after it, or the end of its own line.
        for end in ["data: [DONE]\n", "data: [DONE]", "data: [DONE]\r\n\r\n"] {
            assert_eq!(stream(Dialect::Chat, &format!("{chat}{end}")).0, AnswerEnd::Complete, "{end:?}");
        }
        for cut in ["data: [DONE", "data: [DONE]]\n", "id: [DONE]\n\n"] {
            assert!(is_cut(&stream(Dialect::Chat, &format!("{chat}{cut}")).0), "{cut:?}");
        }
        assert!(
            is_cut(&stream(Dialect::Messages, "data: {\"type\":\"message_stop\"}\n").0),
            "clients miss it"
        );

        let messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"c\",\"usage\":\
                        {\"input_tokens\":5,\"cache_read_input_tokens\":3,\"output_tokens\":1}}}\n\n\
                        event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":9}}\n\n";
        let (end, usage) = stream(Dialect::Messages, messages);
        assert!(is_cut(&end), "{end:?}");
        assert_eq!((usage.input, usage.cached, usage.output, usage.estimated), (5, 3, 9, false));
        let stopped = format!("{messages}event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n");
        assert_eq!(stream(Dialect::Messages, &stopped).0, AnswerEnd::Complete);

        let created =
            "data: {\"type\":\"response.created\",\"response\":{\"model\":\"r\",\"error\":null}}\n\n";
        assert!(is_cut(&stream(Dialect::Responses, created).0));
        let done = format!(
            "{created}data: {{\"type\":\"response.completed\",\"response\":{{\"usage\":{{\"input_tokens\":10,\
             \"input_tokens_details\":{{\"cached_tokens\":4}},\"output_tokens\":2}}}}}}\n\n"
        );
        let (end, usage) = stream(Dialect::Responses, &done);
        assert_eq!((end, usage.input, usage.cached, usage.output), (AnswerEnd::Complete, 6, 4, 2));
        let incomplete = "data: {\"type\":\"response.incomplete\",\"response\":{}}\n\n";
        assert_eq!(stream(Dialect::Responses, incomplete).0, AnswerEnd::Complete);

        let part = "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"abcd\"}]}}]}\n\n";
        assert!(is_cut(&stream(Dialect::Contents, part).0));
        let last = format!(
            "{part}data: {{\"candidates\":[{{\"finishReason\":\"STOP\"}}],\"usageMetadata\":{{\"promptTokenCount\":7,\
             \"candidatesTokenCount\":1,\"thoughtsTokenCount\":2}}}}\r\n\r\n"
        );
        let (end, usage) = stream(Dialect::Contents, &last);
        assert_eq!((end, usage.input, usage.output), (AnswerEnd::Complete, 7, 3));
    }

    #[test]
    fn an_error_in_the_answer_is_not_the_answer() {
        for (dialect, text) in [
            (Dialect::Chat, "data: {\"error\":{\"message\":\"overloaded\"}}\n\n"),
            (
                Dialect::Messages,
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded\"}}\n\n",
            ),
            (
                Dialect::Responses,
                "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"x\"}}}\n\n",
            ),
            (Dialect::Contents, "data: {\"error\":{\"code\":500}}\n\n"),
            (Dialect::Chat, "event: error\ndata: {\"message\":\"overloaded\"}\n\n"),
            (Dialect::Chat, "data: overloaded\r\nevent:error\r\n\r\n"),
            (Dialect::Chat, "data: {\"object\":\"error\",\"message\":\"overloaded\"}\n\n"),
        ] {
            let (end, _) = stream(dialect, &format!("{text}data: [DONE]\n\n"));
            assert!(matches!(end, AnswerEnd::Failed(_)), "{dialect:?}: {end:?}");
        }
    }

    #[test]
    fn a_document_is_complete_if_it_is_whole_json() {
        let of = |text: &str| {
            let mut scanner = Scanner::new(Dialect::Chat, "application/json");
            assert!(matches!(scanner.push(text.as_bytes()), Progress::Whole | Progress::Closed));
            (scanner.end(text.as_bytes()), scanner.usage("asked", 0, text.as_bytes()))
        };
        let whole = "{\"model\":\"m\",\"choices\":[],\"error\":null,\
                     \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}";
        let (end, usage) = of(whole);
        assert_eq!((end, usage.input, usage.output, usage.model.as_str()), (AnswerEnd::Complete, 3, 4, "m"));
        for length in 0..whole.len() {
            assert!(is_cut(&of(&whole[..length]).0), "{length}");
        }
        assert!(matches!(of("{\"object\":\"response\",\"status\":\"failed\"}").0, AnswerEnd::Failed(_)));
    }

    #[test]
    fn a_document_of_another_kind_is_not_the_answer() {
        let answers: [(Dialect, &[&str]); 6] = [
            (Dialect::Chat, &["{\"choices\":[]}", "{\"content\":\"a\",\"stop\":true}"]),
            (Dialect::Responses, &["{\"object\":\"response\",\"output\":[]}", "{\"status\":\"queued\"}"]),
            (Dialect::Messages, &["{\"type\":\"message\",\"content\":[]}"]),
            (
                Dialect::Contents,
                &["{\"candidates\":[]}", "{\"promptFeedback\":{\"blockReason\":\"SAFETY\"}}"],
            ),
            (Dialect::Document, &["{\"data\":[]}", "{\"embedding\":{}}", "{\"embeddings\":[]}", "[[0.5]]"]),
            (Dialect::Free, &["{\"results\":[]}", "{\"input_tokens\":0}", "{\"totalTokens\":1}"]),
        ];
        let others = [
            "null",
            "{}",
            "\"busy\"",
            "{\"detail\":\"Not Found\"}",
            "{\"object\":\"error\",\"message\":\"x\",\"choices\":[]}",
            "{\"object\":\"response\",\"status\":\"cancelled\",\"output\":[]}",
        ];
        let of = |dialect, text: &str| {
            let mut scanner = Scanner::new(dialect, "application/json");
            scanner.push(text.as_bytes());
            scanner.end(text.as_bytes())
        };
        for (dialect, texts) in answers {
            for text in texts {
                assert_eq!(of(dialect, text), AnswerEnd::Complete, "{dialect:?}: {text}");
            }
            for text in others {
                assert!(matches!(of(dialect, text), AnswerEnd::Failed(_)), "{dialect:?}: {text}");
            }
        }
    }

    #[test]
    fn an_array_of_chunks_is_a_stream() {
        let chunk = |text: &str, end: &str| {
            format!("{{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"{text}\"}}]}}{end}}}]}}")
        };
        let (first, last) = (chunk("abcd", ""), chunk("efgh", ",\"finishReason\":\"STOP\""));
        let whole = format!("[{first},\n{last}]\n");
        let (end, usage) = stream(Dialect::Contents, &whole);
        assert_eq!((end, usage.output), (AnswerEnd::Complete, 2));
        for cut in [format!("[{first}]"), format!("[{first},\n{last}"), "[]".to_owned(), "[".to_owned()] {
            assert!(is_cut(&stream(Dialect::Contents, &cut).0), "{cut}");
        }
        assert_eq!(stream(Dialect::Contents, &format!("[{first}, {{\"cand")).1.output, 1, "it broke off");
        let error = "[{\"error\":{\"message\":\"quota\"}}]";
        assert!(matches!(stream(Dialect::Contents, error).0, AnswerEnd::Failed(_)));
        let mut scanner = Scanner::new(Dialect::Contents, "application/json");
        let (before, after) = whole.split_at(first.len() + 1);
        assert_eq!(scanner.push(&before.as_bytes()[..9]), Progress::Closed);
        assert_eq!(scanner.push(&before.as_bytes()[9..]), Progress::Open, "clients read it while it grows");
        assert_eq!(scanner.push(after.as_bytes()), Progress::Whole);
    }

    #[test]
    fn clients_read_an_event_only_when_it_is_known_not_to_be_an_error() {
        let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"Overloaded\"}}\n\n";
        for at in 1..error.len() - 1 {
            let mut scanner = Scanner::new(Dialect::Messages, "text/event-stream");
            assert_eq!(scanner.push(&error.as_bytes()[..at]), Progress::Closed, "{at}");
            let rest = scanner.push(&error.as_bytes()[at..]);
            assert!(matches!(&rest, Progress::Failed(why) if why.contains("Overloaded")), "{at}: {rest:?}");
        }
        let mut scanner = Scanner::new(Dialect::Messages, "text/event-stream");
        assert_eq!(scanner.push(b": ping\n\n"), Progress::Open, "a comment keeps connections alive");
    }

    #[test]
    fn the_last_line_feed_of_a_stream_belongs_to_it() {
        let mut scanner = Scanner::new(Dialect::Chat, "text/event-stream");
        assert_eq!(scanner.push(b"data: [DONE]\r\n\r"), Progress::Ended);
        assert_eq!(scanner.push(b"\n"), Progress::Complete);
    }

    #[test]
    fn the_form_of_an_answer_is_seen_in_its_first_bytes() {
        let events = "data: {\"model\":\"m\"}\n\ndata: [DONE]\n\n";
        let document = " \n{\"model\":\"m\",\"choices\":[]}";
        let marked = "\u{feff}{\"model\":\"m\",\"choices\":[]}";
        for content_type in ["text/event-stream", "text/plain; charset=utf-8", "application/json", ""] {
            for (text, is_stream) in
                [(events, true), (": hello\n\ndata: [DONE]\n\n", true), (document, false), (marked, false)]
            {
                let mut scanner = Scanner::new(Dialect::Chat, content_type);
                for byte in text.as_bytes().chunks(1) {
                    scanner.push(byte);
                }
                let found = (matches!(scanner.form, Form::Events(_)), scanner.end(text.as_bytes()));
                assert_eq!(found, (is_stream, AnswerEnd::Complete), "{content_type}: {text}");
            }
        }
        for (content_type, text) in [("text/event-stream", ""), ("", ""), ("text/html", "<html>busy</html>")]
        {
            let mut scanner = Scanner::new(Dialect::Chat, content_type);
            scanner.push(text.as_bytes());
            assert!(is_cut(&scanner.end(text.as_bytes())), "{content_type}: {text}");
        }
    }

    #[test]
    fn every_choice_and_candidate_counts() {
        let two = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"abcd\"}},\
                   {\"index\":1,\"delta\":{\"content\":\"efgh\"}}]}\n\ndata: [DONE]\n\n";
        assert_eq!(stream(Dialect::Chat, two).1.output, 2);
        let one = "data: {\"candidates\":[{\"index\":0,\"finishReason\":\"STOP\"},{\"index\":1}]}\n\n";
        assert!(is_cut(&stream(Dialect::Contents, one).0), "the second candidate is not at its end");
        let both = format!("{one}data: {{\"candidates\":[{{\"index\":1,\"finishReason\":\"STOP\"}}]}}\n\n");
        assert_eq!(stream(Dialect::Contents, &both).0, AnswerEnd::Complete);
    }

    #[test]
    fn events_with_text_alone_are_not_parsed_and_lose_nothing() {
        let delta = |text: &str, usage: &str| {
            format!(
                "data: {{\"model\":\"m\",\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]{usage}}}\n\n"
            )
        };
        let done = "data: [DONE]\n\n";
        let numbers = ",\"usage\": {\"prompt_tokens\":3,\"completion_tokens\":9}";
        for (events, input, output) in [
            (vec![delta("abcd", ",\"usage\":null"), delta("", numbers)], 3, 9),
            (vec![delta("abcd", ""), delta("the usage of usage", numbers)], 3, 9),
            (vec![delta("abcd", ",\"usage\" : null"), delta("efgh", "")], 100, 2),
        ] {
            let (end, usage) = stream(Dialect::Chat, &format!("{}{done}", events.concat()));
            assert_eq!((end, usage.input, usage.output), (AnswerEnd::Complete, input, output), "{events:?}");
        }
        let late = format!("{}data: {{\"error\": {{\"message\":\"x\"}}}}\n\n{done}", delta("abcd", ""));
        assert!(matches!(stream(Dialect::Chat, &late).0, AnswerEnd::Failed(_)));
    }

    #[test]
    fn a_stream_of_images_ends_after_the_completed_image() {
        let part = "data: {\"type\":\"image_generation.partial_image\",\"b64_json\":\"x\"}\n\n";
        assert!(is_cut(&stream(Dialect::Document, part).0));
        let whole = format!(
            "{part}data: {{\"type\":\"image_generation.completed\",\"usage\":{{\"input_tokens\":5,\
             \"output_tokens\":7}}}}\n\n"
        );
        let (end, usage) = stream(Dialect::Document, &whole);
        assert_eq!((end, usage.input, usage.output, usage.estimated), (AnswerEnd::Complete, 5, 7, false));
    }

    #[test]
    fn a_count_of_tokens_uses_none() {
        let of = |dialect, text: &str| {
            let mut scanner = Scanner::new(dialect, "application/json");
            scanner.push(text.as_bytes());
            assert_eq!(scanner.end(text.as_bytes()), AnswerEnd::Complete);
            scanner.usage("asked", 400, text.as_bytes())
        };
        let free = of(Dialect::Free, "{\"input_tokens\":14}");
        assert_eq!((free.input, free.output, free.estimated, free.model.as_str()), (0, 0, false, "asked"));
        let embedding =
            of(Dialect::Document, "{\"data\":[],\"usage\":{\"prompt_tokens\":8,\"total_tokens\":8}}");
        assert_eq!((embedding.input, embedding.output, embedding.estimated), (8, 0, false));
        assert!(of(Dialect::Document, "{\"data\":[]}").estimated, "nothing is known");
    }
}
