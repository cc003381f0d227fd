package paceline

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// fakeCluster is one process that is broker 1 and the active controller. Tests set the functions that answer its calls.
type fakeCluster struct {
	pacelinev1.UnimplementedMetadataServiceServer
	pacelinev1.UnimplementedGroupServiceServer
	pacelinev1.UnimplementedLogServiceServer
	pacelinev1.UnimplementedAdminServiceServer
	host string
	port int32

	watch     func(*pacelinev1.WatchEventsRequest, grpc.ServerStreamingServer[pacelinev1.WatchEventsResponse]) error
	join      func(*pacelinev1.JoinGroupRequest) (*pacelinev1.JoinGroupResponse, error)
	sync      func(*pacelinev1.SyncGroupRequest) (*pacelinev1.SyncGroupResponse, error)
	heartbeat func(*pacelinev1.HeartbeatRequest) error
	commit    func(*pacelinev1.CommitOffsetsRequest) error
	leave     func()
	committed func(*pacelinev1.CommittedOffset)

	describe    func(topic string) *pacelinev1.TopicDescription
	listOffsets func(*pacelinev1.ListOffsetsPartition) *pacelinev1.ListOffsetsPartitionResult
	fetch       func(*pacelinev1.FetchPartition) *pacelinev1.FetchPartitionResult
	produce     func(*pacelinev1.ProducePartition) *pacelinev1.ProducePartitionResult

	// throttleMs is in the answers of Produce, Fetch, CreateTopics and DeleteTopics, called with the name of the RPC.
	throttleMs func(name string) int32
	create     func() *pacelinev1.CreateTopicResult

	mu          sync.Mutex
	left        []string
	commits     []*pacelinev1.CommitOffsetsRequest
	producerIDs int64
}

func startFake(t *testing.T, options ...grpc.ServerOption) (*fakeCluster, *Client) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	number, _ := strconv.Atoi(port)
	fake := &fakeCluster{host: host, port: int32(number)}
	server := grpc.NewServer(options...)
	pacelinev1.RegisterMetadataServiceServer(server, fake)
	pacelinev1.RegisterGroupServiceServer(server, fake)
	pacelinev1.RegisterLogServiceServer(server, fake)
	pacelinev1.RegisterAdminServiceServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	client, err := NewClient(Config{Bootstrap: []string{listener.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Stop() })
	return fake, client
}

// refused returns the status of a call that a server refuses with an error code.
func refused(code pacelinev1.ErrorCode, metadata map[string]string) error {
	state, err := status.New(codes.FailedPrecondition, "on purpose").WithDetails(
		&errdetails.ErrorInfo{Domain: errorDomain, Reason: CodeName(code), Metadata: metadata})
	if err != nil {
		panic(err)
	}
	return state.Err()
}

func (f *fakeCluster) DescribeCluster(context.Context, *pacelinev1.DescribeClusterRequest) (*pacelinev1.DescribeClusterResponse, error) {
	return &pacelinev1.DescribeClusterResponse{
		Brokers:        []*pacelinev1.BrokerInfo{{Id: 1, Host: f.host, Port: f.port}},
		ControllerHost: f.host, ControllerPort: f.port,
	}, nil
}

func (f *fakeCluster) DescribeTopics(_ context.Context, request *pacelinev1.DescribeTopicsRequest) (*pacelinev1.DescribeTopicsResponse, error) {
	answer := &pacelinev1.DescribeTopicsResponse{}
	for _, name := range request.GetTopics() {
		if f.describe != nil {
			answer.Topics = append(answer.Topics, f.describe(name))
			continue
		}
		answer.Topics = append(answer.Topics, &pacelinev1.TopicDescription{
			Name: name, Partitions: []*pacelinev1.PartitionDescription{{Partition: 0}, {Partition: 1}}})
	}
	return answer, nil
}

func (f *fakeCluster) WatchEvents(
	request *pacelinev1.WatchEventsRequest, stream grpc.ServerStreamingServer[pacelinev1.WatchEventsResponse],
) error {
	return f.watch(request, stream)
}

func (f *fakeCluster) FindCoordinator(context.Context, *pacelinev1.FindCoordinatorRequest) (*pacelinev1.FindCoordinatorResponse, error) {
	return &pacelinev1.FindCoordinatorResponse{BrokerId: 1, Host: f.host, Port: f.port}, nil
}

func (f *fakeCluster) JoinGroup(_ context.Context, request *pacelinev1.JoinGroupRequest) (*pacelinev1.JoinGroupResponse, error) {
	return f.join(request)
}

func (f *fakeCluster) SyncGroup(_ context.Context, request *pacelinev1.SyncGroupRequest) (*pacelinev1.SyncGroupResponse, error) {
	if f.sync != nil {
		return f.sync(request)
	}
	return &pacelinev1.SyncGroupResponse{Assignment: request.GetAssignments()[0].GetAssignment()}, nil
}

func (f *fakeCluster) Heartbeat(_ context.Context, request *pacelinev1.HeartbeatRequest) (*pacelinev1.HeartbeatResponse, error) {
	if f.heartbeat != nil {
		return &pacelinev1.HeartbeatResponse{}, f.heartbeat(request)
	}
	return &pacelinev1.HeartbeatResponse{}, nil
}

func (f *fakeCluster) LeaveGroup(_ context.Context, request *pacelinev1.LeaveGroupRequest) (*pacelinev1.LeaveGroupResponse, error) {
	if f.leave != nil {
		f.leave()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range request.GetMembers() {
		f.left = append(f.left, one.GetMemberId())
	}
	return &pacelinev1.LeaveGroupResponse{}, nil
}

func (f *fakeCluster) CommitOffsets(_ context.Context, request *pacelinev1.CommitOffsetsRequest) (*pacelinev1.CommitOffsetsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commits = append(f.commits, request)
	if f.commit != nil {
		if err := f.commit(request); err != nil {
			return nil, err
		}
	}
	return &pacelinev1.CommitOffsetsResponse{}, nil
}

func (f *fakeCluster) FetchOffsets(_ context.Context, request *pacelinev1.FetchOffsetsRequest) (*pacelinev1.FetchOffsetsResponse, error) {
	answer := &pacelinev1.FetchOffsetsResponse{}
	for _, topic := range request.GetPartitions() {
		for _, partition := range topic.GetPartitions() {
			offset := int64(7)
			one := &pacelinev1.CommittedOffset{Topic: topic.GetTopic(), Partition: partition, Offset: &offset}
			if f.committed != nil {
				f.committed(one)
			}
			answer.Partitions = append(answer.Partitions, one)
		}
	}
	return answer, nil
}

// described returns a topic whose partitions have broker 1 as leader.
func described(name, id string, partitions int, epoch int32) *pacelinev1.TopicDescription {
	topic := &pacelinev1.TopicDescription{Name: name, TopicId: id}
	leader := int32(1)
	for partition := range int32(partitions) {
		topic.Partitions = append(topic.Partitions, &pacelinev1.PartitionDescription{
			Partition: partition, Leader: &leader, LeaderEpoch: epoch})
	}
	return topic
}

// partitionRefused returns the error of one partition in a response.
func partitionRefused(code pacelinev1.ErrorCode) *pacelinev1.PartitionError {
	return &pacelinev1.PartitionError{Code: code, Message: "on purpose"}
}

func (f *fakeCluster) ListOffsets(_ context.Context, request *pacelinev1.ListOffsetsRequest) (*pacelinev1.ListOffsetsResponse, error) {
	answer := &pacelinev1.ListOffsetsResponse{}
	for _, one := range request.GetPartitions() {
		if f.listOffsets != nil {
			answer.Partitions = append(answer.Partitions, f.listOffsets(one))
		}
	}
	return answer, nil
}

func (f *fakeCluster) Fetch(_ context.Context, request *pacelinev1.FetchRequest) (*pacelinev1.FetchResponse, error) {
	answer := &pacelinev1.FetchResponse{ThrottleMs: f.throttle("Fetch")}
	for _, one := range request.GetPartitions() {
		answer.Partitions = append(answer.Partitions, f.fetch(one))
	}
	time.Sleep(time.Millisecond) // Without a pause, consumers of an empty partition fetch without end.
	return answer, nil
}

func (f *fakeCluster) InitProducerId(context.Context, *pacelinev1.InitProducerIdRequest) (*pacelinev1.InitProducerIdResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.producerIDs++
	return &pacelinev1.InitProducerIdResponse{ProducerId: f.producerIDs}, nil
}

func (f *fakeCluster) Produce(_ context.Context, request *pacelinev1.ProduceRequest) (*pacelinev1.ProduceResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &pacelinev1.ProduceResponse{ThrottleMs: f.throttle("Produce")}
	for _, one := range request.GetPartitions() {
		answer.Partitions = append(answer.Partitions, f.produce(one))
	}
	return answer, nil
}

func (f *fakeCluster) CreateTopics(context.Context, *pacelinev1.CreateTopicsRequest) (*pacelinev1.CreateTopicsResponse, error) {
	answer := &pacelinev1.CreateTopicsResponse{ThrottleMs: f.throttle("CreateTopics")}
	if f.create != nil {
		answer.Topics = append(answer.Topics, f.create())
	}
	return answer, nil
}

func (f *fakeCluster) DeleteTopics(context.Context, *pacelinev1.DeleteTopicsRequest) (*pacelinev1.DeleteTopicsResponse, error) {
	return &pacelinev1.DeleteTopicsResponse{ThrottleMs: f.throttle("DeleteTopics")}, nil
}

func (f *fakeCluster) throttle(name string) int32 {
	if f.throttleMs == nil {
		return 0
	}
	return f.throttleMs(name)
}
