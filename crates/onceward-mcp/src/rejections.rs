//! Texts by which the SDKs of MCP servers say that a tool was not run, or that it was.
//!
//! Every SDK turns every exception of a tool into an answer with an error, so an error alone says nothing about the
//! effect. Only the texts in this table do: the SDK writes them before it calls the tool, or after the tool returned.

use crate::raw;

/// What a known text says about the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The SDK rejected the input: the tool was not called.
    NotRun,
    /// The SDK rejected the output: the tool was called and returned.
    Ran,
}

use Evidence::{NotRun, Ran};

/// SDK, evidence, text. `{tool}` stands for the tool's name, `#` for a number, `*` for any text.
const TEXTS: &[(&str, Evidence, &str)] = &[
    ("TypeScript SDK", NotRun, "Input validation error: Invalid arguments for tool {tool}: *"),
    ("TypeScript SDK before 1.21", NotRun, "Invalid arguments for tool {tool}: *"),
    ("TypeScript SDK", NotRun, "Tool {tool} not found"),
    ("TypeScript SDK", NotRun, "Tool {tool} disabled"),
    ("TypeScript SDK", Ran, "Output validation error: Tool {tool} has an output schema but *"),
    ("TypeScript SDK", Ran, "Output validation error: Invalid structured content for tool {tool}: *"),
    (
        "TypeScript SDK before 1.21",
        Ran,
        "Tool {tool} has an output schema but no structured content was provided",
    ),
    ("TypeScript SDK before 1.21", Ran, "Invalid structured content for tool {tool}: *"),
    // The low-level Python server validates with jsonschema, whose sentences are known.
    ("Python SDK", NotRun, "Input validation error: * is a required property"),
    ("Python SDK", NotRun, "Input validation error: * is not of type *"),
    ("Python SDK", NotRun, "Input validation error: * is not one of *"),
    ("Python SDK", NotRun, "Input validation error: Additional properties are not allowed (*)"),
    ("Python SDK", NotRun, "Input validation error: * does not match *"),
    ("Python SDK", NotRun, "Input validation error: * is too short"),
    ("Python SDK", NotRun, "Input validation error: * is too long"),
    ("Python SDK", NotRun, "Input validation error: * should be non-empty"),
    ("Python SDK", NotRun, "Input validation error: * is less than the minimum of *"),
    ("Python SDK", NotRun, "Input validation error: * is greater than the maximum of *"),
    ("Python SDK", NotRun, "Input validation error: * is not valid under any of the given schemas"),
    ("Python SDK", NotRun, "Unknown tool: {tool}"),
    ("Python SDK", Ran, "Output validation error: *"),
    ("Python MCPServer", NotRun, "Error executing tool {tool}: # validation error for {tool}Arguments\n*"),
    ("Python MCPServer", NotRun, "Error executing tool {tool}: # validation errors for {tool}Arguments\n*"),
    ("Python MCPServer", Ran, "Error executing tool {tool}: # validation error for {tool}Output\n*"),
    ("Python MCPServer", Ran, "Error executing tool {tool}: # validation errors for {tool}Output\n*"),
    ("FastMCP", NotRun, "# validation error for call[{tool}]\n*"),
    ("FastMCP", NotRun, "# validation errors for call[{tool}]\n*"),
    ("FastMCP, C# SDK", NotRun, "Unknown tool: '{tool}'"),
    ("Rust SDK", NotRun, "failed to deserialize parameters: *"),
    ("Rust SDK", NotRun, "tool not found"),
    ("Go SDK", NotRun, "validating \"arguments\": *"),
    ("Go SDK before 1.0", NotRun, "invalid params: validating \"arguments\": *"),
    ("Go SDK", NotRun, "unknown tool \"{tool}\""),
    ("Go SDK", Ran, "validating tool output: *"),
    ("mcp-go", NotRun, "input schema validation failed: *"),
    ("mcp-go", NotRun, "tool '{tool}' not found"),
    ("mcp-go", NotRun, "tool '{tool}' not found: tool not found"),
    ("mcp-go", Ran, "output schema validation failed: *"),
    ("Java SDK", NotRun, "Tool ({tool}) input validation failed: *"),
    ("Java SDK", NotRun, "Unknown tool: invalid_tool_name"),
    (
        "Java SDK",
        Ran,
        "Response missing structured content which is expected when calling tool with non-empty outputSchema",
    ),
    ("Java SDK", Ran, "Validation failed: JSON schema validation errors: *"),
    // A server that knows no tools at all.
    ("all", NotRun, "Method not found"),
    ("all", NotRun, "Method not found: tools/call"),
];

/// What the TypeScript SDK puts before the message of its errors.
const CODE_PREFIX: &str = "MCP error -32602: ";

/// What the text of an error of that tool says about the effect, if it is a known one.
pub(crate) fn evidence(text: &str, tool: &str) -> Option<Evidence> {
    let text = text.trim();
    let text = text.strip_prefix(CODE_PREFIX).unwrap_or(text);
    TEXTS.iter().find(|(_, _, pattern)| fits(pattern, text, tool)).map(|(_, says, _)| *says)
}

/// Whether the pattern fits the whole text.
fn fits(pattern: &str, text: &str, tool: &str) -> bool {
    let Some(at) = pattern.find(['*', '#', '{']) else {
        return pattern == text;
    };
    let (head, rest) = pattern.split_at(at);
    let Some(text) = text.strip_prefix(head) else { return false };
    if let Some(rest) = rest.strip_prefix("{tool}") {
        return text.strip_prefix(tool).is_some_and(|text| fits(rest, text, tool));
    }
    if let Some(rest) = rest.strip_prefix('#') {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        return digits > 0 && fits(rest, &text[digits..], tool);
    }
    let rest = &rest[1..];
    rest.is_empty() || raw::boundaries(text).any(|at| fits(rest, &text[at..], tool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_sdks_own_words_say_anything() {
        for (text, expected) in [
            ("MCP error -32602: Input validation error: Invalid arguments for tool pay: [{…}]", Some(NotRun)),
            ("Input validation error: 'amount' is a required property", Some(NotRun)),
            (
                "Error executing tool pay: 1 validation error for payArguments\namount\n  Field required",
                Some(NotRun),
            ),
            ("2 validation errors for call[pay]\namount\n  Missing required argument", Some(NotRun)),
            ("failed to deserialize parameters: missing field `amount`", Some(NotRun)),
            (
                "validating \"arguments\": validating root: required: missing properties: [\"amount\"]",
                Some(NotRun),
            ),
            ("Tool (pay) input validation failed: Validation failed: …", Some(NotRun)),
            ("Unknown tool: 'pay'", Some(NotRun)),
            ("Output validation error: 'id' is a required property", Some(Ran)),
            (
                "MCP error -32602: Output validation error: Invalid structured content for tool pay: …",
                Some(Ran),
            ),
            ("validating tool output: type: nil", Some(Ran)),
            // What a tool can say by itself, after its effect.
            ("Input validation error: the card has expired", None),
            ("Error executing tool pay: 1 validation error for PaymentResponse\nid\n  Field required", None),
            ("Error executing tool pay: read timed out", None),
            ("1 validation error for call[charge_card]\nx", None),
            ("Invalid arguments for tool other: x", None),
            ("An error occurred invoking 'pay'.", None),
            ("Error: Input validation error: 'amount' is a required property", None),
            ("Tool other not found", None),
            ("fetch failed: UND_ERR_HEADERS_TIMEOUT", None),
            ("", None),
        ] {
            assert_eq!(evidence(text, "pay"), expected, "{text}");
        }
        assert_eq!(evidence("Unknown tool: a*b", "a*b"), Some(NotRun));
        assert_eq!(evidence("Unknown tool: anything", "*"), None, "a name is no pattern");
    }
}
