"""The samples of docs/gateway.md, as they are printed there."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from sdks import Row, gateway
from vendor import Vendor

PAGE = Path(__file__).resolve().parents[2] / "docs/gateway.md"


def rows(_name, once, cache, work, _options):
    page = PAGE.read_text()
    for language, program in [("python", [cache / "python/bin/python", "sample.py"]), ("js", ["node", "sample.mjs"])]:
        (sample,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        with Vendor("stripe", "502", 1) as vendor, gateway(once, work, "stripe", vendor.url, "1s") as urls:
            said = run(program, sample, cache, urls)
            effects = len(vendor.effects)
        yield Row("samples", language, "", f"{effects} effect, prints {said}", effects == 1 and said == "ch_1")


def run(program, sample, cache, urls):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, program[1]).write_text(sample)
        Path(folder, "node_modules").symlink_to(cache / "node/node_modules")
        env = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "STRIPE_KEY": "sk_test_1",
            "STRIPE_BASE": urls["path"],
            "STRIPE_PORT": urls["port"].rpartition(":")[2],
        }
        done = subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr.strip()
