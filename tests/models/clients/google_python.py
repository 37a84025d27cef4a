import jobs
from google import genai
from google.genai import types


def ask(job):
    # Retries are off by default.
    retries = types.HttpRetryOptions(attempts=3, initial_delay=0.3)
    options = types.HttpOptions(
        base_url=job["base"], timeout=int(job["timeout"] * 1000), headers=job["headers"], retry_options=retries
    )
    client = genai.Client(api_key="k", http_options=options)
    if not job["stream"]:
        return client.models.generate_content(model="m", contents=job["prompt"]).text
    chunks = client.models.generate_content_stream(model="m", contents=job["prompt"])
    return "".join(chunk.text or "" for chunk in chunks)


jobs.serve(ask)
