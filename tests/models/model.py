"""A scripted model on loopback: it speaks the protocols of OpenAI, Anthropic and Gemini, answers differently every
time, counts its generations, and fails as the prompt says.

The prompt is `CASE NAME`. Generations are counted for each prompt. Cases:

- `plain`: an answer at once. `slow`: an answer after 2.5 s. `late`: an answer when its client has asked again, so that
  it is too late for the first try, however fast this machine is.
- `reset`, `cut`, `short`, `stall`: the first generation resets the connection, breaks off in the middle, ends there as
  if it were complete, or is silent from there on; later ones are plain. `fail`: the first generation is a 500.
  `storm`: every one is a 500.
- `drip`: 40 events, 50 ms apart.
- `agent`: chat completions that ask for the tools `reserve`, `charge` and `mail`, under ids that are new in every
  generation, and then say that all is done. Each step is counted as the prompt `agent NAME N`, where N is the number
  of answers that the conversation has so far. With `slow` in the name, every answer takes 1.5 s.
- `invoice`: the same with one tool, `send_invoice_email`, and 30 ms between the events of a stream.

`GET /count` returns the counts. Prints its port and that of the door, which passes connections on to the port that is
the first line of stdin, and counts how often the clients have asked for an answer.
"""

import argparse
import asyncio
import json
import re
import sys
import uuid
from collections import Counter

STALL_SECONDS = 120
# Nothing waits this long: the clients have left, or the run ends.
LATEST_SECONDS = 600

counts: dict[str, int] = {}
asked: Counter[str] = Counter()
asking = asyncio.Condition()


def prompt_of(body: dict) -> str:
    """The last text of the request, in any protocol. The conversation of an agent is at one of its steps."""
    if agent := re.search(r'"content": "((?:agent|invoice) [^"]*)"', json.dumps(body)):
        step = sum(message["role"] == "assistant" for message in body["messages"])
        return f"{agent[1]} {step}"
    texts = re.findall(r'"(?:content|text|input)": "([^"]*)"', json.dumps(body))
    return texts[-1] if texts else "plain"


def words(number: int, prompt: str) -> list[str]:
    """The answer of this generation to the prompt, in the pieces of its stream."""
    case, _, name = prompt.partition(" ")
    size = 40 if case == "drip" else 5
    return [f"answer-{number} {name} "] + [f"word{index} " for index in range(size)]


def tool_calls(prompt: str) -> list[dict]:
    """The tools that the model asks for at a step of an agent."""
    case, order, step = prompt.split(" ")
    invoice = [("send_invoice_email", {"order": order})]
    booking = {
        "0": [("reserve", {"order": order, "seats": 2})],
        "1": [("charge", {"order": order, "amount": 4200})],
        "2": [("mail", {"order": order, "to": "ann"}), ("mail", {"order": order, "to": "bob"})],
    }
    asked: dict[str, list[tuple[str, dict]]] = {"0": invoice} if case == "invoice" else booking
    return [
        {
            "id": f"call_{uuid.uuid4().hex}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in asked.get(step, [])
    ]


def chat(body: dict, number: int, text: list[str], calls: list[dict] | None = None) -> tuple[dict, list[str]]:
    usage = {"prompt_tokens": 11, "completion_tokens": len(text), "total_tokens": 11 + len(text)}
    head = {"id": f"chatcmpl-{number}", "created": 1, "model": body.get("model", "m")}
    reason = "tool_calls" if calls else "stop"
    message = {"role": "assistant", "content": "".join(text), **({"tool_calls": calls} if calls else {})}
    whole = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    }
    chunk = {**head, "object": "chat.completion.chunk"}
    deltas: list[dict] = [{"role": "assistant", "content": word} for word in text]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls or [])]
    events = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage})
    return whole, [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]


def responses(body: dict, number: int, text: list[str]) -> tuple[dict, list[str]]:
    item = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "".join(text), "annotations": []}],
    }
    whole = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body.get("model", "m"),
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "usage": {
            "input_tokens": 11,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(text),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 11 + len(text),
        },
    }
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {
            "type": "response.content_part.added",
            "item_id": item["id"],
            "output_index": 0,
            "content_index": 0,
            "part": {"type": "output_text", "text": "", "annotations": []},
        },
    ]
    events += [
        {
            "type": "response.output_text.delta",
            "item_id": item["id"],
            "output_index": 0,
            "content_index": 0,
            "delta": word,
            "logprobs": [],
        }
        for word in text
    ]
    events.append({"type": "response.completed", "response": whole})
    numbered = [{**event, "sequence_number": index} for index, event in enumerate(events)]
    return whole, [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered]


def messages(body: dict, number: int, text: list[str]) -> tuple[dict, list[str]]:
    whole = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "m"),
        "content": [{"type": "text", "text": "".join(text)}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": len(text)},
    }
    begun = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 11, "output_tokens": 1}}
    events: list[dict] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    events += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in text
    ]
    events += [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": len(text)},
        },
        {"type": "message_stop"},
    ]
    return whole, [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def contents(body: dict, number: int, text: list[str]) -> tuple[dict, list[str]]:
    usage = {"promptTokenCount": 11, "candidatesTokenCount": len(text), "totalTokenCount": 11 + len(text)}

    def part(words: str, reason: str | None) -> dict:
        candidate: dict = {"content": {"role": "model", "parts": [{"text": words}]}, "index": 0}
        if reason:
            candidate["finishReason"] = reason
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "g", "responseId": f"r{number}"}

    events = [part(word, None) for word in text] + [part("", "STOP")]
    return part("".join(text), "STOP"), [f"data: {json.dumps(event)}\r\n\r\n" for event in events]


def protocol(path: str):
    if path.endswith("/responses"):
        return responses
    if path.endswith("/messages"):
        return messages
    if "enerateContent" in path:
        return contents
    return chat


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """One request and its answer. Returns whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    method, target, _ = head.split("\r\n", 1)[0].split(" ")
    length = re.search(r"(?i)^content-length: (\d+)", head, re.M)
    raw = await reader.readexactly(int(length[1])) if length else b""
    path = target.partition("?")[0]

    def answer(status: str, kind: str, body: bytes, extra: str = "") -> None:
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body
        )

    if method == "GET":
        answer("200 OK", "application/json", json.dumps(counts).encode())
        await writer.drain()
        return True
    body = json.loads(raw)
    prompt = prompt_of(body)
    case = prompt.split(" ")[0]
    number = counts[prompt] = counts.get(prompt, 0) + 1
    is_first = number == 1
    is_stream = bool(body.get("stream")) or "stream" in path
    text = words(number, prompt)
    if case in ("agent", "invoice"):
        whole, events = chat(body, number, text, tool_calls(prompt))
    else:
        whole, events = protocol(path)(body, number, text)
    ident = f"x-request-id: req-{number}\r\nrequest-id: req-{number}\r\n"
    if case == "reset" and is_first:
        writer.transport.abort()
        return False
    if case == "storm" or (case == "fail" and is_first):
        error = {"type": "error", "error": {"type": "api_error", "message": "scripted failure"}}
        answer("500 Internal Server Error", "application/json", json.dumps(error).encode(), ident)
        await writer.drain()
        return True
    if case == "slow" or (case == "late" and not asked[prompt]):
        await asyncio.sleep(2.5)
    elif case == "late":
        async with asyncio.timeout(LATEST_SECONDS), asking:
            await asking.wait_for(lambda: asked[prompt] > 1)
    if case == "agent" and "slow" in prompt:
        await asyncio.sleep(1.5)
    if not is_stream:
        document = json.dumps(whole).encode()
        if case in ("cut", "stall") and is_first:
            begun = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(document)}\r\n"
            writer.write(f"{begun}{ident}\r\n".encode() + document[: len(document) // 2])
            await writer.drain()
            if case == "stall":
                await asyncio.sleep(STALL_SECONDS)
            return False
        if case == "short" and is_first:
            document = document[: len(document) // 2]
        answer("200 OK", "application/json", document, ident)
        await writer.drain()
        return True
    writer.write(
        f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{ident}\r\n".encode()
    )
    for index, event in enumerate(events):
        if is_first and index == 3 and case in ("cut", "short", "stall"):
            if case == "short":
                break
            if case == "stall":
                await asyncio.sleep(STALL_SECONDS)
            return False
        data = event.encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
        await asyncio.sleep({"drip": 0.05, "invoice": 0.03}.get(case, 0))
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes a connection of a client on to the gateway."""
    inner = await asyncio.open_connection("127.0.0.1", await gateway)
    ways = [pump(reader, inner[1], counted=True), pump(inner[0], writer)]
    tasks = [asyncio.create_task(way) for way in ways]
    # When one end has left, the other one shall know.
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for end in (writer, inner[1]):
        end.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool = False) -> None:
    seen, known = b"", 0
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
        if counted:
            seen += data
            prompts = re.findall(rb'"(late [^"]*)"', seen)
            async with asking:
                asked.update(prompt.decode() for prompt in prompts[known:])
                asking.notify_all()
            known = len(prompts)


async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await exchange(reader, writer):
            pass
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()


async def main() -> None:
    global gateway
    gateway = asyncio.get_running_loop().create_future()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    server = await asyncio.start_server(connection, "127.0.0.1", parser.parse_args().port, backlog=2000)
    entrance = await asyncio.start_server(door, "127.0.0.1", 0, backlog=2000)
    print(json.dumps([one.sockets[0].getsockname()[1] for one in (server, entrance)]), flush=True)
    if line := await asyncio.to_thread(sys.stdin.readline):
        gateway.set_result(int(line))
    async with server, entrance:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
