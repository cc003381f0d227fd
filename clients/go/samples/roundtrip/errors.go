package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

// errorDomain marks the google.rpc.ErrorInfo details that Paceline's servers write.
const errorDomain = "paceline"

// partitionFailure is a PartitionError of a response body as a Go error.
type partitionFailure struct {
	detail *pacelinev1.PartitionError
}

func (f *partitionFailure) Error() string {
	return fmt.Sprintf("%s: %s", f.detail.GetCode(), f.detail.GetMessage())
}

// topicFailure is a TopicError of a response body as a Go error.
type topicFailure struct {
	topic  string
	detail *pacelinev1.TopicError
}

func (f *topicFailure) Error() string {
	return fmt.Sprintf("topic %s: %s: %s", f.topic, f.detail.GetCode(), f.detail.GetMessage())
}

// errorInfo returns the ErrorInfo of a call that failed as a whole, or nil when the status came from gRPC itself, for
// example after a failed connection.
func errorInfo(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info
		}
	}
	return nil
}

// codeOf returns the error code of a failure, from the response body or from the status details; unspecified when
// there is none.
func codeOf(err error) pacelinev1.ErrorCode {
	var partition *partitionFailure
	if errors.As(err, &partition) {
		return partition.detail.GetCode()
	}
	var topic *topicFailure
	if errors.As(err, &topic) {
		return topic.detail.GetCode()
	}
	if info := errorInfo(err); info != nil {
		return pacelinev1.ErrorCode(pacelinev1.ErrorCode_value["ERROR_CODE_"+info.GetReason()])
	}
	return pacelinev1.ErrorCode_ERROR_CODE_UNSPECIFIED
}

// leaderHint returns the leader's address in a NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH error, or "".
func leaderHint(err error) string {
	var failure *partitionFailure
	if !errors.As(err, &failure) {
		return ""
	}
	hint := failure.detail.GetCurrentLeader()
	if hint.GetHost() == "" || hint.GetPort() == 0 {
		return ""
	}
	return net.JoinHostPort(hint.GetHost(), strconv.Itoa(int(hint.GetPort())))
}

// controllerHint returns the active controller's address in a NOT_CONTROLLER status, or "".
func controllerHint(err error) string {
	if info := errorInfo(err); info != nil && info.GetReason() == "NOT_CONTROLLER" {
		return info.GetMetadata()["address"]
	}
	return ""
}

// option returns an option of an error code, as errors.proto declares it; false for a code that this program does not
// know.
func option(err error, extension protoreflect.ExtensionType) bool {
	code := codeOf(err)
	value := code.Descriptor().Values().ByNumber(code.Number())
	return value != nil && proto.GetExtension(value.Options(), extension).(bool)
}

// retriable says whether the same call may succeed later, at this process or at another one after a metadata refresh.
func retriable(err error) bool {
	if codeOf(err) == pacelinev1.ErrorCode_ERROR_CODE_UNSPECIFIED {
		// Without an error code of Paceline the connection failed or the deadline of the call passed.
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
			return true
		}
		return false
	}
	return option(err, pacelinev1.E_Retriable) || option(err, pacelinev1.E_RefreshMetadata)
}

// outcomeUnknown says whether a failed Produce may have appended the records.
func outcomeUnknown(err error) bool {
	return !option(err, pacelinev1.E_Definite)
}
