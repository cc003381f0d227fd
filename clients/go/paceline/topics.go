package paceline

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const (
	// describers is the number of brokers that are asked for the partitions of topics: one that is cut off from the cluster
	// knows neither new topics nor added partitions.
	describers = 3
	// askAgainTimeout bounds each question after the first answer.
	askAgainTimeout = time.Second
)

// describeTopics asks up to wanted processes for topics, remembers what they know together, and returns it. refusals has the
// errors of the other topics.
func (c *Client) describeTopics(
	ctx context.Context, operation string, topics []string, wanted int,
) (found map[string]*topicState, refusals map[string]error, err error) {
	answers := map[string][]*topicState{}
	refusals = map[string]error{}
	for _, name := range topics {
		refusals[name] = newError(operation, pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_SERVER_ERROR, "the response does not have topic "+name)
	}
	err = c.askSome(ctx, wanted, func(ctx context.Context, connection *grpc.ClientConn) error {
		// One process is asked for brokers and topics: two might contradict each other.
		cluster, from, err := c.describeAt(ctx, connection)
		if err != nil {
			return err
		}
		if len(cluster.GetBrokers()) == 0 {
			// A process without brokers answers that no topic exists.
			return newError(operation, pacelinev1.ErrorCode_ERROR_CODE_BROKER_NOT_AVAILABLE, "the process knows no brokers yet")
		}
		described, err := topicsAt(ctx, from, operation, topics)
		addresses := addressesOf(cluster)
		for _, topic := range described {
			name := topic.GetName()
			if refusal := topicError("describing topic "+name, topic.GetError()); refusal != nil {
				refusals[name] = refusal
			} else {
				answers[name] = append(answers[name], stateOf(topic, addresses))
			}
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found = map[string]*topicState{}
	for name, described := range answers {
		delete(refusals, name)
		found[name] = merged(described, c.topics[name])
		c.topics[name] = found[name]
	}
	return found, refusals, nil
}

// topicsAt calls DescribeTopics at one process, page by page.
func topicsAt(
	ctx context.Context, connection *grpc.ClientConn, operation string, topics []string,
) ([]*pacelinev1.TopicDescription, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var found []*pacelinev1.TopicDescription
	request := &pacelinev1.DescribeTopicsRequest{Topics: topics}
	for {
		answer, err := pacelinev1.NewMetadataServiceClient(connection).DescribeTopics(ctx, request)
		if err != nil {
			return nil, callError(ctx, operation, err)
		}
		found = append(found, answer.GetTopics()...)
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			return found, nil
		}
	}
}

func stateOf(topic *pacelinev1.TopicDescription, addresses map[int32]string) *topicState {
	state := &topicState{id: topic.GetTopicId(), count: len(topic.GetPartitions()), leaders: map[int32]leaderState{}}
	for _, partition := range topic.GetPartitions() {
		if address, known := addresses[partition.GetLeader()]; partition.Leader != nil && known {
			state.leaders[partition.GetPartition()] = leaderState{address, partition.GetLeaderEpoch()}
		}
	}
	return state
}

// merged returns the largest partition count and the leaders of the highest epochs among the answers with the topic id of
// most answers. before, which may be nil, is what the client knew.
func merged(answers []*topicState, before *topicState) *topicState {
	state := &topicState{id: commonest(answers), asked: time.Now(), leaders: map[int32]leaderState{}}
	for _, one := range answers {
		if one.id != state.id {
			continue
		}
		state.count = max(state.count, one.count)
		for partition, leader := range one.leaders {
			if known, ok := state.leaders[partition]; !ok || known.epoch < leader.epoch {
				state.leaders[partition] = leader
			}
		}
	}
	if before != nil && before.id == state.id {
		// An outdated broker knows fewer partitions and earlier leaders. A topic never gets fewer partitions.
		state.count = max(state.count, before.count)
		for partition, leader := range before.leaders {
			if now, known := state.leaders[partition]; known && now.epoch < leader.epoch {
				state.leaders[partition] = leader
			}
		}
	}
	return state
}

// commonest returns the id of most answers, and the earliest of several such ids.
func commonest(answers []*topicState) string {
	votes := map[string]int{}
	best := answers[0].id
	for _, one := range answers {
		if votes[one.id]++; votes[one.id] > votes[best] {
			best = one.id
		}
	}
	return best
}

// refresh asks up to wanted processes for the partitions and leaders of a topic.
func (c *Client) refresh(ctx context.Context, topic string, wanted int) (*topicState, error) {
	found, refusals, err := c.describeTopics(ctx, "describing topic "+topic, []string{topic}, wanted)
	return found[topic], cmp.Or(err, refusals[topic])
}

// haveChanged says whether topics have other partitions than those that were assigned. An answer with fewer partitions of the
// same topic is outdated.
func haveChanged(assigned, now map[string]*topicState) bool {
	for name, before := range assigned {
		found, exists := now[name]
		if !exists || found.count > before.count || found.id != before.id && found.count != before.count {
			return true
		}
	}
	for name := range now {
		if _, exists := assigned[name]; !exists {
			return true
		}
	}
	return false
}

// findTopics waits until all topics exist. A topic that the brokers have not known for missingLimit is an error. It returns
// nil when no broker answers, because the topics may exist.
func (c *Client) findTopics(ctx context.Context, operation string, topics []string) error {
	return c.retry(ctx, operation, func(ctx context.Context) error {
		_, refusals, err := c.describeTopics(ctx, operation, topics, describers)
		if isRetriable(err) {
			return nil
		}
		for _, refusal := range refusals {
			if err == nil || isRetriable(err) {
				err = refusal
			}
		}
		return err
	})
}
