// The interface between `Chart.svelte` and the chart library, which is loaded on demand.

export interface Series {
  label: string
  values: (number | null)[]
  /** A CSS color, such as `var(--bad)`. */
  colour?: string
}

export interface Plot {
  /** `span`: the range of the x axis. */
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
      // The next chart tries to load it again.
      fetched = undefined
      throw error
    },
  )
  return fetched
}
