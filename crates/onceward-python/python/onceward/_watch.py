"""Counts every request that a guarded function sends, whichever client sends it.

An exception says how the last request ended. Only a count can say whether it was the only one. So the
interpreter's audit events, its sockets and the common clients (`_clients`) report here, each to the call in whose
context it runs. Threads and executors inherit their caller's context.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""HTTP methods that ask for no change."""


class Trace:
    """What was sent during one attempt."""

    __slots__ = (
        "begun", "changes", "expected", "mark", "over", "own", "sent", "sockets", "strangers", "under_way", "unseen",
    )  # fmt: skip

    def __init__(self, mark: Callable[[], object] | None = None, own: object = None) -> None:
        self.begun = 0
        """How often a client or a socket was asked to connect."""
        self.sent: list[Wire] = []
        """Requests of known clients of which at least one byte may have been sent."""
        self.sockets: list[weakref.ref[Any]] = []
        """Sockets that were written to."""
        self.unseen: str | None = None
        """Something whose effects cannot be counted: a process, a file."""
        self.under_way: list[Any] = []
        """Tasks, futures and threads that were started and may still send something."""
        self.over = False
        self.mark = mark
        """Called when something is sent that may have an effect."""
        self.own = own
        """A database connection whose statements do not count."""
        self.expected = 0
        """How many requests of known clients have no socket yet."""
        self.strangers, self.changes = _strangers[0], _changes[0]

    @property
    def quiet(self) -> bool:
        """Whether it is certain that no byte was sent."""
        return not self.sent and not self.sockets and self.known

    @property
    def known(self) -> bool:
        """Whether everything that was sent was observed and belongs to this call."""
        return self.unseen is None and self.strangers == _strangers[0] and not self.goes_on

    @property
    def changed_elsewhere(self) -> bool:
        """Whether unguarded code sent a request that may have an effect, which this call may have handed to it."""
        return self.changes != _changes[0]

    @property
    def goes_on(self) -> bool:
        """Whether something that was started may still send something."""
        own = _task()
        return any(one is not own and not _is_done(one) for one in self.under_way)

    def touch(self, sock: Any) -> None:
        """Records that a socket was written to."""
        if any(reference() is sock for reference in self.sockets):
            self.expected = 0
            return
        self.sockets.append(weakref.ref(sock))
        if self.expected:
            # A request of a known client, whose `Wire` has reported whether it may have an effect.
            self.expected -= 1
        elif self.mark is not None:
            self.mark()

    def hide(self, what: str) -> None:
        """Records something whose effects cannot be counted."""
        self.unseen = self.unseen or what
        if self.mark is not None:
            self.mark()


class Wire:
    """One request of a known client."""

    __slots__ = ("left", "method", "plain", "status", "trace")

    def __init__(self, method: str, *, plain: bool = True) -> None:
        self.trace = current()
        self.method = method
        self.left = False
        self.plain = plain
        """Whether the client sends it at most once: it has no retries that cannot be observed."""
        self.status: int | None = None
        """The status of the response, if one was received and parsed."""
        if self.trace is not None:
            self.trace.begun += 1

    def leave(self) -> Wire:
        """Records that its first byte is being sent."""
        if self.left:
            return self
        self.left = True
        trace = self.trace
        if trace is None or trace.over:
            # Apparently not part of a guarded call; it may have come from one through a queue.
            _strangers[0] += 1
            if self.method.upper() not in SAFE:
                _changes[0] += 1
            return self
        trace.sent.append(self)
        trace.expected += 1
        if trace.mark is not None and self.method.upper() not in SAFE:
            trace.mark()
        return self


def _is_done(one: Any) -> bool:
    return not one.is_alive() if isinstance(one, threading.Thread) else bool(one.done())


def _task() -> Any:
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio.current_task() if asyncio is not None else None
    except RuntimeError:
        return None


# What unguarded code has sent in this process: everything, and what may have an effect.
_strangers = [0]
_changes = [0]
_open_traces = [0]
_trace: ContextVar[Trace | None] = ContextVar("onceward_trace", default=None)


def current() -> Trace | None:
    """What the call that runs here has sent; `None` outside a guarded call."""
    trace = _trace.get()
    return None if trace is None or trace.over else trace


def enter(trace: Trace) -> Token[Trace | None]:
    """Begins to report to this trace what is sent here."""
    _open_traces[0] += 1
    return _trace.set(trace)


def leave(trace: Trace, token: Token[Trace | None]) -> None:
    """Ends that. What is sent later belongs to no call."""
    trace.over = True
    _open_traces[0] -= 1
    # A coroutine that is closed from outside ends in another context.
    with suppress(ValueError):
        _trace.reset(token)


def begin() -> None:
    """Records that a client was called."""
    trace = current()
    if trace is not None:
        trace.begun += 1


def check_loop() -> None:
    """Detects an event loop that does not use the interpreter's sockets: what it sends cannot be observed."""
    asyncio = sys.modules.get("asyncio")
    trace = current()
    if asyncio is None or trace is None:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if type(loop).__module__.partition(".")[0] in ("uvloop", "winloop", "rloop"):
        trace.hide("the event loop does not use the interpreter's sockets")


def install() -> None:
    """Starts counting, in this process. Only the first call does anything."""
    global _installed
    if _installed:
        return
    _installed = True
    from . import _clients

    sys.addaudithook(_audit)
    _sockets(socket.socket)
    _descriptors()
    _threads()
    _clients.install()


_installed = False


# The interpreter's own events.

_PROCESSES = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn", "os.system", "pty.spawn"}
)
_FILES = frozenset(
    {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "sqlite3.connect"}
)
_REACHES = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"})
_MESSAGES = frozenset({"ftplib.sendcmd", "imaplib.send", "poplib.putline", "nntplib.putline", "telnetlib.Telnet.write"})
_WATCHED = _PROCESSES | _FILES | _REACHES | _MESSAGES | {"open", "http.client.send"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Programs that libraries run to query the machine, and that change nothing.
_HARMLESS = frozenset({"uname", "ldconfig", "/sbin/ldconfig"})


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event not in _WATCHED:
        return
    if event == "http.client.send":
        # The connection is established at this point, including TLS.
        wire = args[0].__dict__.get("_onceward_wire") or Wire("?")
        args[0].__dict__["_onceward_wire"] = wire.leave()
        return
    trace = current()
    if trace is None:
        return
    if event in _REACHES:
        trace.begun += 1
    elif event in _MESSAGES:
        Wire(event).leave()
    elif event == "open":
        path, mode, flags = args
        writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITES)
        if writes and _is_kept(path):
            trace.hide("it wrote a file")
    elif event in _FILES:
        if _is_kept(args[0]):
            trace.hide("it changed files")
    elif event != "subprocess.Popen" or not _is_harmless(args):
        trace.hide("it started a process")


def _is_kept(path: object) -> bool:
    """Whether writing to that file may be an effect: not a cache of the interpreter, not a device."""
    if isinstance(path, int):
        return False
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else str(path)
    return not (
        "__pycache__" in text or ".pyc" in text or text.startswith(("/dev/", "/proc/")) or text in (":memory:", "")
    )


def _is_harmless(args: tuple[Any, ...]) -> bool:
    words = args[1] if len(args) > 1 else None
    return isinstance(words, (list, tuple)) and bool(words) and str(words[0]) in _HARMLESS


# Sockets. `socket.socket` is a Python class over the built-in one, so its methods can be replaced.


def _sockets(kind: Any) -> None:
    for name in ("send", "sendall", "sendto", "sendmsg", "sendfile"):
        if hasattr(kind, name):
            setattr(kind, name, _noted(getattr(kind, name), _raw))
    kind.accept = _accepts(kind.accept)


def tls_sockets(module: Any) -> None:
    """The same for `ssl.SSLSocket`, which writes data only after the handshake."""
    for name in ("send", "sendall", "sendto", "write", "sendfile"):
        if name in module.SSLSocket.__dict__:
            setattr(module.SSLSocket, name, _noted(getattr(module.SSLSocket, name), _application_data))


def gevent_sockets(module: Any) -> None:
    """The same for gevent's."""
    _sockets(module.socket)


def _noted(method: Any, note: Callable[[Any, Any], None]) -> Any:
    @wraps(method)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _open_traces[0]:
            note(self, args[0] if args else None)
        return method(self, *args, **kwargs)

    return noted


def _raw(sock: Any, data: Any) -> None:
    if not _is_wake_up(sock, data) and not _is_handshake(data):
        _application_data(sock, data)


def _application_data(sock: Any, _data: Any) -> None:
    trace = current()
    if trace is not None:
        trace.touch(sock)
    elif not _is_answering(sock):
        # A task or thread that existed before the call may send what the call handed to it.
        _strangers[0] += 1


# Connections that this process has accepted. What a server answers is no request.
_accepted: weakref.WeakSet[Any] = weakref.WeakSet()


def _accepts(method: Any) -> Any:
    @wraps(method)
    def accept(self: Any) -> Any:
        sock, address = method(self)
        _accepted.add(sock)
        return sock, address

    return accept


def _is_answering(sock: Any) -> bool:
    return sock in _accepted or bool(getattr(sock, "server_side", False))


def _is_wake_up(sock: Any, data: Any) -> bool:
    """Whether an event loop wakes itself."""
    return sock.family == socket.AF_UNIX and isinstance(data, bytes) and len(data) == 1


def _is_handshake(data: Any) -> bool:
    """Whether it is a TLS record without application data."""
    try:
        first = bytes(memoryview(data)[:2])
    except TypeError:
        return False
    return len(first) == 2 and first[0] in (0x14, 0x15, 0x16) and first[1] == 0x03


# Descriptors that were open before: a pipe to a process that is already running, a file. asyncio and trio write to
# pipes with these functions of `os`. A file object of the interpreter writes without them and cannot be observed.


def _descriptors() -> None:
    module: Any = os
    for name in ("write", "writev", "pwrite", "pwritev", "sendfile"):
        if hasattr(module, name):
            setattr(module, name, _written(getattr(module, name)))


def _written(function: Any) -> Any:
    @wraps(function)
    def written(descriptor: int, *args: Any, **kwargs: Any) -> Any:
        if _open_traces[0]:
            _note_descriptor(descriptor)
        return function(descriptor, *args, **kwargs)

    return written


def _note_descriptor(descriptor: Any) -> None:
    try:
        kind = os.fstat(descriptor).st_mode
    except (OSError, TypeError, ValueError):
        return
    if descriptor in (1, 2) or stat.S_ISCHR(kind):
        # What a program prints is no effect.
        return
    note_write(file=stat.S_ISREG(kind))


def note_write(*, file: bool = False) -> None:
    """Records that a pipe or a file was written to that was open before."""
    trace = current()
    if trace is not None:
        trace.hide("it wrote a file" if file else "it wrote to a pipe")
    elif not file:
        # The writer of a pipe is often a task of its own, which gets what it sends from a queue.
        _strangers[0] += 1
        _changes[0] += 1


# Threads.

# Threads that wait for work from others, and end with the process.
_HELPERS = ("concurrent.futures", "grpc")


def _threads() -> None:
    thread: Any = threading.Thread
    start, bootstrap = thread.start, thread._bootstrap_inner

    @wraps(start)
    def started(self: Any) -> None:
        trace = current()
        if trace is not None:
            self.__dict__["_onceward_trace"] = trace
            if not str(getattr(self._target, "__module__", "")).startswith(_HELPERS):
                trace.under_way.append(self)
        start(self)

    @wraps(bootstrap)
    def bootstrapped(self: Any) -> None:
        trace = self.__dict__.pop("_onceward_trace", None)
        if trace is not None:
            _trace.set(trace)
        bootstrap(self)

    thread.start, thread._bootstrap_inner = started, bootstrapped


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for use on another thread, in the context of the call that runs here."""
    trace = current()
    if trace is None:
        return function

    def carry(*args: Any, **kwargs: Any) -> Any:
        token = _trace.set(trace)
        try:
            return function(*args, **kwargs)
        finally:
            _trace.reset(token)

    return carry
