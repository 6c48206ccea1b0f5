import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vitest/config'
import { compress } from './compress.ts'

// `npm run dev` serves these pages with the data of a running broker: QUEEN_URL=http://localhost:6632
const broker = process.env.QUEEN_URL ?? 'http://localhost:6632'

export default defineConfig({
  plugins: [svelte(), compress('pages/Overview.svelte')],
  base: '/',
  build: {
    target: 'es2022',
    // server/build.rs reads it from here.
    outDir: 'dist/page',
    assetsDir: 'assets',
    // Images and fonts are inlined: external ones would need a weaker Content-Security-Policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    // A few files instead of dozens of tiny ones: one for styles, one for shared code, one per page.
    cssCodeSplit: false,
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [{ name: 'shared', test: /node_modules\/(svelte|esm-env)\/|\/src\/(api|components)\/(?!uplot)\w*\.|\/src\/(?!main)[\w.]+\.ts$/ }],
        },
      },
    },
  },
  server: {
    proxy: Object.fromEntries(['/api', '/health', '/metrics', '/openapi.json'].map((path) => [path, broker])),
  },
  test: {
    include: ['src/**/*.test.ts'],
    environment: 'node',
  },
})
