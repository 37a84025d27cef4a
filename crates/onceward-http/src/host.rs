//! Whether a request comes from this machine, as far as a browser would tell.
//!
//! A page from elsewhere can make a browser send requests to this machine. Its `Origin` says so; and if its host name
//! resolves to this machine, its `Host` does.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::Request;
use hyper::header::{self, HeaderValue};

/// Whether a request comes from this machine and is for it, as far as a browser would tell. Its target may name a host
/// too; one of the two must. `names` are further names of this machine.
#[must_use]
pub fn is_from_here<B>(request: &Request<B>, names: &[String]) -> bool {
    let origins = request.headers().get_all(header::ORIGIN).iter().all(is_loopback_origin);
    let hosts = request.headers().get_all(header::HOST).iter().map(HeaderValue::to_str);
    let target = request.uri().authority().map(|authority| Ok(authority.as_str()));
    let mut hosts = hosts.chain(target).peekable();
    origins
        && hosts.peek().is_some()
        && hosts.all(|host| host.is_ok_and(|host| is_loopback_host(host) || is_one_of(names, host)))
}

/// Whether a host, with its port or without, has one of these names.
fn is_one_of(names: &[String], host: &str) -> bool {
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    port.is_none_or(is_port) && names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether the origin is this machine. Clients other than browsers send no origin.
#[must_use]
pub fn is_loopback_origin(value: &HeaderValue) -> bool {
    let Ok(text) = value.to_str() else { return false };
    let host = text.split_once("://").map_or(text, |(_, host)| host);
    is_loopback_host(host)
}

/// Whether a host, with its port or without, is this machine. Anything else that an authority can contain, such as a
/// user name, is refused: two parsers could read it differently.
#[must_use]
pub fn is_loopback_host(authority: &str) -> bool {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let Some((address, rest)) = rest.split_once(']') else { return false };
            let is_loopback = address.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback());
            return is_loopback && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port));
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let address = host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    let host = host.to_ascii_lowercase();
    let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let name = host == "localhost" || (is_name && host.ends_with(".localhost"));
    port.is_none_or(is_port) && (address || name)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts_and_origins_are_recognized() {
        for host in ["localhost", "localhost:80", "127.0.0.1:9", "[::1]:8", "a.localhost", "127.9.9.9"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com:80",
            "10.0.0.1",
            "[fe80::1]:8",
            "",
            "127.0.0.1:57881@evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "user:1@localhost",
            "127.0.0.1:x",
            "127.0.0.1:",
            "127.0.0.1:+1",
            "127.0.0.1:65536",
            "127.0.0.1:1:1",
            "[::1]evil.example",
            "[::1",
            "[::1]:x",
            "::1",
            "[127.0.0.1]",
            "evil.example/.localhost",
            "evil.example#.localhost",
            "localhost/",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
        assert!(is_loopback_origin(&HeaderValue::from_static("http://localhost:5173")));
        assert!(!is_loopback_origin(&HeaderValue::from_static("null")));
        assert!(!is_loopback_origin(&HeaderValue::from_static("https://evil.example")));
    }
}
