"""What can go wrong, and for each: did the effect happen?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ._onceward import Record

Happened = Literal["yes", "no", "unknown"]


class OncewardError(Exception):
    """The root of all that the ledger raises."""

    code: str = "ONCEWARD"
    """The contract's code."""
    happened: Happened = "unknown"
    """Whether the effect happened."""
    retryable: bool = False
    """Whether the same call may simply be made again. Implies that nothing happened."""
    retry_after_ms: int | None = None
    """When to ask again, where asking again is right."""
    fix_command: str | None = None
    """The command that takes you on from here."""
    operation: Record | None = None
    """The operation it is about, as the ledger remembers it."""
    problems: Sequence[str] = ()
    """Every problem that was found, where there are several."""
    fields: Sequence[str] = ()
    """The fields that differ, where a key was used with other inputs."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __str__(self) -> str:
        message = super().__str__()
        said = f"[{self.code}] {message}" if message else f"[{self.code}]"
        said += f" (happened: {self.happened})"
        return f"{said}; next: {self.fix_command}" if self.fix_command else said


class InvalidInput(OncewardError, ValueError):
    """The input was refused. Nothing was run."""

    code = "INVALID_INPUT"
    happened: Happened = "no"


class KeyMissing(OncewardError):
    """A key is required and none was given. Nothing was run."""

    code = "KEY_MISSING"
    happened: Happened = "no"


class NotFound(OncewardError, LookupError):
    """There is no such operation."""

    code = "NOT_FOUND"
    happened: Happened = "no"


class WrongState(OncewardError):
    """The operation is not in a state in which that can be done to it."""

    code = "WRONG_STATE"


class InProgress(OncewardError):
    """Another caller is executing it, and the wait is over."""

    code = "IN_PROGRESS"


class KeyExpired(OncewardError):
    """The result was kept for its time and that is over. Nothing was run; another occurrence runs it again."""

    code = "KEY_EXPIRED"
    happened: Happened = "no"


class Cancelled(OncewardError):
    """The operation was cancelled before it had any effect. Nothing was run."""

    code = "CANCELLED"
    happened: Happened = "no"


class BudgetExhausted(OncewardError):
    """Enough attempts were made. Nothing was run."""

    code = "BUDGET_EXHAUSTED"
    happened: Happened = "no"


class KeyReused(OncewardError):
    """The key was used with other inputs; `fields` names those that differ. Nothing was run."""

    code = "KEY_REUSED"
    happened: Happened = "no"


class Failed(OncewardError):
    """It failed, for certain without effect. What the function raised is the `__cause__`."""

    code = "FAILED"
    happened: Happened = "no"


class NotDispatched(OncewardError):
    """Raise this in a guarded function to say: nothing has left, so the next call may try again."""

    code = "FAILED"
    happened: Happened = "no"
    retryable = True


class InDoubt(OncewardError):
    """Nobody can say whether it happened. What the function raised, if it ran, is the `__cause__`."""

    code = "IN_DOUBT"


class Timeout(InDoubt, TimeoutError):
    """It took longer than it was given, and what it did is not known."""

    code = "TIMEOUT"


class Unverified(OncewardError):
    """Success was reported, and the check refuted it."""

    code = "UNVERIFIED"


class LedgerUnavailable(OncewardError):
    """The ledger could not be read or written, so nothing was run."""

    code = "LEDGER_UNAVAILABLE"
    happened: Happened = "no"


class ResultUnavailable(OncewardError):
    """It was done, and its result could not be kept. It is not run again; `receipt()` tells what is known."""

    code = "RESULT_UNAVAILABLE"
    happened: Happened = "yes"


class ResultWarning(UserWarning):
    """A result that cannot be kept, or that replays will give as another type."""


_BY_CODE: dict[str, type[OncewardError]] = {
    kind.code: kind
    for kind in (
        InvalidInput,
        KeyMissing,
        NotFound,
        WrongState,
        InProgress,
        KeyExpired,
        Cancelled,
        BudgetExhausted,
        KeyReused,
        Failed,
        InDoubt,
        Timeout,
        Unverified,
        LedgerUnavailable,
    )
}


def _from_ledger(code: str, message: str, **said: object) -> OncewardError:
    """The exception for one of the ledger's errors. Called from the native half."""
    error = _BY_CODE[code](message)
    for name, value in said.items():
        setattr(error, name, value)
    return error


def _result_unavailable(operation: Record) -> ResultUnavailable:
    error = ResultUnavailable("it was done, but its result could not be kept; nothing was run")
    error.operation = operation
    error.fix_command = f"once show {operation.id}"
    return error
