package paceline

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// joinAlone answers as the coordinator of a group with one member, which therefore leads it.
func joinAlone(generations *atomic.Int32) func(*pacelinev1.JoinGroupRequest) (*pacelinev1.JoinGroupResponse, error) {
	return func(request *pacelinev1.JoinGroupRequest) (*pacelinev1.JoinGroupResponse, error) {
		if request.GetMemberId() == "" && request.GetGroupInstanceId() == "" {
			return nil, refused(pacelinev1.ErrorCode_ERROR_CODE_MEMBER_ID_REQUIRED, map[string]string{"member_id": "m"})
		}
		subscription := request.GetProtocols()[0].GetSubscription()
		return &pacelinev1.JoinGroupResponse{
			GenerationId: generations.Add(1), ProtocolType: "consumer", ProtocolName: request.GetProtocols()[0].GetName(),
			Leader: "m", MemberId: "m", Members: []*pacelinev1.JoinGroupMember{{MemberId: "m", Subscription: subscription}},
		}, nil
	}
}

// startGroup starts a fake whose group has one member, and counts the generations.
func startGroup(t *testing.T) (*fakeCluster, *Client, *atomic.Int32) {
	t.Helper()
	fake, client := startFake(t)
	var generations atomic.Int32
	fake.join = joinAlone(&generations)
	return fake, client, &generations
}

func memberOf(t *testing.T, fake *fakeCluster, client *Client, config GroupConfig) *GroupConsumer {
	t.Helper()
	config.GroupID, config.Topics = "g", []string{"t"}
	config.AutoCommitInterval = time.Hour
	config.HeartbeatInterval, config.Logger = 10*time.Millisecond, slog.New(slog.DiscardHandler)
	member, err := client.NewGroupConsumer(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = member.Close(ctx)
	})
	return member
}

// pollUntil polls until a condition holds. Fetches fail, for the fake has no logs; that is of no importance here.
func pollUntil(t *testing.T, member *GroupConsumer, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Fatal("not within 30 s")
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		_, _ = member.Poll(ctx)
		cancel()
	}
}

func TestAMemberTakesItsIDFromTheRefusalAndBeginsAtTheCommits(t *testing.T) {
	fake, client, _ := startGroup(t)
	member := memberOf(t, fake, client, GroupConfig{})
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
	if id, generation := member.Member(); id != "m" || generation != 1 {
		t.Fatalf("%q in generation %d", id, generation)
	}
	if offset, known := member.Position("t", 1); !known || offset != 7 {
		t.Fatalf("position %d", offset)
	}
}

func TestALookUpOfTheCoordinatorSkipsBrokersThatLeftTheCluster(t *testing.T) {
	_, client := startFake(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client.brokers = map[int32]string{9: silent.Addr().String()}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for range 2 {
		finder := &coordinator{client: client, groupID: "g"}
		if address, err := finder.find(ctx); err != nil || address != client.bootstrap[0] {
			t.Fatalf("%q, %v", address, err)
		}
	}
}

func TestAJoinOutlivesThePollThatBeganIt(t *testing.T) {
	fake, client := startFake(t)
	var generations, joins atomic.Int32
	alone := joinAlone(&generations)
	fake.join = func(request *pacelinev1.JoinGroupRequest) (*pacelinev1.JoinGroupResponse, error) {
		if request.GetMemberId() != "" {
			joins.Add(1)
			time.Sleep(100 * time.Millisecond) // twenty polls
		}
		return alone(request)
	}
	member := memberOf(t, fake, client, GroupConfig{})
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
	if joins.Load() != 1 {
		t.Fatalf("%d joins", joins.Load())
	}
}

func TestARebalanceCommitsAndRevokesBeforeTheMemberJoinsAgain(t *testing.T) {
	fake, client := startFake(t)
	var generations atomic.Int32
	alone := joinAlone(&generations)
	var events []string
	fake.join = func(request *pacelinev1.JoinGroupRequest) (*pacelinev1.JoinGroupResponse, error) {
		if request.GetMemberId() != "" && generations.Load() == 1 {
			fake.mu.Lock()
			defer fake.mu.Unlock()
			if len(fake.commits) != 1 || fake.commits[0].GetGenerationId() != 1 || len(fake.commits[0].GetOffsets()) != 2 {
				t.Errorf("commits before the second join: %v", fake.commits)
			}
		}
		return alone(request)
	}
	fake.heartbeat = func(request *pacelinev1.HeartbeatRequest) error {
		if request.GetGenerationId() == 1 {
			return refused(pacelinev1.ErrorCode_ERROR_CODE_REBALANCE_IN_PROGRESS, nil)
		}
		return nil
	}
	note := func(kind string) func(context.Context, []TopicPartition) {
		return func(context.Context, []TopicPartition) { events = append(events, kind) }
	}
	member := memberOf(t, fake, client, GroupConfig{OnAssigned: note("assigned"), OnRevoked: note("revoked"), OnLost: note("lost")})
	pollUntil(t, member, func() bool { return len(events) >= 3 })
	if found := strings.Join(events, " "); found != "assigned revoked assigned" {
		t.Fatal(found)
	}
}

func TestALostMembershipIsNotCommitted(t *testing.T) {
	fake, client := startFake(t)
	var generations atomic.Int32
	var owns, lost atomic.Bool
	fake.join = joinAlone(&generations)
	fake.heartbeat = func(request *pacelinev1.HeartbeatRequest) error {
		// A member that has not taken its partitions yet loses none.
		if request.GetGenerationId() == 1 && owns.Load() {
			return refused(pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_MEMBER_ID, nil)
		}
		return nil
	}
	note := func(is *atomic.Bool) func(context.Context, []TopicPartition) {
		return func(context.Context, []TopicPartition) { is.Store(true) }
	}
	member := memberOf(t, fake, client, GroupConfig{OnAssigned: note(&owns), OnLost: note(&lost)})
	pollUntil(t, member, func() bool { _, generation := member.Member(); return generation == 2 })
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if len(fake.commits) != 0 || !lost.Load() {
		t.Fatalf("lost %v, commits: %v", lost.Load(), fake.commits)
	}
}

func TestACommitWithoutAPlaceInTheGroupIsRefused(t *testing.T) {
	fake, client, _ := startGroup(t)
	member := memberOf(t, fake, client, GroupConfig{ManualCommit: true})
	offsets := map[TopicPartition]CommittedOffset{{"t", 0}: {Offset: 3}}
	var failed *CommitFailedError
	if err := member.CommitOffsets(context.Background(), offsets); !errors.As(err, &failed) || len(fake.commits) != 0 {
		t.Fatalf("before the first join: %v", err)
	}
	fake.commit = func(*pacelinev1.CommitOffsetsRequest) error {
		return refused(pacelinev1.ErrorCode_ERROR_CODE_ILLEGAL_GENERATION, nil)
	}
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
	err := member.CommitOffsets(context.Background(), offsets)
	if !errors.As(err, &failed) || CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_ILLEGAL_GENERATION {
		t.Fatal(err)
	}
}

func TestACommitIsRepeatedWhileTheCoordinatorMoves(t *testing.T) {
	fake, client, _ := startGroup(t)
	refusals := []pacelinev1.ErrorCode{
		pacelinev1.ErrorCode_ERROR_CODE_NOT_COORDINATOR, pacelinev1.ErrorCode_ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS,
		pacelinev1.ErrorCode_ERROR_CODE_COORDINATOR_NOT_AVAILABLE}
	fake.commit = func(*pacelinev1.CommitOffsetsRequest) error {
		if len(refusals) == 0 {
			return nil
		}
		code := refusals[0]
		refusals = refusals[1:]
		return refused(code, nil)
	}
	member := memberOf(t, fake, client, GroupConfig{ManualCommit: true})
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
	if err := member.Commit(context.Background()); err != nil || len(fake.commits) != 4 {
		t.Fatalf("%d commits, %v", len(fake.commits), err)
	}
}

func TestFetchesOfManyPartitionsDoNotDelayHeartbeats(t *testing.T) {
	fake, client := startFake(t, grpc.MaxConcurrentStreams(2))
	var generations, heartbeats atomic.Int32
	fake.join = joinAlone(&generations)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 8, 0) }
	fake.heartbeat = func(*pacelinev1.HeartbeatRequest) error { heartbeats.Add(1); return nil }
	release := make(chan struct{})
	defer close(release)
	fake.fetch = func(asked *pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult {
		<-release
		return &pacelinev1.FetchPartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
	}
	member := memberOf(t, fake, client, GroupConfig{ManualCommit: true})
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 8 })
	short, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, _ = member.Poll(short) // begins the fetches
	before := heartbeats.Load()
	for deadline := time.Now().Add(2 * time.Second); heartbeats.Load() < before+3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("heartbeats wait for fetches")
		}
	}
}

func TestAFencedMemberIsToldAtEveryPoll(t *testing.T) {
	fake, client, generations := startGroup(t)
	fake.heartbeat = func(*pacelinev1.HeartbeatRequest) error {
		return refused(pacelinev1.ErrorCode_ERROR_CODE_FENCED_INSTANCE_ID, nil)
	}
	member := memberOf(t, fake, client, GroupConfig{InstanceID: "i", ManualCommit: true})
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		_, err := member.Poll(ctx)
		for ; err == nil || CodeOf(err) == pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_SERVER_ERROR; _, err = member.Poll(ctx) {
		}
		cancel()
		if CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_FENCED_INSTANCE_ID {
			t.Fatal(err)
		}
	}
	if generations.Load() != 1 {
		t.Fatalf("the member joined %d times", generations.Load())
	}
}

func TestAMemberThatIsFencedWhileItSyncsDoesNotJoinAgain(t *testing.T) {
	fake, client, generations := startGroup(t)
	fake.heartbeat = func(*pacelinev1.HeartbeatRequest) error {
		return refused(pacelinev1.ErrorCode_ERROR_CODE_FENCED_INSTANCE_ID, nil)
	}
	release := make(chan struct{})
	defer close(release)
	fake.sync = func(*pacelinev1.SyncGroupRequest) (*pacelinev1.SyncGroupResponse, error) {
		<-release
		return nil, refused(pacelinev1.ErrorCode_ERROR_CODE_FENCED_INSTANCE_ID, nil)
	}
	member := memberOf(t, fake, client, GroupConfig{InstanceID: "i", ManualCommit: true})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := member.Poll(ctx)
	if CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_FENCED_INSTANCE_ID || generations.Load() != 1 {
		t.Fatalf("after %d joins: %v", generations.Load(), err)
	}
}

func TestOnlyADynamicMemberLeavesWhenItIsClosed(t *testing.T) {
	for instance, expected := range map[string]int{"": 1, "i": 0} {
		fake, client, _ := startGroup(t)
		member := memberOf(t, fake, client, GroupConfig{InstanceID: instance})
		pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
		if err := member.Close(context.Background()); err != nil || len(fake.left) != expected || len(fake.commits) != 1 {
			t.Fatalf("instance %q: left %v, commits %v, %v", instance, fake.left, fake.commits, err)
		}
	}
}

func TestAMemberLeavesAlthoughTheContextOfCloseHasEnded(t *testing.T) {
	fake, client, _ := startGroup(t)
	member := memberOf(t, fake, client, GroupConfig{ManualCommit: true})
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := member.Close(ended); err != nil || len(fake.left) != 1 {
		t.Fatalf("left %v, %v", fake.left, err)
	}
}

func TestACommitThatIsNotAnsweredDoesNotOutliveTheContextOfClose(t *testing.T) {
	fake, client, _ := startGroup(t)
	release := make(chan struct{})
	defer close(release)
	fake.commit = func(*pacelinev1.CommitOffsetsRequest) error { <-release; return nil }
	client.requestTimeout = time.Minute
	member := memberOf(t, fake, client, GroupConfig{SessionTimeout: 10 * time.Minute})
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_ = member.Close(ctx)
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("Close waits for the commit")
	}
}

func TestAPartitionWithoutAStartIsAnErrorThatDisturbsNoOtherMember(t *testing.T) {
	fake, client, generations := startGroup(t)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 2, 0) }
	fake.committed = func(one *pacelinev1.CommittedOffset) {
		if one.GetPartition() == 1 {
			one.Offset = nil
		}
	}
	fake.fetch = func(asked *pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult {
		return &pacelinev1.FetchPartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition()}
	}
	member := memberOf(t, fake, client, GroupConfig{Reset: ResetError, ManualCommit: true})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for range 3 {
		if _, err := member.Poll(ctx); CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_OFFSET_OUT_OF_RANGE {
			t.Fatal(err)
		}
	}
	if _, known := member.Position("t", 1); known || len(member.consumed()) != 1 || generations.Load() != 1 {
		t.Fatalf("a position is known: %v, commits %v, joins %d", known, member.consumed(), generations.Load())
	}
	if err := member.Seek("t", 1, 4); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := member.Poll(short); err != nil {
		t.Fatal(err)
	}
}

func TestAMemberWhoseApplicationDoesNotPollLeaves(t *testing.T) {
	fake, client, generations := startGroup(t)
	member := memberOf(t, fake, client, GroupConfig{MaxPollInterval: 200 * time.Millisecond})
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
	left := func() int {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		return len(fake.left)
	}
	// On a slow machine it may have left between two polls already.
	for already, deadline := left(), time.Now().Add(30*time.Second); left() == already; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the member did not leave")
		}
	}
	before := generations.Load()
	pollUntil(t, member, func() bool { return generations.Load() > before && len(member.Assignment()) == 2 })
}

func TestSettingsThatCannotBeAreRefused(t *testing.T) {
	_, client := startFake(t)
	for name, config := range map[string]GroupConfig{
		"no group":       {Topics: []string{"t"}},
		"no topic":       {GroupID: "g"},
		"slow heartbeat": {GroupID: "g", Topics: []string{"t"}, SessionTimeout: time.Second},
		"past commits":   {GroupID: "g", Topics: []string{"t"}, AutoCommitInterval: -time.Second},
	} {
		if _, err := client.NewGroupConsumer(config); CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAPartitionOfADeletedTopicDoesNotKeepTheOthersWaiting(t *testing.T) {
	fake, client, _ := startGroup(t)
	fake.describe = func(topic string) *pacelinev1.TopicDescription { return described(topic, "id", 2, 0) }
	fake.committed = func(one *pacelinev1.CommittedOffset) {
		if one.GetPartition() == 1 {
			one.Offset = nil
		}
	}
	fake.listOffsets = func(asked *pacelinev1.ListOffsetsPartition) *pacelinev1.ListOffsetsPartitionResult {
		return &pacelinev1.ListOffsetsPartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition(),
			Error: partitionRefused(pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION)}
	}
	fake.fetch = func(asked *pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult {
		list := &pacelinev1.RecordList{Records: []*pacelinev1.Record{{Offset: asked.GetFetchOffset()}}}
		return &pacelinev1.FetchPartitionResult{Topic: asked.GetTopic(), Partition: asked.GetPartition(),
			Data: &pacelinev1.FetchPartitionResult_Records{Records: list}}
	}
	member := memberOf(t, fake, client, GroupConfig{})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	found, err := member.Poll(ctx)
	if err != nil || len(found) == 0 || found[0].Offset != 7 || len(member.Assignment()) != 2 {
		t.Fatalf("%v of %v, %v", found, member.Assignment(), err)
	}
	if offset, known := member.Position("t", 1); known {
		t.Fatalf("the deleted topic has the position %d", offset)
	}
}

func TestACoordinatorThatDoesNotAnswerDoesNotKeepAMemberThatIsClosed(t *testing.T) {
	fake, client, _ := startGroup(t)
	release := make(chan struct{})
	defer close(release)
	fake.leave = func() { <-release }
	client.requestTimeout = 500 * time.Millisecond
	member := memberOf(t, fake, client, GroupConfig{ManualCommit: true})
	pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
	ended := make(chan error, 1)
	go func() { ended <- member.Close(context.Background()) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Fatal("no error although the coordinator was not told")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Close waits for ever")
	}
}

func TestARefusalAfterACommitWithoutAnAnswerIsNotDefinite(t *testing.T) {
	for first, definite := range map[error]bool{
		status.Error(codes.Unavailable, "the connection broke"):                    false,
		refused(pacelinev1.ErrorCode_ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS, nil): true,
	} {
		fake, client, _ := startGroup(t)
		answers := []error{first, refused(pacelinev1.ErrorCode_ERROR_CODE_ILLEGAL_GENERATION, nil)}
		fake.commit = func(*pacelinev1.CommitOffsetsRequest) error {
			answer := answers[0]
			answers = answers[1:]
			return answer
		}
		member := memberOf(t, fake, client, GroupConfig{ManualCommit: true})
		pollUntil(t, member, func() bool { return len(member.Assignment()) == 2 })
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		var failure *Error
		if err := member.Commit(ctx); !errors.As(err, &failure) || failure.Definite != definite || len(answers) != 0 {
			t.Errorf("after %v: %v", first, err)
		}
		cancel()
	}
}
