// Command admin creates and describes a topic, or deletes it with -delete.
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

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
	"github.com/paceline/paceline/clients/go/paceline"
)

func main() {
	bootstrap := flag.String("bootstrap", cmp.Or(os.Getenv("PACELINE_BOOTSTRAP_SERVERS"), "127.0.0.1:9102"), "addresses, separated by commas")
	topic := flag.String("topic", "rides", "topic")
	partitions := flag.Int("partitions", 3, "partitions of a new topic")
	replicas := flag.Int("replicas", 3, "replicas of each")
	remove := flag.Bool("delete", false, "delete the topic instead")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := paceline.NewClient(paceline.Config{Bootstrap: strings.Split(*bootstrap, ",")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if *remove {
		if err := client.DeleteTopic(ctx, *topic); err != nil {
			log.Fatal(err)
		}
		fmt.Println("deleted", *topic)
		return
	}
	_, err = client.CreateTopic(ctx, paceline.Topic{
		Name: *topic, Partitions: *partitions, ReplicationFactor: *replicas,
		Configs: map[string]string{"min.insync.replicas": "2"},
	})
	if err != nil && paceline.CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_TOPIC_ALREADY_EXISTS {
		log.Fatal(err)
	}
	description, err := client.DescribeTopic(ctx, *topic)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("topic", *topic, "id", description.GetTopicId())
	for _, partition := range description.GetPartitions() {
		fmt.Printf("partition %d: leader %d, replicas %v, in sync %v\n",
			partition.GetPartition(), partition.GetLeader(), partition.GetReplicas(), partition.GetIsr())
	}
}
