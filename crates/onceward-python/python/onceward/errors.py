"""The errors, each of which says whether the effect happened."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ._onceward import Record

Happened = Literal["yes", "no", "unknown"]


class OncewardError(Exception):
    """Base class of everything that the ledger raises."""

    code: str = "ONCEWARD"
    """The code of the contract."""
    happened: Happened | None = "unknown"
    """Whether the operation's effect happened. `None` if the error is not about an operation."""
    ran: bool | None = False
    """Whether this call ran the function. `None` if no call was made, as with `ledger.settle`."""
    effect: str = "noop"
    """What this call changed: `noop`, or `unknown` if it ran and may have had an effect."""
    retryable: bool = False
    """Whether the same call may simply be made again. Implies that nothing happened."""
    retry_after_ms: int | None = None
    """When to ask again, if asking again is right."""
    next: str | None = None
    """What to do next, in one sentence."""
    fix_command: str | None = None
    """The line of Python for the next step. It never decides a doubt."""
    options: Sequence[tuple[str, str]] = ()
    """For each finding (`it happened`, `it did not`), the line of Python that records it."""
    operation: Record | None = None
    """The operation, as the ledger recorded it."""
    problems: Sequence[str] = ()
    """All problems, if there are several."""
    fields: Sequence[str] = ()
    """The fields that differ, if a key was used with other inputs."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        said = f"[{self.code}] {message}" if message else f"[{self.code}]"
        return said if self.happened is None else f"{said} (happened: {self.happened})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (*_family(type(self)), self.args), _portable(self.__dict__)


class InvalidInput(OncewardError, ValueError):
    """The input was refused. Nothing was run."""

    code = "INVALID_INPUT"
    happened: Happened | None = None


class KeyMissing(OncewardError):
    """A key is required and none was given. Nothing was run."""

    code = "KEY_MISSING"
    happened: Happened | None = None


class NotFound(OncewardError, LookupError):
    """There is no such operation."""

    code = "NOT_FOUND"
    happened: Happened | None = None


class WrongState(OncewardError):
    """The operation is in a state that does not allow this."""

    code = "WRONG_STATE"


class InProgress(OncewardError):
    """Another caller is still executing it after the wait."""

    code = "IN_PROGRESS"


class KeyExpired(OncewardError):
    """The result has expired. Nothing was run; `happened` says how it ended. Another occurrence runs it again."""

    code = "KEY_EXPIRED"


class Held(OncewardError):
    """The operation is held back until its time, or until a person releases it. Nothing was run.

    The same call gets its result later. `ledger.release(error.operation)` releases it now, and
    `ledger.cancel(error.operation)` cancels it.
    """

    code = "HELD"
    happened: Happened | None = "no"


class Cancelled(OncewardError):
    """The operation was cancelled before it had any effect. Nothing was run."""

    code = "CANCELLED"
    happened: Happened | None = "no"


class Undone(OncewardError):
    """The operation was done and was taken back, or is being taken back. Nothing was run. Another occurrence runs it
    again."""

    code = "UNDONE"
    happened: Happened | None = "yes"


class Stopped(OncewardError):
    """The scope was stopped, so nothing in it may begin. Nothing was run, or what was run had no effect (`ran`);
    `ledger.resume(scope)` lets it continue."""

    code = "STOPPED"
    happened: Happened | None = "no"


class BudgetExhausted(OncewardError):
    """The limit of attempts is reached. Nothing was run."""

    code = "BUDGET_EXHAUSTED"


class KeyReused(OncewardError):
    """The key was used with other inputs; `fields` names those that differ. Nothing was run."""

    code = "KEY_REUSED"


class Failed(OncewardError):
    """It failed, definitely without effect. The function's exception is the `__cause__`.

    If this call ran the function, the error is also an instance of the exception's class.
    """

    code = "FAILED"
    happened: Happened | None = "no"


class NotDispatched(OncewardError):
    """Raise this in a guarded function to declare that nothing was sent, so that the next call may try again."""

    code = "FAILED"
    happened: Happened | None = "no"
    retryable = True


class InDoubt(OncewardError):
    """It is unknown whether it happened. The function's exception, if it ran, is the `__cause__`.

    If this call ran the function, the error is also an instance of the exception's class.
    """

    code = "IN_DOUBT"


class Timeout(InDoubt, TimeoutError):
    """It exceeded its time limit, and it is unknown what it did."""

    code = "TIMEOUT"


class Unverified(OncewardError):
    """Success was reported, but the check refuted it."""

    code = "UNVERIFIED"


class LedgerUnavailable(OncewardError):
    """The ledger could not be read or written, so this call ran nothing."""

    code = "LEDGER_UNAVAILABLE"


class LedgerReplaced(LedgerUnavailable):
    """The ledger was emptied, restored or replaced while it was in use, so this call ran nothing."""

    code = "LEDGER_REPLACED"


class ResultUnavailable(OncewardError):
    """It is done, but its result could not be kept. It does not run again; `receipt()` says what is known."""

    code = "RESULT_UNAVAILABLE"
    happened: Happened | None = "yes"


class ResultWarning(UserWarning):
    """A result cannot be kept, or a replay will return a different value or type."""


_BY_CODE: dict[str, type[OncewardError]] = {
    kind.code: kind
    for kind in (
        InvalidInput,
        KeyMissing,
        NotFound,
        WrongState,
        InProgress,
        Held,
        KeyExpired,
        Cancelled,
        Undone,
        Stopped,
        BudgetExhausted,
        KeyReused,
        Failed,
        InDoubt,
        Timeout,
        Unverified,
        ResultUnavailable,
        LedgerUnavailable,
        LedgerReplaced,
    )
}


def _from_ledger(code: str, message: str, **said: object) -> OncewardError:
    """The exception for an error of the ledger. Called by the native module."""
    error = _BY_CODE[code](message)
    for name, value in said.items():
        setattr(error, name, value)
    return error


def _result_unavailable(operation: Record, cause: BaseException | None = None) -> ResultUnavailable:
    words = "it was done, but its result could not be kept"
    if cause is not None:
        words = f"it was done, but its stored result cannot be read as what the function returns ({cause})"
    error = ResultUnavailable(f"{words}; nothing was run")
    error.operation = operation
    error.next, error.fix_command = "see what is recorded", f'ledger.show("{operation.id}")'
    error.__cause__ = cause
    return error


# Errors that are also instances of the class that the function raised, so that existing `except` clauses still match.


class _Raised:
    """Marks the classes that are created here."""

    __slots__ = ()
    _kind: type[OncewardError]
    _foreign: type[BaseException]


def as_raised(error: OncewardError) -> OncewardError:
    """The error, also as an instance of the function's exception class. Its own attributes take precedence."""
    cause = error.__cause__
    if cause is None or type(error) not in (Failed, InDoubt, Timeout):
        return error
    foreign = getattr(type(cause), "_foreign", type(cause))
    if issubclass(foreign, OncewardError) or not issubclass(foreign, Exception) or isinstance(error, foreign):
        return error
    kind = _both(type(error), foreign)
    if kind is type(error):
        return error
    try:
        made = _bare(kind, cause)
        made.args = error.args
        made.__dict__.update({**cause.__dict__, **error.__dict__})
        _copy_fields(cause, made)
    except Exception:
        # An exception with a constructor of its own. The plain class also says what happened.
        return error
    if callable(getattr(type(cause), "code", None)):
        # In gRPC, `error.code()` is a method.
        made.__dict__["code"] = _Code(error.code, cause.code)  # type: ignore[attr-defined]
    made.__cause__, made.__traceback__ = cause, error.__traceback__
    return made


def _both(kind: type[OncewardError], foreign: type[BaseException]) -> type[OncewardError]:
    """The class that is both. There is one for each pair, so that equal errors have equal classes."""
    made = _made.get((kind, foreign))
    if made is None:
        if len(_made) >= _MOST:
            _made.clear()
        made = _made[kind, foreign] = _make_both(kind, foreign)
    return made


_MOST = 512
_made: dict[tuple[type, type], type[OncewardError]] = {}


def _make_both(kind: type[OncewardError], foreign: type[BaseException]) -> type[OncewardError]:
    body = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__str__": OncewardError.__str__,
        "__repr__": Exception.__repr__,
        "__reduce__": OncewardError.__reduce__,
        "__reduce_ex__": lambda self, _protocol: OncewardError.__reduce__(self),
        "__eq__": object.__eq__,
        "__hash__": object.__hash__,
        "_kind": kind,
        "_foreign": foreign,
    }
    try:
        return type(f"{kind.__name__}", (kind, foreign, _Raised), body)
    except TypeError:
        # Incompatible layouts, or a class that must not be subclassed.
        return kind


def _bare(kind: type[OncewardError], cause: BaseException | None = None) -> OncewardError:
    """An instance that is created without calling constructors, which may need arguments."""
    own: Any = next(parent for parent in kind.__mro__ if parent.__module__ == "builtins")
    members = getattr(cause, "exceptions", None)
    # A group is not created without its members.
    group = isinstance(members, tuple) and own.__name__ in ("ExceptionGroup", "BaseExceptionGroup")
    made: OncewardError = own.__new__(kind, getattr(cause, "message", ""), members) if group else own.__new__(kind)
    return made


def _copy_fields(cause: BaseException, made: BaseException) -> None:
    """Copies what built-in exceptions keep outside their `__dict__`."""
    for name in ("errno", "strerror", "filename", "filename2", "name", "path", "msg", "lineno", "obj"):
        if name in cause.__dict__ or not hasattr(cause, name):
            continue
        try:
            setattr(made, name, getattr(cause, name))
        except (AttributeError, TypeError):
            continue


class _Code(str):
    """The code of the contract, callable if the original's attribute is."""

    __slots__ = ("_original",)
    _original: Any

    def __new__(cls, code: str, original: Any) -> _Code:
        made = super().__new__(cls, code)
        made._original = original
        return made

    def __call__(self) -> Any:
        return self._original()

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def _family(kind: type[OncewardError]) -> tuple[type[OncewardError], type[BaseException] | None]:
    if not issubclass(kind, _Raised):
        return kind, None
    foreign = kind._foreign
    found: Any = sys.modules.get(foreign.__module__)
    for part in foreign.__qualname__.split("."):
        found = getattr(found, part, None)
    # Leave out a class that another process cannot import.
    return kind._kind, foreign if found is foreign else None


def _portable(held: dict[str, Any]) -> dict[str, Any]:
    """What can be sent to another process. A response or a socket of the original cannot."""
    import pickle

    kept = {}
    for name, value in held.items():
        try:
            pickle.dumps(value)
        except Exception:
            continue
        kept[name] = value
    return kept


def _rebuilt(kind: type[OncewardError], foreign: type[BaseException] | None, args: tuple[Any, ...]) -> OncewardError:
    made = _both(kind, foreign) if foreign is not None else kind
    try:
        error = _bare(made)
    except TypeError:
        # A group, whose members were not sent along.
        error = _bare(kind)
    error.args = args
    return error


# Exceptions that control a scheduler and are not failures: they propagate unchanged.
_CONTROL_FLOW = frozenset(
    {
        "builtins.StopIteration",
        "builtins.StopAsyncIteration",
        "celery.exceptions.TaskPredicate",
        "arq.worker.Retry",
        "arq.worker.RetryJob",
        "airflow.exceptions.AirflowSkipException",
        "airflow.exceptions.AirflowRescheduleException",
        "airflow.exceptions.AirflowFailException",
        "airflow.exceptions.TaskDeferred",
        "airflow.sdk.exceptions.AirflowSkipException",
        "airflow.sdk.exceptions.AirflowRescheduleException",
        "airflow.sdk.exceptions.AirflowFailException",
        "dramatiq.errors.Retry",
        "huey.exceptions.RetryTask",
        "huey.exceptions.CancelExecution",
        "prefect.exceptions.PrefectSignal",
        "prefect.exceptions.Pause",
        "prefect.exceptions.Abort",
        "temporalio.activity._CompleteAsyncError",
        "langgraph.errors.GraphBubbleUp",
        "unittest.case.SkipTest",
    }
)


def is_control_flow(error: BaseException) -> bool:
    """Whether it is raised to control the caller and does not mean failure."""
    if not isinstance(error, Exception):
        return True
    return any(f"{kind.__module__}.{kind.__qualname__}" in _CONTROL_FLOW for kind in type(error).__mro__)
