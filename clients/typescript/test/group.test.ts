import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import {
  Client,
  CommitFailedError,
  FencedInstanceIdError,
  GroupConsumer,
  PacelineError,
  RebalanceInProgressError,
  type GroupConfig,
  type TopicPartition,
} from "paceline";
import { FakeBroker } from "./fake_broker.js";
import { FakeGroup } from "./fake_group.js";

let broker: FakeBroker;
let group: FakeGroup;
let client: Client;
let consumer: GroupConsumer | undefined;
let events: string[];
let offsets: bigint[];

beforeEach(async () => {
  broker = new FakeBroker("t", 2);
  group = new FakeGroup(broker);
  for (const log of broker.values) log.push(..."abcdefghij");
  client = new Client({ bootstrap: await broker.start(), onRetry: () => undefined });
  consumer = undefined;
  events = [];
  offsets = [];
});

afterEach(async () => {
  await consumer?.close({ timeoutMs: 1_000 });
  client.close();
  broker.stop();
});

function open(config: Partial<GroupConfig> = {}): GroupConsumer {
  consumer = client.groupConsumer({ groupId: "g", heartbeatIntervalMs: 20, metadataMaxAgeMs: 50, autoCommit: false, ...config });
  const note = (event: string) => (partitions: TopicPartition[]) =>
    void events.push(`${event} ${partitions.map(({ topic, partition }) => `${topic}/${partition}`).join(" ")}`.trim());
  consumer.subscribe("t", {
    onPartitionsAssigned: note("assigned"),
    onPartitionsRevoked: note("revoked"),
    onPartitionsLost: note("lost"),
  });
  return consumer;
}

/** Poll with a short time-out until a condition holds. */
async function pollUntil(holds: () => boolean): Promise<void> {
  while (!holds()) {
    for (const { offset } of await consumer!.poll({ timeoutMs: 50 })) offsets.push(offset);
    await pause(1); // The broker lives in this process.
  }
}

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await pause(5);
}

test("a member joins with the id that the coordinator gives and begins at committed offsets", async () => {
  group.committed.set("t/0", 8n);
  const member = open();
  await pollUntil(() => offsets.length === 12);
  assert.deepEqual(events, ["assigned t/0 t/1"]);
  assert.deepEqual([member.memberId, member.generation, member.position("t", 0)], ["member-1", 1, 10n]);
  assert.deepEqual(group.joins.map(({ memberId }) => memberId), ["", "member-1"]);
  await member.commit();
  assert.deepEqual([...group.committed], [["t/0", 10n], ["t/1", 10n]]);
  await member.close();
  assert.deepEqual(events, ["assigned t/0 t/1", "revoked t/0 t/1"]);
  assert.deepEqual(group.left, ["member-1"]);
});

test("a rebalance commits, revokes and assigns again, and no record is read twice", async () => {
  const member = open({ autoCommit: true, autoCommitIntervalMs: 3_600_000 });
  await pollUntil(() => offsets.length === 20);
  group.refusals.heartbeat.push("REBALANCE_IN_PROGRESS");
  await pollUntil(() => events.length === 3 && member.position("t", 1) !== undefined);
  assert.deepEqual(events, ["assigned t/0 t/1", "revoked t/0 t/1", "assigned t/0 t/1"]);
  assert.deepEqual([...group.committed], [["t/0", 10n], ["t/1", 10n]]);
  assert.deepEqual([member.memberId, member.generation, offsets.length], ["member-1", 2, 20]);
});

test("a member that polls in a loop without waiting joins and reads", async () => {
  const member = open();
  const end = performance.now() + 20_000;
  while (offsets.length < 20 && performance.now() < end) {
    for (const { offset } of await member.poll({ timeoutMs: 0 })) offsets.push(offset);
  }
  assert.equal(offsets.length, 20);
});

test("a membership that the coordinator forgot is lost, and nothing is committed", async () => {
  const member = open({ autoCommit: true, autoCommitIntervalMs: 3_600_000 });
  await pollUntil(() => offsets.length === 20);
  group.refusals.heartbeat.push("UNKNOWN_MEMBER_ID");
  await pollUntil(() => events.length === 3);
  assert.equal(events[1], "lost t/0 t/1");
  assert.deepEqual([member.memberId, group.commits], ["member-2", 0]);
});

test("an error of a listener is thrown by poll and is no answer of the coordinator", async () => {
  const member = open();
  for (const code of ["UNKNOWN_MEMBER_ID", "COORDINATOR_NOT_AVAILABLE"] as const) {
    const failure = new PacelineError("committing for another group", code, "on purpose");
    let isThrown = false;
    member.subscribe("t", {
      onPartitionsAssigned: () => {
        if (isThrown) return;
        isThrown = true;
        throw failure;
      },
    });
    await assert.rejects(pollUntil(() => false), (error) => error === failure);
    assert.equal(member.memberId, "member-1");
    await pollUntil(() => member.assignment().length === 2);
  }
});

test("another process with the same instance id ends the consumer, which does not leave", async () => {
  const member = open({ groupInstanceId: "static" });
  await pollUntil(() => events.length > 0);
  group.refusals.heartbeat.push("FENCED_INSTANCE_ID");
  await assert.rejects(pollUntil(() => false), FencedInstanceIdError);
  await assert.rejects(member.poll(), FencedInstanceIdError);
  await member.close();
  assert.deepEqual(group.left, []);
});

test("commits follow the coordinator and are repeated while it loads", async () => {
  const member = open();
  await pollUntil(() => offsets.length === 20);
  const { finds } = group;
  group.refusals.commit.push("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR");
  group.commitErrors.push("COORDINATOR_LOAD_IN_PROGRESS");
  await member.commit();
  assert.deepEqual([...group.committed], [["t/0", 10n], ["t/1", 10n]]);
  assert.ok(group.finds > finds);
});

test("a commit of a member that lost its place is a typed error", async () => {
  const member = open();
  const one = [{ topic: "t", partition: 0, offset: 1n }];
  await assert.rejects(member.commit(one), CommitFailedError);
  await pollUntil(() => offsets.length === 20);
  group.commitErrors.push("REBALANCE_IN_PROGRESS");
  await assert.rejects(member.commit(), RebalanceInProgressError);
  group.refusals.commit.push("UNKNOWN_MEMBER_ID");
  const failure = await member.commit().catch((error: unknown) => error);
  assert.ok(failure instanceof CommitFailedError);
  assert.deepEqual([failure.name, failure.code, failure.definite], ["CommitFailedError", "ILLEGAL_GENERATION", true]);
  assert.match(failure.message, /UNKNOWN_MEMBER_ID/);
});

test("a commit that is refused after an attempt of unknown outcome may have been applied", async () => {
  const member = open();
  await pollUntil(() => offsets.length === 20);
  group.refusals.commit.push("NOT_COORDINATOR", "UNKNOWN_MEMBER_ID");
  await assert.rejects(member.commit(), { name: "CommitFailedError", definite: false });
  group.refusals.find.push(...Array.from({ length: 100 }, () => "COORDINATOR_NOT_AVAILABLE" as const));
  const alone = client.groupConsumer({ groupId: "g" });
  await assert.rejects(alone.commit([{ topic: "t", partition: 0, offset: 1n }], { timeoutMs: 300 }), { definite: true });
  group.refusals.find.length = 0;
  await alone.close();
});

test("a refused commit has the member join again before the next heartbeat", async () => {
  const member = open({ heartbeatIntervalMs: 40_000 });
  await pollUntil(() => offsets.length === 20);
  group.refusals.commit.push("UNKNOWN_MEMBER_ID");
  await assert.rejects(member.commit(), CommitFailedError);
  await pollUntil(() => events.length === 3);
  assert.deepEqual([events[1], member.memberId], ["lost t/0 t/1", "member-2"]);
  group.commitErrors.push("REBALANCE_IN_PROGRESS");
  await assert.rejects(member.commit([{ topic: "t", partition: 0, offset: 1n }]), RebalanceInProgressError);
  await pollUntil(() => events.length === 5);
  assert.deepEqual([events[3], group.heartbeats], ["revoked t/0 t/1", 0]);
});

test("partitions are given up after the commits that were called before", async () => {
  const member = open();
  await pollUntil(() => offsets.length === 20);
  const seen: bigint[] = [];
  member.subscribe("t", { onPartitionsRevoked: () => void seen.push(group.committed.get("t/0") ?? -1n) });
  group.refusals.commit.push("COORDINATOR_LOAD_IN_PROGRESS");
  const committed = member.commit();
  await member.close();
  await committed;
  assert.deepEqual(seen, [10n]);
});

test("commits reach the group in the order of the calls", async () => {
  const member = open();
  await pollUntil(() => offsets.length === 20);
  group.refusals.commit.push("COORDINATOR_LOAD_IN_PROGRESS");
  await Promise.all([1n, 2n, 3n].map((offset) => member.commit([{ topic: "t", partition: 0, offset }])));
  assert.equal(group.committed.get("t/0"), 3n);
});

test("commits that have ended are not kept in memory", async () => {
  const member = open();
  await pollUntil(() => offsets.length === 20);
  await member.commit();
  await member.commit();
  const { newest } = (member as unknown as { offsets: { newest: Promise<unknown> } }).offsets;
  assert.equal(await newest, undefined);
});

test("a coordinator that is not found ends a commit with that cause", async () => {
  const alone = client.groupConsumer({ groupId: "g" });
  assert.deepEqual(await alone.committed([]), []);
  group.refusals.find.push(...Array.from({ length: 100 }, () => "COORDINATOR_NOT_AVAILABLE" as const));
  const failure = await alone.commit([{ topic: "t", partition: 0, offset: 1n }], { timeoutMs: 1_500 }).catch((error: unknown) => error);
  assert.ok(failure instanceof PacelineError);
  assert.equal(failure.code, "COORDINATOR_NOT_AVAILABLE");
  assert.ok(group.finds > 1);
  await alone.close();
});

test("a refusal for good is thrown by poll", async () => {
  group.refusals.join.push("INCONSISTENT_GROUP_PROTOCOL");
  open();
  await assert.rejects(pollUntil(() => false), { code: "INCONSISTENT_GROUP_PROTOCOL" });
  await pollUntil(() => events.length > 0);
});

test("a member that does not poll leaves, and its next poll joins again", async () => {
  const member = open({ maxPollIntervalMs: 1_000 });
  await pollUntil(() => offsets.length === 20);
  await until(() => member.generation === -1 && group.left.length > 0);
  await assert.rejects(member.commit(), CommitFailedError);
  await pollUntil(() => events.length === 3);
  assert.deepEqual([events[1], member.memberId], ["lost t/0 t/1", "member-2"]);
});

test("a poll that is longer than the maximal interval is no silence", async () => {
  const member = open({ maxPollIntervalMs: 2_000, maxWaitMs: 100 });
  await pollUntil(() => offsets.length === 20);
  assert.deepEqual(await member.poll({ timeoutMs: 3_000 }), []);
  assert.deepEqual([events, group.left], [["assigned t/0 t/1"], []]);
});

test("the leader joins again when a topic grows or comes into being", async () => {
  const member = open();
  await pollUntil(() => events.length === 1);
  broker.values.length = 0;
  broker.topicId = "new";
  group.refusals.heartbeat.push("REBALANCE_IN_PROGRESS");
  await pollUntil(() => events.length === 3);
  assert.equal(events[2], "assigned");
  broker.values.push([]);
  await pollUntil(() => member.assignment().length === 1);
  broker.values.push([]);
  await pollUntil(() => member.assignment().length === 2);
});

test("a topic that no broker knows is reported before the first join", async () => {
  const [first] = broker.values.splice(0);
  open();
  await assert.rejects(pollUntil(() => false), { code: "UNKNOWN_TOPIC_OR_PARTITION", detail: "brokers do not know t" });
  assert.deepEqual(group.joins, []);
  broker.values.push(first!);
  await pollUntil(() => offsets.length === 10);
});

test("without a commit and with the reset policy error poll throws", async () => {
  open({ reset: "error" });
  await assert.rejects(pollUntil(() => false), { code: "OFFSET_OUT_OF_RANGE" });
});

test("a loop that is left commits only the records that it has seen", async () => {
  const member = open({ autoCommit: true });
  for await (const { partition, offset } of member) {
    if (partition === 0 && offset === 3n) break;
  }
  await member.close();
  assert.equal(group.committed.get("t/0"), 4n);
});

test("a signal ends the loop, and close ends a loop that waits", async () => {
  const member = open();
  const stop = new AbortController();
  await assert.rejects(
    async () => {
      for await (const { offset } of member.records({ signal: stop.signal })) {
        offsets.push(offset);
        if (offsets.length === 20) setTimeout(() => stop.abort(), 20);
      }
    },
    { name: "AbortError" },
  );
  const ended = (async () => {
    for await (const { offset } of member) offsets.push(offset);
  })();
  await pause(50);
  await member.close();
  await ended;
  assert.equal(offsets.length, 20);
  assert.deepEqual(group.left, ["member-1"]);
});

test("close ends a member that is about to join, and a callback of close may commit", async () => {
  group.refusals.join.push(...Array.from({ length: 100 }, () => "COORDINATOR_LOAD_IN_PROGRESS" as const));
  const waiting = open();
  const ended = waiting.poll({ timeoutMs: 30_000 });
  await until(() => group.joins.length > 1);
  await waiting.close();
  assert.deepEqual(await ended, []);

  group.refusals.join.length = 0;
  const member = open();
  member.subscribe("t", { onPartitionsRevoked: () => member.commit([{ topic: "t", partition: 1, offset: 7n }]) });
  await pollUntil(() => offsets.length === 20);
  await member.close();
  assert.equal(group.committed.get("t/1"), 7n);
  await assert.rejects(member.commit([{ topic: "t", partition: 1, offset: 8n }]), /closed/);
});

test("an automatic commit after the client was closed leaves no unhandled rejection", async () => {
  const unhandled: unknown[] = [];
  const note = (reason: unknown) => void unhandled.push(reason);
  process.on("unhandledRejection", note);
  try {
    const member = open({ autoCommit: true, autoCommitIntervalMs: 1 });
    await pollUntil(() => offsets.length === 20);
    client.close();
    await pause(5);
    await assert.rejects(pollUntil(() => false), /the client is closed/);
    await pause(5);
    await assert.rejects(member.close(), /the client is closed/);
    assert.deepEqual(unhandled, []);
  } finally {
    process.off("unhandledRejection", note);
  }
});

test("settings of a group that cannot work are refused", async () => {
  assert.throws(() => client.groupConsumer({ groupId: "" }), /groupId is empty/);
  assert.throws(() => client.groupConsumer({ groupId: "g", sessionTimeoutMs: 0 }), /sessionTimeoutMs is a whole number/);
  assert.throws(() => client.groupConsumer({ groupId: "g", sessionTimeoutMs: 2_000 }), /heartbeatIntervalMs has to be below/);
  assert.throws(() => client.groupConsumer({ groupId: "g", assignors: ["best" as "range"] }), /assignor best is not known/);
  const member = client.groupConsumer({ groupId: "g" });
  await assert.rejects(member.poll(), /call subscribe first/);
  assert.throws(() => member.subscribe([]), /names no topic/);
});
