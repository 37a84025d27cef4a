import Anthropic from "@anthropic-ai/sdk";
import { serve } from "./jobs.mjs";

serve(async (job) => {
  const client = new Anthropic({
    baseURL: job.base, apiKey: "k", timeout: job.timeout * 1000, defaultHeaders: job.headers,
  });
  const request = { model: "m", max_tokens: 100, messages: [{ role: "user", content: job.prompt }] };
  if (!job.stream) return (await client.messages.create(request)).content[0].text;
  let text = "";
  for await (const event of await client.messages.create({ ...request, stream: true })) {
    if (event.type === "content_block_delta") text += event.delta.text;
  }
  return text;
});
