//! Tools that only read, as far as their names and descriptions tell.
//!
//! Many servers annotate nothing. A read that is guarded as `once` is refused for ever after one network error, so
//! a tool whose name says that it reads is taken for `idempotent`. The lists err on the side of guarding.

/// Verbs that a tool's name may begin with: `get_issue`, `listPods`.
const FIRST: &[&str] = &[
    "get",
    "list",
    "ls",
    "search",
    "find",
    "read",
    "fetch",
    "describe",
    "view",
    "lookup",
    "retrieve",
    "browse",
    "inspect",
    "explain",
    "preview",
    "grep",
    "glob",
    "whoami",
    "recommend",
    "suggest",
    "compare",
    "summarize",
    "check",
    "count",
];
/// Words that a tool's name may end with where nothing in it changes anything: `pods_list`, `git_status`,
/// `web_search`.
const LAST: &[&str] = &[
    "get", "list", "search", "log", "logs", "read", "lookup", "find", "describe", "status", "info", "tree",
    "stats", "diff", "show", "history", "top", "view",
];
/// Words that may not be a whole name: alone they say too little.
const NOT_ALONE: &[&str] = &["check", "count", "view", "log", "find", "top", "tree", "show", "compare"];
/// Words that make a name say that something changes, wherever they are in it.
const CHANGES: &[&str] = &[
    "or", "and", "create", "delete", "update", "remove", "insert", "upsert", "write", "replace", "modify",
    "execute", "exec", "mark", "save", "store", "send", "set", "add", "edit", "destroy", "purge", "clear",
    "reset", "apply", "upload", "download", "install", "next", "pop", "claim", "consume", "acquire",
    "generate", "in", "out", "dequeue", "rotate",
];
/// More of them, where the name does not begin with a verb that reads and so its other words may be verbs.
const CHANGES_BEFORE: &[&str] = &[
    "append",
    "approve",
    "archive",
    "assign",
    "attach",
    "ban",
    "block",
    "book",
    "buy",
    "call",
    "cancel",
    "change",
    "charge",
    "clean",
    "click",
    "clone",
    "close",
    "comment",
    "commit",
    "complete",
    "configure",
    "confirm",
    "connect",
    "copy",
    "deploy",
    "disable",
    "dismiss",
    "drag",
    "drop",
    "enable",
    "export",
    "fetch",
    "fill",
    "fork",
    "import",
    "invite",
    "invoke",
    "join",
    "kill",
    "label",
    "launch",
    "link",
    "lock",
    "login",
    "logout",
    "manage",
    "merge",
    "move",
    "mute",
    "navigate",
    "notify",
    "open",
    "order",
    "pause",
    "pay",
    "pin",
    "play",
    "post",
    "press",
    "publish",
    "push",
    "put",
    "react",
    "rebase",
    "refund",
    "register",
    "reject",
    "rename",
    "reply",
    "request",
    "restart",
    "restore",
    "resume",
    "revert",
    "revoke",
    "rollback",
    "run",
    "scale",
    "schedule",
    "select",
    "share",
    "sign",
    "star",
    "start",
    "stash",
    "stop",
    "submit",
    "subscribe",
    "switch",
    "sync",
    "tag",
    "take",
    "toggle",
    "touch",
    "transfer",
    "trash",
    "trigger",
    "type",
    "unlock",
    "use",
    "vote",
    "wait",
    "new",
    "make",
    "build",
    "test",
    "to",
    "my",
];
/// Words after which "show" and its like mean a window, not a record.
const SHOWN: &[&str] = &["notification", "message", "dialog", "toast", "alert", "window", "box"];
/// What a description says of a tool that changes something.
const TELLS: &[&str] = &[
    "creates",
    "deletes",
    "updates",
    "writes",
    "sends",
    "modifies",
    "executes",
    "saves",
    "removes",
    "inserts",
    "overwrites",
    "uploads",
    "marks",
    "increments",
    "schedules",
    "publishes",
    "charges",
    "locks",
    "claims",
    "consumes",
    "acquires",
    "enqueues",
    "dequeues",
    "appends",
    "adds",
    "sets",
    "resets",
    "clears",
    "downloads",
    "installs",
    "starts",
    "stops",
    "restarts",
    "triggers",
    "generates",
    "reserves",
    "books",
    "buys",
    "pays",
    "transfers",
    "destructive",
    "irreversible",
];
/// Imperatives that a description of such a tool begins a sentence with.
const ORDERS: &[&str] = &[
    "create",
    "delete",
    "update",
    "write",
    "send",
    "modify",
    "execute",
    "save",
    "remove",
    "insert",
    "overwrite",
    "upload",
    "mark",
    "append",
    "add",
    "set",
    "reset",
    "clear",
    "run",
    "start",
    "stop",
    "post",
    "download",
    "charge",
    "pay",
    "book",
];

/// Why a tool is taken for one that only reads, if it is.
pub(crate) fn reads(name: &str, description: &str) -> Option<&'static str> {
    let words = words(name);
    let parts: Vec<&str> = words.iter().map(String::as_str).collect();
    let (first, last) = (*parts.first()?, *parts.last()?);
    let has = |list: &[&str]| parts.iter().any(|part| list.contains(part));
    if parts.len() == 1 && NOT_ALONE.contains(&first)
        || has(CHANGES)
        || (has(&["show"]) && has(SHOWN))
        || tells(description)
    {
        return None;
    }
    if let Some(verb) = FIRST.iter().find(|verb| **verb == first) {
        return Some(verb);
    }
    if parts.len() > 1 && !has(CHANGES_BEFORE) {
        return LAST.iter().find(|word| **word == last).copied();
    }
    None
}

/// Whether a description says that the tool changes something.
fn tells(description: &str) -> bool {
    let clean = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    let says = description.split_whitespace().any(|word| TELLS.contains(&clean(word).as_str()));
    let mut sentences = description.split(['.', '\n', ';', ':', '!']);
    let orders = sentences.any(|sentence| {
        let first = sentence.split_whitespace().next().map(clean);
        first.is_some_and(|first| ORDERS.contains(&first.as_str()))
    });
    says || orders
}

/// The words of a name: `getIssue`, `get-issue` and `API-get_issue` have the word `get`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let begins = !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase());
        if begins && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    // A namespace that says nothing.
    if words.len() > 1 && matches!(words[0].as_str(), "api" | "mcp") {
        words.remove(0);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_may_change_something_is_not_taken_for_a_read() {
        for name in [
            "get_issue",
            "list-pods",
            "searchRepositories",
            "API-get-user",
            "pods_list",
            "git_status",
            "web_search",
        ] {
            assert!(reads(name, "").is_some(), "{name}");
        }
        for name in [
            "charge",
            "count",
            "get_or_create",
            "find_and_replace",
            "mark_as_read",
            "check_in",
            "git_fetch",
            "query",
            "put",
            "execute_query",
            "show_notification",
            "get_next_job",
            "resources_create_or_update",
            "readd_user",
            "listen",
            "getter_setter_set",
            "browser_take_screenshot",
            "claim_list",
            "run_search",
            "",
        ] {
            assert_eq!(reads(name, ""), None, "{name}");
        }
        assert_eq!(reads("get_report", "Creates a report and returns it."), None);
        assert_eq!(reads("get_token", "Gets a token. Overwrites the old one."), None);
        assert_eq!(reads("get_issue", "Gets an issue that was created by somebody."), Some("get"));
    }
}
