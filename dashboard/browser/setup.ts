// Runs before all tests: one broker with its own PostgreSQL, and one browser. Further brokers get their own databases in that
// PostgreSQL (brokers.ts).

import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { chromium } from 'playwright-core'
import type { TestProject } from 'vitest/node'
import { Broker } from './broker.ts'

declare module 'vitest' {
  export interface ProvidedContext {
    /** Folder of all temporary files. */
    folder: string
    /** The broker that most tests share. It has no access control. */
    shared: { url: string; pid: number }
    /** Of PostgreSQL. */
    socket: { folder: string; port: string }
    /** Where the browser listens. */
    browser: string
  }
}

/** The last such flag takes precedence, so this one repeats what Playwright disables. */
const WITHOUT = [
  'AvoidUnnecessaryBeforeUnloadCheckSync',
  'DestroyProfileOnBrowserClose',
  'HttpsUpgrades',
  'LensOverlay',
  'MediaRouter',
  'NetworkTimeServiceQuerying',
  'OptimizationHints',
  'PaintHolding',
  'PreconnectToSearch',
  'ThirdPartyStoragePartitioning',
  // The suggestions of the invisible address bar: half of the cost of a new page.
  'AiModeOmniboxEntryPoint',
  'AimEnabled',
  'WebUIOmniboxAimPopup',
  'WebUIOmniboxFullPopup',
  'WebUIOmniboxPopup',
]

const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  `--disable-features=${WITHOUT.join(',')}`,
]

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const folder = await mkdtemp(join(tmpdir(), 'queen-dashboard-'))
  // As root, PostgreSQL runs as another user, who needs access to the folder.
  await chmod(folder, 0o755)
  const clean = () => rm(folder, { recursive: true, force: true })
  const data = join(folder, 'data')
  let shared: Broker | undefined
  try {
    shared = await Broker.start(join(folder, 'shared'), { QUEEN_DATA_DIR: data })
    const browser = await chromium.launchServer({
      executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
      headless: true,
      args: FLAGS,
    })
    // Lines: pid, cluster, start time, port, socket folder.
    const [, , , port, socket] = (await readFile(join(data, 'postgres/postmaster.pid'), 'utf8')).split('\n')
    project.provide('folder', folder)
    project.provide('shared', { url: shared.url, pid: shared.pid })
    project.provide('socket', { folder: socket!, port: port! })
    project.provide('browser', browser.wsEndpoint())
    const stop = shared.stop.bind(shared)
    return async () => {
      await browser.close()
      await stop()
      await clean()
    }
  } catch (error) {
    await shared?.kill()
    await clean()
    throw error
  }
}
