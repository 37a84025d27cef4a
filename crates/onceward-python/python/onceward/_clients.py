"""Patches for common clients, applied when they are imported, so that each request is counted.

A `Wire` is one request as it is sent, so redirects and a client's own retries are counted like any other request.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import _watch
from ._watch import Wire, begin, current

Patch = Callable[[Any], None]


def install() -> None:
    """Patches what is imported already, and what will be imported later."""
    sys.meta_path.insert(0, _Finder())
    for name in list(_PATCHES):
        module = sys.modules.get(name)
        if module is not None:
            _apply(name, module)


def _apply(name: str, module: Any) -> None:
    if name in _applied:
        return
    _applied.add(name)
    for patch in _PATCHES[name]:
        try:
            patch(module)
        except AttributeError:
            # An unknown version of the library: its requests cannot be counted one by one.
            _unknown.add(name)


_applied: set[str] = set()
_unknown: set[str] = set()


def blind() -> bool:
    """Whether a client has a version whose requests cannot be counted."""
    return bool(_unknown)


def unobserved() -> bool:
    """Whether a module is loaded that sends without the interpreter's sockets, so that no request can be counted."""
    from .failures import UNOBSERVED

    return any(name in sys.modules for name in UNOBSERVED)


class _Finder(importlib.abc.MetaPathFinder):
    """Leaves finding a module to the other finders, and patches the module after it has been executed."""

    def __init__(self) -> None:
        self.busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, with a loader that patches the module."""
        if name not in _PATCHES or name in self.busy or name in _applied:
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        loader: Any = spec.loader if spec is not None else None
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def executed(module: ModuleType) -> None:
            execute(module)
            _apply(name, module)

        try:
            loader.exec_module = executed
        except AttributeError:
            _unknown.add(name)
        return spec


def _each(kind: Any, names: Sequence[str], around: Callable[[Any], Any]) -> None:
    for name in names:
        setattr(kind, name, wraps(getattr(kind, name))(around(getattr(kind, name))))


def _begins(method: Any) -> Any:
    async def called_async(*args: Any, **kwargs: Any) -> Any:
        begin()
        _watch.check_loop()
        return await method(*args, **kwargs)

    def called(*args: Any, **kwargs: Any) -> Any:
        begin()
        return method(*args, **kwargs)

    return called_async if inspect.iscoroutinefunction(method) else called


def _leaves(method: Any) -> Any:
    """Wraps a method that sends something as soon as it is called."""

    def called(*args: Any, **kwargs: Any) -> Any:
        trace = current()
        if trace is not None and (trace.own is None or not args or args[0] is not trace.own):
            Wire("?").leave()
        return method(*args, **kwargs)

    return called


def _hides(what: str) -> Callable[[Any], Any]:
    def around(method: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            trace = current()
            if trace is not None:
                trace.hide(what)
            return method(*args, **kwargs)

        return called

    return around


def _pipes(module: Any) -> None:
    """The pipe to a process: a file object, which writes without any event."""

    def init(method: Any) -> Any:
        def called(self: Any, *args: Any, **kwargs: Any) -> None:
            method(self, *args, **kwargs)
            if self.stdin is not None:
                _note_writes(self.stdin)

        return called

    _each(module.Popen, ["__init__"], init)


def _note_writes(stream: Any) -> None:
    # Without a reference to itself: a stream that is dropped must be closed at once, because its reader waits for that.
    itself = weakref.ref(stream)
    for name in ("write", "writelines", "flush"):
        method = getattr(type(stream), name)

        def noted(*args: Any, _method: Any = method) -> Any:
            _watch.note_write()
            return _method(itself(), *args)

        with suppress(AttributeError):
            setattr(stream, name, noted)
    if hasattr(stream, "buffer"):
        _note_writes(stream.buffer)


def _sends(method: Any) -> Any:
    """Wraps a method that writes to a pipe."""

    def called(*args: Any, **kwargs: Any) -> Any:
        _watch.note_write()
        return method(*args, **kwargs)

    return called


def _class(name: str, methods: Sequence[str], around: Callable[[Any], Any]) -> Patch:
    return lambda module: _each(getattr(module, name), methods, around)


# http.client, and with it urllib, urllib3, requests and botocore. Sending is an audit event: see `_watch`.


def _http_client(module: Any) -> None:
    def putrequest(method: Any) -> Any:
        def called(self: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
            self.__dict__["_onceward_wire"] = Wire(verb)
            return method(self, verb, *args, **kwargs)

        return called

    def getresponse(method: Any) -> Any:
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            response = method(self, *args, **kwargs)
            wire = self.__dict__.get("_onceward_wire")
            if wire is not None:
                wire.status = response.status
            return response

        return called

    _each(module.HTTPConnection, ["putrequest"], putrequest)
    _each(module.HTTPConnection, ["getresponse"], getresponse)


def _replies(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Wraps a method that returns a response. A response for which no byte was sent (from a custom transport or a test
    transport) still counts as a request."""

    def around(method: Any) -> Any:
        def called(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            trace = current()
            if trace is None:
                return method(self, request, *args, **kwargs)
            trace.begun += 1
            before = len(trace.sent) + len(trace.sockets)
            try:
                response = method(self, request, *args, **kwargs)
            except BaseException as error:
                _foreign(trace, before, request, error, names)
                raise
            _answered(trace, before, request, response)
            return response

        return called

    return around


def _replies_async(names: tuple[str, ...]) -> Callable[[Any], Any]:
    def around(method: Any) -> Any:
        async def called(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            trace = current()
            if trace is None:
                return await method(self, request, *args, **kwargs)
            trace.begun += 1
            before = len(trace.sent) + len(trace.sockets)
            try:
                response = await method(self, request, *args, **kwargs)
            except BaseException as error:
                _foreign(trace, before, request, error, names)
                raise
            _answered(trace, before, request, response)
            return response

        return called

    return around


def _answered(trace: Any, before: int, request: Any, response: Any) -> None:
    if len(trace.sent) + len(trace.sockets) == before:
        for _ in range(1 + len(getattr(response, "history", ()))):
            Wire(str(request.method)).leave().status = response.status_code


def _foreign(trace: Any, before: int, request: Any, error: BaseException, names: tuple[str, ...]) -> None:
    own = type(error).__module__.startswith(names)
    if not own and len(trace.sent) + len(trace.sockets) == before:
        Wire(str(request.method)).leave()


# httpcore, and with it httpx.


def _http11(kind: str, handle: str) -> Patch:
    def patch(module: Any) -> None:
        connection = getattr(module, kind)
        if hasattr(connection, "_send_connection_init"):
            _each(connection, ["_send_connection_init"], _sends_headers)
        _each(connection, ["_send_request_headers"], _sends_headers)
        _each(connection, [handle], _handles_async if "async" in handle else _handles)

    return patch


def _handles(method: Any) -> Any:
    def called(self: Any, request: Any) -> Any:
        request.extensions["onceward"] = wire = Wire(request.method.decode("ascii", "replace"))
        response = method(self, request)
        wire.status = response.status
        return response

    return called


def _handles_async(method: Any) -> Any:
    async def called(self: Any, request: Any) -> Any:
        request.extensions["onceward"] = wire = Wire(request.method.decode("ascii", "replace"))
        response = await method(self, request)
        wire.status = response.status
        return response

    return called


def _sends_headers(method: Any) -> Any:
    def called(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        wire = request.extensions.get("onceward")
        if wire is not None:
            wire.leave()
        return method(self, request, *args, **kwargs)

    return called


def _httpx(module: Any) -> None:
    names = ("httpx", "httpcore")
    for kind in (module.Client, module.AsyncClient):
        _each(kind, ["request", "stream"], _begins)
    _each(module.Client, ["_send_single_request"], _replies(names))
    _each(module.AsyncClient, ["_send_single_request"], _replies_async(names))


# aiohttp


def _aiohttp_requests(module: Any) -> None:
    def send(method: Any) -> Any:
        async def called(self: Any, connection: Any) -> Any:
            wire = Wire(self.method).leave()
            response = await method(self, connection)
            response.__dict__["_onceward_wire"] = wire
            return response

        return called

    def start(method: Any) -> Any:
        async def called(self: Any, connection: Any) -> Any:
            await method(self, connection)
            wire = self.__dict__.get("_onceward_wire")
            if wire is not None:
                wire.status = self.status
            return self

        return called

    _each(module.ClientRequest, ["send"], send)
    _each(module.ClientResponse, ["start"], start)


# gRPC does not use Python's sockets, and a service configuration may make it retry without our seeing it.

_plain_channels: set[int] = set()


def _grpc_channel(module: Any) -> None:
    def init(method: Any) -> Any:
        def called(self: Any, *args: Any, **kwargs: Any) -> None:
            method(self, *args, **kwargs)
            options = kwargs.get("options", args[1] if len(args) > 1 else None) or ()
            inner = id(self._channel)
            retries = any(str(name) in ("grpc.service_config", "grpc.service_config_disable_resolution")
                          for name, _ in options)  # fmt: skip
            (_plain_channels.discard if retries else _plain_channels.add)(inner)

        return called

    _each(module.Channel, ["__init__"], init)


def _rpc(*, unary: bool) -> Callable[[Any], Any]:
    def around(method: Any) -> Any:
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            Wire("RPC", plain=unary and id(self._channel) in _plain_channels).leave()
            return method(self, *args, **kwargs)

        return called

    return around


def _grpc(module: Any) -> None:
    _grpc_channel(module)
    _each(module._UnaryUnaryMultiCallable, ["_blocking", "future"], _rpc(unary=True))
    _each(module._StreamUnaryMultiCallable, ["_blocking", "future"], _rpc(unary=False))
    for kind in ("_SingleThreadedUnaryStreamMultiCallable", "_UnaryStreamMultiCallable", "_StreamStreamMultiCallable"):
        _each(getattr(module, kind), ["__call__"], _rpc(unary=False))


def _grpc_aio(module: Any) -> None:
    _grpc_channel(module)
    _each(module.UnaryUnaryMultiCallable, ["__call__"], _rpc(unary=True))
    for kind in ("UnaryStreamMultiCallable", "StreamUnaryMultiCallable", "StreamStreamMultiCallable"):
        _each(getattr(module, kind), ["__call__"], _rpc(unary=False))


# smtplib: DATA sends a mail. Nothing before it has an effect.


def _smtplib(module: Any) -> None:
    def putcmd(method: Any) -> Any:
        def called(self: Any, cmd: str, *args: Any, **kwargs: Any) -> Any:
            if cmd.strip().lower()[:4] in ("data", "bdat", "etrn"):
                Wire("MAIL").leave()
            return method(self, cmd, *args, **kwargs)

        return called

    _each(module.SMTP, ["putcmd"], putcmd)
    _each(module.SMTP, ["connect"], _begins)


# Databases.


def _connects(kind: str) -> Patch:
    """Wraps a class method that connects. Errors that it raises are marked, because no statement was sent."""

    def patch(module: Any) -> None:
        owner = getattr(module, kind)
        method = owner.__dict__["connect"].__func__
        asynchronous = kind.startswith("Async")

        @wraps(method)
        def connect(cls: Any, *args: Any, **kwargs: Any) -> Any:
            begin()
            try:
                return method(cls, *args, **kwargs)
            except Exception as error:
                error.__onceward_unsent__ = True  # type: ignore[attr-defined]
                raise

        @wraps(method)
        async def connect_async(cls: Any, *args: Any, **kwargs: Any) -> Any:
            begin()
            try:
                return await method(cls, *args, **kwargs)
            except Exception as error:
                error.__onceward_unsent__ = True  # type: ignore[attr-defined]
                raise

        owner.connect = classmethod(connect_async if asynchronous else connect)

    return patch


# Threads and processes.


def _thread_pool(module: Any) -> None:
    def submit(method: Any) -> Any:
        def called(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            future = method(self, _watch.carried(function), *args, **kwargs)
            trace = current()
            if trace is not None:
                trace.under_way.append(future)
            return future

        return called

    _each(module.ThreadPoolExecutor, ["submit"], submit)


def _event_loop(module: Any) -> None:
    def create_task(method: Any) -> Any:
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            task = method(self, *args, **kwargs)
            trace = current()
            if trace is not None:
                trace.under_way.append(task)
            return task

        return called

    _each(module.BaseEventLoop, ["create_task"], create_task)


_PROCESS = _hides("it started a process")

_PATCHES: dict[str, Sequence[Patch]] = {
    "ssl": [_watch.tls_sockets],
    "gevent._socket3": [_watch.gevent_sockets],
    "concurrent.futures.thread": [_thread_pool],
    "concurrent.futures.process": [_class("ProcessPoolExecutor", ["submit"], _PROCESS)],
    "subprocess": [_pipes],
    "multiprocessing.connection": [_class("_ConnectionBase", ["send", "send_bytes"], _sends)],
    "multiprocessing.process": [_class("BaseProcess", ["start"], _PROCESS)],
    "multiprocessing.pool": [_class("Pool", ["_check_running"], _PROCESS)],
    "asyncio.base_events": [_event_loop],
    "http.client": [_http_client],
    "urllib.request": [_class("OpenerDirector", ["open"], _begins)],
    "urllib3.connectionpool": [_class("HTTPConnectionPool", ["urlopen"], _begins)],
    "requests.sessions": [
        _class("Session", ["request"], _begins),
        _class("Session", ["send"], _replies(("requests", "urllib3"))),
    ],
    "httpx._client": [_httpx],
    "httpx2._client": [_httpx],
    "aiohttp.client": [_class("ClientSession", ["_request"], _begins)],
    "aiohttp.client_reqrep": [_aiohttp_requests],
    "botocore.client": [_class("BaseClient", ["_make_api_call"], _begins)],
    "stripe._http_client": [
        _class("HTTPClient", ["_request_with_retries_internal"], _begins),
        _class("PycurlClient", ["_request_internal"], _leaves),
    ],
    "grpc._channel": [_grpc],
    "grpc.aio._channel": [_grpc_aio],
    "smtplib": [_smtplib],
    "psycopg.connection": [_class("Connection", ["wait"], _leaves), _connects("Connection")],
    "psycopg.connection_async": [_class("AsyncConnection", ["wait"], _leaves), _connects("AsyncConnection")],
    "sqlalchemy.engine.default": [
        _class("DefaultDialect", ["do_execute", "do_executemany", "do_execute_no_params"], _leaves)
    ],
    "django.db.backends.utils": [_class("CursorWrapper", ["_execute", "_executemany"], _leaves)],
    **{
        f"{core}.{folder}.{version}": [_http11(f"{prefix}{kind}Connection", handle)]
        for core in ("httpcore", "httpcore2")
        for folder, prefix, handle in (("_sync", "", "handle_request"), ("_async", "Async", "handle_async_request"))
        for version, kind in (("http11", "HTTP11"), ("http2", "HTTP2"))
    },
}
