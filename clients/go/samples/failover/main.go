// Command failover writes numbered records while you kill brokers, reads them back, and prints the counts as JSON. The exit
// code is 3 if a record was not acknowledged, or an acknowledged record was lost, doubled or reordered.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/paceline/paceline/clients/go/paceline"
)

type summary struct {
	Topic        string  `json:"topic"`
	Acknowledged int     `json:"acknowledged"`
	Failed       int     `json:"failed"`
	Read         int     `json:"read"`
	Lost         int     `json:"lost"`
	Doubled      int     `json:"doubled"`
	Reordered    int     `json:"reordered"`
	Seconds      float64 `json:"seconds"`
}

func main() {
	bootstrap := flag.String("bootstrap", cmp.Or(os.Getenv("PACELINE_BOOTSTRAP_SERVERS"), "127.0.0.1:9102"), "addresses, separated by commas")
	topic := flag.String("topic", fmt.Sprintf("go-failover-%d", time.Now().UnixMilli()), "topic; it is created")
	count := flag.Int("count", 100_000, "number of records")
	rate := flag.Int("rate", 10_000, "records a second; 0: as fast as possible")
	flag.Parse()
	result, err := run(strings.Split(*bootstrap, ","), *topic, *count, *rate)
	if result != nil {
		_ = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		log.Fatal(err)
	}
	if result.Lost+result.Doubled+result.Reordered+result.Failed > 0 {
		os.Exit(3)
	}
}

func run(bootstrap []string, topic string, count, rate int) (*summary, error) {
	const partitions = 3
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	client, err := paceline.NewClient(paceline.Config{Bootstrap: bootstrap})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, err := client.CreateTopic(ctx, paceline.Topic{
		Name: topic, Partitions: partitions, ReplicationFactor: 3, Configs: map[string]string{"min.insync.replicas": "2"},
	}); err != nil {
		return nil, err
	}
	result := &summary{Topic: topic}
	producer := client.NewProducer(paceline.ProducerConfig{Linger: 5 * time.Millisecond})
	deliveries := make([]*paceline.Delivery, count)
	for i := range deliveries {
		partition := paceline.ToPartition(int32(i % partitions))
		record := paceline.Record{Topic: topic, Partition: partition, Value: strconv.AppendInt(nil, int64(i), 10)}
		if deliveries[i], err = producer.Send(ctx, record); err != nil {
			return result, err
		}
		if rate > 0 && i%(rate/100+1) == 0 {
			time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		}
	}
	acknowledged := make([]bool, count)
	for i, delivery := range deliveries {
		if _, err := delivery.Wait(ctx); err != nil {
			result.Failed++
			log.Printf("record %d: %v", i, err)
			continue
		}
		acknowledged[i] = true
		result.Acknowledged++
	}
	err = readBack(ctx, client, topic, partitions, acknowledged, result)
	result.Seconds = time.Since(begin).Seconds()
	return result, err
}

// readBack reads every partition to its end and counts lost, doubled and reordered records.
func readBack(ctx context.Context, client *paceline.Client, topic string, partitions int, acknowledged []bool, result *summary) error {
	seen := make([]int, len(acknowledged))
	for partition := range int32(partitions) {
		end, _, err := client.ListOffset(ctx, topic, partition, paceline.Latest())
		if err != nil {
			return err
		}
		consumer := client.NewConsumer(paceline.ConsumerConfig{MaxBytes: 4 << 20})
		consumer.Assign(topic, partition, 0)
		last := -1
		for position := int64(0); position < end; position, _ = consumer.Position(topic, partition) {
			records, err := consumer.Poll(ctx)
			if err != nil {
				return err
			}
			if len(records) == 0 {
				return fmt.Errorf("partition %d: nothing to read at offset %d, the end is %d", partition, position, end)
			}
			for _, record := range records {
				number, err := strconv.Atoi(string(record.Value))
				if err != nil {
					return err
				}
				if number < last {
					result.Reordered++
				}
				last = number
				seen[number]++
				result.Read++
			}
		}
	}
	for number, times := range seen {
		if times > 1 {
			result.Doubled++
		}
		if acknowledged[number] && times == 0 {
			result.Lost++
		}
	}
	return nil
}
