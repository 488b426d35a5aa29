// Graphile Worker (npm: graphile-worker) in the race.
//
// Settings, from its documentation's page "Performance", the configuration of its own quick stats:
// - localQueue.size 500: jobs are fetched and locked 500 at a time, and the slots are fed from memory;
// - completeJobBatchDelay and failJobBatchDelay 0: the ends of one turn of the event loop are written in one statement;
// - maxPoolSize: slots + 1. Prepared statements are on by default, LISTEN/NOTIFY announces new jobs.
// Its log has a line for each job by default; the race turns that off, as its own performance test does.
//
// Submission (page "Adding jobs through JavaScript"): makeWorkerUtils over a pool; addJobs for batches, addJob for
// single jobs.
//
// Groups: it has no fairness between tenants. Its one means is a named queue, whose jobs run one after another: with
// --fair each group is such a queue. No group then holds more than one slot of all workers together, so that many
// groups share well, but few groups leave slots idle. Neither the local queue nor the batched ends are used then: a
// fetch of many finds one job of each named queue at most and then waits for pollInterval. And since a slot asks for
// its next job before its last one's end is written, it finds the named queue locked still, and nothing tells it when
// that is over: pollInterval is lowered so that all slots together look a hundred times a second (2 s by default).
// Without --fair groups are ignored.
//
// Completed jobs are deleted.
//
// If the worker ends by itself, the process exits, as that of its command line does. RECOVERY: without the local queue and
// the batched ends.

import { connectedPool, RECOVERY, run } from "./protocol.mjs";

process.env.NO_LOG_SUCCESS = "1"; // read when it is imported
const { Logger, makeWorkerUtils, run: runWorker, runMigrations } = await import("graphile-worker");

const BATCHING = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(`${level}: ${message}`);
});

await run({
  name: "graphile-worker",

  async setup(url) {
    await runMigrations({ connectionString: url, logger });
  },

  async producer(url, connections, fair) {
    const pgPool = await connectedPool(url, connections);
    const utils = await makeWorkerUtils({ pgPool, logger });
    const spec = ({ group }) => (fair ? { queueName: group } : {});
    return {
      async insert(jobs) {
        if (jobs.length === 1) await utils.addJob(jobs[0].task, jobs[0].args, spec(jobs[0]));
        else await utils.addJobs(jobs.map((job) => ({ identifier: job.task, payload: job.args, ...spec(job) })));
      },
      async close() {
        await utils.release();
        await pgPool.end();
      },
    };
  },

  async work(url, slots, fair, taskList, ended) {
    const runner = await runWorker({
      preset: {
        worker: {
          connectionString: url,
          logger,
          concurrentJobs: slots,
          maxPoolSize: slots + 1,
          ...(fair ? { pollInterval: 10 * slots } : RECOVERY ? {} : BATCHING),
        },
      },
      taskList,
      crontab: "",
      noHandleSignals: true,
    });
    let running = true;
    const onEnd = () => {
      running = false;
      ended();
    };
    runner.promise.then(onEnd, onEnd);
    return async () => running && (await runner.stop());
  },

  async pending(client) {
    const { rows } = await client.query(
      "SELECT count(*)::int AS n FROM graphile_worker.jobs WHERE attempts < max_attempts",
    );
    return rows[0].n;
  },
});
