//! Reads, routes, large bodies and connections.

use hyper::{Method, StatusCode};

use crate::gateway::plain;
use crate::gateway::rig::{Rig, request};
use crate::gateway::vendor::{Act, Vendor};

#[tokio::test]
async fn reads_pass_through_and_leave_no_record() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let headers = [("accept-encoding", "gzip"), ("once-scope", "s"), ("connection", "x-hop"), ("x-hop", "1")];
    let got = rig.send(Method::GET, "/gw/api/a%2Fb/c?x=1&y=%20", &headers, "").await;
    assert_eq!(got.json()["path"], "/a%2Fb/c?x=1&y=%20");
    let seen = &vendor.seen()[0];
    assert_eq!((seen.header("accept-encoding"), seen.header("x-hop")), (Some("gzip"), None));
    assert_eq!((seen.header("once-scope"), got.header("set-cookie")), (None, Some("sid=S3CRET")));
    assert!(rig.operations().await.is_empty());
    let missing = rig.send(Method::GET, "/gw/nothing/x", &[], "").await;
    // It is about no operation, so nothing is said about an effect.
    assert_eq!((missing.status, missing.json()["code"].as_str()), (StatusCode::NOT_FOUND, Some("NOT_FOUND")));
    assert_eq!((missing.json().get("happened"), missing.header("once-happened")), (None, None));
}

#[tokio::test]
async fn an_upstream_answers_under_its_host_name() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "host = \"api.example\"")).await;
    for host in ["api.localhost", "api.localhost:6270", "API.example:80"] {
        let got = rig.send(Method::GET, "/v1/x", &[("x-test-host", host)], "").await;
        assert_eq!(got.json()["path"], "/v1/x", "{host}");
    }
    let got = rig.send(Method::POST, "/v1/x", &[("x-test-host", "api.localhost")], "1").await;
    assert_eq!((got.status, vendor.effects()), (StatusCode::OK, 1));
    let other = rig.send(Method::GET, "/healthz", &[("x-test-host", "other.localhost")], "").await;
    assert_eq!(&other.body[..], b"ok\n");
}

#[tokio::test]
async fn an_upstream_has_a_port_of_its_own() {
    let vendor = Vendor::start(None).await;
    let config =
        format!("[upstream.api]\nurl = \"{}/base\"\nallow_private = true\nport = 6271\n", vendor.url);
    let sections = onceward::Policy::parse(&config).unwrap().server_sections();
    let store = onceward_store::StoreUrl::parse("memory:").unwrap();
    let store = store.open(onceward_store::IfMissing::Create).unwrap();
    let config = onceward_http::Config::from_sections(sections).unwrap();
    let app = onceward_http::App::new(store, config).unwrap();
    assert_eq!(app.upstream_ports(), [("api".to_owned(), 6271)]);
    let router = onceward_http::server::upstream_router(&app, "api").unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let got = request(&url, Method::GET, "/v1/x", &[], "").await;
    assert_eq!(got.json()["path"], "/base/v1/x");
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_streamed_once_and_then_unavailable() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Large(3_000_000)]);
    let rig = Rig::start(&plain(&vendor, "max_stored = 100000")).await;
    let key = [("idempotency-key", "k")];
    let first = rig.send(Method::POST, "/gw/api/report", &key, "1").await;
    assert_eq!((first.status, first.body.len()), (StatusCode::OK, 3_000_000));
    let retry = rig.send(Method::POST, "/gw/api/report", &key, "1").await;
    assert_eq!((retry.status, retry.json()["code"].as_str()), (StatusCode::GONE, Some("RESULT_UNAVAILABLE")));
    assert_eq!((retry.header("once-happened"), vendor.effects()), (Some("yes"), 1));
}

#[tokio::test]
async fn large_requests_are_spooled_and_too_large_ones_refused() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    vendor.script([Act::Reset]);
    let config = plain(
        &vendor,
        "max_request = 4000000\nclass = \"keyed\"\nkey = { in = \"header\", name = \"Idempotency-Key\" }",
    );
    let rig = Rig::start(&config).await;
    let body = "x".repeat(3_000_000);
    let got = rig.send(Method::POST, "/gw/api/upload", &[], &body).await;
    assert_eq!((got.status, vendor.effects()), (StatusCode::OK, 1));
    assert!(vendor.posts().len() == 2 && vendor.posts().iter().all(|seen| seen.body == body));
    let refused = rig.send(Method::POST, "/gw/api/upload", &[], &"x".repeat(5_000_000)).await;
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, Some("INVALID_INPUT"))
    );
    assert_eq!(vendor.effects(), 1);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Refuse(307, ""), Act::Say(303, "")]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let got = rig.send(Method::POST, "/gw/api/a", &[], "1").await;
    assert_eq!((got.status, got.header("once-happened")), (StatusCode::TEMPORARY_REDIRECT, Some("no")));
    let got = rig.send(Method::POST, "/gw/api/b", &[], "1").await;
    assert_eq!(got.status, StatusCode::FAILED_DEPENDENCY);
    assert_eq!(vendor.seen().len(), 2);
}

#[tokio::test]
async fn private_addresses_must_be_allowed() {
    let vendor = Vendor::start(None).await;
    let problem = |url: &str| {
        let text = format!("[upstream.api]\nurl = \"{url}\"\n");
        let sections = onceward::Policy::parse(&text).unwrap().server_sections();
        let store = onceward_store::StoreUrl::parse("memory:").unwrap();
        let store = store.open(onceward_store::IfMissing::Create).unwrap();
        onceward_http::App::new(store, onceward_http::Config::from_sections(sections).unwrap()).err()
    };
    assert!(problem(&vendor.url).unwrap().to_string().contains("allow_private"));
    // A name is checked when it is resolved, for every connection.
    let port = vendor.url.rsplit(':').next().unwrap();
    let rig = Rig::start(&format!("[upstream.api]\nurl = \"http://localhost:{port}\"\nattempts = 1\n")).await;
    for method in [Method::GET, Method::POST] {
        let got = rig.send(method, "/gw/api/x", &[], "").await;
        assert_eq!((got.status, got.header("once-happened")), (StatusCode::BAD_GATEWAY, Some("no")));
        assert!(String::from_utf8_lossy(&got.body).contains("private address"));
    }
    assert!(vendor.seen().is_empty());
}

#[tokio::test]
async fn an_http2_client_gets_the_same() {
    use http_body_util::BodyExt;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let address = rig.url.strip_prefix("http://").unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for (method, count) in [(Method::GET, 0), (Method::POST, 1), (Method::POST, 1)] {
        let request = hyper::Request::builder()
            .method(method)
            .uri(format!("http://{address}/gw/api/x"))
            .header("idempotency-key", "k")
            .body(http_body_util::Full::new(bytes::Bytes::from_static(b"1")))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!((response.status(), vendor.effects()), (StatusCode::OK, count));
        response.into_body().collect().await.unwrap();
    }
}

#[tokio::test]
async fn a_slow_upload_that_breaks_off_sends_nothing() {
    use tokio::io::AsyncWriteExt;

    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let mut stream = tokio::net::TcpStream::connect(rig.url.strip_prefix("http://").unwrap()).await.unwrap();
    let head = "POST /gw/api/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nhalf";
    stream.write_all(head.as_bytes()).await.unwrap();
    drop(stream);
    // The gateway reads what comes first before it answers a later request.
    rig.send(Method::GET, "/healthz", &[], "").await;
    assert!(vendor.seen().is_empty() && rig.operations().await.is_empty());
}

#[tokio::test]
async fn the_settings_on_the_page_are_accepted() {
    let page = include_str!("../../../../../docs/gateway.md");
    let samples: Vec<&str> =
        page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(samples.len(), 4);
    for sample in samples {
        let sections = onceward::Policy::parse(sample).unwrap().server_sections();
        let config = onceward_http::Config::from_sections(sections).unwrap();
        let store = onceward_store::StoreUrl::parse("memory:").unwrap();
        let store = store.open(onceward_store::IfMissing::Create).unwrap();
        onceward_http::App::new(store, config).unwrap();
    }
}

#[tokio::test]
async fn trailers_pass_through() {
    use http_body_util::{BodyExt, StreamBody};
    use hyper::body::Frame;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", upstream.local_addr().unwrap());
    let answer = async || {
        let trailers = hyper::HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
        let frames = [Frame::data(bytes::Bytes::from_static(b"abc")), Frame::trailers(trailers)];
        let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, std::convert::Infallible>)));
        axum::response::Response::builder()
            .header("trailer", "x-sum")
            .body(axum::body::Body::new(body))
            .unwrap()
    };
    let routes = axum::Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(upstream, routes).await.unwrap() });
    let rig = Rig::start(&format!("[upstream.api]\nurl = \"{url}\"\nallow_private = true\n")).await;
    let address = rig.url.strip_prefix("http://").unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    // First and replayed, and a read.
    for method in [Method::POST, Method::POST, Method::GET] {
        let request = hyper::Request::builder()
            .method(method.clone())
            .uri(format!("http://{address}/gw/api/x"))
            .header("te", "trailers")
            .header("idempotency-key", "k")
            .body(http_body_util::Empty::<bytes::Bytes>::new())
            .unwrap();
        let body = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap();
        let sum = body.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
        assert_eq!(
            (sum.unwrap(), body.to_bytes()),
            ("7".parse().unwrap(), bytes::Bytes::from_static(b"abc")),
            "{method}"
        );
    }
}

#[tokio::test]
async fn trailers_of_requests_pass_through() {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", upstream.local_addr().unwrap());
    let answer = async |request: axum::extract::Request| {
        let body = request.into_body().collect().await.unwrap();
        let sum = body.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
        format!("{sum:?} {:?}", body.to_bytes())
    };
    let routes = axum::Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(upstream, routes).await.unwrap() });
    let rig = Rig::start(&format!("[upstream.api]\nurl = \"{url}\"\nallow_private = true\n")).await;
    let large = "a".repeat(1_500_000);
    for body in ["ab", &large] {
        let mut stream =
            tokio::net::TcpStream::connect(rig.url.strip_prefix("http://").unwrap()).await.unwrap();
        let text = format!(
            "POST /gw/api/x HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntrailer: x-sum\r\n\
             transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\nx-sum: 7\r\n\r\n",
            body.len()
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains(&format!("Some(\"7\") b\"{body}\"")), "{answer:.300}");
    }
}

#[tokio::test]
async fn a_client_that_expects_100_gets_it() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let mut stream = tokio::net::TcpStream::connect(rig.url.strip_prefix("http://").unwrap()).await.unwrap();
    let head =
        "POST /gw/api/x HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = vec![0; 25];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(said, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(vendor.seen().is_empty());
    stream.write_all(b"abc").await.unwrap();
    let mut answer = vec![0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 200 OK");
    let seen = &vendor.posts()[0];
    assert_eq!((seen.body.as_str(), seen.header("expect")), ("abc", None));
}

#[tokio::test]
async fn chunked_requests_arrive_whole() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let mut stream = tokio::net::TcpStream::connect(rig.url.strip_prefix("http://").unwrap()).await.unwrap();
    let text = "POST /gw/api/x HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = vec![0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 200 OK");
    let seen = &vendor.posts()[0];
    assert_eq!((seen.body.as_str(), seen.header("transfer-encoding")), ("abc", None));
}
