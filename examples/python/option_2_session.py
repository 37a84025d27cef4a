"""Keys of a session. A cache in memory is of one process: a second worker of the same session runs it all again."""

from world import folder, happen, happened, in_processes, show

from onceward import Ledger


class NaiveSession:
    def __init__(self) -> None:
        self.cache: dict[str, str] = {}

    def call(self, tool: str) -> str:
        if tool not in self.cache:
            happen(f"naive {tool}")
            self.cache[tool] = "sent"
        return self.cache[tool]


in_processes(*(lambda: NaiveSession().call("mail") for _ in range(2)))

# -- with Onceward
session = Ledger(folder / "agent.db").session("order-flow-abc123")


def mail(to: str) -> str:
    happen("our mail")
    return "sent"


def agent() -> None:
    assert session.call("mail", {"to": "ann@example.com"}, mail).value == "sent"


# --


in_processes(agent, agent)
agent()
show(happened("naive mail"), happened("our mail"), "mails by two workers of one session")
