"""Deliberate resampling: equal calls whose answers were delivered are new samples, and calls with one key are one."""

import uuid

import kit
from parts import SDKS, Sdk, serving
from table import which

# The case of the model, how many calls, whether they are made at once, whether they have one key, and how many
# generations are right.
WAYS = {
    "5 in turn": ("plain", 5, False, False, 5),
    "5 in turn, one key": ("plain", 5, False, True, 1),
    "3 at once": ("slow", 3, True, False, 3),
    "3 at once, one key": ("slow", 3, True, True, 1),
    "3 in turn, each after 2.5 s": ("slow", 3, False, False, 3),
}


def rows(_name, session):
    with serving(session) as (scripted, gateway):
        for name in SDKS:
            sdk = Sdk(name, session.cache)
            prompts = {}
            for way in WAYS:
                case, samples, together, keyed, _ = WAYS[way]
                for stream in (False, True):
                    headers = {"Idempotency-Key": uuid.uuid4().hex} if keyed else {}
                    options = {"stream": stream, "samples": samples, "together": together, "headers": headers}
                    prompts[way, stream] = sdk.add(f"{gateway.url}/gw/{sdk.upstream}", case, **options)
            answers = sdk.run()
            counts = scripted.counts()
            for (way, stream), prompt in prompts.items():
                *_, expected = WAYS[way]
                texts = [answer.get("text", "no answer") for answer in answers[prompt]]
                count = counts.get(prompt, 0)
                samples = {which(prompt, count, text) for text in texts}
                # Every generation was delivered, to one call or to all that share its key.
                right = {f"answer {number}" for number in range(1, expected + 1)}
                told = f"{len(texts)} answers, {len(samples)} different, {count} generations"
                case = f"{way}, {'stream' if stream else 'whole'}"
                yield kit.Row(name, case, told, (count, samples) == (expected, right))
