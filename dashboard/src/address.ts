// Encodes and decodes addresses in the hash.

/** `undefined`, `null`, `false` and `''` are omitted. */
export type QueryValues = Record<string, string | number | boolean | null | undefined>

export function encodePath(segments: (string | number)[]): string {
  return `/${segments.map((segment) => encodeURIComponent(String(segment))).join('/')}`
}

export function address(path: string, query: QueryValues): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== false && value !== '') search.set(name, String(value))
  }
  const text = search.toString()
  const rooted = path.startsWith('/') ? path : `/${path}`
  return text === '' ? rooted : `${rooted}?${text}`
}

export function parse(hash: string): { path: string[]; query: URLSearchParams } {
  const text = hash.replace(/^#?\/?/, '')
  const cut = text.indexOf('?')
  const path = cut < 0 ? text : text.slice(0, cut)
  return { path: path.split('/').map(decoded), query: new URLSearchParams(cut < 0 ? '' : text.slice(cut + 1)) }
}

/** An address typed by hand may not be valid percent-encoding. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
