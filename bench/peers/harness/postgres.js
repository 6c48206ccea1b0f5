// A PostgreSQL in a temporary folder, with the settings of bench/src/environment/cluster.rs.

import { existsSync, readdirSync } from "node:fs";
import { createConnection } from "node:net";
import { join } from "node:path";

import { setup } from "./install.js";
import { account, folder, freePort, output, start } from "./processes.js";

const DEBIAN_FOLDER = "/usr/lib/postgresql";
const SETTINGS = {
  listen_addresses: "127.0.0.1",
  unix_socket_directories: "",
  fsync: "on",
  synchronous_commit: "on",
  max_connections: 200,
  max_wal_size: "4GB",
  shared_buffers: "512MB",
};

/** The database `postgres` belongs to the user `postgres`, without a password. */
export async function startPostgres() {
  if (!find()) setup("postgres");
  const programs = find();
  if (!programs) throw new Error("cannot find initdb and postgres");
  const owner = account("postgres");
  const place = folder(owner);
  const initdb = ["-D", place.data, "-U", "postgres", "-E", "UTF8", "--locale", "C.UTF-8", "--auth", "trust"];
  output(join(programs, "initdb"), initdb, { ...owner, cwd: place.data });
  const port = await freePort();
  const settings = Object.entries(SETTINGS).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
  const args = ["-D", place.data, "-p", String(port), ...settings];
  // SIGTERM would wait until every client has disconnected.
  const options = { owner, place, ready: () => answers(port), stop: "SIGINT" };
  await start("postgres", join(programs, "postgres"), args, options);
  return { port, place, version: output(join(programs, "postgres"), ["--version"]).replace(/^\D+|\s.*$/g, "") };
}

function find() {
  const newest = existsSync(DEBIAN_FOLDER) ? readdirSync(DEBIAN_FOLDER).sort((a, b) => b - a) : [];
  const places = newest.map((version) => join(DEBIAN_FOLDER, version, "bin"));
  try {
    places.unshift(output("pg_config", ["--bindir"]));
  } catch {
    // It is in a separate package that may be missing.
  }
  return places.find((place) => ["initdb", "postgres"].every((name) => existsSync(join(place, name))));
}

/** Answers a TLS request with N once it accepts connections. */
function answers(port) {
  return new Promise((resolve, reject) => {
    const socket = createConnection(port, "127.0.0.1", () => socket.write(Buffer.from([0, 0, 0, 8, 4, 210, 22, 47])));
    socket.once("data", () => resolve(socket.destroy()));
    socket.once("error", reject);
    socket.once("close", () => reject(new Error("closed")));
  });
}
