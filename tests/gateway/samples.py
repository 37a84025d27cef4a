"""The samples of docs/gateway.md, as they are printed there."""

import re

import kit
from sdks import gateway
from vendor import Vendor

PAGE = kit.ROOT / "docs/gateway.md"


def rows(_name, session):
    page, cache = PAGE.read_text(), session.cache
    for language, program in [("python", [cache / "python/bin/python", "sample.py"]), ("js", ["node", "sample.mjs"])]:
        (sample,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        with Vendor("stripe", "502", 1) as vendor, gateway(session, "stripe", vendor.url, "60s", port=True) as serve:
            said = run(program, sample, cache, serve)
            effects = len(vendor.effects)
        yield kit.Row("samples", language, f"{effects} effect, prints {said}", effects == 1 and said == "ch_1")


def run(program, sample, cache, serve):
    home = kit.folder("sample")
    (home / program[1]).write_text(sample)
    (home / "node_modules").symlink_to(cache / "node/node_modules")
    env = {"STRIPE_KEY": "sk_test_1", "STRIPE_BASE": serve.path, "STRIPE_PORT": serve.own_port}
    done = kit.execute(program, home, env, cwd=home)
    return done.stdout.strip() or done.stderr.strip()
