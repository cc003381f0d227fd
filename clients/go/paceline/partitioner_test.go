package paceline

import "testing"

func TestPartitionForKeyMatchesTheTestVectorsOfRecordProto(t *testing.T) {
	for _, vector := range []struct {
		key       string
		hash      int32
		partition int32
	}{
		{"", 275646681, 9}, {"21", -973932308, 0}, {"foobar", -790332482, 6}, {"a-little-bit-long-string", -985981536, 8},
		{"a-little-bit-longer-string", -1486304829, 11}, {"abc", 479470107, 3},
	} {
		if got := int32(murmur2([]byte(vector.key))); got != vector.hash {
			t.Errorf("murmur2(%q) = %d, want %d", vector.key, got, vector.hash)
		}
		if got := PartitionForKey([]byte(vector.key), 12); got != vector.partition {
			t.Errorf("PartitionForKey(%q, 12) = %d, want %d", vector.key, got, vector.partition)
		}
	}
}

func TestSequenceNumbersWrapToZero(t *testing.T) {
	if got := after(2147483647, 1); got != 0 {
		t.Errorf("after(2147483647, 1) = %d", got)
	}
	if got := after(2147483640, 10); got != 2 {
		t.Errorf("after(2147483640, 10) = %d", got)
	}
}
