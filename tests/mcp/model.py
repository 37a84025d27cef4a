"""A scripted model on loopback, with the four APIs that the hosts use.

Hosts make side requests (titles, summaries, checks) and repeat requests that failed. So the turn does not
depend on the number of requests, but on the number of tool results in the request since the script was set.
"""

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOL = "count"
DONE = "All done."


class Model:
    """Answers with the turns of a script, and records its input."""

    def __init__(self):
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)
        self.play([])
        handler = type("Handler", (_Handler,), {"model": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def play(self, turns):
        """Sets the script. A turn is a list of calls; a call is its arguments. After the last turn: a text."""
        with self.lock:
            self.turns, self.base, self.read = turns, None, []
            self.offered = []

    def answer(self, dialect, asked):
        """What the model says to one request."""
        tools, results = list(dialect.tools(asked)), dialect.results(asked)
        tool = next((name for name in tools if name[-1].split("_")[-1] == TOOL), None)
        if tool is None:
            return dialect.say(None, [])
        with self.lock:
            self.offered = [name[-1] for name in tools]
            self.base = len(results) if self.base is None else self.base
            fresh = results[self.base :]
            self.read = max(self.read, fresh, key=len)
            calls = _turn(self.turns, len(fresh))
            numbered = [(f"call_{next(self.numbers)}", arguments) for arguments in calls]
        return dialect.say(tool, numbered)


def _turn(turns, answered):
    for turn in turns:
        if answered <= 0:
            return turn
        answered -= len(turn)
    return []


class Anthropic:
    """The Messages API."""

    def tools(self, asked):
        return [(tool["name"],) for tool in asked.get("tools") or []]

    def results(self, asked):
        blocks = (block for message in asked["messages"] for block in _list(message["content"]))
        return [_text(block.get("content")) for block in blocks if block.get("type") == "tool_result"]

    def say(self, tool, calls):
        blocks = [{"type": "tool_use", "id": f"toolu_{id}", "name": tool[-1], "input": wish} for id, wish in calls]
        stop = "tool_use" if calls else "end_turn"
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": blocks or [{"type": "text", "text": DONE}],
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 10},
        }
        return message, list(self._events(message))

    def _events(self, message):
        start = {**message, "content": [], "stop_reason": None}
        yield "message_start", {"type": "message_start", "message": start}
        for index, block in enumerate(message["content"]):
            if block["type"] == "text":
                empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                said = json.dumps(block["input"])
                empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": said}
            about = {"index": index}
            yield "content_block_start", {"type": "content_block_start", **about, "content_block": empty}
            yield "content_block_delta", {"type": "content_block_delta", **about, "delta": delta}
            yield "content_block_stop", {"type": "content_block_stop", **about}
        stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        yield "message_delta", {"type": "message_delta", "delta": stop, "usage": message["usage"]}
        yield "message_stop", {"type": "message_stop"}


class Responses:
    """OpenAI's Responses API. A tool may be in a namespace."""

    def tools(self, asked):
        for tool in asked.get("tools") or []:
            if tool["type"] == "function":
                yield (tool["name"],)
            for inner in tool.get("tools") or []:
                yield tool["name"], inner["name"]

    def results(self, asked):
        return [_text(item["output"]) for item in asked["input"] if item["type"] == "function_call_output"]

    def say(self, tool, calls):
        items = [self._call(tool, *call) for call in calls] or [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": DONE, "annotations": []}],
            }
        ]
        usage = {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20}
        response = {"id": "resp_1", "object": "response", "status": "completed", "output": items, "usage": usage}
        begun = {**response, "status": "in_progress", "output": []}
        events = [("response.created", {"type": "response.created", "response": begun})]
        for index, item in enumerate(items):
            for what in ("response.output_item.added", "response.output_item.done"):
                events.append((what, {"type": what, "output_index": index, "item": item}))
        events.append(("response.completed", {"type": "response.completed", "response": response}))
        return response, events

    def _call(self, tool, call_id, wish):
        namespace = {"namespace": tool[0]} if len(tool) > 1 else {}
        call = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "status": "completed"}
        return {**call, "name": tool[-1], "arguments": json.dumps(wish), **namespace}


class Chat:
    """OpenAI's Chat Completions API."""

    def tools(self, asked):
        return [(tool["function"]["name"],) for tool in asked.get("tools") or []]

    def results(self, asked):
        return [_text(message["content"]) for message in asked["messages"] if message["role"] == "tool"]

    def say(self, tool, calls):
        said = [
            {
                "index": index,
                "id": call_id,
                "type": "function",
                "function": {"name": tool[-1], "arguments": json.dumps(wish)},
            }
            for index, (call_id, wish) in enumerate(calls)
        ]
        message = {"role": "assistant", "tool_calls": said} if said else {"role": "assistant", "content": DONE}
        reason = "tool_calls" if said else "stop"
        about = {"id": "chatcmpl-1", "created": 1, "model": "scripted"}
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        whole = {"index": 0, "message": message, "finish_reason": reason}
        parts = [
            {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
        ]
        chunks = [(None, {**about, "object": "chat.completion.chunk", **part}) for part in parts]
        whole = {**about, "object": "chat.completion", "choices": [whole], "usage": usage}
        return whole, [*chunks, (None, "[DONE]")]


class Gemini:
    """Google's generateContent."""

    def tools(self, asked):
        for tool in asked.get("tools") or []:
            for function in tool.get("functionDeclarations") or []:
                yield (function["name"],)

    def results(self, asked):
        parts = (part for content in asked["contents"] for part in content.get("parts") or [])
        return [json.dumps(part["functionResponse"]) for part in parts if "functionResponse" in part]

    def say(self, tool, calls):
        parts = [{"functionCall": {"id": id, "name": tool[-1], "args": wish}} for id, wish in calls]
        content = {"role": "model", "parts": parts or [{"text": DONE}]}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
        candidate = {"index": 0, "content": content, "finishReason": "STOP"}
        reply = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-pro"}
        return reply, [(None, reply)]


class _Handler(BaseHTTPRequestHandler):
    model: Model
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.split("?")[0]
        if path.endswith(("/count_tokens", ":countTokens")):
            return self._send(json.dumps({"input_tokens": 10, "totalTokens": 10}), "application/json")
        dialect = _dialect(path)
        if dialect is None:
            return self.send_error(404)
        asked = json.loads(body)
        whole, events = self.model.answer(dialect, asked)
        if not (asked.get("stream") or ":stream" in path):
            return self._send(json.dumps(whole), "application/json")
        return self._send("".join(_event(*event) for event in events), "text/event-stream")

    def do_GET(self):
        self.send_error(404)

    def _send(self, text, kind):
        body = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Suppresses the log."""


def _dialect(path):
    ends = {"/messages": Anthropic, "/responses": Responses, "/chat/completions": Chat}
    ends |= {":generateContent": Gemini, ":streamGenerateContent": Gemini}
    return next((dialect() for end, dialect in ends.items() if path.endswith(end)), None)


def _event(name, data):
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def _list(content):
    return content if isinstance(content, list) else []


def _text(content):
    return content if isinstance(content, str) else json.dumps(content)
