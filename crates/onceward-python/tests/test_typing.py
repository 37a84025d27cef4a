"""Type checkers see through the decorator: results and arguments keep their types, and mistakes are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TYPED = Path(__file__).with_name("typed.py")


def test_mypy_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path}", str(TYPED)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    found = {int(line) for line in re.findall(r"typed\.py:(\d+): error", checked.stdout)}
    wrong = {number for number, line in enumerate(TYPED.read_text().splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, checked.stdout
