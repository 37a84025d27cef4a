//! What an answer used: the numbers that the provider reports, or an estimate.

use memchr::memmem;
use onceward::Usage;
use serde_json::Value;

use super::elements::Elements;
use crate::events::Events;

/// An answer is read again for an estimate in pieces of this size, so that a long one is not copied as a whole.
const PIECE: usize = 64 * 1024;

/// The numbers that the provider has reported so far.
#[derive(Default)]
pub(crate) struct Tokens {
    model: Option<String>,
    input: Option<u64>,
    /// Tokens that were read from the provider's cache, among the input.
    cached: u64,
    /// Tokens that were read from a cache and written to it, which Anthropic counts beside the input.
    beside: [u64; 2],
    output: Option<u64>,
}

impl Tokens {
    pub(crate) fn has_model(&self) -> bool {
        self.model.is_some()
    }

    /// Takes the numbers in a chunk or document, at the place that its dialect has for them.
    pub(crate) fn note(&mut self, value: &Value) {
        let inner = [value, &value["response"], &value["message"]];
        let model =
            inner.iter().find_map(|value| value["model"].as_str().or_else(|| value["modelVersion"].as_str()));
        if self.model.is_none() {
            self.model = model.map(str::to_owned);
        }
        let all = inner.iter().flat_map(|value| [&value["usage"], &value["usageMetadata"]]);
        for usage in all.filter(|usage| usage.is_object()) {
            self.note_numbers(usage);
        }
        // A message begins with a number of output tokens that is not the number of its text.
        if value["type"] == "message_start" {
            self.output = None;
        }
    }

    fn note_numbers(&mut self, usage: &Value) {
        let number = |names: &[&str]| names.iter().find_map(|name| usage.pointer(name)?.as_u64());
        for (known, name) in
            self.beside.iter_mut().zip(["/cache_read_input_tokens", "/cache_creation_input_tokens"])
        {
            *known = number(&[name]).unwrap_or(*known);
        }
        let among = number(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/cachedContentTokenCount",
        ]);
        self.cached = among.unwrap_or(self.cached);
        // Gemini counts the results of its tools beside the prompt, and thoughts beside the candidates.
        let input = number(&["/prompt_tokens", "/input_tokens", "/promptTokenCount"]);
        self.input = together([input, number(&["/toolUsePromptTokenCount"])]).or(self.input);
        let output = number(&["/completion_tokens", "/output_tokens", "/candidatesTokenCount"]);
        self.output = together([output, number(&["/thoughtsTokenCount"])]).or(self.output);
    }

    /// What was used. Four bytes of a request or text are one token, if the provider did not report a number.
    pub(crate) fn used(&self, asked_model: &str, request_bytes: u64, text: impl FnOnce() -> u64) -> Usage {
        let [read, written] = self.beside;
        let input = self.input.map(|input| input.saturating_sub(self.cached).saturating_add(written));
        let mut is_estimated = input.is_none();
        let output = self.output.unwrap_or_else(|| {
            let length = text();
            is_estimated |= length > 0;
            length / 4
        });
        Usage {
            input: input.unwrap_or(request_bytes / 4),
            cached: self.cached + read,
            output,
            estimated: is_estimated,
            ..self.free(asked_model)
        }
    }

    /// The model alone.
    pub(crate) fn free(&self, asked_model: &str) -> Usage {
        Usage { model: self.model.clone().unwrap_or_else(|| asked_model.to_owned()), ..Usage::default() }
    }
}

/// The sum of the numbers that are known, if one is.
fn together(numbers: [Option<u64>; 2]) -> Option<u64> {
    numbers.into_iter().flatten().reduce(u64::saturating_add)
}

/// Whether an event has numbers of tokens. With some settings every event has `"usage":null`.
pub(crate) fn has_usage(data: &[u8]) -> bool {
    let Some(at) = memmem::find(data, b"usage") else { return false };
    let rest = data[at + b"usage".len()..].iter().copied();
    let mut value = rest.skip_while(|byte| matches!(byte, b'"' | b':' | b' '));
    !b"null".iter().all(|expected| value.next() == Some(*expected))
}

/// The length of the text in a stream of events.
pub(crate) fn text_of_stream(answer: &[u8]) -> u64 {
    let mut events = Events::default();
    let mut length = 0;
    for piece in answer.chunks(PIECE) {
        events.push(piece);
        while let Some(event) = events.next() {
            let value = event.data().and_then(|data| serde_json::from_slice(data).ok());
            length += value.as_ref().map_or(0, text_in);
        }
    }
    length
}

/// The length of the text in an array of chunks, which may have broken off.
pub(crate) fn text_of_array(answer: &[u8]) -> u64 {
    let mut length = 0;
    Elements::default().split(answer, |chunk| {
        length += serde_json::from_slice(chunk).as_ref().map_or(0, text_in);
    });
    length
}

/// The length of the text in a document.
pub(crate) fn text_of_document(answer: &[u8]) -> u64 {
    serde_json::from_slice(answer).as_ref().map_or(0, text_in)
}

/// The length of the text that a chunk or document adds, in whatever dialect.
fn text_in(value: &Value) -> u64 {
    let choices = items(&value["choices"]).iter().map(|one| {
        let (delta, message) = (&one["delta"], &one["message"]);
        let texts = [&delta["content"], &delta["reasoning_content"], &message["content"], &one["text"]];
        length_of(texts) + text_of_tools(delta) + text_of_tools(message)
    });
    let blocks = items(&value["content"]).iter().map(|one| length_of([&one["text"]]));
    let candidates = items(&value["candidates"]).iter();
    let parts =
        candidates.flat_map(|one| items(&one["content"]["parts"])).map(|one| length_of([&one["text"]]));
    let delta = &value["delta"];
    let event = [delta, &delta["text"], &delta["thinking"], &delta["partial_json"]];
    length_of(event) + choices.chain(blocks).chain(parts).sum::<u64>()
}

/// The length of the tool calls in a message, or in a part of one: their names and arguments.
fn text_of_tools(message: &Value) -> u64 {
    let calls = items(&message["tool_calls"]).iter().map(|call| &call["function"]);
    calls.map(|function| length_of([&function["name"], &function["arguments"]])).sum()
}

/// The elements of an array; none if it is anything else.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The length of those values that are texts.
fn length_of<const N: usize>(values: [&Value; N]) -> u64 {
    values.into_iter().filter_map(Value::as_str).map(|text| text.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn used(chunks: &[Value], text: u64) -> (u64, u64, u64, bool) {
        let mut tokens = Tokens::default();
        chunks.iter().for_each(|chunk| tokens.note(chunk));
        let usage = tokens.used("asked", 400, || text);
        (usage.input, usage.cached, usage.output, usage.estimated)
    }

    #[test]
    fn numbers_of_an_earlier_event_count_if_a_later_one_does_not_repeat_them() {
        let start = json!({"type": "message_start", "message": {"model": "c", "usage":
            {"input_tokens": 10, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 5,
             "output_tokens": 1}}});
        let delta = json!({"type": "message_delta", "usage":
            {"input_tokens": 10, "cache_read_input_tokens": null, "output_tokens": 50}});
        assert_eq!(used(&[start.clone(), delta], 0), (15, 1000, 50, false));
        // A stream that broke off after its first event has an answer of unknown length.
        assert_eq!(used(std::slice::from_ref(&start), 80), (15, 1000, 20, true));
        assert_eq!(used(&[start], 0), (15, 1000, 0, false), "nothing was generated");
    }

    #[test]
    fn thoughts_and_results_of_tools_count_for_gemini() {
        let of = |usage: Value| used(&[json!({"usageMetadata": usage})], 80);
        let thoughts =
            json!({"promptTokenCount": 10, "thoughtsTokenCount": 30, "toolUsePromptTokenCount": 7});
        assert_eq!(of(thoughts), (17, 0, 30, false));
        let both = json!({"promptTokenCount": 10, "thoughtsTokenCount": 30, "candidatesTokenCount": 5});
        assert_eq!(of(both), (10, 0, 35, false));
        assert_eq!(of(json!({"promptTokenCount": 10})), (10, 0, 20, true), "the output is an estimate");
    }

    #[test]
    fn calls_of_tools_are_part_of_an_estimate() {
        let call = json!({"function": {"name": "send", "arguments": "{\"to\":1}"}});
        for part in ["delta", "message"] {
            let chunk = json!({"choices": [{part: {"content": null, "tool_calls": [call, call]}}]});
            assert_eq!(text_in(&chunk), 24, "{part}");
        }
    }

    #[test]
    fn an_event_without_numbers_is_recognised() {
        for (data, expected) in [
            ("{\"usage\":null}", false),
            ("{\"usage\" : null}", false),
            ("{}", false),
            ("{\"usage\": {}}", true),
            ("{\"content\":\"its usage\",\"usage\":{}}", true),
        ] {
            assert_eq!(has_usage(data.as_bytes()), expected, "{data}");
        }
    }
}
