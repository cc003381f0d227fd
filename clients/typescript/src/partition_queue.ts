import { isRepeatable, SHORTEST_ATTEMPT_MS, type Client } from "./client.js";
import { Absence, type Leader } from "./cluster.js";
import type { Connection } from "./connection.js";
import { PacelineError, throwPartitionError } from "./errors.js";
import { Acks, LogService } from "./gen/paceline/v1/log_service_pb.js";
import type { RecordSchema } from "./gen/paceline/v1/record_pb.js";
import { Limit } from "./limit.js";
import type { MessageInitShape } from "@bufbuild/protobuf";

const SEQUENCE_NUMBERS = 2 ** 31;

/** Whether a broker has surely refused a batch because of its size. */
function isTooLarge(error: unknown): boolean {
  if (!(error instanceof PacelineError && error.definite)) return false;
  return error.code === "MESSAGE_TOO_LARGE" || error.code === "RECORD_LIST_TOO_LARGE";
}

/** Return the error of records that were not sent because their producer or client was closed. */
export function unsent(operation: string, reason: unknown): PacelineError {
  const detail = reason instanceof Error ? reason.message : String(reason);
  const facts = { retriable: false, refresh: false, definite: true, hasAnswer: false, cause: reason };
  return new PacelineError(operation, "REQUEST_TIMED_OUT", detail, facts);
}

/** Whether a record has waited so long that an attempt would hardly be answered in its delivery time. */
function isExpired({ sentAt, deadline }: Item): boolean {
  return deadline - performance.now() <= Math.min(SHORTEST_ATTEMPT_MS, (deadline - sentAt) / 2);
}

/** A record that waits for its outcome. */
export interface Item {
  record: MessageInitShape<typeof RecordSchema>;
  sizeBytes: number;
  /** Time of the call of `send`, by performance.now(). */
  sentAt: number;
  /** End of its delivery time, by performance.now(). */
  deadline: number;
  deliver(partition: number, offset: bigint): void;
  fail(error: unknown): void;
}

export interface QueueConfig {
  lingerMs: number;
  batchBytes: number;
}

/**
 * Sends the records of one partition, one batch at a time. It has a producer id of its own, so that an unknown outcome in
 * one partition disturbs no other.
 */
export class PartitionQueue {
  private items: Item[] = [];
  private sizeBytes = 0;
  private batchBytes: number;
  private isRunning = false;
  private onFull: (() => void) | undefined;
  private producer: { id: bigint; epoch: number; nextSequence: number } | undefined;
  private topicId: string | undefined;
  /** End of the time for which metadata with another topic id may be outdated, for a batch of unknown outcome. */
  private doubtUntil: number | undefined;
  private lastFailure: PacelineError | undefined;
  private readonly absence = new Absence();

  constructor(
    private readonly client: Client,
    private readonly topic: string,
    private readonly partition: number,
    private readonly config: QueueConfig,
    private readonly closing: AbortSignal,
    private readonly onTake: () => void,
    private readonly isFlushing: () => boolean,
  ) {
    this.batchBytes = config.batchBytes;
  }

  put(item: Item): void {
    this.items.push(item);
    this.sizeBytes += item.sizeBytes;
    if (this.sizeBytes >= this.batchBytes) this.onFull?.();
    if (!this.isRunning) {
      this.isRunning = true;
      void this.run();
    }
  }

  /** Send at once the records that linger. */
  flush(): void {
    this.onFull?.();
  }

  private async run(): Promise<void> {
    await this.linger();
    while (this.items.length > 0) {
      const batch = this.take();
      this.onTake();
      if (batch.length === 0) continue;
      try {
        const base = await this.deliver(batch);
        this.lastFailure = undefined;
        batch.forEach((item, index) => item.deliver(this.partition, base + BigInt(index)));
      } catch (error) {
        if (batch.length > 1 && isTooLarge(error)) {
          this.putBack(batch);
        } else {
          if (error instanceof PacelineError) this.lastFailure = error.with({ definite: true });
          for (const item of batch) item.fail(error);
        }
      }
      if (this.sizeBytes < this.batchBytes && this.items.length > 0) await this.linger();
    }
    this.isRunning = false;
  }

  /** Let further records join the batch: for the linger time, and at least until the caller's present turn is over. */
  private async linger(): Promise<void> {
    if (this.config.lingerMs === 0 || this.isFlushing()) return new Promise((resolve) => setImmediate(resolve));
    if (this.sizeBytes >= this.batchBytes) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, this.config.lingerMs);
      this.onFull = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.onFull = undefined;
  }

  /**
   * Take the next batch. Records whose delivery time leaves no time for an attempt fail with the reason that kept the queue
   * waiting; all of them fail when the producer ends.
   */
  private take(): Item[] {
    while (this.items[0] !== undefined && (this.closing.aborted || isExpired(this.items[0]))) {
      const item = this.items.shift()!;
      this.sizeBytes -= item.sizeBytes;
      item.fail(this.closing.aborted ? unsent(this.operation, this.closing.reason) : (this.lastFailure ?? this.expired()));
    }
    let count = 0;
    let sizeBytes = 0;
    for (const item of this.items) {
      if (count > 0 && sizeBytes + item.sizeBytes > this.batchBytes) break;
      sizeBytes += item.sizeBytes;
      count++;
    }
    this.sizeBytes -= sizeBytes;
    return this.items.splice(0, count);
  }

  /** Send a batch that is too large for its topic in smaller parts, and no larger batch from now on. */
  private putBack(batch: Item[]): void {
    const sizeBytes = batch.reduce((sum, item) => sum + item.sizeBytes, 0);
    this.batchBytes = Math.floor(sizeBytes / 2);
    this.sizeBytes += sizeBytes;
    this.items = [...batch, ...this.items];
  }

  private get operation(): string {
    return `producing to ${this.topic}/${this.partition}`;
  }

  private expired(): PacelineError {
    const facts = { definite: true, hasAnswer: false };
    return new PacelineError(this.operation, "REQUEST_TIMED_OUT", "the delivery time ended before the record was sent", facts);
  }

  /**
   * Append one batch and return its first offset. The same records are repeated with the same sequence numbers until the
   * delivery time of the oldest record ends, or until the topic or partition counts as missing; the broker recognises a
   * batch that it has already appended.
   */
  private async deliver(batch: Item[]): Promise<bigint> {
    const records = batch.map((item) => item.record);
    const limit = Limit.in(batch[0]!.deadline - performance.now(), this.closing);
    let isUnknown = false;
    this.doubtUntil = undefined;
    const attempt = (within: Limit) =>
      this.client.onLeader(this.topic, this.partition, within, async (connection, leader, topicId) => {
        this.absence.end();
        await this.identify(connection, within, topicId, isUnknown);
        try {
          return await this.append(connection, within, leader, topicId, records);
        } catch (error) {
          if (!(error instanceof PacelineError && error.definite)) isUnknown = true;
          throw error;
        }
      });
    const isRepeated = (error: PacelineError) => isRepeatable(error) && !this.absence.isMissing(error, batch[0]!.sentAt);
    try {
      const base = await this.client.retryOfProducer(this.operation, limit, attempt, isRepeated);
      this.producer!.nextSequence = (this.producer!.nextSequence + batch.length) % SEQUENCE_NUMBERS;
      return base;
    } catch (error) {
      const needsNewId =
        error instanceof PacelineError &&
        (error.code === "OUT_OF_ORDER_SEQUENCE_NUMBER" || error.code === "INVALID_PRODUCER_EPOCH");
      // After an unknown outcome the sequence numbers of the batch are used up or not: a new producer id starts over.
      if (isUnknown || needsNewId) this.producer = undefined;
      const failure = error instanceof PacelineError ? error : unsent(this.operation, error);
      throw failure.with({ definite: !isUnknown });
    }
  }

  /**
   * Take a producer id where there is none. A topic created again under the same name starts with a new id, unless the
   * outcome of an attempt is unknown.
   */
  private async identify(connection: Connection, limit: Limit, topicId: string, isUnknown: boolean): Promise<void> {
    if (this.topicId !== topicId) {
      if (isUnknown) {
        // The broker that described the topic may be behind. When others agree, the outcome can never be learned.
        this.doubtUntil ??= performance.now() + this.client.requestTimeoutMs;
        const isInDoubt = performance.now() < this.doubtUntil;
        const facts = { retriable: isInDoubt, refresh: isInDoubt, definite: false };
        throw new PacelineError(this.operation, "UNKNOWN_TOPIC_OR_PARTITION", "the topic was created again", facts);
      }
      this.topicId = topicId;
      this.producer = undefined;
    }
    this.doubtUntil = undefined;
    if (this.producer === undefined) {
      const answer = await connection.unary("asking for a producer id", LogService.method.initProducerId, {}, limit);
      this.producer = { id: answer.producerId, epoch: answer.producerEpoch, nextSequence: 0 };
    }
  }

  private async append(
    connection: Connection,
    limit: Limit,
    leader: Leader,
    topicId: string,
    records: Item["record"][],
  ): Promise<bigint> {
    const { operation } = this;
    const { id, epoch, nextSequence } = this.producer!;
    const answer = await connection.unary(
      operation,
      LogService.method.produce,
      {
        acks: Acks.ALL,
        timeoutMs: limit.serverWaitMs,
        partitions: [
          {
            topic: this.topic,
            partition: this.partition,
            topicId,
            currentLeaderEpoch: leader.epoch,
            data: {
              case: "records",
              value: { records, producerId: id, producerEpoch: epoch, baseSequence: nextSequence },
            },
          },
        ],
      },
      limit,
    );
    const [result] = answer.partitions;
    if (result === undefined) throw new PacelineError(operation, "UNKNOWN_SERVER_ERROR", "the answer has no partition");
    throwPartitionError(operation, result.error);
    return result.baseOffset;
  }
}
