package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// fakeCluster is the state that the servers of a test share: one topic with one partition and two brokers.
type fakeCluster struct {
	mu      sync.Mutex
	servers map[int32]*fakeServer
	leader  int32
	// The leader in the answers of DescribeTopics, which may be outdated.
	toldLeader int32
	controller int32
	// The controller in the answers of DescribeCluster, and the number of answers before that know no cluster.
	toldController int32
	untold         int
	topic          string
	log            []*pacelinev1.Record
	lastList       *pacelinev1.RecordList
	lastBase       int64
	epoch          int32

	// beforeProduce may fail a call or change the cluster; it runs at the leader. With REQUEST_TIMED_OUT the leader appends
	// the records and fails the call, as if its followers were too slow.
	beforeProduce func(c *fakeCluster, call int) *pacelinev1.PartitionError
	produceCalls  int
	// onRead may change the records of an answer.
	onRead func([]*pacelinev1.Record) []*pacelinev1.Record
}

// fakeServer is one broker or controller.
type fakeServer struct {
	pacelinev1.UnimplementedMetadataServiceServer
	pacelinev1.UnimplementedAdminServiceServer
	pacelinev1.UnimplementedLogServiceServer
	id      int32
	port    int32
	cluster *fakeCluster
}

func newFakeCluster(t *testing.T) *fakeCluster {
	t.Helper()
	c := &fakeCluster{servers: map[int32]*fakeServer{}, leader: 1, toldLeader: 1, controller: 101, toldController: 101}
	for _, id := range []int32{1, 2, 101, 102} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &fakeServer{id: id, port: int32(listener.Addr().(*net.TCPAddr).Port), cluster: c}
		server := grpc.NewServer()
		pacelinev1.RegisterMetadataServiceServer(server, s)
		pacelinev1.RegisterAdminServiceServer(server, s)
		pacelinev1.RegisterLogServiceServer(server, s)
		c.servers[id] = s
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
	}
	return c
}

func (c *fakeCluster) address(id int32) string {
	return fmt.Sprintf("127.0.0.1:%d", c.servers[id].port)
}

func (s *fakeServer) DescribeCluster(context.Context, *pacelinev1.DescribeClusterRequest) (*pacelinev1.DescribeClusterResponse, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	if s.cluster.untold > 0 {
		s.cluster.untold--
		return &pacelinev1.DescribeClusterResponse{ClusterId: "fake"}, nil
	}
	answer := &pacelinev1.DescribeClusterResponse{
		ClusterId: "fake", ControllerId: &s.cluster.toldController, ControllerHost: "127.0.0.1",
		ControllerPort: s.cluster.servers[s.cluster.toldController].port,
	}
	if s.id > 100 && s.id != s.cluster.controller {
		return answer, nil // a standby knows no brokers
	}
	for _, id := range []int32{1, 2} {
		answer.Brokers = append(answer.Brokers, &pacelinev1.BrokerInfo{Id: id, Host: "127.0.0.1", Port: s.cluster.servers[id].port})
	}
	return answer, nil
}

func (s *fakeServer) DescribeTopics(_ context.Context, request *pacelinev1.DescribeTopicsRequest) (*pacelinev1.DescribeTopicsResponse, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	description := &pacelinev1.TopicDescription{Name: request.GetTopics()[0], TopicId: "id"}
	if s.cluster.topic == "" {
		description.Error = &pacelinev1.TopicError{Code: pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION}
	} else {
		told := s.cluster.toldLeader
		description.Partitions = []*pacelinev1.PartitionDescription{{Leader: &told, Replicas: []int32{1, 2}, Isr: []int32{1, 2}}}
	}
	return &pacelinev1.DescribeTopicsResponse{Topics: []*pacelinev1.TopicDescription{description}}, nil
}

func (s *fakeServer) CreateTopics(_ context.Context, request *pacelinev1.CreateTopicsRequest) (*pacelinev1.CreateTopicsResponse, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	if s.id != s.cluster.controller {
		refusal, err := status.New(codes.FailedPrecondition, "not the controller").WithDetails(&errdetails.ErrorInfo{
			Reason: "NOT_CONTROLLER", Domain: errorDomain,
			Metadata: map[string]string{"address": s.cluster.address(s.cluster.controller)},
		})
		if err != nil {
			return nil, err
		}
		return nil, refusal.Err()
	}
	s.cluster.topic = request.GetTopics()[0].GetName()
	return &pacelinev1.CreateTopicsResponse{Topics: []*pacelinev1.CreateTopicResult{{Name: s.cluster.topic}}}, nil
}

// notLeader returns the error of a broker that is not the leader, or nil at the leader.
func (s *fakeServer) notLeader() *pacelinev1.PartitionError {
	if s.id == s.cluster.leader {
		return nil
	}
	return &pacelinev1.PartitionError{
		Code: pacelinev1.ErrorCode_ERROR_CODE_NOT_LEADER_OR_FOLLOWER,
		CurrentLeader: &pacelinev1.LeaderHint{
			LeaderId: s.cluster.leader, LeaderEpoch: s.cluster.epoch, Host: "127.0.0.1",
			Port: s.cluster.servers[s.cluster.leader].port,
		},
	}
}

func (s *fakeServer) append(records []*pacelinev1.Record) int64 {
	base := int64(len(s.cluster.log))
	now := time.Now().UnixMilli()
	for i, record := range records {
		s.cluster.log = append(s.cluster.log, &pacelinev1.Record{
			Key: record.Key, Value: record.Value, Headers: record.Headers, TimestampMs: &now, Offset: base + int64(i),
		})
	}
	return base
}

func (s *fakeServer) InitProducerId(context.Context, *pacelinev1.InitProducerIdRequest) (*pacelinev1.InitProducerIdResponse, error) {
	return &pacelinev1.InitProducerIdResponse{ProducerId: 7}, nil
}

// appendOnce appends a list of records unless it repeats the last append, and returns the base offset.
func (s *fakeServer) appendOnce(list *pacelinev1.RecordList) int64 {
	if list.ProducerId != nil && s.cluster.lastList != nil && proto.Equal(list, s.cluster.lastList) {
		return s.cluster.lastBase
	}
	s.cluster.lastList, s.cluster.lastBase = list, s.append(list.GetRecords())
	return s.cluster.lastBase
}

func (s *fakeServer) Produce(_ context.Context, request *pacelinev1.ProduceRequest) (*pacelinev1.ProduceResponse, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	partition := request.GetPartitions()[0]
	result := &pacelinev1.ProducePartitionResult{Topic: partition.GetTopic(), Error: s.notLeader()}
	if result.Error == nil && s.cluster.beforeProduce != nil {
		s.cluster.produceCalls++
		result.Error = s.cluster.beforeProduce(s.cluster, s.cluster.produceCalls)
		if result.Error.GetCode() == pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT {
			s.appendOnce(partition.GetRecords())
		}
	}
	if result.Error == nil {
		result.BaseOffset = s.appendOnce(partition.GetRecords())
	}
	return &pacelinev1.ProduceResponse{Partitions: []*pacelinev1.ProducePartitionResult{result}}, nil
}

func (s *fakeServer) Fetch(_ context.Context, request *pacelinev1.FetchRequest) (*pacelinev1.FetchResponse, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	partition := request.GetPartitions()[0]
	result := &pacelinev1.FetchPartitionResult{Topic: partition.GetTopic(), Error: s.notLeader()}
	if result.Error == nil {
		result.HighWatermark = int64(len(s.cluster.log))
		// An answer has at most seven records, so that the reader needs several fetches.
		from := min(int(partition.GetFetchOffset()), len(s.cluster.log))
		records := s.cluster.log[from:min(from+7, len(s.cluster.log))]
		if s.cluster.onRead != nil {
			records = s.cluster.onRead(records)
		}
		result.Data = &pacelinev1.FetchPartitionResult_Records{Records: &pacelinev1.RecordList{Records: records}}
	}
	return &pacelinev1.FetchResponse{Partitions: []*pacelinev1.FetchPartitionResult{result}}, nil
}

func runAgainst(t *testing.T, c *fakeCluster, bootstrap ...int32) (*summary, error) {
	t.Helper()
	o := options{topic: "orders", partitions: 1, replicationFactor: 2, records: 50, batch: 10, timeout: 10 * time.Second}
	for _, id := range bootstrap {
		o.bootstrap = append(o.bootstrap, c.address(id))
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	return run(ctx, o)
}

func mustMatch(t *testing.T, s *summary, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if s.Acknowledged != 50 || len(s.Mismatches) > 0 {
		t.Fatalf("acknowledged %d of 50, mismatches %q", s.Acknowledged, s.Mismatches)
	}
}

func TestAcknowledgedRecordsAreReadBack(t *testing.T) {
	s, err := runAgainst(t, newFakeCluster(t), 1)
	mustMatch(t, s, err)
	if s.Read != 50 || s.Retries != 0 || s.LeaderHints != 0 || s.ControllerRedirects != 0 {
		t.Fatalf("unexpected: %+v", s)
	}
}

func TestTheActiveControllersAddressIsTakenFromTheStandbysRefusal(t *testing.T) {
	c := newFakeCluster(t)
	c.toldController = 102
	s, err := runAgainst(t, c, 1)
	mustMatch(t, s, err)
	if s.ControllerRedirects != 1 {
		t.Fatalf("followed %d redirects, not 1", s.ControllerRedirects)
	}
}

func TestOneStandbyControllerIsEnoughToStartFrom(t *testing.T) {
	s, err := runAgainst(t, newFakeCluster(t), 102)
	mustMatch(t, s, err)
	if s.Brokers != 2 {
		t.Fatalf("found %d brokers, not 2", s.Brokers)
	}
}

func TestABrokerThatKnowsNoClusterYetIsAskedAgain(t *testing.T) {
	c := newFakeCluster(t)
	c.untold = 2
	s, err := runAgainst(t, c, 1)
	mustMatch(t, s, err)
	if s.Brokers != 2 {
		t.Fatalf("found %d brokers, not 2", s.Brokers)
	}
}

func TestTheLeaderHintOfAFollowerIsFollowed(t *testing.T) {
	c := newFakeCluster(t)
	c.toldLeader, c.leader = 1, 2
	s, err := runAgainst(t, c, 1)
	mustMatch(t, s, err)
	if s.LeaderHints == 0 {
		t.Fatal("no hint was followed")
	}
}

func TestALeaderElectedDuringTheRunIsFound(t *testing.T) {
	c := newFakeCluster(t)
	c.beforeProduce = func(c *fakeCluster, call int) *pacelinev1.PartitionError {
		if call != 3 {
			return nil
		}
		c.leader, c.toldLeader, c.epoch = 2, 2, 1
		return &pacelinev1.PartitionError{Code: pacelinev1.ErrorCode_ERROR_CODE_NOT_LEADER_OR_FOLLOWER}
	}
	s, err := runAgainst(t, c, 1, 2)
	mustMatch(t, s, err)
	if s.Retries == 0 {
		t.Fatal("no call was repeated")
	}
}

func TestARetryAfterAnUnknownOutcomeWritesNothingTwice(t *testing.T) {
	c := newFakeCluster(t)
	c.beforeProduce = func(_ *fakeCluster, call int) *pacelinev1.PartitionError {
		if call != 2 {
			return nil
		}
		return &pacelinev1.PartitionError{Code: pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT}
	}
	s, err := runAgainst(t, c, 1)
	mustMatch(t, s, err)
	if s.UnknownOutcomes != 1 || s.Read != 50 {
		t.Fatalf("%d unknown outcomes and %d records read, not 1 and 50", s.UnknownOutcomes, s.Read)
	}
}

func TestAnErrorThatIsNotRetriableEndsTheRun(t *testing.T) {
	c := newFakeCluster(t)
	c.beforeProduce = func(*fakeCluster, int) *pacelinev1.PartitionError {
		return &pacelinev1.PartitionError{Code: pacelinev1.ErrorCode_ERROR_CODE_MESSAGE_TOO_LARGE, Message: "too large"}
	}
	_, err := runAgainst(t, c, 1)
	if err == nil || !strings.Contains(err.Error(), "MESSAGE_TOO_LARGE") {
		t.Fatalf("the error is %v", err)
	}
}

func TestAChangedRecordIsReported(t *testing.T) {
	c := newFakeCluster(t)
	c.onRead = func(records []*pacelinev1.Record) []*pacelinev1.Record {
		for _, record := range records {
			if record.GetOffset() == 25 {
				record.Value = []byte("other")
			}
		}
		return records
	}
	s, err := runAgainst(t, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Mismatches) != 1 || !strings.Contains(s.Mismatches[0], "offset 25") {
		t.Fatalf("mismatches are %q", s.Mismatches)
	}
}

func TestAMissingRecordIsReported(t *testing.T) {
	c := newFakeCluster(t)
	c.onRead = func(records []*pacelinev1.Record) []*pacelinev1.Record {
		kept := []*pacelinev1.Record{}
		for _, record := range records {
			if record.GetOffset() != 25 {
				kept = append(kept, record)
			}
		}
		return kept
	}
	s, err := runAgainst(t, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Join(s.Mismatches, "; ")
	if !strings.Contains(found, "1 acknowledged records are missing") || !strings.Contains(found, "offset 26 came") {
		t.Fatalf("mismatches are %q", s.Mismatches)
	}
}

func TestARecordThatWasNotAcknowledgedIsReported(t *testing.T) {
	c := newFakeCluster(t)
	c.beforeProduce = func(c *fakeCluster, call int) *pacelinev1.PartitionError {
		if call == 2 {
			c.servers[1].append([]*pacelinev1.Record{{Value: []byte("stray")}})
		}
		return nil
	}
	s, err := runAgainst(t, c, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Mismatches) != 1 || !strings.Contains(s.Mismatches[0], "were not acknowledged") {
		t.Fatalf("mismatches are %q", s.Mismatches)
	}
}

func TestAnUnreachableClusterIsAnErrorAtTheDeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err = run(ctx, options{bootstrap: []string{address}, topic: "t", partitions: 1, replicationFactor: 1, records: 1, batch: 1})
	if err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Fatalf("the error is %v", err)
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	for _, arguments := range [][]string{{"-records", "0"}, {"-bootstrap", " , "}, {"-batch", "-1"}, {"rest"}} {
		if _, err := parseOptions(arguments); err == nil {
			t.Errorf("%q was accepted", arguments)
		}
	}
	o, err := parseOptions([]string{"-bootstrap", "a:1, b:2"})
	if err != nil || len(o.bootstrap) != 2 || o.bootstrap[1] != "b:2" || !strings.HasPrefix(o.topic, "go-roundtrip-") {
		t.Errorf("got %+v, %v", o, err)
	}
}
