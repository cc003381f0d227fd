// Command roundtrip creates a topic, writes records to every partition's leader and reads them back, with nothing but
// the stubs that protoc generates from Paceline's protos. It shows what a program needs to do by itself when there is
// no client library for its language: find the active controller, find leaders, follow hints, retry.
//
// It prints one JSON object and exits 0 when every acknowledged record came back at its offset, 3 when one did not,
// 1 when it could not finish, 2 on bad flags.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	exitFailure  = 1
	exitUsage    = 2
	exitMismatch = 3
)

// options are the command line.
type options struct {
	bootstrap         []string
	topic             string
	partitions        int
	replicationFactor int
	records           int
	batch             int
	pause             time.Duration
	timeout           time.Duration
}

func parseOptions(arguments []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("roundtrip", flag.ContinueOnError)
	bootstrap := flags.String("bootstrap", cmp.Or(os.Getenv("PACELINE_BOOTSTRAP_SERVERS"), "127.0.0.1:9102"), "client addresses of brokers or controllers, HOST:PORT, comma separated")
	flags.StringVar(&o.topic, "topic", "", "topic to create (default go-roundtrip-TIME)")
	flags.IntVar(&o.partitions, "partitions", 3, "partitions of the topic")
	flags.IntVar(&o.replicationFactor, "replication-factor", 3, "replicas of each partition")
	flags.IntVar(&o.records, "records", 1000, "records to write per partition")
	flags.IntVar(&o.batch, "batch", 100, "records per Produce call")
	flags.DurationVar(&o.pause, "pause", 0, "pause between Produce calls, to watch a failover")
	flags.DurationVar(&o.timeout, "timeout", time.Minute, "longest time for everything")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.partitions < 1 || o.replicationFactor < 1 || o.records < 1 || o.batch < 1 || o.timeout <= 0 {
		return o, fmt.Errorf("partitions, replication-factor, records, batch and timeout must be positive")
	}
	for _, address := range strings.Split(*bootstrap, ",") {
		if address = strings.TrimSpace(address); address != "" {
			o.bootstrap = append(o.bootstrap, address)
		}
	}
	if len(o.bootstrap) == 0 {
		return o, fmt.Errorf("bootstrap names no address")
	}
	if o.topic == "" {
		o.topic = fmt.Sprintf("go-roundtrip-%d", time.Now().UnixMilli())
	}
	return o, nil
}

func main() {
	o, err := parseOptions(os.Args[1:])
	if err != nil {
		if err != flag.ErrHelp {
			fmt.Fprintln(os.Stderr, "roundtrip:", err)
			os.Exit(exitUsage)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	summary, err := run(ctx, o)
	if summary != nil {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		if encodeErr := encoder.Encode(summary); encodeErr != nil && err == nil {
			err = encodeErr
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "roundtrip:", err)
		os.Exit(exitFailure)
	}
	if len(summary.Mismatches) > 0 {
		fmt.Fprintf(os.Stderr, "roundtrip: %d mismatches, the first: %s\n", len(summary.Mismatches), summary.Mismatches[0])
		os.Exit(exitMismatch)
	}
}
