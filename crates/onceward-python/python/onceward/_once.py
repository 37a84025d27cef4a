"""The types of `once`: a guarded function keeps the types of its arguments and its result."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from ._onceward import Plan, Receipt

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ._options import Options

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)
S = TypeVar("S")


class OnceFunction(Protocol[P, R_co, C_co]):
    """A guarded function. It is called like the original."""

    __wrapped__: Callable[..., Any]
    __name__: str
    operation_name: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Makes the call once, and returns what the function returned."""

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: OnceFunction[Concatenate[S, Q], R, C_co], instance: S, owner: Any = None
    ) -> OnceFunction[Q, R, C_co]: ...

    def receipt(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """The same call; returns the receipt (for a coroutine function: an awaitable)."""

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """What the call would do. Nothing is run or written."""

    def identity(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, str, str]:
        """The key, the fingerprint and the id of the call."""

    def occurrence(self, label: str | int) -> Self:
        """The same function for a deliberate repeat: 2, 3, … or any label."""


class ByValue(Protocol):
    """Guards a function whose calls return its value."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> OnceFunction[P, Coroutine[Any, Any, R], Coroutine[Any, Any, Receipt]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> OnceFunction[P, R, Receipt]: ...


class ByReceipt(Protocol):
    """Guards a function whose calls return the receipt."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> OnceFunction[P, Coroutine[Any, Any, Receipt], Coroutine[Any, Any, Receipt]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> OnceFunction[P, Receipt, Receipt]: ...


class ByPlan(Protocol):
    """Guards a function whose calls return the plan and run nothing."""

    def __call__(self, function: Callable[P, Any], /) -> OnceFunction[P, Plan, Plan]: ...


class Once(Protocol):
    """The type of `Ledger.once`."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> OnceFunction[P, Coroutine[Any, Any, R], Coroutine[Any, Any, Receipt]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> OnceFunction[P, R, Receipt]: ...
    @overload
    def __call__(
        self, *, returns: Literal["value"] = "value", dry_run: Literal[False] = False, **options: Unpack[Options]
    ) -> ByValue: ...
    @overload
    def __call__(
        self, *, returns: Literal["receipt"], dry_run: Literal[False] = False, **options: Unpack[Options]
    ) -> ByReceipt: ...
    @overload
    def __call__(
        self, *, dry_run: Literal[True], returns: Literal["value", "receipt"] = "value", **options: Unpack[Options]
    ) -> ByPlan: ...
