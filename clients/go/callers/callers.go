package main

import (
	"context"
	"sync"
	"time"

	pb "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// produce sends a request and returns the response. Each caller has its own function.
type produce func(ctx context.Context, request *pb.ProduceRequest) (*pb.ProduceResponse, error)

// callers starts clients that each send a request, wait for its acknowledgement, and then send the next request.
func (l *load) callers(ctx context.Context, count int, open func(ctx context.Context, address string) produce) {
	for number := 0; number < count; number++ {
		partition := int32(number % len(l.leaders))
		call := open(ctx, l.leaders[partition])
		l.wait.Add(1)
		go func() {
			defer l.wait.Done()
			var samples []float64
			for ctx.Err() == nil {
				begun := time.Now()
				answer, err := call(ctx, l.request(partition))
				if err != nil {
					l.failed(ctx, err)
				} else if failure := answer.Partitions[0].Error; failure != nil {
					l.failed(ctx, failure)
				} else if l.measuring.Load() {
					samples = append(samples, milliseconds(begun))
				}
			}
			l.keep(samples)
		}()
	}
}

func (l *load) request(partition int32) *pb.ProduceRequest {
	records := &pb.RecordList{}
	for range l.records {
		records.Records = append(records.Records, &pb.Record{Value: l.value})
	}
	return &pb.ProduceRequest{Acks: pb.Acks_ACKS_ALL, Partitions: []*pb.ProducePartition{
		{Topic: l.topic, Partition: partition, Data: &pb.ProducePartition_Records{Records: records}}}}
}

// produceUnary returns a function that calls Produce over a new connection.
func (l *load) produceUnary(_ context.Context, address string) produce {
	client := pb.NewLogServiceClient(dial(address))
	return func(ctx context.Context, request *pb.ProduceRequest) (*pb.ProduceResponse, error) {
		return client.Produce(ctx, request)
	}
}

// produceOnStream returns a function that sends each request on a ProduceStream. A broker accepts 128 streams per listener;
// after it refuses the stream, the function makes unary calls, as log_service.proto prescribes.
func (l *load) produceOnStream(ctx context.Context, address string) produce {
	client := pb.NewLogServiceClient(dial(address))
	stream, err := client.ProduceStream(ctx)
	return func(ctx context.Context, request *pb.ProduceRequest) (*pb.ProduceResponse, error) {
		if err == nil {
			if err = stream.Send(request); err == nil {
				var answer *pb.ProduceResponse
				if answer, err = stream.Recv(); err == nil {
					return answer, nil
				}
			}
		}
		return client.Produce(ctx, request)
	}
}

// idle opens connections, makes a single call on each, and leaves them open.
func (l *load) idle(ctx context.Context, count int) {
	var opened sync.WaitGroup
	room := make(chan struct{}, 32)
	for number := 0; number < count; number++ {
		opened.Add(1)
		room <- struct{}{}
		go func() {
			defer func() { <-room; opened.Done() }()
			client := pb.NewMetadataServiceClient(dial(l.leaders[number%len(l.leaders)]))
			if _, err := client.DescribeCluster(ctx, &pb.DescribeClusterRequest{}); err != nil {
				l.failed(ctx, err)
			}
		}()
	}
	opened.Wait()
}
