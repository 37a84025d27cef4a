import OpenAI from "openai";
import { serve } from "./jobs.mjs";

serve(async (job) => {
  const client = new OpenAI({
    baseURL: `${job.base}/v1`, apiKey: "k", timeout: job.timeout * 1000, defaultHeaders: job.headers,
  });
  const request = { model: "m", messages: [{ role: "user", content: job.prompt }] };
  if (!job.stream) return (await client.chat.completions.create(request)).choices[0].message.content;
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    text += chunk.choices[0].delta.content ?? "";
  }
  return text;
});
