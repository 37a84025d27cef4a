"""Clients that leave at random points of a stream and ask again: each ends with the one answer, byte for byte."""

import asyncio
import json
import random
import re
import socket
import struct

import kit
import model
from parts import serving

# How many clients are there at the same time.
AT_ONCE = 100
# How often a client leaves, at most.
MOST_LEAVES = 3


# How many clients there are.
CLIENTS = 1000


def rows(rig, session):
    clients = CLIENTS
    for how in ("plain", "sdk"):
        with serving(session) as (scripted, gateway):
            ends = asyncio.run(all_clients(gateway.listen, clients, how))
            counts = scripted.counts()
        generations = sum(counts.values())
        right = sum(end == "right" for end in ends)
        repeated = sum(count > 1 for count in counts.values())
        told = f"{right} of {clients} have the answer, {generations} generations, {repeated} prompts with more than one"
        others = sorted({end for end in ends if end != "right"})
        if others:
            told += f"; others: {others[:3]}"
        name = "retries without a header" if how == "plain" else "retries with a count"
        yield kit.Row(rig, f"{clients}, {name}", told, (right, generations) == (clients, clients))


async def all_clients(address, clients, how):
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number):
        async with gate:
            return await client(address, number, how)

    return await asyncio.gather(*(one(number) for number in range(clients)))


async def client(address, number, how):
    """One client. Returns `right`, or what is wrong with the answer."""
    chance = random.Random(number)
    prompt = f"drip client-{number}"
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "stream": True}
    _, events = model.chat(body, 1, model.words(1, prompt))
    canonical = "".join(events).encode()
    leaves = chance.randint(1, MOST_LEAVES)
    for tries in range(leaves):
        # The client has less than the answer when it leaves: at the end of the answer it would have all of it.
        enough = chance.choice([0, chance.randrange(len(canonical) - len(events[-1]))])
        got = await ask(address, body, tries if how == "sdk" else 0, Leave(enough, chance))
        if not canonical.startswith(got):
            return f"a part of another answer: {got[-80:]!r}"
        await asyncio.sleep(chance.choice([0, chance.uniform(0, 0.3), chance.uniform(0, 3)]))
    got = await ask(address, body, leaves if how == "sdk" else 0, None)
    return "right" if got == canonical else f"{len(got)} of {len(canonical)} bytes: {got[:80]!r}"


class Leave:
    """Where and how a client leaves."""

    def __init__(self, enough, chance):
        self.enough = enough
        self.is_reset = chance.random() < 0.5
        # A client that leaves before the answer begins has waited for it.
        self.patience = chance.choice([0, 0.01, 0.1]) if enough == 0 else 30


async def ask(address, body, retries, leave):
    """Asks, and returns the bytes of the answer that the client has when it leaves or the answer ends."""
    return (await exchange(address, body, retries, leave)).body


async def exchange(address, body, retries, leave):
    host, port = address.split(":")
    raw = json.dumps(body).encode()
    head = (
        f"POST /gw/openai/v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer k\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n"
    )
    if retries:
        head += f"x-stainless-retry-count: {retries}\r\n"
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, (host, int(port)))
        await loop.sock_sendall(connection, head.encode() + b"\r\n" + raw)
        answer = Answer()
        try:
            if leave and leave.enough == 0:
                await asyncio.sleep(leave.patience)
            # A client takes no more bytes from the connection than it needs, so that what it leaves is not read.
            while not answer.is_whole and not (leave and len(answer.body) >= leave.enough):
                most = min(100, leave.enough - len(answer.body)) if leave else 65536
                if not (data := await loop.sock_recv(connection, most)):
                    break
                answer.push(data)
        except ConnectionError as error:
            answer.body += f" broke: {error!r}".encode()
        if leave and leave.is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return answer


class Answer:
    """The body of an answer, as its bytes arrive."""

    def __init__(self):
        self.head, self.rest, self.body = b"", b"", b""
        # How many bytes of the current chunk are missing, with the end of its line.
        self.missing = 0
        self.is_whole = False

    @property
    def operation(self):
        """The operation that the gateway names in the head of the answer."""
        found = re.search(rb"(?i)^once-operation: (\S+)", self.head, re.MULTILINE)
        return found and found[1].decode()

    def push(self, data):
        self.rest += data
        if not self.head:
            if b"\r\n\r\n" not in self.rest:
                return
            self.head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in self.head.lower():
            size = int(self.head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self.body, self.rest = self.body + self.rest, b""
            self.is_whole = len(self.body) == size
            return
        while self.rest and not self.is_whole:
            if self.missing:
                part, self.rest = self.rest[: self.missing], self.rest[self.missing :]
                # The last two bytes are not of the body.
                self.body += part[: max(0, self.missing - 2)]
                self.missing -= len(part)
                continue
            if b"\r\n" not in self.rest:
                return
            line, _, self.rest = self.rest.partition(b"\r\n")
            size = int(line, 16)
            self.missing = size + 2 if size else 0
            self.is_whole = size == 0
