package paceline

// PartitionForKey returns the partition of a record with a key, the same for the clients of every language:
// (murmur2(key) & 0x7fffffff) mod partitionCount, with Kafka's murmur2.
func PartitionForKey(key []byte, partitionCount int) int32 {
	return int32(int(murmur2(key)&0x7fffffff) % partitionCount)
}

func murmur2(data []byte) uint32 {
	const multiplier = 0x5bd1e995
	hash := uint32(0x9747b28c) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		word := (uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24) * multiplier
		hash = hash*multiplier ^ (word^word>>24)*multiplier
	}
	if len(data) > 0 {
		rest := uint32(0)
		for i, b := range data {
			rest |= uint32(b) << (8 * i)
		}
		hash = (hash ^ rest) * multiplier
	}
	hash = (hash ^ hash>>13) * multiplier
	return hash ^ hash>>15
}
