// Installs missing packages.

import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

import { output } from "./processes.js";

/** Keeps Debian from starting the package's service, with a policy file unless one exists. */
const INSTALL = `
set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\\nexit 101\\n' >$policy
    chmod +x $policy
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$1"
`;

/** Installs a Debian package, unless its program of the same name exists. */
export function debian(name) {
  if (has(name)) return;
  const root = process.getuid() === 0;
  if (!has("apt-get") || (!root && !has("sudo"))) throw new Error(`please install ${name}, without starting it`);
  console.error(`installing ${name}`);
  const [program, ...args] = [...(root ? [] : ["sudo"]), "sh", "-c", INSTALL, "install", name];
  output(program, args);
}

/** Tools that the rest of the project needs too. */
export function setup(what) {
  output(fileURLToPath(new URL("../../../scripts/setup", import.meta.url)), [what]);
}

function has(program) {
  return spawnSync("which", [program]).status === 0;
}
