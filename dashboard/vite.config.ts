import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vitest/config'
import { compress } from './compress.ts'

// `npm run dev` shows the pages of this folder with the data of a broker: QUEEN_URL=http://localhost:6632
const broker = process.env.QUEEN_URL ?? 'http://localhost:6632'

export default defineConfig({
  plugins: [svelte(), compress('pages/Overview.svelte')],
  base: '/',
  build: {
    target: 'es2022',
    // Where server/build.rs looks.
    outDir: 'dist/page',
    assetsDir: 'assets',
    // Images and fonts as data: addresses would need a weaker Content-Security-Policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    // A few files instead of dozens of tiny ones: one for the looks, one for what most pages share, one for each page.
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
