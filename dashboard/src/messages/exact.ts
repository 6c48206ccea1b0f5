// Requests whose JSON must arrive exactly as written (see json.ts). `api/client.ts` parses and rewrites JSON, which changes
// large numbers; these two functions do not.

import { ApiError, get, post } from '../api/client'
import { session } from '../session.svelte'
import { member } from './json'

/** Where `session.svelte.ts` keeps the credential. */
const STORED = 'queen.credential'

/** The response, and the text of one of its members. */
export async function getExact<T>(path: string, key: string, signal: AbortSignal): Promise<{ answer: T; text: string }> {
  const headers = credential()
  if (headers === null) {
    const answer = await get<T>(path, undefined, signal)
    return { answer, text: JSON.stringify((answer as Record<string, unknown>)[key]) ?? 'null' }
  }
  const text = await ask(path, { headers, signal })
  return { answer: JSON.parse(text) as T, text: member(text, key) ?? 'null' }
}

/** `body` is JSON text. */
export async function postExact<T>(path: string, body: string): Promise<T> {
  const headers = credential()
  if (headers === null) return post<T>(path, JSON.parse(body))
  const sent = { ...headers, 'content-type': 'application/json' }
  return JSON.parse(await ask(path, { method: 'POST', headers: sent, body })) as T
}

async function ask(path: string, init: RequestInit): Promise<string> {
  let response: Response
  let text: string
  try {
    response = await fetch(path, { ...init, credentials: 'omit', cache: 'no-store' })
    text = await response.text()
  } catch (cause) {
    if (init.signal?.aborted) throw cause
    throw new ApiError(0, 'unreachable', 'the broker cannot be reached')
  }
  if (response.ok) return text
  throw failure(response, text)
}

function failure(response: Response, text: string): ApiError {
  try {
    const { error, code } = JSON.parse(text) as { error: string; code: string }
    return new ApiError(response.status, code, error)
  } catch {
    return new ApiError(response.status, 'error', `${response.status} ${response.statusText}`.trim())
  }
}

/** `null` if the credential is not kept in storage: then the client, which has it, sends the request, and the text is approximate. */
function credential(): Record<string, string> | null {
  if (session.who?.authentication !== true) return {}
  try {
    const kept = sessionStorage.getItem(STORED) ?? localStorage.getItem(STORED)
    return kept === null ? null : { authorization: `Bearer ${kept}` }
  } catch {
    return null
  }
}
