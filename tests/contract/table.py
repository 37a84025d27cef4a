"""What every situation means, whichever surface tells it: data only.

A situation is a list of steps and the call that is looked at. A step or call is a dict of

    how     what the action does: ok, refuse (definite failure), lose (in doubt), stall (until the time limit), hold
            (until it is released)
    amount  an input; another amount is another action
    probe   the action has a probe, which cannot tell
    verify  the action has a check, which refutes it
    key     another key; None gives none

or of settings of the policy file (class, attempts, on_failure, retention, wait, timeout, keys). Other steps: "cancel"
the operation, wait until its result has "expired", "break" the ledger. The call "unrecorded" is done, but the disk is
full before its outcome is written.
"""

ONCE, IDEMPOTENT = {}, {"class": "idempotent"}
LOSE, REFUSE = {"how": "lose"}, {"how": "refuse"}
SHORT = {"retention": "1ms", "session_retention": "1ms"}
PROBED = {"probe": True}
OTHER = {"amount": 2}

# name: (steps, call, (code, happened, ran, retryable, effect, next step))
CALLS = {
    "done": ([], ONCE, ("-", "yes", "yes", "-", "created", "-")),
    "replay": ([ONCE], ONCE, ("-", "yes", "no", "-", "noop", "-")),
    "failed": ([], REFUSE, ("FAILED", "no", "yes", "yes", "noop", "CallAgain")),
    "failed, last attempt": ([], {**REFUSE, "attempts": 1}, ("FAILED", "no", "yes", "no", "noop", "Show")),
    "failed, replayed": (
        [{**REFUSE, "on_failure": "replay"}],
        {"on_failure": "replay"},
        ("FAILED", "no", "no", "no", "noop", "Show"),
    ),
    "failed, runs again": ([REFUSE], ONCE, ("-", "yes", "yes", "-", "created", "-")),
    "in doubt": ([], LOSE, ("IN_DOUBT", "unknown", "yes", "no", "unknown", "Settle")),
    "in doubt before": ([LOSE], ONCE, ("IN_DOUBT", "unknown", "no", "no", "noop", "Settle")),
    "in doubt, idempotent": (
        [],
        {**LOSE, **IDEMPOTENT},
        ("IN_DOUBT", "unknown", "yes", "no", "unknown", "CallAgain"),
    ),
    "in doubt, idempotent, runs again": (
        [{**LOSE, **IDEMPOTENT}],
        IDEMPOTENT,
        ("-", "yes", "yes", "-", "created", "-"),
    ),
    "in doubt, idempotent, no attempt left": (
        [{**LOSE, **IDEMPOTENT, "attempts": 1}],
        {**IDEMPOTENT, "attempts": 1},
        ("IN_DOUBT", "unknown", "no", "no", "noop", "Settle"),
    ),
    "in doubt, probed": ([], {**LOSE, **PROBED}, ("IN_DOUBT", "unknown", "yes", "no", "unknown", "CallAgain")),
    "in doubt before, the probe cannot tell": (
        [{**LOSE, **PROBED}],
        PROBED,
        ("IN_DOUBT", "unknown", "no", "no", "noop", "Settle"),
    ),
    "in doubt, probed by a command": (
        [],
        {**LOSE, **PROBED},
        ("IN_DOUBT", "unknown", "yes", "no", "unknown", "Probe"),
    ),
    "in doubt before, the probe command cannot tell": (
        [{**LOSE, **PROBED}],
        PROBED,
        ("IN_DOUBT", "unknown", "no", "no", "noop", "Probe"),
    ),
    "timeout": (
        [],
        {"how": "stall", "timeout": "5s"},
        ("TIMEOUT", "unknown", "yes", "no", "unknown", "Lost"),
    ),
    "in progress": (
        [{"how": "hold"}],
        {"wait": "0s"},
        ("IN_PROGRESS", "unknown", "no", "no", "noop", "Wait"),
    ),
    "key reused, done": ([ONCE], OTHER, ("KEY_REUSED", "yes", "no", "no", "noop", "OtherKey")),
    "key reused, in doubt": ([LOSE], OTHER, ("KEY_REUSED", "unknown", "no", "no", "noop", "Show")),
    "key expired, done": ([SHORT, "expired"], SHORT, ("KEY_EXPIRED", "yes", "no", "no", "noop", "Repeat")),
    "key expired, failed": (
        [{**REFUSE, **SHORT}, "expired"],
        SHORT,
        ("KEY_EXPIRED", "no", "no", "no", "noop", "Repeat"),
    ),
    "cancelled": ([REFUSE, "cancel"], ONCE, ("CANCELLED", "no", "no", "no", "noop", "Cancelled")),
    "budget exhausted": (
        [{**REFUSE, "attempts": 1}],
        {"attempts": 1},
        ("BUDGET_EXHAUSTED", "no", "no", "no", "noop", "RaiseAttempts"),
    ),
    "unverified": ([], {"verify": True}, ("UNVERIFIED", "unknown", "yes", "no", "unknown", "Lost")),
    "unverified before": (
        [{"verify": True}],
        {"verify": True},
        ("UNVERIFIED", "unknown", "no", "no", "noop", "Lost"),
    ),
    "key missing": ([], {"key": None, "keys": "keyed"}, ("KEY_MISSING", "-", "no", "no", "noop", "-")),
    "invalid input": ([], {"key": "a\nb"}, ("INVALID_INPUT", "-", "no", "no", "noop", "-")),
    "ledger unavailable": (
        ["break"],
        ONCE,
        ("LEDGER_UNAVAILABLE", "unknown", "no", "no", "noop", "CheckLedger"),
    ),
    "done, not recorded": ([], "unrecorded", ("IN_DOUBT", "yes", "yes", "no", "unknown", "Record")),
}

# name: (steps, call, (decision, code, happened, ran, retryable, effect, next step))
DRY_RUNS = {
    "run": ([], ONCE, ("run", "-", "no", "no", "-", "would_create", "-")),
    "run after a failure": ([REFUSE], ONCE, ("run", "-", "no", "no", "-", "would_create", "-")),
    "run, idempotent in doubt": (
        [{**LOSE, **IDEMPOTENT}],
        IDEMPOTENT,
        ("run", "-", "unknown", "no", "-", "would_create", "-"),
    ),
    "replay": ([ONCE], ONCE, ("replay", "-", "yes", "no", "-", "would_noop", "-")),
    "replay of a failure": (
        [{**REFUSE, "on_failure": "replay"}],
        {"on_failure": "replay"},
        ("replay_failure", "FAILED", "no", "no", "no", "would_noop", "Show"),
    ),
    "wait": ([{"how": "hold"}], ONCE, ("wait", "-", "unknown", "no", "-", "would_noop", "-")),
    "probe": ([{**LOSE, **PROBED}], PROBED, ("probe", "-", "unknown", "no", "-", "would_create", "-")),
    "in doubt": ([LOSE], ONCE, ("refuse", "IN_DOUBT", "unknown", "no", "no", "would_noop", "Settle")),
    "key reused, done": ([ONCE], OTHER, ("refuse", "KEY_REUSED", "yes", "no", "no", "would_noop", "OtherKey")),
    "key reused, in doubt": ([LOSE], OTHER, ("refuse", "KEY_REUSED", "unknown", "no", "no", "would_noop", "Show")),
    "key expired": ([SHORT, "expired"], SHORT, ("refuse", "KEY_EXPIRED", "yes", "no", "no", "would_noop", "Repeat")),
    "cancelled": ([REFUSE, "cancel"], ONCE, ("refuse", "CANCELLED", "no", "no", "no", "would_noop", "Cancelled")),
    "budget exhausted": (
        [{**REFUSE, "attempts": 1}],
        {"attempts": 1},
        ("refuse", "BUDGET_EXHAUSTED", "no", "no", "no", "would_noop", "RaiseAttempts"),
    ),
    "key missing": ([], {"key": None, "keys": "keyed"}, ("-", "KEY_MISSING", "-", "no", "no", "noop", "-")),
    "invalid input": ([], {"key": "a\nb"}, ("-", "INVALID_INPUT", "-", "no", "no", "noop", "-")),
    "ledger unavailable": (
        ["break"],
        ONCE,
        ("-", "LEDGER_UNAVAILABLE", "unknown", "no", "no", "noop", "CheckLedger"),
    ),
}

# What is done to records claims neither `happened` nor `ran`. name: (steps, what, (code, …))
ADMIN = {
    "settle what is done": ([ONCE], ("settle", "failed"), ("WRONG_STATE", "-", "-", "no", "noop", "Show")),
    "settle what is not there": ([ONCE], ("settle", None), ("NOT_FOUND", "-", "-", "no", "noop", "-")),
    "show what is not there": ([ONCE], ("show", None), ("NOT_FOUND", "-", "-", "no", "noop", "-")),
}

OWN_TOOLS = "the proxy has tools of its own for records only where the policy says `agents_settle`"
COMMAND_PROBE = "its probe is not a stored command, so `once settle --probe` cannot ask it"

# Situations that a surface does not have, and why.
CANNOT = {
    "cli": {
        "calls": {
            "in doubt, probed": "a probe of `once run` is always a stored command",
            "in doubt before, the probe cannot tell": "a probe of `once run` is always a stored command",
        },
    },
    "clap": {
        "calls": {
            "in doubt, probed by a command": COMMAND_PROBE,
            "in doubt before, the probe command cannot tell": COMMAND_PROBE,
            "unverified": "onceward-clap has no checks of a reported success",
            "unverified before": "onceward-clap has no checks of a reported success",
            "done, not recorded": "the shop cannot be stopped between its effect and its answer",
        },
    },
    "mcp": {
        "calls": {
            "timeout": "the time limit of a tool ends the wait and not the call: the caller is told IN_PROGRESS",
            "in doubt, probed by a command": COMMAND_PROBE,
            "in doubt before, the probe command cannot tell": COMMAND_PROBE,
            "key missing": "`keyed` makes each call without a key an operation of its own",
        },
        "dry runs": {
            "key missing": "`keyed` makes each call without a key an operation of its own",
            "ledger unavailable": "the proxy does not start without its ledger, and a dry run writes nothing to it",
        },
        "admin": {
            "settle what is done": OWN_TOOLS,
            "settle what is not there": OWN_TOOLS,
            "show what is not there": OWN_TOOLS,
        },
    },
    "python": {
        "calls": {
            "in doubt, probed by a command": COMMAND_PROBE,
            "in doubt before, the probe command cannot tell": COMMAND_PROBE,
        },
    },
}

# Situations in which `once mcp` passes the server's own answer on, byte for byte, and the record's state after it.
PASSED_ON = {
    "done": "done",
    "failed": "failed",
    "failed, last attempt": "failed",
    "failed, runs again": "done",
    "in doubt, idempotent, runs again": "done",
    "done, not recorded": "in_doubt",
}

# How each next step is spelled: the sentence, then what to paste. {id} is the operation's.
AGAIN = ["make the same call again; it is safe"]
OTHER_KEY = "if this is the same action, it is done; only for a different action use another key"
LOST = "check first whether it happened; do not repeat it. A person or a probe must record the finding"
UNLESS = ["do not repeat it, unless a person asks for it"]
SHOW = {
    "cli": "once --config {policy} --ledger {ledger} show {id}",
    "clap": "shop --ledger {ledger} --policy {policy} show {id}",
    "python": 'ledger.show("{id}")',
}
CHECK = "check first whether it happened, then record what you found"
NEXT = {
    "-": {"cli": [], "clap": [], "mcp": [], "python": []},
    "CallAgain": {"cli": AGAIN, "clap": AGAIN, "mcp": AGAIN, "python": AGAIN},
    "Settle": {
        "cli": [
            CHECK,
            "once --config {policy} --ledger {ledger} settle {id} --as done",
            "once --config {policy} --ledger {ledger} settle {id} --as failed",
        ],
        # The server dies; the error of a function or of a tool's work may be that its reply was lost.
        "clap": [LOST, SHOW["clap"]],
        "mcp": [LOST],
        "python": [LOST, SHOW["python"]],
    },
    "Record": {
        "cli": [
            "make the ledger writable, then record what is known",
            "once --config {policy} --ledger {ledger} settle {id} --as done",
        ],
        "python": ["make the ledger writable, then record what is known", 'ledger.settle("{id}", "done")'],
    },
    "Probe": {
        "cli": [
            "ask the probe whether it happened",
            "once --config {policy} --ledger {ledger} settle {id} --probe 'exit 1'",
        ]
    },
    "Wait": {
        "cli": ["wait for it, then make the same call", "once --config {policy} --ledger {ledger} wait {id}"],
        "clap": [
            "see whether it has ended, then make the same call",
            "shop --ledger {ledger} --policy {policy} show {id}",
        ],
        "mcp": ["wait, then make the same call again; it is safe"],
        "python": ["wait for it, then make the same call", 'ledger.wait("{id}")'],
    },
    "Show": {
        "cli": ["see what is recorded", "once --config {policy} --ledger {ledger} show {id}"],
        "clap": ["see what is recorded", "shop --ledger {ledger} --policy {policy} show {id}"],
        "mcp": ["ask a person to look at what is recorded"],
        "python": ["see what is recorded", 'ledger.show("{id}")'],
    },
    "Repeat": {
        "cli": ["to do it again on purpose, add --occurrence 2 or use another key"],
        "clap": ["to do it again on purpose, add --occurrence 2 or use another key"],
        "mcp": ["to do it again on purpose, use another key or occurrence"],
        "python": ["to do it again on purpose, use another key or occurrence"],
    },
    "Lost": {"mcp": [LOST], **{surface: [LOST, show] for surface, show in SHOW.items()}},
    "Cancelled": {"cli": UNLESS, "clap": UNLESS, "mcp": UNLESS, "python": UNLESS},
    "OtherKey": {"mcp": [OTHER_KEY], **{surface: [OTHER_KEY, show] for surface, show in SHOW.items()}},
    "RaiseAttempts": {
        "cli": ["to allow more, raise --attempts above 1"],
        "clap": ["to allow more, raise `attempts` in the policy above 1, or use another key"],
        "mcp": ["to allow more, raise the limit of attempts above 1"],
        "python": ["to allow more, raise the limit of attempts above 1"],
    },
    "CheckLedger": {
        "cli": [
            "make the ledger reachable, then make the same call again",
            "once --config {policy} --ledger {ledger} doctor",
        ],
        "clap": ["make the ledger reachable, then make the same call again"],
        "mcp": ["make the ledger reachable, then make the same call again"],
        "python": ["make the ledger reachable, then make the same call again"],
    },
}

# What a tool for the shell exits with. A command that failed gives its own code: 3 through `once run`, 1 in the shop.
EXITS = {
    "-": 0, "INVALID_INPUT": 2, "KEY_MISSING": 2, "IN_PROGRESS": 4, "KEY_EXPIRED": 4, "CANCELLED": 4,
    "BUDGET_EXHAUSTED": 4, "NOT_FOUND": 5, "KEY_REUSED": 6, "WRONG_STATE": 6, "TIMEOUT": 10, "LEDGER_UNAVAILABLE": 12,
    "IN_DOUBT": 79, "UNVERIFIED": 79,
}  # fmt: skip
FAILED_EXITS = {"cli": 3, "clap": 1}
