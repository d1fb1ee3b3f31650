// A CRM with a REST interface: each kind of event has a method and a path of its own. What is there already, or gone
// already, is as good as done.
import { log } from 'hookgate:plugin/log@1.0.0';

const ROUTES = {
  'contact.created': { method: 'post', path: () => '/contacts' },
  'contact.updated': { method: 'patch', path: (id) => '/contacts/' + encodeURIComponent(id) },
  'contact.deleted': { method: 'delete', path: (id) => '/contacts/' + encodeURIComponent(id) },
};

export const transformer = {
  transform(event, endpoint, attempt) {
    const route = ROUTES[event.eventType];
    if (!route) return { tag: 'skip', val: reason('no_route') };
    const contact = json(event.payload);
    if (contact?.imported === true) {
      return { tag: 'skip', val: reason('imported', 'the CRM is where it came from') };
    }
    if (typeof contact?.id !== 'string') {
      throw { code: 'event', message: 'a contact has an `id`' };
    }
    const { base = '' } = JSON.parse(endpoint.config);
    const { id, email, name } = contact;
    const body = event.eventType === 'contact.deleted' ? '' : JSON.stringify({ external_id: id, email, name });
    return {
      tag: 'send',
      val: {
        method: route.method,
        pathAndQuery: base + route.path(id),
        headers: body ? [{ name: 'content-type', value: 'application/json' }] : [],
        body: bytes(body),
        options: [],
      },
    };
  },
};

export const classifier = {
  classify(endpoint, attempt, outcome) {
    if (outcome.tag !== 'response') return later('no_answer');
    const { status, headers, body } = outcome.val;
    if (status === 409) return delivered(undefined, 'there_already');
    if (status === 404 && attempt.eventType === 'contact.deleted') return delivered(undefined, 'gone_already');
    if (status >= 200 && status < 300) return delivered(json(body)?.id);
    if (status === 429) {
      const seconds = Number(headers.find((header) => header.name === 'retry-after')?.value ?? NaN);
      const afterMs = Number.isInteger(seconds) && seconds >= 0 && seconds <= 86400 ? seconds * 1000 : undefined;
      return later('throttled', afterMs, 'endpoint');
    }
    if (status === 408 || status === 425 || status >= 500) return later('try_later');
    log('warn', 'refused: ' + (json(body)?.message ?? 'without a word'));
    return { tag: 'terminal', val: reason(status === 422 ? 'invalid' : 'http_error') };
  },
};

function delivered(reference, code) {
  const named = typeof reference === 'string' ? reference : undefined;
  return { tag: 'delivered', val: { reference: named, reason: code && reason(code) } };
}

function later(code, afterMs, scope = 'delivery') {
  return { tag: 'retryable', val: { afterMs, scope, reason: reason(code) } };
}

function reason(code, message) {
  return { code, message };
}

function json(bytes) {
  try {
    let encoded = '';
    for (const byte of bytes) encoded += '%' + byte.toString(16).padStart(2, '0');
    return JSON.parse(decodeURIComponent(encoded));
  } catch {
    return undefined;
  }
}

// UTF-8; there is no TextEncoder.
function bytes(text) {
  return Uint8Array.from(unescape(encodeURIComponent(text)), (c) => c.charCodeAt(0));
}
