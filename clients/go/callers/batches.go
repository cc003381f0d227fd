package main

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	pb "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const (
	linger         = 5 * time.Millisecond
	inFlight       = 5     // unanswered requests per leader
	spreadWindow   = 5_000 // unacknowledged records of the spread load
	tailRatePerSec = 1_000
	largeMinBytes  = 256 << 10 // min_bytes of the consumers of the wait load
)

// batcher collects the records of one leader during the linger time and sends them in one request.
type batcher struct {
	load   *load
	client pb.LogServiceClient
	acked  func(sent []time.Time, err error)
	room   chan struct{}

	mu      sync.Mutex
	pending map[int32]*pb.RecordList
	sent    []time.Time
}

func (l *load) batchers(acked func(sent []time.Time, err error)) map[string]*batcher {
	found := map[string]*batcher{}
	for _, address := range l.leaders {
		if found[address] == nil {
			found[address] = &batcher{load: l, client: pb.NewLogServiceClient(dial(address)), acked: acked,
				room: make(chan struct{}, inFlight)}
		}
	}
	return found
}

// add queues a record; the first record of a batch starts the linger time.
func (b *batcher) add(ctx context.Context, partition int32, value []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending == nil {
		b.pending = map[int32]*pb.RecordList{}
		time.AfterFunc(linger, func() { b.send(ctx) })
	}
	list := b.pending[partition]
	if list == nil {
		list = &pb.RecordList{}
		b.pending[partition] = list
	}
	list.Records = append(list.Records, &pb.Record{Value: value})
	b.sent = append(b.sent, time.Now())
}

func (b *batcher) send(ctx context.Context) {
	b.room <- struct{}{}
	defer func() { <-b.room }()
	b.mu.Lock()
	pending, sent := b.pending, b.sent
	b.pending, b.sent = nil, nil
	b.mu.Unlock()
	request := &pb.ProduceRequest{Acks: pb.Acks_ACKS_ALL}
	for partition, records := range pending {
		request.Partitions = append(request.Partitions, &pb.ProducePartition{
			Topic: b.load.topic, Partition: partition, Data: &pb.ProducePartition_Records{Records: records}})
	}
	answer, err := b.client.Produce(ctx, request)
	if err != nil {
		b.load.failed(ctx, err)
	} else {
		for _, result := range answer.Partitions {
			if result.Error != nil {
				b.load.failed(ctx, result.Error)
			}
		}
	}
	b.acked(sent, err)
}

// spread writes records to random partitions, with a linger time, as fast as the cluster acknowledges them.
func (l *load) spread(ctx context.Context) {
	window := make(chan struct{}, spreadWindow)
	batchers := l.batchers(func(sent []time.Time, err error) {
		samples := make([]float64, 0, len(sent))
		for _, at := range sent {
			samples = append(samples, milliseconds(at))
			<-window
		}
		if err == nil && l.measuring.Load() {
			l.keep(samples)
		}
	})
	l.wait.Add(1)
	go func() {
		defer l.wait.Done()
		for {
			select {
			case window <- struct{}{}:
				partition := int32(rand.IntN(len(l.leaders)))
				batchers[l.leaders[partition]].add(ctx, partition, l.value)
			case <-ctx.Done():
				return
			}
		}
	}()
}

// tail writes 1,000 records a second, and each consumer reads all of them. A sample is the time from the send of a record
// until a consumer receives it.
func (l *load) tail(ctx context.Context, count int) {
	l.consumers(ctx, count, 1)
	batchers := l.batchers(func([]time.Time, error) {})
	l.wait.Add(1)
	go func() {
		defer l.wait.Done()
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for number := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				for range tailRatePerSec / 100 {
					value := make([]byte, len(l.value))
					binary.BigEndian.PutUint64(value, uint64(time.Now().UnixMicro()))
					partition := int32(number % len(l.leaders))
					batchers[l.leaders[partition]].add(ctx, partition, value)
					number++
				}
			}
		}
	}()
}

// consumers starts consumers that each read all partitions, with one connection to each leader.
func (l *load) consumers(ctx context.Context, count int, minBytes int32) {
	for number := 0; number < count; number++ {
		byLeader := map[string][]int32{}
		for partition, address := range l.leaders {
			byLeader[address] = append(byLeader[address], int32(partition))
		}
		for address, partitions := range byLeader {
			l.wait.Add(1)
			go l.consume(ctx, pb.NewLogServiceClient(dial(address)), partitions, minBytes)
		}
	}
}

// consume reads new records of some partitions of one leader until ctx ends, and measures records with a time of sending.
func (l *load) consume(ctx context.Context, client pb.LogServiceClient, partitions []int32, minBytes int32) {
	defer l.wait.Done()
	next := map[int32]int64{}
	query := &pb.ListOffsetsRequest{}
	for _, partition := range partitions {
		query.Partitions = append(query.Partitions, &pb.ListOffsetsPartition{Topic: l.topic, Partition: partition,
			Spec: pb.OffsetSpec_OFFSET_SPEC_LATEST})
	}
	for len(next) == 0 && ctx.Err() == nil {
		answer, err := client.ListOffsets(ctx, query)
		if err != nil {
			l.failed(ctx, err)
			continue
		}
		for _, result := range answer.Partitions {
			next[result.Partition] = result.GetOffset()
		}
	}
	var samples []float64
	for ctx.Err() == nil {
		request := &pb.FetchRequest{MaxWaitMs: 500, MinBytes: minBytes, Format: pb.FetchFormat_FETCH_FORMAT_RECORDS}
		for _, partition := range partitions {
			request.Partitions = append(request.Partitions, &pb.FetchPartition{Topic: l.topic, Partition: partition,
				FetchOffset: next[partition]})
		}
		answer, err := client.Fetch(ctx, request)
		if err != nil {
			l.failed(ctx, err)
			continue
		}
		nowMicro, measuring := time.Now().UnixMicro(), l.measuring.Load()
		for _, result := range answer.Partitions {
			if result.Error != nil {
				l.failed(ctx, result.Error)
			}
			l.deliver(len(result.GetRecords().GetRecords()))
			for _, record := range result.GetRecords().GetRecords() {
				next[result.Partition] = record.Offset + 1
				if measuring && len(record.Value) >= 8 {
					if sentMicro := int64(binary.BigEndian.Uint64(record.Value)); sentMicro > 0 {
						samples = append(samples, float64(nowMicro-sentMicro)/1000)
					}
				}
			}
		}
	}
	l.keep(samples)
}
