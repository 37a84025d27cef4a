//! Makes text from outside safe to show: stored names, reasons and output, and URLs that may contain a password.
//!
//! Other programs write to a ledger. Their text must not move the cursor, fill the clipboard, reorder a line or look
//! like a line of its own, so every surface that prints text from a record or a file uses this module.

use std::borrow::Cow;
use std::ops::Range;

/// Whether a character can control a terminal or mislead a reader: control characters, line and paragraph separators,
/// bidirectional controls, and invisible characters.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let bidi =
        matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let line = matches!(c, '\u{2028}' | '\u{2029}');
    let unseen = matches!(c, '\u{180e}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    c.is_control() || bidi || line || unseen
}

/// Text for one line: every hidden character is escaped, including line breaks.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// Text of several lines: line breaks and tabs stay, every other hidden character is escaped.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// Text of several lines to which a surface has added colours: the colours stay as well. Every surface prints through
/// this function, so that a part added without [`one_line`] can at worst colour or break a line.
#[must_use]
pub fn coloured(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| is_hidden(c) && !matches!(c, '\n' | '\t')) {
        return Cow::Borrowed(text);
    }
    let mut printed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, from) = rest.split_at(at);
        printed.push_str(&lines(before));
        let length = colour(from).unwrap_or(1);
        let (sequence, after) = from.split_at(length);
        if length > 1 {
            printed.push_str(sequence)
        } else {
            printed.push_str(&lines(sequence))
        }
        rest = after;
    }
    printed.push_str(&lines(rest));
    Cow::Owned(printed)
}

/// The length of the colour sequence (`ESC [ 1 ; 31 m`) at the start of the text.
fn colour(text: &str) -> Option<usize> {
    let codes = text.strip_prefix("\u{1b}[")?;
    let end = codes.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    codes[end..].starts_with('m').then_some("\u{1b}[".len() + end + 1)
}

/// JSON text with hidden characters as `\u` escapes: the same document, because they occur only in strings.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| is_hidden(c) && !c.is_ascii_control() || c == '\u{7f}';
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hidden(c) {
            let mut units = [0; 2];
            escaped.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

fn escaped(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// A URL, or what is made from one, to be shown: each password in it is `***`. It need not be a valid URL: a server's
/// URL behind `sqlite:` and one that became a path are masked as well.
#[must_use]
pub fn masked(url: &str) -> Cow<'_, str> {
    let mut parts: Vec<Range<usize>> = shown_user(url).into_iter().collect();
    // A password of the query that a password of the user already covers is not replaced twice.
    let end = parts.first().map_or(0, |part| part.end);
    parts.extend(query_secrets(url).into_iter().filter(|part| part.start >= end));
    replace(url, parts, "***")
}

/// A word as a shell reads it.
///
/// ```
/// assert_eq!(onceward::text::shell_word("run-7"), "run-7");
/// assert_eq!(onceward::text::shell_word("Anna's run"), r"'Anna'\''s run'");
/// ```
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Text that may quote URLs, to be shown: each password in them is `***`.
#[must_use]
pub fn masked_in(text: &str) -> Cow<'_, str> {
    if !text.contains(['@', '=']) {
        return Cow::Borrowed(text);
    }
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
    let mut shown = String::with_capacity(text.len());
    for part in text.split_inclusive(ends) {
        let word = part.trim_end_matches(ends);
        shown.push_str(&masked(word));
        shown.push_str(&part[word.len()..]);
    }
    Cow::Owned(shown)
}

/// Text for another machine: each absolute path in it is `a file of the server`.
#[must_use]
pub fn without_paths(text: &str) -> Cow<'_, str> {
    let opens = |c: char| matches!(c, '"' | '\'' | '`' | '(');
    let starts = |word: &str| {
        let word = word.strip_prefix("sqlite:").unwrap_or(word).trim_start_matches(opens);
        let name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '~');
        word.strip_prefix('/').is_some_and(|rest| rest.starts_with(name))
    };
    if !text.split(' ').any(starts) {
        return Cow::Borrowed(text);
    }
    let mut shown: Vec<&str> = Vec::new();
    let words: Vec<&str> = text.split(' ').collect();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if starts(word) {
            // A path may contain spaces: it ends with the last word of the clause that has a `/`.
            let clause = words[at..]
                .iter()
                .position(|word| word.ends_with([':', ';', ',']))
                .map_or(words.len(), |end| at + end + 1);
            let last = (at..clause).rev().find(|at| words[*at].contains('/')).unwrap_or(at);
            shown.push(match words[last].chars().last() {
                Some(':') => "a file of the server:",
                Some(';') => "a file of the server;",
                Some(',') => "a file of the server,",
                Some(_) | None => "a file of the server",
            });
            at = last;
        } else {
            shown.push(word);
        }
        at += 1;
    }
    Cow::Owned(shown.join(" "))
}

/// The password of `user:password@`.
fn shown_user(url: &str) -> Option<Range<usize>> {
    let Some(begin) = after_scheme(url) else {
        // A path: a password that is not in a URL has no `/`.
        let mut begin = if url.starts_with("sqlite:") { "sqlite:".len() } else { 0 };
        for name in url[begin..].split('/') {
            if let Some(password) = user_password(name) {
                return Some(begin + password.start..begin + password.end);
            }
            begin += name.len() + 1;
        }
        return None;
    };
    let rest = &url[begin..];
    let authority = rest.find(['/', '?', '#']).map_or(rest, |end| &rest[..end]);
    // A password that is not percent-encoded may contain `/`, `?` or `#`; then it ends at the last `@`.
    let strays = rest[authority.len()..].contains('@');
    let authority = if strays { rest } else { authority };
    let password = user_password(authority).or_else(|| lone_token(&url[..begin], authority))?;
    Some(begin + password.start..begin + password.end)
}

/// The token of `https://TOKEN@HOST`: a ledger's server has tokens and no users, so what looks like a user is one.
fn lone_token(scheme: &str, authority: &str) -> Option<Range<usize>> {
    let end = authority.rfind('@').filter(|end| *end > 0)?;
    let has_colon = authority[..end].contains(':') || authority[..end].to_ascii_lowercase().contains("%3a");
    (is_http(scheme) && !has_colon).then_some(0..end)
}

fn is_http(url: &str) -> bool {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

/// Where the authority of a URL begins: behind the first `scheme:` that has slashes and is not the path of `sqlite:`.
fn after_scheme(url: &str) -> Option<usize> {
    url.match_indices(":/").find_map(|(colon, _)| {
        let rest = &url[colon + 1..];
        let slashes = rest.len() - rest.trim_start_matches('/').len();
        let is_path = url[..colon].ends_with("sqlite") && slashes != 2;
        (!is_path).then_some(colon + 1 + slashes)
    })
}

/// The password of a text that begins with `user:password@`. A colon that is written as `%3A` counts too: a parser
/// takes what follows for a part of the name, but the author may have meant a password.
fn user_password(text: &str) -> Option<Range<usize>> {
    let end = text.rfind('@')?;
    let user = text[..end].to_ascii_lowercase();
    let colons = [(":", 1), ("%3a", 3)].map(|(colon, length)| user.find(colon).map(|at| at + length));
    let begin = colons.into_iter().flatten().min()?;
    (begin < end).then_some(begin..end)
}

/// The values of `password=…` and what is spelled like it, wherever they are.
fn query_secrets(url: &str) -> Vec<Range<usize>> {
    let mut at = 0;
    let mut found = Vec::new();
    for pair in url.split('&') {
        let secret = pair.match_indices('=').find_map(|(equals, _)| {
            let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '%');
            let name = pair[..equals].rsplit(|c| !in_name(c)).next().unwrap_or_default();
            (is_secret(name) && equals + 1 < pair.len()).then_some(equals + 1)
        });
        found.extend(secret.map(|begin| at + begin..at + pair.len()));
        at += pair.len() + 1;
    }
    found
}

/// Whether an option of that name has a secret for its value. Its letters may be percent-encoded.
fn is_secret(name: &str) -> bool {
    let name = percent_decoded(name).to_ascii_lowercase().replace('-', "_");
    let is_place = ["_file", "_env", "passfile"].iter().any(|end| name.ends_with(end));
    let begins = name.starts_with("pass") || name.starts_with("pwd");
    !is_place && (begins || ["password", "passwd", "secret", "token"].iter().any(|word| name.contains(word)))
}

/// Percent-decoded text, such as the name or the value of an option of a URL. What cannot be decoded stays as it is.
#[must_use]
pub fn percent_decoded(text: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8().unwrap_or(Cow::Borrowed(text))
}

/// A URL without its password, for programs that get the password from elsewhere.
#[must_use]
pub fn without_password(url: &str) -> Cow<'_, str> {
    let whole = |secret: Secret| match secret {
        // Without its token, the name of a user would be read as the token.
        Secret::OfUser(range) if is_http(url) => after_scheme(url).unwrap_or(range.start)..range.end + 1,
        // Remove the separator too: `user:@host` would be an empty password.
        Secret::OfUser(range) if url[..range.start].ends_with(':') => range.start - 1..range.end,
        Secret::OfUser(range) => range.start - "%3A".len()..range.end,
        Secret::OfQuery(range) => {
            let begin = url[..range.start].rfind(['?', '&']).unwrap_or(range.start);
            let begins_query = url[begin..].starts_with('?');
            let more = url[range.end..].starts_with('&');
            // If the first parameter is removed, its `?` stays for the next one.
            if begins_query && more { begin + 1..range.end + 1 } else { begin..range.end }
        }
    };
    let parts: Vec<Range<usize>> = secrets_of(url).into_iter().map(whole).collect();
    replace(url, parts, "")
}

/// Whether a URL contains a password.
#[must_use]
pub fn has_password(url: &str) -> bool {
    !secrets_of(url).is_empty()
}

/// Where a URL contains its password.
enum Secret {
    OfUser(Range<usize>),
    OfQuery(Range<usize>),
}

fn secrets_of(url: &str) -> Vec<Secret> {
    // A path has no password, and may contain any character.
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| *scheme != "sqlite") else {
        return Vec::new();
    };
    let begin = scheme.len() + "://".len();
    let of_user = shown_user(url).filter(|part| part.start >= begin).map(Secret::OfUser);
    let strays = rest.find(['/', '?', '#']).is_some_and(|end| rest[end..].contains('@'));
    let of_query = if strays { Vec::new() } else { in_query(url) };
    of_user.into_iter().chain(of_query).collect()
}

/// `password=…` and similar parameters.
fn in_query(url: &str) -> Vec<Secret> {
    let Some(begin) = url.find('?').map(|at| at + 1) else { return Vec::new() };
    let mut at = begin;
    let mut found = Vec::new();
    for pair in url[begin..].split('&') {
        let value = pair.find('=').map_or(pair.len(), |equals| equals + 1);
        if is_secret(pair[..value].trim_end_matches('=')) && value < pair.len() {
            found.push(Secret::OfQuery(at + value..at + pair.len()));
        }
        at += pair.len() + 1;
    }
    found
}

fn replace<'a>(text: &'a str, parts: Vec<Range<usize>>, by: &str) -> Cow<'a, str> {
    if parts.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut replaced = text.to_owned();
    for part in parts.into_iter().rev() {
        replaced.replace_range(part, by);
    }
    Cow::Owned(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_hidden_is_printed() {
        let hostile = "a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}b\u{2028}c\nd\u{e0041}\u{7f}";
        assert_eq!(one_line(hostile), r"a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}b\u{2028}c\nd\u{e0041}\u{7f}");
        assert!(lines(hostile).contains("c\nd") && !lines(hostile).contains('\u{1b}'));
        assert_eq!(one_line("注文 é 👩‍👧"), "注文 é 👩‍👧");
    }

    #[test]
    fn colours_stay_and_other_sequences_do_not() {
        let text = "\u{1b}[1;31mred\u{1b}[0m \u{1b}[2J\u{1b}]52;c;x\u{7}\u{1b}";
        assert_eq!(coloured(text), "\u{1b}[1;31mred\u{1b}[0m \\u{1b}[2J\\u{1b}]52;c;x\\u{7}\\u{1b}");
    }

    #[test]
    fn json_stays_the_same_document() {
        let document = serde_json::json!({"a\u{202e}": "b\u{7f}\u{85}\u{2028}\u{e0041}\n"});
        let text = document.to_string();
        let shown = json(&text);
        assert!(shown.is_ascii(), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), document);
    }

    #[test]
    fn a_password_is_neither_shown_nor_passed_on() {
        for (url, shown, passed) in [
            ("postgres://a:pw@h/db", "postgres://a:***@h/db", "postgres://a@h/db"),
            (
                "postgres://h/db?password=pw&schema=s",
                "postgres://h/db?password=***&schema=s",
                "postgres://h/db?schema=s",
            ),
            (
                "postgres://h/db?schema=s&password=pw",
                "postgres://h/db?schema=s&password=***",
                "postgres://h/db?schema=s",
            ),
            ("postgres://h/db?password=pw", "postgres://h/db?password=***", "postgres://h/db"),
            ("redis://:pw@h", "redis://:***@h", "redis://@h"),
            ("redis://u:p@ss/w?rd@h/0", "redis://u:***@h/0", "redis://u@h/0"),
            // A server's library decodes names of options, and a colon in a name is most likely meant as one.
            (
                "postgres://h/db?%70assw%6Frd=pw&schema=s",
                "postgres://h/db?%70assw%6Frd=***&schema=s",
                "postgres://h/db?schema=s",
            ),
            ("redis://u%3apw@h", "redis://u%3a***@h", "redis://u@h"),
            // A server's token may be written without a user.
            ("https://tok@h:1/p", "https://***@h:1/p", "https://h:1/p"),
            ("http://t%40k@h", "http://***@h", "http://h"),
            ("https://:tok@h", "https://:***@h", "https://h"),
            ("https://u:tok@h", "https://u:***@h", "https://h"),
        ] {
            assert_eq!((masked(url).as_ref(), without_password(url).as_ref()), (shown, passed), "{url}");
            assert!(has_password(url) && !has_password(passed), "{url}");
        }
        for url in [
            "sqlite:/a:b/c@d.db",
            "sqlite:///a:b/c@d.db",
            "postgres://me@h:5432/db",
            "redis://h:1,i:2/0",
            "redis://h?password_file=/run/p",
            "redis://h?p%61ssword_file=/run/p",
            "postgres://h/db?application_name=50%25",
        ] {
            assert_eq!((masked(url).as_ref(), has_password(url)), (url, false));
        }
    }

    #[test]
    fn another_machine_does_not_learn_the_paths_of_the_server() {
        for (text, shown) in [
            (
                "cannot write /var/lib/once.db: disk full; free some",
                "cannot write a file of the server: disk full; free some",
            ),
            ("/a b/once.db was moved while in use", "a file of the server was moved while in use"),
            (
                "cannot read \"/a/b\", or sqlite:/c/d; check it",
                "cannot read a file of the server, or a file of the server; check it",
            ),
            ("run `once restored --at TIME` and/or wait", "run `once restored --at TIME` and/or wait"),
            ("GET /: 1 / 2", "GET /: 1 / 2"),
        ] {
            assert_eq!(without_paths(text), shown);
        }
    }

    #[test]
    fn text_that_is_not_percent_encoded_stays_as_it_is() {
        for (text, decoded) in [("a%20b%C3%A9", "a bé"), ("100%", "100%"), ("%zz%4", "%zz%4"), ("%ff", "%ff")]
        {
            assert_eq!(percent_decoded(text), decoded);
        }
    }

    #[test]
    fn a_password_is_masked_in_what_is_no_valid_url() {
        for (url, shown) in [
            ("sqlite:postgres://u:pw@h/db", "sqlite:postgres://u:***@h/db"),
            ("sqlite:/home/me/postgres://u:pw@h/db", "sqlite:/home/me/postgres://u:***@h/db"),
            ("/home/me/postgres:/u:pw@h/db", "/home/me/postgres:/u:***@h/db"),
            ("sqlite://u:pw@h/db", "sqlite://u:***@h/db"),
            ("sqlite:///postgres://u:pw@h/db", "sqlite:///postgres://u:***@h/db"),
            ("sqlite:/home/u:pw@h/db", "sqlite:/home/u:***@h/db"),
            ("sqlite:u:pw@h/db", "sqlite:u:***@h/db"),
            ("postgres:redis://u:p/w@h", "postgres:redis://u:***@h"),
            ("u:pw@h/db", "u:***@h/db"),
            ("once.db?password=pw", "once.db?password=***"),
            ("redis://h?schema=x;sslPassword=pw", "redis://h?schema=x;sslPassword=***"),
            ("redis://h?client-secret=p&a=1", "redis://h?client-secret=***&a=1"),
            ("postgres://u:pw?password=x@h", "postgres://u:***@h"),
        ] {
            assert_eq!(masked(url), shown);
            assert_eq!(
                masked_in(&format!("cannot use \"{url}\": no\n")),
                format!("cannot use \"{shown}\": no\n")
            );
        }
        let text = "write redis://HOST, a@b or a=b; see /tmp/a: permission denied, mail x@y";
        assert_eq!(masked_in(text), text);
    }
}
