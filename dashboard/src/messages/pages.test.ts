import { describe, expect, it } from 'vitest'
import { Pages } from './pages.svelte'

/** A log that responds when the test lets it. */
function log(rows: number[]) {
  const waiting: (() => void)[] = []
  const pages = new Pages<number>({
    key: String,
    size: 2,
    now: () => 0,
    load: (offset, limit) => {
      const answer = rows.slice(offset, offset + limit)
      return new Promise((resolve) => waiting.push(() => resolve(answer)))
    },
  })
  const answer = async (asked: Promise<void>) => {
    waiting.shift()?.()
    await asked
  }
  return { pages, rows, answer, waiting }
}

describe('Pages', () => {
  it('reads on until there is nothing left', async () => {
    const { pages, answer } = log([5, 4, 3, 2, 1])
    await answer(pages.restart())
    expect([pages.rows, pages.complete, pages.deep]).toEqual([[5, 4], false, false])
    await answer(pages.more())
    await answer(pages.more())
    expect([pages.rows, pages.complete, pages.deep]).toEqual([[5, 4, 3, 2, 1], true, true])
  })

  it('neither skips nor repeats what is there when new rows arrive', async () => {
    const { pages, rows, answer } = log([3, 2, 1])
    await answer(pages.restart())
    rows.unshift(4)
    await answer(pages.more())
    await answer(pages.more())
    expect(pages.rows).toEqual([3, 2, 1])
  })

  it('follows the first page, and stands still behind it', async () => {
    const { pages, rows, answer, waiting } = log([2, 1])
    await answer(pages.restart())
    rows.unshift(3)
    await answer(pages.refresh())
    expect(pages.rows).toEqual([3, 2])
    await answer(pages.more())
    await pages.refresh()
    expect(waiting).toHaveLength(0)
    expect(pages.rows).toEqual([3, 2, 1])
  })

  it('drops the answer to an earlier question', async () => {
    const { pages, rows, waiting } = log([1])
    const first = pages.restart()
    rows[0] = 9
    const second = pages.restart()
    waiting[1]?.()
    await second
    waiting[0]?.()
    await first
    expect(pages.rows).toEqual([9])
  })

  it('keeps what it has when asking again fails, and not when the question is new', async () => {
    let fails = false
    const pages = new Pages<number>({
      key: String,
      size: 2,
      now: () => 0,
      load: async () => {
        if (fails) throw new Error('no database')
        return [1]
      },
    })
    await pages.restart()
    fails = true
    await pages.refresh()
    expect([pages.rows, String(pages.error)]).toEqual([[1], 'Error: no database'])
    await pages.restart()
    expect([pages.rows, pages.loading]).toEqual([[], false])
    fails = false
    await pages.refresh()
    expect([pages.rows, pages.error]).toEqual([[1], undefined])
  })
})
