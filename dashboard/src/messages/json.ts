// JSON as text. A payload belongs to its producer: parsing and rewriting it in JavaScript would change large numbers, duplicate
// keys and spelling. So it is validated, formatted and sent without parsing.

export interface Fault {
  line: number
  column: number
  message: string
}

/** What is wrong with a text that should be JSON; null if it is valid. */
export function fault(text: string): Fault | null {
  try {
    JSON.parse(text)
    return null
  } catch {
    // Error messages of browsers differ, and not all include the position.
  }
  const reader = new Reader(text)
  const message = reader.document() ?? 'this is not JSON'
  const before = text.slice(0, reader.at).split('\n')
  return { line: before.length, column: (before.at(-1) ?? '').length + 1, message }
}

/** The same JSON with a line for each value. */
export function pretty(text: string, indent = '  '): string {
  let out = ''
  let depth = 0
  for (let at = 0; at < text.length; ) {
    const char = text[at]!
    if (char === '"') {
      const end = endOfString(text, at)
      out += text.slice(at, end)
      at = end
      continue
    }
    at += 1
    if (isSpace(char)) continue
    if (char === '{' || char === '[') {
      const next = skipSpace(text, at)
      if (text[next] === '}' || text[next] === ']') {
        out += char + text[next]
        at = next + 1
      } else {
        depth += 1
        out += `${char}\n${indent.repeat(depth)}`
      }
    } else if (char === '}' || char === ']') {
      depth = Math.max(0, depth - 1)
      out += `\n${indent.repeat(depth)}${char}`
    } else if (char === ',') {
      out += `,\n${indent.repeat(depth)}`
    } else if (char === ':') {
      out += ': '
    } else {
      out += char
    }
  }
  return out
}

/** The same JSON without whitespace between its parts. */
export function compact(text: string): string {
  let out = ''
  for (let at = 0; at < text.length; ) {
    const end = text[at] === '"' ? endOfString(text, at) : at + 1
    if (!isSpace(text[at])) out += text.slice(at, end)
    at = end
  }
  return out
}

/** The text of an object's member, unchanged; undefined if there is none. */
export function member(text: string, key: string): string | undefined {
  let at = skipSpace(text, 0)
  if (text[at] !== '{') return undefined
  at = skipSpace(text, at + 1)
  while (text[at] === '"') {
    const endOfKey = endOfString(text, at)
    const name: unknown = JSON.parse(text.slice(at, endOfKey))
    const start = skipSpace(text, skipSpace(text, endOfKey) + 1)
    const end = endOfValue(text, start)
    if (name === key) return text.slice(start, end)
    at = skipSpace(text, end)
    if (text[at] !== ',') return undefined
    at = skipSpace(text, at + 1)
  }
  return undefined
}

/** An object in which some members are JSON text already. */
export function object(members: Record<string, unknown>, raw: Record<string, string>): string {
  const parts = Object.entries(members)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`)
  parts.push(...Object.entries(raw).map(([key, text]) => `${JSON.stringify(key)}:${text}`))
  return `{${parts.join(',')}}`
}

/** A value on one line, for lists. */
export function preview(value: unknown, length = 160): string {
  const text = JSON.stringify(value) ?? ''
  return text.length > length ? `${text.slice(0, length - 1)}…` : text
}

function isSpace(char: string | undefined): boolean {
  return char === ' ' || char === '\n' || char === '\r' || char === '\t'
}

function skipSpace(text: string, at: number): number {
  while (isSpace(text[at])) at += 1
  return at
}

function endOfString(text: string, at: number): number {
  for (at += 1; at < text.length; at += 1) {
    if (text[at] === '\\') at += 1
    else if (text[at] === '"') return at + 1
  }
  return text.length
}

function endOfValue(text: string, at: number): number {
  let depth = 0
  while (at < text.length) {
    const char = text[at]
    if (char === '"') {
      at = endOfString(text, at)
      if (depth === 0) return at
      continue
    }
    if (char === '{' || char === '[') depth += 1
    else if (char === '}' || char === ']') {
      if (depth === 0) return at
      depth -= 1
      if (depth === 0) return at + 1
    } else if (depth === 0 && (char === ',' || isSpace(char))) return at
    at += 1
  }
  return at
}

/** Reads until the end or an error; `at` is then its position. Returns an error message, or null if valid. */
class Reader {
  at = 0

  constructor(private readonly text: string) {}

  document(): string | null {
    this.space()
    if (this.at >= this.text.length) return 'enter a JSON value'
    const wrong = this.value()
    if (wrong !== null) return wrong
    this.space()
    return this.at < this.text.length ? 'unexpected text after the end of the value' : null
  }

  private value(): string | null {
    const char = this.text[this.at]
    if (char === undefined) return 'expected a value, found the end'
    if (char === '{') return this.list('}', () => this.entry())
    if (char === '[') return this.list(']', () => this.value())
    if (char === '"') return this.string()
    const scalar = /(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)/y
    scalar.lastIndex = this.at
    const found = scalar.exec(this.text)
    if (found === null) return char === "'" ? 'strings need double quotes' : 'expected a value'
    const end = this.at + found[0].length
    if (/[\w.+-]/.test(this.text[end] ?? '')) return 'expected a value'
    this.at = end
    return null
  }

  private entry(): string | null {
    if (this.text[this.at] !== '"') return 'expected a name in double quotes'
    const wrong = this.string()
    if (wrong !== null) return wrong
    this.space()
    if (this.text[this.at] !== ':') return 'expected a colon'
    this.at += 1
    this.space()
    return this.value()
  }

  private list(close: string, item: () => string | null): string | null {
    const open = this.text[this.at]!
    this.at += 1
    this.space()
    if (this.text[this.at] === close) {
      this.at += 1
      return null
    }
    for (;;) {
      const wrong = item()
      if (wrong !== null) return wrong
      this.space()
      const char = this.text[this.at]
      if (char === undefined) return `the ${open} is never closed`
      if (char !== ',' && char !== close) return `expected a comma or ${close}`
      this.at += 1
      if (char === close) return null
      this.space()
      if (this.text[this.at] === close) return 'trailing comma'
    }
  }

  private string(): string | null {
    const start = this.at
    for (this.at += 1; this.at < this.text.length; this.at += 1) {
      const char = this.text[this.at]!
      if (char === '"') {
        this.at += 1
        return null
      }
      if (char < ' ') return 'strings cannot contain line breaks or control characters'
      if (char === '\\') {
        const escape = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y
        escape.lastIndex = this.at
        const found = escape.exec(this.text)
        if (found === null) return 'invalid escape sequence'
        this.at += found[0].length - 1
      }
    }
    this.at = start
    return 'this string is never closed'
  }

  private space(): void {
    this.at = skipSpace(this.text, this.at)
  }
}
