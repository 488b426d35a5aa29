// The race's driver protocol, for every Node system: commands and their options, JSON lines on stdout, the tasks.
//
// A system is an object of
//   name                                 of its package
//   setup(url)                           its own migration
//   producer(url, connections, fair)     {insert(jobs), close()}; it is connected; insert takes [{task, args, group}]
//                                        and is one transaction
//   work(url, slots, fair, tasks, ended) resolves, once it looks for jobs, to a function that stops it;
//                                        calls ended() when it ends by itself;
//                                        tasks: {noop, stamp, sleep}, functions of the args, of which sleep is async
//   pending(client)                      the number of jobs not finished yet, read through a pg client
//
// Node itself comes from a package too (optionalDependencies, one for each platform), so that the lock file pins it,
// and because the newest versions of both systems need a newer Node than many machines have.

import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import pg from "pg";

const REPORT_MS = 50;
export const RECOVERY = "RECOVERY" in process.env; // see protocol.py

// In fractions of a millisecond, which Date.now() lacks.
const now = () => (performance.timeOrigin + performance.now()) / 1000;

const print = (line) => process.stdout.write(JSON.stringify(line) + "\n");

export async function run(system) {
  const { positionals, values: options } = parseArgs({
    allowPositionals: true,
    options: {
      batch: { type: "string" },
      connections: { type: "string" },
      fair: { type: "boolean", default: false },
      groups: { type: "string" },
      jobs: { type: "string" },
      parallel: { type: "string" },
      pause: { type: "string" },
      slots: { type: "string" },
    },
  });
  const [command, file] = positionals;
  if (!Object.hasOwn(COMMANDS, command)) {
    console.error(`unknown command: ${command}; choose from: ${Object.keys(COMMANDS).join(", ")}`);
    process.exit(2);
  }
  const number = (name) => {
    const value = Number(options[name]);
    if (Number.isInteger(value) && value > 0) return value;
    console.error(`${command}: --${name} must be a whole number above 0`);
    process.exit(2);
  };
  await COMMANDS[command](system, process.env.DATABASE_URL, { file, number, fair: options.fair });
}

const COMMANDS = { version, setup, submit, work, trickle, plan, pending };

async function version(system) {
  const manifest = new URL(`node_modules/${system.name}/package.json`, import.meta.url);
  print({ version: JSON.parse(readFileSync(manifest)).version, runtime: `node ${process.versions.node}` });
}

async function setup(system, url) {
  await system.setup(url);
  print({ setup: true });
}

async function submit(system, url, { number }) {
  const [jobs, batch, groups, connections] = ["jobs", "batch", "groups", "connections"].map(number);
  const producer = await system.producer(url, connections, false);
  const started = performance.now();
  let next = 0;
  await together(connections, async () => {
    while (next < jobs) {
      const first = next;
      next = Math.min(first + batch, jobs);
      await producer.insert(
        Array.from({ length: next - first }, (_, i) => ({
          task: "noop",
          args: {},
          group: `g${(first + i) % groups}`,
        })),
      );
    }
  });
  print({ seconds: (performance.now() - started) / 1000 });
  await producer.close();
}

async function trickle(system, url, { number }) {
  const [jobs, milliseconds] = ["jobs", "pause"].map(number);
  const producer = await system.producer(url, 1, false);
  for (let i = 0; i < jobs; i++) {
    await pause(milliseconds);
    await producer.insert([{ task: "stamp", args: { sent: now() }, group: "g0" }]);
  }
  print({ submitted: jobs });
  await producer.close();
}

async function plan(system, url, { file, number, fair }) {
  const parallel = number("parallel");
  const entries = JSON.parse(readFileSync(file));
  const producer = await system.producer(url, parallel, fair);
  const started = now();
  let next = 0;
  await together(parallel, async () => {
    while (next < entries.length) {
      const [at, group, ms] = entries[next++];
      const early = started + at - now();
      if (early > 0) await pause(early * 1000);
      await producer.insert([{ task: "sleep", args: { group, ms, sent: now() }, group }]);
    }
  });
  print({ submitted: entries.length, seconds: now() - started });
  await producer.close();
}

async function work(system, url, { number, fair }) {
  const { promise: over, resolve: ended } = Promise.withResolvers();
  process.once("SIGTERM", ended);
  const progress = new Progress();
  const tasks = {
    noop: () => progress.ran(),
    stamp: ({ sent }) => print({ late: now() - sent }),
    sleep: async ({ group, ms, sent }) => {
      const start = now();
      if (RECOVERY) print({ group, began: start });
      await pause(ms);
      print({ group, sent, start, end: now() });
    },
  };
  const stop = await system.work(url, number("slots"), fair, tasks, ended);
  print({ ready: true });
  await over;
  await stop();
  progress.flush();
  process.exit(0);
}

async function pending(system, url) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  print({ pending: await system.pending(client) });
  await client.end();
}

// The lines about the noop jobs: at most one each REPORT_MS, and always one of the last.
class Progress {
  #line = { done: 0 };
  #timer;

  ran() {
    const at = now();
    this.#line.started ??= at;
    this.#line.done++;
    this.#line.at = at;
    this.#timer ??= setTimeout(() => this.flush(), REPORT_MS);
  }

  flush() {
    if (!this.#timer) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    print(this.#line);
  }
}

// A pool whose connections are all made already.
export async function connectedPool(url, connections) {
  const pool = new pg.Pool({ connectionString: url, min: connections, max: connections, idleTimeoutMillis: 0 });
  const report = (error) => console.error(error.message);
  pool.on("error", report);
  pool.on("connect", (client) => client.on("error", report));
  const clients = await together(connections, () => pool.connect());
  for (const client of clients) client.release();
  return pool;
}

const together = (n, task) => Promise.all(Array.from({ length: n }, task));
