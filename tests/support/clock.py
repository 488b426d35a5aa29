"""The clock of a database, which a test may set: all that Joex asks the server for the time."""

import asyncpg


async def make_settable(connection: asyncpg.Connection) -> None:
    """From now on the functions of Joex use a clock that tests may set."""
    await connection.execute("""
        CREATE TABLE public.clock AS SELECT interval '0' AS ahead;
        CREATE FUNCTION public.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS
            'SELECT pg_catalog.clock_timestamp() + c.ahead FROM public.clock c';
        DO $do$ DECLARE v_function text; BEGIN
            FOR v_function IN SELECT pg_get_functiondef(p.oid) FROM pg_proc p
                              WHERE pronamespace::regnamespace::text IN ('joex', 'joex_client', 'joex_private')
                                  AND prosrc LIKE '%clock_timestamp()%' LOOP
                EXECUTE replace(v_function, 'clock_timestamp()', 'public.clock()');
            END LOOP;
        END $do$;
    """)


async def step(connection: asyncpg.Connection, seconds: float) -> None:
    """Set this clock forward or back, by this much."""
    await connection.execute("UPDATE public.clock SET ahead = ahead + make_interval(secs => $1)", seconds)
