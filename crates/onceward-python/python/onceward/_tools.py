"""What the adapters for agent frameworks share: one tool call that happens once, and messages for the model.

The key is derived from the tool's name and arguments within a scope (run, thread or conversation), never from the id of
the tool call: a model that asks again, or a loop that is restarted, uses another id for the same request.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import difflib
import inspect
import json
import typing
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import _codec
from ._json import dumps
from ._ledger import Ledger
from ._session import Session
from .errors import InvalidInput, OncewardError, ResultUnavailable

T = TypeVar("T")
Where = Ledger | Session
"""Where calls are recorded: a session, or a ledger if the framework knows which run a call belongs to."""

# With these classes the next attempt can settle a doubt, so a retry helps.
_RETRY_HELPS = frozenset({"idempotent", "keyed", "probed"})
_REPEAT = "To do the same thing once more on purpose, call it with {argument}={next}."
_NO_REPEAT = "If the user wants the same thing once more, it cannot be done from here: say so."


@dataclass(frozen=True)
class Outcome:
    """How a tool call ended: with a value, or with an error that the model should read."""

    value: Any = None
    note: str | None = None
    """A note for the model beside the value, if nothing was run."""
    error: OncewardError | None = None
    refusal: str | None = None
    """The message that the model gets instead of a value."""

    def or_raise(self) -> Outcome:
        """Raises the tool's own exception if a retry helps: the framework sees what it would see without a ledger, and
        its retry makes the next attempt. If a retry cannot help, the model gets a message instead."""
        if self.error is not None and self.error.__cause__ is not None and retry_helps(self.error):
            raise self.error.__cause__
        return self

    @property
    def text(self) -> str:
        """Value and note, or the refusal, as one text."""
        said = self.refusal if self.refusal is not None else as_text(self.value)
        return said if self.note is None else f"{said}\n\n{self.note}"


@dataclass(frozen=True)
class ToolContext:
    """Records a model's tool calls in the ledger, with the settings of the adapter."""

    where: Where
    scope: str | Callable[..., str] | None = None
    occurrence_argument: str | None = None
    terms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def call(self, name: str, arguments: Mapping[str, Any], function: Callable[[], Any], **about: Any) -> Outcome:
        """Makes the call once. Errors are part of the outcome."""
        options: dict[str, Any] = {}
        try:
            inputs, options = self._asked(name, arguments, about)
            return self._answered(self._ledger.call(name, inputs, function, **options), options)
        except OncewardError as error:
            return self._refused(error, options)

    async def acall(
        self, name: str, arguments: Mapping[str, Any], function: Callable[[], Any], **about: Any
    ) -> Outcome:
        """The same for coroutines. A caller that gives up does not cancel the call: its retry gets the result."""
        options: dict[str, Any] = {}
        try:
            inputs, options = self._asked(name, arguments, about)
            receipt = await detached(self._ledger.acall(name, inputs, function, **options))
            return self._answered(receipt, options)
        except OncewardError as error:
            return self._refused(error, options)

    def own_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments without the one that asks for a deliberate repeat."""
        return {name: value for name, value in arguments.items() if name != self.occurrence_argument}

    @property
    def _ledger(self) -> Ledger:
        return self.where.ledger if isinstance(self.where, Session) else self.where

    def _asked(
        self, name: str, arguments: Mapping[str, Any], about: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        options = {**about.get("options", {}), **self.options, **self.terms.get(name, {})}
        reads = options.get("class_") == "read"
        options["scope"] = None if reads else self._scope_of(about.get("run_scope"), about.get("context"))
        options["no_effect"] = (*about.get("no_effect", ()), *_several(options.get("no_effect", ())))
        occurrence = arguments.get(self.occurrence_argument) if self.occurrence_argument else None
        if occurrence is not None and (number := _occurrence(occurrence, self.occurrence_argument)) != 1:
            options["occurrence"] = number
        options.setdefault("codec", codec_of(about.get("of")))
        return {**about.get("defaults", {}), **self.own_arguments(arguments)}, options

    def _scope_of(self, run_scope: object, context: object) -> str:
        if callable(self.scope):
            return self.scope(context)
        known = self.scope or (self.where.id if isinstance(self.where, Session) else run_scope)
        if not known:
            raise InvalidInput(
                "it is not known which run this call belongs to, and keys are shared within a run; nothing was run. "
                "Pass ledger.session(id) instead of the ledger, or scope=, with an id that a restarted run uses again"
            )
        return str(known)

    def _answered(self, receipt: Any, options: Mapping[str, Any]) -> Outcome:
        note = None
        if receipt.replayed:
            note = f"[onceward] Nothing was run now: {_first_words(receipt.reason)}. {self._repeat(options)}"
        try:
            return Outcome(value=receipt.value, note=note)
        except ResultUnavailable as error:
            return Outcome(
                error=error, refusal=f"It was already done, and its result could not be kept. {note or ''}".strip()
            )

    def _refused(self, error: OncewardError, options: Mapping[str, Any]) -> Outcome:
        return Outcome(error=error, refusal=self.explain(error, options))

    def explain(self, error: OncewardError, options: Mapping[str, Any]) -> str:
        """The error as a message that a model can act on: what happened, and what to do."""
        said = f"[onceward] {OncewardError.__str__(error)}."
        if error.code in ("IN_DOUBT", "TIMEOUT", "UNVERIFIED") and not retry_helps(error):
            advice = (
                "It may have happened. Do not call it again and do not try another way: find out with a tool that only "
                f"reads, or ask the user, who can settle it{_named(error)}."
            )
        elif error.code == "IN_PROGRESS":
            advice = "The same call is still running. Nothing was started now. Ask again later with the same arguments."
        elif error.code == "HELD":
            advice = (
                "Nothing was sent yet, and it is not done: it starts at its time, or when a person releases it. "
                "Do not call it again now and do not try another way; tell the user."
            )
        elif error.code == "KEY_REUSED":
            advice = "Nothing was run: the same action was requested before with other values. Use the earlier values."
        elif error.code in ("KEY_EXPIRED", "CANCELLED", "UNDONE"):
            advice = f"Nothing was run. {self._repeat(options)}"
        elif error.code in ("INVALID_INPUT", "KEY_MISSING"):
            advice = "Nothing was run."
        elif error.happened == "no" or retry_helps(error):
            advice = "It is safe to call it again with the same arguments."
        else:
            advice = "Ask the user what to do."
        return f"{said} {advice}"

    def _repeat(self, options: Mapping[str, Any]) -> str:
        if self.occurrence_argument is None:
            return _NO_REPEAT
        now = options.get("occurrence", 1)
        following = int(now) + 1 if str(now).isdigit() else f'"{now}-again"'
        return _REPEAT.format(argument=self.occurrence_argument, next=following)


def tool_context(where: Where, settings: Mapping[str, Any]) -> ToolContext:
    """The context for an adapter's settings. Unknown settings are options of `Ledger.once` for all tools."""
    if not isinstance(where, (Ledger, Session)):
        raise TypeError(f"give a Ledger or a Session, not {type(where).__name__}")
    own = {name: settings[name] for name in ("scope", "occurrence_argument", "terms") if settings.get(name) is not None}
    options = {name: value for name, value in settings.items() if name not in ("scope", "occurrence_argument", "terms")}
    return ToolContext(where, **own, options=options)


def retry_helps(error: OncewardError) -> bool:
    """Whether the same call may simply be made again: nothing happened, or its class settles the doubt."""
    if error.retryable or error.code == "FAILED":
        return True
    in_doubt = error.code in ("IN_DOUBT", "TIMEOUT")
    return in_doubt and error.operation is not None and error.operation.class_ in _RETRY_HELPS


def occurrence_schema(argument: str) -> dict[str, Any]:
    """The JSON Schema of the argument that asks for a deliberate repeat."""
    return {"type": "integer", "minimum": 1, "description": occurrence_words(argument)}


def occurrence_words(argument: str) -> str:
    """The description of that argument for the model."""
    return (
        f"Leave it out. Set it only if the same action with the same arguments was already done and must be repeated: "
        f"{argument}=2, then 3. Never set it because a call failed, timed out or is in doubt."
    )


def with_occurrence(schema: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """A tool's JSON Schema with the optional argument that asks for a deliberate repeat."""
    properties = dict(schema.get("properties", {}))
    if argument in properties:
        raise InvalidInput(f"the tool already has an argument {argument!r}; choose another name")
    return {**schema, "type": "object", "properties": {**properties, argument: occurrence_schema(argument)}}


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The function's default arguments: an argument that is left out is the same as its default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def as_text(value: object) -> str:
    """A tool's value as the model reads it: text unchanged, everything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=_as_json)
    except (TypeError, ValueError):
        return str(value)


def _as_json(value: Any) -> object:
    """A value that is not JSON, as a model reads it."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


def _occurrence(said: Any, argument: str | None) -> int | str:
    """What the model gave for a deliberate repeat: a number from 1 on, or a label."""
    known: Any = said
    if isinstance(said, float) and said.is_integer():
        known = int(said)
    elif isinstance(said, str) and said.strip().lstrip("+-").isdecimal():
        known = int(said)
    label = isinstance(known, str) and bool(known.strip())
    if not label and (type(known) is not int or known < 1):
        raise InvalidInput(
            f"{argument} is {said!r}; it is a whole number from 1 on. Leave it out if nothing is repeated"
        )
    return typing.cast("int | str", known)


def refuse_unknown_terms(at: ToolContext, tools: Iterable[str]) -> None:
    """Refuses terms for a tool that does not exist: a misspelt name would leave the tool without them."""
    known = list(tools)
    for name in at.terms:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise InvalidInput(f"terms names the tool {name!r}, which does not exist; {hint}")


class _Seen:
    """Keeps results in the form that the model sees: objects as Pydantic serializes them."""

    def encode(self, value: Any) -> object:
        """The value as plain data."""
        try:
            dumps(value)
            return value
        except (TypeError, ValueError):
            pass
        from pydantic_core import to_jsonable_python

        plain: object = to_jsonable_python(value)
        return plain

    def decode(self, data: Any) -> object:
        """The data unchanged."""
        return data


_SEEN = _Seen()


def codec_of(function: Callable[..., Any] | None) -> _codec.Codec:
    """How results are kept: by the return annotation if it names classes, otherwise in the form that the model sees."""
    return (_codec.of_function(function) if function is not None else None) or _SEEN


async def in_thread(function: Callable[[], Any]) -> Any:
    """Calls the function in a thread if it would block the event loop, and awaits its result."""
    value = await asyncio.to_thread(function)
    return await value if inspect.isawaitable(value) else value


_running: set[asyncio.Task[Any]] = set()


async def detached(work: Coroutine[Any, Any, T]) -> T:
    """Awaits the work. If the waiting task is cancelled, the work continues, so that its effect is recorded."""
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_finished)
    return await asyncio.shield(task)


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        # The caller may be gone; the ledger records how it ended.
        task.exception()


def _named(error: OncewardError) -> str:
    return f" under the id {error.operation.id}" if error.operation is not None else ""


def _first_words(reason: str | None) -> str:
    """The ledger's reason without its advice to programmers, which does not help a model."""
    return (reason or "it was already done").partition(";")[0]


def _several(kinds: Any) -> tuple[type[BaseException], ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)
