"""The examples run, and the user's part of each is at most ten lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[3] / "examples/python").glob("option_*.py"))


def test_there_is_one_for_each_option() -> None:
    assert [example.name[:8] for example in EXAMPLES] == [f"option_{number}" for number in range(1, 7)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_shows_the_failure_and_its_end(example: Path) -> None:
    text = example.read_text()
    ours = text.split("# -- with Onceward\n")[1].split("# --\n")[0]
    assert len([line for line in ours.splitlines() if line.strip()]) <= 10
    ended = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "with Onceward 1" in ended.stdout
