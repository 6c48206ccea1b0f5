import { describe, expect, it } from 'vitest'
import { ROW_PX, drawn, least, sorted, turned, type Column } from './table'

interface Row {
  name: string
  lag: number | null
}

const COLUMNS: Column<Row>[] = [
  { key: 'name', label: 'Name', sort: (row) => row.name },
  { key: 'lag', label: 'Lag', sort: (row) => row.lag, width: 80 },
  { key: 'other', label: 'Other', width: '5rem' },
]
const ROWS: Row[] = [
  { name: 'q10', lag: 1 },
  { name: 'q9', lag: null },
  { name: 'q1', lag: 5 },
]
const names = (rows: Row[]) => rows.map((row) => row.name)

describe('sorted', () => {
  it('sorts names as people count', () => {
    expect(names(sorted(ROWS, COLUMNS, { key: 'name', down: false }))).toEqual(['q1', 'q9', 'q10'])
  })

  it('puts what is not known last, both ways', () => {
    expect(names(sorted(ROWS, COLUMNS, { key: 'lag', down: true }))).toEqual(['q1', 'q10', 'q9'])
    expect(names(sorted(ROWS, COLUMNS, { key: 'lag', down: false }))).toEqual(['q10', 'q1', 'q9'])
  })

  it('keeps the given order and does not change the rows', () => {
    expect(sorted(ROWS, COLUMNS, undefined)).toBe(ROWS)
    expect(sorted(ROWS, COLUMNS, { key: 'other', down: true })).toBe(ROWS)
    sorted(ROWS, COLUMNS, { key: 'name', down: false })
    expect(names(ROWS)).toEqual(['q10', 'q9', 'q1'])
  })
})

describe('drawn', () => {
  it('is what is seen and a little more', () => {
    const { first, end } = drawn(1000 * ROW_PX, 20 * ROW_PX, 10_000)
    expect(first).toBeLessThanOrEqual(1000)
    expect(end).toBeGreaterThanOrEqual(1020)
    expect(end - first).toBeLessThan(60)
  })

  it('stays within the rows', () => {
    expect(drawn(0, 600, 3)).toEqual({ first: 0, end: 3 })
    expect(drawn(0, 600, 0)).toEqual({ first: 0, end: 0 })
    // Rows disappeared while the view was scrolled to the end.
    expect(drawn(9000 * ROW_PX, 600, 10)).toEqual({ first: 10, end: 10 })
  })
})

it('a second press turns the order', () => {
  expect(turned(undefined, 'lag', true)).toEqual({ key: 'lag', down: true })
  expect(turned({ key: 'lag', down: true }, 'lag', true)).toEqual({ key: 'lag', down: false })
  expect(turned({ key: 'lag', down: true }, 'name', false)).toEqual({ key: 'name', down: false })
})

it('columns keep a width at which they can be read', () => {
  expect(least(COLUMNS)).toBe('calc(130px + 80px + 5rem)')
})
