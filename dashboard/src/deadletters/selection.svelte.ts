// The selection in a list: nothing, some rows, or everything that matches, including what is not loaded yet.

export class Selection {
  keys = $state.raw<ReadonlySet<string>>(new Set())
  /** Everything that matches. */
  all = $state(false)

  has(key: string): boolean {
    return this.all || this.keys.has(key)
  }

  toggle(key: string, shown: readonly string[]): void {
    // Deselecting a row while everything is selected leaves the other loaded rows: unloaded ones cannot be listed.
    const keys = new Set(this.all ? shown : this.keys)
    if (!keys.delete(key)) keys.add(key)
    this.all = false
    this.keys = keys
  }

  /** All loaded rows; none if all of them were selected. */
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

  /** Rows that no longer exist cannot be selected. */
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
