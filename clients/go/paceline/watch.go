package paceline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// watchSilence is the longest wait for a message before another controller is looked for. A server sends an empty batch at
// least every ten seconds.
var watchSilence = 25 * time.Second

// WatchEvents calls handle with the new events of the active controller, and follows it after a failover, until ctx ends,
// handle returns an error, or a server refuses the watch with an error that is not retriable. A batch with a Gap says that
// events before it are missing: this watcher was too slow, or another controller became active, which has only its own
// events.
//
// When ctx ends while no controller can be watched, the error wraps that of ctx and contains the last failure.
func (c *Client) WatchEvents(ctx context.Context, handle func(*pacelinev1.EventBatch) error) error {
	watch := eventWatch{client: c, handle: handle, sinceMs: time.Now().UnixMilli()}
	pause := firstPause
	var last error
	for {
		heard, err := watch.follow(ctx)
		switch {
		case watch.stopped != nil:
			return watch.stopped
		case ctx.Err() != nil:
			if last != nil && !heard {
				return fmt.Errorf("%w; the last failure: %v", ctx.Err(), last)
			}
			return ctx.Err()
		}
		var failure *Error
		if !errors.Is(err, io.EOF) && (!errors.As(err, &failure) || !failure.Retriable) {
			return err
		}
		if heard {
			pause = firstPause
		}
		last = err
		sleep(ctx, pause)
		pause = min(pause*3/2, longestPause)
	}
}

type eventWatch struct {
	client *Client
	handle func(*pacelinev1.EventBatch) error
	cursor string
	// sinceMs is the time of the last event, from which the next controller sends its events.
	sinceMs int64
	stopped error
}

// follow reads one stream until it ends, and returns whether it received any message.
func (w *eventWatch) follow(ctx context.Context) (heard bool, err error) {
	const operation = "watching events"
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	address, err := w.client.controllerAddress(ctx, operation)
	if err != nil {
		return false, err
	}
	connection, err := w.client.dial(address)
	if err != nil {
		return false, err
	}
	stream, err := pacelinev1.NewMetadataServiceClient(connection).WatchEvents(ctx, &pacelinev1.WatchEventsRequest{
		Cursor: w.cursor, SinceMs: w.since(), ActiveControllerOnly: true})
	silent := newError(operation, pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT, fmt.Sprintf("no message within %v", watchSilence))
	for err == nil {
		var answer *pacelinev1.WatchEventsResponse
		patience := time.AfterFunc(watchSilence, func() { cancel(silent) })
		answer, err = stream.Recv()
		patience.Stop()
		if err != nil {
			break
		}
		heard = true
		batch := answer.GetBatch()
		w.cursor = batch.GetCursor()
		for _, event := range batch.GetEvents() {
			w.sinceMs = max(w.sinceMs, event.GetTimeMs())
		}
		if len(batch.GetEvents()) > 0 || batch.Gap != nil {
			if w.stopped = w.handle(batch); w.stopped != nil {
				return heard, nil
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return heard, err
	}
	if context.Cause(ctx) == error(silent) {
		return heard, silent
	}
	return heard, callError(ctx, operation, err)
}

// since returns sinceMs, or nil for the first stream, which has only future events.
func (w *eventWatch) since() *int64 {
	if w.cursor == "" {
		return nil
	}
	return &w.sinceMs
}

// controllerAddress describes the cluster once and returns the address of the active controller.
func (c *Client) controllerAddress(ctx context.Context, operation string) (string, error) {
	call, cancel := context.WithTimeout(ctx, c.requestTimeout)
	defer cancel()
	if _, err := c.describeOnce(call); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.controller == "" {
		return "", newError(operation, pacelinev1.ErrorCode_ERROR_CODE_NOT_CONTROLLER, "no controller is active")
	}
	return c.controller, nil
}
