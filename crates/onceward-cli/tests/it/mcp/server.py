"""An MCP server that counts: each call leaves a line in `effects`, and does what its arguments say.

Only what the tests need of the protocol. A call runs on a thread of its own, as servers do.
"""

import json
import os
import sys
import threading
import time

out = threading.Lock()
cancellable = set()  # calls that are answered with an error when they are cancelled, as the Python SDK does
tools = [
    {"name": "count", "description": "counts", "inputSchema": {"type": "object", "properties": {"n": {}}}},
    {"name": "put", "annotations": {"idempotentHint": True}, "inputSchema": {"type": "object"}},
    {"name": "look", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}},
    {"name": "get_thing", "description": "Gets a thing.", "inputSchema": {"type": "object"}},
    {
        "name": "own",
        "inputSchema": {"type": "object", "properties": {"dry_run": {}, "idempotency_key": {}}},
        "outputSchema": {"type": "object", "properties": {"run": {"type": "integer"}}, "required": ["run"]},
    },
    {
        "name": "say",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]},
    },
    {"name": "inner", "_meta": {"dev.onceward/witness": True}, "inputSchema": {"type": "object"}},
    {
        "name": "exact",
        "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
]


def send(text):
    with out:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def answer(id, **members):
    send(json.dumps({"jsonrpc": "2.0", "id": id, **members}))


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


def wait_for(name):
    begun = time.time()
    while not os.path.exists(name) and time.time() - begun < 30:
        time.sleep(0.005)


def effects():
    try:
        with open("effects") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def is_first(name):
    try:
        os.mkdir(name)
    except FileExistsError:
        return False
    return True


def call(id, params):
    name, args = params["name"], params.get("arguments") or {}
    if name == "look":
        if args.get("hold"):
            wait_for(args["hold"])
        return answer(id, result=text(effects()))
    if name == "put":
        with open("value", "w") as file:
            file.write(args["value"])
    if name == "inner":
        said = {"ok": False, "effect": "noop", "happened": "no", "ran": False}
        shown = args.get("shows", params["_meta"]["dev.onceward/witness"])
        return answer(id, result=text("no", isError=True, structuredContent={**said, "witness": shown}))
    if args.get("reject"):
        return answer(id, error={"code": -32602, "message": "Invalid arguments for tool {}: bad".format(name)})
    line = json.dumps({"tool": name, **args}, sort_keys=True) + "\n"
    with open("effects", "a") as file:
        file.write(line)
    if args.get("progress"):
        token = params["_meta"]["progressToken"]
        for step in range(1, args["progress"] + 1):
            wait_for("step-%d" % step)
            told = {"progressToken": token, "progress": step}
            send(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": told}))
    if args.get("cancellable"):
        cancellable.add(id)
    if args.get("hold"):
        wait_for(args["hold"])
    if args.get("task"):
        return answer(id, result={"resultType": "task", "taskId": args["task"], "status": "working"})
    if args.get("die"):
        os._exit(args["die"])
    if args.get("slow") and effects().count(line) == 1:
        # Only the first of several equal calls is slow.
        time.sleep(args["slow"])
    if args.get("sleep"):
        time.sleep(args["sleep"])
    if args.get("error"):
        return answer(id, error={"code": -32603, "message": "broke after the effect"})
    if args.get("garbage"):
        return send('{{"jsonrpc":"2.0","id":{},"result":{{'.format(json.dumps(id)))
    if args.get("rpc_error"):
        code, words, *data = args["rpc_error"]
        return answer(id, error={"code": code, "message": words, **({"data": data[0]} if data else {})})
    if args.get("first_fails") and is_first(args["first_fails"]):
        return answer(id, error={"code": -32603, "message": "broke after the effect"})
    if args.get("tool_error"):
        return answer(id, result=text(args["tool_error"], isError=True))
    if args.get("plain"):
        return answer(id, result=text("run %d" % effects().count(line)))
    if args.get("size"):
        return answer(id, result=text("x" * args["size"]))
    runs = effects().count(line)
    answer(id, result=text("run %d" % runs, structuredContent={"run": runs, "big": 12345678901234567890123}))
    if args.get("twice"):
        answer(id, result=text("again"))


def main():
    for line in sys.stdin:
        with open("seen", "a") as file:
            file.write(line)
        try:
            message = json.loads(line)
        except ValueError:
            answer(None, error={"code": -32700, "message": "parse error"})
            continue
        if not isinstance(message, dict) or "method" not in message:
            continue
        id, method = message.get("id"), message["method"]
        if method == "initialize":
            info = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            answer(id, result={**info, "serverInfo": {"name": "counting", "version": "1"}})
        elif method == "tools/list":
            # What the file `listing` holds is the answer; an empty file is none.
            if not os.path.exists("listing"):
                answer(id, result={"tools": tools, "unknown": 12345678901234567890123})
            elif os.path.getsize("listing"):
                with open("listing") as file:
                    answer(id, **json.load(file))
        elif method == "tools/call":
            threading.Thread(target=call, args=(id, message["params"]), daemon=True).start()
        elif method == "notifications/cancelled" and message["params"].get("requestId") in cancellable:
            answer(message["params"]["requestId"], error={"code": 0, "message": "Request cancelled"})
        elif method == "tasks/get":
            task = message["params"]["taskId"]
            answer(id, result={"taskId": task, "status": "completed" if task == "good" else "failed"})
        elif id is not None:
            answer(id, result={"echo": message})


main()
