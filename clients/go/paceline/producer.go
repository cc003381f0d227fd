package paceline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// otherTopicLimit is the number of answers with another topic id after which a batch of unknown outcome fails.
const otherTopicLimit = 5

// Header is one header of a record; a nil Value is null.
type Header struct {
	Key   string
	Value []byte
}

// Record is a record to send. A nil Key or Value is null, an empty one is empty.
type Record struct {
	Topic string
	// Partition, for example ToPartition(0). With nil the producer chooses it: by the key, or without a key one partition
	// per batch.
	Partition  *int32
	Key, Value []byte
	Headers    []Header
	// Timestamp; the zero value means now.
	Timestamp time.Time
}

// ToPartition names the partition of a Record.
func ToPartition(partition int32) *int32 { return &partition }

// ProducerConfig tunes a producer; zero values are defaults.
type ProducerConfig struct {
	// DeliveryTimeout bounds the delivery of a record from Send on, retries included; 0 means 2 minutes.
	DeliveryTimeout time.Duration
	// Linger is how long a batch waits for further records; 0 sends queued records at once.
	Linger time.Duration
	// BatchBytes is the size from which a batch is sent; 0 means 256 KiB.
	BatchBytes int
	// MaxPending is how many records may wait before Send blocks; 0 means 100,000.
	MaxPending int
}

// Delivery is the outcome of one record; it is complete when Done is closed.
type Delivery struct {
	done      chan struct{}
	partition int32
	offset    int64
	err       error
}

// Done is closed when the outcome is known.
func (d *Delivery) Done() <-chan struct{} { return d.done }

// Partition returns the partition the record went to, once the delivery is done.
func (d *Delivery) Partition() int32 { return d.partition }

// Wait returns the offset of the record, or the error of its delivery. It returns the error of ctx when ctx ends first.
func (d *Delivery) Wait(ctx context.Context) (int64, error) {
	select {
	case <-d.done:
		return d.offset, d.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Producer sends records with acks=all, idempotent: in order per partition, each once. It is safe for concurrent use.
type Producer struct {
	client  *Client
	config  ProducerConfig
	ctx     context.Context
	cancel  context.CancelFunc
	pending chan struct{}
	wait    sync.WaitGroup

	mu     sync.Mutex
	queues map[string]map[int32]*queue
	sticky map[string]int32
	closed bool
}

// NewProducer returns a producer of this client.
func (c *Client) NewProducer(config ProducerConfig) *Producer {
	config.DeliveryTimeout = cmp.Or(config.DeliveryTimeout, 2*time.Minute)
	config.BatchBytes = cmp.Or(config.BatchBytes, 256<<10)
	config.MaxPending = cmp.Or(config.MaxPending, 100_000)
	ctx, cancel := context.WithCancel(context.Background())
	return &Producer{
		client: c, config: config, ctx: ctx, cancel: cancel, pending: make(chan struct{}, config.MaxPending),
		queues: map[string]map[int32]*queue{}, sticky: map[string]int32{},
	}
}

// Send queues a record and returns its delivery. It blocks while too many records wait, and on the first use of a topic for
// DeliveryTimeout at most.
//
// Errors of Send and Delivery.Wait: UNKNOWN_TOPIC_OR_PARTITION when brokers have not known the topic or partition for 5 s; the
// last failure when DeliveryTimeout has passed; any failure that is not retriable.
func (p *Producer) Send(ctx context.Context, record Record) (*Delivery, error) {
	if problem := recordProblem(record); problem != "" {
		return nil, newError("sending to "+strconv.Quote(record.Topic), pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST, problem)
	}
	var partition int32
	if record.Partition != nil {
		partition = *record.Partition
	} else {
		bounded, cancel := context.WithTimeout(ctx, p.config.DeliveryTimeout)
		count, err := p.client.partitionCount(bounded, record.Topic)
		cancel()
		if err != nil {
			return nil, notSent(err)
		}
		partition = p.choose(record, count)
	}
	select {
	case p.pending <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	item := &item{record: encode(record), size: sizeOf(record), deadline: time.Now().Add(p.config.DeliveryTimeout),
		delivery: &Delivery{done: make(chan struct{}), partition: partition}}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		<-p.pending
		return nil, errors.New("paceline: the producer is closed")
	}
	p.queueOf(record.Topic, partition).put(item)
	return item.delivery, nil
}

// Flush waits until every record sent before has its outcome.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	var last []*Delivery
	for _, byPartition := range p.queues {
		for _, queue := range byPartition {
			if delivery := queue.newest(); delivery != nil {
				last = append(last, delivery)
			}
		}
	}
	p.mu.Unlock()
	for _, delivery := range last {
		select {
		case <-delivery.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close flushes, within ctx, and ends the producer. Records without an outcome by then fail.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.cancel()
	p.wait.Wait()
	return err
}

// choose returns the partition by key, or one partition until a batch of that partition is taken.
func (p *Producer) choose(record Record, count int) int32 {
	if record.Key != nil {
		return PartitionForKey(record.Key, count)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	partition, chosen := p.sticky[record.Topic]
	if !chosen || int(partition) >= count {
		partition = rand.Int32N(int32(count))
		p.sticky[record.Topic] = partition
	}
	return partition
}

func (p *Producer) queueOf(topic string, partition int32) *queue {
	byPartition := p.queues[topic]
	if byPartition == nil {
		byPartition = map[int32]*queue{}
		p.queues[topic] = byPartition
	}
	found := byPartition[partition]
	if found == nil {
		found = &queue{producer: p, topic: topic, partition: partition, wake: make(chan struct{}, 1), producerID: -1}
		byPartition[partition] = found
		p.wait.Add(1)
		go found.run()
	}
	return found
}

type item struct {
	record   *pacelinev1.Record
	size     int
	deadline time.Time
	delivery *Delivery
}

// queue sends the records of one partition, one batch at a time. It has a producer id of its own, so that an unknown
// outcome in one partition disturbs no other.
type queue struct {
	producer  *Producer
	topic     string
	partition int32
	wake      chan struct{}

	mu    sync.Mutex
	items []*item
	bytes int
	last  *Delivery

	// Used by the goroutine of run alone.
	topicID      string
	producerID   int64
	epoch        int32
	nextSequence int32
}

func (q *queue) put(next *item) {
	q.mu.Lock()
	q.items, q.bytes, q.last = append(q.items, next), q.bytes+next.size, next.delivery
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) newest() *Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.last
}

func (q *queue) run() {
	defer q.producer.wait.Done()
	for {
		select {
		case <-q.producer.ctx.Done():
			q.finish(q.take(math.MaxInt), 0, errors.New("paceline: the producer was closed before the record was delivered"))
			return
		case <-q.wake:
		}
		q.linger()
		for batch := q.take(q.producer.config.BatchBytes); len(batch) > 0; batch = q.take(q.producer.config.BatchBytes) {
			q.unstick()
			q.deliverInParts(batch)
		}
	}
}

func (q *queue) linger() {
	if q.producer.config.Linger <= 0 {
		return
	}
	timer := time.NewTimer(q.producer.config.Linger)
	defer timer.Stop()
	for {
		q.mu.Lock()
		full := q.bytes >= q.producer.config.BatchBytes
		q.mu.Unlock()
		if full {
			return
		}
		select {
		case <-timer.C:
			return
		case <-q.producer.ctx.Done():
			return
		case <-q.wake:
		}
	}
}

// unstick sends further records without a key to another partition.
func (q *queue) unstick() {
	q.producer.mu.Lock()
	defer q.producer.mu.Unlock()
	if q.producer.sticky[q.topic] == q.partition {
		delete(q.producer.sticky, q.topic)
	}
}

func (q *queue) take(limit int) []*item {
	q.mu.Lock()
	defer q.mu.Unlock()
	count, size := 0, 0
	for count < len(q.items) && (count == 0 || size+q.items[count].size <= limit) {
		size += q.items[count].size
		count++
	}
	batch := q.items[:count:count]
	q.items, q.bytes = q.items[count:], q.bytes-size
	return batch
}

func (q *queue) finish(batch []*item, base int64, err error) {
	for i, done := range batch {
		done.delivery.offset, done.delivery.err = base+int64(i), err
		close(done.delivery.done)
		<-q.producer.pending
	}
}

// deliverInParts delivers a batch, in halves if the topic does not accept a batch of this size.
func (q *queue) deliverInParts(batch []*item) {
	base, err := q.deliver(batch)
	var failure *Error
	isFailure := errors.As(err, &failure)
	isTooLarge := isFailure && failure.Code == pacelinev1.ErrorCode_ERROR_CODE_MESSAGE_TOO_LARGE
	if half := len(batch) / 2; half > 0 && isTooLarge && failure.Definite {
		q.deliverInParts(batch[:half])
		q.deliverInParts(batch[half:])
		return
	}
	q.finish(batch, base, err)
	if isFailure && failure.isMissing {
		q.finish(q.take(math.MaxInt), 0, err) // Otherwise each further batch would wait for missingLimit again.
	}
}

// deliver appends one batch and returns its first offset. It repeats the same records under the same sequence number
// until the oldest record's delivery timeout; the broker recognises a repeat of what it has appended. A leader that lost
// acknowledged records does not have the batch: it gets the batch under a new producer id.
func (q *queue) deliver(batch []*item) (int64, error) {
	ctx, cancel := context.WithDeadline(q.producer.ctx, batch[0].deadline)
	defer cancel()
	list := &pacelinev1.RecordList{}
	for _, one := range batch {
		list.Records = append(list.Records, one.record)
	}
	operation := fmt.Sprintf("producing to %s/%d", q.topic, q.partition)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		failure := newError(operation, pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT,
			"the delivery timeout has passed while earlier records were sent; this record was not sent")
		failure.Definite = true
		return 0, failure
	}
	unknown, otherTopic := false, 0
	var base int64
	err := q.producer.client.retry(ctx, operation, func(ctx context.Context) error {
		err := q.producer.client.onLeader(ctx, q.topic, q.partition, func(
			ctx context.Context, log pacelinev1.LogServiceClient, leader leaderState, topicID string,
		) error {
			if unknown && q.topicID != topicID {
				// The batch may be in the log of the deleted topic. A broker that is cut off names that topic, too, so
				// others are asked before the batch is given up.
				otherTopic++
				failure := newError(operation, pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION, "the topic was created again")
				failure.Retriable = otherTopic < otherTopicLimit
				return failure
			}
			if err := q.identify(ctx, log, list, topicID); err != nil {
				return err
			}
			var err error
			base, err = q.append(ctx, log, leader, topicID, list)
			var failure *Error
			if CodeOf(err) == pacelinev1.ErrorCode_ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER && errors.As(err, &failure) {
				// All sequence numbers before this batch were acknowledged, and no other batch is in flight.
				q.producerID, unknown, failure.Retriable = -1, false, true
				q.producer.client.logger.Warn("leader lost acknowledged records",
					slog.String("partition", fmt.Sprintf("%s/%d", q.topic, q.partition)), slog.String("cause", err.Error()))
			} else if err != nil && !(errors.As(err, &failure) && failure.Definite) {
				unknown = true
			}
			return err
		})
		var failure *Error
		if errors.As(err, &failure) && q.topicID != "" {
			failure.isMissing = false // A topic that had a leader may be created again: repeat until DeliveryTimeout.
		}
		return err
	})
	if err == nil {
		q.nextSequence = after(q.nextSequence, len(batch))
		return base, nil
	}
	if unknown {
		// It is unknown whether the broker has used these sequence numbers; a new producer id starts from 0.
		q.producerID = -1
	}
	if CodeOf(err) == pacelinev1.ErrorCode_ERROR_CODE_INVALID_PRODUCER_EPOCH {
		q.producerID = -1 // The broker accepts no further batch with this id and epoch.
	}
	var failure *Error
	if errors.As(err, &failure) {
		failure.Definite = !unknown // The last attempt may have failed definitely, an earlier one not.
	}
	return 0, err
}

// identify sets producer id, epoch and sequence of a batch, and gets a new id if there is none or the topic was re-created.
func (q *queue) identify(
	ctx context.Context, log pacelinev1.LogServiceClient, list *pacelinev1.RecordList, topicID string,
) error {
	if q.topicID != topicID {
		q.topicID, q.producerID = topicID, -1
	}
	if q.producerID < 0 {
		answer, err := log.InitProducerId(ctx, &pacelinev1.InitProducerIdRequest{})
		if err != nil {
			failure := callError(ctx, "asking for a producer id", err)
			var detail *Error
			if errors.As(failure, &detail) {
				detail.Definite = true // Nothing was appended by asking.
			}
			return failure
		}
		q.producerID, q.epoch, q.nextSequence = answer.GetProducerId(), answer.GetProducerEpoch(), 0
	}
	id, epoch, sequence := q.producerID, q.epoch, q.nextSequence
	list.ProducerId, list.ProducerEpoch, list.BaseSequence = &id, &epoch, &sequence
	return nil
}

func (q *queue) append(
	ctx context.Context, log pacelinev1.LogServiceClient, leader leaderState, topicID string, list *pacelinev1.RecordList,
) (int64, error) {
	operation := fmt.Sprintf("producing to %s/%d", q.topic, q.partition)
	answer, err := log.Produce(ctx, &pacelinev1.ProduceRequest{
		Acks: pacelinev1.Acks_ACKS_ALL, TimeoutMs: serverWait(ctx),
		Partitions: []*pacelinev1.ProducePartition{{
			Topic: q.topic, Partition: q.partition, TopicId: topicID, CurrentLeaderEpoch: &leader.epoch,
			Data: &pacelinev1.ProducePartition_Records{Records: list},
		}},
	})
	if err != nil {
		return 0, callError(ctx, operation, err)
	}
	result, err := only(operation, answer.GetPartitions())
	if err != nil {
		return 0, err
	}
	return result.GetBaseOffset(), partitionError(operation, result.GetError())
}

// after returns the sequence number that follows count records; 0 follows the largest.
func after(sequence int32, count int) int32 {
	return int32((int64(sequence) + int64(count)) % (math.MaxInt32 + 1))
}

func encode(record Record) *pacelinev1.Record {
	encoded := &pacelinev1.Record{Key: record.Key, Value: record.Value}
	moment := record.Timestamp
	if moment.IsZero() {
		moment = time.Now()
	}
	timestamp := moment.UnixMilli()
	encoded.TimestampMs = &timestamp
	for _, header := range record.Headers {
		encoded.Headers = append(encoded.Headers, &pacelinev1.Header{Key: header.Key, Value: header.Value})
	}
	return encoded
}

// recordProblem says why a record cannot be sent, or returns "". One record that cannot be encoded would fail its whole batch.
func recordProblem(record Record) string {
	if record.Partition != nil && *record.Partition < 0 {
		return fmt.Sprintf("the partition is %d; nil lets the producer choose", *record.Partition)
	}
	if !utf8.ValidString(record.Topic) {
		return "the topic is not UTF-8"
	}
	for _, header := range record.Headers {
		if !utf8.ValidString(header.Key) {
			return fmt.Sprintf("the header key %q is not UTF-8", header.Key)
		}
	}
	return ""
}

func sizeOf(record Record) int {
	size := len(record.Key) + len(record.Value) + 32
	for _, header := range record.Headers {
		size += len(header.Key) + len(header.Value) + 8
	}
	return size
}
