"""The ledger between intent and effect: agents retry, the world changes once.

    from onceward import Ledger

    ledger = Ledger("agent.db")

    @ledger.once(key=["customer_id", "amount"], effect="created")
    def charge(customer_id, amount, note=""): ...

A call is recorded before anything happens, runs once, and is replayed to every retry.
"""

from ._codec import Codec
from ._dedupe import Dedupe
from ._guard import Yes
from ._held import Released
from ._ledger import Ledger
from ._once import OnceFunction
from ._onceward import Plan, Receipt, Record, __version__, canonical
from ._operation import Operation, current_operation
from ._session import Session
from .errors import (
    BudgetExhausted,
    Cancelled,
    Failed,
    Held,
    InDoubt,
    InProgress,
    InvalidInput,
    KeyExpired,
    KeyMissing,
    KeyReused,
    LedgerReplaced,
    LedgerUnavailable,
    NotDispatched,
    NotFound,
    OncewardError,
    ResultUnavailable,
    ResultWarning,
    Stopped,
    Timeout,
    Undone,
    Unverified,
    WrongState,
)

__all__ = [
    "BudgetExhausted",
    "Cancelled",
    "Codec",
    "Dedupe",
    "Failed",
    "Held",
    "InDoubt",
    "InProgress",
    "InvalidInput",
    "KeyExpired",
    "KeyMissing",
    "KeyReused",
    "Ledger",
    "LedgerReplaced",
    "LedgerUnavailable",
    "NotDispatched",
    "NotFound",
    "OnceFunction",
    "OncewardError",
    "Operation",
    "Plan",
    "Receipt",
    "Record",
    "Released",
    "ResultUnavailable",
    "ResultWarning",
    "Session",
    "Stopped",
    "Timeout",
    "Undone",
    "Unverified",
    "WrongState",
    "Yes",
    "__version__",
    "canonical",
    "current_operation",
]
