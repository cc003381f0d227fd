import { setMaxListeners } from "node:events";
import { requirePlace, type Place } from "./admin.js";
import { isRepeatable, type Client } from "./client.js";
import { Absence } from "./cluster.js";
import { PacelineError, throwPartitionError, TruncatedError } from "./errors.js";
import { FetchFormat, LogService, type FetchPartitionResult } from "./gen/paceline/v1/log_service_pb.js";
import { Limit, turn, type CallOptions } from "./limit.js";

/** Reaction to a position that is out of range: continue at the start or end of the log, or throw OFFSET_OUT_OF_RANGE. */
export type ResetPolicy = "earliest" | "latest" | "error";

export interface ConsumerConfig {
  /** "earliest" by default. */
  reset?: ResetPolicy | undefined;
  /** How long a broker may hold a fetch without records, in milliseconds; 500 by default. */
  maxWaitMs?: number | undefined;
  /** Limit of the answer of one fetch in bytes; 1 MiB by default. */
  maxBytes?: number | undefined;
  /** How long a partition may be unreadable before `poll` reports it, in milliseconds; 60,000 by default. */
  apiTimeoutMs?: number | undefined;
}

/** A record that was read. A null key, value or header value differs from an empty one. */
export interface ConsumerRecord {
  topic: string;
  partition: number;
  offset: bigint;
  key: Uint8Array | null;
  value: Uint8Array | null;
  headers: [name: string, value: Uint8Array | null][];
  /** Milliseconds since the Unix epoch. */
  timestampMs: bigint;
}

export interface PollOptions extends CallOptions {
  /** Longest wait for a record, in milliseconds; 1,000 by default. */
  timeoutMs?: number | undefined;
  /** Most records to return; 500 by default. The rest is returned by the next poll. */
  maxRecords?: number | undefined;
}

interface Outcome {
  result?: FetchPartitionResult;
  leaderEpoch?: number;
  error?: unknown;
}

/** The position of a partition and the state of its fetch. */
interface Position {
  topic: string;
  partition: number;
  next: bigint;
  /** Start position to look up before the first fetch; undefined once the offset is known. */
  start: Place | undefined;
  /** Start position whose look-up returned `next`; undefined after the first answer. */
  lookedUp: Place | undefined;
  /** Leader epoch under which records were last read; undefined before the first. */
  epoch: number | undefined;
  /** Id of the topic that the position belongs to, from the look-up of the start or the first answer. */
  topicId: string | undefined;
  /** Whether a broker has known the partition since it was assigned. */
  isFound: boolean;
  fetching: Promise<void> | undefined;
  outcome: Outcome | undefined;
}

/**
 * Reads assigned partitions without a consumer group: only this object keeps the positions. Iterate over it or call
 * `poll`, not both at the same time.
 */
export class Consumer {
  private readonly positions = new Map<string, Position>();
  private readonly closing = new AbortController();
  private readonly config: { reset: ResetPolicy; maxWaitMs: number; maxBytes: number; apiTimeoutMs: number };
  /** Fetched records; polls have returned those before `head`. */
  private buffer: ConsumerRecord[] = [];
  private head = 0;
  private isWoken = false;
  private onWake = () => {};

  /** @internal */
  constructor(
    private readonly client: Client,
    config: ConsumerConfig,
    /** Whether a group assigns the partitions; they exist, because the leader of the group has seen them. */
    private readonly isGrouped = false,
  ) {
    const { reset = "earliest", maxWaitMs = 500, maxBytes = 1 << 20, apiTimeoutMs = 60_000 } = config;
    if (!(apiTimeoutMs > 0)) throw new RangeError(`apiTimeoutMs is above 0, not ${apiTimeoutMs}`);
    if (reset !== "error") requirePlace(reset);
    // Each partition adds a listener, and Node would warn of a memory leak at more than ten.
    setMaxListeners(0, this.closing.signal);
    this.config = { reset, maxWaitMs, maxBytes, apiTimeoutMs };
  }

  /**
   * Read a partition from an offset or a start position; an assigned partition moves there. With the leader epoch of the last
   * record that was read, the consumer detects a truncated log (see TruncatedError). If the partition does not exist, `poll`
   * throws.
   */
  assign(topic: string, partition: number, from: bigint | Place = "earliest", leaderEpoch?: number): void {
    const isOffset = typeof from === "bigint";
    if (!isOffset) requirePlace(from);
    else if (from < 0n) throw new RangeError(`an offset is 0n or more, not ${from}n`);
    this.unassign(topic, partition);
    this.positions.set(`${topic}/${partition}`, {
      topic,
      partition,
      next: isOffset ? from : 0n,
      start: isOffset ? undefined : from,
      lookedUp: undefined,
      epoch: isOffset ? leaderEpoch : undefined,
      topicId: undefined,
      isFound: this.isGrouped,
      fetching: undefined,
      outcome: undefined,
    });
  }

  /** Stop reading a partition. */
  unassign(topic: string, partition: number): void {
    this.positions.delete(`${topic}/${partition}`);
    this.buffer = this.buffer.slice(this.head).filter((record) => record.topic !== topic || record.partition !== partition);
    this.head = 0;
  }

  /** Read every partition of a topic. */
  async assignTopic(topic: string, from: Place = "earliest", options: CallOptions = {}): Promise<void> {
    const { partitions } = await this.client.admin.describeTopic(topic, options);
    for (const { partition } of partitions) this.assign(topic, partition, from);
  }

  /** Return the offset of the next record that a poll returns for a partition; undefined before it is known. */
  position(topic: string, partition: number): bigint | undefined {
    const waiting = this.buffer.find((record, at) => at >= this.head && record.topic === topic && record.partition === partition);
    const found = this.positions.get(`${topic}/${partition}`);
    return waiting?.offset ?? (found?.start === undefined ? found?.next : undefined);
  }

  /**
   * Wait for records and return them, or an empty array after the timeout.
   *
   * Throws a TruncatedError when records that were read are no longer in the log, UNKNOWN_TOPIC_OR_PARTITION when brokers
   * have not known an assigned partition for some seconds, REQUEST_TIMED_OUT when a partition could not be read for
   * `apiTimeoutMs`, OFFSET_OUT_OF_RANGE when the reset policy is "error", and any other error that is not retriable. The next
   * poll tries again.
   */
  async poll(options: PollOptions = {}): Promise<ConsumerRecord[]> {
    options.signal?.throwIfAborted();
    if (!this.hasRecords) await this.fill(Limit.in(options.timeoutMs ?? 1_000, options.signal));
    return this.take(options.maxRecords ?? 500);
  }

  /** Yield records until the signal fires, the consumer is closed or the caller stops. Throws as `poll` does. */
  async *records(options: { signal?: AbortSignal } = {}): AsyncGenerator<ConsumerRecord, void> {
    while (!this.closing.signal.aborted) {
      options.signal?.throwIfAborted();
      if (!this.hasRecords) await this.fill(Limit.in(60_000, options.signal));
      yield* this.take(1);
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<ConsumerRecord, void> {
    return this.records();
  }

  /** End the consumer. */
  close(): void {
    this.closing.abort(new Error("the consumer is closed"));
  }

  [Symbol.dispose](): void {
    this.close();
  }

  // Used by GroupConsumer

  /** @internal Whether `take` returns records. */
  get hasRecords(): boolean {
    return this.head < this.buffer.length;
  }

  /** @internal Return fetched records and move the positions after them. */
  take(maxRecords: number): ConsumerRecord[] {
    const records = this.buffer.slice(this.head, this.head + maxRecords);
    this.head += records.length;
    return records;
  }

  /** @internal Wait for records, or for `wake`. */
  async ready(limit: Limit): Promise<void> {
    if (this.hasRecords) return;
    if (this.positions.size > 0) return this.fill(limit);
    if (!this.isWoken) await limit.race(this.untilWoken());
    this.isWoken = false;
  }

  /** @internal End the wait of the current poll; if none waits, the next poll does not wait. */
  wake(): void {
    this.isWoken = true;
    this.onWake();
  }

  /** @internal Return the known positions after the records that polls have returned. */
  consumed(): { topic: string; partition: number; offset: bigint; leaderEpoch: number | undefined }[] {
    return [...this.positions.values()].flatMap(({ topic, partition, epoch: leaderEpoch }) => {
      const offset = this.position(topic, partition);
      return offset === undefined ? [] : [{ topic, partition, offset, leaderEpoch }];
    });
  }

  private untilWoken(): Promise<void> {
    return new Promise((resolve) => (this.onWake = resolve));
  }

  private async fill(limit: Limit): Promise<void> {
    this.buffer = [];
    this.head = 0;
    if (this.positions.size === 0) throw new Error("the consumer has no partitions: call assign first");
    for (;;) {
      this.closing.signal.throwIfAborted();
      for (const position of this.positions.values()) {
        if (position.outcome === undefined) position.fetching ??= this.fetch(position);
      }
      if (limit.leftMs === 0) await turn(); // Otherwise a loop of polls without a wait would block the event loop.
      this.collect();
      if (this.buffer.length > 0 || limit.leftMs === 0 || this.isWoken) {
        this.isWoken = false;
        return;
      }
      const running = [...this.positions.values()].filter((position) => position.outcome === undefined);
      if (running.length === this.positions.size) {
        await limit.race(Promise.race([this.untilWoken(), ...running.map((position) => position.fetching)]));
      }
    }
  }

  /** Move the records of finished fetches to the buffer. After a failed fetch throw its error; the next poll continues. */
  private collect(): void {
    const finished = [...this.positions.values()].filter((position) => position.outcome !== undefined);
    // Failures come first: otherwise partitions that always have records would delay them forever.
    for (const position of finished.filter(({ outcome }) => outcome?.result === undefined)) {
      const error = position.outcome?.error;
      position.outcome = undefined;
      if (error !== undefined) throw error;
    }
    for (const position of finished.filter(({ outcome }) => outcome !== undefined)) this.accept(position);
  }

  /** Buffer the records of an answer and move the position after them. */
  private accept(position: Position): void {
    const { result, leaderEpoch } = position.outcome!;
    position.outcome = undefined;
    const { topic, partition, next } = position;
    const diverging = result?.divergingEpoch;
    if (diverging !== undefined) {
      position.epoch = diverging.epoch;
      if (diverging.endOffset < next) {
        position.next = diverging.endOffset;
        position.outcome = { error: new TruncatedError(topic, partition, next, diverging.endOffset) };
      }
      return;
    }
    for (const record of result?.data.case === "records" ? result.data.value.records : []) {
      if (record.offset < position.next) continue;
      position.next = record.offset + 1n;
      position.epoch = leaderEpoch;
      this.buffer.push({
        topic,
        partition,
        offset: record.offset,
        key: record.key ?? null,
        value: record.value ?? null,
        headers: record.headers.map((header) => [header.key, header.value ?? null]),
        timestampMs: record.timestampMs ?? 0n,
      });
    }
  }

  /** Fetch with retries until one answer or a final error, and keep this outcome until a poll collects it. */
  private async fetch(position: Position): Promise<void> {
    const { topic, partition } = position;
    const limit = Limit.in(this.config.apiTimeoutMs, this.closing.signal);
    const absence = new Absence();
    let isUnread = false;
    let last: PacelineError | undefined;
    const isRepeated = (error: PacelineError): boolean => {
      if (last === undefined || error.code !== "REQUEST_TIMED_OUT") last = error;
      const isDropped = this.positions.get(`${topic}/${partition}`) !== position;
      const isGivenUp = !position.isFound && absence.isMissing(error);
      isUnread = isRepeatable(error) && !isDropped && !isGivenUp;
      return isUnread;
    };
    try {
      position.outcome = await this.client.retry(limit, (within) => this.fetchOnce(position, within), isRepeated);
    } catch (error) {
      // A start that has just been looked up is looked up again: the topic was re-created, or records were deleted, meanwhile.
      const restart = position.lookedUp ?? this.config.reset;
      if (isUnread && error instanceof PacelineError) {
        const detail = `it could not be read for ${this.config.apiTimeoutMs} ms: ${last!.message}`;
        position.outcome = { error: new PacelineError(`reading ${topic}/${partition}`, "REQUEST_TIMED_OUT", detail, { cause: last }) };
      } else if (error instanceof PacelineError && error.code === "OFFSET_OUT_OF_RANGE" && restart !== "error") {
        // Reset now, not at the next poll: until then a group could commit the old offset for a re-created topic.
        position.start = restart;
        position.lookedUp = undefined;
        position.epoch = undefined;
        position.topicId = undefined;
        position.outcome = {};
      } else {
        position.outcome = { error };
      }
    } finally {
      position.fetching = undefined;
    }
  }

  /** Look up the offset of a place, and the id of the topic in the metadata. */
  private async lookUp(position: Position, place: Place, limit: Limit): Promise<{ offset: bigint | undefined; topicId: string }> {
    let topicId = "";
    const onFound = (id: string) => {
      position.isFound = true;
      topicId = id;
    };
    const offset = await this.client.admin.listOffsetOnce(position.topic, position.partition, place, limit, onFound);
    return { offset, topicId };
  }

  private async fetchOnce(position: Position, limit: Limit): Promise<Outcome> {
    const { topic, partition, start } = position;
    if (start !== undefined) {
      // If no record is as late as the time, reading begins at the end. Look up the end first: with the opposite order, a
      // record written between the two calls would be skipped.
      const end = typeof start === "object" ? await this.lookUp(position, "latest", limit) : undefined;
      const found = await this.lookUp(position, start, limit);
      const { offset, topicId } = found.offset === undefined && end !== undefined ? end : found;
      Object.assign(position, { next: offset!, topicId, start: undefined, lookedUp: start });
    }
    const operation = `reading ${topic}/${partition} from offset ${position.next}`;
    return this.client.onLeader(topic, partition, limit, async (connection, leader, topicId) => {
      position.isFound = true;
      const answer = await connection.unary(
        operation,
        LogService.method.fetch,
        {
          maxWaitMs: this.config.maxWaitMs,
          minBytes: 1,
          maxBytes: this.config.maxBytes,
          format: FetchFormat.RECORDS,
          partitions: [
            {
              topic,
              partition,
              topicId,
              fetchOffset: position.next,
              maxBytes: this.config.maxBytes,
              currentLeaderEpoch: leader.epoch,
              ...(position.epoch === undefined ? {} : { lastFetchedEpoch: position.epoch }),
            },
          ],
        },
        limit,
      );
      const [result] = answer.partitions;
      if (result === undefined) throw new PacelineError(operation, "UNKNOWN_SERVER_ERROR", "the answer has no partition");
      throwPartitionError(operation, result.error);
      // Compare the ids only after an answer, which confirms `topicId`: the metadata may still describe a deleted topic.
      position.topicId ??= topicId;
      if (position.topicId !== topicId) {
        const detail = "the topic was deleted and created again: the position belongs to the deleted topic";
        throw new PacelineError(operation, "OFFSET_OUT_OF_RANGE", detail);
      }
      position.lookedUp = undefined;
      return { result, leaderEpoch: leader.epoch };
    });
  }
}
