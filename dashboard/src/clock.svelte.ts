// One clock for all relative times on a page.

const EVERY_MS = 5_000

class Clock {
  now = $state(Date.now())

  constructor() {
    if (typeof document === 'undefined') return
    setInterval(() => {
      if (!document.hidden) this.now = Date.now()
    }, EVERY_MS)
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden) this.now = Date.now()
    })
  }
}

export const clock = new Clock()
