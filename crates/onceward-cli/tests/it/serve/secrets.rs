//! Secrets in requests and answers: no file, log line, trace, metric or error of the server has them.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::common::{Bench, eventually};
use crate::serve::recorder::Recorder;
use crate::serve::rig::Server;

/// What every secret of a request begins with. Letters only, so that no encoding of a URL or of JSON changes it.
const ASKED: &[u8] = b"SQUEAMISHossifrage";
/// What every secret of an answer or a result begins with.
const ANSWERED: &[u8] = b"MAGICwordsare";
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const ANSWER_HEADERS: &str = "X-Reply: MAGICwordsare-answer-header\r\n\
    Set-Cookie: session=MAGICwordsare-answer-cookie\r\n";
const ANSWER_BODY: &str = "MAGICwordsare-answer-body";

/// Whether bytes contain a secret.
fn leaks(bytes: &[u8]) -> bool {
    contains(bytes, ASKED) || contains(bytes, ANSWERED)
}

/// Whether bytes contain this secret: as it is, in another case, in hex, or in base64 at any place.
fn contains(bytes: &[u8], secret: &[u8]) -> bool {
    let lower = bytes.to_ascii_lowercase();
    let has = |part: &[u8]| {
        let part = part.to_ascii_lowercase();
        lower.windows(part.len()).any(|window| window == part)
    };
    let hex = data_encoding::HEXLOWER.encode(secret);
    has(secret) || has(hex.as_bytes()) || (0..3).any(|shift| has(in_base64(secret, shift).as_bytes()))
}

/// The middle of the secret's base64, if `shift` bytes precede it in a group of three.
fn in_base64(secret: &[u8], shift: usize) -> String {
    let bytes: Vec<u8> = std::iter::repeat_n(0, shift).chain(secret.iter().copied()).collect();
    let groups = bytes.chunks_exact(3).skip(1).flatten();
    data_encoding::BASE64_NOPAD.encode(&groups.copied().collect::<Vec<u8>>())
}

/// Every file below a folder that has this secret.
fn files_with(secret: &[u8], folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(secret, &path));
        } else if std::fs::read(&path).is_ok_and(|bytes| contains(&bytes, secret)) {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found.sort();
    found
}

/// A server with an upstream and a collector of traces, logging all it can.
struct Rig {
    // Ended before its folder is removed.
    server: Server,
    bench: Bench,
    upstream: Recorder,
    collector: Recorder,
    token: String,
}

impl Rig {
    fn start(key: bool) -> Self {
        let bench = Bench::new();
        let (upstream, collector) = (Recorder::start(ANSWER_HEADERS, ANSWER_BODY), Recorder::start("", ""));
        let made = bench.json(&["serve", "token", "acme"]);
        let (token, hash) = (made["data"]["token"].as_str().unwrap(), made["data"]["hash"].as_str().unwrap());
        bench.policy(&format!(
            "[serve]\nlisten = [\"127.0.0.1:0\"]\nmetrics = \"open\"\n[tenant.acme]\ntokens = [\"{hash}\"]\n\
             [upstream.shop]\nurl = \"http://127.0.0.1:{}\"\nallow_private = true\nattempts = 1\n",
            upstream.port
        ));
        std::fs::create_dir(bench.path("tmp")).unwrap();
        let mut command = bench.command(&["serve"]);
        command.env("ONCE_LOG", "trace").env("ONCE_LOG_FORMAT", "json").env("TMPDIR", bench.path("tmp"));
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{}", collector.port));
        if key {
            bench.once(&["config", "new-key", "once.key"]).exits(0);
            command.env("ONCE_ENCRYPTION_KEY_FILE", bench.path("once.key"));
        }
        let server = Server::of(command);
        Self { token: token.to_owned(), bench, upstream, collector, server }
    }

    /// What `curl` prints: the status and the answer.
    fn curl(&self, path: &str, args: &[&str]) -> String {
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "-m", "30"]).args(args).arg(format!("{}{path}", self.server.url()));
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same by a caller of the gateway, with secrets in all that a request consists of.
    fn sent(&self, method: &str, path: &str, key: &str, body: &str) -> String {
        let (token, key) = (format!("Once-Token: {}", self.token), format!("Idempotency-Key: {key}"));
        let path = format!("/gw/shop{path}?api_key=SQUEAMISHossifrage-query");
        let mut args = vec!["-X", method, "-H", &token, "-H", &key];
        for header in [
            "Authorization: Bearer SQUEAMISHossifrage-bearer",
            "Cookie: session=SQUEAMISHossifrage-cookie",
            "X-Api-Key: SQUEAMISHossifrage-header",
            "Proxy-Authorization: Basic SQUEAMISHossifrage-proxy",
            "tracestate: vendor=SQUEAMISHossifrage-state",
            "baggage: user=SQUEAMISHossifrage-baggage",
        ] {
            args.extend(["-H", header]);
        }
        let trace = format!("traceparent: {TRACE}");
        args.extend(["-H", &trace]);
        if method != "GET" {
            args.extend(["-H", "Content-Type: application/json", "-H", "Expect:", "--data-binary", body]);
        }
        self.curl(&path, &args)
    }

    /// Every way in which a call of the gateway can go.
    fn call_the_gateway(&self) {
        let body = r#"{"pin":"SQUEAMISHossifrage-body"}"#;
        let answer = self.sent("POST", "/ok", "k-1", body);
        assert!(answer.contains(ANSWER_BODY) && answer.contains("answer-cookie"), "{answer}");
        let replayed = self.sent("POST", "/ok", "k-1", body);
        assert!(replayed.contains("dempotent-") && replayed.contains(ANSWER_BODY), "{replayed}");
        assert!(self.sent("POST", "/ok", "k-1", r#"{"pin":"SQUEAMISHossifrage-other"}"#).contains("422"));
        self.bench.write("large", format!("{{\"pin\":\"{}\"}}", "SQUEAMISHossifrage-large".repeat(100_000)));
        let large = format!("@{}", self.bench.path("large").display());
        assert!(self.sent("POST", "/ok", "k-2", &large).contains("200 OK"));
        std::fs::remove_file(self.bench.path("large")).unwrap();
        assert!(self.sent("POST", "/rejected", "k-3", body).contains("422"));
        for (path, key) in [("/broken", "k-4"), ("/cut", "k-5"), ("/reset", "k-6")] {
            assert!(self.sent("POST", path, key, body).contains("424"), "{path}");
            assert!(self.sent("POST", path, key, body).contains("424"), "{path}");
        }
        assert!(self.sent("GET", "/ok", "k-7", "").contains(ANSWER_BODY));
        assert!(self.sent("POST", "/ok", "\u{1}", body).contains("400"));
    }

    /// The same for the ledger API: inputs, results, reasons, tokens and invalid requests.
    fn call_the_api(&self) {
        let authorization = format!("Authorization: Bearer {}", self.token);
        let json = |path: &str, body: &str| {
            let trace = "traceparent: 00-SQUEAMISHossifrage-trace";
            self.curl(path, &["-H", &authorization, "-H", trace, "--json", body])
        };
        for (key, end) in [("a", "finish"), ("b", "fail"), ("c", "doubt")] {
            let begin =
                format!(r#"{{"name":"pay","key":"{key}","input":{{"pin":"SQUEAMISHossifrage-input"}}}}"#);
            let begun = json("/v1/operations", &begin);
            assert!(begun.contains("201 Created"), "{begun}");
            let begun: serde_json::Value =
                serde_json::from_str(begun.split_once("\r\n\r\n").unwrap().1).unwrap();
            let (id, token) = (begun["operation"]["id"].as_str().unwrap(), begun["token"].as_str().unwrap());
            let evidence = if end == "fail" { r#","evidence":"refused""# } else { "" };
            let report = format!(
                r#"{{"attempt":1,"token":"{token}","reason":"MAGICwordsare-reason","data":"MAGICwordsare-data"{evidence}}}"#
            );
            assert!(json(&format!("/v1/operations/{id}/{end}"), &report).contains("200 OK"));
            json("/v1/operations", &begin);
        }
        // A mistake is answered without repeating the value that was wrong.
        for (path, body) in [
            ("/v1/operations", r#"{"name":"pay","lease_ms":"SQUEAMISHossifrage-type"}"#),
            ("/v1/operations", r#"{"name":"pay","class":"SQUEAMISHossifrage-variant"}"#),
            ("/v1/operations", r#"{"name":"pay","input":SQUEAMISHossifrage-json}"#),
            ("/v1/operations/op_SQUEAMISHossifrage/finish", r#"{"attempt":1,"token":"SQUEAMISHossifrage"}"#),
        ] {
            let refused = json(path, body);
            let is_own_path = path.contains("SQUEAMISH");
            assert!(refused.contains("application/problem+json"), "{refused}");
            assert!(is_own_path || !leaks(refused.as_bytes()), "{body}: {refused}");
        }
        for path in ["/v1/operations?state=SQUEAMISHossifrage", "/v1/operations?limit=SQUEAMISHossifrage"] {
            let refused = self.curl(path, &["-H", &authorization]);
            assert!(refused.contains("400") && !leaks(refused.as_bytes()), "{refused}");
        }
        let wrong = "Authorization: Bearer SQUEAMISHossifrage-token";
        for path in ["/v1/report", "/v1/store/hello", "/metrics", "/readyz", "/gw/shop/ok", "/nowhere"] {
            let said = self.curl(path, &["-H", wrong, "-H", "Once-Token: SQUEAMISHossifrage-token"]);
            assert!(!leaks(said.as_bytes()), "{path}: {said}");
        }
    }

    /// Everything that an operator can look at, except files.
    fn nothing_is_shown(self) -> (Bench, Recorder) {
        let metrics = self.curl("/metrics", &[]);
        assert!(metrics.contains("surface=\"gateway\"") && metrics.contains("surface=\"api\""), "{metrics}");
        assert!(!leaks(metrics.as_bytes()), "{metrics}");
        self.server.signal(Signal::SIGTERM);
        let Self { bench, upstream, collector, server, .. } = self;
        eventually("the collector has the spans", || {
            let heard: Vec<u8> = collector.heard().concat();
            let has = |text: &[u8]| heard.windows(text.len()).any(|part| part == text);
            has(b"onceward.call") && has(b"gateway") && has(b"KEY_REUSED") && has(b"IN_DOUBT")
        });
        assert!(!collector.heard().iter().any(|request| leaks(request)), "a trace has a secret");
        // The spans belong to the caller's trace, and the upstream gets the gateway's span as its parent.
        let trace = data_encoding::HEXLOWER.decode(&TRACE.as_bytes()[3..35]).unwrap();
        assert!(collector.heard().concat().windows(16).any(|part| part == trace), "the trace goes on");
        let first = String::from_utf8_lossy(&upstream.heard()[0]).to_lowercase();
        let parent = first.split_once("traceparent: ").expect("a trace").1.lines().next().unwrap().to_owned();
        assert!(parent.starts_with(&TRACE[..36]) && parent != TRACE, "{parent}");
        let log = server.said().join("\n");
        for words in
            ["\"surface\":\"gateway\"", "\"surface\":\"api\"", "\"level\":\"WARN\"", "\"operation\":\"op_"]
        {
            assert!(log.contains(words), "{words}: {log}");
        }
        assert!(!leaks(log.as_bytes()), "{log}");
        assert_eq!(server.end(), Some(0));
        (bench, upstream)
    }
}

#[test]
fn the_search_finds_a_secret_in_every_form() {
    let encoded = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    for secret in [ASKED, ANSWERED] {
        let text = String::from_utf8(secret.to_vec()).unwrap();
        for text in [
            format!("a{text}b"),
            text.to_uppercase(),
            data_encoding::HEXLOWER.encode(secret),
            data_encoding::HEXUPPER.encode(secret),
            encoded(&format!("a{text}")),
            encoded(&format!("ab{text}")),
            encoded(&format!("abc{text}def")),
            data_encoding::BASE64URL_NOPAD.encode(format!("abcd{text}").as_bytes()),
        ] {
            assert!(contains(text.as_bytes(), secret) && leaks(text.as_bytes()), "{text}");
        }
    }
    assert!(!leaks(b"the magic words are squeamish ossifrage"));
}

#[test]
fn with_a_key_a_secret_is_nowhere() {
    let rig = Rig::start(true);
    rig.call_the_gateway();
    rig.call_the_api();
    let nowhere = |bench: &Bench, when: &str| {
        for secret in [ASKED, ANSWERED] {
            assert_eq!(files_with(secret, &bench.path("")), Vec::<String>::new(), "{when}");
        }
    };
    // The log of writes is not copied into the ledger yet, and bodies may be in temporary files.
    nowhere(&rig.bench, "while the server runs");
    let (bench, upstream) = rig.nothing_is_shown();
    nowhere(&bench, "after its end");
    assert_eq!(std::fs::read_dir(bench.path("tmp")).unwrap().count(), 0, "temporary files are gone");
    // The upstream got all of it, so the secrets were there to be lost.
    let heard: Vec<u8> = upstream.heard().concat();
    for part in ["bearer", "cookie", "header", "query", "body", "large", "state", "baggage"] {
        let secret = [ASKED, b"-", part.as_bytes()].concat();
        assert!(heard.windows(secret.len()).any(|window| window == secret), "{part} did not arrive");
    }
    // Operators without the key see no secret either.
    for args in [
        &["--json", "ls"][..],
        &["--json", "report"],
        &["export"],
        &["--json", "doctor"],
        &["config", "show"],
    ] {
        let said = bench.once(args);
        assert!(!leaks(&said.out) && !leaks(&said.err), "{args:?}: {}", said.out());
    }
}

/// What `docs/serve.md` says about a server without a key: answers and results are readable in the ledger, and
/// requests are not there.
#[test]
fn without_a_key_only_answers_and_results_are_in_the_ledger() {
    let rig = Rig::start(false);
    rig.call_the_gateway();
    rig.call_the_api();
    let (bench, _) = rig.nothing_is_shown();
    assert_eq!(files_with(ASKED, &bench.path("")), Vec::<String>::new(), "no request is stored");
    assert_eq!(files_with(ANSWERED, &bench.path("")), ["once.db", "once.db-wal"], "results are");
    let export = bench.once(&["export"]).exits(0);
    let text = String::from_utf8(export.out).unwrap();
    assert!(text.contains("MAGICwordsare-data") && text.contains("MAGICwordsare-reason"), "{text}");
}

#[test]
fn an_address_with_a_password_is_refused_without_showing_it() {
    let bench = Bench::new();
    bench.policy("[upstream.shop]\nurl = \"https://user:SQUEAMISHossifrage@127.0.0.1/\"\n");
    for args in [
        &["serve", "--listen", "127.0.0.1:0"][..],
        &["config", "show"],
        &["config", "check"],
        &["--json", "config", "show"],
    ] {
        let said = bench.once(args);
        assert!(!leaks(&said.out) && !leaks(&said.err), "{args:?}: {} {}", said.out(), said.err());
    }
    bench.once(&["serve", "--listen", "127.0.0.1:0"]).exits(2);
    bench.policy("");
    for url in ["http://u:SQUEAMISHossifrage@h o st", "SQUEAMISHossifrage"] {
        let mut command = bench.command(&["serve", "--listen", "127.0.0.1:0"]);
        let output = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url).output().unwrap();
        assert!(
            !output.status.success() && !leaks(&output.stderr),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
