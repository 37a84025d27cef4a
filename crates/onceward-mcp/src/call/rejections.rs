//! The texts with which the SDKs of MCP servers say that a tool was not run, or that it was.
//!
//! SDKs turn every exception of a tool into an error answer, so an error alone does not reveal the effect. Only the
//! texts in this table do: the SDK writes them before it calls the tool, or after the tool returned.

use crate::tools::rules::Listing;
use crate::tools::satisfied;
use crate::wire::raw;
use onceward::Witness;

/// What a known text proves about the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The SDK rejected the input: the tool was not called.
    NotRun,
    /// The SDK rejected the output: the tool was called and returned.
    Ran,
}

use Proof::{NotRun, Ran};

/// The call that an answer belongs to.
pub(crate) struct Called<'a> {
    pub(crate) tool: &'a str,
    /// The arguments, as JSON text.
    pub(crate) arguments: &'a str,
    /// What the server lists about the tool; `None` if it does not list it.
    pub(crate) listing: &'a (dyn Fn() -> Option<Listing> + Sync),
    /// What the tool was given to show that an envelope is its own.
    pub(crate) witness: Option<&'a Witness>,
}

/// SDKs that validate arguments by the listed schema and by nothing else. Their texts are not evidence if the
/// arguments satisfy the schema.
const BY_SCHEMA: [&str; 5] = ["Python SDK", "Go SDK", "Go SDK before 1.0", "mcp-go", "Java SDK"];

/// Proof that a server has no tools, unless it lists the tool: a tool that asks the client for something that the
/// client does not support gets the same error.
const NO_TOOLS: [&str; 2] = ["Method not found", "Method not found: tools/call"];

/// SDK, evidence, text. `{tool}` is the tool's name, `#` a number, `*` any text.
const TEXTS: &[(&str, Proof, &str)] = &[
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
    // The low-level Python server validates with jsonschema, whose messages are known.
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
    ("Python", NotRun, "Unknown tool: {tool}"),
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
    ("Go", NotRun, "unknown tool \"{tool}\""),
    ("Go SDK", Ran, "validating tool output: *"),
    ("mcp-go", NotRun, "input schema validation failed: *"),
    ("Go", NotRun, "tool '{tool}' not found"),
    ("Go", NotRun, "tool '{tool}' not found: tool not found"),
    ("mcp-go", Ran, "output schema validation failed: *"),
    ("Java SDK", NotRun, "Tool ({tool}) input validation failed: *"),
    ("Java", NotRun, "Unknown tool: invalid_tool_name"),
    (
        "Java SDK",
        Ran,
        "Response missing structured content which is expected when calling tool with non-empty outputSchema",
    ),
    ("Java SDK", Ran, "Validation failed: JSON schema validation errors: *"),
];

/// The prefix that the TypeScript SDK adds to error messages.
const CODE_PREFIX: &str = "MCP error -32602: ";

/// What an error text proves about the effect, if it is a known one that fits the call.
pub(crate) fn proof(text: &str, called: &Called<'_>) -> Option<Proof> {
    let text = text.trim();
    let text = text.strip_prefix(CODE_PREFIX).unwrap_or(text);
    let (sdk, says, _) = TEXTS.iter().find(|(_, _, pattern)| fits(pattern, text, called.tool))?;
    let listing = (called.listing)();
    let fits = match says {
        // An SDK validates the output only by a schema, which it lists.
        Ran => listing.is_some_and(|listing| listing.has_output),
        NotRun if BY_SCHEMA.contains(sdk) => {
            !listing.is_some_and(|listing| satisfied::certainly(&listing.input, called.arguments))
        }
        NotRun => true,
    };
    fits.then_some(*says)
}

/// Whether a protocol error says that the server has no tools.
pub(crate) fn has_no_tools(text: &str, called: &Called<'_>) -> bool {
    NO_TOOLS.contains(&text.trim()) && (called.listing)().is_none()
}

/// Whether the pattern matches the whole text.
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

    type List = dyn Fn() -> Option<Listing> + Sync;

    const INPUT: &str =
        r#"{"type":"object","properties":{"amount":{"type":"integer"}},"required":["amount"]}"#;
    const LISTED: fn() -> Option<Listing> =
        || Some(Listing { input: INPUT.to_owned(), has_output: true, takes_witness: false });
    const WITHOUT_OUTPUT: fn() -> Option<Listing> =
        || Some(Listing { input: INPUT.to_owned(), has_output: false, takes_witness: false });

    fn called<'a>(tool: &'a str, arguments: &'a str, listing: &'a List) -> Called<'a> {
        Called { tool, arguments, listing, witness: None }
    }

    #[test]
    fn only_the_texts_of_sdks_are_evidence() {
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
            // Texts that a tool itself may write, after its effect.
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
            assert_eq!(proof(text, &called("pay", "{}", &LISTED)), expected, "{text}");
        }
        assert_eq!(proof("Unknown tool: a*b", &called("a*b", "{}", &LISTED)), Some(NotRun));
        let unknown = proof("Unknown tool: anything", &called("*", "{}", &LISTED));
        assert_eq!(unknown, None, "a name is no pattern");
    }

    #[test]
    fn a_text_that_does_not_fit_the_call_is_the_tools_own() {
        let valid = called("pay", r#"{"amount":7}"#, &LISTED);
        for (text, expected) in [
            // These SDKs validate by the schema, which the arguments satisfy.
            ("Input validation error: 'order' is a required property", None),
            ("validating \"arguments\": validating root: required: missing properties: [\"order\"]", None),
            ("input schema validation failed: x", None),
            ("Tool (pay) input validation failed: Validation failed: …", None),
            // These run validators of the author's as well.
            ("Input validation error: Invalid arguments for tool pay: too much", Some(NotRun)),
            ("1 validation error for call[pay]\namount\n  Value error, too much", Some(NotRun)),
            ("Unknown tool: pay", Some(NotRun)),
        ] {
            assert_eq!(proof(text, &valid), expected, "{text}");
        }
        let output = "Output validation error: 'id' is a required property";
        assert_eq!(proof(output, &called("pay", "{}", &WITHOUT_OUTPUT)), None);
        assert_eq!(proof(output, &called("pay", "{}", &|| None)), None);
        let input = "Input validation error: 'amount' is a required property";
        assert_eq!(proof(input, &called("pay", "{}", &|| None)), Some(NotRun));
        assert!(has_no_tools("Method not found", &called("pay", "{}", &|| None)));
        assert!(!has_no_tools("Method not found", &called("pay", "{}", &LISTED)));
        assert_eq!(proof("Method not found", &called("pay", "{}", &|| None)), None);
    }
}
