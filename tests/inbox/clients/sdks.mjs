// The Node SDKs of vendors: each checks what Onceward signs, and signs what Onceward checks.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import https from "node:https";
import path from "node:path";
import readline from "node:readline";
import { Readable } from "node:stream";
import { pathToFileURL } from "node:url";

const modules = process.env.MODULES;
const require = createRequire(path.join(modules, "x.js"));
const load = (file) => import(pathToFileURL(path.join(modules, file)));

const URL = "https://example.com/hooks/in?a=1&b=2";
const BODY = '{"id":"evt_1","type":"é.created","event_id":"e1","event_type":"x","data":{}}';
const FORM = "To=%2B15005550006&Body=caf%C3%A9+%26+tea&Media=b&Media=a";
const FIELDS = { To: "+15005550006", Body: "café & tea", Media: ["b", "a"] };
const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PLAIN = "8f742231b10e8888abcd99yyyzzz85a5";

const program = spawn(process.env.WEBHOOKS, [], { stdio: ["pipe", "pipe", "inherit"] });
const lines = readline.createInterface({ input: program.stdout })[Symbol.asyncIterator]();

async function ask(question) {
  program.stdin.write(JSON.stringify({ now_ms: Date.now(), url: URL, ...question }) + "\n");
  const answer = JSON.parse((await lines.next()).value);
  if (answer.error) throw new Error(answer.error);
  return answer;
}

/** Whether an SDK accepts. Some return false, some throw. */
async function holds(check) {
  try {
    return (await check()) !== false;
  } catch (refused) {
    return `${refused.name}: ${refused.message}`;
  }
}

function row(sdk, what, result, expected = true) {
  const ok = (result === true) === expected;
  console.log(JSON.stringify({ sdk, what: ok ? what : `${what}: ${result}`, holds: ok }));
}

/** Onceward signs, the SDK checks. */
async function theirs(sdk, preset, check, more = {}) {
  const signed = await ask({ sign: preset, id: "msg_1", body: BODY, ...more });
  row(sdk, "accepts what Onceward signs", await holds(() => check(signed, signed.body)));
  row(sdk, "refuses it with another body", await holds(() => check(signed, signed.body + " ")), false);
}

/** The SDK has signed, Onceward checks. */
async function ours(sdk, preset, headers, more = {}) {
  const question = { judge: preset, secret: PLAIN, headers, body: BODY, ...more };
  const answer = await ask(question);
  row(sdk, "signs what Onceward accepts", answer.events ? true : JSON.stringify(answer));
  const other = await ask({ ...question, body: question.body + "x" });
  row(sdk, "and refuses with another body", Boolean(other.rejected) || JSON.stringify(other));
}

const seconds = String(Math.floor(Date.now() / 1000));
const secret = PLAIN;

const stripe = require("stripe")("none");
await theirs("stripe", "stripe", (signed, body) =>
  Boolean(stripe.webhooks.constructEvent(body, signed.headers["stripe-signature"], PLAIN)), { secret });
await ours("stripe", "stripe", {
  "Stripe-Signature": stripe.webhooks.generateTestHeaderString({ payload: BODY, secret: PLAIN }),
});

for (const [sdk, preset, prefix] of [["svix", "svix", "svix"], ["standardwebhooks", "standard-webhooks", "webhook"]]) {
  const hook = new (require(sdk).Webhook)(SECRET);
  await theirs(sdk, preset, (signed, body) => void hook.verify(body, signed.headers), { secret: SECRET });
  const signature = hook.sign("msg_2", new Date(Number(seconds) * 1000), BODY);
  const headers = { [`${prefix}-id`]: "msg_2", [`${prefix}-timestamp`]: seconds, [`${prefix}-signature`]: signature };
  await ours(sdk, preset, headers, { secret: SECRET });
}

const { OpenAI } = require("openai");
const openai = new OpenAI({ apiKey: "none", webhookSecret: SECRET });
await theirs("openai", "openai", async (signed, body) => {
  await openai.webhooks.verifySignature(body, signed.headers);
}, { secret: SECRET });

const octokit = await load("@octokit/webhooks-methods/dist-node/index.js");
await theirs("@octokit/webhooks-methods", "github", (signed, body) =>
  octokit.verify(PLAIN, body, signed.headers["x-hub-signature-256"]), { secret });
await ours("@octokit/webhooks-methods", "github", { "X-Hub-Signature-256": await octokit.sign(PLAIN, BODY) });

const bolt = require("@slack/bolt/dist/receivers/verify-request.js");
await theirs("@slack/bolt", "slack", (signed, body) => {
  bolt.verifySlackRequest({
    signingSecret: PLAIN,
    body,
    headers: {
      "x-slack-signature": signed.headers["x-slack-signature"],
      "x-slack-request-timestamp": Number(signed.headers["x-slack-request-timestamp"]),
    },
  });
}, { secret });

const twilio = require("twilio");
const form = { "content-type": "application/x-www-form-urlencoded" };
const signedForm = await ask({ sign: "twilio", secret, headers: form, body: FORM });
const mac = signedForm.headers["x-twilio-signature"];
row("twilio", "accepts what Onceward signs", await holds(() => twilio.validateRequest(PLAIN, mac, URL, FIELDS)));
row("twilio", "refuses it with another form",
  await holds(() => twilio.validateRequest(PLAIN, mac, URL, { ...FIELDS, To: "+1" })), false);
const json = { "content-type": "application/json" };
await theirs("twilio, JSON", "twilio", (signed, body) =>
  twilio.validateRequestWithBody(PLAIN, signed.headers["x-twilio-signature"], signed.url, body),
  { secret, headers: json });
await ours("twilio", "twilio", { ...form, "X-Twilio-Signature": twilio.getExpectedTwilioSignature(PLAIN, URL, FIELDS) },
  { body: FORM });
const hashed = `${URL}&bodySHA256=${twilio.getExpectedBodyHash(BODY)}`;
await ours("twilio, JSON", "twilio",
  { ...json, "X-Twilio-Signature": twilio.getExpectedTwilioSignature(PLAIN, hashed, {}) }, { url: hashed });

const { EventWebhook } = require("@sendgrid/eventwebhook");
const sendgrid = new EventWebhook();
const email = "x-twilio-email-event-webhook";
await theirs("@sendgrid/eventwebhook", "sendgrid", (signed, body) =>
  sendgrid.verifySignature(sendgrid.convertPublicKeyToECDSA(signed.made.key), body,
    signed.headers[`${email}-signature`], signed.headers[`${email}-timestamp`]), { body: '[{"sg_event_id":"a"}]\r\n' });

const { WebhooksHelper } = require("square");
await theirs("square", "square", (signed, body) => WebhooksHelper.verifySignature({
  requestBody: body,
  signatureHeader: signed.headers["x-square-hmacsha256-signature"],
  signatureKey: PLAIN,
  notificationUrl: URL,
}), { secret });

const { Paddle } = require("@paddle/paddle-node-sdk");
const paddle = new Paddle("none");
await theirs("@paddle/paddle-node-sdk", "paddle", (signed, body) =>
  paddle.webhooks.isSignatureValid(body, PLAIN, signed.headers["paddle-signature"]), { secret });

require("@shopify/shopify-api/adapters/node");
const { shopifyApi, ApiVersion } = require("@shopify/shopify-api");
const shopify = shopifyApi({
  apiKey: "none", apiSecretKey: PLAIN, apiVersion: Object.values(ApiVersion)[0], hostName: "example.com",
  isEmbeddedApp: false,
});
const shop = {
  "x-shopify-topic": "orders/create", "x-shopify-api-version": "2026-01", "x-shopify-shop-domain": "a.myshopify.com",
  "x-shopify-webhook-id": "w1", "x-shopify-event-id": "e1",
};
await theirs("@shopify/shopify-api", "shopify", async (signed, body) => {
  const rawRequest = Object.assign(Readable.from([body]), { headers: signed.headers, method: "POST", url: "/" });
  const found = await shopify.webhooks.validate({ rawBody: body, rawRequest, rawResponse: {} });
  return found.valid;
}, { secret, headers: shop });

const { LinearWebhookClient } = await load("@linear/sdk/dist/webhooks/index.mjs");
const linear = new LinearWebhookClient(PLAIN);
await theirs("@linear/sdk", "linear", (signed, body) =>
  linear.verify(Buffer.from(body), signed.headers["linear-signature"], JSON.parse(body).webhookTimestamp),
  { secret, body: JSON.stringify({ webhookTimestamp: Date.now(), type: "Issue" }) });

const discord = require("discord-interactions");
await theirs("discord-interactions", "discord", (signed, body) =>
  discord.verifyKey(body, signed.headers["x-signature-ed25519"], signed.headers["x-signature-timestamp"],
    signed.made.key));

// It fetches the certificate: here it gets that of the sample.
const Sns = require("sns-validator");
await theirs("sns-validator", "sns", (signed, body) => {
  https.get = (_url, answer) => {
    answer(Object.assign(Readable.from([Buffer.from(signed.made.certificate)]), { statusCode: 200 }));
    return { on() {} };
  };
  const message = JSON.parse(body);
  if (body !== signed.body) message.Message += "x";
  return new Promise((accept, refuse) =>
    new Sns().validate(message, (error) => (error ? refuse(error) : accept(true))));
});

const { CloudEvent, HTTP } = require("cloudevents");
const event = new CloudEvent({ id: "1", source: "/shop", type: "order.created", data: { total: 1 } });
const token = { authorization: `Bearer ${PLAIN}` };
for (const [form, message] of [["binary", HTTP.binary(event)], ["structured", HTTP.structured(event)]]) {
  const answer = await ask({
    judge: "cloudevents", secret: PLAIN, headers: { ...message.headers, ...token }, body: String(message.body),
  });
  const found = answer.events?.[0] === "/shop 1" && answer.kinds[0] === "order.created";
  row("cloudevents", `${form} events are read`, found || JSON.stringify(answer));
}

program.stdin.end();
process.exit(0);
