// Command group prints the records of a topic as a member of a consumer group, until interrupted. Start it several times:
// the members share the partitions, and the others take over the partitions of a member that stops.
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
	"time"

	"github.com/paceline/paceline/clients/go/paceline"
)

func main() {
	bootstrap := flag.String("bootstrap", cmp.Or(os.Getenv("PACELINE_BOOTSTRAP_SERVERS"), "127.0.0.1:9102"), "addresses, separated by commas")
	topic := flag.String("topic", "rides", "topic to read")
	group := flag.String("group", "riders", "name of the group")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client, err := paceline.NewClient(paceline.Config{Bootstrap: strings.Split(*bootstrap, ",")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	consumer, err := client.NewGroupConsumer(paceline.GroupConfig{
		GroupID: *group, Topics: []string{*topic},
		OnAssigned: func(_ context.Context, partitions []paceline.TopicPartition) { log.Print("assigned: ", partitions) },
		OnRevoked:  func(_ context.Context, partitions []paceline.TopicPartition) { log.Print("revoked: ", partitions) },
	})
	if err != nil {
		log.Fatal(err)
	}
	err = read(ctx, consumer)
	leave, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if problem := consumer.Close(leave); problem != nil { // commits and leaves, so that the others take over at once
		log.Print(problem)
	}
	if !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func read(ctx context.Context, consumer *paceline.GroupConsumer) error {
	for {
		records, err := consumer.Poll(ctx)
		var truncated *paceline.TruncatedError
		if errors.As(err, &truncated) {
			log.Print(truncated) // The next poll continues at the divergent offset.
		} else if err != nil {
			return err
		}
		for _, record := range records {
			fmt.Printf("%d/%d %s=%s\n", record.Partition, record.Offset, record.Key, record.Value)
		}
	}
}
