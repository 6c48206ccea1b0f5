import { afterEach, describe, expect, it, vi } from 'vitest'
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
    expect(() => path`/queues/q/partitions/${name}/seek`).toThrow('cannot stand in the path')
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
    answer(429, '{"error":"too fast","code":"rate_limited"}', { 'retry-after': '7' })
    expect(await refused(get('/x'))).toMatchObject({ status: 429, code: 'rate_limited', message: 'too fast', retryAfterSeconds: 7 })
  })

  it('has words for what is not from the broker', async () => {
    answer(502, '<html>Bad gateway</html>')
    expect((await refused(get('/x'))).message).toMatch(/^502/)
    vi.stubGlobal('fetch', () => Promise.reject(new TypeError('failed')))
    expect(await refused(get('/x'))).toMatchObject({ status: 0, code: 'unreachable' })
  })

  it('a 401 is told to who can log in, unless the credential has changed meanwhile', async () => {
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
