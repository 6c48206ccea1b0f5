import { describe, expect, it } from 'vitest'
import { compact, fault, member, object, pretty, preview } from './json'

describe('fault', () => {
  it('finds nothing wrong with JSON', () => {
    for (const text of ['{}', ' [1, 2.5e-3, "a\\u00e4", null, true] ', '0', '"x"', '{"a":{"b":[]}}']) {
      expect(fault(text), text).toBeNull()
    }
  })

  it('tells the place and the reason', () => {
    const cases: [string, number, number, string][] = [
      ['', 1, 1, 'enter a JSON value'],
      ['{\n  "a": 1,\n}', 3, 1, 'trailing comma'],
      ['{a: 1}', 1, 2, 'expected a name in double quotes'],
      ["{'a': 1}", 1, 2, 'expected a name in double quotes'],
      ["['a']", 1, 2, 'strings need double quotes'],
      ['{"a" 1}', 1, 6, 'expected a colon'],
      ['[1 2]', 1, 4, 'expected a comma or ]'],
      ['[1', 1, 3, 'the [ is never closed'],
      ['"abc', 1, 1, 'this string is never closed'],
      ['{"a": 01}', 1, 7, 'expected a value'],
      ['{"a":', 1, 6, 'expected a value, found the end'],
      ['"\\x"', 1, 2, 'invalid escape sequence'],
      ['"a\nb"', 1, 3, 'strings cannot contain line breaks or control characters'],
      ['{} {}', 1, 4, 'unexpected text after the end of the value'],
    ]
    for (const [text, line, column, message] of cases) {
      expect(fault(text), text).toEqual({ line, column, message })
    }
  })
})

describe('pretty', () => {
  it('lays out what JSON.stringify would', () => {
    const values = [{}, [], { a: [], b: {}, c: [1, { d: 'x, {y}: [z] "q" \\' }] }, 'text', 7, null]
    for (const value of values) {
      expect(pretty(JSON.stringify(value))).toBe(JSON.stringify(value, null, 2))
      expect(pretty(JSON.stringify(value, null, 4))).toBe(JSON.stringify(value, null, 2))
    }
  })

  it('keeps numbers and repeated keys as they were written', () => {
    expect(pretty('{"id":12345678901234567890,"id":1.0}')).toBe('{\n  "id": 12345678901234567890,\n  "id": 1.0\n}')
  })
})

describe('member', () => {
  it('is the text between the commas', () => {
    const text = '{"id":"a","data":{"data":1, "n":12345678901234567890},"x":[ {"y":"}"} ] ,"last":null}'
    expect(member(text, 'data')).toBe('{"data":1, "n":12345678901234567890}')
    expect(member(text, 'x')).toBe('[ {"y":"}"} ]')
    expect(member(text, 'id')).toBe('"a"')
    expect(member(text, 'last')).toBe('null')
    expect(member(text, 'y')).toBeUndefined()
    expect(member('[1]', 'id')).toBeUndefined()
    expect(member('{}', 'id')).toBeUndefined()
  })

  it('knows escaped names', () => {
    expect(member('{"d\\u0061ta": "x\\"," , "b":1}', 'data')).toBe('"x\\","')
  })
})

describe('object', () => {
  it('sends a payload as it was typed, and leaves out what is not given', () => {
    expect(object({ queue: 'a"b', partition: undefined }, { payload: '{"n":1.00}' })).toBe(
      '{"queue":"a\\"b","payload":{"n":1.00}}',
    )
  })
})

describe('preview', () => {
  it('is one short line', () => {
    expect(preview({ a: 1 })).toBe('{"a":1}')
    expect(preview('x'.repeat(500), 10)).toHaveLength(10)
    expect(preview(undefined)).toBe('')
  })
})

describe('compact', () => {
  it('undoes the layout and nothing else', () => {
    for (const text of ['{"a":[1.0,{"b":"x \\" y"}],"n":12345678901234567890}', '" a b "', '[]', '-1e5']) {
      expect(compact(pretty(text))).toBe(text)
    }
  })
})
