// The driver of this client for tests/conformance: JSON lines on stdin and stdout.
import { createInterface } from "node:readline";
import { described } from "./described.js";
import { Members, type GroupCommand } from "./members.js";
import { Client, Consumer, partitionForKey, Producer, TruncatedError, type Place, type ResetPolicy } from "paceline";

interface RecordFields {
  partition?: number;
  key?: string | null;
  value?: string | null;
  headers?: [string, string | null][];
  timestamp_ms?: string | null;
}

interface Command extends GroupCommand {
  id: number;
  command: string;
  bootstrap: string[];
  delivery_timeout_ms?: number;
  request_timeout_ms?: number;
  linger_ms?: number;
  topic: string;
  records: RecordFields[];
  consumer: string;
  partition?: number;
  start?: string;
  reset?: ResetPolicy;
  max_records?: number;
  timeout_ms?: number;
  at?: string;
  timestamp_ms?: string;
  partitions?: number;
  replication_factor?: number;
  configs?: Record<string, string>;
  key: string;
  partition_count: number;
}

class Driver {
  private client: Client | undefined;
  private producer: Producer | undefined;
  private consumers = new Map<string, Consumer>();
  private readonly members = new Members();
  private timeoutMs = 30_000;

  async answer(line: string): Promise<object> {
    let id: number | undefined;
    try {
      const command = JSON.parse(line) as Command;
      id = command.id;
      const result = await this.run(command);
      return result === undefined ? { id, unsupported: `the driver has no command ${command.command}` } : { id, ok: result };
    } catch (error) {
      return { id, error: described(error) };
    }
  }

  async run(command: Command): Promise<object | undefined> {
    const timeoutMs = command.timeout_ms ?? this.timeoutMs;
    switch (command.command) {
      case "hello":
        return { language: "typescript", client: "paceline-typescript", version: "0.1.0" };
      case "partition_for_key":
        return { partition: partitionForKey(Buffer.from(command.key, "base64"), command.partition_count) };
      case "open":
        await this.close();
        this.client = new Client({ bootstrap: command.bootstrap, requestTimeoutMs: command.request_timeout_ms });
        this.timeoutMs = command.delivery_timeout_ms ?? 30_000;
        this.producer = this.client.producer({ deliveryTimeoutMs: this.timeoutMs, lingerMs: command.linger_ms });
        return {};
      case "produce":
        return this.produce(command);
      case "consume_open":
        return this.consumeOpen(command);
      case "consume_poll":
        return this.consumePoll(command);
      case "consume_close":
        this.consumers.get(command.consumer)?.close();
        this.consumers.delete(command.consumer);
        return {};
      case "list_offset": {
        const place: Place = command.at === "timestamp" ? { timestampMs: BigInt(command.timestamp_ms!) } : ((command.at ?? "latest") as Place);
        const offset = await this.opened.admin.listOffset(command.topic, command.partition ?? 0, place, { timeoutMs });
        return { offset: offset === undefined ? null : String(offset) };
      }
      case "create_topic": {
        const { topic: name, partitions, replication_factor: replicationFactor, configs } = command;
        return { topic_id: await this.opened.admin.createTopic({ name, partitions, replicationFactor, configs }, { timeoutMs }) };
      }
      case "delete_topic":
        await this.opened.admin.deleteTopic(command.topic, { timeoutMs });
        return {};
      case "describe_topic": {
        const description = await this.opened.admin.describeTopic(command.topic, { timeoutMs });
        const partitions = description.partitions.map(({ partition, leader = null, replicas, isr }) => ({ partition, leader, replicas, isr }));
        return { partitions };
      }
      case "close":
        await this.close();
        return {};
      default:
        return this.members.run(command, this.client);
    }
  }

  async close(): Promise<void> {
    await this.members.close();
    for (const consumer of this.consumers.values()) consumer.close();
    this.consumers.clear();
    await this.producer?.close({ timeoutMs: 1_000 }).catch((error: unknown) => console.error(error));
    this.client?.close();
    this.producer = this.client = undefined;
  }

  private get opened(): Client {
    if (this.client === undefined) throw new Error("nothing is open");
    return this.client;
  }

  private async produce(command: Command): Promise<object> {
    const outcomes = await Promise.allSettled(
      command.records.map((record) =>
        this.producer!.send({
          topic: command.topic,
          partition: record.partition,
          key: unpacked(record.key),
          value: unpacked(record.value),
          headers: (record.headers ?? []).map(([name, value]) => [name, unpacked(value)]),
          timestampMs: record.timestamp_ms == null ? undefined : BigInt(record.timestamp_ms),
        }),
      ),
    );
    const results = outcomes.map((outcome) =>
      outcome.status === "fulfilled"
        ? { partition: outcome.value.partition, offset: String(outcome.value.offset) }
        : { error: described(outcome.reason) },
    );
    return { results };
  }

  private async consumeOpen(command: Command): Promise<object> {
    const { topic, partition = 0, start = "earliest" } = command;
    const consumer = this.opened.consumer({ reset: command.reset });
    if (start === "earliest") {
      consumer.assign(topic, partition, start);
    } else if (start === "latest") {
      // Look up the end now, so that records sent after this command are read.
      const end = await this.opened.admin.listOffset(topic, partition, "latest", { timeoutMs: this.timeoutMs });
      consumer.assign(topic, partition, end);
    } else {
      consumer.assign(topic, partition, BigInt(start));
    }
    this.consumers.set(command.consumer, consumer);
    return {};
  }

  private async consumePoll(command: Command): Promise<object> {
    const consumer = this.consumers.get(command.consumer);
    if (consumer === undefined) throw new Error(`no consumer ${command.consumer}`);
    try {
      const records = await consumer.poll({ timeoutMs: command.timeout_ms ?? 10_000, maxRecords: command.max_records });
      return {
        records: records.map((record) => ({
          partition: record.partition,
          key: packed(record.key),
          value: packed(record.value),
          headers: record.headers.map(([name, value]) => [name, packed(value)]),
          timestamp_ms: String(record.timestampMs),
          offset: String(record.offset),
        })),
        truncated: null,
      };
    } catch (error) {
      if (!(error instanceof TruncatedError)) throw error;
      return { records: [], truncated: { position: String(error.position), divergent_offset: String(error.divergentOffset) } };
    }
  }
}

function unpacked(text: string | null | undefined): Uint8Array | null {
  return text == null ? null : Buffer.from(text, "base64");
}

function packed(bytes: Uint8Array | null): string | null {
  return bytes === null ? null : Buffer.from(bytes).toString("base64");
}

const driver = new Driver();
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await driver.answer(line))}\n`);
}
await driver.close();
