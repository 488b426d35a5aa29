#!/bin/bash
# What the chart asks of the official image: a server in PGDATA, and in it the database of POSTGRES_DB for POSTGRES_USER.
set -eu
: "${POSTGRES_PASSWORD:?}" "${POSTGRES_USER:=postgres}" "${POSTGRES_DB:=$POSTGRES_USER}"
mkdir -p "$PGDATA"
chmod 700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD")
    printf '\nhost all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    # On a socket alone: the probes of the pod must not find the server before its database is there.
    pg_ctl -D "$PGDATA" -o "-c listen_addresses=''" -w start
    [ "$POSTGRES_DB" = postgres ] || PGHOST='' createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -D "$PGDATA" -m fast -w stop
fi
exec "$@"
