package paceline

import (
	"context"
	"fmt"
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

// topicShape is a topic as brokers describe it to the leader of a group.
type topicShape struct {
	id    string
	count int
}

// topicShapes returns the topics that exist. It asks several brokers: a topic never gets fewer partitions, so the largest
// count is the present count, and a re-created topic has the id of most answers. refusal is the error of a topic that cannot
// be described at all, for example because its name is invalid.
func (c *Client) topicShapes(
	ctx context.Context, topics []string,
) (shapes map[string]topicShape, refusal, err error) {
	answers := map[string][]topicShape{}
	err = c.askSome(ctx, describers, func(ctx context.Context, connection *grpc.ClientConn) error {
		found, refused, err := shapesAt(ctx, connection, topics)
		for name, shape := range found {
			answers[name] = append(answers[name], shape)
		}
		if refused != nil {
			refusal = refused
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	shapes = map[string]topicShape{}
	for name, described := range answers {
		id := commonest(described)
		shape := topicShape{id: id}
		if known := c.topics[name]; known != nil && known.id == id {
			shape.count = known.count
		}
		for _, one := range described {
			if one.id == id {
				shape.count = max(shape.count, one.count)
			}
		}
		shapes[name] = shape
	}
	return shapes, refusal, nil
}

// shapesAt is topicShapes for the answer of one process.
func shapesAt(
	ctx context.Context, connection *grpc.ClientConn, topics []string,
) (shapes map[string]topicShape, refusal, err error) {
	const operation = "describing the topics of a group"
	metadata := pacelinev1.NewMetadataServiceClient(connection)
	cluster, err := metadata.DescribeCluster(ctx, &pacelinev1.DescribeClusterRequest{})
	if err != nil {
		return nil, nil, callError(ctx, operation, err)
	}
	if len(cluster.GetBrokers()) == 0 {
		// A process without brokers answers that no topic exists.
		return nil, nil, newError(operation, pacelinev1.ErrorCode_ERROR_CODE_BROKER_NOT_AVAILABLE, "the process knows no brokers yet")
	}
	shapes = map[string]topicShape{}
	request := &pacelinev1.DescribeTopicsRequest{Topics: topics}
	for {
		answer, err := metadata.DescribeTopics(ctx, request)
		if err != nil {
			return nil, nil, callError(ctx, operation, err)
		}
		for _, topic := range answer.GetTopics() {
			if topic.GetError() == nil {
				shapes[topic.GetName()] = topicShape{topic.GetTopicId(), len(topic.GetPartitions())}
			} else if failure := newError("describing topic "+topic.GetName(), topic.GetError().GetCode(),
				topic.GetError().GetMessage()); !failure.Retriable {
				refusal = failure
			}
		}
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			return shapes, refusal, nil
		}
	}
}

// commonest returns the id of most descriptions, and the earliest of several such ids.
func commonest(described []topicShape) string {
	votes := map[string]int{}
	best := described[0].id
	for _, one := range described {
		if votes[one.id]++; votes[one.id] > votes[best] {
			best = one.id
		}
	}
	return best
}

// haveChanged says whether topics have other partitions than those that were assigned. An answer with fewer partitions of the
// same topic is outdated.
func haveChanged(assigned, now map[string]topicShape) bool {
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
		found, refusal, err := c.topicShapes(ctx, topics)
		switch {
		case isRetriable(err):
			return nil
		case err != nil:
			return err
		case refusal != nil:
			return refusal
		}
		for _, topic := range topics {
			if _, exists := found[topic]; !exists {
				return missing(operation, fmt.Sprintf("topic %s does not exist", topic))
			}
		}
		return nil
	})
}
