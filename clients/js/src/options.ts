/** Options of a client: validation and defaults. */

import { checkChoice, checkNoMore, checkSpan, checkTime } from './checks.js';
import { badUse } from './errors.js';
import type { Logger } from './log.js';
import { checkLogger } from './log.js';
import type { RetryRules } from './retry.js';

/** All times are milliseconds. */
export interface QueenOptions {
  /** Base URL of the broker. */
  url?: string;
  /** Base URLs of several brokers on one database. */
  urls?: readonly string[];
  /** Sent as a bearer token. A function is called before every attempt. */
  token?: string | (() => string | Promise<string>);
  /** Sent with every request. */
  headers?: Readonly<Record<string, string>>;
  /** Time limit of an attempt; for a waiting pop, its wait plus 5 s. Default 30 s. */
  requestTimeout?: number;
  /** Time limit of a call, including retries; for a waiting pop, its wait plus 30 s. Default 60 s. */
  deadline?: number;
  /** Maximum of the first backoff; it doubles each time. Default 100 ms. */
  retryDelay?: number;
  /** Maximum backoff, and the longest `Retry-After` that is honored. Default 30 s. */
  maxRetryDelay?: number;
  /** Retry requests that were answered 429. Default true. */
  retryOn429?: boolean;
  /** Honor `Retry-After`. Default true. */
  honorRetryAfter?: boolean;
  /** What to do when the broker defers a request (202): return at once, or poll until it completes. Default `return`. */
  queuedOperationBehavior?: 'return' | 'poll';
  /** Receives failures that no `onError` handles, and outages of brokers. Default `console`. */
  logger?: Logger;
}

export interface Options extends RetryRules {
  readonly urls: readonly string[];
  readonly token: QueenOptions['token'];
  readonly headers: Readonly<Record<string, string>>;
  readonly requestTimeout: number;
  readonly deadline: number;
  readonly poll: boolean;
  readonly logger: Logger;
}

/** The options next to the URLs. */
export type MoreOptions = Omit<QueenOptions, 'url' | 'urls'>;

export function readOptions(given: string | readonly string[] | QueenOptions, more?: MoreOptions): Options {
  const options = joined(given, more);
  const { url, urls, token, headers, requestTimeout, deadline, retryDelay, maxRetryDelay, ...others } = options;
  const { retryOn429, honorRetryAfter, queuedOperationBehavior, logger, ...rest } = others;
  checkNoMore(rest);
  checkSpan('requestTimeout', requestTimeout);
  checkSpan('deadline', deadline);
  checkTime('retryDelay', retryDelay);
  checkTime('maxRetryDelay', maxRetryDelay);
  checkChoice('queuedOperationBehavior', queuedOperationBehavior, ['return', 'poll']);
  try {
    new Headers(headers);
  } catch (cause) {
    throw badUse('headers must be names and values of HTTP headers', cause);
  }
  return {
    urls: readUrls(url, urls),
    token,
    headers: { ...headers },
    requestTimeout: requestTimeout ?? 30_000,
    deadline: deadline ?? 60_000,
    retryDelay: retryDelay ?? 100,
    maxRetryDelay: maxRetryDelay ?? 30_000,
    retryOn429: retryOn429 ?? true,
    honorRetryAfter: honorRetryAfter ?? true,
    poll: queuedOperationBehavior === 'poll',
    logger: checkLogger(logger),
  };
}

/** Without types, `given` may be undefined: an environment variable that is not set. */
function joined(given: string | readonly string[] | QueenOptions | undefined, more: MoreOptions = {}): QueenOptions {
  if (!isObject(more)) {
    throw badUse('options must be an object: new Queen(url, { token }); pass several URLs as a list');
  }
  if (typeof given === 'string' || isList(given)) {
    if ('url' in more || 'urls' in more) {
      throw badUse('URLs are set twice: pass them as the first argument or in the options');
    }
    return { ...more, urls: [given].flat() };
  }
  if (Object.keys(more).length > 0) {
    throw badUse('pass URLs and options in one object, or the URLs as the first argument');
  }
  return isObject(given) ? given : {};
}

function isObject(given: unknown): given is object {
  return typeof given === 'object' && given !== null && !isList(given);
}

function isList(given: unknown): given is readonly string[] {
  return Array.isArray(given);
}

function readUrls(url: QueenOptions['url'], urls: QueenOptions['urls']): string[] {
  if (url !== undefined && urls !== undefined) {
    throw badUse('set either url or urls, not both');
  }
  const list = urls ?? (url === undefined ? [] : [url]);
  if (!isList(list)) {
    throw badUse('urls must be a list; for a single URL use url');
  }
  if (list.length === 0) {
    throw badUse("a broker URL is required, such as new Queen('http://localhost:6632')");
  }
  return [...new Set(list.map(readUrl))];
}

function readUrl(text: string): string {
  if (typeof text !== 'string' || !/^https?:\/\//i.test(text)) {
    throw badUse(`a broker URL must start with http:// or https://: ${JSON.stringify(text)}`);
  }
  let url: URL;
  try {
    url = new URL(text);
  } catch (cause) {
    throw badUse(`not a URL: ${JSON.stringify(text)}`, cause);
  }
  if (url.search || url.hash) {
    throw badUse(`a broker URL must not have a query or fragment: ${JSON.stringify(text)}`);
  }
  if (url.username || url.password) {
    throw badUse('a broker URL must not contain user and password; use a token');
  }
  return url.href.replace(/\/+$/, '');
}
