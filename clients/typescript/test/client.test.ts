import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { credentials, Metadata, status } from "@grpc/grpc-js";
import { Client, configFromEnvironment, type Consumer, PacelineError, partitionForKey, TruncatedError, type ProducerRecord } from "paceline";
import { Cluster } from "../src/cluster.js";
import { AdminService } from "../src/gen/paceline/v1/admin_service_pb.js";
import { ErrorCode } from "../src/gen/paceline/v1/errors_pb.js";
import { OffsetSpec } from "../src/gen/paceline/v1/log_service_pb.js";
import type { WatchEventsRequest } from "../src/gen/paceline/v1/metadata_service_pb.js";
import type { RecordList } from "../src/gen/paceline/v1/record_pb.js";
import { Limit } from "../src/limit.js";
import { FakeBroker, Refusal } from "./fake_broker.js";

let broker: FakeBroker;
let client: Client;
let retries: PacelineError[];

beforeEach(async () => {
  broker = new FakeBroker("t", 3);
  retries = [];
  client = new Client({ bootstrap: await broker.start(), requestTimeoutMs: 20_000, onRetry: (error) => void retries.push(error) });
});

afterEach(() => {
  client.close();
  broker.stop();
});

test("records of one turn travel in one batch and keep their order", async () => {
  const producer = client.producer();
  const places = await Promise.all([..."abcdef"].map((value) => producer.send({ topic: "t", partition: 1, value })));
  assert.deepEqual(broker.values[1], [..."abcdef"]);
  assert.deepEqual(places.map(({ offset }) => offset), [0n, 1n, 2n, 3n, 4n, 5n]);
  assert.equal(broker.calls.length, 1);
});

test("the first records of a topic keep their order while its partitions are asked for", async () => {
  const producer = client.producer();
  const sends = Array.from({ length: 20 }, (_, number) =>
    producer.send({ topic: "t", value: String(number), ...(number % 2 === 0 ? { key: "21" } : { partition: 0 }) }),
  );
  await Promise.all(sends); // The key "21" belongs to partition 0 too.
  for (const values of broker.values) {
    assert.deepEqual(values, values.toSorted((one, other) => Number(one) - Number(other)));
  }
  assert.equal(broker.values.flat().length, 20);
});

test("a lost answer is repeated with the same sequence and nothing is doubled", async () => {
  broker.obstacles.push("lose answer", "lose answer");
  const producer = client.producer();
  const place = await producer.send({ topic: "t", partition: 0, value: "once" });
  assert.equal(place.offset, 0n);
  assert.deepEqual(broker.values[0], ["once"]);
  const numbers = broker.calls.map(({ data }) => data.value as RecordList).map(({ producerId, baseSequence }) => [producerId, baseSequence]);
  assert.deepEqual(numbers, [[100n, 0], [100n, 0], [100n, 0]]);
  await producer.send({ topic: "t", partition: 0, value: "next" });
  assert.equal((broker.calls.at(-1)!.data.value as RecordList).baseSequence, 1);
});

test("after a batch of unknown outcome the next one has a new producer id", async () => {
  broker.obstacles.push("lose answer", { code: ErrorCode.UNKNOWN_SERVER_ERROR });
  const producer = client.producer();
  const failure = await producer.send({ topic: "t", partition: 0, value: "a" }).catch((error: unknown) => error);
  assert.ok(failure instanceof PacelineError);
  assert.equal(failure.definite, false);
  await producer.send({ topic: "t", partition: 0, value: "b" });
  const last = broker.calls.at(-1)!.data.value as RecordList;
  assert.deepEqual([last.producerId, last.baseSequence], [101n, 0]);
});

test("a batch that was surely refused leaves no gap in the sequence", async () => {
  broker.obstacles.push({ code: ErrorCode.MESSAGE_TOO_LARGE });
  const producer = client.producer();
  const failure = await producer.send({ topic: "t", partition: 0, value: "a" }).catch((error: unknown) => error);
  assert.ok(failure instanceof PacelineError);
  assert.deepEqual([failure.code, failure.definite, failure.retriable], ["MESSAGE_TOO_LARGE", true, false]);
  await producer.send({ topic: "t", partition: 0, value: "b" });
  const last = broker.calls.at(-1)!.data.value as RecordList;
  assert.deepEqual([last.producerId, last.baseSequence], [100n, 0]);
});

test("after a gap in the sequence the next batch has a new producer id", async () => {
  broker.obstacles.push({ code: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER });
  const producer = client.producer();
  await assert.rejects(producer.send({ topic: "t", partition: 0, value: "a" }), { code: "OUT_OF_ORDER_SEQUENCE_NUMBER" });
  await producer.send({ topic: "t", partition: 0, value: "b" });
  assert.equal((broker.calls.at(-1)!.data.value as RecordList).producerId, 101n);
});

test("when the delivery time ends the error is the last real cause", async () => {
  broker.obstacles.push(...Array.from({ length: 50 }, () => ({ code: ErrorCode.NOT_ENOUGH_REPLICAS })));
  await client.admin.describeTopic("t"); // There is a connection when the time begins.
  const producer = client.producer({ deliveryTimeoutMs: 2_000 });
  const failure = await producer.send({ topic: "t", partition: 0, value: "a" }).catch((error: unknown) => error);
  assert.ok(failure instanceof PacelineError);
  assert.deepEqual([failure.code, failure.definite], ["NOT_ENOUGH_REPLICAS", true]);
  assert.ok(retries.length >= 2);
});

test("a topic that does not exist fails every record that waits for it", async () => {
  const producer = client.producer({ deliveryTimeoutMs: 2_000 });
  const outcomes = await Promise.allSettled([1, 2].map((value) => producer.send({ topic: "missing", value: String(value) })));
  for (const outcome of outcomes) {
    assert.equal(outcome.status === "rejected" && outcome.reason.code, "UNKNOWN_TOPIC_OR_PARTITION");
  }
});

test("records of a topic or partition that no broker knows fail after some seconds, definitely", async () => {
  const young = new FakeBroker("new", 0);
  using waiting = new Client({ bootstrap: await young.start(), onRetry: () => undefined });
  try {
    const producer = waiting.producer();
    const began = performance.now();
    const beyond = client.producer().send({ topic: "t", partition: 3, value: "a" });
    const sends = [producer.send({ topic: "new", value: "a" }), producer.send({ topic: "new", partition: 0, value: "a" }), beyond];
    for (const outcome of await Promise.allSettled(sends)) {
      const { code, definite } = (outcome as PromiseRejectedResult).reason as PacelineError;
      assert.deepEqual([code, definite], ["UNKNOWN_TOPIC_OR_PARTITION", true]);
    }
    const tookMs = performance.now() - began;
    assert.ok(tookMs >= 5_000 && tookMs < 30_000, `${tookMs} ms`);
    young.values.push([]);
    await Promise.all([producer.send({ topic: "new", value: "b" }), producer.send({ topic: "new", partition: 0, value: "c" })]);
    assert.deepEqual(young.values[0]!.toSorted(), ["b", "c"]);
  } finally {
    young.stop();
  }
});

test("a wait of a producer is reported before any address has failed", async () => {
  const sockets: Socket[] = [];
  const silent = createServer((socket) => void sockets.push(socket));
  await once(silent.listen(0, "127.0.0.1"), "listening");
  const { port } = silent.address() as AddressInfo;
  const reports: [PacelineError, number][] = [];
  const bootstrap = [`127.0.0.1:${port}`, `localhost:${port}`, `127.0.0.2:${port}`, `127.0.0.3:${port}`];
  using waiting = new Client({ bootstrap, onRetry: (...report) => void reports.push(report) });
  const producer = waiting.producer();
  const failed = assert.rejects(producer.send({ topic: "t", value: "a" }), { code: "REQUEST_TIMED_OUT", definite: true });
  while (reports.length === 0) await pause(5);
  await producer.close({ timeoutMs: 1 }).catch(() => undefined);
  await failed;
  for (const socket of sockets) socket.destroy();
  silent.close();
  const [error, elapsedMs] = reports[0]!;
  assert.equal(error.operation, "producing to t");
  assert.ok(elapsedMs < 3_000, `${elapsedMs} ms`);
});

test("a failure that lasts is written to the console within two seconds", (t) => {
  const warn = t.mock.method(console, "warn", () => undefined);
  using writing = new Client({ bootstrap: "127.0.0.1:1" });
  const failure = new PacelineError("producing to t", "BROKER_NOT_AVAILABLE", "refused");
  writing.onRetry(failure, 900);
  assert.equal(warn.mock.callCount(), 0, "a short failure is no news");
  // The next attempt may end more than a second later.
  writing.onRetry(failure, 1_000);
  assert.match(String(warn.mock.calls[0]?.arguments[0]), /producing to t: BROKER_NOT_AVAILABLE: refused/);
});

test("a record that has lingered for nearly its delivery time is not attempted", async () => {
  const producer = client.producer({ deliveryTimeoutMs: 1_000, lingerMs: 900 });
  await client.admin.describeTopic("t"); // There is a connection when the time begins.
  await assert.rejects(producer.send({ topic: "t", partition: 0, value: "a" }), { code: "REQUEST_TIMED_OUT", definite: true });
  assert.equal(broker.calls.length, 0);
});

test("describing a topic that does not exist fails before the time of the call is over", async () => {
  const start = performance.now();
  await assert.rejects(client.admin.describeTopic("missing"), { code: "UNKNOWN_TOPIC_OR_PARTITION" });
  assert.ok(performance.now() - start < 15_000);
});

test("flush waits for the records sent before, and ready for room", async () => {
  const producer = client.producer({ maxPending: 10, lingerMs: 5 });
  for (let number = 0; number < 30; number++) {
    await producer.ready();
    void producer.send({ topic: "t", partition: 0, value: String(number) });
    assert.ok(producer.pending <= 10);
  }
  await producer.flush();
  assert.equal(producer.pending, 0);
  assert.equal(broker.values[0]!.length, 30);
});

test("a closed producer refuses records, and records without an outcome fail", async () => {
  broker.obstacles.push(...Array.from({ length: 50 }, () => ({ code: ErrorCode.NOT_ENOUGH_REPLICAS })));
  const producer = client.producer();
  const sent = producer.send({ topic: "t", partition: 0, value: "a" });
  const outcome = assert.rejects(sent, { name: "PacelineError", message: /producer was closed/, retriable: false });
  await assert.rejects(producer.close({ timeoutMs: 100 }), { code: "REQUEST_TIMED_OUT" });
  await outcome;
  await assert.rejects(producer.send({ topic: "t", value: "b" }), /closed/);
});

test("a record that may be in the log when its producer is closed has an unknown outcome, and later ones have none", async () => {
  broker.obstacles.push(...Array.from({ length: 50 }, () => "lose answer" as const));
  const producer = client.producer();
  const first = producer.send({ topic: "t", partition: 0, value: "a" }).catch((error: unknown) => error);
  while (broker.calls.length === 0) await pause(5);
  const later = producer.send({ topic: "t", partition: 0, value: "b" }).catch((error: unknown) => error);
  const elsewhere = producer.send({ topic: "missing", value: "c" }).catch((error: unknown) => error);
  await assert.rejects(producer.close({ timeoutMs: 100 }), { code: "REQUEST_TIMED_OUT" });
  const errors = (await Promise.all([first, later, elsewhere])) as PacelineError[];
  assert.deepEqual(errors.map(({ name, definite }) => [name, definite]), [["PacelineError", false], ["PacelineError", true], ["PacelineError", true]]);
});

test("a batch above the limit of a request is split", async () => {
  const producer = client.producer({ batchBytes: 64 << 20, lingerMs: 20 });
  const value = new Uint8Array(1 << 20);
  const places = await Promise.all(Array.from({ length: 12 }, () => producer.send({ topic: "t", partition: 0, value })));
  assert.deepEqual(places.map(({ offset }) => Number(offset)), [...places.keys()]);
  // The broker takes 4 MiB, as real ones do by default.
  const counts = broker.calls.map(({ data }) => (data.value as RecordList).records.length);
  assert.ok(counts.every((count) => count <= 3) && counts.includes(3), String(counts));
});

test("a batch above the limit of its topic is sent in parts, in order", async () => {
  broker.obstacles.push({ code: ErrorCode.MESSAGE_TOO_LARGE }, { code: ErrorCode.MESSAGE_TOO_LARGE });
  const producer = client.producer();
  const places = await Promise.all([..."abcdefgh"].map((value) => producer.send({ topic: "t", partition: 0, value })));
  assert.deepEqual(broker.values[0], [..."abcdefgh"]);
  assert.deepEqual(places.map(({ offset }) => Number(offset)), [...places.keys()]);
  const lists = broker.calls.map(({ data }) => data.value as RecordList);
  assert.deepEqual(lists.map(({ records, baseSequence }) => [records.length, baseSequence]), [[8, 0], [4, 0], [2, 0], [2, 2], [2, 4], [2, 6]]);
});

test("a batch that a server refuses for its size is surely not in the log, and is sent in parts", async () => {
  class TooLarge extends Refusal {
    override status(): object {
      const details = "SERVER: Received message larger than max (9 vs. 8)";
      return { code: status.RESOURCE_EXHAUSTED, details, metadata: new Metadata() };
    }
  }
  broker.obstacles.push(new TooLarge("MESSAGE_TOO_LARGE"));
  const producer = client.producer();
  await Promise.all([..."abcd"].map((value) => producer.send({ topic: "t", partition: 0, value })));
  assert.deepEqual(broker.calls.map(({ data }) => (data.value as RecordList).records.length), [4, 2, 2]);
  broker.obstacles.push(new TooLarge("MESSAGE_TOO_LARGE"));
  await assert.rejects(producer.send({ topic: "t", partition: 0, value: "e" }), { code: "MESSAGE_TOO_LARGE", definite: true });
});

test("a record above the limit of a request is refused before it is sent", async () => {
  const producer = client.producer();
  const sent = producer.send({ topic: "t", partition: 0, value: new Uint8Array(4 << 20) });
  await assert.rejects(sent, { code: "MESSAGE_TOO_LARGE", definite: true, message: /needs 4194336 bytes/ });
  assert.equal(broker.calls.length, 0);
  const largest = new Uint8Array((4 << 20) - 1024 - 32);
  assert.equal((await producer.send({ topic: "t", partition: 0, value: largest })).offset, 0n);
});

test("a consumer yields records in order and stops when the signal fires", async () => {
  await Promise.all(Array.from({ length: 5 }, (_, number) => client.producer().send({ topic: "t", partition: 0, value: String(number) })));
  using consumer = client.consumer({ maxWaitMs: 50 });
  consumer.assign("t", 0, 1n);
  const stop = new AbortController();
  const offsets: bigint[] = [];
  await assert.rejects(
    async () => {
      for await (const record of consumer.records({ signal: stop.signal })) {
        offsets.push(record.offset);
        if (record.offset === 4n) stop.abort();
      }
    },
    { name: "AbortError" },
  );
  assert.deepEqual(offsets, [1n, 2n, 3n, 4n]);
  assert.equal(consumer.position("t", 0), 5n);
});

test("a loop that is left keeps the records that it has not seen", async () => {
  await client.producer().send({ topic: "t", partition: 0, value: "a" });
  await client.producer().send({ topic: "t", partition: 0, value: "b" });
  using consumer = client.consumer();
  consumer.assign("t", 0);
  for await (const record of consumer) {
    assert.equal(record.offset, 0n);
    break;
  }
  assert.equal(consumer.position("t", 0), 1n);
  assert.deepEqual((await consumer.poll()).map(({ offset }) => offset), [1n]);
});

test("a truncated log is reported once and reading continues at the divergence", async () => {
  const producer = client.producer();
  await Promise.all([..."abcd"].map((value) => producer.send({ topic: "t", partition: 0, value })));
  using consumer = client.consumer();
  consumer.assign("t", 0);
  assert.equal((await consumer.poll()).length, 4);
  broker.divergingOnce = { epoch: 4, endOffset: 2n };
  const failure = await consumer.poll({ timeoutMs: 2_000 }).catch((error: unknown) => error);
  assert.ok(failure instanceof TruncatedError);
  assert.deepEqual([failure.position, failure.divergentOffset], [4n, 2n]);
  assert.deepEqual((await consumer.poll()).map(({ offset }) => offset), [2n, 3n]);
  const asked = broker.fetches.map((request) => request.partitions[0]!.lastFetchedEpoch);
  assert.ok(asked[0] === undefined && asked.includes(5) && asked.includes(4));
});

test("a divergence behind the position removes nothing and is not reported", async () => {
  await client.producer().send({ topic: "t", partition: 0, value: "a" });
  using consumer = client.consumer();
  consumer.assign("t", 0);
  assert.equal((await consumer.poll()).length, 1);
  broker.divergingOnce = { epoch: 4, endOffset: 9n };
  assert.deepEqual(await consumer.poll({ timeoutMs: 200 }), []);
  assert.equal(broker.divergingOnce, undefined);
});

test("metadata of a deleted topic do not reset a position in the new one", async () => {
  broker.values[0]!.push(..."abcde");
  broker.oldTopicIds.push("deleted", "deleted");
  using consumer = client.consumer();
  consumer.assign("t", 0, 3n);
  assert.deepEqual((await consumer.poll({ timeoutMs: 10_000 })).map(({ offset }) => offset), [3n, 4n]);
});

test("a topic that was created again is read from its beginning", async () => {
  broker.values[0]!.push(..."abc");
  using consumer = client.consumer();
  consumer.assign("t", 0);
  assert.equal((await consumer.poll({ timeoutMs: 10_000 })).length, 3);
  broker.topicId = "new";
  broker.values[0]!.splice(0, 3, ..."vwxyz");
  broker.divergingOnce = { epoch: 0, endOffset: 5n };
  const values: string[] = [];
  const end = performance.now() + 20_000;
  while (values.length < 5 && performance.now() < end) {
    for (const { value } of await consumer.poll()) values.push(Buffer.from(value!).toString());
  }
  assert.deepEqual(values, [..."vwxyz"]);
});

test("a start is looked up again in a topic that was created again before the first fetch", async () => {
  broker.values[0]!.push("a", "b", "c");
  broker.offsetOf = () => BigInt(broker.values[0]!.length);
  using consumer = client.consumer({ reset: "error" });
  consumer.assign("t", 0, "latest");
  broker.onFetch = () => {
    broker.onFetch = undefined;
    broker.values[0] = ["d"];
    broker.topicId = "new";
    broker.offsetOf = () => 0n;
  };
  assert.deepEqual((await consumer.poll({ timeoutMs: 20_000 })).map(({ offset }) => offset), [0n]);
});

test("a partition that failed is reported and read on beside partitions that always have records", async () => {
  broker.values[1]!.push("a");
  broker.fetchErrors.set(1, ErrorCode.CORRUPT_MESSAGE);
  using consumer = client.consumer();
  consumer.assign("t", 0);
  await consumer.poll({ timeoutMs: 0 });
  const seen: (number | string)[] = [];
  for (let round = 0; round < 50 && !seen.includes(1); round++) {
    broker.values[0]!.push("always");
    broker.values[2]!.push("always");
    await pause(30); // One of the busy partitions has been fetched when a poll begins, the other when it has ended.
    if (round === 1) for (const partition of [1, 2]) consumer.assign("t", partition);
    const records = await consumer.poll({ timeoutMs: 10_000 }).catch((error: unknown) => {
      seen.push((error as PacelineError).code);
      return [];
    });
    seen.push(...records.map(({ partition }) => partition));
  }
  assert.deepEqual(seen.filter((one) => one !== 0 && one !== 2), ["CORRUPT_MESSAGE", 1]);
});

test("a position that is out of range is forgotten before the next poll", async () => {
  using consumer = client.consumer();
  consumer.assign("t", 0, 3n);
  broker.fetchErrors.set(0, ErrorCode.OFFSET_OUT_OF_RANGE);
  await consumer.poll({ timeoutMs: 0 }); // Begins the fetch, and does not wait for its answer.
  const end = performance.now() + 20_000;
  while (consumer.position("t", 0) !== undefined && performance.now() < end) await pause(5);
  assert.equal(consumer.position("t", 0), undefined);
  assert.deepEqual(consumer.consumed(), []);
  broker.values[0]!.push("a");
  assert.deepEqual((await consumer.poll({ timeoutMs: 10_000 })).map(({ offset }) => offset), [0n]);
});

test("many partitions cause no warning of listeners", async () => {
  const warnings: string[] = [];
  const note = ({ name }: Error) => void warnings.push(name);
  process.on("warning", note);
  const many = new FakeBroker("many", 30);
  try {
    using writing = new Client({ bootstrap: await many.start() });
    const producer = writing.producer();
    await Promise.all(many.values.map((_, partition) => producer.send({ topic: "many", partition, value: "a" })));
    using consumer = writing.consumer();
    await consumer.assignTopic("many");
    for (let count = 0; count < 30; ) count += (await consumer.poll({ timeoutMs: 10_000 })).length;
    await pause(5);
    assert.ok(!warnings.includes("MaxListenersExceededWarning"));
  } finally {
    many.stop();
    process.off("warning", note);
  }
});

test("a loop of polls that do not wait reads records", async () => {
  broker.values[0]!.push("a");
  using consumer = client.consumer();
  consumer.assign("t", 0);
  const offsets: bigint[] = [];
  const end = performance.now() + 20_000;
  while (offsets.length === 0 && performance.now() < end) {
    for (const { offset } of await consumer.poll({ timeoutMs: 0 })) offsets.push(offset);
  }
  assert.deepEqual(offsets, [0n]);
});

test("an offset of a topic that was created again is found although its leader epochs began again", async () => {
  assert.equal(await client.admin.listOffset("t", 0, "earliest"), 0n);
  broker.topicId = "new";
  broker.leaderEpoch = 0;
  assert.equal(await client.admin.listOffset("t", 0, "earliest", { timeoutMs: 20_000 }), 0n);
});

test("details of a status that cannot be read do not end the process", async () => {
  broker.obstacles.push(new Refusal("INVALID_REQUEST", {}, Buffer.from([0xff, 0xff])));
  const failure = await client.producer().send({ topic: "t", partition: 0, value: "a" }).catch((error: unknown) => error);
  assert.ok(failure instanceof PacelineError);
  assert.deepEqual([failure.code, failure.definite, failure.detail], ["UNKNOWN_SERVER_ERROR", false, "on purpose"]);
});

test("a request that cannot be encoded is refused and not repeated", async () => {
  using consumer = client.consumer();
  consumer.assign("t", 0, 2n ** 63n);
  const failure = await consumer.poll({ timeoutMs: 30_000 }).catch((error: unknown) => error);
  assert.ok(failure instanceof PacelineError);
  const repeated = retries.filter(({ message }) => message.includes("fetch_offset"));
  assert.deepEqual([failure.code, failure.definite, repeated], ["INVALID_REQUEST", true, []]);
});

test("a record that cannot be sent as it is is refused alone", async () => {
  const producer = client.producer({ lingerMs: 5 });
  const good = producer.send({ topic: "t", partition: 0, value: "good" });
  const record = { topic: "t", partition: 0 };
  const half = "\ud83d"; // The first half of a character: UTF-8 has no bytes for it.
  for (const [bad, message] of [
    [{ ...record, key: half }, /the key is no text/],
    [{ ...record, value: half }, /the value is no text/],
    [{ ...record, headers: [[half, null]] }, /the name of a header is no text/],
    [{ ...record, headers: [["a", half]] }, /the value of a header is no text/],
    [{ ...record, topic: half }, /the topic is no text/],
    [{ ...record, value: 7 as unknown as string }, /the value is neither bytes nor a text/],
    [{ ...record, timestampMs: 2n ** 63n }, /timestampMs 9223372036854775808/],
    [{ ...record, partition: 2 ** 31 }, /partition 2147483648/],
  ] as const) {
    await assert.rejects(producer.send(bad as ProducerRecord), message);
  }
  assert.equal((await good).offset, 0n);
  await producer.close();
});

test("a watch leaves a controller that resigns and continues after the last event", async () => {
  const asked: WatchEventsRequest[] = [];
  const other = new FakeBroker("t", 1);
  const timeMs = 4_000_000_000_000n;
  other.serveEvents((request) => {
    asked.push(request);
    return [{ cursor: `c${asked.length}`, events: [{ source: `${asked.length}`, timeMs }] }];
  });
  using watching = new Client({ bootstrap: await other.start(), onRetry: () => undefined });
  try {
    const sources: string[] = [];
    for await (const { source } of watching.admin.watchEvents()) {
      sources.push(source);
      if (sources.length === 2) break;
    }
    assert.deepEqual(sources, ["1", "2"]);
    assert.deepEqual(
      asked.slice(0, 2).map(({ activeControllerOnly, cursor, sinceMs }) => [activeControllerOnly, cursor, sinceMs]),
      [[true, "", undefined], [true, "c1", timeMs]],
    );
  } finally {
    other.stop();
  }
});

test("a watch leaves a controller that is silent", async () => {
  let calls = 0;
  const other = new FakeBroker("t", 1);
  other.serveEvents(() => (calls++ === 0 ? "silence" : [{ cursor: "c", events: [{ source: "seen" }] }]));
  using watching = new Client({ bootstrap: await other.start(), onRetry: (error) => void retries.push(error) });
  watching.admin.watchSilenceMs = 1_000;
  try {
    for await (const { source } of watching.admin.watchEvents()) {
      assert.equal(source, "seen");
      break;
    }
    assert.deepEqual([retries[0]?.code, retries[0]?.detail], ["REQUEST_TIMED_OUT", "no message for 1000 ms"]);
    assert.ok(calls >= 2);
  } finally {
    other.stop();
  }
});

test("a program that is slow to take events is no silence of the controller", async () => {
  const asked: string[] = [];
  const other = new FakeBroker("t", 1);
  other.serveEvents(({ cursor }) => {
    asked.push(cursor);
    return [1, 2, 3].map((number) => ({ cursor: `c${number}`, events: [{ source: String(number) }] }));
  });
  using watching = new Client({ bootstrap: await other.start(), onRetry: () => undefined });
  watching.admin.watchSilenceMs = 5_000;
  try {
    const seen: string[] = [];
    for await (const { source } of watching.admin.watchEvents()) {
      if (seen.push(source) === 3) break;
      if (seen.length === 1) await pause(5_200);
    }
    assert.deepEqual([seen, asked], [["1", "2", "3"], [""]]);
  } finally {
    other.stop();
  }
});

test("a watch of batches says that events are missing, and yields no keepalive message", async () => {
  const other = new FakeBroker("t", 1);
  other.serveEvents(() => [
    { cursor: "c1", events: [{ source: "1" }] },
    { cursor: "c2" },
    { cursor: "c3", gap: { lostEvents: 7n } },
  ]);
  using watching = new Client({ bootstrap: await other.start(), onRetry: () => undefined });
  try {
    const seen: unknown[] = [];
    for await (const { events, gap } of watching.admin.watchEventBatches()) {
      seen.push([events.length, gap?.lostEvents]);
      if (gap !== undefined) break;
    }
    assert.deepEqual(seen, [[1, undefined], [0, 7n]]);
  } finally {
    other.stop();
  }
});

test("a topic that no broker knows is reported, and read when it is created", async () => {
  const young = new FakeBroker("new", 0);
  using waiting = new Client({ bootstrap: await young.start(), onRetry: () => undefined });
  try {
    using atOffset = waiting.consumer();
    using atPlace = waiting.consumer();
    atOffset.assign("new", 0, 1n);
    atPlace.assign("new", 0);
    const began = performance.now();
    const isReported = (one: Consumer) => assert.rejects(one.poll({ timeoutMs: 30_000 }), { code: "UNKNOWN_TOPIC_OR_PARTITION" });
    await Promise.all([atOffset, atPlace].map(isReported));
    assert.ok(performance.now() - began > 3_000, "a new topic needs a moment");
    young.values.push(["a", "b"]);
    assert.deepEqual((await atOffset.poll({ timeoutMs: 20_000 })).map(({ offset }) => offset), [1n]);
    assert.deepEqual((await atPlace.poll({ timeoutMs: 20_000 })).map(({ offset }) => offset), [0n, 1n]);
  } finally {
    young.stop();
  }
});

test("a partition that cannot be read is reported with the cause, and read later", async () => {
  broker.values[0]!.push("a");
  using consumer = client.consumer({ apiTimeoutMs: 700 });
  consumer.assign("t", 0);
  assert.equal((await consumer.poll({ timeoutMs: 20_000 })).length, 1);
  broker.values.splice(0);
  broker.topicId = "new";
  for (let time = 0; time < 2; time++) {
    const failure = await consumer.poll({ timeoutMs: 20_000 }).catch((error: unknown) => error);
    assert.ok(failure instanceof PacelineError);
    assert.equal(failure.code, "REQUEST_TIMED_OUT");
    assert.match(failure.message, /^reading t\/0: REQUEST_TIMED_OUT: it could not be read for 700 ms: .*(UNKNOWN_TOPIC_OR_PARTITION|INCONSISTENT_TOPIC_ID)/);
    // On a slow machine the second may have been the only answer.
    assert.ok(["UNKNOWN_TOPIC_OR_PARTITION", "INCONSISTENT_TOPIC_ID"].includes((failure.cause as PacelineError).code));
  }
  broker.values.push(["b"]);
  const records = await consumer.poll({ timeoutMs: 20_000 });
  assert.deepEqual(records.map(({ value }) => Buffer.from(value!).toString()), ["b"]);
});

test("flush and close send records that linger", async () => {
  const producer = client.producer({ lingerMs: 600_000, deliveryTimeoutMs: 30_000 });
  const places = [producer.send({ topic: "t", partition: 0, value: "a" }), producer.send({ topic: "t", value: "b", key: "k" })];
  await producer.flush({ timeoutMs: 20_000 });
  await Promise.all(places);
  const last = producer.send({ topic: "t", partition: 0, value: "c" });
  await producer.close({ timeoutMs: 20_000 });
  await last;
  assert.equal(broker.values.flat().length, 3);
});

test("connections to addresses that belong to no process end", async () => {
  const gone = new FakeBroker("t", 1);
  const address = await gone.start();
  const cluster = new Cluster([`127.0.0.1:${broker.port}`], credentials.createInsecure(), -1);
  try {
    const [old, kept] = [cluster.connection(address), cluster.connection(`127.0.0.1:${broker.port}`)];
    await cluster.describe(Limit.in(20_000));
    assert.notEqual(cluster.connection(address), old);
    assert.equal(cluster.connection(`127.0.0.1:${broker.port}`), kept);
  } finally {
    cluster.close();
    gone.stop();
  }
});

test("a call ends at once with its cause when no time is left for another attempt", async () => {
  const began = performance.now();
  const throttled = new PacelineError("calling", "THROTTLED", "on purpose", { retryAfterMs: 60_000 });
  await assert.rejects(client.retry(Limit.in(30_000), () => Promise.reject(throttled)), throttled);
  let attempts = 0;
  const slow = async () => {
    attempts++;
    await pause(300);
    throw new PacelineError("calling", "NOT_ENOUGH_REPLICAS", "on purpose");
  };
  await assert.rejects(client.retry(Limit.in(450), slow), { code: "NOT_ENOUGH_REPLICAS" });
  assert.equal(attempts, 1);
  assert.ok(performance.now() - began < 25_000);
});

test("a call may last for ever", async () => {
  const controller = new FakeBroker("t", 1);
  let askedMs = 0;
  controller.serve(AdminService.method.createTopics, ({ timeoutMs, topics }) => {
    askedMs = timeoutMs;
    return { topics: topics.map(({ name }) => ({ name, topicId: "id" })) };
  });
  using patient = new Client({ bootstrap: await controller.start() });
  try {
    assert.equal(await patient.admin.createTopic({ name: "new" }, { timeoutMs: Infinity }), "id");
    assert.equal(askedMs, 600_000);
  } finally {
    controller.stop();
  }
});

test("a consumer that begins at a time reads a record that is written during the look-up", async () => {
  broker.offsetOf = (spec) => {
    if (spec === OffsetSpec.LATEST) return BigInt(broker.values[0]!.length);
    setImmediate(() => broker.values[0]!.push("new"));
    return undefined;
  };
  using consumer = client.consumer();
  consumer.assign("t", 0, { timestampMs: 1 });
  assert.deepEqual((await consumer.poll({ timeoutMs: 10_000 })).map(({ offset }) => offset), [0n]);
});

test("a broker that is behind takes no partition of a topic away", async () => {
  const producer = client.producer();
  const key = [..."abcdefgh"].find((one) => partitionForKey(one, 3) === 2)!;
  assert.equal((await producer.send({ topic: "t", key, value: "a" })).partition, 2);
  broker.describedPartitions = 1;
  broker.obstacles.push({ code: ErrorCode.NOT_LEADER_OR_FOLLOWER });
  await producer.send({ topic: "t", partition: 0, value: "b" });
  assert.equal((await producer.send({ topic: "t", key, value: "c" })).partition, 2);
  assert.deepEqual([...(await client.cluster.partitionCounts(["t"], Limit.in(20_000)))], [["t", 3]]);
});

test("a cut-off broker hides no partitions from the leader of a group", async () => {
  const cutOff = new FakeBroker("t", 1);
  const bootstrap = [await cutOff.start(), `127.0.0.1:${broker.port}`];
  try {
    for (let time = 0; time < 10; time++) {
      using fresh = new Client({ bootstrap }); // It begins at a random address.
      assert.deepEqual([...(await fresh.cluster.partitionCounts(["t"], Limit.in(20_000)))], [["t", 3]]);
    }
  } finally {
    cutOff.stop();
  }
});

test("a topic whose partitions are not known yet is waited for", async () => {
  broker.describedPartitions = 0;
  const sent = client.producer().send({ topic: "t", key: "a", value: "a" });
  while (retries.length === 0) await pause(5);
  broker.describedPartitions = 3;
  assert.equal((await sent).partition, partitionForKey("a", 3));
});

test("a lost answer is repeated although a broker still describes a deleted topic", async () => {
  const producer = client.producer();
  await producer.send({ topic: "t", partition: 0, value: "a" });
  broker.oldTopicIds.push("deleted");
  broker.obstacles.push("lose answer");
  assert.equal((await producer.send({ topic: "t", partition: 0, value: "b" })).offset, 1n);
  assert.deepEqual(broker.values[0], ["a", "b"]);
});

test("a record in doubt does not block its partition in a topic that was created again", async () => {
  using hurried = new Client({ bootstrap: `127.0.0.1:${broker.port}`, requestTimeoutMs: 500, onRetry: () => undefined });
  const producer = hurried.producer();
  await producer.send({ topic: "t", partition: 0, value: "a" });
  broker.topicId = "new";
  broker.obstacles.push("lose answer");
  const doubtful = producer.send({ topic: "t", partition: 0, value: "b" });
  await assert.rejects(doubtful, { code: "UNKNOWN_TOPIC_OR_PARTITION", definite: false });
  await producer.send({ topic: "t", partition: 0, value: "c" });
  const last = broker.calls.at(-1)!;
  assert.deepEqual([last.topicId, (last.data.value as RecordList).baseSequence], ["new", 0]);
});

test("an address where no process listens is a definite failure", async () => {
  const away = new Client({ bootstrap: "127.0.0.1:1", onRetry: () => undefined });
  const failure = await away.admin.createTopic({ name: "x" }, { timeoutMs: 300 }).catch((error: unknown) => error);
  away.close();
  assert.ok(failure instanceof PacelineError);
  assert.deepEqual([failure.code, failure.definite], ["BROKER_NOT_AVAILABLE", true]);
});

test("an aborted call rejects with the reason of the signal", async () => {
  const stop = new AbortController();
  const away = new Client({ bootstrap: "127.0.0.1:1", onRetry: () => stop.abort(new Error("enough")) });
  await assert.rejects(away.admin.describeCluster({ signal: stop.signal }), /enough/);
  away.close();
});

test("a call with a signal that has fired leaves no unhandled rejection", async () => {
  const unhandled: unknown[] = [];
  const note = (reason: unknown) => void unhandled.push(reason);
  process.on("unhandledRejection", note);
  const away = new Client({ bootstrap: "127.0.0.1:1", onRetry: () => undefined });
  try {
    const signal = AbortSignal.abort(new Error("enough"));
    await assert.rejects(away.admin.listOffset("t", 0, "latest", { signal }), /enough/);
    const { refreshes } = away.cluster as unknown as { refreshes: Map<string, unknown> };
    while (refreshes.size > 0) await pause(5);
    await pause(5);
    assert.deepEqual(unhandled, []);
  } finally {
    away.close();
    process.off("unhandledRejection", note);
  }
});

test("bad settings are refused with the value", () => {
  assert.throws(() => new Client({ bootstrap: "" }), /names no address/);
  for (const address of ["localhost", "::1:9092", "localhost:0", "localhost:65536", "a b:1"]) {
    assert.throws(() => new Client({ bootstrap: ["h:1", address] }), { message: `bootstrap: "${address}" is not host:port` });
  }
  new Client({ bootstrap: "[::1]:9092,127.0.0.1:1,broker-1.example:65535" }).close();
  assert.throws(() => new Client({ bootstrap: "h:1", tls: { caFile: "/missing/ca.crt" } }), /\/missing\/ca.crt/);
  assert.throws(() => new Client({ bootstrap: "h:1", tls: { caFile: "x", certFile: "y" } }), /given together/);
});

test("a place that is no place is refused, and does not mean the end of the log", async () => {
  using consumer = client.consumer();
  for (const wrong of [42, "erliest", null]) {
    assert.throws(() => consumer.assign("t", 0, wrong as unknown as bigint), /is no place: give an offset as 42n/);
    assert.throws(() => consumer.assign("t", 0, -1n), /an offset is 0n or more, not -1n/);
    await assert.rejects(client.admin.listOffset("t", 0, wrong as unknown as "latest"), /is no place/);
  }
  assert.throws(() => client.consumer({ reset: "none" as "error" }), /none is no place/);
});

test("the environment names the cluster and the files of TLS", () => {
  assert.deepEqual(configFromEnvironment({}), { bootstrap: "127.0.0.1:9102", tls: undefined });
  const { bootstrap, tls } = configFromEnvironment({ PACELINE_BOOTSTRAP_SERVERS: "a:1,b:2", PACELINE_SSL_CA_FILE: "ca" });
  assert.deepEqual([bootstrap, tls?.caFile], ["a:1,b:2", "ca"]);
  for (const alone of ["PACELINE_SSL_CERTIFICATE_FILE", "PACELINE_SSL_KEY_FILE"]) {
    assert.throws(() => configFromEnvironment({ [alone]: "file" }), /PACELINE_SSL_CA_FILE/);
  }
});
