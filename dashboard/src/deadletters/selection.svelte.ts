// What is chosen in a list: nothing, some rows, or everything that matches, also what was not read yet.

export class Selection {
  keys = $state.raw<ReadonlySet<string>>(new Set())
  /** All that match. */
  all = $state(false)

  has(key: string): boolean {
    return this.all || this.keys.has(key)
  }

  toggle(key: string, shown: readonly string[]): void {
    // One less than everything is what is shown, without it: nobody can name the others.
    const keys = new Set(this.all ? shown : this.keys)
    if (!keys.delete(key)) keys.add(key)
    this.all = false
    this.keys = keys
  }

  /** All that are shown; none if all of them were chosen. */
  toggleShown(shown: readonly string[]): void {
    const keys = this.state(shown) === 'all' ? [] : shown
    this.all = false
    this.keys = new Set(keys)
  }

  everything(): void {
    this.all = true
    this.keys = new Set()
  }

  clear(): void {
    this.all = false
    this.keys = new Set()
  }

  /** Rows that are gone cannot be chosen. */
  keep(shown: readonly string[]): void {
    const left = shown.filter((key) => this.keys.has(key))
    if (left.length !== this.keys.size) this.keys = new Set(left)
  }

  state(shown: readonly string[]): 'none' | 'some' | 'all' {
    if (this.all) return 'all'
    if (this.keys.size === 0) return 'none'
    return shown.every((key) => this.keys.has(key)) ? 'all' : 'some'
  }
}
