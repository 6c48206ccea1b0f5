// What `Chart.svelte` asks of the library that draws, which is only fetched when it is needed.

export interface Series {
  label: string
  values: (number | null)[]
  /** As CSS says it, `var(--bad)` for instance. */
  colour?: string
}

export interface Plot {
  /** `span`: the ends of the time axis. */
  data(times: number[], series: Series[], span: [number, number] | undefined): void
  size(width: number, height: number): void
  destroy(): void
}

export interface Drawing {
  series: Series[]
  format: (value: number) => string
  width: number
  height: number
  hover: (index: number | null) => void
}

let fetched: Promise<(place: HTMLElement, drawing: Drawing) => Plot> | undefined

export function ready(): Promise<(place: HTMLElement, drawing: Drawing) => Plot> {
  fetched ??= import('./uplot').then(
    (module) => module.draw,
    (error: unknown) => {
      // The next chart tries again.
      fetched = undefined
      throw error
    },
  )
  return fetched
}
