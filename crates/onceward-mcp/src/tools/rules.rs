//! Classifies tools, and remembers what the server lists.

use std::collections::{BTreeMap, BTreeSet};

use onceward::{Class, InvalidInput, KeyPolicy, OnToolError, Policy, Settings, WITNESS_META};

use crate::tools::guess;
use crate::tools::mirrored::{Mirrored, mirrored};
use crate::wire::raw::{self, Object};
use crate::wire::tool_call::{DRY_ARGUMENT, KEY_ARGUMENT, is_dry_run};

/// What a server says about one of its tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Annotations {
    /// `readOnlyHint`
    pub read_only: Option<bool>,
    /// `idempotentHint`
    pub idempotent: Option<bool>,
    /// `destructiveHint`
    pub destructive: Option<bool>,
    /// The word by which its name or description says that it only reads, if it does.
    pub reads: Option<&'static str>,
}

/// Whether a tool without annotations is classified by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guess {
    /// Yes: if its name and description say that it only reads, it is `idempotent`.
    Reads,
    /// No: it is `once`.
    Nothing,
}

/// Whether the annotations of a server are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// They are.
    Annotations,
    /// They are not. Only the policy counts.
    PolicyOnly,
}

/// Whether the model sees arguments for a key and for a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exposure {
    /// Tools are listed unchanged.
    Hidden,
    /// Tools that change something get two more optional arguments.
    Arguments,
}

/// The rules for the calls of a tool.
#[derive(Debug, Clone)]
pub(crate) struct ToolRules {
    /// The class of the tool.
    pub(crate) class: Class,
    /// Why it has this class.
    pub(crate) why: String,
    /// Whether the class is only a guess from the name.
    pub(crate) guessed: bool,
    /// Where its keys come from.
    pub(crate) keys: KeyPolicy,
    /// All other settings of the policy.
    pub(crate) settings: Settings,
}

/// Everything that decides the rules of a tool.
pub(crate) struct RuleSet {
    pub(crate) policy: Policy,
    pub(crate) server: String,
    pub(crate) keys: Option<KeyPolicy>,
    pub(crate) trust: Trust,
    pub(crate) guess: Guess,
    pub(crate) on_tool_error: Option<OnToolError>,
}

impl RuleSet {
    /// Rules for that server under the default policy.
    #[cfg(test)]
    pub(crate) fn of(server: &str, trust: Trust) -> Self {
        Self {
            policy: Policy::default(),
            server: server.to_owned(),
            keys: None,
            trust,
            guess: Guess::Reads,
            on_tool_error: None,
        }
    }

    /// Whether the policy alone decides the class of the tool.
    pub(crate) fn decide_alone(&self, tool: &str) -> bool {
        self.trust == Trust::PolicyOnly || self.rule(tool).is_ok_and(|rule| rule.class.is_some())
    }

    fn rule(&self, tool: &str) -> Result<onceward::ToolRule, InvalidInput> {
        self.policy.tool(&[tool, &format!("{}/{tool}", self.server)])
    }

    /// The rules of a tool. The policy takes precedence, then the annotations; otherwise the tool is assumed to
    /// change something.
    pub(crate) fn tool_rules(
        &self,
        tool: &str,
        said: Option<&Annotations>,
    ) -> Result<ToolRules, InvalidInput> {
        let rule = self.rule(tool)?;
        let hint = |pick: fn(&Annotations) -> Option<bool>| {
            self.trust == Trust::Annotations && said.and_then(pick) == Some(true)
        };
        let (class, why) = match rule.class {
            Some(class) => (class, "the policy says so".to_owned()),
            None if hint(|said| said.read_only) => (Class::Read, "readOnlyHint".to_owned()),
            None if hint(|said| said.idempotent) => (Class::Idempotent, "idempotentHint".to_owned()),
            None => self.unsaid(said),
        };
        let guessed = rule.class.is_none() && class == Class::Idempotent && !hint(|said| said.idempotent);
        let mut settings = rule.settings;
        settings.tool.on_tool_error =
            rule.on_tool_error.or(self.on_tool_error).unwrap_or(settings.tool.on_tool_error);
        let has_probe = settings.tool.probe.is_some();
        let (class, why) = match class {
            Class::Once if has_probe => (Class::Probed, "the policy has a probe".to_owned()),
            Class::Read | Class::Idempotent | Class::Keyed | Class::Probed | Class::Once => (class, why),
        };
        settings.terms.class = class;
        // This crate decides which calls are the same operation, not the ledger.
        settings.terms.keys = KeyPolicy::Strict;
        let keys = rule.keys.or(self.keys).or(rule.default_keys).unwrap_or(KeyPolicy::Auto);
        Ok(ToolRules { class, why, guessed, keys, settings })
    }

    /// The class of a tool that neither the policy nor a hint makes safer.
    fn unsaid(&self, said: Option<&Annotations>) -> (Class, String) {
        let once = |why: &str| (Class::Once, why.to_owned());
        let Some(said) = said else { return once("the server does not list it") };
        if self.trust == Trust::PolicyOnly {
            return once("annotations are not trusted");
        }
        match (said.destructive, said.read_only, said.idempotent, said.reads) {
            (Some(true), ..) => once("destructiveHint"),
            (_, Some(false), ..) => once("readOnlyHint is false"),
            (_, None, Some(false), _) => once("idempotentHint is false"),
            (_, _, _, Some(word)) if self.guess == Guess::Reads => {
                (Class::Idempotent, format!("a guess: it says `{word}`"))
            }
            (Some(false), ..) => once("destructiveHint is false, which is not enough"),
            (None, ..) => once("it has no annotations"),
        }
    }
}

/// What a server lists about the values that a tool takes and returns.
pub(crate) struct Listing {
    /// The input schema, as JSON text.
    pub(crate) input: String,
    /// Whether it has an output schema.
    pub(crate) has_output: bool,
    /// Whether it is an Onceward itself, and repeats the witness of an attempt in its answer.
    pub(crate) takes_witness: bool,
}

/// The tools that a server has listed.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    tools: BTreeMap<String, Annotations>,
    mirrored: BTreeMap<String, Vec<Mirrored>>,
    /// The names of each tool's own arguments.
    arguments: BTreeMap<String, Vec<String>>,
    /// The input schemas.
    input: BTreeMap<String, String>,
    /// The output schemas.
    output: BTreeMap<String, String>,
    /// The tools that repeat a witness.
    witnessed: BTreeSet<String>,
    listed: bool,
}

impl Catalogue {
    /// Whether the server was asked for its tools.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Notes that the server was asked, whatever the result.
    pub(crate) fn note_listed(&mut self) {
        self.listed = true;
    }

    /// Notes that the list has changed. It is requested again before the next call.
    pub(crate) fn note_changed(&mut self) {
        self.listed = false;
    }

    /// What the server says about that tool.
    pub(crate) fn get(&self, tool: &str) -> Option<&Annotations> {
        self.tools.get(tool)
    }

    /// The arguments of that tool that headers repeat.
    pub(crate) fn mirrored(&self, tool: &str) -> Vec<Mirrored> {
        self.mirrored.get(tool).cloned().unwrap_or_default()
    }

    /// The names of the tool's own arguments. `None` if the server does not list it.
    pub(crate) fn arguments(&self, tool: &str) -> Option<&[String]> {
        self.arguments.get(tool).map(Vec::as_slice)
    }

    /// The output schema of the tool.
    pub(crate) fn output(&self, tool: &str) -> Option<&str> {
        self.output.get(tool).map(String::as_str)
    }

    /// What the server lists about the tool's values. `None` if it does not list the tool.
    pub(crate) fn listing(&self, tool: &str) -> Option<Listing> {
        let input = self.input.get(tool)?.clone();
        let (has_output, takes_witness) = (self.output.contains_key(tool), self.witnessed.contains(tool));
        Some(Listing { input, has_output, takes_witness })
    }

    /// All tools.
    pub(crate) fn all(&self) -> &BTreeMap<String, Annotations> {
        &self.tools
    }

    /// Learns from a result of `tools/list`. Returns the cursor of the next page.
    pub(crate) fn learn(&mut self, result: &str) -> Option<String> {
        let result = Object::parse(result)?;
        for tool in result.get("tools").and_then(raw::items).unwrap_or_default() {
            let Some(tool) = Object::parse(tool) else { continue };
            let Some(name) = tool.string("name") else { continue };
            let twice = tool.get("inputSchema").map(mirrored).unwrap_or_default();
            if !twice.is_empty() {
                self.mirrored.insert(name.clone(), twice);
            }
            let own = tool.object("inputSchema").and_then(|schema| schema.object("properties"));
            let own: Vec<String> =
                own.iter().flat_map(|own| own.members().map(|(name, _)| name.to_owned())).collect();
            let input = tool.get("inputSchema").unwrap_or("{}");
            self.input.insert(name.clone(), input.to_owned());
            match tool.get("outputSchema") {
                Some(schema) => drop(self.output.insert(name.clone(), schema.to_owned())),
                None => drop(self.output.remove(&name)),
            }
            match tool.object("_meta").and_then(|meta| meta.get(WITNESS_META)) {
                Some("true") => drop(self.witnessed.insert(name.clone())),
                Some(_) | None => drop(self.witnessed.remove(&name)),
            }
            let description = tool.string("description").unwrap_or_default();
            let reads = guess::reads(&name, &description, &own);
            self.arguments.insert(name.clone(), own);
            self.tools.insert(name, Annotations { reads, ..annotations(&tool) });
        }
        let next = result.string("nextCursor");
        self.listed |= next.is_none();
        next
    }
}

fn annotations(tool: &Object<'_>) -> Annotations {
    let Some(hints) = tool.object("annotations") else {
        return Annotations::default();
    };
    let hint = |name: &str| match hints.get(name) {
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) | None => None,
    };
    Annotations {
        read_only: hint("readOnlyHint"),
        idempotent: hint("idempotentHint"),
        destructive: hint("destructiveHint"),
        reads: None,
    }
}

const EXPOSED: [(&str, &str); 2] = [
    (
        KEY_ARGUMENT,
        "{\"type\":\"string\",\"description\":\"Optional. Names this one action: a repeat with the same key returns \
         the first result and runs nothing; use a new key to do the same action again.\"}",
    ),
    (
        DRY_ARGUMENT,
        r#"{"type":"boolean","description":"Optional. If true, only reports what would happen; nothing is run."}"#,
    ),
];

/// The result of `tools/list`, with arguments for a key and a dry run added to each tool that `guarded` selects.
pub(crate) fn expose(result: &str, guarded: impl Fn(&str) -> bool) -> String {
    let tools = Object::parse(result).and_then(|object| object.get("tools")).and_then(raw::items);
    let mut edits: Vec<(usize, String)> = Vec::new();
    for tool in tools.unwrap_or_default() {
        let Some(tool) = Object::parse(tool) else { continue };
        if !tool.string("name").is_some_and(|name| guarded(&name)) {
            continue;
        }
        let Some(schema) = tool.get("inputSchema") else { continue };
        let Some(members) = Object::parse(schema) else { continue };
        let properties = members.get("properties");
        let own = properties.and_then(Object::parse);
        let has = |name: &str| {
            let same = |own: &str| own == name || (name == DRY_ARGUMENT && is_dry_run(own));
            own.iter().flat_map(Object::members).any(|(own, _)| same(own))
        };
        let added: Vec<String> = EXPOSED
            .iter()
            .filter(|(name, _)| !has(name))
            .map(|(name, schema)| format!("\"{name}\":{schema}"))
            .collect();
        let added = added.join(",");
        let (object, added) = match properties {
            Some(properties) if properties.starts_with('{') => (properties, added),
            Some(_) => continue,
            None => (schema, format!("\"properties\":{{{added}}}")),
        };
        let comma = if object[1..].trim_start().starts_with('}') || added.is_empty() { "" } else { "," };
        edits.push((raw::range(result, object).start + 1, format!("{added}{comma}")));
    }
    edits.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    edits.into_iter().fold(result.to_owned(), |text, (at, added)| raw::spliced(&text, at..at, &added))
}

/// Parses a line as a list of tools, using every code path of the proxy.
#[must_use]
pub fn look(line: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(line) else { return 0 };
    let mut catalogue = Catalogue::default();
    drop(catalogue.learn(text));
    drop(expose(text, |_| true));
    catalogue.all().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"tools":[{"name":"r","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object"}},
      {"name":"w","inputSchema":{"type":"object","properties":{"max":{"maximum":99999999999999999999}},"required":[]}},
      {"name":"i","annotations":{"readOnlyHint":false,"idempotentHint":true},"inputSchema":{"properties":{}}},
      {"name":"own","inputSchema":{"properties":{"dry_run":{}}}},{"name":"bare","inputSchema":{}},
      {"name":"get_x","description":"Gets x."},{"name":"get_d","annotations":{"destructiveHint":true}}],"x":1}"#;

    fn rule_set(policy: &str, trust: Trust) -> RuleSet {
        RuleSet { policy: Policy::parse(policy).unwrap(), ..RuleSet::of("shop", trust) }
    }

    #[test]
    fn the_policy_overrides_annotations_and_the_default_is_once() {
        let mut catalogue = Catalogue::default();
        assert_eq!(catalogue.learn(LIST), None);
        let class = |rule_set: &RuleSet, tool: &str| {
            let rules = rule_set.tool_rules(tool, catalogue.get(tool)).unwrap();
            (rules.class, rules.why, rules.keys)
        };
        let plain = rule_set("", Trust::Annotations);
        let is = |class, why: &str| (class, why.to_owned(), KeyPolicy::Auto);
        assert_eq!(class(&plain, "r"), is(Class::Read, "readOnlyHint"));
        assert_eq!(class(&plain, "w"), is(Class::Once, "it has no annotations"));
        assert_eq!(class(&plain, "i"), is(Class::Idempotent, "idempotentHint"));
        assert_eq!(class(&plain, "?"), is(Class::Once, "the server does not list it"));
        assert_eq!(class(&plain, "get_x"), is(Class::Idempotent, "a guess: it says `get`"));
        assert_eq!(class(&plain, "get_d"), is(Class::Once, "destructiveHint"));
        let unguessed = RuleSet { guess: Guess::Nothing, ..rule_set("", Trust::Annotations) };
        assert_eq!(class(&unguessed, "get_x").0, Class::Once);
        assert_eq!(class(&rule_set("", Trust::PolicyOnly), "r").0, Class::Once);
        assert_eq!(class(&rule_set("", Trust::PolicyOnly), "get_x").0, Class::Once);
        let said =
            rule_set("[operation.r]\nclass='once'\n[operation.'shop/w']\nkeys='strict'", Trust::Annotations);
        assert_eq!(class(&said, "r").0, Class::Once);
        assert_eq!(class(&said, "w").2, KeyPolicy::Strict);
    }

    #[test]
    fn arguments_are_exposed_only_for_tools_that_change_something() {
        let shown = expose(LIST, |name| name != "r");
        let value: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let has = |at: usize, name: &str| value["tools"][at]["inputSchema"]["properties"][name].is_object();
        assert!(!has(0, "dry_run") && has(1, "dry_run") && has(1, KEY_ARGUMENT) && has(2, KEY_ARGUMENT));
        assert!(has(1, "max") && has(3, KEY_ARGUMENT) && has(4, KEY_ARGUMENT));
        assert_eq!(value["tools"][3]["inputSchema"]["properties"]["dry_run"], serde_json::json!({}));
        assert!(shown.contains("99999999999999999999"));
        assert_eq!(expose(LIST, |_| false), LIST);
        assert_eq!(expose("[]", |_| true), "[]");
    }
}
