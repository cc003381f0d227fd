import { CommitFailedError, PacelineError, throwGroupError } from "../errors.js";
import { GroupService } from "../gen/paceline/v1/group_service_pb.js";
import { Limit } from "../limit.js";
import type { TopicPartition } from "./assignors.js";
import type { GroupCoordinator } from "./coordinator.js";

/** A position to commit. */
export interface OffsetToCommit extends TopicPartition {
  /** The next offset to read: the offset of the last record read, plus 1. */
  offset: bigint;
  /** Leader epoch under which the last record was read; missing when it is not known. */
  leaderEpoch?: number | undefined;
  /** Free text that is stored with the offset. */
  metadata?: string | undefined;
}

/** A committed position; `offset` is undefined if the group has committed none. */
export interface CommittedOffset extends TopicPartition {
  offset: bigint | undefined;
  leaderEpoch: number | undefined;
  metadata: string;
}

/** Member id and generation for a commit. */
export interface Identity {
  memberId: string;
  generation: number;
}

/** Commits offsets, one commit at a time, and fetches committed offsets. */
export class GroupOffsets {
  private newest: Promise<void> = Promise.resolve();
  private running = 0;

  constructor(
    private readonly groupId: string,
    private readonly groupInstanceId: string,
    private readonly coordinator: GroupCoordinator,
    /** Called with the error of a member's commit, because a heartbeat would get the same error. */
    private readonly onRefused: (generation: number, error: PacelineError) => void,
  ) {}

  /** Whether a commit is under way. */
  get isBusy(): boolean {
    return this.running > 0;
  }

  /**
   * Commit after all earlier commits; without an identity the caller is not a member. Throw a CommitFailedError when the
   * group has removed the member.
   */
  async commit(offsets: readonly OffsetToCommit[], identity: Identity | undefined, limit: Limit): Promise<void> {
    if (identity !== undefined && identity.generation < 0) {
      throw this.commitFailed("this member is in no generation");
    }
    const before = this.newest;
    this.running++;
    const mine = (async () => {
      try {
        const operation = `committing offsets of group ${this.groupId}`;
        if ((await limit.race(before.then(() => true))) === undefined) {
          throw new PacelineError(operation, "REQUEST_TIMED_OUT", "an earlier commit has not ended", { hasAnswer: false, definite: true });
        }
        await this.send(operation, offsets, identity, limit);
      } finally {
        this.running--;
      }
    })();
    // Drop the value: the results of allSettled would keep every earlier commit in memory.
    this.newest = Promise.allSettled([before, mine]).then(() => undefined);
    await mine;
  }

  /** Wait until every earlier commit has succeeded or failed, or the limit ends. */
  async awaitEarlier(limit: Limit): Promise<void> {
    await limit.race(this.newest);
  }

  private commitFailed(reason: string, cause?: unknown): CommitFailedError {
    const advice = "the group has rebalanced without this member; poll more often, take fewer records per poll or raise maxPollIntervalMs";
    return new CommitFailedError(`committing offsets of group ${this.groupId}`, "ILLEGAL_GENERATION", `${advice} (${reason})`, { cause });
  }

  private async send(operation: string, offsets: readonly OffsetToCommit[], identity: Identity | undefined, limit: Limit): Promise<void> {
    const request = {
      groupId: this.groupId,
      groupInstanceId: this.groupInstanceId,
      ...(identity === undefined ? {} : { memberId: identity.memberId, generationId: identity.generation }),
      offsets: offsets.map(({ topic, partition, offset, leaderEpoch, metadata = "" }) => ({
        topic,
        partition,
        offset,
        metadata,
        ...(leaderEpoch === undefined ? {} : { leaderEpoch }),
      })),
    };
    let isUnknown = false;
    try {
      await this.coordinator.call(limit, async (connection, within) => {
        try {
          const answer = await connection.unary(operation, GroupService.method.commitOffsets, request, within);
          for (const { topic, partition, error } of answer.partitions) throwGroupError(`${operation}: ${topic}/${partition}`, error);
        } catch (error) {
          if (!(error instanceof PacelineError && error.definite)) isUnknown = true;
          throw error;
        }
      });
    } catch (error) {
      if (!(error instanceof PacelineError)) throw error;
      if (identity !== undefined) this.onRefused(identity.generation, error);
      const isLost = error.code === "UNKNOWN_MEMBER_ID" || error.code === "ILLEGAL_GENERATION";
      // The last error alone does not decide: an earlier attempt may have been applied.
      throw (isLost ? this.commitFailed(error.message, error) : error).with({ definite: !isUnknown });
    }
  }

  /** Return the committed offsets of partitions, in the order of the partitions. */
  async fetch(partitions: readonly TopicPartition[], limit: Limit): Promise<CommittedOffset[]> {
    if (partitions.length === 0) return [];
    const request = { groupId: this.groupId, partitions: byTopic(partitions) };
    const operation = `fetching the committed offsets of group ${this.groupId}`;
    const answer = await this.coordinator.call(limit, (connection, within) =>
      connection.unary(operation, GroupService.method.fetchOffsets, request, within),
    );
    return partitions.map(({ topic, partition }) => {
      const found = answer.partitions.find((one) => one.topic === topic && one.partition === partition);
      return { topic, partition, offset: found?.offset, leaderEpoch: found?.leaderEpoch, metadata: found?.metadata ?? "" };
    });
  }
}

/** Group partitions by topic, as in a message. */
export function byTopic(partitions: readonly TopicPartition[]): { topic: string; partitions: number[] }[] {
  const topics = new Map<string, number[]>();
  for (const { topic, partition } of partitions) topics.set(topic, [...(topics.get(topic) ?? []), partition]);
  return [...topics].map(([topic, numbers]) => ({ topic, partitions: numbers }));
}
