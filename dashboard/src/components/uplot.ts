// Charts with uPlot, in the colors of the theme.

import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import type { Drawing, Plot, Series } from './chart'

export function draw(place: HTMLElement, drawing: Drawing): Plot {
  const styles = getComputedStyle(place)
  const colour = (text: string) => {
    const name = /^var\((--[\w-]+)\)$/.exec(text)?.[1]
    return name === undefined ? text : styles.getPropertyValue(name).trim()
  }
  const muted = colour('var(--muted)')
  const line = colour('var(--line)')
  const font = `11px ${styles.fontFamily}`
  // Axis ticks match the unit: powers of two for bytes, minutes for milliseconds.
  const steps = drawing.format(1024) === '1 KiB' ? { incrs: POWERS } : drawing.format(60_000) === '1 min' ? { incrs: MILLIS } : {}
  const axis = { stroke: muted, font, grid: { stroke: line, width: 1 }, ticks: { show: false } }

  let ends: [number, number] | undefined
  const plot = new uPlot(
    {
      width: Math.max(drawing.width, 80),
      height: drawing.height,
      legend: { show: false },
      // The last tick's label is centered below it, so half of it needs room on the right.
      padding: [8, 18, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, sync: { key: 'queen' } },
      scales: {
        x: { time: true, range: (_, first, last) => ends ?? stretched(first, last) },
        // From zero, and never without height.
        y: { range: (_, __, top) => [0, top === null || !(top > 0) ? 1 : top * 1.08] },
      },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 28, values: clock },
        { ...axis, space: 34, size: 62, ...steps, values: (_, splits) => splits.map((value) => drawing.format(value)) },
      ],
      series: [
        {},
        ...drawing.series.map((one, index) => ({
          label: one.label,
          stroke: colour(one.colour ?? `var(--c${(index % 5) + 1})`),
          width: 1.5,
          points: { show: false },
          spanGaps: false,
        })),
      ],
      hooks: {
        setCursor: [(self) => drawing.hover(self.cursor.idx ?? null)],
      },
    },
    [[], ...drawing.series.map(() => [])],
    place,
  )

  return {
    data: (times: number[], series: Series[], span) => {
      ends = span
      if (series.length === plot.series.length - 1) plot.setData([times, ...series.map((one) => one.values)])
    },
    size: (width, height) => plot.setSize({ width, height }),
    destroy: () => plot.destroy(),
  }
}

const MILLIS = [0.01, 0.1, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3].concat(
  [1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 2880, 7200, 14_400, 43_200].map((minutes) => minutes * 60e3),
)
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power)

/** A range around a single point. */
function stretched(first: number | null, last: number | null): [number, number] {
  const end = last ?? Date.now() / 1000
  return [Math.min(first ?? end, end - 60), end]
}

const TIME = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' })
const SECONDS = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })
const DAY = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short' })

/** Days if ticks are days apart, seconds if they are less than a minute apart. */
function clock(_: uPlot, splits: number[]): string[] {
  const step = (splits[1] ?? 0) - (splits[0] ?? 0)
  const form = step >= 86_400 ? DAY : step < 60 ? SECONDS : TIME
  return splits.map((second) => form.format(second * 1000))
}
