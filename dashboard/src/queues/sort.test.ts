import { describe, expect, it } from 'vitest'
import { readSort, sortText } from './sort'

const STANDARD = { key: 'backlog', down: true }

describe('an order in an address', () => {
  it('comes back as it was written', () => {
    for (const sort of [
      { key: 'name', down: false },
      { key: 'name', down: true },
      { key: 'backlog', down: false },
    ]) {
      expect(readSort(sortText(sort, STANDARD) ?? null, STANDARD)).toEqual(sort)
    }
  })

  it('is not written when it is the usual one', () => {
    expect(sortText(STANDARD, STANDARD)).toBeUndefined()
    expect(readSort(null, STANDARD)).toEqual(STANDARD)
    expect(readSort('-', STANDARD)).toEqual(STANDARD)
  })
})
