/** A single HTTP request to one broker. No retries here. */

import { after, now } from './clock.js';
import { badUse, kindOfStatus, QueenError, textOf } from './errors.js';
import type { Call } from './http.js';
import type { Options } from './options.js';
import { readRetryAfter } from './retry.js';

export interface Received {
  readonly status: number;
  /** Parsed JSON, text if it is not JSON, or undefined if empty. */
  readonly body: unknown;
}

export interface Failure {
  /** `unsure` if the broker may have executed the request. */
  readonly error: QueenError;
  /** The broker should be avoided for a while, but other brokers may work. */
  readonly down: boolean;
  /** The deadline of the call ended it, not the time limit of an attempt. */
  readonly cut: boolean;
}

/** Throws only what ends the call regardless of retry rules. */
export async function attempt(call: Call, broker: string, options: Options): Promise<Received | Failure> {
  const usual = call.timeout ?? options.requestTimeout;
  const left = call.until - now();
  const patience = Math.max(0, Math.min(usual, left));
  const controller = new AbortController();
  const stop = () => controller.abort();
  const timer = after(patience, stop);
  call.signal?.addEventListener('abort', stop, { once: true });
  let what: string | undefined;
  try {
    const token = typeof options.token === 'function' ? await asked(options.token, controller.signal) : options.token;
    const path = typeof call.path === 'string' ? call.path : call.path({ broker, remaining: call.until - now() });
    what = `${call.method} ${path.replace(/\?.*/, '')}`;
    const { method, body = null } = call;
    const headers = headersOf(options.headers, token, body !== null);
    // Browsers would queue a pop behind an identical one, to share its cached response.
    const cache = 'no-store';
    const response = await fetch(broker + path, { method, body, headers, cache, signal: controller.signal });
    const text = await response.text();
    return response.ok ? read(what, response, text) : refusal(what, response, text);
  } catch (cause) {
    call.signal?.throwIfAborted();
    if (cause instanceof QueenError && cause.kind === 'bad_use') {
      throw cause;
    }
    const late = controller.signal.aborted;
    // A timeout cut short by the caller's deadline says nothing about the broker.
    const cut = late && left < usual;
    const time = `within ${Math.round(patience)} ms`;
    if (what === undefined) {
      const error = late
        ? new QueenError('timeout', `no token ${time}`)
        : new QueenError('network', `cannot get a token: ${textOf(cause)}`, { cause });
      return { error, down: false, cut };
    }
    const error = late
      ? new QueenError('timeout', `${what}: no response from ${broker} ${time}`, { unsure: true })
      : new QueenError('network', `${what}: cannot reach ${broker}: ${reason(cause)}`, { cause, unsure: !isUnsent(cause) });
    return { error, down: !cut, cut };
  } finally {
    clearTimeout(timer);
    call.signal?.removeEventListener('abort', stop);
  }
}

/** The token, within a time limit. */
function asked(token: () => string | Promise<string>, signal: AbortSignal): Promise<string> {
  return new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
    // Turns a synchronous exception into a rejection.
    Promise.resolve().then(token).then(resolve, reject);
  });
}

function headersOf(given: Options['headers'], token: string | undefined, hasBody: boolean): Headers {
  const headers = new Headers(given);
  try {
    if (token !== undefined) {
      headers.set('Authorization', `Bearer ${token}`);
    }
  } catch {
    // Without the cause, which contains the token.
    throw badUse('the token contains characters that are not allowed in a header');
  }
  if (hasBody) {
    headers.set('Content-Type', 'application/json');
  }
  return headers;
}

function read(what: string, response: Response, text: string): Received | Failure {
  const { status } = response;
  if (text === '') {
    return { status, body: undefined };
  }
  if (!response.headers.get('Content-Type')?.includes('json')) {
    return { status, body: text };
  }
  try {
    return { status, body: JSON.parse(text) };
  } catch (cause) {
    const error = new QueenError('decode', `${what}: the response is not JSON`, { status, cause, unsure: true });
    return { error, down: false, cut: false };
  }
}

function refusal(what: string, response: Response, text: string): Failure {
  const { status } = response;
  let said: { error?: unknown; code?: unknown } | null = null;
  try {
    said = JSON.parse(text);
  } catch {
    // A proxy in between responded, in its own format.
  }
  const words = typeof said?.error === 'string' ? said.error : text.slice(0, 200) || response.statusText;
  const error = new QueenError(kindOfStatus(status), `${what}: ${status} ${words}`.trim(), {
    status,
    code: typeof said?.code === 'string' ? said.code : undefined,
    retryAfter: readRetryAfter(response.headers.get('Retry-After'), Date.now()),
    // A broker also returns 503 if its database went away during a commit.
    unsure: status >= 500,
  });
  return { error, down: status === 503, cut: false };
}

interface Cause {
  readonly message?: string;
  readonly code?: string;
  readonly syscall?: string;
  readonly errors?: readonly Cause[];
}

/** `fetch failed` is not informative; its cause is. */
function reason(thrown: unknown): string {
  const error = thrown as { message?: string; cause?: Cause };
  return error.cause?.message || error.cause?.code || error.message || String(thrown);
}

/** Whether no connection was established, so that nothing was sent. Node reports that, browsers do not. */
function isUnsent(thrown: unknown): boolean {
  const { cause } = thrown as { cause?: Cause };
  const unsent = ({ code, syscall }: Cause) => {
    return syscall === 'connect' || syscall === 'getaddrinfo' || code === 'UND_ERR_CONNECT_TIMEOUT';
  };
  // One error per address, if a host has several.
  return cause !== undefined && (unsent(cause) || (cause.errors?.every(unsent) ?? false));
}
