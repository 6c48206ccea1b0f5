import { describe, expect, it } from 'vitest'
import { allowed, matches, type Right, type Whoami } from './rights'

function who(role: Whoami['role'], grants: Whoami['grants'] = null): Whoami {
  return { authentication: true, name: 'a', kind: 'key', role, grants }
}

const RIGHTS: Right[] = ['read', 'push', 'pop', 'change', 'admin']

describe('allowed', () => {
  it.each([
    ['read-only', ['read']],
    ['read-write', ['read', 'push', 'pop', 'change']],
    ['admin', RIGHTS],
  ] as const)('%s may %s', (role, may) => {
    for (const right of RIGHTS) {
      expect(allowed(who(role), right), right).toBe((may as readonly Right[]).includes(right))
      expect(allowed(who(role), right, 'q'), right).toBe((may as readonly Right[]).includes(right))
    }
  })

  it('the role is the upper bound of grants', () => {
    const grants: Whoami['grants'] = [{ queues: ['orders.*'], rights: ['push', 'admin'] }]
    expect(allowed(who('read-only', grants), 'push', 'orders.eu')).toBe(false)
    expect(allowed(who('read-only', grants), 'read', 'orders.eu')).toBe(true)
    expect(allowed(who('read-write', grants), 'push', 'orders.eu')).toBe(true)
    expect(allowed(who('read-write', grants), 'change', 'orders.eu')).toBe(true)
    expect(allowed(who('read-write', grants), 'admin', 'orders.eu')).toBe(false)
    expect(allowed(who('admin', grants), 'admin', 'orders.eu')).toBe(true)
  })

  it('a right includes no other, and ends where the grant ends', () => {
    const grants: Whoami['grants'] = [{ queues: ['a'], rights: ['push'] }]
    expect(allowed(who('admin', grants), 'pop', 'a')).toBe(false)
    expect(allowed(who('admin', grants), 'push', 'b')).toBe(false)
    expect(allowed(who('admin', grants), 'push')).toBe(false)
    expect(allowed(who('admin', []), 'read', 'a')).toBe(false)
  })
})

describe('matches', () => {
  it.each([
    ['orders*', 'orders', true],
    ['orders*', 'orders.eu', true],
    ['*.eu', 'orders.eu', true],
    ['a*b*c', 'a--b--c', true],
    ['orders.*', 'ordersXeu', false],
    ['orders', 'orders2', false],
    ['Orders', 'orders', false],
    ['a+b', 'a+b', true],
    ['*', 'line\nbreak', true],
    ['', '', true],
  ])('%s and %s: %s', (pattern, name, fits) => expect(matches(pattern, name)).toBe(fits))
})
