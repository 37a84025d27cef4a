"""Events that may be delivered more than once."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from ._guard import in_words
from ._onceward import Claim
from .errors import OncewardError

if TYPE_CHECKING:
    from ._onceward import Handle, Spec


class Dedupe:
    """One event. As a `with` block it counts as handled only if the block ends without an error."""

    def __init__(self, handle: Handle, spec: Spec) -> None:
        self._handle = handle
        self._spec = spec
        self._claim: Claim | None = None
        self.new = False
        """Whether this is the first time that the event is handled. Known within the block."""

    def __enter__(self) -> Dedupe:
        begun = self._handle.begin(self._spec, ({},))
        self._claim = begun if isinstance(begun, Claim) else None
        self.new = self._claim is not None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        claim, self._claim = self._claim, None
        if claim is None:
            return
        if error is None:
            claim.done("updated", "null")
            return
        try:
            # The next delivery handles it again: an event's handler is repeated until it succeeds.
            claim.in_doubt(in_words(error))
        except OncewardError:
            pass

    def __bool__(self) -> bool:
        with self:
            return self.new
