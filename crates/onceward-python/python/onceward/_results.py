"""Keeps results: encode, decode, compare. If a replay would differ from the first result, the caller is warned."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ._json import dumps, is_plain, loads
from ._same import difference
from .errors import OncewardError, ResultWarning

if TYPE_CHECKING:
    from ._codec import Codec
    from ._onceward import Receipt

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LARGEST = 16 * 1024 * 1024


def kept(value: object, codec: Codec | None) -> tuple[str | None, str | None]:
    """The result as JSON text (`None` if it has none), and what a replay would lose."""
    try:
        plain = is_plain(value)
        json = dumps(value if codec is None else codec.encode(value))
        if len(json) > _LARGEST // 4 and len(json.encode()) > _LARGEST:
            return None, f"it is larger than {_LARGEST // 1024 // 1024} MiB"
        if plain and codec is None:
            return json, None
        again = loads(json)
        if codec is not None:
            again = codec.decode(again)
        return json, difference(value, again)
    except Exception as problem:
        # Whatever fails here, the function has succeeded.
        return None, f"{type(problem).__name__}: {problem}"


def warn(name: str, problem: str, *, lost: bool) -> None:
    """Warns the first caller that replays will not return the same value."""
    if lost:
        words = (
            f"the result of {name} cannot be kept ({problem}); it is done and does not run again, and replays have no "
            "result: return plain data, annotate the return type, or give codec="
        )
    else:
        words = f"a replay of {name} will not return the same value: {problem}; give codec= or return plain data"
    # Even if warnings are errors, a success stays a success.
    with suppress(ResultWarning):
        warnings.warn(words, ResultWarning, stacklevel=_outside())


def _outside() -> int:
    """The stack level of the caller's own code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_HERE):
        level, frame = level + 1, frame.f_back
    return level


def log(name: str, ended: Receipt | OncewardError) -> None:
    """One record for `logging.getLogger("onceward")`: what was run, replayed, refused, or is in doubt."""
    logging: Any = sys.modules.get("logging")
    if logging is None:
        # If it was never imported, it has no handlers.
        return
    logger = logging.getLogger("onceward")
    if not logger.handlers:
        # Log nothing in a program that has not configured logging.
        logger.addHandler(logging.NullHandler())
    if isinstance(ended, OncewardError):
        level = logging.WARNING if ended.happened == "unknown" else logging.INFO
        if logger.isEnabledFor(level):
            id = ended.operation.id if ended.operation is not None else "-"
            logger.log(level, "%s %s: %s", name, id, ended, extra={"onceward_code": ended.code})
    elif logger.isEnabledFor(logging.INFO):
        level = logging.INFO
        word = "replayed, nothing was run" if ended.replayed else f"ran: {ended.effect}"
        logger.log(level, "%s %s: %s", name, ended.id, word, extra={"onceward_code": "OK"})
