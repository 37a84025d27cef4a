"""A function's identity: its name, what it holds besides its arguments, and which arguments the framework passes.

Two functions that do different things must not share a name. What distinguishes them becomes part of the identity, or
the function is refused when it is decorated, with a message that names the argument to add.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import InvalidInput

Row = tuple[str, int, bool, "tuple[Any] | None"]

_KEYWORD_ONLY = 3
_HELD = "(holds)"
_SELF = "(self)"


@dataclass
class Who:
    """A function without what was bound to it."""

    function: Callable[..., Any]
    """The function itself, without bound arguments."""
    name: str
    first: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    """Arguments that a `partial` passes to every call."""
    owner: bool = False
    """Whether the first argument is the object or class of a method, and is part of the identity."""
    hidden: dict[str, Any] = field(default_factory=dict)
    """What is part of the identity besides the arguments."""
    closure: Closure | None = None
    """What the function captures, if it captures anything."""

    def rows(self, volatile: Iterable[str], left_out: Iterable[str]) -> list[Row]:
        """The table of parameters by which the native module binds calls."""
        out = {*volatile, *left_out}
        rows: list[Row] = []
        for name, parameter in self.signature.parameters.items():
            default = None if parameter.default is parameter.empty else (parameter.default,)
            rows.append((name, int(parameter.kind), name not in out, default))
        rows.extend((name, _KEYWORD_ONLY, True, (value,)) for name, value in self.hidden.items())
        # `*args` and `**kwargs` come last.
        return sorted(rows, key=lambda row: row[1])

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function itself."""
        return signature_of(self.function)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature. Raises InvalidInput if it has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as problem:
        raise InvalidInput(
            f"the arguments of {function!r} cannot be read ({problem}); guard a Python function that calls it"
        ) from problem


def of(function: Any, options: Mapping[str, Any], known: Known) -> Who:
    """Identifies the function. Raises InvalidInput if it cannot be distinguished from another one."""
    given = options.get("name")
    if given is not None and (not isinstance(given, str) or not given):
        raise InvalidInput(f"name is {given!r}; give text")
    own_key = callable(options.get("key"))
    first: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        first, named = (*function.args, *first), {**function.keywords, **named}
        function = function.func
    if isinstance(function, classmethod):
        raise TypeError("put @classmethod above the guard: @classmethod, then @ledger.once, then the function")
    if isinstance(function, staticmethod):
        function = function.__func__
    if not callable(function):
        raise TypeError(f"{function!r} is not a function")
    target = getattr(function, "__onceward_of__", function)
    holder = _holder(target)
    who = Who(function, given or name_of(target), first, named)
    if holder is not None and given is None and not own_key:
        who.hidden[_SELF] = _distinguished(holder, options, f"{who.name} belongs to a {_class(type(holder))}")
    if given is None and who.name.rpartition(".")[2] == "<lambda>":
        raise InvalidInput(f"{who.name} is a lambda, which has no name of its own: give name=")
    if given is None and not own_key:
        closure = Closure(who.name, target, known)
        if closure.counts:
            who.hidden[_HELD] = closure
        if closure.cells:
            who.closure = closure
    who.owner = holder is None and is_method(target)
    return who


def is_method(function: Any) -> bool:
    """Whether it was defined in the body of a class and takes the object or the class as its first argument."""
    parts = getattr(function, "__qualname__", "").split(".")
    if len(parts) < 2 or parts[-2] == "<locals>":
        return False
    names = list(signature_of(function).parameters)
    return bool(names) and names[0] in ("self", "cls")


def _holder(function: Any) -> Any:
    """The object of a bound method, or a callable object itself."""
    if inspect.ismethod(function):
        return function.__self__
    if inspect.isroutine(function) or isinstance(function, type) or isinstance(function, types.FunctionType):
        return getattr(function, "__self__", None) if inspect.isbuiltin(function) and _is_bound(function) else None
    return function


def _is_bound(function: Any) -> bool:
    return not isinstance(function.__self__, types.ModuleType) and function.__self__ is not None


def _distinguished(holder: Any, options: Mapping[str, Any], what: str) -> object:
    try:
        return owner_value(holder)
    except TypeError as problem:
        raise InvalidInput(
            f"{what}, and its objects cannot be distinguished: give name=, or give the class a method "
            "__onceward__() that returns what identifies an object"
        ) from problem


def owner_value(owner: Any) -> object:
    """What identifies the object of a method. Raises TypeError if that may change from call to call."""
    if isinstance(owner, type):
        _refuse_another(owner)
        return {"class": class_name(owner)}
    if isinstance(owner, types.ModuleType):
        return {"module": owner.__name__}
    if getattr(type(owner), "__onceward__", None) is not None:
        return {"class": class_name(type(owner)), "is": owner.__onceward__()}
    if is_frozen(owner):
        _refuse_another(type(owner))
        return owner
    raise TypeError(f"a {_class(type(owner))} has no __onceward__()")


def is_frozen(value: Any) -> bool:
    """Whether the value cannot change and has exactly one JSON form."""
    import enum
    from datetime import date, time, timedelta
    from decimal import Decimal
    from pathlib import PurePath
    from uuid import UUID

    if value is None or isinstance(
        value, (str, int, float, bytes, enum.Enum, date, time, timedelta, Decimal, UUID, PurePath)
    ):
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(is_frozen(item) for item in value)
    kind = type(value)
    if "__dataclass_params__" in dir(kind):
        return bool(kind.__dataclass_params__.frozen)
    if isinstance(getattr(kind, "model_config", None), dict) and hasattr(kind, "model_fields"):
        return bool(kind.model_config.get("frozen"))
    if hasattr(kind, "__attrs_attrs__"):
        return "_frozen" in getattr(kind.__setattr__, "__name__", "")
    return False


# What a function captures from the enclosing function, and what decorators under the guard capture.


class Closure:
    """What a function captures, as part of its identity: fixed by the first call.

    A variable that is assigned after the function was defined has its value by then. If it changes later, the call is
    refused: whether that makes another action (the next customer) or says nothing about it (the number of the attempt)
    is not known here.
    """

    def __init__(self, name: str, target: Any, known: Known) -> None:
        self.name, self.known, self.layers = name, known, _layers(target)
        self.cells = any(getattr(layer, "__closure__", None) for layer in self.layers)
        self._pinned: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._own: Own = {}
        values, objects, late = self._read()
        self.counts = bool(values) or late
        self._register(values, objects)

    def __onceward__(self) -> object:
        """The values that distinguish the function."""
        return (self._pinned or self._read())[0]

    def check(self) -> None:
        """Refuses a call if what the function captures has changed since the first one."""
        values, objects, _ = self._read()
        if self._pinned is None:
            if values and not self.counts:
                self._refuse_change({}, values)
            self._register(values, objects)
            self._pinned = values, objects
            return
        self._refuse_change({**self._pinned[1], **self._pinned[0]}, {**objects, **values})

    def _refuse_change(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        changed = [name for name in {**before, **now} if not _is_same(before.get(name), now.get(name))]
        if changed:
            raise InvalidInput(
                f"{', '.join(changed)} has changed since {self.name}, which captures it, was created or first called, "
                "and its calls cannot be distinguished; nothing was run. Make it an argument, or give name= or a key= "
                "function"
            )

    def _read(self) -> tuple[dict[str, Any], dict[str, Any], bool]:
        values: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        for cell in _assigned(self.layers):
            self._own.setdefault(id(cell), (cell, _contents(cell)))
        late = False
        for layer in self.layers:
            inner, held, unset = _held(layer, self.layers, self._own)
            values.update(inner)
            objects.update(held)
            late = late or unset
        return values, objects, late

    def _register(self, values: dict[str, Any], objects: dict[str, Any]) -> None:
        hidden = {_HELD: values} if values else {}
        _register(self.known, self.name + repr(hidden), self.layers, objects)


def _layers(function: Any) -> list[Any]:
    """The function with the decorators under the guard, outermost first: `functools.wraps` hides them."""
    layers = [function]
    while (inner := getattr(layers[-1], "__wrapped__", None)) is not None and inner not in layers:
        layers.append(inner)
    return layers


def _cells(function: Any) -> Iterator[tuple[str, Any]]:
    """The free variables of a function, and their cells."""
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    yield from zip(getattr(code, "co_freevars", ()), closure or (), strict=False)


Own = dict[int, tuple[Any, Any]]
"""Cells that the function itself assigns, with what they held when it was created, which stays its identity."""


def _assigned(functions: Iterable[Any], depth: int = 4) -> list[Any]:
    """The cells that these functions, or functions that they capture, assign: counters and the like."""
    found: list[Any] = []
    for function in functions:
        code = getattr(function, "__code__", None)
        stored = _stores(code) if code is not None else frozenset()
        for variable, cell in _cells(function):
            if variable in stored:
                found.append(cell)
            elif depth and isinstance(held := _contents(cell), types.FunctionType):
                found += _assigned(_layers(held), depth - 1)
    return found


@functools.lru_cache(maxsize=4096)
def _stores(code: types.CodeType) -> frozenset[str]:
    """The variables of an enclosing function that this code assigns."""
    import dis

    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inner = [_stores(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(own & set(code.co_freevars)).union(*(part & set(code.co_freevars) for part in inner))


_UNSET = object()


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNSET


def _held(function: Any, layers: list[Any], own: Own, depth: int = 4) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """What a function captures: immutable values, objects without a value of their own, and whether one is not set."""
    values: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    late = False
    for variable, cell in _cells(function):
        value = own[id(cell)][1] if id(cell) in own else _contents(cell)
        if value is None or variable == "__class__" or any(value is layer for layer in layers):
            continue
        if getattr(value, "__wrapped__", None) in layers or variable == getattr(function, "__name__", None):
            # A function that calls itself.
            continue
        if value is _UNSET:
            late = id(cell) not in own
        elif isinstance(value, type):
            values[variable] = {"class": class_name(value)}
            if not _is_importable(value):
                objects[f"class {variable}"] = value
        elif isinstance(value, types.ModuleType):
            values[variable] = {"module": value.__name__}
        elif hasattr(value, "operation_name"):
            values[variable] = {"function": str(value.operation_name)}
        elif isinstance(value, types.FunctionType) and "<lambda>" not in value.__qualname__ and depth:
            values[variable], held = _helper(value, own, depth)
            objects.update({f"{variable}.{name}": one for name, one in held.items()})
        elif is_frozen(value):
            values[variable] = value
        elif type(value).__module__.partition(".")[0] != "onceward":
            objects[variable] = value
    return values, objects, late


def _helper(function: Any, own: Own, depth: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What distinguishes a captured function: its name and what it holds. A nested one may hold it in defaults too."""
    layers = _layers(function)
    values: dict[str, Any] = {"function": name_of(function)}
    objects: dict[str, Any] = {}
    for layer in layers:
        inner, held, _ = _held(layer, layers, own, depth - 1)
        values.update(inner)
        objects.update(held)
        if "<locals>" not in getattr(layer, "__qualname__", ""):
            continue
        defaults = [*(getattr(layer, "__defaults__", None) or ())]
        further = {**(getattr(layer, "__kwdefaults__", None) or {}), **getattr(layer, "__dict__", {})}
        further.pop("__wrapped__", None)
        for name, value in (*((f"default {place}", one) for place, one in enumerate(defaults)), *further.items()):
            if value is not None:
                (values if is_frozen(value) else objects)[name] = value
    return values, objects


Known = dict[str, tuple[list[Any], dict[str, Any]]]
"""The functions that a ledger guards, by name: their code, and the objects that they capture."""


def _register(known: Known, name: str, layers: list[Any], objects: dict[str, Any]) -> None:
    """Refuses a different function under a name that is already taken."""
    codes = [code for layer in layers if (code := getattr(layer, "__code__", None)) is not None]
    if not codes:
        return
    before = known.setdefault(name, (codes, objects))
    if len(before[0]) != len(codes) or not all(map(_is_same_text, before[0], codes)):
        one, other = before[0][-1], codes[-1]
        where = f"{os.path.basename(one.co_filename)} line {one.co_firstlineno}"
        also = f"{os.path.basename(other.co_filename)} line {other.co_firstlineno}"
        if one is other:
            where, also = "the same function", "with other decorators"
        raise InvalidInput(
            f"another function is called {name} ({where}, and {also}), and their calls cannot be distinguished: "
            "give name="
        )
    differ = [variable for variable, one in objects.items() if not _is_same(before[1].get(variable, one), one)]
    if differ:
        raise InvalidInput(
            f"{name} is created more than once, with another {', '.join(differ)} each time, and the calls cannot be "
            "distinguished: give name=, or make what differs an argument"
        )


def _is_same_text(one: Any, other: Any) -> bool:
    """Whether two code objects are one function: identical, loaded again, or typed in again."""
    if one is other or (one.co_firstlineno == other.co_firstlineno and one.co_filename == other.co_filename):
        return True
    # Text that is typed in has a file name of its own each time, and no file.
    return one.co_filename != other.co_filename and not (_is_file(one.co_filename) or _is_file(other.co_filename))


@functools.lru_cache(maxsize=4096)
def _is_file(path: str) -> bool:
    return os.path.isfile(path)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, type) and isinstance(other, type):
        return one is other or _class_state(one) == _class_state(other)
    if one is other or (isinstance(one, types.MethodType) and one == other):
        return True
    plain = isinstance(one, dict) or is_frozen(one)
    return plain and type(one) is type(other) and bool(one == other)


# Classes that are created more than once.

_classes: dict[str, weakref.ref[type]] = {}


def _refuse_another(kind: type) -> None:
    """Refuses the object of a class that cannot be distinguished from another class with the same name."""
    if _is_importable(kind):
        return
    before = _classes.setdefault(class_name(kind), weakref.ref(kind))()
    if before is None:
        _classes[class_name(kind)] = weakref.ref(kind)
    elif not _is_same(before, kind):
        raise TypeError(f"{_class(kind)} is created more than once, with other attributes each time")


def _is_importable(kind: type) -> bool:
    """Whether the class is the one that its module has under its name."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _class_state(kind: type) -> dict[str, Any]:
    """What two classes with the same name can differ in: their attributes. Methods are compared by their code."""
    state: dict[str, Any] = {}
    for name, value in vars(kind).items():
        if name.startswith("__") and name.endswith("__"):
            continue
        code = getattr(inspect.unwrap(getattr(value, "__func__", value)), "__code__", None)
        state[name] = code if code is not None else value if is_frozen(value) else type(value)
    return state


# Names.


def name_of(function: Any) -> str:
    """The function's module and name. A script gets the name under which it would be imported."""
    plain = function if hasattr(function, "__qualname__") else type(function)
    module = module_name(getattr(plain, "__module__", None) or "")
    name = plain.__qualname__.replace("<locals>.", "")
    return f"{module}.{name}" if module else name


def class_name(kind: type) -> str:
    """The class's module and name."""
    module = module_name(kind.__module__)
    return f"{module}.{kind.__qualname__}" if module else kind.__qualname__


def _class(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.lru_cache(maxsize=1024)
def module_name(module: str) -> str:
    """The name that a module has in every program: for a script, the name under which it would be imported.

    A module beside a program belongs to that program: its folder is part of its name, so that two programs called
    `main.py` differ.
    """
    loaded = sys.modules.get(module)
    spec, path = getattr(loaded, "__spec__", None), getattr(loaded, "__file__", None)
    known = spec.name if spec is not None and module in ("__main__", "__mp_main__") else module
    if module in ("__main__", "__mp_main__") and spec is None:
        known = os.path.splitext(os.path.basename(path))[0] if path else ""
    if known.endswith(".__main__"):
        return known
    if not path or "." in known or module in sys.builtin_module_names:
        return known
    return _in_its_package(os.path.abspath(path), known)


def _in_its_package(path: str, name: str) -> str:
    folder = os.path.dirname(path)
    if os.path.basename(path) == "__init__.py" or _is_installed(folder):
        return name
    parts = [name]
    if not os.path.isfile(os.path.join(folder, "__init__.py")):
        above = os.path.basename(folder)
        return f"{above}.{name}" if above.isidentifier() else name
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        parts.insert(0, os.path.basename(folder))
        folder = os.path.dirname(folder)
    return ".".join(parts)


def _is_installed(folder: str) -> bool:
    return "site-packages" in folder or "dist-packages" in folder or folder.startswith(os.path.dirname(os.__file__))


# Arguments that a framework passes.

_INJECTED_BY = ("langchain", "langgraph", "llama_index", "fastmcp", "mcp", "google.adk", "strands", "agno", "autogen",
                "pydantic_ai", "agents", "crewai", "haystack", "semantic_kernel")  # fmt: skip
_CONTEXTS = frozenset(
    {
        "RunContext", "RunContextWrapper", "ToolContext", "ToolRuntime", "Runtime", "RunnableConfig", "BaseStore",
        "InvocationContext", "CancellationToken", "Context", "CallbackContext", "StreamWriter", "ToolCallId",
    }
)  # fmt: skip


def injected(function: Any) -> list[str]:
    """The parameters that an agent framework fills in: their values differ each time and are not what was asked for."""
    plain = inspect.unwrap(function)
    annotations = dict(getattr(plain, "__annotations__", {}))
    if any(isinstance(kind, str) for kind in annotations.values()):
        try:
            annotations = typing.get_type_hints(plain, include_extras=True)
        except Exception:
            # Names that cannot be resolved are compared as text.
            pass
    return [name for name, kind in annotations.items() if name != "return" and _is_injected(kind)]


def _is_injected(kind: Any) -> bool:
    if isinstance(kind, str):
        return "Injected" in kind
    for mark in getattr(kind, "__metadata__", ()):
        of = mark if isinstance(mark, type) else type(mark)
        if any("Injected" in parent.__name__ for parent in of.__mro__):
            return True
    for part in _parts(kind):
        if isinstance(part, type) and part.__name__ in _CONTEXTS and part.__module__.startswith(_INJECTED_BY):
            return True
    return False


def _parts(kind: Any) -> list[Any]:
    origin = typing.get_origin(kind)
    inner = [part for one in typing.get_args(kind) for part in _parts(one)] if origin is not None else []
    return [kind, origin, *inner]


def check_names(what: str, names: Iterable[str], who: Who) -> None:
    """Refuses a list that names an argument which the function does not have."""
    known = list(who.signature.parameters)
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"{what} contains {name!r}; it must be a list of argument names")
        top = name.lstrip("/").partition("/")[0].partition(".")[0]
        if top not in known:
            near = difflib.get_close_matches(top, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'no arguments'}"
            raise InvalidInput(f"{what} names {name!r}, which {who.name} does not take; {hint}")
