import type { Client } from "../client.js";
import { Consumer, type ConsumerRecord, type PollOptions } from "../consumer.js";
import { PacelineError } from "../errors.js";
import { Limit, turn, type CallOptions } from "../limit.js";
import { bytewise, type TopicPartition } from "./assignors.js";
import { groupSettings, type GroupConfig, type GroupSettings, type RebalanceListener } from "./config.js";
import { GroupCoordinator } from "./coordinator.js";
import { Heartbeats } from "./heartbeats.js";
import { GroupMembership } from "./membership.js";
import { GroupOffsets, type CommittedOffset, type Identity, type OffsetToCommit } from "./offsets.js";

const TIMEOUT_MS = 60_000;
const COMMIT_TIMEOUT_MS = 5_000;
const FETCH_TIMEOUT_MS = 5_000;
const SHORTEST_FETCH_MS = 1_000;

/**
 * Reads topics as a member of a group: the members share the partitions, and the group keeps the offsets. Iterate over it,
 * or call `poll`; not both at the same time. Both take part in rebalances; a timer keeps the membership alive in between,
 * until `close` or until the program did not poll for `maxPollIntervalMs`.
 */
export class GroupConsumer {
  private readonly settings: GroupSettings;
  private readonly reader: Consumer;
  private readonly membership: GroupMembership;
  private readonly offsets: GroupOffsets;
  private readonly heartbeats: Heartbeats;
  private owned = new Map<string, TopicPartition>();
  /** Partitions that are not read yet because their committed offset is not known. */
  private awaitingOffset = new Map<string, TopicPartition>();
  private running: Promise<unknown> = Promise.resolve();
  private isRunning = false;
  private isClosing = false;
  private isClosed = false;
  private nextCommit: number;

  /** @internal */
  constructor(
    private readonly client: Client,
    private readonly config: GroupConfig,
  ) {
    this.settings = groupSettings(config);
    this.reader = new Consumer(client, config, true);
    const { groupId, groupInstanceId } = this.settings;
    const coordinator = new GroupCoordinator(client, groupId);
    const host = {
      assignment: () => this.assignment(),
      take: (partitions: TopicPartition[]) => this.take(partitions),
      commitBeforeRevocation: (timeoutMs: number) => this.commitBeforeRevocation(timeoutMs),
      wake: () => this.reader.wake(),
    };
    this.membership = new GroupMembership(client, this.settings, coordinator, host, () => this.heartbeats.start());
    this.heartbeats = new Heartbeats(client, this.settings, coordinator, this.membership);
    this.offsets = new GroupOffsets(groupId, groupInstanceId, coordinator, (generation, error) => {
      this.membership.refused(generation, error);
    });
    this.nextCommit = performance.now() + this.settings.autoCommitIntervalMs;
  }

  /**
   * Share the partitions of topics with the other members of the group. The next polls join the group, call the
   * listener when partitions are assigned or revoked, and throw an error for a topic that brokers have not known for some
   * seconds. A topic that is deleted later is read again when it is re-created.
   */
  subscribe(topics: string | readonly string[], listener: RebalanceListener = {}): void {
    this.requireOpen();
    const names = typeof topics === "string" ? [topics] : topics;
    if (names.length === 0) throw new TypeError("subscribe names no topic");
    this.membership.subscribe(names, listener);
    this.reader.wake();
  }

  /**
   * Return records, or an empty list after the timeout. Joins the group and takes part in its rebalances, and commits when an
   * automatic commit is due.
   *
   * Throws a FencedInstanceIdError when another process has taken over the group instance id, a TruncatedError when records
   * that were read are not in the log any more, UNKNOWN_TOPIC_OR_PARTITION when a topic of a new subscription does not exist,
   * REQUEST_TIMED_OUT when a partition could not be read for `apiTimeoutMs`, OFFSET_OUT_OF_RANGE without a position when the
   * reset policy is "error", and any error that is not retriable. The next poll tries again.
   */
  async poll(options: PollOptions = {}): Promise<ConsumerRecord[]> {
    const limit = Limit.in(options.timeoutMs ?? 1_000, options.signal);
    await this.alone(() => this.ready(limit));
    return this.isClosing ? [] : this.reader.take(options.maxRecords ?? 500);
  }

  /** Yield records until the signal fires, the consumer is closed or the caller stops. Throws as `poll` does. */
  async *records(options: { signal?: AbortSignal } = {}): AsyncGenerator<ConsumerRecord, void> {
    while (!this.isClosing) {
      await this.alone(() => this.ready(Limit.in(60_000, options.signal)));
      if (this.isClosing) return;
      yield* this.reader.take(1);
    }
  }

  [Symbol.asyncIterator](): AsyncGenerator<ConsumerRecord, void> {
    return this.records();
  }

  /** Run a poll; only one may run at a time. */
  private async alone(poll: () => Promise<void>): Promise<void> {
    if (this.isClosing) throw new Error("the consumer is closed");
    if (this.membership.topics.size === 0) throw new Error("the consumer has no topics: call subscribe first");
    if (this.isRunning) throw new Error("the consumer is polled already: await one poll before the next");
    this.isRunning = true;
    const running = poll();
    this.running = running.catch(() => undefined);
    try {
      await running;
    } finally {
      this.isRunning = false;
    }
  }

  /** Take part in the group until there are records, or the limit ends. */
  private async ready(limit: Limit): Promise<void> {
    limit.signal?.throwIfAborted();
    while (!this.isClosing) {
      if (await this.membership.poll(limit)) {
        await this.beginAtCommitted(limit);
        this.commitWhenDue();
        // Wait in short steps, so that commits are on time and a long poll does not count as time without a poll.
        await this.reader.ready(limit.within(Math.min(1_000, this.settings.maxPollIntervalMs / 2)));
        if (this.reader.hasRecords && !this.membership.needsPoll) return;
      }
      if (limit.leftMs === 0) return turn(); // Let other tasks run: a program may poll in a loop without waiting.
    }
  }

  /** Start to read partitions whose committed offset can be fetched; the other partitions wait for a later poll. */
  private async beginAtCommitted(limit: Limit): Promise<void> {
    if (this.awaitingOffset.size === 0) return;
    const timeoutMs = Math.min(Math.max(limit.leftMs, SHORTEST_FETCH_MS), FETCH_TIMEOUT_MS);
    let found: CommittedOffset[];
    try {
      found = await this.offsets.fetch([...this.awaitingOffset.values()], Limit.in(timeoutMs, limit.signal));
    } catch (error) {
      // The client has already reported the failed attempts.
      if (error instanceof PacelineError && error.retriable) return;
      throw error;
    }
    const { reset = "earliest" } = this.config;
    for (const { topic, partition, offset, leaderEpoch } of found) {
      if (!this.awaitingOffset.has(`${topic}/${partition}`)) continue;
      if (offset === undefined && reset === "error") {
        const detail = `group ${this.settings.groupId} has committed no offset, and the reset policy is "error"`;
        throw new PacelineError(`reading ${topic}/${partition}`, "OFFSET_OUT_OF_RANGE", detail);
      }
      this.awaitingOffset.delete(`${topic}/${partition}`);
      this.reader.assign(topic, partition, offset ?? (reset === "latest" ? "latest" : "earliest"), leaderEpoch);
    }
  }

  private commitWhenDue(): void {
    if (!this.settings.autoCommit || performance.now() < this.nextCommit || this.offsets.isBusy) return;
    this.nextCommit = performance.now() + this.settings.autoCommitIntervalMs;
    void this.commitQuietly(COMMIT_TIMEOUT_MS);
  }

  private async commitBeforeRevocation(timeoutMs: number): Promise<void> {
    const limit = Limit.in(timeoutMs);
    await this.offsets.awaitEarlier(limit);
    if (this.settings.autoCommit && this.generation >= 0) await this.commitQuietly(limit.leftMs);
  }

  /** Commit automatically. A failure is only reported, because the next commit includes these positions. */
  private async commitQuietly(timeoutMs: number): Promise<void> {
    const consumed = this.reader.consumed();
    if (consumed.length === 0) return;
    try {
      await this.offsets.commit(consumed, this.identity(), Limit.in(timeoutMs));
    } catch (error) {
      // No caller waits for the promise: its rejection, for example because the client was closed first, would end the process.
      const failure =
        error instanceof PacelineError
          ? error
          : new PacelineError(`committing offsets of group ${this.settings.groupId}`, "BROKER_NOT_AVAILABLE", String(error), { cause: error });
      this.client.onRetry(failure, failure.retriable ? 0 : timeoutMs);
    }
  }

  /** Member and generation; undefined without a subscription, because commits then belong to no member. */
  private identity(): Identity | undefined {
    return this.membership.topics.size === 0 ? undefined : this.membership.identity;
  }

  // Offsets

  /**
   * Commit the positions after all records that `poll` has returned or the loop has yielded, or these offsets, and wait.
   * Commits reach the group in the order of the calls.
   *
   * Throws a CommitFailedError when this member has lost its membership, REBALANCE_IN_PROGRESS while the group accepts
   * no offsets, and the last error after the timeout.
   */
  async commit(offsets: readonly OffsetToCommit[] = this.reader.consumed(), options: CallOptions = {}): Promise<void> {
    this.requireOpen();
    if (offsets.length > 0) await this.offsets.commit(offsets, this.identity(), Limit.of(options, TIMEOUT_MS));
  }

  /** Return the committed offsets of partitions, in the order of the partitions. */
  async committed(partitions: readonly TopicPartition[], options: CallOptions = {}): Promise<CommittedOffset[]> {
    this.requireOpen();
    return this.offsets.fetch(partitions, Limit.of(options, TIMEOUT_MS));
  }

  /** Return the partitions that this member owns now. */
  assignment(): TopicPartition[] {
    return [...this.owned.values()].sort((one, other) => bytewise(one.topic, other.topic) || one.partition - other.partition);
  }

  /** Return the offset of the next record of a partition; undefined while the offset is not known. */
  position(topic: string, partition: number): bigint | undefined {
    return this.reader.position(topic, partition);
  }

  /** Continue a partition that this member owns at another offset. */
  seek(topic: string, partition: number, offset: bigint): void {
    const key = `${topic}/${partition}`;
    if (!this.owned.has(key)) throw new Error(`${key} is not assigned to this member`);
    this.awaitingOffset.delete(key);
    this.reader.assign(topic, partition, offset);
  }

  /** Id of this member; empty while the member has no id. */
  get memberId(): string {
    return this.membership.identity.memberId;
  }

  /** Generation that this member belongs to; -1 without a generation. */
  get generation(): number {
    return this.membership.identity.generation;
  }

  private take(partitions: readonly TopicPartition[]): void {
    for (const { topic, partition } of this.owned.values()) this.reader.unassign(topic, partition);
    this.owned = new Map(partitions.map((one) => [`${one.topic}/${one.partition}`, one]));
    this.awaitingOffset = new Map(this.owned);
  }

  /**
   * Wait for a running poll to end, commit if commits are automatic, leave the group, and close the consumer. A static
   * member does not leave.
   */
  async close(options: CallOptions = {}): Promise<void> {
    if (this.isClosing) return;
    this.isClosing = true;
    const limit = Limit.of(options, TIMEOUT_MS);
    try {
      this.membership.stop();
      this.reader.wake();
      await limit.race(this.running.then(() => true));
      if (this.membership.topics.size > 0) await this.membership.leave(limit);
    } finally {
      this.isClosed = true;
      this.heartbeats.close();
      this.reader.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private requireOpen(): void {
    if (this.isClosed) throw new Error("the consumer is closed");
  }
}
