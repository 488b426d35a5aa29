package main

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/riverqueue/river"
)

// Noop does nothing; the process tells now and then how many there were.
type Noop struct{}

// Stamp tells how late it started.
type Stamp struct {
	Sent float64 `json:"sent"`
}

// Sleep sleeps, and tells when.
type Sleep struct {
	Group        string  `json:"group"`
	Milliseconds int     `json:"ms"`
	Sent         float64 `json:"sent"`
}

func (Noop) Kind() string  { return "noop" }
func (Stamp) Kind() string { return "stamp" }
func (Sleep) Kind() string { return "sleep" }

var _, recovery = os.LookupEnv("RECOVERY") // see protocol.py

func workers(noops *progress) *river.Workers {
	all := river.NewWorkers()
	river.AddWorker(all, river.WorkFunc(func(context.Context, *river.Job[Noop]) error {
		noops.ran()
		return nil
	}))
	river.AddWorker(all, river.WorkFunc(func(_ context.Context, job *river.Job[Stamp]) error {
		tell(map[string]any{"late": now() - job.Args.Sent})
		return nil
	}))
	river.AddWorker(all, river.WorkFunc(func(_ context.Context, job *river.Job[Sleep]) error {
		start := now()
		if recovery {
			tell(map[string]any{"group": job.Args.Group, "began": start})
		}
		time.Sleep(time.Duration(job.Args.Milliseconds) * time.Millisecond)
		tell(map[string]any{"group": job.Args.Group, "sent": job.Args.Sent, "start": start, "end": now()})
		return nil
	}))
	return all
}

const reportEach = 50 * time.Millisecond

// What is told of the noop jobs: at most one line each reportEach, and always one of the last.
type progress struct {
	mutex       sync.Mutex
	started, at float64
	done        int
	due         *time.Timer
}

func (p *progress) ran() {
	at := now()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.done == 0 {
		p.started = at
	}
	p.done++
	p.at = at
	if p.due == nil {
		p.due = time.AfterFunc(reportEach, p.flush)
	}
}

func (p *progress) flush() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.due == nil {
		return
	}
	p.due.Stop()
	p.due = nil
	tell(map[string]any{"started": p.started, "done": p.done, "at": p.at})
}
