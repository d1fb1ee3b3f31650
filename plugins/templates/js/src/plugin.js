import { log } from 'hookgate:plugin/log@1.0.0';

export const transformer = {
  // Every event goes to a path of its own, as it came.
  transform(event, endpoint, attempt) {
    if (event.eventType.startsWith('internal.')) {
      return { tag: 'skip', val: reason('internal') };
    }
    return {
      tag: 'send',
      val: {
        method: 'post',
        pathAndQuery: '/events/' + encodeURIComponent(event.eventType),
        headers: [{ name: 'content-type', value: event.contentType }],
        body: event.payload,
        options: [],
      },
    };
  },
};

export const classifier = {
  // A 2xx is a failure when its body says so.
  classify(endpoint, attempt, outcome) {
    if (outcome.tag !== 'response') return later('no_answer');
    const { status, body } = outcome.val;
    const said = json(body);
    if (status >= 200 && status < 300) {
      if (typeof said.error === 'string') {
        log('warn', 'the receiver says ' + said.error);
        return { tag: 'terminal', val: reason('refused') };
      }
      const reference = typeof said.id === 'string' ? said.id : undefined;
      return { tag: 'delivered', val: { reference, reason: undefined } };
    }
    if ([408, 425, 429].includes(status) || status >= 500) return later('try_later');
    return { tag: 'terminal', val: reason('http_error') };
  },
};

function later(code) {
  return { tag: 'retryable', val: { afterMs: undefined, scope: 'delivery', reason: reason(code) } };
}

function reason(code) {
  return { code, message: undefined };
}

// What a body says as JSON; nothing, if it is none.
function json(bytes) {
  try {
    return JSON.parse(text(bytes)) ?? {};
  } catch {
    return {};
  }
}

// There is no TextDecoder.
function text(bytes) {
  let encoded = '';
  for (const byte of bytes) encoded += '%' + byte.toString(16).padStart(2, '0');
  return decodeURIComponent(encoded);
}
