// The SDKs of npm, behind one protocol: a JSON object a line in, one a line out.
// {sdk, verb: "sign", secret, id, now, url, body} -> {headers}
// {sdk, verb: "verify", secret, url, body, headers} -> {valid}

import { createInterface } from "node:readline";
import * as octokit from "@octokit/webhooks-methods";
import { verifySlackRequest } from "@slack/bolt/dist/receivers/verify-request.js";
import { Webhook as StandardWebhook } from "standardwebhooks";
import Stripe from "stripe";
import { Webhook as SvixWebhook } from "svix";
import twilio from "twilio";

const refused = (check) => {
  try {
    check();
    return true;
  } catch {
    return false;
  }
};
const form = (body) => Object.fromEntries(new URLSearchParams(body));
const stripe = new Stripe("sk_test_nothing").webhooks;

const sdks = {
  standardwebhooks: {
    sign: ({ secret, id, now, body }) => ({
      "webhook-id": id,
      "webhook-timestamp": String(now),
      "webhook-signature": new StandardWebhook(secret).sign(id, new Date(now * 1000), body),
    }),
    verify: ({ secret, body, headers }) => refused(() => new StandardWebhook(secret).verify(body, headers)),
  },
  svix: {
    sign: ({ secret, id, now, body }) => ({
      "svix-id": id,
      "svix-timestamp": String(now),
      "svix-signature": new SvixWebhook(secret).sign(id, new Date(now * 1000), body),
    }),
    verify: ({ secret, body, headers }) => refused(() => new SvixWebhook(secret).verify(body, headers)),
  },
  stripe: {
    sign: ({ secret, now, body }) => ({
      "stripe-signature": stripe.generateTestHeaderString({ payload: body, secret, timestamp: now }),
    }),
    verify: ({ secret, body, headers }) =>
      refused(() => stripe.constructEvent(body, headers["stripe-signature"], secret)),
  },
  "@octokit/webhooks-methods": {
    sign: async ({ secret, body }) => ({ "x-hub-signature-256": await octokit.sign(secret, body) }),
    verify: ({ secret, body, headers }) => octokit.verify(secret, body, headers["x-hub-signature-256"]),
  },
  "@slack/bolt": {
    verify: ({ secret, body, headers }) => refused(() => verifySlackRequest({ signingSecret: secret, body, headers })),
  },
  twilio: {
    sign: ({ secret, url, body }) => ({
      "content-type": "application/x-www-form-urlencoded",
      "x-twilio-signature": twilio.getExpectedTwilioSignature(secret, url, form(body)),
    }),
    verify: ({ secret, url, body, headers }) =>
      twilio.validateRequest(secret, headers["x-twilio-signature"], url, form(body)),
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  const act = sdks[asked.sdk][asked.verb];
  const answer = !act
    ? { unable: true }
    : asked.verb === "sign"
      ? { headers: await act(asked) }
      : { valid: await act(asked) };
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
