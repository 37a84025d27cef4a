// The booking as a saga on Restate, as its guide writes one: saga.mjs PORT SERVICE
//
// Each step adds its compensation to a list before it runs. A terminal error runs the list in reverse and is thrown again.
import * as restate from "@restatedev/restate-sdk";

// The SDK uses it, and Node has it from version 22 on.
Promise.withResolvers ??= () => {
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

const [port, service] = process.argv.slice(2);
const STEPS = ["flight", "hotel", "car", "insurance", "payment"];

async function send(action, trip, step) {
  const answer = await fetch(`${service}/${action}?trip=${trip}&step=${step}`, { method: "POST" });
  // A refusal is certain. Anything else is retried by Restate.
  if (answer.status === 402) throw new restate.TerminalError("declined", { errorCode: 402 });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return (await answer.json()).id;
}

const booking = restate.service({
  name: "booking",
  handlers: {
    run: async (ctx, { trip }) => {
      const compensations = [];
      try {
        for (const step of STEPS) {
          compensations.push(() => ctx.run(`cancel ${step}`, () => send("cancel", trip, step)));
          await ctx.run(`book ${step}`, () => send("book", trip, step));
        }
      } catch (error) {
        if (!(error instanceof restate.TerminalError)) throw error;
        for (const compensation of compensations.reverse()) await compensation();
        throw error;
      }
    },
  },
});

restate.serve({ services: [booking], port: Number(port) });
