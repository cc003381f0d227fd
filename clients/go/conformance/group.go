package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/paceline/paceline/clients/go/paceline"
)

const (
	pollFor     = 50 * time.Millisecond
	commandTime = 60 * time.Second
)

type groupCommand struct {
	Member              string          `json:"member"`
	GroupID             string          `json:"group_id"`
	Topics              []string        `json:"topics"`
	GroupInstanceID     string          `json:"group_instance_id"`
	Assignors           []string        `json:"assignors"`
	SessionTimeoutMs    int             `json:"session_timeout_ms"`
	HeartbeatIntervalMs int             `json:"heartbeat_interval_ms"`
	MaxPollIntervalMs   int             `json:"max_poll_interval_ms"`
	AutoCommit          bool            `json:"auto_commit"`
	AutoCommitMs        int             `json:"auto_commit_interval_ms"`
	Offsets             []groupOffset   `json:"offsets"`
	Partitions          json.RawMessage `json:"partitions"`
	Reset               string          `json:"reset"`
}

type groupOffset struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	Offset      any    `json:"offset"`
	Metadata    string `json:"metadata"`
	LeaderEpoch *int32 `json:"leader_epoch"`
}

// member is a group consumer and the goroutine that polls it; commands run on that goroutine, between two polls.
type member struct {
	consumer *paceline.GroupConsumer
	jobs     chan func()
	ended    chan struct{}
	read     map[string][]string
	events   [][2]any
	err      error
	polling  bool
	closed   bool
}

func (d *driver) group(name string, raw []byte) (any, error) {
	var c groupCommand
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	if name == "group_open" {
		return object{}, d.openMember(c)
	}
	m := d.members[c.Member]
	if m == nil {
		return nil, errors.New("no member " + c.Member)
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	switch name {
	case "group_state":
		return m.do(m.state)
	case "group_commit":
		return m.do(func() (any, error) { return object{}, m.commit(ctx, c.Offsets) })
	case "group_committed":
		return m.do(func() (any, error) { return m.committed(ctx, c.Partitions) })
	case "group_pause":
		return m.do(func() (any, error) { m.polling = false; return object{}, nil })
	case "group_resume":
		return m.do(func() (any, error) { m.polling = true; return object{}, nil })
	case "group_close":
		delete(d.members, c.Member)
		return object{}, m.close(ctx)
	}
	return nil, errUnsupported
}

func (d *driver) openMember(c groupCommand) error {
	m := &member{jobs: make(chan func()), ended: make(chan struct{}), read: map[string][]string{}, events: [][2]any{}, polling: true}
	var assignors []paceline.Assignor
	for _, name := range c.Assignors {
		known := map[string]paceline.Assignor{"range": paceline.RangeAssignor(), "roundrobin": paceline.RoundRobinAssignor()}
		if known[name] == nil {
			return errors.New("no assignor " + name)
		}
		assignors = append(assignors, known[name])
	}
	note := func(kind string) func(context.Context, []paceline.TopicPartition) {
		return func(_ context.Context, partitions []paceline.TopicPartition) {
			m.events = append(m.events, [2]any{kind, byTopic(partitions)})
		}
	}
	consumer, err := d.client.NewGroupConsumer(paceline.GroupConfig{
		GroupID: c.GroupID, Topics: c.Topics, InstanceID: c.GroupInstanceID, Assignors: assignors, Reset: resetPolicies[c.Reset],
		SessionTimeout:    milliseconds(c.SessionTimeoutMs, 30_000),
		HeartbeatInterval: milliseconds(c.HeartbeatIntervalMs, 100),
		MaxPollInterval:   milliseconds(c.MaxPollIntervalMs, 60_000),
		ManualCommit:      !c.AutoCommit, AutoCommitInterval: milliseconds(c.AutoCommitMs, 5_000),
		OnAssigned: note("assigned"), OnRevoked: note("revoked"), OnLost: note("lost"),
	})
	if err != nil {
		return err
	}
	m.consumer = consumer
	d.members[c.Member] = m
	go m.run()
	return nil
}

func (m *member) run() {
	defer close(m.ended)
	for !m.closed {
		if !m.polling {
			(<-m.jobs)()
			continue
		}
		select {
		case job := <-m.jobs:
			job()
		default:
			m.poll()
		}
	}
}

func (m *member) poll() {
	ctx, cancel := context.WithTimeout(context.Background(), pollFor)
	defer cancel()
	records, err := m.consumer.Poll(ctx)
	for _, record := range records {
		name := paceline.TopicPartition{Topic: record.Topic, Partition: record.Partition}.String()
		m.read[name] = append(m.read[name], strconv.FormatInt(record.Offset, 10))
	}
	if err != nil {
		m.err, m.polling = err, false
	}
}

func (m *member) do(job func() (any, error)) (result any, err error) {
	done := make(chan struct{})
	m.jobs <- func() {
		defer close(done)
		result, err = job()
	}
	<-done
	return result, err
}

func (m *member) close(ctx context.Context) error {
	_, err := m.do(func() (any, error) {
		m.closed = true
		return nil, m.consumer.Close(ctx)
	})
	<-m.ended
	return err
}

// state returns encoded JSON, because the next poll changes the maps.
func (m *member) state() (any, error) {
	id, generation := m.consumer.Member()
	owned := m.consumer.Assignment()
	positions := object{}
	for _, one := range owned {
		if offset, known := m.consumer.Position(one.Topic, one.Partition); known {
			positions[one.String()] = strconv.FormatInt(offset, 10)
		}
	}
	var failed any
	if m.err != nil {
		failed = failure(m.err)
	}
	text, err := json.Marshal(object{"member_id": id, "generation": generation, "assignment": byTopic(owned),
		"positions": positions, "read": m.read, "events": m.events, "error": failed})
	return json.RawMessage(text), err
}

func (m *member) commit(ctx context.Context, offsets []groupOffset) error {
	if offsets == nil {
		return m.consumer.Commit(ctx)
	}
	wanted := map[paceline.TopicPartition]paceline.CommittedOffset{}
	for _, one := range offsets {
		text, _ := one.Offset.(string)
		offset, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		wanted[paceline.TopicPartition{Topic: one.Topic, Partition: one.Partition}] = paceline.CommittedOffset{
			Offset: offset, Metadata: one.Metadata, LeaderEpoch: one.LeaderEpoch}
	}
	return m.consumer.CommitOffsets(ctx, wanted)
}

func (m *member) committed(ctx context.Context, raw json.RawMessage) (any, error) {
	var topics map[string][]int32
	if err := json.Unmarshal(raw, &topics); err != nil {
		return nil, err
	}
	var wanted []paceline.TopicPartition
	for topic, partitions := range topics {
		for _, partition := range partitions {
			wanted = append(wanted, paceline.TopicPartition{Topic: topic, Partition: partition})
		}
	}
	slices.SortFunc(wanted, func(a, b paceline.TopicPartition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	found, err := m.consumer.Committed(ctx, wanted...)
	if err != nil {
		return nil, err
	}
	offsets := []groupOffset{}
	for _, one := range wanted {
		offset := groupOffset{Topic: one.Topic, Partition: one.Partition}
		if kept, ok := found[one]; ok {
			offset.Offset, offset.Metadata = strconv.FormatInt(kept.Offset, 10), kept.Metadata
			offset.LeaderEpoch = kept.LeaderEpoch
		}
		offsets = append(offsets, offset)
	}
	return object{"offsets": offsets}, nil
}

func byTopic(partitions []paceline.TopicPartition) map[string][]int32 {
	found := map[string][]int32{}
	for _, one := range partitions {
		found[one.Topic] = append(found[one.Topic], one.Partition)
	}
	return found
}
