// Writes records to a new topic, reads them back at the same time, and checks that every acknowledged record is at its
// offset, and that no record is duplicated or out of order. A command may break the cluster halfway:
//
//   node dist/samples/roundtrip.js --records 100000 --halfway 'kill -9 $(cat DIRECTORY/broker-$LEADER.pid)'
//
// LEADER is the broker id of the leader of partition 0. Prints one JSON object; exits with 0 if the check passes, 3 if it
// fails, 1 if the program could not finish, 2 on bad options.
import { spawnSync } from "node:child_process";
import { parseArgs } from "node:util";
import { Client, configFromEnvironment } from "paceline";

function options() {
  try {
    const { values } = parseArgs({
      options: {
        records: { type: "string", default: "100000" },
        partitions: { type: "string", default: "3" },
        topic: { type: "string", default: `typescript-roundtrip-${Date.now()}` },
        halfway: { type: "string" },
        "timeout-s": { type: "string", default: "300" },
      },
    });
    const numbers = { records: +values.records, partitions: +values.partitions, timeoutMs: 1000 * +values["timeout-s"] };
    for (const [name, number] of Object.entries(numbers)) {
      if (!Number.isInteger(number) || number < 1) throw new TypeError(`${name} is not a positive number`);
    }
    return { topic: values.topic, halfway: values.halfway, ...numbers };
  } catch (error) {
    console.error(`roundtrip: ${(error as Error).message}`);
    process.exit(2);
  }
}

const { records, partitions, topic, halfway, timeoutMs } = options();
const signal = AbortSignal.timeout(timeoutMs);
const start = performance.now();
let retries = 0;

using client = new Client({ ...configFromEnvironment(), onRetry: () => void retries++ });
await client.admin.createTopic({ name: topic, partitions, replicationFactor: 3, configs: { "min.insync.replicas": "2" } }, { signal });

/** Where each acknowledged record is: "partition/offset" by value. */
const acknowledged = new Map<string, string>();
const failures: string[] = [];
let killed: { leaderBefore: number | undefined } | undefined;

async function produce(): Promise<void> {
  const producer = client.producer({ lingerMs: 5 });
  for (let number = 0; number < records; number++) {
    if (number === Math.floor(records / 2) && halfway !== undefined) {
      const leader = (await client.admin.describeTopic(topic, { signal })).partitions[0]?.leader;
      const ran = spawnSync("sh", ["-c", halfway], { env: { ...process.env, LEADER: String(leader) }, stdio: ["ignore", 2, 2] });
      if (ran.status !== 0) throw new Error(`the command of --halfway failed with exit code ${ran.status}`);
      killed = { leaderBefore: leader };
    }
    if (number % 500 === 0) await producer.ready({ signal });
    // A third of the records has a key.
    producer.send({ topic, key: number % 3 === 0 ? `key-${number % 50}` : null, value: String(number) }).then(
      ({ partition, offset }) => acknowledged.set(String(number), `${partition}/${offset}`),
      (error: Error) => failures.push(error.message),
    );
  }
  await producer.close({ signal });
}

const seen = new Map<string, string[]>();
const read = { records: 0, outOfOrder: 0 };

async function consume(produced: AbortSignal): Promise<void> {
  using consumer = client.consumer();
  await consumer.assignTopic(topic, "earliest", { signal });
  const last = new Map<string, number>();
  let ends: bigint[] | undefined;
  for (;;) {
    for (const record of await consumer.poll({ signal, timeoutMs: 1_000 })) {
      const value = Buffer.from(record.value ?? []).toString();
      seen.set(value, [...(seen.get(value) ?? []), `${record.partition}/${record.offset}`]);
      read.records++;
      // Records of one key, and records of one partition without a key, keep their order.
      const line = `${record.partition}/${record.key === null ? "" : Buffer.from(record.key).toString()}`;
      if ((last.get(line) ?? -1) >= Number(value)) read.outOfOrder++;
      last.set(line, Number(value));
    }
    if (!produced.aborted) continue;
    const numbers = [...Array(partitions).keys()];
    ends ??= await Promise.all(numbers.map(async (one) => (await client.admin.listOffset(topic, one, "latest", { signal }))!));
    if (numbers.every((one) => (consumer.position(topic, one) ?? -1n) >= ends![one]!)) return;
  }
}

const produced = new AbortController();
await Promise.all([produce().finally(() => produced.abort()), consume(produced.signal)]);

const lost = [...acknowledged].filter(([value, place]) => !seen.get(value)?.includes(place)).length;
const doubled = [...seen.values()].filter((places) => places.length > 1).length;
const leaderAfter = (await client.admin.describeTopic(topic, { signal })).partitions[0]?.leader;
const isGood = lost === 0 && doubled === 0 && read.outOfOrder === 0 && acknowledged.size === records;
console.log(
  JSON.stringify({
    topic,
    records,
    acknowledged: acknowledged.size,
    failed: failures.length,
    firstFailure: failures[0],
    read: read.records,
    lost,
    doubled,
    outOfOrder: read.outOfOrder,
    retries,
    ...(killed === undefined ? {} : { ...killed, leaderAfter }),
    seconds: Math.round(performance.now() - start) / 1000,
    good: isGood,
  }),
);
process.exitCode = isGood ? 0 : 3;
