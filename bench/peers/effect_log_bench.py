"""Measures effect-log (package ai-effectlog) on SQLite with its default settings.

Its identity of an effect is the execution's id and the position of the call within it; it has no key. So there
are two ways to use it, and `--log` chooses:

key  an execution for each key, as a retry that may come from anywhere needs. The log is opened for each call.
run  one execution for the whole run, as in its README, shared by all callers. A replay must repeat every call
     in the same order.
"""

from effect_log import EffectKind, EffectLog, ToolDef

import bench

parser = bench.arguments()
parser.add_argument("--log", choices=["key", "run"], default="key")
options = parser.parse_args()
action = bench.Action()
tools = [ToolDef("place_order", EffectKind.IrreversibleWrite, lambda arguments: action())]


def open_log(execution):
    storage = f"sqlite:///{options.dir / 'effect-log.db'}"
    return EffectLog(execution, tools, storage, recover=options.mode == "replay")


def place_order(log, number):
    log.execute("place_order", {"order": number, "amount": 100})


if options.log == "key":
    note = "a log opened for each key; closing it syncs, after the answer"

    def call(number):
        place_order(open_log(f"order-{number:08}"), number)

else:
    note = "one log for all callers; its calls run one after another"
    shared = open_log("run")

    def call(number):
        place_order(shared, number)


bench.measure(
    call,
    action,
    options,
    peer="effect-log",
    package="ai-effectlog",
    syncs="none before the answer (WAL, synchronous=NORMAL)",
    note=note,
)
