// Command consume prints the records of a topic from its beginning until interrupted.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/paceline/paceline/clients/go/paceline"
)

func main() {
	bootstrap := flag.String("bootstrap", cmp.Or(os.Getenv("PACELINE_BOOTSTRAP_SERVERS"), "127.0.0.1:9102"), "addresses, separated by commas")
	topic := flag.String("topic", "rides", "topic to read")
	count := flag.Int("count", 0, "end after this many records; 0: never")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client, err := paceline.NewClient(paceline.Config{Bootstrap: strings.Split(*bootstrap, ",")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	description, err := client.DescribeTopic(ctx, *topic)
	if err != nil {
		log.Fatal(err)
	}
	consumer := client.NewConsumer(paceline.ConsumerConfig{Reset: paceline.ResetToEarliest})
	for _, partition := range description.GetPartitions() {
		consumer.AssignFrom(*topic, partition.GetPartition(), paceline.Earliest())
	}
	for read := 0; *count == 0 || read < *count; {
		records, err := consumer.Poll(ctx)
		var truncated *paceline.TruncatedError
		switch {
		case errors.Is(err, context.Canceled):
			return
		case errors.As(err, &truncated):
			log.Print(truncated) // The next poll continues at the divergent offset.
			continue
		case err != nil:
			log.Fatal(err)
		}
		for _, record := range records {
			fmt.Printf("%d/%d %s=%s\n", record.Partition, record.Offset, record.Key, record.Value)
		}
		read += len(records)
	}
}
