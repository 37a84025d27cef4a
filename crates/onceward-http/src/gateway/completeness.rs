//! Whether a list in an answer is whole, so that what is not in it does not exist.
//!
//! A probe's *no* is a claim about everything that the upstream has. One page of a list, a part of it, or a copy from a
//! cache shows nothing about the rest. So a list is whole only if the answer says so or leaves no room for more, and a
//! sign of more always wins.

use hyper::header::{self, HeaderName};
use hyper::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::headers;

/// Words in the names of headers and members that speak of further pages. The name says that there are more if its
/// value is not empty, and that there are none if it is.
const MORE: [&str; 11] = [
    "next",
    "more",
    "continuation",
    "continue",
    "truncated",
    "hasmore",
    "hasnext",
    "nextcursor",
    "nextlink",
    "nextpage",
    "nexttoken",
];
/// Words in the names of members that say, if they are not empty, that the answer is not the whole truth.
const TROUBLE: [&str; 9] =
    ["error", "errors", "failed", "incomplete", "partial", "stale", "timed", "timeout", "unavailable"];
/// Words in the names of headers and members with the number of all items, or of all pages.
const TOTAL: [&str; 6] = ["total", "totals", "count", "found", "totalcount", "totalpages"];
/// Words that make a total one of pages.
const PAGES: [&str; 3] = ["page", "pages", "totalpages"];
/// Names with the number of all pages, without a word for a total.
const LAST_PAGE: [&str; 4] = ["last page", "num pages", "page count", "pages"];
/// Headers whose value is JSON about the pages.
const PAGING: [&str; 2] = ["pagination", "paging"];
/// Warnings of caches (RFC 7234): what they give may be stale.
const STALE_WARNINGS: [&str; 4] = ["110", "111", "112", "113"];
/// How deep members are looked at.
const DEPTH: usize = 8;

/// What was read so far, this page included.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Read {
    pub(crate) items: usize,
    pub(crate) pages: usize,
}

/// What an answer says about further pages. The greatest one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Said {
    Nothing,
    /// This is the last page.
    Last,
    /// There are more, or the answer contradicts itself.
    More,
}

/// Why an answer says nothing about what is not in it, whatever it contains. `None` if it can.
pub(crate) fn unsound(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    if status != StatusCode::OK {
        return Some(format!("status {} is not a whole answer", status.as_u16()));
    }
    stale(headers)
}

/// Why an answer may be an old one.
pub(crate) fn stale(headers: &HeaderMap) -> Option<String> {
    let has_age = texts(headers, &header::AGE).any(|age| age.trim() != "0");
    let is_stale = |warning: &str| STALE_WARNINGS.iter().any(|code| warning.trim().starts_with(code));
    let has_warning = texts(headers, &header::WARNING).flat_map(|all| all.split(',')).any(is_stale);
    (has_age || has_warning).then(|| "the probe was answered from a cache".to_owned())
}

/// Whether an answer with this list says that something is wrong with it.
pub(crate) fn is_troubled(answer: &Value, list: &[Value]) -> bool {
    let mut is_troubled = false;
    visit(answer, list, DEPTH, &mut |name, value| {
        is_troubled |= words(name).iter().any(|word| TROUBLE.contains(&word.as_str())) && is_some(value);
    });
    is_troubled
}

/// What an answer with this list says about further pages.
pub(crate) fn said(headers: &HeaderMap, answer: &Value, list: &[Value], read: Read) -> Said {
    let by_headers = headers.iter().map(|(name, value)| match value.to_str() {
        Ok(text) => by_header(name, text, read),
        Err(_) => Said::Nothing,
    });
    let mut most = by_headers.max().unwrap_or(Said::Nothing);
    visit(answer, list, DEPTH, &mut |name, value| most = most.max(by_member(name, value, read)));
    most
}

/// The values of a header.
fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok())
}

fn by_header(name: &HeaderName, text: &str, read: Read) -> Said {
    if *name == header::LINK {
        // A next page that can be followed was followed.
        return match links(text) {
            Some(links) if links.iter().any(|link| link.is("next")) => Said::More,
            Some(links) if ["prev", "previous", "first", "last"].iter().any(|rel| has(&links, rel)) => {
                Said::Last
            }
            Some(_) => Said::Nothing,
            None if text.to_ascii_lowercase().contains("next") => Said::More,
            None => Said::Nothing,
        };
    }
    if *name == header::CONTENT_RANGE {
        let all = text.rsplit_once('/').and_then(|(_, all)| all.trim().parse::<u64>().ok());
        return all.map_or(Said::More, |all| of_total(all, read.items));
    }
    let words = words(name.as_str());
    if words.iter().any(|word| PAGING.contains(&word.as_str()))
        && let Ok(value @ Value::Object(_)) = serde_json::from_str(text)
    {
        let mut most = Said::Nothing;
        visit(&value, &[], DEPTH, &mut |name, value| most = most.max(by_member(name, value, read)));
        return most;
    }
    by_words(&words, &Value::from(text), read)
}

fn has(links: &[Link], rel: &str) -> bool {
    links.iter().any(|link| link.is(rel))
}

fn by_member(name: &str, value: &Value, read: Read) -> Said {
    let words = words(name);
    // A link in a list of links.
    if words == ["rel"] {
        let is_next = value
            .as_str()
            .is_some_and(|rel| rel.split_ascii_whitespace().any(|one| one.eq_ignore_ascii_case("next")));
        return if is_next { Said::More } else { Said::Nothing };
    }
    by_words(&words, value, read)
}

fn by_words(words: &[String], value: &Value, read: Read) -> Said {
    let is_any = |known: &[&str]| words.iter().any(|word| known.contains(&word.as_str()));
    // A cursor with another name, as that of the page itself, says nothing.
    if is_any(&MORE) || words == ["cursor"] {
        return if is_some(value) { Said::More } else { Said::Last };
    }
    let is_pages = LAST_PAGE.contains(&words.join(" ").as_str()) || (is_any(&TOTAL) && is_any(&PAGES));
    match (is_pages || is_any(&TOTAL), number(value)) {
        (true, Some(all)) => of_total(all, if is_pages { read.pages } else { read.items }),
        (true, None) | (false, _) => Said::Nothing,
    }
}

fn of_total(all: u64, read: usize) -> Said {
    let read = u64::try_from(read).unwrap_or(u64::MAX);
    match all.cmp(&read) {
        std::cmp::Ordering::Greater => Said::More,
        std::cmp::Ordering::Equal => Said::Last,
        // It counts something else.
        std::cmp::Ordering::Less => Said::Nothing,
    }
}

/// The number that a member has, directly or as the largest one inside of it.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Object(members) => members.values().filter_map(number).max(),
        Value::Null | Value::Bool(_) | Value::Array(_) => None,
    }
}

/// Whether a value says something other than no.
fn is_some(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_so) => *is_so,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => {
            !matches!(text.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "null" | "none")
        }
        Value::Array(items) => items.iter().any(is_some),
        Value::Object(members) => members.values().any(is_some),
    }
}

/// Visits the members of an answer, but not those of the resources in its list.
fn visit<'a>(value: &'a Value, list: &[Value], depth: usize, see: &mut impl FnMut(&'a str, &'a Value)) {
    if depth == 0 {
        return;
    }
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                see(name, member);
                visit(member, list, depth - 1, see);
            }
        }
        Value::Array(items) if !std::ptr::eq(items.as_slice(), list) => {
            // Other lists have resources too, whose members are about themselves.
            for item in items.iter().filter_map(Value::as_object) {
                if let Some((name, rel)) = item.get_key_value("rel") {
                    see(name, rel);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
    }
}

/// The words of a name: `nextPageToken`, `next_page_token`, `X-Next-Page` and `@odata.nextLink`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for char in name.chars() {
        let begins = !char.is_alphanumeric() || (was_lower && char.is_uppercase());
        if begins && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if char.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(char.to_lowercase());
        }
        was_lower = char.is_lowercase() || char.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A link of a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) target: String,
    rels: Vec<String>,
}

impl Link {
    /// Whether it is one of this kind.
    pub(crate) fn is(&self, rel: &str) -> bool {
        self.rels.iter().any(|own| own == rel)
    }
}

/// The links of a `Link` header (RFC 8288). `None` if it is malformed.
pub(crate) fn links(text: &str) -> Option<Vec<Link>> {
    let mut links = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t', ',']);
    while !rest.is_empty() {
        let (target, after) = rest.strip_prefix('<')?.split_once('>')?;
        let mut link = Link { target: target.trim().to_owned(), rels: Vec::new() };
        let (parameters, after) = headers::parameters(after)?;
        // Only the first one counts.
        if let Some((_, rels)) = parameters.iter().find(|(name, _)| name == "rel") {
            link.rels = rels.split_ascii_whitespace().map(str::to_ascii_lowercase).collect();
        }
        rest = after;
        links.push(link);
        if !rest.is_empty() && !rest.starts_with(',') {
            return None;
        }
        rest = rest.trim_start_matches([' ', '\t', ',']);
    }
    Some(links)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use serde_json::json;

    use super::*;

    fn headers(line: &str) -> HeaderMap {
        let Some((name, value)) = line.split_once(": ") else { return HeaderMap::new() };
        HeaderMap::from_iter([(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())])
    }

    /// What an answer with three of three items says, by a header.
    fn by(line: &str) -> Said {
        let list = [json!({"next": 1}), json!({"error": 1}), json!({})];
        said(&headers(line), &Value::Null, &list, Read { items: 3, pages: 1 })
    }

    #[test]
    fn headers_say_whether_there_is_more() {
        for line in [
            "link: </n?page=2>; rel=\"next\"",
            "link: </n?page=2>; rel=next",
            "link: </n?page=2>; Rel=\"Next\"",
            "link: </n?page=2>; rel=\"last next\"",
            "link: </n?page=2>; title=\"a, b; rel=x\"; rel=\"next\"",
            "link: </n?page=1>; rel=\"prev\", </n?page=3>; title=\"\\\"\"; rel=\"next\"",
            "link: /n?page=2; rel=next",
            "link: </n?page=2; rel=\"next\"",
            "x-next-page: 2",
            "x-has-more: true",
            "x-ms-continuation: abc",
            "opc-next-page: abc",
            "x-total-pages: 2",
            "x-wp-totalpages: 2",
            "x-total-count: 4",
            "content-range: items 0-2/6",
            "content-range: 0-2/*",
            "x-pagination: {\"TotalCount\":3,\"HasNext\":true}",
        ] {
            assert_eq!(by(line), Said::More, "{line}");
        }
        for line in [
            "link: </n?page=1>; rel=\"prev\", </n?page=1>; rel=\"first\"",
            "x-next-page: ",
            "x-next-page:  ",
            "x-total-count: 3",
            "x-total-pages: 1",
            "content-range: items 0-2/3",
            "x-pagination: {\"HasNext\":false}",
        ] {
            assert_eq!(by(line), Said::Last, "{line}");
        }
        for line in
            ["", "link: </style.css>; rel=preload", "x-ratelimit-limit: 60", "etag: \"next\"", "date: x"]
        {
            assert_eq!(by(line), Said::Nothing, "{line}");
        }
    }

    #[test]
    fn members_say_whether_there_is_more() {
        let said_by = |more: Value| {
            let mut answer = json!({"data": [{"next": "x", "has_more": true}, {}, {}]});
            answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let list = answer["data"].as_array().unwrap();
            said(&HeaderMap::new(), &answer, list, Read { items: 3, pages: 1 })
        };
        for more in [
            json!({"has_more": true}),
            json!({"hasNextPage": true}),
            json!({"next": "/n?page=2"}),
            json!({"next_cursor": "abc"}),
            json!({"nextPageToken": "abc"}),
            json!({"NextMarker": "abc", "IsTruncated": false}),
            json!({"@odata.nextLink": "https://x"}),
            json!({"links": {"next": "/n?page=2"}}),
            json!({"_links": {"next": {"href": "/n?page=2"}}}),
            json!({"links": [{"rel": "self"}, {"rel": "next", "href": "/n"}]}),
            json!({"paging": {"cursors": {"after": "x"}, "next": "https://x"}}),
            json!({"cursor": "abc"}),
            json!({"response_metadata": {"next_cursor": "abc"}}),
            json!({"total": 4}),
            json!({"meta": {"total_count": 250}}),
            json!({"hits": {"total": {"value": 10000, "relation": "gte"}}}),
            json!({"page": 1, "total_pages": 2}),
            json!({"current_page": 1, "last_page": 2}),
            json!({"pages": 2}),
        ] {
            assert_eq!(said_by(more.clone()), Said::More, "{more}");
        }
        for more in [
            json!({"has_more": false}),
            json!({"next": null}),
            json!({"next_cursor": ""}),
            json!({"links": {"next": null, "self": "/n"}}),
            json!({"total": 3}),
            json!({"total_pages": 1, "page": 1}),
        ] {
            assert_eq!(said_by(more.clone()), Said::Last, "{more}");
        }
        for more in [json!({}), json!({"object": "list", "url": "/n"}), json!({"included": [{"next": "x"}]})]
        {
            assert_eq!(said_by(more.clone()), Said::Nothing, "{more}");
        }
    }

    #[test]
    fn an_answer_can_say_that_it_is_not_the_whole_truth() {
        let list = [];
        for trouble in [
            json!({"errors": [{"message": "shard 2"}]}),
            json!({"incomplete_results": true}),
            json!({"partial": true}),
            json!({"timed_out": true}),
            json!({"_shards": {"failed": 1}}),
        ] {
            assert!(is_troubled(&trouble, &list), "{trouble}");
        }
        for sound in [json!({"errors": []}), json!({"error": null}), json!({"incomplete_results": false})] {
            assert!(!is_troubled(&sound, &list), "{sound}");
        }
        for (status, line, is_sound) in [
            (200, "", true),
            (200, "age: 0", true),
            (200, "age: 12", false),
            (200, "warning: 110 - \"Response is Stale\"", false),
            (200, "warning: 299 - \"deprecated\"", true),
            (202, "", false),
            (203, "", false),
            (206, "", false),
            (207, "", false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(unsound(status, &headers(line)).is_none(), is_sound, "{status} {line}");
        }
    }
}
