// A warehouse that answers 400 to everything it does not take. In its body it tells the one 400 that passes, a locked
// article (`code=E1042`), from those that do not; `wait=SECONDS` may stand beside it. What is sent needs no change.
#include "classify_only.h"
#include <string.h>

// Every call has an instance of its own, so that nothing has to be freed. What is given back is freed all the same, by
// the bindings: it must be an allocation of its own.

typedef classify_only_list_u8_t bytes_t;

enum { WAIT_MAX_S = 3600 };

static hookgate_plugin_types_reason_t reason(const char *code) {
  hookgate_plugin_types_reason_t reason = {0};
  classify_only_string_dup(&reason.code, code);
  return reason;
}

// What follows `key` at the beginning of a line.
static bytes_t field(bytes_t body, const char *key) {
  size_t len = strlen(key);
  for (size_t line = 0; line < body.len;) {
    size_t end = line;
    while (end < body.len && body.ptr[end] != '\n') end++;
    if (end - line >= len && memcmp(body.ptr + line, key, len) == 0) {
      size_t last = end > line + len && body.ptr[end - 1] == '\r' ? end - 1 : end;
      return (bytes_t){body.ptr + line + len, last - line - len};
    }
    line = end + 1;
  }
  return (bytes_t){0};
}

static bool is(bytes_t text, const char *word) {
  return text.len == strlen(word) && memcmp(text.ptr, word, text.len) == 0;
}

// A whole number of seconds up to WAIT_MAX_S, or nothing.
static classify_only_option_u32_t wait_ms(bytes_t text) {
  uint32_t seconds = 0;
  for (size_t i = 0; i < text.len; i++) {
    if (text.ptr[i] < '0' || text.ptr[i] > '9' || seconds > WAIT_MAX_S) return (classify_only_option_u32_t){0};
    seconds = seconds * 10 + (text.ptr[i] - '0');
  }
  bool is_good = text.len > 0 && seconds <= WAIT_MAX_S;
  return (classify_only_option_u32_t){is_good, is_good ? seconds * 1000 : 0};
}

bool exports_hookgate_plugin_classifier_classify(
    exports_hookgate_plugin_classifier_endpoint_t *endpoint, exports_hookgate_plugin_classifier_attempt_t *attempt,
    exports_hookgate_plugin_classifier_outcome_t *outcome, exports_hookgate_plugin_classifier_verdict_t *ret,
    exports_hookgate_plugin_classifier_fault_t *err) {
  (void)endpoint, (void)attempt, (void)err;
  memset(ret, 0, sizeof *ret);
  hookgate_plugin_types_retry_hint_t *later = &ret->val.retryable;
  if (outcome->tag != HOOKGATE_PLUGIN_TYPES_OUTCOME_RESPONSE) {
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_RETRYABLE;
    later->reason = reason("no_answer");
    return true;
  }
  hookgate_plugin_types_response_t *response = &outcome->val.response;
  uint16_t status = response->status;
  if (status >= 200 && status <= 299) {
    bytes_t receipt = field(response->body, "receipt=");
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_DELIVERED;
    ret->val.delivered.reference.is_some = receipt.len > 0;
    if (receipt.len > 0) {
      classify_only_string_dup_n(&ret->val.delivered.reference.val, (const char *)receipt.ptr, receipt.len);
    }
  } else if (status == 400 && is(field(response->body, "code="), "E1042")) {
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_RETRYABLE;
    later->after_ms = wait_ms(field(response->body, "wait="));
    later->reason = reason("locked");
  } else if (status == 408 || status == 425 || status == 429 || status >= 500) {
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_RETRYABLE;
    later->reason = reason("try_later");
  } else {
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_TERMINAL;
    ret->val.terminal = reason(status == 400 ? "not_taken" : "http_error");
  }
  return true;
}
