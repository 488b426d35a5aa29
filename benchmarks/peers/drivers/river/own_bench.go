package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strconv"

	"github.com/riverqueue/river/cmd/river/riverbench"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

var overall = regexp.MustCompile(`total jobs worked \[ *(\d+) \].*overall job/sec \[ *([\d.]+) \]`)

// River's own benchmark, `river bench --num-total-jobs` ("Fixed job burn down" of the page "Benchmarks"), by the
// package its program runs, over the River of this module. It inserts all jobs, starts 2,000 workers and prints how many
// jobs per second they completed, without a figure of the insertion. It empties River's tables first.
func ownBench(ctx context.Context, given options) error {
	pool, err := connect(ctx, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	bench := riverbench.NewBenchmarker(riverpgxv5.New(pool), &riverbench.Config{Logger: logger})
	output, err := captured(func() error { return bench.Run(ctx, 0, given.jobs) })
	if err != nil {
		return err
	}
	found := overall.FindSubmatch(output)
	if found == nil {
		return fmt.Errorf("no figure in what River's bench said: %s", output)
	}
	perSecond, err := strconv.ParseFloat(string(found[2]), 64)
	if err != nil {
		return err
	}
	tell(map[string]any{"worked_per_s": perSecond})
	return nil
}

// What the run prints on stdout; it goes to stderr too, for people.
func captured(run func() error) ([]byte, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	var output bytes.Buffer
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.MultiWriter(&output, os.Stderr), read)
	}()
	stdout := os.Stdout
	os.Stdout = write
	err = run()
	os.Stdout = stdout
	write.Close()
	<-drained
	return output.Bytes(), err
}
