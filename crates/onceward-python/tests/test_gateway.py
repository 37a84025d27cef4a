"""Model calls through a gateway that belongs to this process, with a scripted provider on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from servers import once_program

from onceward import InvalidInput, LedgerUnavailable
from onceward.gateway import Gateway


class Provider(BaseHTTPRequestHandler):
    """A provider whose answers all differ. The first answer to a prompt with `slow` takes a second."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        number = self.server.generations = self.server.generations + 1  # type: ignore[attr-defined]
        if "slow" in body and number == 1:
            time.sleep(1)  # the client gives up meanwhile
        answer = json.dumps({"id": number, "path": self.path, "choices": [], "usage": {}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    server.generations = 0  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def ask(url: str, prompt: str, headers: dict[str, str] | None = None, timeout: float = 20) -> dict[str, Any]:
    """A call, as any SDK makes it."""
    from urllib.request import Request, urlopen

    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
    request = Request(f"{url}/chat/completions", body, {"content-type": "application/json", **(headers or {})})
    with urlopen(request, timeout=timeout) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def upstream(provider: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{provider.server_address[1]}/v1"


def test_a_retry_gets_the_same_answer_and_a_new_call_a_new_one(tmp_path: Path, provider: ThreadingHTTPServer) -> None:
    with Gateway(tmp_path / "once.db", program=once_program()) as gateway:
        url = gateway.url("openai", upstream(provider))
        with pytest.raises(TimeoutError):
            ask(url, "slow", timeout=0.3)
        assert ask(url, "slow")["id"] == 1
        answer = ask(url, "slow")
        assert (answer["id"], answer["path"]) == (2, "/v1/chat/completions")
        assert gateway.url("openai", upstream(provider)) == url, "one program for each upstream"


def test_a_restarted_run_pays_for_nothing_twice(tmp_path: Path, provider: ThreadingHTTPServer) -> None:
    ids = []
    for _ in range(2):
        with Gateway(tmp_path / "once.db", scope="job-7", program=once_program()) as gateway:
            url = gateway.url("openai", upstream(provider))
            ids.append([ask(url, "plan", gateway.headers)["id"] for _ in range(3)])
    assert ids == [[1, 2, 3], [1, 2, 3]]


def test_the_program_ends_with_its_process(tmp_path: Path, provider: ThreadingHTTPServer) -> None:
    code = f"""
import os, time
from onceward.gateway import Gateway
gateway = Gateway({str(tmp_path / "once.db")!r}, program={once_program()!r})
print(gateway.url("openai", {upstream(provider)!r}), flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    url = child.stdout.readline().strip()
    assert ask(url, "hello")["id"] == 1
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    for _ in range(200):
        try:
            ask(url, "hello", timeout=2)
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail("the gateway is still there")


def test_the_password_of_a_ledger_is_not_on_the_command_line(tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    program = tmp_path / "once"
    program.write_text(f"""#!{sys.executable}
import json, os, sys
json.dump([sys.argv, os.environ["ONCE_LEDGER"]], open({str(said)!r}, "w"))
""")
    program.chmod(0o700)
    url = "postgres://user:s3cret@127.0.0.1:1/db"
    with Gateway(url, program=program) as gateway, pytest.raises(LedgerUnavailable):
        gateway.url("openai", "http://127.0.0.1:1")
    command, ledger = json.loads(said.read_text())
    assert "s3cret" not in str(command) and ledger == url


def test_what_cannot_work_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a client of openai or anthropic"):
        Gateway(tmp_path / "once.db", program=once_program()).wrap(object())
    with Gateway(tmp_path / "no" / "such" / "folder.db", program=once_program()) as gateway:
        with pytest.raises(LedgerUnavailable):
            gateway.url("openai", "not a url")
