// Command watch prints the events of a cluster as they happen: elections, changes of ISRs, brokers, topics.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
	"github.com/paceline/paceline/clients/go/paceline"
)

func main() {
	bootstrap := flag.String("bootstrap", cmp.Or(os.Getenv("PACELINE_BOOTSTRAP_SERVERS"), "127.0.0.1:9102"), "addresses, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client, err := paceline.NewClient(paceline.Config{Bootstrap: strings.Split(*bootstrap, ",")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = client.WatchEvents(ctx, func(batch *pacelinev1.EventBatch) error {
		if batch.Gap != nil {
			log.Print("events are missing here: ", protojson.Format(batch.Gap))
		}
		for _, event := range batch.GetEvents() {
			fmt.Println(protojson.Format(event))
		}
		return nil
	})
	if ctx.Err() == nil {
		log.Fatal(err)
	}
}
