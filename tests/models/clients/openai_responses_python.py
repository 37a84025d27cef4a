import jobs
from openai import OpenAI


def ask(job):
    client = OpenAI(base_url=f"{job['base']}/v1", api_key="k", timeout=job["timeout"], default_headers=job["headers"])
    if not job["stream"]:
        return client.responses.create(model="m", input=job["prompt"]).output_text
    events = client.responses.create(model="m", input=job["prompt"], stream=True)
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


jobs.serve(ask)
