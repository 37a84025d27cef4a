"""The hosts: how each is configured with a scripted model and a server, started unattended, and resumed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rig import HERE

PROMPT = "Count it."
SESSION = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"  # each trial has a home of its own, so one id will do
PATIENCE = 180  # seconds for one run of a host; a cold start of 200 MB on a busy machine takes its time
# Nothing may leave the machine: requests to any other address reach a closed port.
LOOPBACK = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}


@dataclass
class Resumption:
    """A way to resume a conversation, and whether the server can tell from the host that it is the same one."""

    name: str
    arguments: list
    is_named: bool


@dataclass
class Trial:
    """One trial of a host: its private home, its working folder, its model and its server."""

    program: Path
    folder: Path
    model: str
    server: list
    timeout: float

    def __post_init__(self):
        for folder in (self.home, self.project, self.tmp):
            folder.mkdir(exist_ok=True)
        # Hosts search parent folders for a repository and write to it, so each trial has its own.
        subprocess.run(["git", "init", "--quiet", str(self.project)], check=True)

    home = property(lambda self: self.folder / "home")
    project = property(lambda self: self.folder / "project")
    tmp = property(lambda self: self.folder / "tmp")

    def write(self, name, text):
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if isinstance(text, str) else json.dumps(text))
        return str(file)

    def start(self, host, resumption):
        """Starts the host in its own process group, with a clean environment."""
        arguments, extra = host.command(self, resumption.arguments if resumption else [])
        env = {
            "HOME": str(self.home),
            "PATH": f"{self.program.parent}:{os.environ['PATH']}",
            "TMPDIR": str(self.tmp),
            "TERM": "dumb",
            **LOOPBACK,
            **extra,
        }
        with (self.folder / "host.log").open("ab") as log:
            return subprocess.Popen(
                [str(self.program), *arguments],
                cwd=self.project,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, host, resumption=None):
        """Runs the host to its end."""
        process = self.start(host, resumption)
        try:
            return process.wait(PATIENCE)
        finally:
            end(process)

    def run_until(self, host, happened):
        """Runs the host until an event, then kills it and everything it started."""
        process = self.start(host, None)
        try:
            deadline = time.monotonic() + PATIENCE
            while not happened():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise TimeoutError("the host ended, or was slow, before its call had an effect")
                time.sleep(0.05)
        finally:
            end(process)

    def said(self):
        """The end of what the host printed."""
        return (self.folder / "host.log").read_text(errors="replace")[-3000:]


def end(process):
    """kill -9 of the host and of its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Claude:
    name, title, program = "claude", "Claude Code", "claude"
    names_conversation = lists_again = True
    # With --continue the servers get another session id than the conversation.
    resumptions = [
        Resumption("--resume ID", ["--resume", SESSION], is_named=True),
        Resumption("--continue", ["--continue"], is_named=False),
    ]

    def command(self, trial, resumed):
        program, *arguments = trial.server
        servers = {"shop": {"command": program, "args": arguments}}
        file = trial.write("mcp.json", {"mcpServers": servers})
        env = {
            "ANTHROPIC_BASE_URL": trial.model,
            "ANTHROPIC_API_KEY": "scripted",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # Otherwise the model has to ask for a tool's schema before it can call it.
            "ENABLE_TOOL_SEARCH": "false",
            "MCP_TOOL_TIMEOUT": str(int(trial.timeout * 1000)),
        }
        allow = ["--strict-mcp-config", "--allowedTools", "mcp__shop__count"]
        return ["-p", PROMPT, *(resumed or ["--session-id", SESSION]), "--mcp-config", file, *allow], env


class Codex:
    name, title, program = "codex", "Codex", "codex"
    names_conversation, lists_again = True, False
    resumptions = [Resumption("resume --last", ["resume", "--last"], is_named=True)]

    def command(self, trial, resumed):
        program, *arguments = trial.server
        # A JSON string is also a TOML string.
        config = f"""
model = "gpt-5"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = {json.dumps(trial.model + "/v1")}
wire_api = "responses"
env_key = "SCRIPTED_KEY"
[mcp_servers.shop]
command = {json.dumps(program)}
args = {json.dumps(arguments)}
required = true
startup_timeout_sec = 60
tool_timeout_sec = {trial.timeout}
"""
        trial.write(".codex/config.toml", config)
        return ["exec", "--skip-git-repo-check", *resumed, PROMPT], {"SCRIPTED_KEY": "scripted"}


class OpenCode:
    name, title, program = "opencode", "OpenCode", "opencode"
    names_conversation, lists_again = False, True
    resumptions = [Resumption("--continue", ["--continue"], is_named=False)]

    def command(self, trial, resumed):
        model = {"name": "scripted", "tool_call": True, "limit": {"context": 100000, "output": 10000}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "scripted",
            "options": {"baseURL": f"{trial.model}/v1", "apiKey": "scripted"},
            "models": {"scripted": model},
        }
        server = {"type": "local", "command": trial.server, "enabled": True, "timeout": int(trial.timeout * 1000)}
        config = {
            "provider": {"scripted": provider},
            "model": "scripted/scripted",
            "small_model": "scripted/scripted",
            "permission": {"*": "allow"},
            "autoupdate": False,
            "share": "disabled",
            "mcp": {"shop": server},
        }
        trial.write(".config/opencode/opencode.json", config)
        env = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        return ["run", *resumed, PROMPT], env


class Gemini:
    name, title, program = "gemini", "Gemini CLI", "gemini"
    names_conversation, lists_again = False, True
    resumptions = [Resumption("--resume latest", ["--resume", "latest"], is_named=False)]

    def command(self, trial, resumed):
        program, *arguments = trial.server
        server = {"command": program, "args": arguments, "trust": True, "timeout": int(trial.timeout * 1000)}
        config = {
            "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "mcpServers": {"shop": server},
        }
        trial.write(".gemini/settings.json", config)
        env = {"GEMINI_API_KEY": "scripted", "GOOGLE_GEMINI_BASE_URL": trial.model}
        return ["--yolo", "-m", "gemini-2.5-pro", *resumed, "-p", PROMPT], env


HOSTS = {host.name: host for host in (Claude(), Codex(), OpenCode(), Gemini())}


def tapped(server, notes):
    """The server's command, with each line recorded."""
    return [sys.executable, str(HERE / "tap.py"), str(notes), *server]
