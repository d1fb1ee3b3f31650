import json
from urllib.parse import quote

from wit_world import exports
from wit_world.imports import log, types
from wit_world.imports.types import Reason, Verdict_Delivered, Verdict_Retryable, Verdict_Terminal


class Transformer(exports.Transformer):
    """Every event goes to a path of its own, as it came."""

    def transform(self, event, endpoint, attempt):
        if event.event_type.startswith("internal."):
            return types.Transformed_Skip(Reason("internal", None))
        return types.Transformed_Send(
            types.Request(
                method=types.Method.POST,
                path_and_query="/events/" + quote(event.event_type, safe=""),
                headers=[types.Field("content-type", event.content_type)],
                body=event.payload,
                options=[],
            )
        )


class Classifier(exports.Classifier):
    """A 2xx is a failure when its body says so."""

    def classify(self, endpoint, attempt, outcome):
        if not isinstance(outcome, types.Outcome_Response):
            return later("no_answer")
        status, said = outcome.value.status, spoken(outcome.value.body)
        if 200 <= status < 300:
            if isinstance(said.get("error"), str):
                log.log(log.Level.WARN, "the receiver says " + said["error"])
                return Verdict_Terminal(Reason("refused", None))
            reference = said.get("id")
            return Verdict_Delivered(types.Receipt(reference if isinstance(reference, str) else None, None))
        if status in (408, 425, 429) or status >= 500:
            return later("try_later")
        return Verdict_Terminal(Reason("http_error", None))


def later(code):
    return Verdict_Retryable(types.RetryHint(None, types.Scope.DELIVERY, Reason(code, None)))


def spoken(body):
    """What a body says as a JSON object; nothing, if it is none."""
    try:
        said = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
