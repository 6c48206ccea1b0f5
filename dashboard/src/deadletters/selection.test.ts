import { expect, it } from 'vitest'
import { Selection } from './selection.svelte'

const shown = ['a', 'b', 'c']

it('rows are chosen one by one or all that are shown', () => {
  const chosen = new Selection()
  expect(chosen.state(shown)).toBe('none')
  chosen.toggle('a', shown)
  expect([chosen.state(shown), chosen.has('a'), chosen.has('b')]).toEqual(['some', true, false])
  chosen.toggleShown(shown)
  expect(chosen.state(shown)).toBe('all')
  chosen.toggleShown(shown)
  expect(chosen.state(shown)).toBe('none')
  chosen.toggle('a', shown)
  chosen.toggle('a', shown)
  expect(chosen.state(shown)).toBe('none')
})

it('everything is more than what is shown, and one less is what is shown without it', () => {
  const chosen = new Selection()
  chosen.everything()
  expect([chosen.has('never seen'), chosen.state(shown)]).toEqual([true, 'all'])
  chosen.toggle('b', shown)
  expect([chosen.all, [...chosen.keys]]).toEqual([false, ['a', 'c']])
})

it('what has gone is not chosen any more', () => {
  const chosen = new Selection()
  chosen.toggleShown(shown)
  chosen.keep(['b', 'd'])
  expect([...chosen.keys]).toEqual(['b'])
})
