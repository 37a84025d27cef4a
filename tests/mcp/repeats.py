"""An intended repeat is not a retry: nothing stale is replayed, and a new key means a new effect."""

from rig import Wire, compared, counted, text

KEY = "dev.onceward/key"


def run(rig):
    yield _there_and_back(rig)
    yield _keys(rig)


def _there_and_back(rig):
    def trial(front):
        node, packages = rig.node()
        folder = rig.folder("repeats")
        files = folder / "files"
        files.mkdir()
        server = [node, str(packages / "@modelcontextprotocol/server-filesystem/dist/index.js"), str(files)]
        with Wire(front(folder, server)) as client:
            client.hello()
            client.ask("tools/list", {})
            for version in ("v1", "v2", "v1"):
                client.call("write_file", {"path": str(files / "note"), "content": version})
        return (files / "note").read_text()

    seen = rig.beside(trial)
    return compared("repeats", "write v1, v2, v1", *seen, seen == ("v1", "v1"))


def _keys(rig):
    """Two calls with one key are one effect with two answers; the same bytes with another key are another effect."""

    def trial(front):
        folder = rig.folder("repeats")
        server, effects = rig.counting(folder)
        with Wire(front(folder, server)) as client:
            client.hello()
            said = [text(client.call("count", {"op": "a"}, _meta={KEY: key})) for key in ("k1", "k1", "k2")]
        return counted(effects)["a"], all("counted a" in answer for answer in said)

    direct, through = rig.beside(trial)
    cells = (f"{effects} effects" for effects, _ in (direct, through))
    return compared("repeats", "keys k1, k1, k2", *cells, direct == (3, True) and through == (2, True))
