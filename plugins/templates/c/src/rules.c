#include "plugin.h"
#include <stdlib.h>
#include <string.h>

// Every call has an instance of its own, so that nothing has to be freed. What is given back is freed all the same, by
// the bindings: it must be an allocation of its own, such as a copy, or a whole argument.

typedef hookgate_plugin_types_reason_t reason_t;

static reason_t reason(const char *code) {
  reason_t reason = {0};
  plugin_string_dup(&reason.code, code);
  return reason;
}

static bool begins_with(plugin_string_t text, const char *with) {
  size_t len = strlen(with);
  return text.len >= len && memcmp(text.ptr, with, len) == 0;
}

// A path for `segment`, in which what is not plain is percent-encoded.
static plugin_string_t path(const char *prefix, plugin_string_t segment) {
  static const char hex[] = "0123456789ABCDEF";
  size_t len = strlen(prefix);
  plugin_string_t path = {malloc(len + 3 * segment.len + 1), len};
  if (!path.ptr) abort();
  memcpy(path.ptr, prefix, len);
  for (size_t i = 0; i < segment.len; i++) {
    uint8_t c = segment.ptr[i];
    bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    (c && strchr("-._~", c));
    if (is_plain) {
      path.ptr[path.len++] = c;
    } else {
      path.ptr[path.len++] = '%';
      path.ptr[path.len++] = hex[c >> 4];
      path.ptr[path.len++] = hex[c & 15];
    }
  }
  return path;
}

static bool holds(plugin_list_u8_t body, const char *word) {
  size_t len = strlen(word);
  for (size_t i = 0; i + len <= body.len; i++) {
    if (memcmp(body.ptr + i, word, len) == 0) return true;
  }
  return false;
}

// Every event goes to a path of its own, as it came.
bool exports_hookgate_plugin_transformer_transform(
    exports_hookgate_plugin_transformer_event_t *event, exports_hookgate_plugin_transformer_endpoint_t *endpoint,
    exports_hookgate_plugin_transformer_attempt_t *attempt, exports_hookgate_plugin_transformer_transformed_t *ret,
    exports_hookgate_plugin_transformer_fault_t *err) {
  (void)endpoint, (void)attempt, (void)err;
  memset(ret, 0, sizeof *ret);
  if (begins_with(event->event_type, "internal.")) {
    ret->tag = HOOKGATE_PLUGIN_TYPES_TRANSFORMED_SKIP;
    ret->val.skip = reason("internal");
    return true;
  }
  hookgate_plugin_types_request_t *request = &ret->val.send;
  ret->tag = HOOKGATE_PLUGIN_TYPES_TRANSFORMED_SEND;
  request->method = HOOKGATE_PLUGIN_TYPES_METHOD_POST;
  request->path_and_query.is_some = true;
  request->path_and_query.val = path("/events/", event->event_type);
  request->headers.ptr = calloc(1, sizeof *request->headers.ptr);
  if (!request->headers.ptr) abort();
  request->headers.len = 1;
  plugin_string_dup(&request->headers.ptr[0].name, "content-type");
  request->headers.ptr[0].value = event->content_type;
  request->body = event->payload;
  return true;
}

// A 2xx is a failure when its body says so.
bool exports_hookgate_plugin_classifier_classify(
    exports_hookgate_plugin_classifier_endpoint_t *endpoint, exports_hookgate_plugin_classifier_attempt_t *attempt,
    exports_hookgate_plugin_classifier_outcome_t *outcome, exports_hookgate_plugin_classifier_verdict_t *ret,
    exports_hookgate_plugin_classifier_fault_t *err) {
  (void)endpoint, (void)attempt, (void)err;
  memset(ret, 0, sizeof *ret);
  bool answered = outcome->tag == HOOKGATE_PLUGIN_TYPES_OUTCOME_RESPONSE;
  uint16_t status = answered ? outcome->val.response.status : 0;
  if (!answered || status == 408 || status == 425 || status == 429 || status >= 500) {
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_RETRYABLE;
    ret->val.retryable.reason = reason(answered ? "try_later" : "no_answer");
  } else if (status < 200 || status > 299) {
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_TERMINAL;
    ret->val.terminal = reason("http_error");
  } else if (holds(outcome->val.response.body, "\"error\"")) {
    plugin_string_t line;
    plugin_string_dup(&line, "the receiver says that it failed");
    hookgate_plugin_log_log(HOOKGATE_PLUGIN_LOG_LEVEL_WARN, &line);
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_TERMINAL;
    ret->val.terminal = reason("refused");
  } else {
    ret->tag = HOOKGATE_PLUGIN_TYPES_VERDICT_DELIVERED;
  }
  return true;
}
