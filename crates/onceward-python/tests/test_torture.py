"""Every cell of the torture table has the expected value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torture import CELLS, Bench


@pytest.mark.parametrize(("name", "cell", "expected"), CELLS, ids=[name for name, _, _ in CELLS])
def test_the_cell_is_right(tmp_path: Path, name: str, cell: Callable[[Bench], str], expected: str) -> None:
    assert cell(Bench(tmp_path)) == expected
