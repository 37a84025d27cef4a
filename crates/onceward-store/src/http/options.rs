//! The options of the URL of a ledger's server.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use onceward::InvalidInput;

use crate::password::{self, Source};
use crate::query_options;
use crate::remote::url::{Secret, parse_duration, percent_decode, plain};

/// How the server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `https://HOST[:PORT]`, `http://HOST[:PORT]`
    Tcp {
        /// The server's name or address.
        host: String,
        /// Its port: 443 for `https` and 80 for `http`, unless the URL has one.
        port: u16,
        /// The path before `/v1`, for a server behind a proxy. It does not end with `/`.
        prefix: String,
        /// How the connection is protected.
        security: Security,
    },
    /// `unix:PATH`: a socket on this machine.
    Unix {
        /// The path of the socket.
        path: PathBuf,
    },
}

/// How a connection is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    /// Not at all.
    Plain,
    /// TLS, with the certificates that the machine trusts or those in this file.
    Tls {
        /// A file of root certificates.
        ca: Option<PathBuf>,
    },
}

/// Where a ledger's server is and how the store uses it. See [`HttpOptions::parse`] for the URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpOptions {
    /// How the server is reached.
    pub endpoint: Endpoint,
    /// The token, unless `ONCE_TOKEN` has it.
    pub token: Option<Secret>,
    /// The timeout of a call.
    pub timeout: Duration,
}

/// Whether the URL allows plain HTTP to another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Insecure {
    Refuse,
    Allow,
}

const TIMEOUT: Duration = Duration::from_secs(5);
const UNDERSTOOD: &str =
    "token_file=PATH, token_env=NAME, timeout=5s, ca=FILE (https) and insecure=yes (http) are";

impl HttpOptions {
    /// The ledger of this server, with the default options.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, token: None, timeout: TIMEOUT }
    }

    /// Parses a URL: `https://[:TOKEN@]HOST[:PORT][/PREFIX][?OPTIONS]`, the same with `http` for this machine, or
    /// `unix:PATH[?OPTIONS]`.
    ///
    /// Plain HTTP to another machine needs `insecure=yes`: results, the token and the secret of the ledger's hashes
    /// would be readable on the way.
    ///
    /// ```
    /// use onceward_store::HttpOptions;
    ///
    /// assert!(HttpOptions::parse("https://ledger.example:6270?token_file=/dev/null").is_err());
    /// assert!(HttpOptions::parse("http://127.0.0.1:6270").is_ok());
    /// assert!(HttpOptions::parse("http://ledger.example:6270").is_err());
    /// assert!(HttpOptions::parse("unix:/run/once.sock?timeout=2s").is_ok());
    /// # Ok::<(), onceward::InvalidInput>(())
    /// ```
    ///
    /// # Errors
    /// Names the part that is not understood, and never shows the token.
    pub fn parse(url: &str) -> Result<Self, InvalidInput> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut options = match place.split_once(':') {
            Some(("unix", path)) => unix(path)?,
            Some(("http", rest)) => tcp(rest, 80, Security::Plain)?,
            Some(("https", rest)) => tcp(rest, 443, Security::Tls { ca: None })?,
            Some(_) | None => {
                return Err(InvalidInput::new("write https://HOST:PORT, http://127.0.0.1:PORT or unix:PATH"));
            }
        };
        let mut insecure = Insecure::Refuse;
        for pair in query_options(query)? {
            options.option(pair, &mut insecure)?;
        }
        match &options.endpoint {
            Endpoint::Tcp { host, security: Security::Plain, .. }
                if insecure == Insecure::Refuse && !is_this_machine(host) =>
            {
                Err(InvalidInput::new(
                    "http:// to another machine is not encrypted: others on the way can read results and the token. \
                     Write https://, or add ?insecure=yes if the network is your own",
                ))
            }
            Endpoint::Tcp { .. } | Endpoint::Unix { .. } => Ok(options),
        }
    }

    fn option(&mut self, pair: &str, insecure: &mut Insecure) -> Result<(), InvalidInput> {
        // An unknown word, or one without a value, can be a misplaced token.
        let (name, value) = pair.split_once('=').unwrap_or(("", pair));
        let not_understood =
            || InvalidInput::new(format!("the option {:?} is not understood; {UNDERSTOOD}", plain(name)));
        match (name, &mut self.endpoint) {
            ("token_file", _) => self.take_token(&Source::File(percent_decode(value)?.into()))?,
            ("token_env", _) => self.take_token(&Source::Variable(percent_decode(value)?))?,
            ("timeout", _) => self.timeout = parse_duration(value).ok_or_else(not_understood)?,
            ("ca", Endpoint::Tcp { security: Security::Tls { ca }, .. }) => {
                *ca = Some(percent_decode(value)?.into());
            }
            ("ca", _) => return Err(InvalidInput::new("ca= is for https://")),
            ("insecure", Endpoint::Tcp { security: Security::Plain, .. }) if value == "yes" => {
                *insecure = Insecure::Allow;
            }
            ("insecure", Endpoint::Tcp { security: Security::Tls { .. }, .. } | Endpoint::Unix { .. }) => {
                return Err(InvalidInput::new("insecure= is for http://"));
            }
            _ => return Err(not_understood()),
        }
        Ok(())
    }

    fn take_token(&mut self, source: &Source) -> Result<(), InvalidInput> {
        if self.token.is_some() {
            return Err(InvalidInput::new(
                "it contains a token and names a source for another one; remove one of them",
            ));
        }
        self.token = Some(Secret(source.read_as("token")?));
        Ok(())
    }

    /// The token of the URL or, if it names none, of `ONCE_TOKEN`.
    pub(super) fn token(&self) -> Option<Secret> {
        self.token.clone().or_else(|| password::once_token().map(Secret))
    }

    /// The server's address, for messages.
    pub(super) fn shown(&self) -> String {
        match &self.endpoint {
            Endpoint::Unix { path } => format!("unix:{}", path.display()),
            Endpoint::Tcp { host, port, prefix, security } => {
                let scheme = match security {
                    Security::Plain => "http",
                    Security::Tls { .. } => "https",
                };
                format!("{scheme}://{}:{port}{prefix}", bracketed(host))
            }
        }
    }
}

/// An IPv6 address in brackets, as in a URL.
pub(super) fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn unix(path: &str) -> Result<HttpOptions, InvalidInput> {
    let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
    if path.is_empty() {
        return Err(InvalidInput::new("it names no socket; write unix:PATH"));
    }
    Ok(HttpOptions::new(Endpoint::Unix { path: path.into() }))
}

fn tcp(rest: &str, default_port: u16, security: Security) -> Result<HttpOptions, InvalidInput> {
    // The text where the host belongs can be part of a token.
    let wrong = || {
        InvalidInput::new(
            "the host is not of the form HOST or HOST:PORT; in a token, write / ? # and @ as %2F %3F %23 and %40",
        )
    };
    let rest = rest.strip_prefix("//").ok_or_else(|| InvalidInput::new("write https://HOST:PORT"))?;
    let (login, place) = match rest.rsplit_once('@') {
        Some((login, place)) => (Some(login), place),
        None => (None, rest),
    };
    // Another reader would end the host before these, and send what follows elsewhere.
    if login.is_some_and(|login| login.contains(['/', '#'])) {
        return Err(wrong());
    }
    let (address, path) = place.split_once('/').unwrap_or((place, ""));
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
        Some(_) | None => (address, default_port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if host.is_empty() || !host.chars().all(fits) {
        return Err(wrong());
    }
    let path = path.trim_end_matches('/');
    if !path.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~')) {
        return Err(InvalidInput::new(
            "the path contains characters other than letters, digits and / - _ . ~",
        ));
    }
    let prefix = if path.is_empty() { String::new() } else { format!("/{path}") };
    let mut options = HttpOptions::new(Endpoint::Tcp { host: host.to_owned(), port, prefix, security });
    if let Some(login) = login {
        let token = login.split_once(':').map_or(login, |(_, token)| token);
        options.token = Some(Secret(percent_decode(token)?)).filter(|token| !token.0.is_empty());
    }
    Ok(options)
}

fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.to_ascii_lowercase().ends_with(".localhost")
        || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_is_given_twice_is_refused() {
        for url in ["http://127.0.0.1?timeout=1s&timeout=2s", "https://h?ca=/a&timeout=1s&ca=/b"] {
            let said = HttpOptions::parse(url).unwrap_err().to_string();
            assert!(said.contains("is given twice"), "{url}: {said}");
        }
    }

    fn parsed(url: &str) -> HttpOptions {
        HttpOptions::parse(url).unwrap_or_else(|error| unreachable!("{url}: {error}"))
    }

    #[test]
    fn a_url_sets_the_options() {
        let options = parsed("https://agent:p%40ss:w0rd@ledger.example/once/?timeout=250ms&ca=/etc/ca.pem");
        let security = Security::Tls { ca: Some("/etc/ca.pem".into()) };
        let endpoint = Endpoint::Tcp {
            host: "ledger.example".to_owned(),
            port: 443,
            prefix: "/once".to_owned(),
            security,
        };
        assert_eq!(options.endpoint, endpoint);
        assert_eq!(options.token, Some(Secret("p@ss:w0rd".to_owned())));
        assert_eq!(options.timeout, Duration::from_millis(250));
        assert_eq!(options.shown(), "https://ledger.example:443/once");
        assert!(!format!("{options:?}").contains("w0rd"), "the token is not shown");
        assert_eq!(parsed("https://tok@h:6270").token, Some(Secret("tok".to_owned())));
        assert_eq!(parsed("http://[::1]:6270").shown(), "http://[::1]:6270");
        assert_eq!(
            parsed("unix:///run/once.sock").endpoint,
            Endpoint::Unix { path: "/run/once.sock".into() }
        );
        assert_eq!(parsed("unix:once.sock").shown(), "unix:once.sock");
    }

    #[test]
    fn plain_http_is_for_this_machine_or_on_request() {
        for url in ["http://localhost:6270", "http://127.0.0.1:1", "http://[::1]", "http://h?insecure=yes"] {
            assert!(HttpOptions::parse(url).is_ok(), "{url}");
        }
        for url in ["http://h", "http://10.0.0.1:6270", "http://localhost.example", "http://h?insecure=no"] {
            assert!(HttpOptions::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn invalid_urls_are_refused_without_showing_secrets() {
        for url in [
            "https:ledger.example",
            "https://",
            "https://h:port",
            "https://h/a b",
            "https://h?token=S3CRET",
            "https://h?S3CRET",
            "https://u:S3CRET?tok@h",
            "https://u:S3CRET/tok@h",
            "https://u:x@h?token_env=S3CRET",
            "https://h?token_file=/no/such/file",
            "https://h?insecure=yes",
            "https://h?timeout=5",
            "http://localhost?ca=/etc/ca.pem",
            "unix:",
            "unix:/run/s?ca=/etc/ca.pem",
        ] {
            let refused = HttpOptions::parse(url).map(|_| ()).err().map(|error| error.to_string());
            assert!(refused.is_some_and(|refused| !refused.contains("S3CRET")), "{url}");
        }
    }
}
