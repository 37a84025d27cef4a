import jobs
from openai import OpenAI


def ask(job):
    client = OpenAI(base_url=f"{job['base']}/v1", api_key="k", timeout=job["timeout"], default_headers=job["headers"])
    messages = [{"role": "user", "content": job["prompt"]}]
    if not job["stream"]:
        return client.chat.completions.create(model="m", messages=messages).choices[0].message.content
    chunks = client.chat.completions.create(model="m", messages=messages, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


jobs.serve(ask)
