// Package paceline is the Go client of Paceline: ordered, replicated streams over gRPC.
//
//	client, err := paceline.NewClient(paceline.Config{Bootstrap: []string{"127.0.0.1:9102"}})
//	producer := client.NewProducer(paceline.ProducerConfig{})
//	delivery, err := producer.Send(ctx, paceline.Record{Topic: "rides", Key: []byte("alice"), Value: []byte("hello")})
//	offset, err := delivery.Wait(ctx)
//
// Read client.go first, then producer.go and consumer.go. Every call takes a context: its deadline bounds the call, its
// cancellation ends the call. Failures are *Error values with the server's code.
package paceline
