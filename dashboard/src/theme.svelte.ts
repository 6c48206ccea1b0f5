// Light or dark: the system's setting, unless chosen here.

export type ThemeChoice = 'auto' | 'light' | 'dark'

const STORED = 'queen.theme'
const CHOICES: ThemeChoice[] = ['auto', 'light', 'dark']

class Theme {
  choice = $state<ThemeChoice>('auto')
  private system = $state(false)
  dark = $derived(this.choice === 'auto' ? this.system : this.choice === 'dark')

  /** Called before anything is drawn. */
  start(): void {
    const dark = matchMedia('(prefers-color-scheme: dark)')
    this.system = dark.matches
    dark.addEventListener('change', () => {
      this.system = dark.matches
      this.apply()
    })
    try {
      this.choice = CHOICES.find((choice) => choice === localStorage.getItem(STORED)) ?? 'auto'
    } catch {
      // Storage is disabled: the system decides.
    }
    this.apply()
  }

  choose(choice: ThemeChoice): void {
    this.choice = choice
    try {
      localStorage.setItem(STORED, choice)
    } catch {
      // See above; the choice lasts until the next reload.
    }
    this.apply()
  }

  private apply(): void {
    document.documentElement.dataset.theme = this.dark ? 'dark' : 'light'
  }
}

export const theme = new Theme()
