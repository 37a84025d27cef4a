// A service that creates a charge, for Restate's ingress: restate.mjs PORT
import * as restate from "@restatedev/restate-sdk";

// The SDK uses it, and Node has it from version 22 on.
Promise.withResolvers ??= () => {
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

const charge = {
  id: "ch_1",
  object: "charge",
  amount: 100,
  currency: "eur",
  status: "succeeded",
};

const charges = restate.service({
  name: "charges",
  handlers: { create: async () => charge },
});

restate.serve({ services: [charges], port: Number(process.argv[2]) });
