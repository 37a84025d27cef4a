//! Guesses from names and descriptions which tools are read-only.
//!
//! Many servers annotate nothing. A read that is guarded as `once` is refused for ever after one network error, so a
//! tool whose name or description says that it reads is treated as `idempotent`. The words are data (`words.txt`) and
//! err on the side of guarding. `tests/guess.rs` checks them against the tools of real servers.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// How many sentences of a description may say what the tool does. Later ones say how to use it.
const SENTENCES: usize = 2;

/// What a name or a description says on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    /// It changes something.
    Changes,
    /// It only reads; the name starts with this word.
    Begins(&'static str),
    /// It only reads, according to this word.
    Reads(&'static str),
    /// It computes something. This counts if the description says what it returns.
    WorksOut(&'static str),
    /// Unclear, but a verb may change something.
    Acts,
    Nothing,
}

/// The word because of which a tool counts as read-only, if it does.
pub(crate) fn reads(name: &str, description: &str, arguments: &[String]) -> Option<&'static str> {
    // `mark_as_read`, `save_to_file`: arguments for side effects.
    if arguments.iter().any(|argument| parts(argument).first().is_some_and(|part| is("argument", part))) {
        return None;
    }
    match (name_says(name), description_says(description)) {
        (Says::Changes | Says::Acts, _) | (_, Says::Changes | Says::Acts) => None,
        (Says::Begins(word), _) => Some(word),
        (Says::Nothing, Says::Nothing) => None,
        (Says::Reads(word), _) | (_, Says::Begins(word) | Says::Reads(word)) => Some(word),
        (Says::WorksOut(word), _) | (_, Says::WorksOut(word)) => names_a_result(description).then_some(word),
    }
}

fn name_says(name: &str) -> Says {
    let parts = parts(name);
    let Some((first, last)) = parts.first().zip(parts.last()) else { return Says::Changes };
    let has = |list: &str| parts.iter().any(|part| is(list, part));
    let pairs = [("shown", "shown_by"), ("filled", "filled_by"), ("taken", "taken_by")];
    let changes = (0..parts.len()).any(|at| changes_anywhere(&parts, at));
    let checks = first == "check" && parts.get(1).is_some_and(|next| is("changes_last", next));
    if changes
        || checks
        || is("changes_last", last)
        || pairs.iter().any(|(one, other)| has(one) && has(other))
    {
        return Says::Changes;
    }
    if parts.len() == 1 && is("not_alone", first) {
        return Says::Nothing;
    }
    if let Some(word) = word("reads_first", first).or_else(|| word("reads", first)) {
        return Says::Begins(word);
    }
    verb_of_name(&parts, last)
}

/// Whether this part of a name says that something changes. After `get` or `list` most words are nouns: `get_update`,
/// `list_users_and_groups`.
fn changes_anywhere(parts: &[String], at: usize) -> bool {
    let asked = parts[..at].iter().position(|part| is("asks", part));
    let noun = match (asked, parts.get(at + 1)) {
        (Some(asked), Some(next)) if is("joins", &parts[at]) => {
            asked + 1 < at && !is("changes", next) && !is("changes_anywhere", next)
        }
        (Some(_), _) => is("nouns", &parts[at]),
        (None, _) => false,
    };
    is("changes_anywhere", &parts[at]) && !noun
}

/// The first verb is the action; the words after it are its object.
fn verb_of_name(parts: &[String], last: &str) -> Says {
    let ends = word("reads_last", last).filter(|_| parts.len() > 1);
    for (at, part) in parts.iter().enumerate() {
        if let Some(word) = word("reads", part) {
            return Says::Reads(word);
        }
        if is("changes", part) && (ends.is_none() || part != last) {
            // It may be a noun: `network_request`, `issue_read`. Then the description decides.
            let noun = is("nouns", part) && (at > 0 || ends.is_some());
            return if noun { Says::Nothing } else { Says::Changes };
        }
        if let Some(word) = word("works_out", part) {
            return Says::WorksOut(word);
        }
    }
    ends.map_or(Says::Nothing, Says::Reads)
}

fn description_says(description: &str) -> Says {
    let sentences = sentences(description);
    if sentences.iter().any(|sentence| tells(sentence)) {
        return Says::Changes;
    }
    let begun = sentences.iter().filter_map(|sentence| verb(sentence)).take(SENTENCES);
    let said: Vec<Says> = begun.map(|(verb, rest)| begun_with(verb, rest)).collect();
    if said.contains(&Says::Changes) {
        return Says::Changes;
    }
    said.into_iter().find(|said| *said != Says::Nothing).unwrap_or(Says::Nothing)
}

/// What a sentence that starts with this verb says.
fn begun_with(verb: &str, rest: &[String]) -> Says {
    let next = rest.first().map_or("", String::as_str);
    let has = |list: &str| rest.iter().any(|word| is(list, word));
    if let Some(word) = says_so(verb, rest) {
        return Says::Reads(word);
    }
    // "Execute a SELECT query" is a harmless order.
    let order = is("orders", verb) && !(is("runs", verb) && has("harmless"));
    let taken = has("taken") && has("taken_by");
    if order || taken || has("manages") || is("manages", verb) || is_verb(verb) && orders_more(rest) {
        return Says::Changes;
    }
    // A verb alone says too little. An item is listed for sale, a guest is checked in, a message is shown to a
    // person.
    let elsewhere = next.is_empty()
        || verb == "list" && matches!(next, "a" | "an")
        || verb == "check" && is("changes_last", next)
        || is("shown_by", verb) && has("shown");
    match ["reads", "reads_first", "says_first"].iter().find_map(|list| word(list, verb)) {
        Some(_) if elsewhere => Says::Nothing,
        Some(word) => Says::Reads(word),
        None if is("changes", verb) => Says::Acts,
        None => word("works_out", verb).map_or(Says::Nothing, Says::WorksOut),
    }
}

/// "Run a read-only SQL query", but not "in read-only mode unless …".
fn says_so(verb: &str, rest: &[String]) -> Option<&'static str> {
    let words = || std::iter::once(verb).chain(rest.iter().map(String::as_str));
    let next = words().skip(1).chain([""]);
    words().zip(next).find_map(|(word, next)| self::word("says_so", word).filter(|_| !is("conditions", next)))
}

/// "List, create or delete tabs", "Get a job and lock it".
fn orders_more(rest: &[String]) -> bool {
    let order = |word: &String| is("orders", stem(word));
    let at_once = rest.first().is_some_and(|next| is("joins", next)) && rest.iter().any(order);
    at_once
        || rest.windows(3).any(|three| is("joins", &three[0]) && order(&three[1]) && !is("joins", &three[2]))
}

/// Whether a sentence says that the tool changes something.
fn tells(sentence: &[String]) -> bool {
    sentence.iter().enumerate().any(|(at, word)| {
        let before = at.checked_sub(1).map(|at| sentence[at].as_str());
        let in_place = before.is_none_or(|before| is("before_verb", before));
        let denied = before.is_some_and(|before| is("denies", before));
        let whereto = sentence.get(at + 1).is_some_and(|next| is("whereto", next));
        let passive = before.is_some_and(|before| is("passive", before)) && is("done", word) && whereto;
        !denied && (is("tells", word) || in_place && is("tells_verb", word) || passive)
    })
}

/// Whether a description says what is returned.
fn names_a_result(description: &str) -> bool {
    sentences(description).iter().flatten().any(|word| is("results", word))
}

/// The verb at the start of a sentence, and the words after it.
fn verb(sentence: &[String]) -> Option<(&str, &[String])> {
    let leads = |word: &String| is("lead_in", word) || word.ends_with("ly") || word.parse::<u32>().is_ok();
    let at = sentence.iter().position(|word| !leads(word))?;
    Some((stem(&sentence[at]), &sentence[at + 1..]))
}

/// A verb without its third-person ending: `fetches` is `fetch`, `queries` is `query`.
fn stem(word: &str) -> &str {
    let ends = ["es", "s"].iter().filter_map(|end| word.strip_suffix(end));
    std::iter::once(word).chain(ends).find(|word| is_verb(word)).unwrap_or(if word == "queries" {
        "query"
    } else {
        word
    })
}

fn is_verb(word: &str) -> bool {
    ["reads", "reads_first", "says_first", "works_out", "changes", "orders"].iter().any(|list| is(list, word))
}

/// The sentences of a description, as lower-case words and commas.
fn sentences(description: &str) -> Vec<Vec<String>> {
    let sentences = description.split(['.', '\n', ';', ':', '!', '|']);
    sentences.map(|sentence| sentence.split_whitespace().flat_map(plain).collect()).collect()
}

/// A word without punctuation. A comma after it is a separate word.
fn plain(word: &str) -> impl Iterator<Item = String> {
    let clean = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    let comma = word.ends_with(',').then(|| ",".to_owned());
    Some(clean).filter(|word| !word.is_empty()).into_iter().chain(comma)
}

/// The words of a name: `getIssue`, `get-issue` and `API-get_issue` contain the word `get`.
fn parts(name: &str) -> Vec<String> {
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
    // A namespace without meaning.
    if words.len() > 1 && matches!(words[0].as_str(), "api" | "mcp") {
        words.remove(0);
    }
    words
}

static WORDS: LazyLock<HashMap<&'static str, HashSet<&'static str>>> = LazyLock::new(|| {
    let mut lists: HashMap<_, HashSet<_>> = HashMap::new();
    for line in include_str!("words.txt").lines().filter(|line| !line.starts_with('#')) {
        if let Some((list, words)) = line.split_once(':') {
            lists.entry(list).or_default().extend(words.split_whitespace());
        }
    }
    lists
});

/// The word, if the list contains it.
fn word(list: &str, word: &str) -> Option<&'static str> {
    WORDS.get(list)?.get(word).copied()
}

fn is(list: &str, part: &str) -> bool {
    word(list, part).is_some()
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
            assert!(reads(name, "", &[]).is_some(), "{name}");
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
            "check_out_book",
            "return_order",
            "list_push",
            "fetch_to_disk",
            "parse_into_db",
            "compare_exchange",
            "view_refresh",
            "get_lock",
            "get_new_api_key",
            "show_popup",
            "",
        ] {
            assert_eq!(reads(name, "", &[]), None, "{name}");
        }
        let says = |name, description| reads(name, description, &[]);
        assert_eq!(says("get_report", "Creates a report and returns it."), None);
        assert_eq!(says("get_token", "Gets a token. Overwrites the old one."), None);
        assert_eq!(says("get_snapshot", "Take a snapshot of the disk."), None);
        assert_eq!(says("summarize", "Summarize the meeting and email it to the team."), None);
        assert_eq!(says("convert_lead", "Convert a lead to a customer. Returns the customer."), None);
        assert_eq!(says("get_issue", "Gets an issue that was created by a user."), Some("get"));
    }

    #[test]
    fn a_description_decides_where_the_name_says_nothing() {
        let says = |name, description| reads(name, description, &[]);
        assert_eq!(says("place_details", "Get details about a place."), Some("get"));
        assert_eq!(says("query", "Run a read-only SQL query"), Some("read-only"));
        assert_eq!(says("query", "Run a SQL query"), None);
        assert_eq!(says("query", "Run SQL. In read-only mode only SELECT."), None);
        assert_eq!(says("tabs", "List, create, close, or select a tab."), None);
        assert_eq!(says("contexts", "Manage contexts: list, get or set the current one."), None);
        assert_eq!(says("watch_list", "Subscribe to a list."), None);
        assert_eq!(says("audit", "Get scores. Full reports are saved to disk."), None);
        assert_eq!(says("item", "List an item for sale."), None);
        assert_eq!(says("count", "counts"), None);
    }

    #[test]
    fn reading_from_a_queue_is_not_a_read() {
        assert_eq!(reads("read_messages", "Read pending messages of a subscription.", &[]), None);
        assert_eq!(reads("get_queue_message", "", &[]), None);
        assert_eq!(reads("read_entries", "Read entries.", &["consumer_name".to_owned()]), None);
        assert_eq!(reads("get_mails", "Get mails.", &["mark_as_read".to_owned()]), None);
        assert_eq!(reads("get_mails", "Get mails.", &["folder".to_owned()]), Some("get"));
    }
}
