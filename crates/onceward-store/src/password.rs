//! Passwords from outside the ledger's URL. A URL is visible in the process list, in the shell history and in the
//! environment of every command. The password can come from a file or a variable that the URL names and, for
//! PostgreSQL, from where its own tools read it.
//!
//! Apart from the edges this is the only module that reads the environment, and only what a URL or PostgreSQL's
//! conventions name, and `ONCE_TOKEN`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use onceward::InvalidInput;

/// The source of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// `password_file=PATH`
    File(PathBuf),
    /// `password_env=NAME`
    Variable(String),
}

impl Source {
    /// Reads the password, without the final line break.
    pub(crate) fn read(&self) -> Result<String, InvalidInput> {
        self.read_as("password")
    }

    /// The same for a secret with another name, such as a token.
    pub(crate) fn read_as(&self, secret: &str) -> Result<String, InvalidInput> {
        let (place, text) = match self {
            Self::File(path) => {
                let place = format!("{secret}_file={}", path.display());
                (place, std::fs::read_to_string(path).map_err(|error| error.to_string()))
            }
            Self::Variable(name) => {
                (format!("{secret}_env={name}"), std::env::var(name).map_err(|error| error.to_string()))
            }
        };
        let text = text.map_err(|why| InvalidInput::new(format!("{place} cannot be read: {why}")))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(InvalidInput::new(format!("{place} is empty"))),
            password => Ok(password.to_owned()),
        }
    }
}

/// The token for a ledger's server if its URL names none: `ONCE_TOKEN`.
pub(crate) fn once_token() -> Option<String> {
    let token = std::env::var("ONCE_TOKEN").ok()?;
    Some(token.trim_end_matches(['\r', '\n']).to_owned()).filter(|token| !token.is_empty())
}

/// The connection that a PostgreSQL password is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Login<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

/// The password that PostgreSQL's own tools would use: `PGPASSWORD`, then the file named by `PGPASSFILE`, then
/// `~/.pgpass`.
pub(crate) fn for_postgres(login: Login<'_>) -> Option<String> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    variable("PGPASSWORD").or_else(|| {
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".pgpass"));
        let file = variable("PGPASSFILE").map(PathBuf::from).or_else(home)?;
        // Like PostgreSQL's tools, ignore a file that others can read.
        let private = std::fs::metadata(&file).is_ok_and(|meta| meta.permissions().mode() & 0o077 == 0);
        let text = std::fs::read_to_string(&file).ok().filter(|_| private)?;
        text.lines().find_map(|line| match_line(line, login))
    })
}

/// Matches a line `host:port:database:user:password`, where `*` matches anything and `\` escapes `:` and `\`.
fn match_line(line: &str, login: Login<'_>) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        let last = fields.len() - 1;
        match c {
            '\\' => fields[last].extend(characters.next()),
            ':' if last < 4 => fields.push(String::new()),
            _ => fields[last].push(c),
        }
    }
    let [host, port, database, user, password]: [String; 5] = fields.try_into().ok()?;
    let port_said = login.port.to_string();
    let said = [login.host, &port_said, login.database, login.user];
    let fits =
        [host, port, database, user].iter().zip(said).all(|(field, said)| field == "*" || field == said);
    (fits && !password.is_empty()).then_some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pgpass_line_is_matched() {
        let login = Login { host: "db", port: 5432, database: "once", user: "me" };
        let password = |line: &str| match_line(line, login);
        assert_eq!(password("db:5432:once:me:p:w"), Some("p:w".to_owned()));
        assert_eq!(password(r"*:*:*:me:p\:\\w"), Some(r"p:\w".to_owned()));
        for line in ["other:*:*:*:p", "db:5433:*:*:p", "*:*:*:you:p", "#*:*:*:*:p", "*:*:*", "*:*:*:*:"] {
            assert_eq!(password(line), None, "{line}");
        }
    }

    #[test]
    fn a_password_file_contains_one_password() -> Result<(), Box<dyn std::error::Error>> {
        let file = tempfile::NamedTempFile::new()?;
        let source = Source::File(file.path().to_owned());
        assert!(source.read().is_err_and(|error| error.to_string().contains("is empty")));
        std::fs::write(file.path(), "p w \r\n")?;
        assert_eq!(source.read()?, "p w ");
        assert!(Source::Variable("ONCE_NO_SUCH_VARIABLE".to_owned()).read().is_err());
        Ok(())
    }
}
