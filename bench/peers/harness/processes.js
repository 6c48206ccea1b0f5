// Server processes: started in temporary folders on the loopback address, metered, stopped by process id.

import { spawn, spawnSync } from "node:child_process";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, openSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const START_MS = 60_000;
const STOP_MS = 30_000;
/** The kernel's unit of CPU time, on every architecture. */
const TICKS_PER_S = 100;
const LOG_LINES_SHOWN = 15;

const servers = [];
const folders = [];
let cleaning;

/** Servers should not run as root, and PostgreSQL refuses to. The first of these users that exists. */
export function account(...names) {
  if (process.getuid() !== 0) return {};
  const users = readFileSync("/etc/passwd", "utf8").split("\n").map((line) => line.split(":"));
  const user = [...names, "nobody"].map((name) => users.find(([each]) => each === name)).find(Boolean);
  if (!user) throw new Error(`there is no user ${names[0]} or nobody`);
  return { uid: Number(user[2]), gid: Number(user[3]) };
}

/** Removed at the end. In it, `data` belongs to the account. */
export function folder(owner) {
  const path = mkdtempSync(join(tmpdir(), "queen-peers-"));
  folders.push(path);
  // The account must be able to enter this folder to reach its own.
  chmodSync(path, 0o755);
  const data = join(path, "data");
  mkdirSync(data, { mode: 0o700 });
  if (owner.uid !== undefined) chownSync(data, owner.uid, owner.gid);
  return { path, data };
}

/** Runs until `cleanUp`. `ready` is called until it no longer throws; its result is returned too. */
export async function start(name, program, args, { owner = {}, place, env = {}, ready, stop = "SIGTERM" }) {
  const log = join(place.path, `${name}.log`);
  const output = openSync(log, "w");
  const child = spawn(program, args, {
    ...owner,
    cwd: place.data,
    env: { ...process.env, LC_ALL: "C", HOME: place.data, ...env },
    stdio: ["ignore", output, output],
    // In its own process group: Ctrl-C in a terminal goes to us, and we stop it in order.
    detached: true,
  });
  const ended = new Promise((resolve) => {
    child.once("error", resolve);
    child.once("exit", (code, signal) => resolve(new Error(`ended with ${signal ?? code}`)));
  });
  const server = { name, pid: child.pid, stop, ended, isOver: false };
  ended.then(() => (server.isOver = true));
  servers.push(server);
  const deadline = performance.now() + START_MS;
  for (;;) {
    if (server.isOver) throw new Error(`${name} ${(await ended).message}:\n${lastWords(log)}`);
    try {
      return await ready();
    } catch (error) {
      if (performance.now() > deadline) throw new Error(`${name} is not ready, ${error}:\n${lastWords(log)}`);
    }
    await sleep(50);
  }
}

/** Stops the servers, last one first, and removes the folders. Concurrent calls share the result. */
export function cleanUp() {
  cleaning ??= stopAll().finally(() => (cleaning = undefined));
  return cleaning;
}

async function stopAll() {
  for (let server = servers.pop(); server; server = servers.pop()) {
    if (!server.isOver && server.pid) {
      process.kill(server.pid, server.stop);
      await Promise.race([server.ended, sleep(STOP_MS, null, { ref: false })]);
      if (!server.isOver) {
        console.error(`${server.name} did not stop and is killed`);
        process.kill(-server.pid, "SIGKILL");
      }
    }
  }
  for (const path of folders.splice(0)) rmSync(path, { recursive: true, force: true, maxRetries: 5 });
}

/** CPU seconds so far, by server and of this process. */
export function cpuSeconds() {
  const stats = new Map();
  for (const name of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const stat = readFileSync(`/proc/${name}/stat`, "utf8");
      // After the program's name, which may contain anything: state, parent, … and the times from field 11 on.
      const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ").map(Number);
      // Includes children that have exited and been waited for.
      stats.set(Number(name), { parent: fields[1], ticks: fields[11] + fields[12] + fields[13] + fields[14] });
    } catch {
      // It has exited meanwhile.
    }
  }
  const belongs = (pid, root) => pid === root || (stats.has(pid) && belongs(stats.get(pid).parent, root));
  const seconds = {};
  for (const { name, pid } of [...servers, { name: "client", pid: process.pid }]) {
    // Servers are our children, but not part of our work.
    const own = [...stats].filter(([each]) => (pid === process.pid ? each === pid : belongs(each, pid)));
    seconds[name] = own.reduce((sum, [, { ticks }]) => sum + ticks, 0) / TICKS_PER_S;
  }
  return seconds;
}

export function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** The output of a short command. */
export function output(program, args, options = {}) {
  const { status, error, stdout, stderr } = spawnSync(program, args, { encoding: "utf8", ...options });
  if (error || status !== 0) throw new Error(`${program} ${args.join(" ")}: ${error ?? stderr}`);
  return stdout.trim();
}

function lastWords(log) {
  return readFileSync(log, "utf8").trimEnd().split("\n").slice(-LOG_LINES_SHOWN).join("\n");
}
