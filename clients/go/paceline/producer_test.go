package paceline

import (
	"context"
	"testing"

	pacelinev1 "github.com/paceline/paceline/clients/go/gen/paceline/v1"
)

func TestARecordWithTextThatIsNotUTF8IsRefused(t *testing.T) {
	producer := (&Client{}).NewProducer(ProducerConfig{})
	for _, record := range []Record{
		{Topic: "t\xff"},
		{Topic: "t", Headers: []Header{{Key: "good"}, {Key: "bad\xff"}}},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := producer.Send(ctx, record); CodeOf(err) != pacelinev1.ErrorCode_ERROR_CODE_INVALID_REQUEST {
			t.Errorf("%q: %v", record.Topic, err)
		}
		if len(producer.queues) != 0 || len(producer.pending) != 0 {
			t.Errorf("%q was queued", record.Topic)
		}
	}
}
