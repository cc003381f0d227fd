package paceline

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

const (
	firstPause     = 50 * time.Millisecond
	longestPause   = time.Second
	askTimeout     = 2 * time.Second
	leastAttempt   = 200 * time.Millisecond
	connectTimeout = 5 * time.Second
	metadataMaxAge = 5 * time.Minute
	// sayAfter is the time after which a wait is logged, and sayAgainAfter the least time between two such warnings.
	sayAfter       = 1800 * time.Millisecond
	sayAgainAfter  = 10 * time.Second
	largestMessage = 64 << 20
	fetchPrefix    = "fetch "
	// longestTime stands for longer settings: sums of two of them do not overflow.
	longestTime = 365 * 24 * time.Hour
)

// Config says how to reach a cluster.
type Config struct {
	// Bootstrap lists addresses (host:port) of any brokers or controllers of the cluster.
	Bootstrap []string
	// RequestTimeout bounds one request; 0 means 10 s.
	RequestTimeout time.Duration
	// CAFile, CertFile and KeyFile are PEM files. With a CAFile connections use TLS; the other two identify the client.
	// Without any of them all three come from PACELINE_SSL_CA_FILE, PACELINE_SSL_CERTIFICATE_FILE and PACELINE_SSL_KEY_FILE,
	// without a CAFile alone the CAFile does. A key that other users can read is refused.
	CAFile, CertFile, KeyFile string
	// Logger receives a warning with the cause when a call is repeated, or not answered, for two seconds; nil means
	// slog.Default().
	Logger *slog.Logger
	// DialOptions are added to those of this package.
	DialOptions []grpc.DialOption
}

// Client knows one cluster: connections, brokers and leaders. It is safe for concurrent use.
type Client struct {
	requestTimeout time.Duration
	dialOptions    []grpc.DialOption
	logger         *slog.Logger
	// quietUntil is the earliest time of the next warning, in milliseconds since 1970.
	quietUntil atomic.Int64
	throttles  *throttles

	mu        sync.Mutex
	bootstrap []string
	// connections has fetchPrefix before the address of a connection for fetches. One to a former address of the cluster stays,
	// but gRPC closes its transport after 30 minutes without a call (grpc.WithIdleTimeout).
	connections map[string]*grpc.ClientConn
	brokers     map[int32]string
	topics      map[string]*topicState
	controller  string
	closed      bool
}

type topicState struct {
	id    string
	count int
	// asked is when a broker was last asked for the topic.
	asked   time.Time
	leaders map[int32]leaderState
}

type leaderState struct {
	address string
	epoch   int32
}

// NewClient returns a client; it connects with the first call.
func NewClient(config Config) (*Client, error) {
	if len(config.Bootstrap) == 0 {
		return nil, errors.New("paceline: Config.Bootstrap is empty")
	}
	for _, address := range config.Bootstrap {
		// gRPC takes ::1:9092 for a host without a port, and uses port 443.
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("paceline: Config.Bootstrap: %q is not host:port, an IPv6 host in brackets: %w", address, err)
		}
	}
	transport, err := transportCredentials(config)
	if err != nil {
		return nil, err
	}
	throttles := &throttles{until: map[string]time.Time{}}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithChainUnaryInterceptor(throttles.intercept),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDisableRetry(),
		// gRPC's own pauses grow to two minutes: a broker that returns would stay out of reach for as long.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longestPause},
			MinConnectTimeout: connectTimeout,
		}),
	}, config.DialOptions...)
	return &Client{
		requestTimeout: min(cmp.Or(config.RequestTimeout, 10*time.Second), longestTime),
		logger:         cmp.Or(config.Logger, slog.Default()),
		dialOptions:    options, bootstrap: config.Bootstrap, throttles: throttles,
		connections: map[string]*grpc.ClientConn{}, brokers: map[int32]string{}, topics: map[string]*topicState{},
	}, nil
}

func transportCredentials(config Config) (credentials.TransportCredentials, error) {
	configured := config.CAFile
	identified := config.CertFile != "" || config.KeyFile != ""
	if config.CAFile == "" {
		config.CAFile = os.Getenv("PACELINE_SSL_CA_FILE")
	}
	// The variables name a certificate only for a Config without files: a certificate in Config is never replaced.
	if configured == "" && !identified {
		config.CertFile, config.KeyFile = os.Getenv("PACELINE_SSL_CERTIFICATE_FILE"), os.Getenv("PACELINE_SSL_KEY_FILE")
	}
	if config.CAFile == "" {
		if identified || config.CertFile != "" || config.KeyFile != "" {
			return nil, errors.New("paceline: a certificate without a CA file: TLS needs Config.CAFile or PACELINE_SSL_CA_FILE, too")
		}
		return insecure.NewCredentials(), nil
	}
	pem, err := os.ReadFile(config.CAFile)
	if err != nil {
		return nil, fmt.Errorf("paceline: CAFile: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("paceline: CAFile %s holds no certificate", config.CAFile)
	}
	settings := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if config.CertFile != "" {
		if err := checkPrivate(config.KeyFile); err != nil {
			return nil, err
		}
		// Read for each handshake, so that a renewed certificate is used without a restart.
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			certificate, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
			return &certificate, err
		}
	}
	return credentials.NewTLS(settings), nil
}

// checkPrivate refuses a key that other users can read, as brokers and controllers do. The group may read a key of root:
// Kubernetes mounts secrets in this way.
func checkPrivate(keyFile string) error {
	status, err := os.Stat(keyFile)
	if err != nil {
		return fmt.Errorf("paceline: KeyFile: %w", err)
	}
	forbidden := os.FileMode(0o077)
	if isRoots(status) && os.Geteuid() != 0 {
		forbidden = 0o037
	}
	if runtime.GOOS != "windows" && status.Mode().Perm()&forbidden != 0 {
		return fmt.Errorf("paceline: KeyFile %s is readable by other users: chmod 600 %s", keyFile, keyFile)
	}
	return nil
}

// Close ends every connection; calls in flight fail.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, connection := range c.connections {
		_ = connection.Close()
	}
	c.connections = map[string]*grpc.ClientConn{}
}

func (c *Client) dial(address string) (*grpc.ClientConn, error) { return c.dialFor("", address) }

// dialForFetches returns a connection for long polls alone. A connection takes a limited number of calls at a time, so behind
// the long polls of many partitions heartbeats and look-ups of leaders would be late.
func (c *Client) dialForFetches(address string) (*grpc.ClientConn, error) {
	return c.dialFor(fetchPrefix, address)
}

func (c *Client) dialFor(prefix, address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("paceline: the client is closed")
	}
	if known, ok := c.connections[prefix+address]; ok {
		return known, nil
	}
	made, err := grpc.NewClient(address, c.dialOptions...)
	if err != nil {
		return nil, fmt.Errorf("paceline: address %q: %w", address, err)
	}
	c.connections[prefix+address] = made
	return made, nil
}

// retry calls attempt until it succeeds, its error is not retriable, brokers have answered for missingLimit that the topic or
// partition does not exist, or ctx ends. It returns the last error that has a cause. A long wait is logged.
func (c *Client) retry(ctx context.Context, operation string, attempt func(ctx context.Context) error) error {
	pause := firstPause
	var absent absence
	var last *Error
	var cause atomic.Pointer[Error]
	notice := time.AfterFunc(sayAfter, func() { c.say(operation, cause.Load()) })
	defer notice.Stop()
	for {
		// An attempt without time for an answer would turn a known failure into an unknown outcome.
		if deadline, ok := ctx.Deadline(); ok && last != nil && time.Until(deadline) < leastAttempt {
			return last
		}
		call, cancel := context.WithTimeout(ctx, c.requestTimeout)
		err := attempt(call)
		cancel()
		var failure *Error
		if err == nil || !errors.As(err, &failure) || !failure.Retriable {
			return err
		}
		if last != nil && failure.noAnswer {
			last.Definite = last.Definite && failure.Definite // "Timed out" alone would hide the cause.
		} else {
			last = failure
			cause.Store(last)
		}
		if absent.lasts(failure, time.Now()) || !sleep(ctx, max(failure.retryAfter, pause/2+rand.N(pause/2))) {
			return last
		}
		pause = min(pause*3/2, longestPause)
	}
}

// say logs a call that takes long. Many calls may wait for the same cause, so few of them are logged.
func (c *Client) say(operation string, cause *Error) {
	now, quietUntil := time.Now(), c.quietUntil.Load()
	if now.UnixMilli() < quietUntil || !c.quietUntil.CompareAndSwap(quietUntil, now.Add(sayAgainAfter).UnixMilli()) {
		return
	}
	text := "no answer yet"
	if cause != nil {
		text = cause.Error()
	}
	c.logger.Warn("still waiting", slog.String("for", operation), slog.String("cause", text))
}

// joinAddress returns host:port, with one pair of brackets around an IPv6 host, which a server may send with or without them.
func joinAddress(host string, port int32) string {
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(int(port)))
}

// sleep returns false when ctx ends first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// askAny calls ask for one known address after another until it succeeds, and returns the last error otherwise. The order
// is random, and the bootstrap addresses are among them: a broker that is cut off from the cluster keeps answering with
// outdated metadata, which may list that broker alone.
func (c *Client) askAny(ctx context.Context, ask func(ctx context.Context, connection *grpc.ClientConn) error) error {
	return c.askSome(ctx, 1, ask)
}

// askSome is askAny until wanted addresses have answered. It succeeds with fewer answers, but at least one, after the last
// address.
func (c *Client) askSome(
	ctx context.Context, wanted int, ask func(ctx context.Context, connection *grpc.ClientConn) error,
) error {
	c.mu.Lock()
	addresses := slices.Clone(c.bootstrap)
	for _, address := range c.brokers {
		addresses = append(addresses, address)
	}
	c.mu.Unlock()
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	var last error
	answers, timeout := 0, askTimeout
	for _, address := range addresses {
		connection, err := c.dial(address)
		if err != nil {
			return err
		}
		one, cancel := context.WithTimeout(ctx, timeout)
		err = ask(one, connection)
		cancel()
		if err == nil {
			answers, timeout = answers+1, askAgainTimeout
		} else {
			last = err
		}
		if answers == wanted || ctx.Err() != nil {
			break
		}
	}
	if answers > 0 {
		return nil
	}
	return last
}

// DescribeCluster returns the brokers and the active controller.
func (c *Client) DescribeCluster(ctx context.Context) (*pacelinev1.DescribeClusterResponse, error) {
	var found *pacelinev1.DescribeClusterResponse
	err := c.retry(ctx, "describing the cluster", func(ctx context.Context) error {
		var err error
		found, err = c.describeOnce(ctx)
		return err
	})
	return found, err
}

func (c *Client) describeOnce(ctx context.Context) (*pacelinev1.DescribeClusterResponse, error) {
	found, _, err := c.describeFrom(ctx)
	return found, err
}

// describeFrom also returns the connection to the process that has answered.
func (c *Client) describeFrom(ctx context.Context) (
	found *pacelinev1.DescribeClusterResponse, from *grpc.ClientConn, err error,
) {
	err = c.askAny(ctx, func(ctx context.Context, connection *grpc.ClientConn) error {
		var err error
		found, from, err = c.describeAt(ctx, connection)
		return err
	})
	return found, from, err
}

// describeAt asks one process. If it is a standby controller, which knows no brokers, the active controller is asked.
func (c *Client) describeAt(
	ctx context.Context, connection *grpc.ClientConn,
) (*pacelinev1.DescribeClusterResponse, *grpc.ClientConn, error) {
	found, err := clusterAt(ctx, connection)
	if err != nil {
		return nil, nil, err
	}
	controller := ""
	if found.GetControllerHost() != "" {
		controller = joinAddress(found.GetControllerHost(), found.GetControllerPort())
	}
	if len(found.GetBrokers()) == 0 {
		if connection, err = c.dial(controller); err != nil {
			return nil, nil, err
		}
		if found, err = clusterAt(ctx, connection); err != nil {
			return nil, nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.controller = controller
	if len(found.GetBrokers()) > 0 {
		c.brokers = addressesOf(found)
	}
	return found, connection, nil
}

// clusterAt calls DescribeCluster. A process that knows neither brokers nor a controller is an error.
func clusterAt(ctx context.Context, connection *grpc.ClientConn) (*pacelinev1.DescribeClusterResponse, error) {
	operation := "describing the cluster at " + connection.Target()
	found, err := pacelinev1.NewMetadataServiceClient(connection).DescribeCluster(ctx, &pacelinev1.DescribeClusterRequest{})
	if err != nil {
		return nil, callError(ctx, operation, err)
	}
	if len(found.GetBrokers()) == 0 && found.GetControllerHost() == "" {
		return nil, newError(operation, pacelinev1.ErrorCode_ERROR_CODE_NOT_CONTROLLER, "the process knows no cluster yet")
	}
	return found, nil
}

// addressesOf returns the addresses of the brokers by id.
func addressesOf(cluster *pacelinev1.DescribeClusterResponse) map[int32]string {
	addresses := map[int32]string{}
	for _, broker := range cluster.GetBrokers() {
		addresses[broker.GetId()] = joinAddress(broker.GetHost(), broker.GetPort())
	}
	return addresses
}

// missing is the failure of a look-up in metadata that has no such topic or partition.
func missing(operation, message string) error {
	failure := newError(operation, pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION, message)
	failure.isMissing = true
	return failure
}

// refreshWhenOld refreshes the metadata of a topic that is older than metadataMaxAge. It asks several processes: a broker that
// is cut off from the cluster knows neither added partitions nor new leaders.
func (c *Client) refreshWhenOld(ctx context.Context, topic string) {
	c.mu.Lock()
	state := c.topics[topic]
	isOld := state != nil && time.Since(state.asked) > metadataMaxAge
	if isOld {
		state.asked = time.Now() // One caller refreshes; the others use the old metadata meanwhile.
	}
	c.mu.Unlock()
	if isOld {
		call, cancel := context.WithTimeout(ctx, 2*askTimeout)
		defer cancel()
		_, _ = c.refresh(call, topic, describers) // The old metadata is used while no broker answers.
	}
}

// partitionCount returns the number of partitions of a topic, from memory for metadataMaxAge: a topic can get more.
func (c *Client) partitionCount(ctx context.Context, topic string) (int, error) {
	c.refreshWhenOld(ctx, topic)
	c.mu.Lock()
	state := c.topics[topic]
	c.mu.Unlock()
	if state == nil || state.count == 0 {
		operation := "describing topic " + topic
		err := c.retry(ctx, operation, func(ctx context.Context) error {
			var err error
			if state, err = c.refresh(ctx, topic, 1); err == nil && state.count == 0 {
				err = newError(operation, pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
					"the topic has no partitions")
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return state.count, nil
}

// leaderOf returns the leader of a partition and the id of its topic, from memory where they are known.
func (c *Client) leaderOf(ctx context.Context, topic string, partition int32) (leaderState, string, error) {
	c.mu.Lock()
	state := c.topics[topic]
	c.mu.Unlock()
	if state != nil {
		c.mu.Lock()
		leader, known := state.leaders[partition]
		c.mu.Unlock()
		if known {
			return leader, state.id, nil
		}
	}
	state, err := c.refresh(ctx, topic, 1)
	if err != nil {
		return leaderState{}, "", err
	}
	operation := fmt.Sprintf("finding the leader of %s/%d", topic, partition)
	if partition < 0 || int(partition) >= state.count {
		return leaderState{}, "", missing(operation, fmt.Sprintf("the topic has %d partitions", state.count))
	}
	c.mu.Lock()
	leader, known := state.leaders[partition]
	c.mu.Unlock()
	if !known {
		return leaderState{}, "", newError(operation, pacelinev1.ErrorCode_ERROR_CODE_LEADER_NOT_AVAILABLE, "the partition has no leader")
	}
	return leader, state.id, nil
}

// learnFrom follows the hint of a failure, or forgets the leader that failed, so that the next attempt asks again.
func (c *Client) learnFrom(err error, topic string, partition int32) {
	var failure *Error
	if !errors.As(err, &failure) || !failure.refresh {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	state := c.topics[topic]
	if state == nil {
		return
	}
	known, had := state.leaders[partition]
	delete(state.leaders, partition)
	hint := failure.leader
	address := hintAddress(hint)
	sameTopic := hint.GetTopicId() == "" || hint.GetTopicId() == state.id
	// A hint with an older epoch comes from an outdated broker.
	if address != "" && sameTopic && (!had || hint.GetLeaderEpoch() >= known.epoch) {
		state.leaders[partition] = leaderState{address, hint.GetLeaderEpoch()}
	}
}

// onLeader runs one attempt of a call at the leader of a partition and learns from its failure.
func (c *Client) onLeader(
	ctx context.Context, topic string, partition int32,
	call func(ctx context.Context, log pacelinev1.LogServiceClient, leader leaderState, topicID string) error,
) error {
	leader, topicID, err := c.leaderOf(ctx, topic, partition)
	if err != nil {
		return err
	}
	connection, err := c.dial(leader.address)
	if err != nil {
		return err
	}
	err = call(ctx, pacelinev1.NewLogServiceClient(connection), leader, topicID)
	c.learnFrom(err, topic, partition)
	return err
}
