// HTTP client for the broker that served this page. It knows no routes and keeps no data; the login is in `session.svelte.ts`.

import type { components } from './types'

/** A type of the OpenAPI document by its name: `Schema<'Status'>`. */
export type Schema<Name extends keyof components['schemas']> = components['schemas'][Name]

/** Query parameters; `undefined`, `null` and `''` are omitted. */
export type Query = Record<string, string | number | boolean | null | undefined>

/** An error with the broker's own message. */
export class ApiError extends Error {
  /** 0 if there was no response. */
  readonly status: number
  readonly code: string
  /** Delay in seconds before another try, if the broker suggests one. */
  readonly retryAfterSeconds: number | undefined

  constructor(status: number, code: string, message: string, retryAfterSeconds?: number) {
    super(message)
    this.name = 'ApiError'
    this.status = status
    this.code = code
    this.retryAfterSeconds = retryAfterSeconds
  }
}

/** Longer than any response of the admin plane takes, so that a page never waits forever. */
const TIMEOUT_MS = 30_000

/** How often to resend a call that was answered 429; the broker did not execute it. */
const RETRIES = 3

let credential: string | null = null
let unauthorized: (error: ApiError) => void = () => {}

/** Only for `session.svelte.ts`. */
export function present(token: string | null): void {
  credential = token
}

/** Only for `session.svelte.ts`: called when the broker does not accept the credential. */
export function onUnauthorized(then: (error: ApiError) => void): void {
  unauthorized = then
}

/** Percent-encodes interpolated values: path`/api/v1/resources/queues/${name}`. */
export function path(texts: TemplateStringsArray, ...values: (string | number)[]): string {
  return texts.reduce((all, text, index) => all + segment(String(values[index - 1])) + text)
}

/** Browsers resolve `.` and `..` as path steps even when percent-encoded, so the request would reach another route. */
function segment(name: string): string {
  if (name === '.' || name === '..') {
    throw new ApiError(0, 'bad_request', `"${name}" cannot be used in a URL path; use SQL for an object of this name`)
  }
  return encodeURIComponent(name)
}

export function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return request('GET', path, query, undefined, signal)
}

export function post<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  return request('POST', path, undefined, body ?? {}, signal)
}

export function del<T>(path: string, query?: Query, body?: unknown): Promise<T> {
  return request('DELETE', path, query, body)
}

/** `path?a=1&b=2`. */
export function withQuery(path: string, query: Query = {}): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== '') search.set(name, String(value))
  }
  const text = search.toString()
  return text === '' ? path : `${path}?${text}`
}

async function request<T>(
  method: string,
  path: string,
  query?: Query,
  body?: unknown,
  signal?: AbortSignal,
): Promise<T> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS)
  const end = Date.now() + TIMEOUT_MS
  for (let retries = 0; ; retries += 1) {
    try {
      return await attempt<T>(timeout, method, path, query, body, signal)
    } catch (error) {
      const waitMs = error instanceof ApiError && error.status === 429 ? (error.retryAfterSeconds ?? 1) * 1000 : undefined
      if (waitMs === undefined || retries === RETRIES || Date.now() + waitMs >= end) throw error
      await pause(waitMs, signal)
    }
  }
}

/** Aborted with the reason of the signal. */
function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const aborted = () => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', aborted)
      resolve()
    }, ms)
    if (signal?.aborted) aborted()
    else signal?.addEventListener('abort', aborted, { once: true })
  })
}

async function attempt<T>(
  timeout: AbortSignal,
  method: string,
  path: string,
  query?: Query,
  body?: unknown,
  signal?: AbortSignal,
): Promise<T> {
  const used = credential
  const headers: Record<string, string> = { accept: 'application/json' }
  if (used !== null) headers.authorization = `Bearer ${used}`
  if (body !== undefined) headers['content-type'] = 'application/json'
  let response: Response
  let text: string
  try {
    response = await fetch(withQuery(path, query), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
      // The credential is a header; cookies of other applications on this host are not sent.
      credentials: 'omit',
      cache: 'no-store',
    })
    text = await response.text()
  } catch (cause) {
    if (signal?.aborted) throw cause
    throw timeout.aborted
      ? new ApiError(0, 'timeout', `no response within ${TIMEOUT_MS / 1000} seconds`)
      : new ApiError(0, 'unreachable', 'the broker cannot be reached')
  }
  if (response.ok) return (text === '' ? undefined : parsed(text)) as T
  const error = failure(response, text)
  // A 401 for a credential that was replaced meanwhile says nothing about the new one.
  if (error.status === 401 && used === credential) unauthorized(error)
  throw error
}

function failure(response: Response, text: string): ApiError {
  const body = parsed(text) as { error?: unknown; code?: unknown } | string | null
  const after = Number(response.headers.get('retry-after') ?? Number.NaN)
  const retry = Number.isFinite(after) ? after : undefined
  if (typeof body === 'object' && body !== null && typeof body.error === 'string') {
    return new ApiError(response.status, String(body.code ?? 'error'), body.error, retry)
  }
  // From a proxy in between, and not from the broker.
  const words = text.trim().startsWith('<') ? '' : text.trim().slice(0, 200)
  return new ApiError(response.status, 'error', words || `${response.status} ${response.statusText}`.trim(), retry)
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}
