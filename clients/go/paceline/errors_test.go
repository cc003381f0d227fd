package paceline

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

func TestAConnectionThatTheServerEndsAtOnceIsExplainedByTLS(t *testing.T) {
	for text, wanted := range map[string]bool{
		`connection error: desc = "error reading server preface: EOF"`:                                true,
		`connection error: desc = "error reading server preface: remote error: tls: bad certificate"`: true,
		`connection error: desc = "transport: authentication handshake failed: tls: first record"`:    true,
		`connection error: desc = "transport: Error while dialing: connect: connection refused"`:      false,
	} {
		failure := withoutAnswer("describing the cluster", status.New(codes.Unavailable, text))
		if got := strings.Contains(failure.Error(), "PACELINE_SSL_CA_FILE"); got != wanted {
			t.Errorf("%s: names the variables: %v, wanted %v", failure, got, wanted)
		}
		if !strings.Contains(failure.Error(), text) || !failure.Retriable {
			t.Errorf("%s: text or retriable is lost", failure)
		}
	}
}

func TestACodeOfANewerServerHasAName(t *testing.T) {
	failure := partitionError("producing", &pacelinev1.PartitionError{Code: 4711, Message: "new"})
	if text := failure.Error(); !strings.Contains(text, "4711") || !strings.Contains(text, "new") {
		t.Errorf("the error is %q", text)
	}
}

func TestARequestThatIsTooLargeIsNotRepeated(t *testing.T) {
	for text, definite := range map[string]bool{
		"SERVER: Received message larger than max (5242880 vs. 4194304)": true,
		"SERVER: Sent message larger than max (70000000 vs. 67108864)":   false,
		"grpc: received message larger than max (70000000 vs. 67108864)": false,
	} {
		failure := withoutAnswer("producing", status.New(codes.ResourceExhausted, text))
		if failure.Code != pacelinev1.ErrorCode_ERROR_CODE_MESSAGE_TOO_LARGE || failure.Retriable || failure.Definite != definite {
			t.Errorf("%s: retriable %v, definite %v", failure, failure.Retriable, failure.Definite)
		}
	}
}

func TestARequestThatCannotBeEncodedIsNotRepeated(t *testing.T) {
	text := "grpc: error while marshaling: string field contains invalid UTF-8"
	failure := withoutAnswer("producing", status.New(codes.Internal, text))
	if failure.Code != pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST || failure.Retriable || !failure.Definite {
		t.Errorf("%s: retriable %v, definite %v", failure, failure.Retriable, failure.Definite)
	}
}
