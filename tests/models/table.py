"""Every SDK against a model that is slow or fails: directly, through the gateway, and through other gateways."""

import contextlib

import kit
import model
import peers
from parts import Sdk, serving

# The case of the model, how many generations are right, and the timeout of the SDK in seconds. Where the first
# generation itself breaks, a second one is right. Where the SDK has to give up, its next try has as long for an answer
# that is there already: more than ten times what that takes on a busy machine. Where it must not give up, it waits.
CASES = {
    "timeout": ("late", 1, 30.0),
    "reset": ("reset", 2, 600.0),
    "cut": ("cut", 2, 600.0),
    "early end": ("short", 2, 600.0),
    "stall": ("stall", 2, 30.0),
    "one 500": ("fail", 2, 600.0),
    "500 storm": ("storm", 3, 600.0),
}
QUICK = ["timeout", "cut", "early end", "500 storm"]
# tenacity calls the SDK this often. A loop does the same for JavaScript.
TRIES = 4
# These gateways speak the protocol of OpenAI.
BESIDE = ["openai-python", "openai-node"]


def rows(name, session):
    quick, cache = session.quick, session.cache
    with serving(session) as (scripted, gateway), contextlib.ExitStack() as stack:
        sdk = Sdk(name, cache)
        ways = {"once": (f"{scripted.opens_to(gateway)}/gw/{sdk.upstream}", {})}
        cases = QUICK if quick else list(CASES)
        if not quick:
            # Nothing is expected of these. Retries of SDKs without a gateway take most of the time.
            ways = {"direct": (scripted.url, {}), **ways}
        if name in BESIDE and not quick:
            ways |= {peer: stack.enter_context(run(cache, scripted.url)) for peer, run in peers.PEERS.items()}
        prompts = {}
        for case in cases:
            script, _, timeout = CASES[case]
            for stream in (False, True):
                for tries in (1, TRIES):
                    for way, (base, headers) in ways.items():
                        options = {"stream": stream, "tries": tries, "timeout": timeout, "headers": headers}
                        prompts[case, stream, tries, way] = sdk.add(base, script, **options)
        answers = sdk.run()
        counts = scripted.counts()
        for case in cases:
            for stream in (False, True):
                for tries in (1, TRIES):
                    found = {way: prompts[case, stream, tries, way] for way in ways}
                    cells = {way: cell(counts.get(prompt, 0), prompt, answers[prompt]) for way, prompt in found.items()}
                    prompt = found["once"]
                    holds = is_right(name, case, stream, tries, counts.get(prompt, 0), prompt, answers[prompt][0])
                    told = f"{case}, {'stream' if stream else 'whole'}{', tenacity' if tries > 1 else ''}"
                    yield kit.Row(name, told, "; ".join(f"{way}: {cell}" for way, cell in cells.items()), holds)


def cell(count, prompt, answers):
    (answer,) = answers
    if "error" in answer:
        outcome = f"error {answer['status']}" if answer["status"] else "no answer"
    else:
        outcome = which(prompt, count, answer["text"])
    return f"{count} generation{'s' if count != 1 else ''}, {outcome}"


def which(prompt, count, text):
    """Which generation the text is, if it is all of one."""
    for number in range(1, count + 1):
        if text == "".join(model.words(number, prompt)):
            return f"answer {number}"
    return "A CUT ANSWER"


def is_right(name, case, stream, tries, count, prompt, answer):
    _, generations, _ = CASES[case]
    if case == "500 storm":
        return count <= generations and answer.get("status") == 424
    if "error" in answer:
        return not must_answer(name, case, stream, tries) and count <= generations
    # The last generation is the one that counts: all before it broke.
    return count == generations and which(prompt, count, answer["text"]) == f"answer {count}"


def must_answer(name, case, stream, tries):
    if tries > 1:
        return True
    # After the first byte of a stream no SDK tries again, and the SDK of Vercel never does after its timeout.
    return not (stream and case in ("cut", "early end", "stall")) and not (
        name.startswith("ai") and case in ("timeout", "stall")
    )
