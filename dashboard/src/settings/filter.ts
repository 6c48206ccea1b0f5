// Filters and orders settings.

export interface Setting {
  group: string
  name: string
  variable: string
  /** `null`: not set. A secret is `(set)`. */
  value: string | null
  source: 'default' | 'file' | 'environment' | 'flag'
  help: string
  secret: boolean
}

export interface Settings {
  version: string
  server: string
  settings: Setting[]
}

export interface Group {
  name: string
  settings: Setting[]
}

/** By group, in the broker's order. */
export function grouped(settings: Setting[], search: string, changedOnly: boolean): Group[] {
  const part = search.trim().toLowerCase()
  const groups = new Map<string, Setting[]>()
  for (const setting of settings) {
    if (changedOnly && setting.source === 'default') continue
    if (part !== '' && !found(setting, part)) continue
    const group = groups.get(setting.group)
    if (group === undefined) groups.set(setting.group, [setting])
    else group.push(setting)
  }
  return [...groups].map(([name, settings]) => ({ name, settings }))
}

function found({ name, variable, help, value, secret }: Setting, part: string): boolean {
  const texts = [name, variable, help, secret ? '' : (value ?? '')]
  return texts.some((text) => text.toLowerCase().includes(part))
}
