"""A mail server on loopback that counts: every message whose end it has read is a line in a file."""

import asyncio
import threading


class MailServer:
    """Runs in a thread of its own."""

    def __init__(self, file):
        self.file = file
        self.ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()
        self.ready.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)

    def subjects(self):
        return self.file.read_text().splitlines() if self.file.exists() else []

    def _run(self):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._session, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()

    async def _session(self, reader, writer):
        try:
            await self._talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _talk(self, reader, writer):
        async def say(line):
            writer.write(f"{line}\r\n".encode())
            await writer.drain()

        await say("220 ready")
        while line := (await reader.readline()).decode().strip():
            # A slow server: a stop can come at any point of the exchange.
            await asyncio.sleep(0.03)
            match line.split()[0].upper():
                case "DATA":
                    await say("354 go on")
                    text = (await reader.readuntil(b"\r\n.\r\n")).decode()
                    with self.file.open("a") as mails:
                        mails.write(text.split("Subject: ")[1].split("\r\n")[0] + "\n")
                    # The mail is out, and its sender does not know yet.
                    await asyncio.sleep(0.2)
                    await say("250 queued")
                case "QUIT":
                    await say("221 bye")
                    return
                case _:
                    await say("250 ok")
