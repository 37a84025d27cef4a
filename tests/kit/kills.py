"""Kill it, start it again, retry everything, then ask the judge.

Each surface has victims, clients that repeat what was not answered, and a judge that compares the answers, the ledger
and what really happened.
"""

import threading
import time
from collections import Counter

from .session import Row


def torment(victims, clients, dice, pause, kills=None):
    """Runs the clients while victims are killed at random, and returns how often each kind was.

    `victims` maps a name to a function that kills one and starts it again; it returns whether it met one. `pause` gives
    the seconds before the next kill, or waits for progress itself. With `kills`, the clients work until there were as
    many; each client gets an event that tells it to end. Otherwise it all lasts until every client has ended.
    """
    toll, over = Counter(), threading.Event()
    broken = []

    def run(client):
        try:
            client(over)
        except Exception as error:
            broken.append(error)

    threads = [threading.Thread(target=run, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and (kills is None or toll.total() < kills) and not broken:
            time.sleep(pause() or 0)
            name = dice.choice(list(victims))
            if victims[name]() is not False:
                toll[name] += 1
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if broken:
        raise broken[0]
    return toll


def judged(rig, case, told, wrong):
    """The row of a case: `wrong` maps what must never be to the cases in which it was."""
    found = {what: list(which) for what, which in wrong.items() if which}
    faults = "".join(f"; {what}: {len(which)}, such as {which[:5]}" for what, which in found.items())
    return Row(rig, case, told + faults, not found)
