package main

import (
	"context"
	"fmt"

	pb "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// publishOnStream returns a function that sends the records of each request on a PublishStream of a gateway.
func (l *load) publishOnStream(ctx context.Context, gateway string) produce {
	stream, err := pb.NewGatewayServiceClient(dial(gateway)).PublishStream(ctx)
	number := int64(0)
	return func(_ context.Context, request *pb.ProduceRequest) (*pb.ProduceResponse, error) {
		if err != nil {
			return nil, err
		}
		part := request.Partitions[0]
		records := make([]*pb.PublishRecord, 0, l.records)
		for _, record := range part.GetRecords().Records {
			records = append(records, &pb.PublishRecord{Value: record.Value})
		}
		number++
		published := &pb.PublishRequest{Topic: part.Topic, Partition: &part.Partition, Records: records}
		if failure := stream.Send(&pb.PublishStreamRequest{Number: number, Publish: published}); failure != nil {
			return nil, failure
		}
		answer, failure := stream.Recv()
		if failure != nil {
			return nil, failure
		}
		if answer.Error != nil {
			return nil, fmt.Errorf("the gateway refused the request: %v", answer.Error)
		}
		results := &pb.ProduceResponse{Partitions: []*pb.ProducePartitionResult{{}}}
		for _, result := range answer.Published.Results {
			if result.Error != nil {
				results.Partitions[0].Error = result.Error
			}
		}
		return results, nil
	}
}

// subscribers starts subscribers of one group, which acknowledge each delivery.
func (l *load) subscribers(ctx context.Context, gateway string, count int) {
	for number := 0; number < count; number++ {
		client := pb.NewGatewayServiceClient(dial(gateway))
		l.wait.Add(1)
		go func() {
			defer l.wait.Done()
			stream, err := client.Subscribe(ctx)
			if err == nil {
				wanted := &pb.Subscription{Topics: []string{l.topic}, Group: "callers"}
				err = stream.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Subscribe{Subscribe: wanted}})
			}
			for err == nil {
				var message *pb.SubscribeResponse
				if message, err = stream.Recv(); err != nil || message.GetRecords() == nil {
					continue
				}
				l.deliver(len(message.GetRecords().Records))
				done := &pb.Positions{Positions: []*pb.Position{message.GetRecords().Next}}
				err = stream.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Acknowledge{Acknowledge: done}})
			}
			l.failed(ctx, err)
		}()
	}
}

// readers starts consumers that share the partitions without a group, each with one connection to each leader.
func (l *load) readers(ctx context.Context, count int) {
	for number := 0; number < count; number++ {
		byLeader := map[string][]int32{}
		for partition := number; partition < len(l.leaders); partition += count {
			byLeader[l.leaders[partition]] = append(byLeader[l.leaders[partition]], int32(partition))
		}
		for address, partitions := range byLeader {
			l.wait.Add(1)
			go l.consume(ctx, pb.NewLogServiceClient(dial(address)), partitions, 1)
		}
	}
}

// deliver counts records that a subscriber or a consumer has received.
func (l *load) deliver(records int) {
	if l.measuring.Load() {
		l.delivered.Add(int64(records))
	}
}
