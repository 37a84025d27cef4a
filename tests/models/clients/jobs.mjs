// Runs the jobs that arrive on stdin, as jobs.py does. Where that one uses tenacity, this one uses a loop.
import { createInterface } from "node:readline";

export function serve(ask) {
  createInterface({ input: process.stdin }).on("line", (line) => run(ask, JSON.parse(line)));
}

async function run(ask, job) {
  let answers = [];
  if (job.together) {
    answers = await Promise.all(Array.from({ length: job.samples }, () => answer(ask, job)));
  } else {
    for (let sample = 0; sample < job.samples; sample++) answers.push(await answer(ask, job));
  }
  console.log(JSON.stringify({ id: job.id, answers }));
}

async function answer(ask, job) {
  for (let tries = 1; ; tries++) {
    try {
      return { text: await ask(job) };
    } catch (error) {
      const status = error.status ?? error.statusCode ?? error.lastError?.statusCode ?? null;
      if (tries === job.tries) return { error: `${error.name}: ${error.message}`.slice(0, 300), status };
      await new Promise((resume) => setTimeout(resume, 200));
    }
  }
}
