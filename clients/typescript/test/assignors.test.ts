import assert from "node:assert/strict";
import { test } from "node:test";
import { rangeAssignor, roundRobinAssignor, type Assignor, type GroupMember } from "paceline";

function member(memberId: string, topics: string, groupInstanceId = ""): GroupMember {
  return { memberId, groupInstanceId, topics: new Set(topics.split(" ")) };
}

function assigned(assignor: Assignor, counts: Record<string, number>, ...members: GroupMember[]): Record<string, string> {
  const found = assignor.assign(members, new Map(Object.entries(counts)));
  return Object.fromEntries([...found].map(([id, all]) => [id, all.map((one) => `${one.topic}/${one.partition}`).join(" ")]));
}

const COUNTS = { t1: 3, t0: 3 };

test("range gives runs of each topic, and the first members one partition more", () => {
  const found = assigned(rangeAssignor, COUNTS, member("c1", "t0 t1"), member("c0", "t1 t0"));
  assert.deepEqual(found, { c0: "t0/0 t0/1 t1/0 t1/1", c1: "t0/2 t1/2" });
});

test("roundrobin deals the partitions of all topics in turn", () => {
  const found = assigned(roundRobinAssignor, COUNTS, member("c1", "t0 t1"), member("c0", "t0 t1"));
  assert.deepEqual(found, { c0: "t0/0 t0/2 t1/1", c1: "t0/1 t1/0 t1/2" });
});

test("roundrobin skips members that do not subscribe", () => {
  const members = [member("c0", "t0"), member("c1", "t0 t1"), member("c2", "t0 t1 t2")];
  const found = assigned(roundRobinAssignor, { t0: 1, t1: 2, t2: 3 }, ...members);
  assert.deepEqual(found, { c0: "t0/0", c1: "t1/0", c2: "t1/1 t2/0 t2/1 t2/2" });
});

test("a topic that does not exist is left out, and a member may get nothing", () => {
  for (const assignor of [rangeAssignor, roundRobinAssignor]) {
    assert.deepEqual(assigned(assignor, { t0: 1 }, member("c0", "missing t0"), member("c1", "missing")), { c0: "t0/0", c1: "" });
  }
});

test("static members come first, by their instance id", () => {
  const members = [member("a", "t0"), member("y", "t0", "two"), member("z", "t0", "one")];
  assert.deepEqual(assigned(rangeAssignor, { t0: 3 }, ...members), { z: "t0/0", y: "t0/1", a: "t0/2" });
});
