package paceline

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
)

func TestAnAddressThatRefusesConnectionsIsTriedAgainSoon(t *testing.T) {
	// Eight attempts take 40 s with gRPC's default pauses, and 4 s with those of this package.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var dialed atomic.Int32
	refuse := func(context.Context, string) (net.Conn, error) {
		if dialed.Add(1) == 8 {
			cancel()
		}
		return nil, errors.New("refused on purpose")
	}
	client, err := NewClient(Config{
		Bootstrap: []string{"127.0.0.1:1"}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(refuse)}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.DescribeCluster(ctx); err == nil || dialed.Load() < 8 {
		t.Fatalf("%d attempts to connect, %v", dialed.Load(), err)
	}
}

func TestAnIPv6HostHasOnePairOfBrackets(t *testing.T) {
	for host, expected := range map[string]string{
		"::1": "[::1]:9092", "[::1]": "[::1]:9092", "broker-1": "broker-1:9092", "127.0.0.1": "127.0.0.1:9092",
	} {
		if found := joinAddress(host, 9092); found != expected {
			t.Errorf("%q: %q", host, found)
		}
	}
}

func TestAnAddressWithoutAPortIsRefused(t *testing.T) {
	for address, good := range map[string]bool{
		"::1:9092": false, "broker-1": false, "": false, "[::1]:9092": true, "broker-1:9092": true,
	} {
		client, err := NewClient(Config{Bootstrap: []string{address}})
		if (err == nil) != good {
			t.Errorf("%q: %v", address, err)
		}
		if client != nil {
			client.Close()
		}
	}
}
