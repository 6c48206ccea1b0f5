import { expect, it } from 'vitest'
import { grouped, type Setting } from './filter'

function setting(group: string, name: string, extra: Partial<Setting> = {}): Setting {
  return { group, name, variable: name.toUpperCase(), value: '1', source: 'default', help: '', secret: false, ...extra }
}

const ALL = [
  setting('HTTP', 'port', { value: '6632', source: 'environment' }),
  setting('HTTP', 'host', { help: 'The address it listens on' }),
  setting('Access', 'jwt-secret', { secret: true, value: '(set)', source: 'file' }),
]

const names = (search: string, changed = false) =>
  grouped(ALL, search, changed).map((group) => [group.name, ...group.settings.map((one) => one.name)])

it('keeps the order and the groups of the broker', () => {
  expect(names('')).toEqual([['HTTP', 'port', 'host'], ['Access', 'jwt-secret']])
})

it('searches names, variables, values and words', () => {
  expect(names('6632')).toEqual([['HTTP', 'port']])
  expect(names('JWT')).toEqual([['Access', 'jwt-secret']])
  expect(names('address it')).toEqual([['HTTP', 'host']])
  expect(names('(set)')).toEqual([])
  expect(names('nothing')).toEqual([])
})

it('shows what was changed', () => {
  expect(names('', true)).toEqual([['HTTP', 'port'], ['Access', 'jwt-secret']])
})
