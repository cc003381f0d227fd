package paceline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

type eventStream = grpc.ServerStreamingServer[pacelinev1.WatchEventsResponse]

var errEnough = errors.New("enough")

func watching(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAWatchThatIsRefusedWithAFinalErrorEnds(t *testing.T) {
	fake, client := startFake(t)
	calls := 0
	fake.watch = func(*pacelinev1.WatchEventsRequest, eventStream) error {
		calls++
		return refused(pacelinev1.ErrorCode_ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED, nil)
	}
	err := client.WatchEvents(watching(t), func(*pacelinev1.EventBatch) error { return nil })
	if CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED || calls != 1 {
		t.Fatalf("%d calls, %v", calls, err)
	}
}

func TestAWatchContinuesAtItsCursorAndReportsAGap(t *testing.T) {
	fake, client := startFake(t)
	var cursors []string
	var since []*int64
	fake.watch = func(request *pacelinev1.WatchEventsRequest, stream eventStream) error {
		cursors, since = append(cursors, request.GetCursor()), append(since, request.SinceMs)
		if !request.GetActiveControllerOnly() {
			return refused(pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST, nil)
		}
		if len(cursors) == 1 {
			batch := &pacelinev1.EventBatch{Cursor: "c1", Events: []*pacelinev1.ClusterEvent{{TimeMs: 1 << 50}}}
			_ = stream.Send(&pacelinev1.WatchEventsResponse{Batch: batch})
			return refused(pacelinev1.ErrorCode_ERROR_CODE_NOT_CONTROLLER, nil)
		}
		gap := &pacelinev1.EventGap{Reason: pacelinev1.EventGapReason_EVENT_GAP_REASON_OTHER_PROCESS}
		return stream.Send(&pacelinev1.WatchEventsResponse{Batch: &pacelinev1.EventBatch{Cursor: "c2", Gap: gap}})
	}
	var seen []*pacelinev1.EventBatch
	err := client.WatchEvents(watching(t), func(batch *pacelinev1.EventBatch) error {
		if seen = append(seen, batch); len(seen) == 2 {
			return errEnough
		}
		return nil
	})
	if err != errEnough || len(seen[0].GetEvents()) != 1 || seen[0].Gap != nil || seen[1].Gap == nil {
		t.Fatalf("%v, %v", seen, err)
	}
	if cursors[0] != "" || cursors[1] != "c1" || since[0] != nil || *since[1] != 1<<50 {
		t.Fatalf("cursors %v, since %v", cursors, since)
	}
}

func TestTheErrorOfACancelledWatchHasTheLastFailure(t *testing.T) {
	fake, client := startFake(t)
	ctx, cancel := context.WithCancel(watching(t))
	calls := 0
	fake.watch = func(*pacelinev1.WatchEventsRequest, eventStream) error {
		if calls++; calls == 2 {
			cancel()
		}
		return refused(pacelinev1.ErrorCode_ERROR_CODE_NOT_CONTROLLER, nil)
	}
	err := client.WatchEvents(ctx, func(*pacelinev1.EventBatch) error { return nil })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "NOT_CONTROLLER") {
		t.Fatal(err)
	}
}

func TestAWatchOfASilentControllerIsStartedAgain(t *testing.T) {
	fake, client := startFake(t)
	usual := watchSilence
	watchSilence = 200 * time.Millisecond
	t.Cleanup(func() { watchSilence = usual })
	calls := 0
	fake.watch = func(_ *pacelinev1.WatchEventsRequest, stream eventStream) error {
		if calls++; calls == 1 {
			<-stream.Context().Done()
			return nil
		}
		return stream.Send(&pacelinev1.WatchEventsResponse{Batch: &pacelinev1.EventBatch{Events: []*pacelinev1.ClusterEvent{{}}}})
	}
	err := client.WatchEvents(watching(t), func(*pacelinev1.EventBatch) error { return errEnough })
	if err != errEnough {
		t.Fatal(err)
	}
}
