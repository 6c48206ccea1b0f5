import { describe, expect, it } from 'vitest'
import { address, encodePath, parse } from './address'

describe('parse', () => {
  it.each([
    ['', ['']],
    ['#', ['']],
    ['#/', ['']],
    ['#/queues', ['queues']],
    ['#/queues/', ['queues', '']],
    ['#/queues/a%2Fb%20c', ['queues', 'a/b c']],
    ['#/queues/100%', ['queues', '100%']],
  ])('%s', (hash, path) => expect(parse(hash).path).toEqual(path))

  it('has a query', () => {
    const { path, query } = parse('#/messages?queue=a%26b&x=1')
    expect(path).toEqual(['messages'])
    expect([...query]).toEqual([
      ['queue', 'a&b'],
      ['x', '1'],
    ])
  })
})

it('comes back as it was', () => {
  const names = ['queues', 'ä/ö?#&=% ', '']
  const text = address(encodePath(names), { queue: 'a b?&', empty: '', none: undefined, off: false, zero: 0 })
  const { path, query } = parse(`#${text}`)
  expect(path).toEqual(names)
  expect([...query]).toEqual([
    ['queue', 'a b?&'],
    ['zero', '0'],
  ])
})
