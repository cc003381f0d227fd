import { isRepeatable, type Client } from "./client.js";
import { joined } from "./cluster.js";
import type { Connection } from "./connection.js";
import { PacelineError, throwPartitionError, throwTopicError } from "./errors.js";
import { AdminService } from "./gen/paceline/v1/admin_service_pb.js";
import type { ClusterEvent } from "./gen/paceline/v1/cluster_event_pb.js";
import { LogService, OffsetSpec } from "./gen/paceline/v1/log_service_pb.js";
import { MetadataService, type DescribeClusterResponse, type EventBatch, type TopicDescription } from "./gen/paceline/v1/metadata_service_pb.js";
import { Limit, type CallOptions } from "./limit.js";

const TIMEOUT_MS = 30_000;
const WATCH_PATIENCE_MS = 120_000;
const UNKNOWN_TOPIC_PATIENCE_MS = 3_000;

/** A topic to create. */
export interface NewTopic {
  name: string;
  /** If absent, the cluster's default. */
  partitions?: number | undefined;
  replicationFactor?: number | undefined;
  /** For example `{ "min.insync.replicas": "2" }`. */
  configs?: Record<string, string> | undefined;
}

/** A place in a partition: an end of the log, or the first record at or after a time. */
export type Place = "earliest" | "latest" | { timestampMs: bigint | number };

/** Throw a TypeError for a value that is not a `Place`: a JavaScript caller can pass any value. */
export function requirePlace(place: Place): void {
  if (place === "earliest" || place === "latest") return;
  if (typeof place === "object" && place !== null && "timestampMs" in place) return;
  throw new TypeError(`${String(place)} is no place: give an offset as 42n, "earliest", "latest" or { timestampMs }`);
}

/** Administrative calls: topics, offsets, the cluster and its events. The default timeout of a call is 30 seconds. */
export class Admin {
  /** @internal Time without a message after which a stream is opened again; a server sends a message every ten seconds. */
  watchSilenceMs = 25_000;

  /** @internal */
  constructor(private readonly client: Client) {}

  /** Create a topic and return its id when every partition has a leader. */
  async createTopic(topic: NewTopic, options: CallOptions = {}): Promise<string> {
    const operation = `creating topic ${topic.name}`;
    const { name, partitions, replicationFactor, configs = {} } = topic;
    return this.onController(operation, options, async (connection, limit) => {
      const answer = await connection.unary(
        operation,
        AdminService.method.createTopics,
        {
          topics: [
            {
              name,
              configs,
              ...(partitions === undefined ? {} : { partitions }),
              ...(replicationFactor === undefined ? {} : { replicationFactor }),
            },
          ],
          timeoutMs: limit.serverWaitMs,
        },
        limit,
      );
      const result = only(operation, answer.topics);
      throwTopicError(operation, result.error);
      return result.topicId;
    });
  }

  /** Delete a topic and return when its deletion is complete. */
  async deleteTopic(name: string, options: CallOptions = {}): Promise<void> {
    const operation = `deleting topic ${name}`;
    await this.onController(operation, options, async (connection, limit) => {
      const request = { topics: [name], timeoutMs: limit.serverWaitMs };
      const answer = await connection.unary(operation, AdminService.method.deleteTopics, request, limit);
      throwTopicError(operation, only(operation, answer.topics).error);
    });
  }

  /** Return partitions, leaders, replicas and in-sync replicas of a topic. */
  async describeTopic(name: string, options: CallOptions = {}): Promise<TopicDescription> {
    const givenUp = performance.now() + UNKNOWN_TOPIC_PATIENCE_MS;
    return this.client.retry(
      Limit.of(options, TIMEOUT_MS),
      (limit) => this.client.cluster.describeTopic(name, limit),
      // A new topic reaches the brokers within this time; after that, the error means that the topic does not exist.
      (error) => isRepeatable(error) && (error.code !== "UNKNOWN_TOPIC_OR_PARTITION" || performance.now() < givenUp),
    );
  }

  /** Return the brokers and the active controller. */
  async describeCluster(options: CallOptions = {}): Promise<DescribeClusterResponse> {
    return this.client.retry(Limit.of(options, TIMEOUT_MS), (limit) => this.client.cluster.describe(limit));
  }

  /** Return an offset; undefined when all records are older than the requested time. */
  async listOffset(topic: string, partition: number, place: Place, options: CallOptions = {}): Promise<bigint | undefined> {
    requirePlace(place);
    return this.client.retry(Limit.of(options, TIMEOUT_MS), (limit) => this.listOffsetOnce(topic, partition, place, limit));
  }

  /** @internal Make one attempt of `listOffset`; call `onFound` with the topic id when the leader of the partition is known. */
  async listOffsetOnce(
    topic: string,
    partition: number,
    place: Place,
    limit: Limit,
    onFound = (_topicId: string) => {},
  ): Promise<bigint | undefined> {
    const operation = `listing an offset of ${topic}/${partition}`;
    const wanted =
      typeof place === "object"
        ? { spec: OffsetSpec.TIMESTAMP, timestampMs: BigInt(place.timestampMs) }
        : { spec: place === "earliest" ? OffsetSpec.EARLIEST : OffsetSpec.LATEST };
    return this.client.onLeader(topic, partition, limit, async (connection, leader, topicId) => {
      onFound(topicId);
      const request = { partitions: [{ topic, partition, currentLeaderEpoch: leader.epoch, ...wanted }] };
      const answer = await connection.unary(operation, LogService.method.listOffsets, request, limit);
      const result = only(operation, answer.partitions);
      throwPartitionError(operation, result.error);
      return result.offset;
    });
  }

  /** Yield every event of the active controller, as `watchEventBatches` does, but without reports of missing events. */
  async *watchEvents(options: { signal?: AbortSignal } = {}): AsyncGenerator<ClusterEvent, void> {
    for await (const { events } of this.watchEventBatches(options)) yield* events;
  }

  /**
   * Yield the events of the active controller from now on, until the signal fires or the caller stops. A stream that breaks or
   * is silent for 25 seconds, or whose controller resigns, is opened again, after the last event, at the controller that is
   * active by then; after two minutes without a stream the last failure is thrown.
   *
   * If a batch has a gap, events before the batch are missing: this watcher was too slow, or another controller continues
   * with the events that it has seen since the last event.
   */
  async *watchEventBatches(options: { signal?: AbortSignal } = {}): AsyncGenerator<EventBatch, void> {
    const operation = "watching events";
    let cursor = "";
    /** Time of the last event; another controller does not know the cursor and continues from this time. */
    let sinceMs = BigInt(Date.now());
    for (;;) {
      const limit = Limit.in(WATCH_PATIENCE_MS, options.signal);
      const { stream, first } = await this.client.retry(limit, async (within) => {
        const connection = await this.controller(operation, within);
        const request = { cursor, activeControllerOnly: true, ...(cursor === "" ? {} : { sinceMs }) };
        const { watchEvents: method } = MetadataService.method;
        const stream = connection.serverStream(operation, method, request, this.watchSilenceMs, options.signal);
        return { stream, first: await stream.next() };
      });
      try {
        for (let next = first; next.done !== true; next = await stream.next()) {
          const { batch } = next.value;
          if (batch === undefined) continue;
          cursor = batch.cursor;
          for (const { timeMs } of batch.events) if (timeMs > sinceMs) sinceMs = timeMs;
          if (batch.events.length > 0 || batch.gap !== undefined) yield batch;
        }
      } catch (error) {
        if (!(error instanceof PacelineError)) throw error;
      } finally {
        await stream.return();
      }
      await Limit.in(100, options.signal).sleep(100);
    }
  }

  private async controller(operation: string, limit: Limit): Promise<Connection> {
    const { controllerHost, controllerPort } = await this.client.cluster.describe(limit);
    if (controllerHost === "") throw new PacelineError(operation, "NOT_CONTROLLER", "no controller is active");
    return this.client.cluster.connection(joined(controllerHost, controllerPort));
  }

  /** Make a change at the active controller; retry it only if the change was certainly not made. */
  private async onController<T>(
    operation: string,
    options: CallOptions,
    call: (connection: Connection, limit: Limit) => Promise<T>,
  ): Promise<T> {
    let hint: string | undefined;
    const whole = Limit.of(options, TIMEOUT_MS);
    return this.client.retry(
      whole,
      async (limit) => {
        let connection: Connection;
        if (hint === undefined) {
          try {
            connection = await this.controller(operation, limit);
          } catch (error) {
            // The lookup of the controller makes no change.
            throw error instanceof PacelineError ? error.with({ definite: true }) : error;
          }
        } else {
          connection = this.client.cluster.connection(hint);
        }
        hint = undefined;
        try {
          return await call(connection, whole); // The controller may wait for brokers longer than the usual request timeout.
        } catch (error) {
          if (error instanceof PacelineError) hint = error.controller;
          throw error;
        }
      },
      (error) => error.retriable && error.definite,
    );
  }
}

function only<T>(operation: string, results: readonly T[]): T {
  const [result] = results;
  if (result === undefined || results.length !== 1) {
    throw new PacelineError(operation, "UNKNOWN_SERVER_ERROR", `one result was expected, ${results.length} were answered`);
  }
  return result;
}
