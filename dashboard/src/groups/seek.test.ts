import { describe, expect, it } from 'vitest'
import { forecastWords, localTime, seekBody } from './seek'

describe('seekBody', () => {
  it('goes to the end, to the beginning, or to a time', () => {
    expect(seekBody('end', '')).toEqual({ toEnd: true })
    expect(seekBody('beginning', '')).toEqual({ timestamp: '1970-01-01T00:00:00Z' })
  })

  it('reads a time in the zone of the viewer', () => {
    const at = new Date(2026, 0, 2, 3, 4, 5)
    expect(localTime(at)).toBe('2026-01-02T03:04:05')
    expect(seekBody('time', localTime(at))).toEqual({ timestamp: at.toISOString() })
  })

  it('has nothing to send before there is a time', () => {
    expect(seekBody('time', '')).toBeUndefined()
    expect(seekBody('time', 'soon')).toBeUndefined()
  })
})

describe('forecastWords', () => {
  it('says what comes again and what is lost to the group', () => {
    expect(forecastWords({ messagesReplayed: 1234, messagesSkipped: 0 })).toBe('1,234 messages will be delivered again.')
    expect(forecastWords({ messagesReplayed: 1, messagesSkipped: 2 })).toBe(
      '1 message will be delivered again, 2 messages will be skipped unread.',
    )
    expect(forecastWords({})).toBe('No message is replayed or skipped.')
  })
})
