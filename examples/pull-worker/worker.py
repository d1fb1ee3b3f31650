"""Fetches orders one by one, works on them, and says what became of each. Usage: worker.py [--drain]"""

import base64
import json
import os
import sys
import time
import urllib.request

URL = os.environ.get("HOOKGATE_URL", "http://127.0.0.1:8081")
TENANT = os.environ.get("HOOKGATE_TENANT", "acme")
QUEUE = f"{URL}/v1/tenants/{TENANT}/endpoints/orders"


class Hopeless(Exception):
    """No other try would do better. Its text is a word for the dead letter."""


def ask(verb, body):
    headers = {"authorization": f"Bearer {os.environ['HOOKGATE_TOKEN']}", "content-type": "application/json"}
    request = urllib.request.Request(f"{QUEUE}/{verb}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def work(item):
    """Does the work once for each `idempotency_key`, and gives the name under which it can be found."""
    try:
        order = json.loads(base64.b64decode(item["body_base64"]))
    except ValueError:
        raise Hopeless("not_json") from None
    if not isinstance(order, dict) or "id" not in order:
        raise Hopeless("no_order_id")
    print(f"{item['idempotency_key']}: order {order['id']}, attempt {item['attempt']}", flush=True)
    return f"order-{order['id']}"


def serve(item):
    receipt = item["receipt"]
    try:
        reference = work(item)
    except Hopeless as why:
        ask("nack", {"receipt": receipt, "terminal": True, "reason": str(why)})
    except Exception as why:  # whatever it is, it may go better next time
        print(f"{item['delivery']}: {why}", file=sys.stderr)
        ask("nack", {"receipt": receipt, "reason": "failed"})
    else:
        ask("ack", {"receipt": receipt, "reference": reference})


while True:
    items = ask("consume", {"max": 1})["items"]
    for item in items:
        serve(item)
    if not items:
        if "--drain" in sys.argv:
            break
        time.sleep(1)
