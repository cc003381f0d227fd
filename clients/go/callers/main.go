// Command callers puts a Paceline cluster under the load of many small clients that use the stubs alone.
//
// It prints MEASURE when the warm-up is over, END after the measurement, and RESULT with the figures as JSON, so that
// the benchmark that starts it (benchmarks/callers.py) can read the processor time of the brokers at those moments.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// activeCallers call Produce beside the idle connections of the idle load, waitingCallers beside the waiting consumers.
const (
	activeCallers  = 50
	waitingCallers = 10
)

func main() {
	bootstrap := flag.String("bootstrap", "", "address of a broker")
	topic := flag.String("topic", "", "topic to use")
	mode := flag.String("mode", "callers", "callers, stream, gateway, tail, spread, idle or wait")
	gateway := flag.String("gateway", "", "address of the gateway of the gateway load")
	subscribers := flag.Int("subscribers", 0, "consumers that share the partitions, in the loads stream and gateway")
	records := flag.Int("records", 1, "records of a request of the loads callers, stream and gateway")
	count := flag.Int("count", 10, "callers, consumers or idle connections")
	warmUp := flag.Duration("warm-up", 4*time.Second, "time before the measurement")
	length := flag.Duration("length", 8*time.Second, "time of the measurement")
	size := flag.Int("size", 100, "bytes of a record's value")
	flag.Parse()
	load := &load{value: make([]byte, *size), topic: *topic, records: *records}
	if err := load.connect(*bootstrap); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	switch *mode {
	case "callers":
		load.callers(ctx, *count, load.produceUnary)
	case "stream":
		load.readers(ctx, *subscribers)
		load.callers(ctx, *count, load.produceOnStream)
	case "gateway":
		load.subscribers(ctx, *gateway, *subscribers)
		load.callers(ctx, *count, func(ctx context.Context, _ string) produce { return load.publishOnStream(ctx, *gateway) })
	case "tail":
		load.tail(ctx, *count)
	case "spread":
		load.spread(ctx)
	case "idle":
		load.idle(ctx, *count)
		load.callers(ctx, activeCallers, load.produceUnary)
	case "wait":
		load.consumers(ctx, *count, largeMinBytes)
		load.callers(ctx, waitingCallers, load.produceUnary)
	default:
		fmt.Fprintln(os.Stderr, "unknown -mode", *mode)
		os.Exit(2)
	}
	time.Sleep(*warmUp)
	load.measuring.Store(true)
	fmt.Println("MEASURE")
	time.Sleep(*length)
	load.measuring.Store(false)
	fmt.Println("END")
	cancel()
	load.wait.Wait()
	load.report(*length)
}

// load is the state that the goroutines of one run share.
type load struct {
	topic     string
	value     []byte
	records   int      // of a request
	leaders   []string // address of the leader, by partition
	measuring atomic.Bool
	errors    atomic.Int64
	delivered atomic.Int64 // records, while measuring
	wait      sync.WaitGroup

	mu        sync.Mutex
	latencies []float64 // milliseconds, one per request or record
}

// dial opens a connection of its own to a broker.
func dial(address string) *grpc.ClientConn {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err) // only for a malformed address
	}
	return connection
}

// connect finds the leader of each partition of the topic.
func (l *load) connect(bootstrap string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	connection := dial(bootstrap)
	defer connection.Close()
	metadata := pb.NewMetadataServiceClient(connection)
	cluster, err := metadata.DescribeCluster(ctx, &pb.DescribeClusterRequest{})
	if err != nil {
		return err
	}
	addresses := map[int32]string{}
	for _, broker := range cluster.Brokers {
		addresses[broker.Id] = fmt.Sprintf("%s:%d", broker.Host, broker.Port)
	}
	topics, err := metadata.DescribeTopics(ctx, &pb.DescribeTopicsRequest{Topics: []string{l.topic}})
	if err != nil {
		return err
	}
	l.leaders = make([]string, len(topics.Topics[0].Partitions))
	for _, partition := range topics.Topics[0].Partitions {
		address, found := addresses[partition.GetLeader()]
		if partition.Leader == nil || !found {
			return fmt.Errorf("partition %d has no live leader", partition.Partition)
		}
		l.leaders[partition.Partition] = address
	}
	return nil
}

// failed counts an error, prints the first three errors, and pauses the caller.
func (l *load) failed(ctx context.Context, failure any) {
	if ctx.Err() != nil {
		return
	}
	if l.errors.Add(1) <= 3 {
		fmt.Fprintln(os.Stderr, "error:", failure)
	}
	time.Sleep(10 * time.Millisecond)
}

// keep adds the samples of one goroutine.
func (l *load) keep(samples []float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latencies = append(l.latencies, samples...)
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

func (l *load) report(length time.Duration) {
	sort.Float64s(l.latencies)
	result := map[string]any{"count": len(l.latencies), "rate": float64(len(l.latencies)) / length.Seconds(), "errors": l.errors.Load(), "delivered": l.delivered.Load()}
	if n := len(l.latencies); n > 0 {
		result["p50_ms"], result["p99_ms"], result["max_ms"] = l.latencies[n/2], l.latencies[n*99/100], l.latencies[n-1]
	}
	text, _ := json.Marshal(result)
	fmt.Println("RESULT", string(text))
}
