//! What the configuration refuses, and the headers of the gateway that a request may have once.

use crate::common::{Server, tenant};
use axum::body::Body;
use axum::http::Request;

#[test]
fn a_configuration_that_contradicts_itself_is_refused() {
    let (acme, _) = tenant("acme", "");
    for (policy, expected) in [
        ("[tenant.acme]\n".to_owned(), "no token"),
        (acme.replace("acme", "Acme"), "must be 1 to 32"),
        (format!("{acme}{}", acme.replace("acme", "globex")), "configured twice"),
        ("[tenant.a]\ntokens = [\"secret-token\"]\n".to_owned(), "64 hexadecimal digits"),
        (format!("{acme}rate = 0\n"), "above 0"),
        ("[serve]\nmax_body = 0\n".to_owned(), "max_body is 0"),
        ("[serve]\nmax_bodies = 1\n".to_owned(), "never fits"),
        ("[serve]\nheader_timeout = \"soon\"\n".to_owned(), ""),
        ("[serve]\nlisten = [\"localhost\"]\n".to_owned(), ""),
        ("[serve]\nnope = 1\n".to_owned(), "nope"),
        ("[serve]\nmetrics = \"token\"\n".to_owned(), "line 1: [serve]"),
        ("[upstream.u]\nurl = \"ftp://x\"\n".to_owned(), "line 1: [upstream.u]"),
        (
            "[upstream.u]\nurl = \"https://x\"\nmax_stored = 8388609\n".to_owned(),
            "line 3: [upstream.u] max_stored",
        ),
        (
            two_upstreams("host = \"a\"", "host = \"A\""),
            "line 6: [upstream.v] host: [upstream.u] has the same",
        ),
        (two_upstreams("host = \"v.localhost\"", ""), "line 3: [upstream.u] host: that is the host of"),
        (two_upstreams("port = 7", "port = 7"), "line 6: [upstream.v] port: [upstream.u] has the same"),
    ] {
        refuses(&policy, expected);
    }
}

#[test]
fn a_hook_that_contradicts_itself_is_refused() {
    let (acme, _) = tenant("acme", "");
    for (policy, expected) in [
        ("[hook.x]\n".to_owned(), "line 1: [hook.x]"),
        ("[hook.stripe]\nsecrets = [\"$MISSING\"]\n".to_owned(), "line 1: [hook.stripe]"),
        (hook("nope = 1", "pull = true"), "line 3: [hook.chat] has no setting `nope`"),
        (hook("payloads = \"31d\"", "pull = true"), "line 3: [hook.chat] payloads: a content cannot be kept"),
        (hook("tenant = \"acme\"", "pull = true"), "line 3: [hook.chat] tenant: there is no such tenant"),
        (format!("{}{acme}", hook("", "pull = true")), "needs `tenant`"),
        (hook("", ""), "a handler has one of `url`, `command` and `pull = true`"),
        (hook("", "pull = true\nurl = \"http://x\""), "a handler has one of"),
        (hook("", "command = []"), "the command is empty"),
        (
            hook("", "pull = true\nclass = \"probed\""),
            "line 7: [hook.chat.handler.app] class: \"probed\" needs a probe",
        ),
        (
            hook("", "url = \"http://x\"\nclass = \"keyed\"\nprobe = { get = \"/a\" }"),
            "line 7: [hook.chat.handler.app] class: a handler with a probe",
        ),
        (
            hook("", "url = \"http://x\"\nprobe = { get = \"a\" }"),
            "line 7: [hook.chat.handler.app] probe: get: must be a path",
        ),
        (hook("", "url = \"http://x\"\nprobe = { command = \"a\" }"), "has probe = { get = … }"),
        (hook("", "pull = true\nprobe = { get = \"/a\" }"), "has probe = { get = … }"),
        (hook("", "command = [\"a\"]\nprobe = { command = \"a\", absent = [404] }"), "its exit code"),
        (hook("", "pull = true\norder = \"id\""), "must be a JSON pointer"),
        (hook("", "pull = true\nattempts = 0"), "nothing could ever be delivered"),
        (hook("", "url = \"http://x\"\ntimeout = \"0s\""), "timeout: 0, so no attempt could ever succeed"),
        (hook("ids = \"1m\"\npayloads = \"1m\"", "pull = true"), "ids: they are remembered for less than"),
        (hook("tolerance = \"31d\"", "pull = true"), "ids: they are remembered for less than the tolerance"),
        (
            hook("max_body = 16777216", "pull = true"),
            "line 3: [hook.chat] max_body: must be 1 to 16711680 bytes",
        ),
        (format!("{}[serve]\nmax_body = 9\n", hook("max_body = 10", "pull = true")), "must be 1 to 9 bytes"),
        (hook("", "url = \"ftp://x\""), "[hook.chat.handler.app]"),
        (hook("", "url = \"http://x\"\nsecret = \"$MISSING\""), "MISSING is not set"),
    ] {
        refuses(&policy, expected);
    }
}

#[test]
fn settings_of_an_upstream_that_cannot_be_kept_are_refused() {
    for (policy, expected) in [
        (upstream("timeout = \"0s\""), "timeout is 0"),
        (upstream("attempts = 0"), "attempts is 0"),
        (upstream("class = \"keyed\""), "there is no key to send"),
        (upstream("probe = { get = \"https://x/a\", found = \"$\" }"), "must be a path"),
        (upstream("probe = { get = \"/a\", found = \"$[?@.a ==\" }"), "is not a JSONPath"),
        (upstream("verify = { get = \"//x/a\", expect = \"$.a\" }"), "must be a path"),
        (upstream("key = { in = \"header\", name = \"bad name\" }"), "is not the name of a header"),
        (upstream("key = { in = \"header\", name = \"Host\" }"), "cannot hold a key"),
        (
            upstream("key = { in = \"header\", name = \"K\", names = [\"Content-Length\"] }"),
            "cannot hold a key",
        ),
        (upstream("key = { in = \"header\", name = \"Once-Scope\" }"), "cannot hold a key"),
        (upstream("key = { in = \"body\", name = \"\" }"), "has no name"),
        (upstream("key = { in = \"header\", name = \"K\", max = 8 }"), "too short"),
        (upstream("action_headers = [\"bad name\"]"), "is not the name of a header"),
        // A stop cancels what is held, and an acknowledged event is not cancelled.
        (
            format!("{}[operation.\"chat/*\"]\nhold = \"approve\"\n", hook("", "pull = true")),
            "hold = \"no\" for [operation.\"chat/app\"]",
        ),
    ] {
        refuses(&policy, expected);
    }
}

/// Both the check and a start refuse this configuration, and say what is expected.
#[track_caller]
fn refuses(policy: &str, expected: &str) {
    let policy = onceward::Policy::parse(policy).unwrap();
    let store = std::sync::Arc::new(onceward::MemoryStore::new(onceward::ManualClock::at(0)));
    let config = onceward_http::Config::from_policy(&policy);
    let checked = config.and_then(|config| {
        onceward_http::App::check(&config)?;
        Ok(config)
    });
    let problem = match checked {
        Ok(_) => panic!("{expected:?} was accepted"),
        Err(invalid) => invalid.to_string(),
    };
    let config = onceward_http::Config::from_policy(&policy);
    assert!(config.and_then(|config| onceward_http::App::new(store, config)).is_err(), "{expected}");
    assert!(problem.contains(expected), "{problem}");
    assert!(!problem.contains("secret-token"), "{problem}");
}

/// A source whose public key is valid, with a handler.
fn hook(own: &str, handler: &str) -> String {
    let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    format!(
        "[hook.chat]\npreset = \"discord\"\n{own}\nsecrets = [\"{key}\"]\n[hook.chat.handler.app]\n{handler}\n"
    )
}

fn upstream(more: &str) -> String {
    format!("[upstream.u]\nurl = \"https://x\"\n{more}\n")
}

fn two_upstreams(first: &str, second: &str) -> String {
    let upstream = |name: &str, more: &str| format!("[upstream.{name}]\nurl = \"https://x\"\n{more}\n");
    format!("{}{}", upstream("u", first), upstream("v", second))
}

#[tokio::test]
async fn a_header_for_the_gateway_that_occurs_twice_is_refused() {
    let server = Server::new("[upstream.shop]\nurl = \"http://127.0.0.1:9\"\nallow_private = true\n");
    let refused = async |headers: &[(&str, &str)]| {
        let mut request = Request::post("/gw/shop/orders").header("once-dry-run", "true");
        if headers[0].0 == "once-dry-run" {
            request = Request::post("/gw/shop/orders");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        server.send(request.body(Body::from("{}")).unwrap()).await
    };
    for name in ["once-scope", "once-occurrence", "once-dry-run"] {
        assert_eq!(refused(&[(name, "a"), (name, "b")]).await.is(400)["code"], "INVALID_INPUT");
        assert_eq!(refused(&[(name, "caf\u{e9}")]).await.is(400)["code"], "INVALID_INPUT");
        assert_eq!(refused(&[(name, " ")]).await.is(400)["code"], "INVALID_INPUT");
    }
    assert_eq!(refused(&[("once-occurrence", "0")]).await.is(400)["code"], "INVALID_INPUT");
    assert_eq!(refused(&[("once-occurrence", "2"), ("once-scope", "s")]).await.status, 200);
}
