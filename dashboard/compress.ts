// Build step: compresses static files once, so that the broker does not compress per request, and limits the size of the first page.

import { gzipSync, brotliCompressSync, constants } from 'node:zlib'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Plugin, Rolldown } from 'vite'

/** Smaller files are not worth the extra headers. */
const WORTH_BYTES = 1_000

/** Limit of the first page, compressed with gzip. */
const FIRST_LOAD_BYTES_MAX = 80_000

/** `first`: end of the source path of the first page. */
export function compress(first: string): Plugin {
  return {
    name: 'queen-compress',
    apply: 'build',
    writeBundle(options, bundle) {
      const weights = new Map<string, number>()
      for (const file of Object.keys(bundle)) {
        const place = join(options.dir!, file)
        const bytes = readFileSync(place)
        const gzip = gzipSync(bytes, { level: 9 })
        weights.set(file, gzip.length)
        if (bytes.length < WORTH_BYTES) continue
        writeFileSync(`${place}.gz`, gzip)
        const best = { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY }
        writeFileSync(`${place}.br`, brotliCompressSync(bytes, { params: best }))
      }
      const loaded = ['index.html', ...firstLoad(bundle, first)]
      const weight = loaded.reduce((sum, file) => sum + (weights.get(file) ?? 0), 0)
      console.log(`first load: ${loaded.length} files, ${(weight / 1000).toFixed(1)} kB compressed`)
      if (weight > FIRST_LOAD_BYTES_MAX) {
        throw new Error(`the first load is heavier than ${FIRST_LOAD_BYTES_MAX / 1000} kB: ${loaded.join(', ')}`)
      }
    },
  }
}

/** All files that the entry and the first page load before they show anything. */
function firstLoad(bundle: Rolldown.OutputBundle, first: string): string[] {
  const files = new Set(Object.keys(bundle).filter((file) => file.endsWith('.css')))
  const add = (name: string) => {
    const chunk = bundle[name]
    if (chunk?.type !== 'chunk' || files.has(name)) return
    files.add(name)
    chunk.imports.forEach(add)
  }
  for (const chunk of Object.values(bundle)) {
    if (chunk.type === 'chunk' && (chunk.isEntry || chunk.facadeModuleId?.endsWith(first))) add(chunk.fileName)
  }
  return [...files]
}
