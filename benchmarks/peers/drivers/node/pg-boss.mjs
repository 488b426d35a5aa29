// pg-boss (npm: pg-boss) in the race.
//
// Settings, from its documentation's pages "Workers" and "Queues", and the comments of its types:
// - useListenNotify, and notify for each queue: a submission wakes the workers. Both polling intervals are besides at
//   their least, 0.5 s (2 s and 30 s by default).
// - A worker fetches, runs what it got and writes the ends of all of that in one statement, then sleeps unless it is
//   woken; so each wakes itself by notifyWorker at its end, and goes on without a pause until it finds nothing. (The
//   setting burstWhenBatchFull does that for batches only, and burstWhenReadyExceeds from counts that are seconds old.)
// - Each task has a queue, and each queue the workers that suit it, as is usual here:
//   noop:  as many workers as slots, up to the 10 connections that its pool has by default, with batches of 500 that
//          run one after another; larger ones are a few per cent quicker, but one crash would leave more to run again.
//   stamp: one worker with batches of as many as there are slots: every worker of the queue fetches on each NOTIFY, so
//          that more of them delay each other.
//   sleep: as many workers as slots, of one job each: a batch ends with its longest job.
//
// Submission (page "Jobs"): insert for batches, send for single jobs.
//
// Groups: jobs carry their group. There is no fairness between groups, only limits: with --fair, groupConcurrency lets
// no group have more than half the slots (of one process; it holds for all processes together). A group doesn't get
// more when the others are idle, either. (localGroupConcurrency, counted by each process, works only for the workers of
// one work() call, which notifyWorker can't wake one by one.)
//
// Completed jobs are kept, for 7 days by default.

import { PgBoss } from "pg-boss";
import { RECOVERY, run } from "./protocol.mjs";

const DEFAULT_CONNECTIONS = 10;

const workersFor = (slots) => ({
  noop: { workers: Math.min(slots, DEFAULT_CONNECTIONS), batchSize: 500 },
  stamp: { workers: 1, batchSize: slots },
  sleep: { workers: slots, batchSize: 1 },
});

async function open(options) {
  const boss = new PgBoss(options);
  boss.on("error", (error) => console.error(error.message));
  boss.on("warning", ({ message }) => console.error(message));
  await boss.start();
  return boss;
}

async function addWorker(boss, queue, task, options) {
  const worker = await boss.work(queue, options, async (jobs) => {
    for (const job of jobs) await task(job.data);
    boss.notifyWorker(worker);
  });
}

await run({
  name: "pg-boss",

  async setup(url) {
    const boss = await open({ connectionString: url });
    for (const queue of Object.keys(workersFor(1))) await boss.createQueue(queue, { notify: true });
    await boss.stop();
  },

  async producer(url, connections) {
    const boss = await open({ connectionString: url, max: connections, supervise: false, schedule: false });
    // Its pool connects on demand: so many statements that wait at one time make all connections beforehand.
    const connect = () => boss.getDb().executeSql("SELECT pg_sleep(0.5)");
    await Promise.all(Array.from({ length: connections }, connect));
    return {
      async insert(jobs) {
        const [{ task, args, group }] = jobs;
        if (jobs.length === 1) await boss.send(task, args, { group: { id: group } });
        else
          await boss.insert(
            task,
            jobs.map((job) => ({ data: job.args, group: { id: job.group } })),
          );
      },
      close: () => boss.stop(),
    };
  },

  async work(url, slots, fair, tasks) {
    const boss = await open({ connectionString: url, max: DEFAULT_CONNECTIONS, useListenNotify: !RECOVERY });
    const common = {
      ...(RECOVERY ? {} : { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 }),
      ...(fair ? { groupConcurrency: Math.ceil(slots / 2) } : {}),
    };
    for (const [queue, { workers, batchSize }] of Object.entries(workersFor(slots))) {
      for (let i = 0; i < workers; i++) await addWorker(boss, queue, tasks[queue], { ...common, batchSize });
    }
    return () => boss.stop();
  },

  async pending(client) {
    const { rows } = await client.query("SELECT count(*)::int AS n FROM pgboss.job WHERE state < 'completed'");
    return rows[0].n;
  },
});
