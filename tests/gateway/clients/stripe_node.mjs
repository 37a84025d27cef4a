// A charge with stripe-node, and one more call if the first fails, as an agent makes it.

import { createRequire } from "node:module";

const Stripe = createRequire(`${process.env.NODE_MODULES}/x.js`)("stripe");
const url = new URL(process.env.BASE_URL);
const stripe = new Stripe("sk_test_1", {
  host: url.hostname,
  port: url.port,
  protocol: "http",
  timeout: Number(process.env.TIMEOUT) * 1000,
  maxNetworkRetries: 2,
});

let outcome = "fails";
for (let call = 0; call < 3; call++) {
  try {
    const charge = await stripe.charges.create({ amount: 100, currency: "usd", source: "tok_visa" });
    outcome = charge.amount === 100 ? "succeeds" : "is wrong";
    break;
  } catch {
    // An agent tries again.
  }
}
console.log(JSON.stringify({ outcome }));
process.exit(0);
