package main

import (
	"context"
	"encoding/json"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"golang.org/x/sync/errgroup"
)

func submit(ctx context.Context, given options) error {
	client, pool, err := producer(ctx, given.connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	started := time.Now()
	var taken atomic.Int64
	err = together(given.connections, func() error {
		for {
			first := int(taken.Add(int64(given.batch))) - given.batch
			if first >= given.jobs {
				return nil
			}
			if err := insertNoops(ctx, client, min(given.batch, given.jobs-first)); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	tell(map[string]any{"seconds": time.Since(started).Seconds()})
	return nil
}

func insertNoops(ctx context.Context, client *river.Client[pgx.Tx], n int) error {
	if n == 1 {
		_, err := client.Insert(ctx, Noop{}, nil)
		return err
	}
	params := make([]river.InsertManyParams, n)
	for i := range params {
		params[i].Args = Noop{}
	}
	_, err := client.InsertManyFast(ctx, params)
	return err
}

func trickle(ctx context.Context, given options) error {
	client, pool, err := producer(ctx, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	for range given.jobs {
		time.Sleep(time.Duration(given.pause) * time.Millisecond)
		if _, err := client.Insert(ctx, Stamp{Sent: now()}, nil); err != nil {
			return err
		}
	}
	tell(map[string]any{"submitted": given.jobs})
	return nil
}

func plan(ctx context.Context, given options) error {
	entries, err := readPlan(given.file)
	if err != nil {
		return err
	}
	client, pool, err := producer(ctx, given.parallel)
	if err != nil {
		return err
	}
	defer pool.Close()
	started := time.Now()
	var taken atomic.Int64
	err = together(given.parallel, func() error {
		for {
			i := int(taken.Add(1)) - 1
			if i >= len(entries) {
				return nil
			}
			time.Sleep(time.Until(started.Add(entries[i].at)))
			job := entries[i].job
			job.Sent = now()
			if _, err := client.Insert(ctx, job, nil); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	tell(map[string]any{"submitted": len(entries), "seconds": time.Since(started).Seconds()})
	return nil
}

type planned struct {
	at  time.Duration
	job Sleep
}

func (p *planned) UnmarshalJSON(data []byte) error {
	var at float64
	if err := json.Unmarshal(data, &[]any{&at, &p.job.Group, &p.job.Milliseconds}); err != nil {
		return err
	}
	p.at = time.Duration(at * float64(time.Second))
	return nil
}

func readPlan(file string) (entries []planned, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return entries, json.Unmarshal(data, &entries)
}

// A client that only submits, over as many connections, which are made already.
func producer(ctx context.Context, connections int) (*river.Client[pgx.Tx], *pgxpool.Pool, error) {
	pool, err := connect(ctx, connections)
	if err != nil {
		return nil, nil, err
	}
	config := &river.Config{FetchCooldown: river.FetchCooldownMin, Logger: quiet()}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	return client, pool, err
}

func together(n int, task func() error) error {
	var group errgroup.Group
	for range n {
		group.Go(task)
	}
	return group.Wait()
}
