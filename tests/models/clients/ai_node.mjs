import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";
import { serve } from "./jobs.mjs";

serve(async (job) => {
  const openai = createOpenAI({ baseURL: `${job.base}/v1`, apiKey: "k", headers: job.headers });
  // The SDK has no timeout of its own.
  const abortSignal = AbortSignal.timeout(job.timeout * 1000);
  const request = { model: openai("m"), prompt: job.prompt, abortSignal };
  if (!job.stream) return (await generateText(request)).text;
  let text = "";
  for await (const part of streamText({ ...request, onError() {} }).fullStream) {
    if (part.type === "error") throw part.error;
    // An aborted stream ends without an error.
    if (part.type === "abort") throw new Error("aborted");
    if (part.type === "text-delta") text += part.text;
  }
  return text;
});
