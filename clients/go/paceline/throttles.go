package paceline

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const adminPrefix = "/paceline.v1.AdminService/"

// throttles keeps the pauses that servers ask for with throttle_ms, because this client is above a quota.
type throttles struct {
	mu    sync.Mutex
	until map[string]time.Time
	total time.Duration
}

// ThrottleTime returns the sum of the pauses for which brokers and controllers have asked this client, because it is above a
// quota. Producers, consumers and administrative calls make the pauses themselves.
func (c *Client) ThrottleTime() time.Duration {
	c.throttles.mu.Lock()
	defer c.throttles.mu.Unlock()
	return c.throttles.total
}

// intercept makes a call, unless its server has asked for a pause that is not over: then the request is not sent, and the
// error says when to repeat it.
func (t *throttles) intercept(
	ctx context.Context, method string, request, answer any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	asking, ok := answer.(interface{ GetThrottleMs() int32 })
	if !ok {
		return invoke(ctx, method, request, answer, connection, options...)
	}
	key := connection.Target() + method
	if strings.HasPrefix(method, adminPrefix) {
		key = connection.Target() + adminPrefix // A pause is for all changes of partitions.
	}
	t.mu.Lock()
	left := time.Until(t.until[key])
	t.mu.Unlock()
	if left > 0 {
		return throttled(left)
	}
	err := invoke(ctx, method, request, answer, connection, options...)
	if pause := time.Duration(asking.GetThrottleMs()) * time.Millisecond; err == nil && pause > 0 {
		t.mu.Lock()
		t.until[key], t.total = time.Now().Add(pause), t.total+pause
		t.mu.Unlock()
	}
	return err
}

func throttled(left time.Duration) error {
	state, err := status.New(codes.ResourceExhausted, "this client is above a quota; the request was not sent yet").WithDetails(
		&errdetails.ErrorInfo{Domain: errorDomain, Reason: CodeName(pacelinev1.ErrorCode_ERROR_CODE_THROTTLED)},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(left)})
	if err != nil {
		return err
	}
	return state.Err()
}
