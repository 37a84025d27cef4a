import jobs
from anthropic import Anthropic


def ask(job):
    client = Anthropic(base_url=job["base"], api_key="k", timeout=job["timeout"], default_headers=job["headers"])
    request = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": job["prompt"]}]}
    if not job["stream"]:
        return client.messages.create(**request).content[0].text
    with client.messages.stream(**request) as stream:
        return "".join(stream.text_stream)


jobs.serve(ask)
