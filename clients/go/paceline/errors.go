package paceline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// errorDomain marks the google.rpc.ErrorInfo details that Paceline's servers write.
const errorDomain = "paceline"

// Error is a failed operation with the error code of the server, or the closest code when no server answered.
type Error struct {
	// Code is the server's code. When no server answered, it is mostly REQUEST_TIMED_OUT or BROKER_NOT_AVAILABLE.
	Code pacelinev1.ErrorCode
	// Operation names the call that failed.
	Operation string
	// Message explains the failure to people; programs compare Code.
	Message string
	// Retriable: the same call may succeed later.
	Retriable bool
	// Definite: the operation was certainly not carried out. False means that the outcome is unknown.
	Definite bool

	refresh bool
	// isMissing: the brokers' metadata has no such topic or partition.
	isMissing bool
	// noAnswer: the deadline of the call has passed without an answer.
	noAnswer   bool
	retryAfter time.Duration
	leader     *pacelinev1.LeaderHint
	controller string
	memberID   string
	cause      error
}

// Error returns the operation, the name of the code and the message.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Operation, CodeName(e.Code), e.Message)
}

// Unwrap returns the gRPC error if the call failed as a whole, or the last failure of a partition that could not be read.
func (e *Error) Unwrap() error { return e.cause }

// isRetriable says whether the failed call may succeed later.
func isRetriable(err error) bool {
	var failure *Error
	return errors.As(err, &failure) && failure.Retriable
}

// CodeName returns the name of a code without its prefix, for example NOT_CONTROLLER.
func CodeName(code pacelinev1.ErrorCode) string {
	return strings.TrimPrefix(code.String(), "ERROR_CODE_") // a code that only newer versions know is a number
}

// CodeOf returns the code of an error of this package, UNSPECIFIED for other errors.
func CodeOf(err error) pacelinev1.ErrorCode {
	var failure *Error
	if errors.As(err, &failure) {
		return failure.Code
	}
	return pacelinev1.ErrorCode_ERROR_CODE_UNSPECIFIED
}

// TruncatedError reports that an unclean election removed records that the consumer had read (KIP-320). The next poll
// continues at DivergentOffset.
type TruncatedError struct {
	Topic     string
	Partition int32
	// Position was the next offset to read.
	Position int64
	// DivergentOffset is the first offset at which the log may differ from the records that were read.
	DivergentOffset int64
}

// Error names the partition and both offsets.
func (e *TruncatedError) Error() string {
	return fmt.Sprintf("%s/%d was truncated: read up to offset %d, the log diverges at %d",
		e.Topic, e.Partition, e.Position, e.DivergentOffset)
}

// codeOptions reads the options of an error code from the descriptor of errors.proto.
func codeOptions(code pacelinev1.ErrorCode) (retriable, definite, refresh bool) {
	value := code.Descriptor().Values().ByNumber(code.Number())
	if value == nil {
		return false, false, false
	}
	options, ok := value.Options().(*descriptorpb.EnumValueOptions)
	if !ok || options == nil {
		return false, false, false
	}
	flag := func(extension any) bool { set, _ := extension.(bool); return set }
	return flag(proto.GetExtension(options, pacelinev1.E_Retriable)),
		flag(proto.GetExtension(options, pacelinev1.E_Definite)),
		flag(proto.GetExtension(options, pacelinev1.E_RefreshMetadata))
}

func newError(operation string, code pacelinev1.ErrorCode, message string) *Error {
	failure := &Error{Code: code, Operation: operation, Message: message}
	failure.Retriable, failure.Definite, failure.refresh = codeOptions(code)
	// After a refresh of the metadata the call goes to another broker or has another epoch, so it may succeed.
	failure.Retriable = failure.Retriable || failure.refresh
	return failure
}

func partitionError(operation string, detail *pacelinev1.PartitionError) error {
	if detail == nil {
		return nil
	}
	failure := newError(operation, detail.GetCode(), detail.GetMessage())
	failure.leader = detail.GetCurrentLeader()
	failure.retryAfter = time.Duration(detail.GetRetryAfterMs()) * time.Millisecond
	return failure
}

func topicError(operation string, detail *pacelinev1.TopicError) error {
	if detail == nil {
		return nil
	}
	failure := newError(operation, detail.GetCode(), detail.GetMessage())
	failure.isMissing = failure.Code == pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
	return failure
}

// callError converts the error of a gRPC call to an *Error. It returns context.Canceled when the caller has cancelled ctx.
func callError(ctx context.Context, operation string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	state := status.Convert(err)
	var failure *Error
	for _, detail := range state.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == errorDomain {
				code := pacelinev1.ErrorCode(pacelinev1.ErrorCode_value["ERROR_CODE_"+detail.GetReason()])
				failure = newError(operation, code, state.Message())
				failure.controller = detail.GetMetadata()["address"]
				failure.memberID = detail.GetMetadata()["member_id"]
			}
		case *errdetails.RetryInfo:
			if failure != nil {
				failure.retryAfter = detail.GetRetryDelay().AsDuration()
			}
		}
	}
	if failure == nil {
		failure = withoutAnswer(operation, state)
	}
	failure.cause = err
	return failure
}

// notSent marks err as definite: the look-up of the process to call failed, so no request was sent.
func notSent(err error) error {
	var failure *Error
	if errors.As(err, &failure) {
		failure.Definite = true
	}
	return err
}

// withoutAnswer returns the error of a call whose status has no error code of Paceline. The outcome is unknown, unless the
// request was not sent or not read.
func withoutAnswer(operation string, state *status.Status) *Error {
	switch {
	case state.Code() == codes.ResourceExhausted && strings.Contains(state.Message(), "larger than max"):
		failure := newError(operation, pacelinev1.ErrorCode_ERROR_CODE_MESSAGE_TOO_LARGE, state.Message())
		// "Received message": the server has refused the request without reading it. "Sent message": the server has carried
		// out the request and cannot send the response. "grpc: received message": this process has refused the response.
		failure.Definite = strings.Contains(state.Message(), "Received message")
		return failure
	case state.Code() == codes.Internal && strings.HasPrefix(state.Message(), "grpc: error while marshaling"):
		// gRPC could not encode the request, for example because a string is not UTF-8, so it was not sent.
		return newError(operation, pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST, state.Message())
	}
	code := pacelinev1.ErrorCode_ERROR_CODE_UNKNOWN_SERVER_ERROR
	retriable := false
	switch state.Code() {
	case codes.DeadlineExceeded:
		code, retriable = pacelinev1.ErrorCode_ERROR_CODE_REQUEST_TIMED_OUT, true
	case codes.Unavailable, codes.Canceled, codes.ResourceExhausted, codes.Internal, codes.Unknown:
		// gRPC ends calls with any of these codes when a connection breaks.
		code, retriable = pacelinev1.ErrorCode_ERROR_CODE_BROKER_NOT_AVAILABLE, true
	}
	failure := newError(operation, code, state.Message()+tlsAdvice(state.Message()))
	failure.Retriable, failure.Definite, failure.refresh = retriable, false, true
	failure.noAnswer = state.Code() == codes.DeadlineExceeded
	// Without a connection no request was sent.
	failure.Definite = state.Code() == codes.Unavailable && strings.Contains(state.Message(), "while dialing")
	return failure
}

// tlsAdvice names the settings to check when TLS is the probable cause of a failed connection. With TLS 1.3 a server refuses
// a client certificate after the handshake; gRPC then reports a missing server preface.
func tlsAdvice(message string) string {
	if strings.Contains(message, "error reading server preface") || strings.Contains(message, "authentication handshake failed") {
		return " (an SSL listener refuses connections without TLS or without a certificate of the cluster's authority:" +
			" check PACELINE_SSL_CA_FILE, PACELINE_SSL_CERTIFICATE_FILE and PACELINE_SSL_KEY_FILE, or Config.CAFile, CertFile and KeyFile)"
	}
	return ""
}

func hintAddress(hint *pacelinev1.LeaderHint) string {
	if hint.GetHost() == "" || hint.GetPort() == 0 {
		return ""
	}
	return joinAddress(hint.GetHost(), hint.GetPort())
}
