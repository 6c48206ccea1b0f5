/** The options of a client, checked and with their defaults. */

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
  /** Sent as a bearer token. A function is asked before every attempt. */
  token?: string | (() => string | Promise<string>);
  /** Sent with every request. */
  headers?: Readonly<Record<string, string>>;
  /** Longest time for one attempt; a waiting pop has its wait and 5 s more. Default 30 s. */
  requestTimeout?: number;
  /** Longest time for a call with all its retries; a waiting pop has its wait and 30 s more. Default 60 s. */
  deadline?: number;
  /** First backoff, which doubles; the wait is anything up to it. Default 100 ms. */
  retryDelay?: number;
  /** Longest backoff, and the longest `Retry-After` that is honoured. Default 30 s. */
  maxRetryDelay?: number;
  /** Send a request again that was answered 429. Default true. */
  retryOn429?: boolean;
  /** Wait as long as `Retry-After` says. Default true. */
  honorRetryAfter?: boolean;
  /** What to do when the broker defers a request (202): return at once, or poll until it is done. Default `return`. */
  queuedOperationBehavior?: 'return' | 'poll';
  /** Told of failures that no `onError` hears of, and of brokers that do not answer. Default `console`. */
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

/** What may stand beside the URLs. */
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

/** Without types `given` may be undefined: a variable of the environment that is not set. */
function joined(given: string | readonly string[] | QueenOptions | undefined, more: MoreOptions = {}): QueenOptions {
  if (!isObject(more)) {
    throw badUse('options must be an object: new Queen(url, { token }); several URLs are a list');
  }
  if (typeof given === 'string' || isList(given)) {
    if ('url' in more || 'urls' in more) {
      throw badUse('URLs twice: give them as the first argument or among the options');
    }
    return { ...more, urls: [given].flat() };
  }
  if (Object.keys(more).length > 0) {
    throw badUse('give URLs and options in one object, or the URLs alone as the first argument');
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
    throw badUse('give url or urls, and not both');
  }
  const list = urls ?? (url === undefined ? [] : [url]);
  if (!isList(list)) {
    throw badUse('urls is a list: give a single URL as url');
  }
  if (list.length === 0) {
    throw badUse("give the URL of a broker, such as new Queen('http://localhost:6632')");
  }
  return [...new Set(list.map(readUrl))];
}

function readUrl(text: string): string {
  if (typeof text !== 'string' || !/^https?:\/\//i.test(text)) {
    throw badUse(`the URL of a broker begins with http:// or https://: ${JSON.stringify(text)}`);
  }
  let url: URL;
  try {
    url = new URL(text);
  } catch (cause) {
    throw badUse(`this is no URL: ${JSON.stringify(text)}`, cause);
  }
  if (url.search || url.hash) {
    throw badUse(`the URL of a broker has no query and no fragment: ${JSON.stringify(text)}`);
  }
  if (url.username || url.password) {
    throw badUse('the URL of a broker has no user and no password; give a token');
  }
  return url.href.replace(/\/+$/, '');
}
