package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const (
	callTimeout    = 10 * time.Second
	firstBackoff   = 50 * time.Millisecond
	longestBackoff = time.Second
)

// cluster has the connections to a cluster, and its brokers and leaders from the last metadata. It is used by one goroutine.
type cluster struct {
	bootstrap   []string
	credentials credentials.TransportCredentials
	connections map[string]*grpc.ClientConn
	// Addresses of live brokers by id, and of leaders by partition.
	brokers map[int32]string
	leaders map[int32]string
	// Leader epochs by partition. Requests carry the epoch, so that a leader of another epoch refuses them.
	epochs map[int32]int32

	leaderHints         int
	controllerRedirects int
}

func newCluster(bootstrap []string, transport credentials.TransportCredentials) *cluster {
	return &cluster{
		bootstrap:   bootstrap,
		credentials: transport,
		connections: map[string]*grpc.ClientConn{},
		brokers:     map[int32]string{},
		leaders:     map[int32]string{},
		epochs:      map[int32]int32{},
	}
}

func (c *cluster) close() {
	for _, connection := range c.connections {
		_ = connection.Close()
	}
}

// dial returns the connection to an address. It does not wait for it: a call fails while the address cannot be reached.
func (c *cluster) dial(address string) (*grpc.ClientConn, error) {
	if connection, ok := c.connections[address]; ok {
		return connection, nil
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(c.credentials))
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	c.connections[address] = connection
	return connection, nil
}

// retry calls attempt, with growing pauses, until it succeeds, its error is not retriable, or ctx ends.
func retry(ctx context.Context, what string, attempt func(ctx context.Context) error) error {
	backoff := firstBackoff
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := attempt(call)
		cancel()
		if err == nil {
			return nil
		}
		if !retriable(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		pause := backoff/2 + rand.N(backoff/2)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; the last answer was: %w", what, ctx.Err(), err)
		case <-time.After(pause):
		}
		backoff = min(backoff*3/2, longestBackoff)
	}
}

// describe asks the known brokers and the bootstrap addresses until one of them describes the cluster. A standby controller
// knows the active controller, but no brokers; then the active controller is asked.
func (c *cluster) describe(ctx context.Context) (*pacelinev1.DescribeClusterResponse, error) {
	var description *pacelinev1.DescribeClusterResponse
	ask := func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pacelinev1.NewMetadataServiceClient(connection).DescribeCluster(
			ctx, &pacelinev1.DescribeClusterRequest{})
		if err != nil {
			return err
		}
		if len(answer.GetBrokers()) == 0 && answer.GetControllerHost() == "" {
			return &partitionFailure{&pacelinev1.PartitionError{
				Code: pacelinev1.ErrorCode_ERROR_CODE_NOT_CONTROLLER, Message: "the process knows no cluster yet",
			}}
		}
		description = answer
		return nil
	}
	if err := c.askAny(ctx, ask); err != nil {
		return nil, err
	}
	if len(description.GetBrokers()) == 0 && description.GetControllerHost() != "" {
		connection, err := c.dial(controllerAddress(description))
		if err != nil {
			return nil, err
		}
		if err := ask(ctx, connection); err != nil {
			return nil, err
		}
	}
	if len(description.GetBrokers()) > 0 {
		c.brokers = map[int32]string{}
		for _, broker := range description.GetBrokers() {
			c.brokers[broker.GetId()] = net.JoinHostPort(broker.GetHost(), strconv.Itoa(int(broker.GetPort())))
		}
	}
	return description, nil
}

// controllerAddress returns the address of the active controller.
func controllerAddress(description *pacelinev1.DescribeClusterResponse) string {
	return net.JoinHostPort(description.GetControllerHost(), strconv.Itoa(int(description.GetControllerPort())))
}

// askAny calls ask for one address after another until it succeeds, and returns the last error otherwise.
func (c *cluster) askAny(ctx context.Context, ask func(context.Context, *grpc.ClientConn) error) error {
	addresses := append([]string{}, c.bootstrap...)
	for _, address := range c.brokers {
		addresses = append(addresses, address)
	}
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	last := errors.New("no address to ask")
	for _, address := range addresses {
		connection, err := c.dial(address)
		if err != nil {
			return err
		}
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		last = ask(one, connection)
		cancel()
		if last == nil {
			return nil
		}
	}
	return last
}

// onController runs an admin call at the active controller. When a standby answers NOT_CONTROLLER, the address in the status
// details is called next, without a pause.
func (c *cluster) onController(
	ctx context.Context, what string, call func(context.Context, pacelinev1.AdminServiceClient) error,
) error {
	address := ""
	return retry(ctx, what, func(ctx context.Context) error {
		if address == "" {
			description, err := c.describe(ctx)
			if err != nil {
				return err
			}
			if description.GetControllerHost() == "" {
				return &partitionFailure{&pacelinev1.PartitionError{
					Code: pacelinev1.ErrorCode_ERROR_CODE_NOT_CONTROLLER, Message: "no controller is active",
				}}
			}
			address = controllerAddress(description)
		}
		// Two hops reach the active controller, unless another one becomes active meanwhile: then retry pauses.
		for hop := 0; ; hop++ {
			connection, err := c.dial(address)
			if err != nil {
				return err
			}
			err = call(ctx, pacelinev1.NewAdminServiceClient(connection))
			if err == nil {
				return nil
			}
			hint := controllerHint(err)
			if hint == "" || hint == address || hop == 2 {
				address = ""
				return err
			}
			c.controllerRedirects++
			address = hint
		}
	})
}

// refresh asks for brokers and leaders again. It forgets the leader of a partition that has none.
func (c *cluster) refresh(ctx context.Context, topic string) (*pacelinev1.TopicDescription, error) {
	if _, err := c.describe(ctx); err != nil {
		return nil, err
	}
	var description *pacelinev1.TopicDescription
	err := c.askAny(ctx, func(ctx context.Context, connection *grpc.ClientConn) error {
		answer, err := pacelinev1.NewMetadataServiceClient(connection).DescribeTopics(
			ctx, &pacelinev1.DescribeTopicsRequest{Topics: []string{topic}})
		if err != nil {
			return err
		}
		if len(answer.GetTopics()) != 1 {
			return fmt.Errorf("the response has %d topics, expected 1", len(answer.GetTopics()))
		}
		description = answer.GetTopics()[0]
		if description.GetError() != nil {
			return &topicFailure{topic, description.GetError()}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, partition := range description.GetPartitions() {
		address, known := c.brokers[partition.GetLeader()]
		if partition.Leader == nil || !known {
			delete(c.leaders, partition.GetPartition())
			continue
		}
		c.leaders[partition.GetPartition()] = address
		c.epochs[partition.GetPartition()] = partition.GetLeaderEpoch()
	}
	return description, nil
}

// awaitLeaders returns the description of the topic once every partition has a leader.
func (c *cluster) awaitLeaders(ctx context.Context, topic string, partitions int) (*pacelinev1.TopicDescription, error) {
	var description *pacelinev1.TopicDescription
	err := retry(ctx, "waiting for leaders of "+topic, func(ctx context.Context) error {
		var err error
		description, err = c.refresh(ctx, topic)
		if err != nil {
			return err
		}
		if len(c.leaders) < partitions {
			return &partitionFailure{&pacelinev1.PartitionError{
				Code:    pacelinev1.ErrorCode_ERROR_CODE_LEADER_NOT_AVAILABLE,
				Message: fmt.Sprintf("%d of %d partitions have a leader", len(c.leaders), partitions),
			}}
		}
		return nil
	})
	return description, err
}

// epochOf returns the leader epoch to put into a request, nil when none is known.
func (c *cluster) epochOf(partition int32) *int32 {
	if epoch, known := c.epochs[partition]; known {
		return &epoch
	}
	return nil
}

// onLeader retries a call at a partition's leader. It follows the leader hint of an error, and asks for the leader again
// after any other retriable error.
func (c *cluster) onLeader(
	ctx context.Context, topic string, partition int32, what string,
	call func(context.Context, pacelinev1.LogServiceClient) error,
) error {
	return retry(ctx, what, func(ctx context.Context) error {
		address, known := c.leaders[partition]
		if !known {
			if _, err := c.refresh(ctx, topic); err != nil {
				return err
			}
			if address, known = c.leaders[partition]; !known {
				return &partitionFailure{&pacelinev1.PartitionError{
					Code:    pacelinev1.ErrorCode_ERROR_CODE_LEADER_NOT_AVAILABLE,
					Message: fmt.Sprintf("partition %d has no leader", partition),
				}}
			}
		}
		connection, err := c.dial(address)
		if err != nil {
			return err
		}
		err = call(ctx, pacelinev1.NewLogServiceClient(connection))
		if err == nil {
			return nil
		}
		delete(c.leaders, partition)
		if hint := leaderHint(err); hint != "" && hint != address {
			c.leaderHints++
			c.leaders[partition] = hint
			delete(c.epochs, partition)
		}
		return err
	})
}
