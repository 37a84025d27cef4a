"""Builds a guarded function from a function and its options."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import _codec, _identity, _options
from ._guard import Guard
from ._held import request_of
from ._identity import Who
from ._onceward import Plan, Receipt, Spec
from .errors import InvalidInput

if TYPE_CHECKING:
    from ._ledger import Ledger


class Owner:
    """The object of a method, as part of the key."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __onceward__(self) -> object:
        """What identifies the object."""
        try:
            return _identity.owner_value(self.it)
        except TypeError as problem:
            raise TypeError(
                f"is the object of a method, and such objects cannot be distinguished ({problem}): give the class a "
                "method __onceward__() that returns what identifies an object, name the identifying arguments with "
                "key=, or leave it out with volatile=['self']"
            ) from problem


class Guarded:
    """A guard and its function: what all calls share."""

    def __init__(self, ledger: Ledger, function: Any, options: Mapping[str, Any]) -> None:
        _refuse_generators(function)
        self.ledger, self.options = ledger, options
        self.original = function
        self.who = _identity.of(function, options, ledger._known)
        self.counts_owner = self.who.owner and self._owner_counts()
        self.guard = guard_of(ledger, self.who, options, self.counts_owner)
        self.is_async = is_async(self.who.function)

    def _owner_counts(self) -> bool:
        own = next(iter(self.who.signature.parameters))
        key, volatile = self.options.get("key"), self.options.get("volatile", ())
        if key is not None:
            return not callable(key) and own in key
        return own not in volatile

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, including bound ones."""
        if self.who.closure is not None:
            self.who.closure.check()
        if self.who.first or self.who.named:
            args, kwargs = (*self.who.first, *args), {**self.who.named, **kwargs}
        if self.counts_owner and args:
            args = (Owner(args[0]), *args[1:])
        return args, kwargs


def wrap(ledger: Ledger, function: Any, options: Mapping[str, Any]) -> Any:
    """The guarded function; a coroutine function if it was one."""
    held = Guarded(ledger, function, options)
    ledger._functions[held.who.name] = held.guard
    guarded = _functions(held)
    if _identity.is_method(held.who.function) and isinstance(function, types.FunctionType):
        return OnceMethod(guarded)
    return staticmethod(guarded) if isinstance(function, staticmethod) else guarded


def _functions(held: Guarded) -> Any:
    run, run_async, prepared, options = held.guard.run, held.guard.run_async, held.prepared, held.options
    plain = not (held.who.first or held.who.named or held.counts_owner or held.who.closure)
    make_plan, identify, spec = held.guard.plan, held.guard.identity, held.guard.spec

    # These use only what they capture, so that they work with the globals of the function that they replace.
    def plan(*args: Any, **kwargs: Any) -> Plan:
        return make_plan(*prepared(args, kwargs))

    def identity(*args: Any, **kwargs: Any) -> tuple[str, str, str]:
        return identify(*prepared(args, kwargs))

    def receipt(*args: Any, **kwargs: Any) -> Receipt:
        return run(*prepared(args, kwargs))

    def value(*args: Any, **kwargs: Any) -> Any:
        return (run(args, kwargs) if plain else run(*prepared(args, kwargs))).value

    async def receipt_async(*args: Any, **kwargs: Any) -> Receipt:
        return await run_async(*prepared(args, kwargs))

    async def value_async(*args: Any, **kwargs: Any) -> Any:
        return (await run_async(*prepared(args, kwargs))).value

    by_receipt: Any = receipt_async if held.is_async else receipt
    by_value: Any = value_async if held.is_async else value
    if options.get("dry_run"):
        by_receipt = by_value = plan
    chosen = by_receipt if options.get("returns") == "receipt" else by_value
    guarded = _in_place_of(held, chosen)
    guarded.receipt, guarded.plan, guarded.identity = by_receipt, plan, identity
    guarded.occurrence = lambda label: wrap(held.ledger, held.original, {**options, "occurrence": label})
    guarded.operation_name = spec.name
    return guarded


def _in_place_of(held: Guarded, chosen: Any) -> Any:
    """The function with the name, the signature and the globals of the one that it replaces."""
    namespace = getattr(inspect.unwrap(held.who.function), "__globals__", None)
    made: Any = chosen
    if isinstance(namespace, dict):
        # Frameworks resolve annotations in the function's globals.
        made = types.FunctionType(chosen.__code__, namespace, chosen.__name__, None, chosen.__closure__)
    made = functools.update_wrapper(made, held.original)
    made.__name__ = getattr(held.who.function, "__name__", held.who.name.rpartition(".")[2])
    made.__wrapped__ = held.original.__func__ if isinstance(held.original, staticmethod) else held.original
    return made


class OnceMethod:
    """A guarded method: `.receipt`, `.plan`, `.identity` and `.occurrence` are bound to the object, like the method."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self.__dict__["_function"] = function
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__"):
            self.__dict__[name] = getattr(function, name)
        if inspect.iscoroutinefunction(function):
            import asyncio

            self.__dict__["_is_coroutine"] = getattr(asyncio.coroutines, "_is_coroutine", True)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        function = self.__dict__["_function"]
        if instance is None:
            return function
        bound = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, None, function.__closure__
        )
        functools.update_wrapper(bound, function)
        bound.__dict__.update(self._marks())
        bound.receipt = functools.partial(function.receipt, instance)  # type: ignore[attr-defined]
        bound.plan = functools.partial(function.plan, instance)  # type: ignore[attr-defined]
        bound.identity = functools.partial(function.identity, instance)  # type: ignore[attr-defined]
        bound.occurrence = lambda label: _bound(function.occurrence(label), instance, owner)  # type: ignore[attr-defined]
        return types.MethodType(bound, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_function"](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_function"], name)

    def _marks(self) -> dict[str, Any]:
        """Attributes that other decorators have set."""
        own = ("_function", "_is_coroutine", "__code__", "__defaults__", "__kwdefaults__", "__globals__")
        return {name: value for name, value in self.__dict__.items() if name not in own and not name.startswith("__")}

    def __repr__(self) -> str:
        return f"<guarded method {self.__dict__['_function'].__qualname__}>"


def _bound(method: Any, instance: Any, owner: Any) -> Any:
    return method.__get__(instance, owner) if isinstance(method, OnceMethod) else types.MethodType(method, instance)


def guard_of(ledger: Ledger, who: Who, options: Mapping[str, Any], counts_owner: bool = False) -> Guard:
    """The guard for a function whose arguments are its inputs."""
    key = options.get("key")
    asked = key if callable(key) else None
    fields = list(key or ()) if asked is None else []
    volatile = list(options.get("volatile", ()))
    _identity.check_names("key", fields, who)
    _identity.check_names("volatile", volatile, who)
    out = [name for name in _identity.injected(who.function) if name not in fields]
    if who.owner and not counts_owner:
        out.append(next(iter(who.signature.parameters)))
    codec = options.get("codec") or _codec.of_function(inspect.unwrap(who.function))
    bare: Callable[[Any], Any] = _bare if counts_owner else lambda function: function
    spec = Spec(
        who.name,
        scope=bare(options.get("scope")),
        key=bare(asked),
        key_fields=[*fields, *(who.hidden if fields else ())],
        volatile=volatile,
        occurrence=bare(options.get("occurrence")),
        params=who.rows(volatile, out),
        bind=who.signature.bind,
        nfc=ledger._nfc,
        terms=_options.terms(options),
        policy=ledger._policy,
        decode=codec.decode if codec is not None else None,
        request=request_of,
        undo=_register(ledger, who.name, options.get("undo"), codec),
    )
    actors = actors_of(options)
    actors["probe"] = bare(actors["probe"])
    actors["verify"] = _bare(actors["verify"], 1) if counts_owner else actors["verify"]
    return Guard(ledger._handle, spec, bare(who.function), **actors, codec=codec)


def _register(ledger: Ledger, name: str, undo: Any, codec: Any) -> str | None:
    """Registers what takes an operation back, and returns its name for the record."""
    if undo is None:
        return None
    ledger._undos[name] = (undo, codec.decode if codec is not None else None)
    return f"{getattr(undo, '__module__', '?')}.{getattr(undo, '__qualname__', type(undo).__qualname__)}"


def _bare(function: Any, place: int = 0) -> Any:
    """The function, called with the object itself instead of its `Owner`."""
    if not callable(function):
        return function

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place and type(args[place]) is Owner:
            args = (*args[:place], args[place].it, *args[place + 1 :])
        return function(*args, **kwargs)

    return called


def single(
    ledger: Ledger,
    name: str,
    function: Callable[..., Any],
    inputs: object,
    options: Mapping[str, Any],
    *,
    waits: bool,
    undoes: str | None = None,
) -> Guard:
    """The guard for a single call with a name, inputs and a function."""
    known = options.get("key")
    if known == "":
        raise InvalidInput("key is empty; give text, or leave it out")
    fields = [] if known is None or isinstance(known, (str, int)) else list(known)
    _options.check({**options, "key": None})
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"the name of the call is {name!r}; give text")
    if not callable(function):
        raise TypeError(f"{function!r} is not a function; pass the function, not its result")
    _refuse_generators(function)
    if not waits and is_async(function):
        raise TypeError(f"{name} is a coroutine function: use acall")
    _refuse_misfit(name, function, inputs)
    codec = options.get("codec") or _codec.of_function(function)
    spec = Spec(
        name,
        scope=options.get("scope"),
        key=known if not fields else None,
        key_fields=fields,
        volatile=list(options.get("volatile", ())),
        occurrence=options.get("occurrence"),
        nfc=ledger._nfc,
        terms=_options.terms(options),
        policy=ledger._policy,
        decode=codec.decode if codec is not None else None,
        undo=_register(ledger, name, options.get("undo"), codec),
        undoes=undoes,
    )
    actors = actors_of(options)
    for question in ("probe", "verify"):
        if actors[question] is not None:
            actors[question] = _with_inputs(actors[question], leading=int(question == "verify"))
    return Guard(ledger._handle, spec, _with_inputs(function), **actors, codec=codec)


def is_async(function: Any) -> bool:
    """Whether a call returns an awaitable."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function)):
        return True
    return not inspect.isroutine(function) and inspect.iscoroutinefunction(type(function).__call__)


def _refuse_generators(function: Any) -> None:
    while isinstance(function, functools.partial):
        function = function.func
    plain = inspect.unwrap(function.__func__ if isinstance(function, staticmethod) else function)
    call = type(function).__call__ if callable(function) and not inspect.isroutine(function) else None
    for one in (function, plain, call):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            name = getattr(plain, "__qualname__", repr(plain))
            raise TypeError(f"{name} is a generator: guard a function that returns when it is done")


def _refuse_misfit(name: str, function: Any, inputs: object) -> None:
    """Refuses inputs that do not fit the function before anything is written, as Python would."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    if not signature.parameters or not isinstance(inputs, Mapping):
        return
    try:
        signature.bind(**inputs)
    except TypeError as problem:
        raise TypeError(f"{name}: {problem}; nothing was run") from None


def actors_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a guard needs besides the operation's terms."""
    return {
        "probe": options.get("probe"),
        "verify": options.get("verify"),
        "no_effect": _options.kinds(options),
        "known_failures": options.get("known_failures"),
        "marked": options.get("dispatch") == "marked",
        "reads": options.get("class_") == "read",
    }


def _with_inputs(function: Callable[..., Any], leading: int = 0) -> Callable[..., Any]:
    """A function that is called with the inputs as named arguments, or with none if it takes none."""
    try:
        takes = len(inspect.signature(function).parameters) > leading
    except (TypeError, ValueError):
        takes = True

    def called(*args: Any) -> Any:
        *before, inputs = args
        if not takes:
            return function(*before)
        return function(*before, **inputs) if isinstance(inputs, Mapping) else function(*before, inputs)

    return called
