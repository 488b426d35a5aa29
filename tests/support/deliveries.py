"""Executors that deliver parcels beside workers without an executor (examples/workers), and the table that both write.

A run is a row of ``delivery``: when it began, and when it ended. Only the run that has the job writes
them: in the transaction of an update, or of the end of the run. So a job that two runs had at a time shows as two rows
that overlap, however late and slow a worker was.
"""

import asyncio

import joex

TABLE = """
    CREATE TABLE delivery (
        run uuid PRIMARY KEY, job uuid NOT NULL, worker text NOT NULL, began timestamptz NOT NULL, ended timestamptz
    )
"""
OVERLAPPING = """
    SELECT a.job, a.run, a.worker, a.began, a.ended, b.run AS other, b.worker AS by, b.began AS other_began
    FROM delivery a JOIN delivery b ON b.job = a.job AND b.run <> a.run
    WHERE b.began >= a.began AND b.began < coalesce(a.ended, a.began)
"""
EXECUTOR = "executor"

# The command of worker.sh for each job, with $PSQL; worker.sh ends its run.
COMMAND = """
fenced() { "$PSQL" "$DATABASE" -qc "$1 AND joex.update('$JOEX_JOB', '$JOEX_LOCK_ID') = 'ok'"; }
seconds=$(sed -n 's/.*"seconds": *\\([0-9.]*\\).*/\\1/p')
fenced "INSERT INTO delivery SELECT '$JOEX_LOCK_ID', '$JOEX_JOB', '$JOEX_WORKER', clock_timestamp() WHERE true"
sleep "$seconds"
fenced "UPDATE delivery SET ended = clock_timestamp() WHERE run = '$JOEX_LOCK_ID'"
echo "delivered"
"""

app = joex.App()


@app.task("deliver")
async def deliver(ctx: joex.Context, parcel: int, seconds: float) -> None:
    async with ctx.connection() as connection:
        await connection.execute(
            """
            INSERT INTO delivery SELECT $1, $2, $3, clock_timestamp() WHERE joex.update($2, $1) = 'ok'
            """,
            ctx.lock_id,
            ctx.job_id,
            EXECUTOR,
        )
    await asyncio.sleep(seconds)
    async with ctx.transaction() as connection:
        await connection.execute("UPDATE delivery SET ended = clock_timestamp() WHERE run = $1", ctx.lock_id)
