// Command conformance is the driver of the Go client for tests/conformance: JSON lines on stdin and stdout.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/paceline/paceline/clients/go/paceline"
)

type command struct {
	ID                json.RawMessage   `json:"id"`
	Command           string            `json:"command"`
	Bootstrap         []string          `json:"bootstrap"`
	DeliveryTimeoutMs int               `json:"delivery_timeout_ms"`
	RequestTimeoutMs  int               `json:"request_timeout_ms"`
	LingerMs          int               `json:"linger_ms"`
	TLS               tlsFiles          `json:"tls"`
	Topic             string            `json:"topic"`
	Records           []json.RawMessage `json:"records"`
	Consumer          string            `json:"consumer"`
	Partition         int32             `json:"partition"`
	Start             string            `json:"start"`
	Reset             string            `json:"reset"`
	TimeoutMs         int               `json:"timeout_ms"`
	MaxRecords        int               `json:"max_records"`
	At                string            `json:"at"`
	TimestampMs       string            `json:"timestamp_ms"`
	Partitions        json.RawMessage   `json:"partitions"`
	ReplicationFactor int               `json:"replication_factor"`
	Configs           map[string]string `json:"configs"`
	Key               []byte            `json:"key"`
	PartitionCount    int               `json:"partition_count"`
}

type tlsFiles struct {
	CA          string `json:"ca_file"`
	Certificate string `json:"certificate_file"`
	Key         string `json:"key_file"`
}

type driver struct {
	client    *paceline.Client
	producer  *paceline.Producer
	consumers map[string]*paceline.Consumer
	members   map[string]*member
	timeout   time.Duration
}

type object map[string]any

var errUnsupported = errors.New("unsupported")

func main() {
	d := &driver{consumers: map[string]*paceline.Consumer{}, members: map[string]*member{}, timeout: 30 * time.Second}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 256<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var c command
		answer := object{}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			answer["error"] = object{"code": "UNKNOWN_SERVER_ERROR", "message": err.Error(), "definite": true}
		} else if result, err := d.do(c, lines.Bytes()); errors.Is(err, errUnsupported) {
			answer["unsupported"] = "the driver has no command " + c.Command
		} else if err != nil {
			answer["error"] = failure(err)
		} else {
			answer["ok"] = result
		}
		answer["id"] = c.ID
		if err := answers.Encode(answer); err != nil {
			break
		}
	}
	d.close()
}

func failure(err error) object {
	var detail *paceline.Error
	var notCommitted *paceline.CommitFailedError
	if errors.As(err, &notCommitted) {
		return object{"code": "ILLEGAL_GENERATION", "message": err.Error(), "definite": true}
	}
	if errors.As(err, &detail) {
		return object{"code": paceline.CodeName(detail.Code), "message": err.Error(), "definite": detail.Definite}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return object{"code": "REQUEST_TIMED_OUT", "message": err.Error(), "definite": false}
	}
	return object{"code": "UNKNOWN_SERVER_ERROR", "message": err.Error(), "definite": false}
}

func (d *driver) do(c command, raw []byte) (any, error) {
	if strings.HasPrefix(c.Command, "group_") {
		return d.group(c.Command, raw)
	}
	timeout := d.timeout
	if c.TimeoutMs > 0 {
		timeout = time.Duration(c.TimeoutMs) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	switch c.Command {
	case "hello":
		return object{"language": "go", "client": "paceline-go", "version": "0.1.0"}, nil
	case "partition_for_key":
		return object{"partition": paceline.PartitionForKey(c.Key, c.PartitionCount)}, nil
	case "open":
		return object{}, d.open(c)
	case "produce":
		return d.produce(c)
	case "consume_open":
		return object{}, d.consumeOpen(c)
	case "consume_poll":
		return d.consumePoll(ctx, c)
	case "consume_close":
		delete(d.consumers, c.Consumer)
		return object{}, nil
	case "list_offset":
		return d.listOffset(ctx, c)
	case "create_topic":
		partitions, err := strconv.Atoi(string(c.Partitions))
		if err != nil {
			return nil, err
		}
		id, err := d.client.CreateTopic(ctx, paceline.Topic{
			Name: c.Topic, Partitions: partitions, ReplicationFactor: c.ReplicationFactor, Configs: c.Configs})
		return object{"topic_id": id}, err
	case "delete_topic":
		return object{}, d.client.DeleteTopic(ctx, c.Topic)
	case "describe_topic":
		return d.describeTopic(ctx, c)
	case "close":
		d.close()
		return object{}, nil
	}
	return nil, errUnsupported
}

func (d *driver) open(c command) error {
	d.close()
	client, err := paceline.NewClient(paceline.Config{
		Bootstrap: c.Bootstrap, RequestTimeout: milliseconds(c.RequestTimeoutMs, 10_000),
		CAFile: c.TLS.CA, CertFile: c.TLS.Certificate, KeyFile: c.TLS.Key})
	if err != nil {
		return err
	}
	d.client = client
	d.timeout = milliseconds(c.DeliveryTimeoutMs, 30_000)
	d.producer = client.NewProducer(paceline.ProducerConfig{
		DeliveryTimeout: d.timeout, Linger: time.Duration(c.LingerMs) * time.Millisecond})
	return nil
}

func milliseconds(value, byDefault int) time.Duration {
	return time.Duration(cmp.Or(value, byDefault)) * time.Millisecond
}

func (d *driver) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, m := range d.members {
		_ = m.close(ctx)
	}
	d.members = map[string]*member{}
	if d.producer != nil {
		_ = d.producer.Close(ctx)
	}
	if d.client != nil {
		d.client.Close()
	}
	d.producer, d.client, d.consumers = nil, nil, map[string]*paceline.Consumer{}
}

func (d *driver) produce(c command) (any, error) {
	results := make([]object, len(c.Records))
	deliveries := make([]*paceline.Delivery, len(c.Records))
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout+5*time.Second)
	defer cancel()
	for i, raw := range c.Records {
		r, err := decode(c.Topic, raw)
		if err == nil {
			deliveries[i], err = d.producer.Send(ctx, r)
		}
		if err != nil {
			results[i] = object{"error": failure(err)}
		}
	}
	var wait sync.WaitGroup
	for i, delivery := range deliveries {
		if delivery == nil {
			continue
		}
		wait.Add(1)
		go func() {
			defer wait.Done()
			offset, err := delivery.Wait(ctx)
			if err != nil {
				results[i] = object{"error": failure(err)}
			} else {
				results[i] = object{"partition": delivery.Partition(), "offset": strconv.FormatInt(offset, 10)}
			}
		}()
	}
	wait.Wait()
	return object{"results": results}, nil
}

func decode(topic string, raw json.RawMessage) (paceline.Record, error) {
	var fields struct {
		Partition   *int32               `json:"partition"`
		Key         *[]byte              `json:"key"`
		Value       *[]byte              `json:"value"`
		Headers     [][2]json.RawMessage `json:"headers"`
		TimestampMs *string              `json:"timestamp_ms"`
	}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return paceline.Record{}, err
	}
	r := paceline.Record{Topic: topic, Partition: fields.Partition, Key: orNil(fields.Key), Value: orNil(fields.Value)}
	for _, pair := range fields.Headers {
		var name string
		var value *[]byte
		if err := errors.Join(json.Unmarshal(pair[0], &name), json.Unmarshal(pair[1], &value)); err != nil {
			return r, err
		}
		r.Headers = append(r.Headers, paceline.Header{Key: name, Value: orNil(value)})
	}
	if fields.TimestampMs != nil {
		ms, err := strconv.ParseInt(*fields.TimestampMs, 10, 64)
		if err != nil {
			return r, err
		}
		r.Timestamp = time.UnixMilli(ms)
	}
	return r, nil
}

// orNil returns nil for a null value, so that null and empty values stay distinct.
func orNil(value *[]byte) []byte {
	if value == nil {
		return nil
	}
	if *value == nil {
		return []byte{}
	}
	return *value
}

var resetPolicies = map[string]paceline.ResetPolicy{
	"": paceline.ResetToEarliest, "earliest": paceline.ResetToEarliest, "latest": paceline.ResetToLatest, "error": paceline.ResetError}

func (d *driver) consumeOpen(c command) error {
	consumer := d.client.NewConsumer(paceline.ConsumerConfig{Reset: resetPolicies[c.Reset]})
	switch c.Start {
	case "", "earliest":
		consumer.AssignFrom(c.Topic, c.Partition, paceline.Earliest())
	case "latest":
		consumer.AssignFrom(c.Topic, c.Partition, paceline.Latest())
		// Look up the end of the log now, so that the consumer reads every record sent after this command.
		ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
		defer cancel()
		offset, _, err := d.client.ListOffset(ctx, c.Topic, c.Partition, paceline.Latest())
		if err != nil {
			return err
		}
		consumer.Assign(c.Topic, c.Partition, offset)
	default:
		offset, err := strconv.ParseInt(c.Start, 10, 64)
		if err != nil {
			return err
		}
		consumer.Assign(c.Topic, c.Partition, offset)
	}
	d.consumers[c.Consumer] = consumer
	return nil
}

func (d *driver) consumePoll(ctx context.Context, c command) (any, error) {
	consumer := d.consumers[c.Consumer]
	if consumer == nil {
		return nil, errors.New("no consumer " + c.Consumer)
	}
	limit := c.MaxRecords
	if limit <= 0 {
		limit = 100
	}
	found, err := consumer.PollUpTo(ctx, limit)
	var truncated *paceline.TruncatedError
	if errors.As(err, &truncated) {
		return object{"records": []object{}, "truncated": object{
			"position":         strconv.FormatInt(truncated.Position, 10),
			"divergent_offset": strconv.FormatInt(truncated.DivergentOffset, 10)}}, nil
	}
	records := []object{}
	for _, r := range found {
		headers := [][2]any{}
		for _, header := range r.Headers {
			headers = append(headers, [2]any{header.Key, nullable(header.Value)})
		}
		records = append(records, object{
			"partition": r.Partition, "key": nullable(r.Key), "value": nullable(r.Value), "headers": headers,
			"timestamp_ms": strconv.FormatInt(r.Timestamp.UnixMilli(), 10), "offset": strconv.FormatInt(r.Offset, 10)})
	}
	return object{"records": records, "truncated": nil}, err
}

func nullable(value []byte) any {
	if value == nil {
		return nil
	}
	return value
}

func (d *driver) listOffset(ctx context.Context, c command) (any, error) {
	at := paceline.Latest()
	switch c.At {
	case "earliest":
		at = paceline.Earliest()
	case "timestamp":
		ms, err := strconv.ParseInt(c.TimestampMs, 10, 64)
		if err != nil {
			return nil, err
		}
		at = paceline.AtTime(time.UnixMilli(ms))
	}
	offset, ok, err := d.client.ListOffset(ctx, c.Topic, c.Partition, at)
	if !ok {
		return object{"offset": nil}, err
	}
	return object{"offset": strconv.FormatInt(offset, 10)}, err
}

func (d *driver) describeTopic(ctx context.Context, c command) (any, error) {
	description, err := d.client.DescribeTopic(ctx, c.Topic)
	if err != nil {
		return nil, err
	}
	partitions := []object{}
	for _, partition := range description.GetPartitions() {
		var leader any
		if partition.Leader != nil {
			leader = partition.GetLeader()
		}
		partitions = append(partitions, object{
			"partition": partition.GetPartition(), "leader": leader, "replicas": partition.GetReplicas(), "isr": partition.GetIsr()})
	}
	return object{"partitions": partitions}, nil
}
