import jobs
from mistralai.client import Mistral
from mistralai.client.utils import BackoffStrategy, RetryConfig


def ask(job):
    # Retries are off by default. They end by time, not by number.
    retries = RetryConfig("backoff", BackoffStrategy(300, 1000, 1.5, 60_000), retry_connection_errors=True)
    client = Mistral(api_key="k", server_url=job["base"], timeout_ms=int(job["timeout"] * 1000), retry_config=retries)
    request = {"model": "m", "messages": [{"role": "user", "content": job["prompt"]}], "http_headers": job["headers"]}
    if not job["stream"]:
        return client.chat.complete(**request).choices[0].message.content
    with client.chat.stream(**request) as events:
        return "".join(event.data.choices[0].delta.content or "" for event in events)


jobs.serve(ask)
