#!/bin/sh
# A worker without an executor: it runs a command for each job of a type, or of any queue. It needs curl, and the HTTP
# interface of an executor.
#
#     worker.sh TYPE COMMAND [ARGUMENT]...
#
# The command reads the job on its standard input, in JSON, as accept has answered it; JOEX_JOB and JOEX_LOCK_ID have its
# ids. If the command exits with 0, the job succeeds; otherwise the run fails. The last line that it prints is the message,
# or the error (in UTF-8). While it runs, the worker reports; if the run loses its job, the command gets a SIGTERM.
#
# For each end of a run the worker prints a line: the answer (ok, worker_conflict, canceled), the job, the lock id. The work
# of the command counts only if the answer is ok. At SIGTERM or Ctrl-C the worker finishes its run, and exits.
set -u

type=$1
shift
url=${JOEX_HTTP:-http://127.0.0.1:7878}
name=${JOEX_WORKER:-shell}
patience=${JOEX_WAIT:-20}                   # seconds for which it waits for a job, at most 60
every=${JOEX_REPORT_EVERY:-10}              # seconds; well below the activity timeout of the type

umask 077
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
leaving=
trap 'leaving=yes' TERM INT
{
    echo 'header = "Content-Type: application/json"'
    [ -z "${JOEX_API_TOKEN:-}" ] || echo "header = \"Authorization: Bearer $JOEX_API_TOKEN\""
} >"$folder/curl"

# call PATH BODY FILE: the answer is in the file, its status in $status (000: no answer).
call() {
    status=$(curl -s -K "$folder/curl" -m 90 -o "$3" -w '%{http_code}' -d "$2" "$url/api/v1/$1") || status=000
}

# Report that a run continues; end its command if the run has lost its job.
report() {
    while sleep "$every"; do
        call update "{$run}" "$folder/reported"
        if [ "$status" = 409 ]; then
            kill "$1"
            return
        fi
    done
}

# Run the command for the job that was accepted.
work() {
    ids=$(sed -n 's/^{"job":"\([^"]*\)","lock_id":"\([^"]*\)".*/\1 \2/p' "$folder/job")
    export JOEX_JOB="${ids% *}" JOEX_LOCK_ID="${ids#* }"
    run="\"job\":\"$JOEX_JOB\",\"lock_id\":\"$JOEX_LOCK_ID\""
    "$@" <"$folder/job" >"$folder/output" 2>&1 &
    command=$!
    report "$command" >/dev/null 2>&1 &
    reporter=$!
    while :; do
        wait "$command"
        code=$?
        kill -0 "$command" 2>/dev/null || break     # otherwise a signal has ended the wait, but not the command
    done
    kill "$reporter" 2>/dev/null

    text=$(tail -n 1 "$folder/output" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')
    if [ "$code" = 0 ]; then
        end="\"message\":\"$text\""
    else
        end="\"error\":\"${text:-exit code $code}\""
    fi
    call finish "{$run,$end}" "$folder/answer"
    while [ "$status" = 000 ] || [ "$status" = 503 ]; do    # (a repeat is safe: perhaps only the answer was lost)
        sleep 1
        call finish "{$run,$end}" "$folder/answer"
    done
    answer=$(sed -n 's/^{"answer":"\([a-z_]*\)".*/\1/p' "$folder/answer")
    echo "${answer:-$(cat "$folder/answer")} $JOEX_JOB $JOEX_LOCK_ID"
}

while [ -z "$leaving" ]; do
    call accept "{\"type\":\"$type\",\"worker\":\"$name\",\"wait\":$patience}" "$folder/job"
    case $status in
    200) work "$@" ;;
    204) ;;
    000 | 5??) sleep 2 ;;
    *)
        echo "worker.sh: $(cat "$folder/job")" >&2
        exit 1
        ;;
    esac
done
