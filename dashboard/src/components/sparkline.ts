// Paths of a small line without axes. It starts at zero, so that a small change does not look like a large one.

export interface Spark {
  line: string
  area: string
}

/** `null` if there is nothing to draw. A gap is drawn as zero: nothing happened. */
export function spark(values: (number | null)[], width: number, height: number): Spark | null {
  const numbers = values.map((value) => (value !== null && Number.isFinite(value) ? Math.max(0, value) : 0))
  const top = Math.max(0, ...numbers)
  if (numbers.length < 2 || top === 0) return null
  const step = width / (numbers.length - 1)
  // One pixel of padding at the top and bottom, for the line's width.
  const y = (value: number) => height - 1 - (value / top) * (height - 2)
  const points = numbers.map((value, index) => `${round(index * step)} ${round(y(value))}`)
  const line = `M${points.join('L')}`
  return { line, area: `${line}L${width} ${height}L0 ${height}Z` }
}

function round(n: number): number {
  return Math.round(n * 10) / 10
}
