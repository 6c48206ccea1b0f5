import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cp, mkdtemp, readdir, readFile, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';

import { PACKAGE } from './support/broker.js';

const run = promisify(execFile);

test('the package of a fresh checkout is its build, its README and its license, and needs nothing else', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'queen-js-package-'));
  try {
    for (const name of ['src', 'examples', 'test', 'package.json', 'tsconfig.json', 'README.md', 'LICENSE']) {
      await cp(join(PACKAGE, name), join(folder, name), { recursive: true });
    }
    await symlink(join(PACKAGE, 'node_modules'), join(folder, 'node_modules'));
    const pack = ['pack', '--dry-run', '--json', '--offline', '--foreground-scripts=false'];
    const { stdout } = await run('npm', pack, { cwd: folder });
    const [{ files }] = JSON.parse(stdout) as [{ files: { path: string }[] }];
    const modules = (await readdir(join(PACKAGE, 'src'))).map((name) => name.replace(/\.ts$/, ''));
    const built = modules.flatMap((name) => [`dist/${name}.js`, `dist/${name}.d.ts`]);
    const expected = ['LICENSE', 'README.md', 'package.json', ...built];
    assert.deepEqual(files.map(({ path }) => path).sort(), expected.sort());
  } finally {
    await rm(folder, { recursive: true });
  }
  const manifest = JSON.parse(await readFile(join(PACKAGE, 'package.json'), 'utf8'));
  assert.equal(manifest.dependencies, undefined);
  assert.equal(manifest.name, 'queen-client');
});

test('it is for browsers, too: nothing of Node is imported', async () => {
  const files = (await readdir(join(PACKAGE, 'dist'))).filter((name) => name.endsWith('.js'));
  assert.ok(files.includes('index.js'));
  for (const name of files) {
    const code = await readFile(join(PACKAGE, 'dist', name), 'utf8');
    const imported = [...code.matchAll(/\b(?:from|import)\s*\(?\s*['"]([^'"]+)['"]/g)].map((match) => match[1]!);
    assert.ok(imported.every((module) => module.startsWith('./')), `${name}: ${imported}`);
    assert.doesNotMatch(code, /\b(process|Buffer|require|setImmediate)\b[.(]/, name);
  }
});

test('the README has no link that leads out of the package', async () => {
  const readme = await readFile(join(PACKAGE, 'README.md'), 'utf8');
  const links = [...readme.matchAll(/\]\(([^)]+)\)/g)].map((match) => match[1]!);
  assert.deepEqual(links.filter((link) => !link.startsWith('#') && !link.startsWith('https://')), []);
});

test('it can be required where modules can be', { skip: !process.features.require_module }, async () => {
  const { stdout } = await run(process.execPath, ['-p', "typeof require('queen-client').Queen"], { cwd: PACKAGE });
  assert.equal(stdout.trim(), 'function');
});
