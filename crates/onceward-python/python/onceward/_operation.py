"""The running operation, as the guarded function sees it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._onceward import Attempt

_current: ContextVar[Operation | None] = ContextVar("onceward_operation", default=None)

# Vendors that accept only a UUID.
_UUID_ONLY = frozenset({"google", "gcp", "brevo", "truelayer", "shopify", "paypal", "wise"})
# The maximum length of a key, for vendors whose limit is shorter than our key.
_LONGEST = {"dynamodb": 36, "secretsmanager": 64}
_NAMESPACE = "6f6e6365-7761-5264-8000-6c6564676572"


class Operation:
    """One attempt of an operation. Its intent is on disk."""

    __slots__ = ("_attempt", "effect", "left", "marked", "outer", "over", "reason")

    def __init__(self, attempt: Attempt, effect: str, outer: Operation | None = None) -> None:
        self._attempt = attempt
        self.outer = outer
        """The enclosing operation, if there is one."""
        self.over = False
        self.marked = False
        """Whether the function has declared the dispatch."""
        self.left = False
        """Whether a request was sent: the function said so, or it was observed."""
        self.effect = effect
        """What a success changes: `created`, `updated`, `deleted` or `noop`. The function may set it."""
        self.reason: str | None = None
        """Why nothing changed, if the effect is `noop`."""

    @property
    def id(self) -> str:
        """`op_…`: identifies the operation, the same in every process."""
        return self._attempt.id

    @property
    def key(self) -> str:
        """The operation's key."""
        return self._attempt.key

    @property
    def scope(self) -> str:
        """The operation's scope."""
        return self._attempt.scope

    @property
    def attempt(self) -> int:
        """The attempt's number: a fencing token, for services that can check one."""
        return self._attempt.number

    def downstream_key(self, vendor: str | None = None) -> str:
        """The key for a service that accepts one: the same for every attempt, and unique across scopes.

        Vendors that accept only a UUID get one that is derived from it.
        """
        key = self._attempt.downstream_key
        name = (vendor or "").lower()
        if name in _UUID_ONLY:
            import uuid

            return str(uuid.uuid5(uuid.UUID(_NAMESPACE), key))
        return key[: _LONGEST.get(name, 255)]

    @property
    def stop_requested(self) -> bool:
        """Whether someone stopped the run (`once stop`) or cancelled the operation (`once cancel`).

        A function cannot be interrupted, so one that takes long asks. The ledger is read at most twice a second.
        """
        return self._attempt.stop_requested()

    def dispatched(self) -> AbstractContextManager[None]:
        """Declares that the request is sent now. From here on an error leaves the operation in doubt, unless the
        function says otherwise with `NotDispatched` or `no_effect=`.

        It can be used as a `with` block around the request. Raises `NotDispatched` if the run was stopped meanwhile.
        """
        if not self.left:
            self._attempt.stop_requested()
        self._attempt.dispatched()
        self.marked = self.left = True
        return nullcontext()

    def noticed(self) -> None:
        """Records a request that was sent without `dispatched()`. It counts as dispatched."""
        self._attempt.dispatched()
        self.left = True

    def noop(self, reason: str) -> None:
        """Declares that there was nothing to do, and why."""
        self.effect, self.reason = "noop", reason

    def __repr__(self) -> str:
        return f"Operation(id={self.id!r}, attempt={self.attempt})"


def current_operation() -> Operation:
    """The operation that runs in this thread or task. Raises LookupError if there is none."""
    operation = _current.get()
    if operation is None:
        raise LookupError("no operation is running here; call this in a function that the ledger guards")
    return operation
