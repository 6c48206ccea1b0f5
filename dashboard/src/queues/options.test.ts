import { describe, expect, it } from 'vitest'
import { OPTIONS, SECTIONS, body, isDefault, review, shown, words, type Option } from './options'

const IN_FORCE = { leaseTime: 60, retryLimit: 3, deadLetterQueue: true, priority: 0, namespace: 'orders', task: '' }

const sent = (draft: Parameters<typeof review>[1]) => body(review(IN_FORCE, draft).changes)
const option = (name: string) => OPTIONS.find((it) => it.name === name) as Option

describe('review', () => {
  it('sends what was changed and nothing else', () => {
    expect(sent({ leaseTime: '90', retryLimit: '3', deadLetterQueue: false })).toEqual({
      leaseTime: 90,
      deadLetterQueue: false,
    })
    expect(sent({})).toEqual({})
  })

  it('sends null for what goes back to its default, unless it is there', () => {
    expect(sent({ leaseTime: null, retryLimit: null })).toEqual({ leaseTime: null })
  })

  it('takes an option that the broker does not tell for its default', () => {
    expect(sent({ dedupWindowSeconds: '3600' })).toEqual({})
    expect(sent({ dedupWindowSeconds: '0' })).toEqual({ dedupWindowSeconds: 0 })
  })

  it('refuses what the broker would refuse', () => {
    const bad = { leaseTime: '-1', retryLimit: '1.5', delayedProcessing: '', windowBuffer: '9999999999', task: 'x'.repeat(256) }
    expect(Object.keys(review(IN_FORCE, bad).errors).sort()).toEqual(Object.keys(bad).sort())
    expect(review(IN_FORCE, bad).changes).toEqual([])
  })

  it('knows the range of each option', () => {
    expect(review(IN_FORCE, { minPopWaitTime: '60001' }).errors).toEqual({ minPopWaitTime: 'At most 60,000.' })
    expect(review(IN_FORCE, { priority: '-2147483649' }).errors).toEqual({ priority: 'At least -2,147,483,648.' })
  })

  it('lets a priority be negative, and a label be emptied', () => {
    expect(sent({ priority: '-5', namespace: '' })).toEqual({ priority: -5, namespace: '' })
  })
})

describe('options', () => {
  it('are folded away, after the labels, if they have no effect', () => {
    expect(SECTIONS.map((section) => section.title).slice(-2)).toEqual(['Labels', 'No effect'])
    expect(SECTIONS.filter((section) => section.folded).flatMap((section) => section.options.map((it) => it.name))).toContain('ttl')
  })

  it('refer to each other by their labels', () => {
    expect(option('deadLetterQueue').meaning).toContain('“Keep after the last retry”')
    expect(OPTIONS.filter((it) => it.meaning.includes('`'))).toEqual([])
  })
})

describe('shown', () => {
  it('is what was typed, else what is in force, else the default', () => {
    expect(shown(option('leaseTime'), IN_FORCE, { leaseTime: '7x' })).toBe('7x')
    expect(shown(option('leaseTime'), IN_FORCE, {})).toBe('60')
    expect(shown(option('leaseTime'), IN_FORCE, { leaseTime: null })).toBe('300')
    expect(shown(option('retentionEnabled'), IN_FORCE, {})).toBe(false)
  })

  it('knows when a default is in force', () => {
    expect(isDefault(option('leaseTime'), IN_FORCE, {})).toBe(false)
    expect(isDefault(option('leaseTime'), IN_FORCE, { leaseTime: null })).toBe(true)
    expect(isDefault(option('namespace'), IN_FORCE, {})).toBe(true)
  })
})

describe('words', () => {
  it('says numbers with their unit, and switches as on and off', () => {
    expect(words(option('deadLetterQueue'), false)).toBe('off')
    expect(words(option('retryDelay'), 1000)).toBe('1,000 ms')
    expect(words(option('leaseTime'), 30)).toBe('30 s')
    expect(words(option('retryLimit'), null)).toBe('default: 3')
    expect(words(option('task'), '')).toBe('none')
  })
})
