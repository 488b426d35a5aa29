// River (github.com/riverqueue/river) in the race: the driver protocol.
//
// Settings, from the comments of river.Config and the documentation's page "Benchmarks":
//   - MaxWorkers: the slots.
//   - FetchCooldown 1 ms, the least allowed: "Throughput is limited by this value". The default is 100 ms; River's own
//     bench takes 2 ms. The submitters take 1 ms too: a client sends at most one NOTIFY in that time, and a worker that
//     misses one finds the job only at its next poll.
//   - FetchPollInterval 20 ms, as River's own bench does. LISTEN/NOTIFY announces new jobs as well.
//   - The pool is as large as pgxpool makes it by default, as in River's own bench. The ends of jobs are batched by
//     default.
//
// A fetch takes no more than there are free slots, so that few slots make small fetches: River's own bench runs with
// 2,000 slots.
//
// Submission (page "Batch job insertion", "An even faster variant"): InsertManyFast, which is a COPY, for
// batches; Insert for single jobs.
//
// Groups: the open version has no fairness between them. Its queues have a fixed MaxWorkers each, must be named when
// the worker starts, and do not share idle slots; limits per partition are in River Pro (page "Concurrency
// limits"). So groups are ignored, and --fair changes nothing.
//
// Completed jobs are kept, for 24 hours by default.
//
// The command own-bench is River's own benchmark: see own_bench.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type options struct {
	file                                                     string
	jobs, batch, groups, connections, slots, pause, parallel int
	fair                                                     bool
}

var commands = map[string]func(context.Context, options) error{
	"version":   version,
	"setup":     setup,
	"submit":    submit,
	"work":      work,
	"trickle":   trickle,
	"plan":      plan,
	"pending":   pending,
	"own-bench": ownBench,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "a command is needed: version, setup, submit, work, trickle, plan, pending or own-bench")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](context.Background(), parse(os.Args[2:])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse(arguments []string) options {
	var given options
	if len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-") {
		given.file, arguments = arguments[0], arguments[1:]
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.IntVar(&given.jobs, "jobs", 1, "how many")
	flags.IntVar(&given.batch, "batch", 1, "jobs in a transaction")
	flags.IntVar(&given.groups, "groups", 1, "ignored: River knows none")
	flags.IntVar(&given.connections, "connections", 1, "in parallel")
	flags.IntVar(&given.slots, "slots", 1, "jobs at a time")
	flags.IntVar(&given.pause, "pause", 1, "milliseconds between jobs")
	flags.IntVar(&given.parallel, "parallel", 1, "submitters of the plan")
	flags.BoolVar(&given.fair, "fair", false, "ignored: River has no such setting")
	_ = flags.Parse(arguments) // it ends the process itself
	return given
}

func version(context.Context, options) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("built without module information")
	}
	river := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == "github.com/riverqueue/river" })
	tell(map[string]any{
		"version": strings.TrimPrefix(info.Deps[river].Version, "v"),
		"runtime": "go " + strings.TrimPrefix(runtime.Version(), "go"),
	})
	return nil
}

func setup(ctx context.Context, _ options) error {
	pool, err := connect(ctx, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	tell(map[string]any{"setup": true})
	return nil
}

func work(ctx context.Context, given options) error {
	terminated, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	pool, err := connect(ctx, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	noops := &progress{}
	config := &river.Config{
		Logger:  quiet(),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: given.slots}},
		Workers: workers(noops),
	}
	if !recovery {
		config.FetchCooldown = river.FetchCooldownMin
		config.FetchPollInterval = 20 * time.Millisecond
	}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	tell(map[string]any{"ready": true})
	<-terminated.Done()
	err = client.Stop(ctx)
	noops.flush()
	return err
}

func pending(ctx context.Context, _ options) error {
	connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer connection.Close(ctx)
	var n int
	err = connection.QueryRow(ctx, `SELECT count(*) FROM river_job
		WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled')`).Scan(&n)
	if err != nil {
		return err
	}
	tell(map[string]any{"pending": n})
	return nil
}

// A pool of so many connections, made already; with 0, of as many as are wanted, up to the pool's default.
func connect(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	if connections > 0 {
		config.MaxConns = int32(connections)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	made := make([]*pgxpool.Conn, connections)
	for i := range made {
		if made[i], err = pool.Acquire(ctx); err != nil {
			return nil, err
		}
	}
	for _, connection := range made {
		connection.Release()
	}
	return pool, nil
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

var printing sync.Mutex

func tell(line any) {
	printing.Lock()
	defer printing.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(line) // without a reader SIGPIPE ends the process
}

func now() float64 {
	return float64(time.Now().UnixNano()) / 1e9
}
