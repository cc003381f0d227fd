package paceline

import (
	"fmt"
	"strings"
	"testing"
)

func shown(assigned map[string][]TopicPartition, members []GroupMember) string {
	var parts []string
	for _, member := range members {
		parts = append(parts, fmt.Sprint(member.MemberID, assigned[member.MemberID]))
	}
	return strings.Join(parts, " ")
}

func TestAssignorsFollowKafkasRules(t *testing.T) {
	both := []string{"t0", "t1"}
	two := []GroupMember{{MemberID: "c0", Topics: both}, {MemberID: "c1", Topics: both}}
	threes := map[string]int{"t0": 3, "t1": 3}
	for _, one := range []struct {
		name     string
		assignor Assignor
		members  []GroupMember
		counts   map[string]int
		expected string
	}{
		{"range", RangeAssignor(), two, threes, "c0[t0/0 t0/1 t1/0 t1/1] c1[t0/2 t1/2]"},
		{"round robin", RoundRobinAssignor(), two, threes, "c0[t0/0 t0/2 t1/1] c1[t0/1 t1/0 t1/2]"},
		{"range with more members than partitions", RangeAssignor(), two, map[string]int{"t0": 1}, "c0[t0/0] c1[]"},
		{"a topic that does not exist", RoundRobinAssignor(), two, map[string]int{"t1": 2}, "c0[t1/0] c1[t1/1]"},
		{"no topic exists", RangeAssignor(), two, nil, "c0[] c1[]"},
		{"round robin skips members that do not subscribe", RoundRobinAssignor(),
			[]GroupMember{{MemberID: "c0", Topics: []string{"t0"}}, {MemberID: "c1", Topics: both}}, threes,
			"c0[t0/0 t0/2] c1[t0/1 t1/0 t1/1 t1/2]"},
		{"static members come first, by instance id", RangeAssignor(),
			[]GroupMember{{MemberID: "a", Topics: both}, {MemberID: "z", InstanceID: "2", Topics: both},
				{MemberID: "y", InstanceID: "1", Topics: both}}, map[string]int{"t0": 3}, "a[t0/2] z[t0/1] y[t0/0]"},
		{"member ids are compared as bytes", RangeAssignor(),
			[]GroupMember{{MemberID: "a-", Topics: both}, {MemberID: "Z-", Topics: both}}, map[string]int{"t0": 1}, "a-[] Z-[t0/0]"},
	} {
		if found := shown(one.assignor.Assign(one.members, one.counts), one.members); found != one.expected {
			t.Errorf("%s: %s, expected %s", one.name, found, one.expected)
		}
	}
}
