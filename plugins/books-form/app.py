"""Bookkeeping that takes forms and answers with a line of text: `OK 4711` or `ERR code words`, always under 200."""

import json
from urllib.parse import urlencode

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import log, types
from wit_world.imports.types import Reason, Verdict_Delivered, Verdict_Retryable, Verdict_Terminal

# The same may be sent again: the other side is busy, or closes the day.
PASSING = {"BUSY": None, "DAYEND": 15 * 60 * 1000}


class Transformer(exports.Transformer):
    def transform(self, event, endpoint, attempt):
        config = json.loads(endpoint.config)
        try:
            invoice = json.loads(event.payload)
            lines = invoice["lines"]
            fields = [
                ("client", config["client"]),
                ("number", invoice["number"]),
                ("date", invoice["date"].replace("-", "")),
                ("key", attempt.idempotency_key),
            ]
            for n, line in enumerate(lines, 1):
                fields += [(f"text{n}", line["text"]), (f"cents{n}", cents(line["amount"]))]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Err(types.Fault("event", f"{type(error).__name__}: {error}"))
        if not lines:
            return types.Transformed_Skip(Reason("empty", "an invoice without lines is not booked"))
        return types.Transformed_Send(
            types.Request(
                method=types.Method.POST,
                path_and_query=None,
                headers=[types.Field("content-type", "application/x-www-form-urlencoded; charset=latin-1")],
                body=urlencode(fields, encoding="latin-1", errors="replace").encode("ascii"),
                options=[],
            )
        )


class Classifier(exports.Classifier):
    def classify(self, endpoint, attempt, outcome):
        if not isinstance(outcome, types.Outcome_Response):
            return later("no_answer")
        status, body = outcome.value.status, outcome.value.body
        if status >= 500:
            return later("try_later")
        # Old systems write what they always wrote.
        word, _, rest = body.decode("latin-1").strip().partition(" ")
        if status == 200 and word == "OK":
            return Verdict_Delivered(types.Receipt(rest or None, None))
        code, _, words = rest.partition(" ")
        if status == 200 and word == "ERR" and code in PASSING:
            return later(code.lower(), PASSING[code], types.Scope.ENDPOINT)
        if status == 200 and word == "ERR" and code == "DUPLICATE":
            return Verdict_Delivered(types.Receipt(words or None, Reason("booked_already", None)))
        log.log(log.Level.WARN, f"{status}: {rest or word}")
        return Verdict_Terminal(Reason("not_booked", rest or None))


def later(code, after_ms=None, scope=types.Scope.DELIVERY):
    return Verdict_Retryable(types.RetryHint(after_ms, scope, Reason(code, None)))


def cents(amount):
    """`"12.50"` is 1250; an amount is a text, so that nothing is rounded."""
    whole, _, rest = amount.partition(".")
    if len(rest) > 2:
        raise ValueError(f"`{amount}` has more than two decimals")
    return int(whole + rest.ljust(2, "0"))
