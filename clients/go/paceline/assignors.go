package paceline

import (
	"cmp"
	"slices"
)

// GroupMember is a member of a group as the leader of the group sees it.
type GroupMember struct {
	MemberID string
	// InstanceID is empty for a dynamic member.
	InstanceID string
	Topics     []string
}

// Assignor assigns the partitions of topics to the members of a group. All members must have an assignor in common.
type Assignor interface {
	// Name on the wire.
	Name() string
	// Assign returns the partitions of each member by its id. counts has the partitions of every topic that exists.
	Assign(members []GroupMember, counts map[string]int) map[string][]TopicPartition
}

// RangeAssignor gives each member consecutive partitions of each topic, by Kafka's rules: when the partitions cannot be
// divided evenly, the first members get one partition more.
func RangeAssignor() Assignor { return rangeAssignor{} }

// RoundRobinAssignor assigns the sorted partitions of all topics to the members in turn, by Kafka's rules.
func RoundRobinAssignor() Assignor { return roundRobinAssignor{} }

type rangeAssignor struct{}

func (rangeAssignor) Name() string { return "range" }

func (rangeAssignor) Assign(members []GroupMember, counts map[string]int) map[string][]TopicPartition {
	ordered := inOrder(members)
	assigned := map[string][]TopicPartition{}
	for _, topic := range subscribed(ordered, counts) {
		var takers []GroupMember
		for _, member := range ordered {
			if slices.Contains(member.Topics, topic) {
				takers = append(takers, member)
			}
		}
		each, more, begin := counts[topic]/len(takers), counts[topic]%len(takers), 0
		for place, taker := range takers {
			end := begin + each
			if place < more {
				end++
			}
			for ; begin < end; begin++ {
				assigned[taker.MemberID] = append(assigned[taker.MemberID], TopicPartition{topic, int32(begin)})
			}
		}
	}
	return assigned
}

type roundRobinAssignor struct{}

func (roundRobinAssignor) Name() string { return "roundrobin" }

func (roundRobinAssignor) Assign(members []GroupMember, counts map[string]int) map[string][]TopicPartition {
	ordered := inOrder(members)
	assigned := map[string][]TopicPartition{}
	turn := 0
	for _, topic := range subscribed(ordered, counts) {
		for partition := range counts[topic] {
			for !slices.Contains(ordered[turn%len(ordered)].Topics, topic) {
				turn++
			}
			taker := ordered[turn%len(ordered)].MemberID
			assigned[taker] = append(assigned[taker], TopicPartition{topic, int32(partition)})
			turn++
		}
	}
	return assigned
}

// inOrder returns the static members sorted by instance id, followed by the dynamic members sorted by member id.
func inOrder(members []GroupMember) []GroupMember {
	ordered := slices.Clone(members)
	slices.SortFunc(ordered, func(a, b GroupMember) int {
		switch {
		case a.InstanceID != "" && b.InstanceID != "":
			return cmp.Compare(a.InstanceID, b.InstanceID)
		case a.InstanceID != "":
			return -1
		case b.InstanceID != "":
			return 1
		}
		return cmp.Compare(a.MemberID, b.MemberID)
	})
	return ordered
}

// subscribed returns the existing topics to which a member subscribes, sorted.
func subscribed(members []GroupMember, counts map[string]int) []string {
	var topics []string
	for _, member := range members {
		for _, topic := range member.Topics {
			if _, exists := counts[topic]; exists {
				topics = append(topics, topic)
			}
		}
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}
