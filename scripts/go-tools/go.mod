// The generators of the Go stubs, pinned here and hashed in go.sum; scripts/gen_go.sh builds them.
module github.com/paceline/paceline/scripts/go-tools

go 1.25.0

tool (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc
	google.golang.org/protobuf/cmd/protoc-gen-go
)

require (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.2 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
