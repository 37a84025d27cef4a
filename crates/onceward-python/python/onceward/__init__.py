"""The ledger between intent and effect: agents retry, the world changes once.

    from onceward import Ledger

    ledger = Ledger("agent.db")

    @ledger.once(key=["customer_id", "amount"], effect="created")
    def charge(customer_id, amount, note=""): ...

A call is written down before anything happens, runs once, and is replayed to every retry.
"""

from ._codec import Codec
from ._dedupe import Dedupe
from ._guard import Yes
from ._ledger import Ledger
from ._once import OnceFunction
from ._onceward import Plan, Receipt, Record, __version__, canonical
from ._operation import Operation, current_operation
from ._session import Session
from .errors import (
    BudgetExhausted,
    Cancelled,
    Failed,
    InDoubt,
    InProgress,
    InvalidInput,
    KeyExpired,
    KeyMissing,
    KeyReused,
    LedgerUnavailable,
    NotDispatched,
    NotFound,
    OncewardError,
    ResultUnavailable,
    ResultWarning,
    Timeout,
    Unverified,
    WrongState,
)

__all__ = [
    "BudgetExhausted",
    "Cancelled",
    "Codec",
    "Dedupe",
    "Failed",
    "InDoubt",
    "InProgress",
    "InvalidInput",
    "KeyExpired",
    "KeyMissing",
    "KeyReused",
    "Ledger",
    "LedgerUnavailable",
    "NotDispatched",
    "NotFound",
    "OnceFunction",
    "OncewardError",
    "Operation",
    "Plan",
    "Receipt",
    "Record",
    "ResultUnavailable",
    "ResultWarning",
    "Session",
    "Timeout",
    "Unverified",
    "WrongState",
    "Yes",
    "__version__",
    "canonical",
    "current_operation",
]
