// Command produce writes records to a topic and prints their partitions and offsets.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/paceline/paceline/clients/go/paceline"
)

func main() {
	bootstrap := flag.String("bootstrap", cmp.Or(os.Getenv("PACELINE_BOOTSTRAP_SERVERS"), "127.0.0.1:9102"), "addresses, separated by commas")
	topic := flag.String("topic", "rides", "topic to write to")
	count := flag.Int("count", 10, "number of records")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := paceline.NewClient(paceline.Config{Bootstrap: strings.Split(*bootstrap, ",")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	producer := client.NewProducer(paceline.ProducerConfig{Linger: 5 * time.Millisecond})
	deliveries := make([]*paceline.Delivery, *count)
	for i := range deliveries {
		record := paceline.Record{
			Topic: *topic, Key: fmt.Appendf(nil, "key-%d", i%16), Value: fmt.Appendf(nil, "value-%d", i),
		}
		if deliveries[i], err = producer.Send(ctx, record); err != nil {
			log.Fatal(err)
		}
	}
	for i, delivery := range deliveries {
		offset, err := delivery.Wait(ctx)
		if err != nil {
			log.Fatalf("record %d: %v", i, err)
		}
		if *count <= 10 {
			fmt.Printf("record %d: partition %d, offset %d\n", i, delivery.Partition(), offset)
		}
	}
	fmt.Printf("%d records acknowledged by every in-sync replica\n", *count)
	if err := producer.Close(ctx); err != nil {
		log.Fatal(err)
	}
}
