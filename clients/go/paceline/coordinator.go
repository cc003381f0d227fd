package paceline

import (
	"context"
	"errors"
	"sync"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// coordinator finds the coordinator of a group and calls it. It is safe for concurrent use.
type coordinator struct {
	client  *Client
	groupID string

	mu      sync.Mutex
	address string
}

type groupCall func(ctx context.Context, group pacelinev1.GroupServiceClient) error

// once finds the coordinator, makes one call, and forgets the coordinator's address when it has moved or cannot be reached.
// call must return the error of gRPC unchanged.
func (c *coordinator) once(ctx context.Context, operation string, call groupCall) error {
	address, err := c.find(ctx)
	if err != nil {
		return notSent(err)
	}
	connection, err := c.client.dial(address)
	if err != nil {
		return err
	}
	err = callError(ctx, operation, call(ctx, pacelinev1.NewGroupServiceClient(connection)))
	var failure *Error
	if errors.As(err, &failure) && failure.movesCoordinator() {
		c.mu.Lock()
		if c.address == address {
			c.address = ""
		}
		c.mu.Unlock()
	}
	return err
}

// retry calls the coordinator until the call succeeds, fails with an error that is not retriable, or ctx ends.
func (c *coordinator) retry(ctx context.Context, operation string, call groupCall) error {
	return c.client.retry(ctx, operation, func(ctx context.Context) error { return c.once(ctx, operation, call) })
}

func (e *Error) movesCoordinator() bool {
	switch e.Code {
	case pacelinev1.ErrorCode_ERROR_CODE_NOT_COORDINATOR, pacelinev1.ErrorCode_ERROR_CODE_COORDINATOR_NOT_AVAILABLE,
		pacelinev1.ErrorCode_ERROR_CODE_SHUTTING_DOWN:
		return true
	case pacelinev1.ErrorCode_ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS, pacelinev1.ErrorCode_ERROR_CODE_THROTTLED:
		return false
	}
	return e.Retriable
}

// find returns the cached address of the coordinator, or looks it up.
func (c *coordinator) find(ctx context.Context) (string, error) {
	c.mu.Lock()
	address := c.address
	c.mu.Unlock()
	if address != "" {
		return address, nil
	}
	operation := "finding the coordinator of group " + c.groupID
	// A coordinator often moves because a broker has stopped: without that broker the look-up is faster.
	cluster, err := c.client.describeOnce(ctx)
	if err != nil {
		return "", err
	}
	last := error(newError(operation, pacelinev1.ErrorCode_ERROR_CODE_COORDINATOR_NOT_AVAILABLE, "no broker is known"))
	for _, broker := range addressesOf(cluster) { // the order of a map is random
		connection, err := c.client.dial(broker)
		if err != nil {
			return "", err
		}
		one, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err := pacelinev1.NewGroupServiceClient(connection).FindCoordinator(
			one, &pacelinev1.FindCoordinatorRequest{GroupId: c.groupID})
		cancel()
		if err == nil {
			address := joinAddress(answer.GetHost(), answer.GetPort())
			c.mu.Lock()
			c.address = address
			c.mu.Unlock()
			return address, nil
		}
		last = callError(ctx, operation, err)
		var failure *Error
		if ctx.Err() != nil || !errors.As(last, &failure) || !failure.Retriable {
			return "", last
		}
	}
	return "", last
}
