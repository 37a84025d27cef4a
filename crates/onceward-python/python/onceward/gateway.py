"""Model calls through a gateway of this process: a retry gets the same answer, and no server has to be run.

    import openai
    from onceward.gateway import Gateway

    with Gateway("agent.db", scope="job-7") as gateway:
        client = gateway.wrap(openai.OpenAI())
        client.chat.completions.create(model="…", messages=[…])

The wheel contains the program `once`. `Gateway` starts it on a loopback port, and `wrap` returns a client of the same
kind that talks to it. The program ends with this process, however that ends. `docs/models.md` says which call is a
retry.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from .errors import InvalidInput, LedgerUnavailable

Client = TypeVar("Client")

# How long the program may take to start.
_PATIENCE_S = 30.0
# The kind of model API of a client, by the package that it comes from.
_APIS = {"openai": "openai", "anthropic": "anthropic"}


class Gateway:
    """A gateway for model calls, in a child process.

    - `ledger`: a file or the URL of a ledger, as for `Ledger`. Default: the one that `once` uses.
    - `scope`: the run that calls belong to. A restarted process with the same scope gets the recorded answers, in the
      order of its equal calls, and pays for none of them again.
    - `settings`: settings of `[upstream.NAME]` for all upstreams, for example `{"attempts": 2}`.
    - `program`: the program `once`. Default: the one that is installed with this package.
    """

    def __init__(
        self,
        ledger: str | os.PathLike[str] | None = None,
        *,
        scope: str | None = None,
        settings: Mapping[str, Any] | None = None,
        program: str | os.PathLike[str] | None = None,
    ) -> None:
        self._ledger = None if ledger is None else _ledger_url(os.fspath(ledger))
        self._headers = {} if scope is None else {"Once-Scope": scope, "Once-Run": uuid.uuid4().hex}
        self._settings = dict(settings or {})
        self._program = os.fspath(program) if program is not None else _installed()
        self._running: dict[tuple[str, str], tuple[subprocess.Popen[str], str]] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def __enter__(self) -> Gateway:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wrap(self, client: Client) -> Client:
        """A copy of an `openai` or `anthropic` client, sync or async, whose calls pass through the gateway."""
        package = type(client).__module__.split(".")[0]
        api = _APIS.get(package)
        copy = getattr(client, "with_options", None)
        base = getattr(client, "base_url", None)
        if api is None or copy is None or base is None:
            known = " or ".join(_APIS)
            raise InvalidInput(f"{type(client).__name__} is not a client of {known}; set its base URL to url()")
        address = self.url(api, str(base).rstrip("/"))
        copied: Client = copy(base_url=address, default_headers=self._headers)
        return copied

    def url(self, api: str, upstream: str) -> str:
        """The base URL of the gateway for an upstream: `api` is `openai`, `anthropic` or `gemini`."""
        with self._lock:
            known = self._running.get((api, upstream))
            if known is None or known[0].poll() is not None:
                known = self._running[(api, upstream)] = self._start(api, upstream)
            return f"{known[1]}/gw/model"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the scope and this run, for clients that `wrap` does not know."""
        return dict(self._headers)

    def close(self) -> None:
        """Ends the gateway. A generation that is running is completed first, for half a minute at most."""
        with self._lock:
            running, self._running = self._running, {}
        for process, _ in running.values():
            if process.stdin is not None:
                process.stdin.close()
        for process, _ in running.values():
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        atexit.unregister(self.close)

    def _start(self, api: str, upstream: str) -> tuple[subprocess.Popen[str], str]:
        settings = {"url": upstream, "models": api, "allow_private": True, **self._settings}
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as policy:
            policy.write("\n".join(["[upstream.model]", *lines, ""]))
            policy.flush()
            command = [self._program, "--config", policy.name, "serve", "--listen", "127.0.0.1:0", "--with-stdin"]
            # The URL may contain a password, and every user of the machine can read a command line.
            environment = None if self._ledger is None else {**os.environ, "ONCE_LEDGER": self._ledger}
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stdin is not None and process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                found = line.partition("listening on ")[2].strip()
                if found:
                    threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True).start()
                    return process, found
        with process.stdin, process.stderr:
            process.wait()
        raise LedgerUnavailable("".join(said).strip() or f"{self._program} did not start")


def _pass_on(lines: Any) -> None:
    """What the program says later is shown, so that the pipe does not fill up."""
    with lines:
        for line in lines:
            if not any(said in line for said in ("try it:", "shutting down")):
                sys.stderr.write(line)


def _ledger_url(ledger: str) -> str:
    return ledger if ":" in ledger else f"sqlite:{ledger}"


def _installed() -> str:
    """The program `once` that is installed with this package."""
    user = sysconfig.get_preferred_scheme("user")
    for folder in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user)):
        program = Path(folder) / "once"
        if program.is_file():
            return str(program)
    raise InvalidInput("the program `once` is not installed with this package; give its path as `program`")
