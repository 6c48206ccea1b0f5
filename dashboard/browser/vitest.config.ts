// The pages in a real browser, against real brokers: dashboard/run, or npx vitest run --config browser/vitest.config.ts
// QUEEN_BIN selects a broker other than target/debug/queen, CHROMIUM a browser other than /usr/bin/chromium.

import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'

export default defineConfig({
  root: fileURLToPath(new URL('.', import.meta.url)),
  test: {
    include: ['*.test.ts'],
    globalSetup: ['setup.ts'],
    // Files run one after another in one process: they share the browser, and measurements are not disturbed.
    // Concurrent tests of a file wait together for what pages poll every few seconds.
    fileParallelism: false,
    isolate: false,
    maxConcurrency: 4,
    testTimeout: 150_000,
    hookTimeout: 90_000,
  },
})
