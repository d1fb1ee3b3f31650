"""The SDKs of PyPI, behind the protocol of sdk.mjs."""

import datetime
import json
import sys
from urllib.parse import parse_qsl

import standardwebhooks
import stripe
import svix
from slack_sdk.signature import SignatureVerifier
from twilio.request_validator import RequestValidator


def passes(check):
    try:
        check()
        return True
    except (
        standardwebhooks.WebhookVerificationError,
        svix.webhooks.WebhookVerificationError,
        stripe.SignatureVerificationError,
    ):
        return False


def at(asked):
    return datetime.datetime.fromtimestamp(asked["now"], datetime.timezone.utc)


def standard(webhook, prefix):
    def sign(asked):
        signature = webhook(asked["secret"]).sign(asked["id"], at(asked), asked["body"])
        return {
            f"{prefix}-id": asked["id"],
            f"{prefix}-timestamp": str(asked["now"]),
            f"{prefix}-signature": signature,
        }

    def verify(asked):
        return passes(lambda: webhook(asked["secret"]).verify(asked["body"], asked["headers"]))

    return {"sign": sign, "verify": verify}


def stripe_verify(asked):
    header = asked["headers"]["stripe-signature"]
    return passes(lambda: stripe.WebhookSignature.verify_header(asked["body"], header, asked["secret"], 300))


def slack_sign(asked):
    now = str(asked["now"])
    signature = SignatureVerifier(asked["secret"]).generate_signature(timestamp=now, body=asked["body"])
    return {"x-slack-request-timestamp": now, "x-slack-signature": signature}


def slack_verify(asked):
    return SignatureVerifier(asked["secret"]).is_valid_request(asked["body"], asked["headers"])


def form(asked):
    return dict(parse_qsl(asked["body"], keep_blank_values=True))


def twilio_sign(asked):
    signature = RequestValidator(asked["secret"]).compute_signature(asked["url"], form(asked))
    return {"content-type": "application/x-www-form-urlencoded", "x-twilio-signature": signature}


def twilio_verify(asked):
    signature = asked["headers"]["x-twilio-signature"]
    return RequestValidator(asked["secret"]).validate(asked["url"], form(asked), signature)


SDKS = {
    "standardwebhooks": standard(standardwebhooks.Webhook, "webhook"),
    "svix": standard(svix.webhooks.Webhook, "svix"),
    "stripe": {"verify": stripe_verify},
    "slack-sdk": {"sign": slack_sign, "verify": slack_verify},
    "twilio": {"sign": twilio_sign, "verify": twilio_verify},
}

for line in sys.stdin:
    asked = json.loads(line)
    act = SDKS[asked["sdk"]].get(asked["verb"])
    if act is None:
        answer = {"unable": True}
    elif asked["verb"] == "sign":
        answer = {"headers": act(asked)}
    else:
        answer = {"valid": act(asked)}
    print(json.dumps(answer), flush=True)
