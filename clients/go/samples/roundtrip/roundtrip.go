package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// longestMismatchList limits the mismatches that the program prints.
const longestMismatchList = 20

// summary is what the program prints.
type summary struct {
	ClusterID           string             `json:"cluster_id"`
	ControllerID        int32              `json:"controller_id"`
	Brokers             int                `json:"brokers"`
	Topic               string             `json:"topic"`
	TopicID             string             `json:"topic_id"`
	Partitions          []partitionSummary `json:"partitions"`
	Acknowledged        int                `json:"acknowledged"`
	Read                int                `json:"read"`
	Retries             int                `json:"retries"`
	UnknownOutcomes     int                `json:"unknown_outcomes"`
	LeaderHints         int                `json:"leader_hints_followed"`
	ControllerRedirects int                `json:"controller_redirects_followed"`
	Mismatches          []string           `json:"mismatches"`
	Seconds             float64            `json:"seconds"`

	// The producer id, with which the broker detects a repeated batch.
	producer *pacelinev1.InitProducerIdResponse
}

// partitionSummary is the part of the summary about one partition.
type partitionSummary struct {
	Partition     int32 `json:"partition"`
	Leader        int32 `json:"leader"`
	Acknowledged  int   `json:"acknowledged"`
	Read          int   `json:"read"`
	HighWatermark int64 `json:"high_watermark"`

	// The acknowledged records: number of the record, from 0, by offset.
	written map[int64]int
	// Sequence number of the next record.
	sequence int32
}

// run creates the topic, writes the records and reads them back. The summary is nil if the cluster was not reached.
func run(ctx context.Context, o options) (*summary, error) {
	start := time.Now()
	transport, err := transportCredentials()
	if err != nil {
		return nil, err
	}
	c := newCluster(o.bootstrap, transport)
	defer c.close()
	s := &summary{Topic: o.topic, Mismatches: []string{}}
	defer func() {
		s.Seconds = time.Since(start).Seconds()
		s.LeaderHints, s.ControllerRedirects = c.leaderHints, c.controllerRedirects
	}()

	err = retry(ctx, "describing the cluster", func(ctx context.Context) error {
		description, err := c.describe(ctx)
		s.ClusterID, s.ControllerID = description.GetClusterId(), description.GetControllerId()
		s.Brokers = len(description.GetBrokers())
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := createTopic(ctx, c, o); err != nil {
		return s, err
	}
	description, err := c.awaitLeaders(ctx, o.topic, o.partitions)
	if err != nil {
		return s, err
	}
	s.TopicID = description.GetTopicId()
	for _, partition := range description.GetPartitions() {
		s.Partitions = append(s.Partitions, partitionSummary{
			Partition: partition.GetPartition(), Leader: partition.GetLeader(), written: map[int64]int{},
		})
	}
	err = retry(ctx, "taking a producer id", func(ctx context.Context) error {
		return c.askAny(ctx, func(ctx context.Context, connection *grpc.ClientConn) error {
			producer, err := pacelinev1.NewLogServiceClient(connection).InitProducerId(ctx, &pacelinev1.InitProducerIdRequest{})
			s.producer = producer
			return err
		})
	})
	if err != nil {
		return s, err
	}
	if err := produceAll(ctx, c, o, s); err != nil {
		return s, err
	}
	for i := range s.Partitions {
		if err := readBack(ctx, c, o, s, &s.Partitions[i]); err != nil {
			return s, err
		}
	}
	return s, nil
}

// createTopic asks the active controller for the topic. A retry may find that the first try has created it.
func createTopic(ctx context.Context, c *cluster, o options) error {
	partitions, replicas := int32(o.partitions), int32(o.replicationFactor)
	tries := 0
	return c.onController(ctx, "creating "+o.topic, func(ctx context.Context, admin pacelinev1.AdminServiceClient) error {
		tries++
		answer, err := admin.CreateTopics(ctx, &pacelinev1.CreateTopicsRequest{
			Topics: []*pacelinev1.NewTopic{{
				Name: o.topic, Partitions: &partitions, ReplicationFactor: &replicas,
				Configs: map[string]string{"min.insync.replicas": fmt.Sprint(min(2, o.replicationFactor))},
			}},
			TimeoutMs: int32((callTimeout - time.Second).Milliseconds()),
		})
		if err != nil {
			return err
		}
		for _, result := range answer.GetTopics() {
			if result.GetError() == nil {
				continue
			}
			if tries > 1 && result.GetError().GetCode() == pacelinev1.ErrorCode_ERROR_CODE_TOPIC_ALREADY_EXISTS {
				continue
			}
			return &topicFailure{result.GetName(), result.GetError()}
		}
		return nil
	})
}

// content returns the n-th record of a partition.
func content(partition int32, n int) *pacelinev1.Record {
	return &pacelinev1.Record{
		Key:     fmt.Appendf(nil, "key-%d-%d", partition, n),
		Value:   fmt.Appendf(nil, "value-%d-%d", partition, n),
		Headers: []*pacelinev1.Header{{Key: "sequence", Value: fmt.Appendf(nil, "%d", n)}, {Key: "null"}},
	}
}

// produceAll writes one batch to each partition in turn, so that a failover affects writes to all partitions.
func produceAll(ctx context.Context, c *cluster, o options, s *summary) error {
	for first := 0; first < o.records; first += o.batch {
		for i := range s.Partitions {
			p := &s.Partitions[i]
			count := min(o.batch, o.records-first)
			base, err := produce(ctx, c, o, s, p, first, count)
			if err != nil {
				return err
			}
			for n := range count {
				p.written[base+int64(n)] = first + n
			}
			p.Acknowledged += count
			s.Acknowledged += count
		}
		if o.pause > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(o.pause):
			}
		}
	}
	return nil
}

// produce writes records to the partition's leader, waits for every in-sync replica, and returns the first offset. A call
// whose outcome is not known is repeated with the same sequence number, so that nothing is written twice.
func produce(ctx context.Context, c *cluster, o options, s *summary, p *partitionSummary, first, count int) (int64, error) {
	list := &pacelinev1.RecordList{
		ProducerId: &s.producer.ProducerId, ProducerEpoch: &s.producer.ProducerEpoch, BaseSequence: proto.Int32(p.sequence),
	}
	for n := range count {
		list.Records = append(list.Records, content(p.Partition, first+n))
	}
	var base int64
	tries := 0
	what := fmt.Sprintf("writing to partition %d", p.Partition)
	err := c.onLeader(ctx, o.topic, p.Partition, what, func(ctx context.Context, log pacelinev1.LogServiceClient) error {
		if tries++; tries > 1 {
			s.Retries++
		}
		answer, err := log.Produce(ctx, &pacelinev1.ProduceRequest{
			Acks: pacelinev1.Acks_ACKS_ALL, TimeoutMs: int32((callTimeout - 2*time.Second).Milliseconds()),
			Partitions: []*pacelinev1.ProducePartition{{
				Topic: o.topic, Partition: p.Partition, TopicId: s.TopicID, CurrentLeaderEpoch: c.epochOf(p.Partition),
				Data: &pacelinev1.ProducePartition_Records{Records: list},
			}},
		})
		if err == nil && len(answer.GetPartitions()) != 1 {
			err = fmt.Errorf("the response has %d partitions, expected 1", len(answer.GetPartitions()))
		} else if err == nil && answer.GetPartitions()[0].GetError() != nil {
			err = &partitionFailure{answer.GetPartitions()[0].GetError()}
		}
		if err != nil {
			if outcomeUnknown(err) {
				s.UnknownOutcomes++
			}
			return err
		}
		base = answer.GetPartitions()[0].GetBaseOffset()
		return nil
	})
	p.sequence += int32(count)
	return base, err
}

// readBack reads a partition up to its high watermark and compares its records with the acknowledged records.
func readBack(ctx context.Context, c *cluster, o options, s *summary, p *partitionSummary) error {
	mismatch := func(format string, values ...any) {
		if len(s.Mismatches) < longestMismatchList {
			s.Mismatches = append(s.Mismatches, fmt.Sprintf("partition %d: ", p.Partition)+fmt.Sprintf(format, values...))
		}
	}
	var end int64
	for offset := range p.written {
		end = max(end, offset+1)
	}
	missing := len(p.written)
	extra := 0
	for next := int64(0); next < end || next < p.HighWatermark; {
		records, err := fetch(ctx, c, o, s, p, next)
		if err != nil {
			return err
		}
		for _, record := range records {
			if record.GetOffset() != next {
				mismatch("offset %d came where %d was expected", record.GetOffset(), next)
			}
			next = record.GetOffset() + 1
			p.Read++
			s.Read++
			number, acknowledged := p.written[record.GetOffset()]
			if !acknowledged {
				extra++
				continue
			}
			missing--
			if problem := difference(record, content(p.Partition, number)); problem != "" {
				mismatch("offset %d: %s", record.GetOffset(), problem)
			}
		}
	}
	if missing > 0 {
		mismatch("%d acknowledged records are missing", missing)
	}
	if extra > 0 {
		mismatch("%d records that were not acknowledged", extra)
	}
	return nil
}

// fetch returns committed records of the partition from an offset on, or none.
func fetch(ctx context.Context, c *cluster, o options, s *summary, p *partitionSummary, offset int64) ([]*pacelinev1.Record, error) {
	var records []*pacelinev1.Record
	what := fmt.Sprintf("reading partition %d from offset %d", p.Partition, offset)
	err := c.onLeader(ctx, o.topic, p.Partition, what, func(ctx context.Context, log pacelinev1.LogServiceClient) error {
		answer, err := log.Fetch(ctx, &pacelinev1.FetchRequest{
			MaxWaitMs: 500, MinBytes: 1, Format: pacelinev1.FetchFormat_FETCH_FORMAT_RECORDS,
			Partitions: []*pacelinev1.FetchPartition{{
				Topic: o.topic, Partition: p.Partition, TopicId: s.TopicID, FetchOffset: offset,
				CurrentLeaderEpoch: c.epochOf(p.Partition),
			}},
		})
		if err != nil {
			return err
		}
		if len(answer.GetPartitions()) != 1 {
			return fmt.Errorf("the response has %d partitions, expected 1", len(answer.GetPartitions()))
		}
		result := answer.GetPartitions()[0]
		if result.GetError() != nil {
			return &partitionFailure{result.GetError()}
		}
		p.HighWatermark = max(p.HighWatermark, result.GetHighWatermark())
		records = result.GetRecords().GetRecords()
		return nil
	})
	if err == nil && len(records) == 0 && ctx.Err() != nil {
		err = fmt.Errorf("%s: %w", what, ctx.Err())
	}
	return records, err
}

// difference describes the first field that differs from the written record, or returns "".
func difference(got, want *pacelinev1.Record) string {
	if !bytes.Equal(got.GetKey(), want.GetKey()) {
		return fmt.Sprintf("key is %q, not %q", got.GetKey(), want.GetKey())
	}
	if !bytes.Equal(got.GetValue(), want.GetValue()) {
		return fmt.Sprintf("value is %q, not %q", got.GetValue(), want.GetValue())
	}
	if len(got.GetHeaders()) != len(want.GetHeaders()) {
		return fmt.Sprintf("%d headers, not %d", len(got.GetHeaders()), len(want.GetHeaders()))
	}
	for i, header := range want.GetHeaders() {
		other := got.GetHeaders()[i]
		if other.GetKey() != header.GetKey() || !bytes.Equal(other.GetValue(), header.GetValue()) {
			return fmt.Sprintf("header %d is %q=%q, not %q=%q", i, other.GetKey(), other.GetValue(), header.GetKey(), header.GetValue())
		}
		// An absent value is null, which differs from an empty value.
		if (other.Value == nil) != (header.Value == nil) {
			return fmt.Sprintf("header %q: the value is null instead of empty, or empty instead of null", header.GetKey())
		}
	}
	if got.TimestampMs == nil {
		return "no timestamp"
	}
	return ""
}
