import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { ApiError, del, get, onUnauthorized, path, post, present, withQuery } from './client'

function answer(status: number, body: string, headers: Record<string, string> = {}) {
  const fetch = vi.fn(async (_address: string, _request: RequestInit) => new Response(status === 204 ? null : body, { status, headers }))
  vi.stubGlobal('fetch', fetch)
  return fetch
}

async function refused(call: Promise<unknown>): Promise<ApiError> {
  return call.then(
    () => expect.fail('it was not refused'),
    (error: unknown) => {
      expect(error).toBeInstanceOf(ApiError)
      return error as ApiError
    },
  )
}

afterEach(() => {
  vi.unstubAllGlobals()
  present(null)
  onUnauthorized(() => {})
})

it('path encodes what is put in and nothing else', () => {
  expect(path`/api/v1/resources/queues/${'a/b c?#%'}/depth`).toBe('/api/v1/resources/queues/a%2Fb%20c%3F%23%25/depth')
  expect(path`/plain`).toBe('/plain')
  expect(path`/${1}/${'x'}`).toBe('/1/x')
  expect(path`/${'...'}`).toBe('/...')
  for (const name of ['.', '..']) {
    expect(() => path`/queues/q/partitions/${name}/seek`).toThrow('cannot be used in a URL path')
  }
})

it('a query leaves out what is not there', () => {
  expect(withQuery('/a', { x: 1, no: undefined, none: null, empty: '', b: false, text: 'a&b' })).toBe('/a?x=1&b=false&text=a%26b')
  expect(withQuery('/a')).toBe('/a')
})

describe('request', () => {
  it('sends a body and the credential', async () => {
    present('secret')
    const fetch = answer(201, '{"ok":true}')
    expect(await post('/api/v1/push', { a: 1 })).toEqual({ ok: true })
    const [address, request] = fetch.mock.calls[0]!
    expect(address).toBe('/api/v1/push')
    expect(request).toMatchObject({
      method: 'POST',
      body: '{"a":1}',
      headers: { authorization: 'Bearer secret', 'content-type': 'application/json' },
    })
  })

  it('sends neither if there is none', async () => {
    const fetch = answer(204, '')
    expect(await del('/x', { a: 1 })).toBeUndefined()
    const [address, request] = fetch.mock.calls[0]!
    expect(address).toBe('/x?a=1')
    expect(request.body).toBeUndefined()
    expect(request.headers).not.toHaveProperty('authorization')
  })

  it('repeats the words of the broker', async () => {
    answer(503, '{"error":"no database","code":"unavailable"}', { 'retry-after': '7' })
    expect(await refused(get('/x'))).toMatchObject({ status: 503, code: 'unavailable', message: 'no database', retryAfterSeconds: 7 })
  })

  describe('answered 429', () => {
    const tooMany = () => new Response('{"error":"too fast","code":"rate_limited"}', { status: 429, headers: { 'retry-after': '2' } })

    beforeEach(() => {
      vi.useFakeTimers()
    })
    afterEach(() => {
      vi.useRealTimers()
    })

    it('is sent again after the time in Retry-After', async () => {
      const fetch = vi.fn(async () => new Response('{"ok":true}')).mockImplementationOnce(async () => tooMany())
      vi.stubGlobal('fetch', fetch)
      const call = post('/x', { a: 1 })
      await vi.advanceTimersByTimeAsync(1_999)
      expect(fetch).toHaveBeenCalledOnce()
      await vi.advanceTimersByTimeAsync(1)
      expect(await call).toEqual({ ok: true })
      expect(fetch).toHaveBeenCalledTimes(2)
    })

    it('fails after three retries', async () => {
      const fetch = vi.fn(async () => tooMany())
      vi.stubGlobal('fetch', fetch)
      const call = refused(get('/x'))
      await vi.advanceTimersByTimeAsync(6_000)
      expect(await call).toMatchObject({ status: 429, message: 'too fast', retryAfterSeconds: 2 })
      expect(fetch).toHaveBeenCalledTimes(4)
    })

    it('fails at once if the wait is longer than a call may take', async () => {
      const fetch = answer(429, '{"error":"too fast","code":"rate_limited"}', { 'retry-after': '60' })
      expect(await refused(get('/x'))).toMatchObject({ status: 429, retryAfterSeconds: 60 })
      expect(fetch).toHaveBeenCalledOnce()
    })

    it('is not sent again once the caller gave up', async () => {
      const fetch = vi.fn(async () => tooMany())
      vi.stubGlobal('fetch', fetch)
      const abort = new AbortController()
      const call = get('/x', undefined, abort.signal).catch((error: unknown) => error)
      await vi.advanceTimersByTimeAsync(1_000)
      abort.abort()
      expect(await call).toBe(abort.signal.reason)
      await vi.advanceTimersByTimeAsync(10_000)
      expect(fetch).toHaveBeenCalledOnce()
    })
  })

  it('has words for what is not from the broker', async () => {
    answer(502, '<html>Bad gateway</html>')
    expect((await refused(get('/x'))).message).toMatch(/^502/)
    vi.stubGlobal('fetch', () => Promise.reject(new TypeError('failed')))
    expect(await refused(get('/x'))).toMatchObject({ status: 0, code: 'unreachable' })
  })

  it('a 401 leads to the login, unless the credential has changed meanwhile', async () => {
    const told = vi.fn()
    onUnauthorized(told)
    present('old')
    answer(401, '{"error":"token expired","code":"unauthorized"}')
    await refused(get('/x'))
    expect(told).toHaveBeenCalledOnce()
    const slow = refused(get('/x'))
    present('new')
    await slow
    expect(told).toHaveBeenCalledOnce()
  })
})
