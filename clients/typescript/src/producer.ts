import { setMaxListeners } from "node:events";
import { isRepeatable, type Client } from "./client.js";
import { Absence } from "./cluster.js";
import { PartitionQueue, unsent, type Item } from "./partition_queue.js";
import { Limit, type CallOptions } from "./limit.js";
import { partitionForKey } from "./partitioner.js";
import { PacelineError } from "./errors.js";

/** Bytes, or a text that is written in UTF-8. */
export type Bytes = Uint8Array | string;

/** A record to send. A missing key or value counts as null, which differs from empty. */
export interface ProducerRecord {
  topic: string;
  /** If missing, the producer chooses: by the key, or one partition per batch without a key. */
  partition?: number | undefined;
  key?: Bytes | null | undefined;
  value?: Bytes | null | undefined;
  /** Name and value; order and repetition are kept. */
  headers?: readonly (readonly [name: string, value: Bytes | null])[] | undefined;
  /** Milliseconds since the Unix epoch; now when missing. */
  timestampMs?: bigint | number | undefined;
}

/** Where a record was written. */
export interface RecordPlace {
  topic: string;
  partition: number;
  offset: bigint;
}

export interface ProducerConfig {
  /** Longest time from `send` to the outcome, retries included, in milliseconds; 120,000 by default. */
  deliveryTimeoutMs?: number | undefined;
  /** How long a batch waits for further records, in milliseconds; 0 by default: records of one turn are sent together. */
  lingerMs?: number | undefined;
  /** Size from which a batch is sent; 262,144 by default. */
  batchBytes?: number | undefined;
  /** Number of records without an outcome from which `ready` waits; 50,000 by default. */
  maxPending?: number | undefined;
  /**
   * Largest request; 4 MiB by default, as the brokers' `socket.request.max.bytes`. Batches stay below it, and a record that
   * does not fit is refused before it is sent.
   */
  maxRequestBytes?: number | undefined;
}

const LARGEST_PARTITION = 0x7fffffff;

/** Room in a request for everything but the records. */
const OVERHEAD_BYTES = 1024;

/** Records of a topic that wait until its number of partitions is known. */
interface Unrouted {
  sends: { record: ProducerRecord; item: Item }[];
  done: Promise<void>;
}

/** Sends records with acks ALL, idempotent: in order per partition, each once. */
export class Producer {
  private readonly config: Required<{ [K in keyof ProducerConfig]-?: number }>;
  private readonly queues = new Map<string, Map<number, PartitionQueue>>();
  private readonly unrouted = new Map<string, Unrouted>();
  private readonly sticky = new Map<string, number>();
  private readonly closing = new AbortController();
  private readonly waiters: { until: number; resolve: () => void }[] = [];
  private readonly unsettled = new Set<number>();
  private sent = 0;
  private firstUnsettled = 0;
  private isClosed = false;
  /** Number of flushes in progress; while it is positive, no record lingers. */
  private flushing = 0;

  /** @internal */
  constructor(
    private readonly client: Client,
    config: ProducerConfig,
  ) {
    const { deliveryTimeoutMs = 120_000, lingerMs = 0, maxPending = 50_000, maxRequestBytes = 4 * 1024 * 1024 } = config;
    if (!(maxRequestBytes >= 2 * OVERHEAD_BYTES)) throw new RangeError(`maxRequestBytes is at least 2048, not ${maxRequestBytes}`);
    const batchBytes = Math.min(config.batchBytes ?? 256 * 1024, maxRequestBytes - OVERHEAD_BYTES);
    // Every partition adds a listener. From the eleventh on, Node would warn of a memory leak.
    setMaxListeners(0, this.closing.signal);
    this.config = { deliveryTimeoutMs, lingerMs, batchBytes, maxPending, maxRequestBytes };
  }

  /** Number of records without an outcome. */
  get pending(): number {
    return this.unsettled.size;
  }

  /**
   * Queue a record. The promise resolves to its partition and offset when every in-sync replica has it. It rejects if the
   * record was not delivered: with UNKNOWN_TOPIC_OR_PARTITION when brokers have not known the topic or partition for five
   * seconds, and with the last cause when the delivery time ends. Records are sent in the order of the calls. Call often
   * before you await: records travel in batches.
   */
  send(record: ProducerRecord): Promise<RecordPlace> {
    return new Promise((resolve, reject) => {
      if (this.isClosed) throw new Error("the producer is closed");
      const { partition } = record;
      if (partition !== undefined && !(Number.isInteger(partition) && partition >= 0 && partition <= LARGEST_PARTITION)) {
        throw new RangeError(`partition ${partition} is not a number from 0 to ${LARGEST_PARTITION}`);
      }
      const encoded = encode(record);
      const room = this.config.maxRequestBytes - OVERHEAD_BYTES;
      if (encoded.sizeBytes > room) {
        const detail = `the record needs ${encoded.sizeBytes} bytes, and a request of ${this.config.maxRequestBytes} bytes has room for ${room}`;
        throw new PacelineError(`producing to ${record.topic}`, "MESSAGE_TOO_LARGE", detail);
      }
      const number = this.sent++;
      this.unsettled.add(number);
      const sentAt = performance.now();
      const item: Item = {
        ...encoded,
        sentAt,
        deadline: sentAt + this.config.deliveryTimeoutMs,
        deliver: (partition, offset) => {
          resolve({ topic: record.topic, partition, offset });
          this.settle(number);
        },
        fail: (error) => {
          reject(error);
          this.settle(number);
        },
      };
      this.route(record, item);
    });
  }

  /** Wait until fewer than `maxPending` records have no outcome; bounds the memory of a loop that does not await `send`. */
  async ready(options: CallOptions = {}): Promise<void> {
    while (this.pending >= this.config.maxPending) await this.settled(this.oldest + 1, options);
  }

  /**
   * Send the records that linger, and wait until every record sent before has its outcome. It does not throw for failed
   * records: the promises of `send` reject.
   */
  async flush(options: CallOptions = {}): Promise<void> {
    this.flushing++;
    for (const byPartition of this.queues.values()) for (const queue of byPartition.values()) queue.flush();
    try {
      await this.settled(this.sent, options);
    } finally {
      this.flushing--;
    }
  }

  /** Flush, and end the producer. Records without an outcome after `timeoutMs` (default: the delivery timeout) fail. */
  async close(options: CallOptions = {}): Promise<void> {
    this.isClosed = true;
    try {
      await this.flush({ timeoutMs: this.config.deliveryTimeoutMs, ...options });
    } finally {
      this.closing.abort(new Error("the producer was closed before the record was delivered"));
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Put a record into the queue of its partition, after records of its topic that wait for the partition count. */
  private route(record: ProducerRecord, item: Item): void {
    const waiting = this.unrouted.get(record.topic);
    if (waiting !== undefined) {
      waiting.sends.push({ record, item });
      return;
    }
    const count = record.partition === undefined ? this.client.cluster.known(record.topic)?.partitionCount : 0;
    if (count !== undefined) {
      this.put(record, item, count);
      return;
    }
    const started: Unrouted = { sends: [{ record, item }], done: Promise.resolve() };
    this.unrouted.set(record.topic, started);
    void this.learnPartitions(record.topic, started);
  }

  private async learnPartitions(topic: string, waiting: Unrouted): Promise<void> {
    const limit = Limit.in(this.config.deliveryTimeoutMs, this.closing.signal);
    const operation = `producing to ${topic}`;
    const absence = new Absence();
    const isRepeated = (error: PacelineError) => isRepeatable(error) && !absence.isMissing(error);
    try {
      const attempt = (within: Limit) => this.client.cluster.topic(topic, within);
      const { partitionCount } = await this.client.retryOfProducer(operation, limit, attempt, isRepeated);
      this.unrouted.delete(topic);
      for (const { record, item } of waiting.sends) this.put(record, item, partitionCount);
    } catch (error) {
      this.unrouted.delete(topic);
      const failure = error instanceof PacelineError ? error.with({ definite: true }) : unsent(operation, error);
      for (const { item } of waiting.sends) item.fail(failure);
    }
  }

  private put(record: ProducerRecord, item: Item, partitionCount: number): void {
    const partition = record.partition ?? this.choose(record, item, partitionCount);
    let byPartition = this.queues.get(record.topic);
    if (byPartition === undefined) {
      byPartition = new Map();
      this.queues.set(record.topic, byPartition);
    }
    let queue = byPartition.get(partition);
    if (queue === undefined) {
      const onTake = () => {
        // Records without a key go to another partition from now on.
        if (this.sticky.get(record.topic) === partition) this.sticky.delete(record.topic);
      };
      queue = new PartitionQueue(this.client, record.topic, partition, this.config, this.closing.signal, onTake, () => this.flushing > 0);
      byPartition.set(partition, queue);
    }
    queue.put(item);
  }

  /** Return the partition of the key; without a key the same partition until a batch for it is sent. */
  private choose(record: ProducerRecord, item: Item, partitionCount: number): number {
    if (item.record.key !== undefined) return partitionForKey(item.record.key, partitionCount);
    let partition = this.sticky.get(record.topic);
    if (partition === undefined || partition >= partitionCount) {
      partition = Math.floor(Math.random() * partitionCount);
      this.sticky.set(record.topic, partition);
    }
    return partition;
  }

  /** Number of the oldest record without an outcome. */
  private get oldest(): number {
    while (this.firstUnsettled < this.sent && !this.unsettled.has(this.firstUnsettled)) this.firstUnsettled++;
    return this.firstUnsettled;
  }

  private settle(number: number): void {
    this.unsettled.delete(number);
    if (this.waiters.length === 0) return;
    const oldest = this.oldest;
    for (let at = this.waiters.length - 1; at >= 0; at--) {
      if (this.waiters[at]!.until <= oldest) this.waiters.splice(at, 1)[0]!.resolve();
    }
  }

  /** Wait until every record with a lower number has its outcome. */
  private async settled(until: number, options: CallOptions): Promise<void> {
    if (until <= this.oldest) return;
    const limit = Limit.of(options, this.config.deliveryTimeoutMs + this.client.requestTimeoutMs);
    const done = new Promise<true>((resolve) => this.waiters.push({ until, resolve: () => resolve(true) }));
    if ((await limit.race(done)) === undefined) {
      throw new PacelineError("waiting for deliveries", "REQUEST_TIMED_OUT", `${this.pending} records have no outcome yet`, { hasAnswer: false });
    }
  }
}

/** Encode a record. Throw a TypeError or RangeError for an invalid record, which would fail its whole batch. */
function encode(record: ProducerRecord): Pick<Item, "record" | "sizeBytes"> {
  requireText("the topic", record.topic);
  const key = bytes("the key", record.key);
  const value = bytes("the value", record.value);
  const timestampMs = BigInt(record.timestampMs ?? Date.now());
  if (BigInt.asIntN(64, timestampMs) !== timestampMs) throw new RangeError(`timestampMs ${timestampMs} has more than 64 bits`);
  const headers = (record.headers ?? []).map(([name, content]) => {
    requireText("the name of a header", name);
    const packed = bytes("the value of a header", content);
    return packed === undefined ? { key: name } : { key: name, value: packed };
  });
  const sizeBytes = headers.reduce((sum, header) => sum + 4 * header.key.length + (header.value?.length ?? 0) + 8, 0);
  return {
    record: {
      headers,
      timestampMs,
      ...(key === undefined ? {} : { key }),
      ...(value === undefined ? {} : { value }),
    },
    sizeBytes: sizeBytes + (key?.length ?? 0) + (value?.length ?? 0) + 32,
  };
}

function bytes(what: string, content: Bytes | null | undefined): Uint8Array<ArrayBuffer> | undefined {
  if (content === null || content === undefined) return undefined;
  if (content instanceof Uint8Array) return content as Uint8Array<ArrayBuffer>;
  if (typeof content !== "string") throw new TypeError(`${what} is neither bytes nor a text`);
  requireText(what, content);
  return Buffer.from(content);
}

/** Throw a TypeError for a string with an unpaired surrogate, which would be sent as U+FFFD. */
function requireText(what: string, text: string): void {
  if (typeof text !== "string" || !text.isWellFormed()) throw new TypeError(`${what} is no text in Unicode`);
}
