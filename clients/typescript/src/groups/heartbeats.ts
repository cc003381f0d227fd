import type { Client } from "../client.js";
import { PacelineError } from "../errors.js";
import { GroupService } from "../gen/paceline/v1/group_service_pb.js";
import { Limit } from "../limit.js";
import type { GroupSettings } from "./config.js";
import type { GroupCoordinator } from "./coordinator.js";
import type { GroupMembership } from "./membership.js";

const RETRY_MS = 200;
const SHORTEST_TIMEOUT_MS = 500;
const LONGEST_LOOKUP_MS = 2_000;
const LOOK_TIMEOUT_MS = 2_000;
/** Pause between two checks for a topic that does not exist yet. */
const MISSING_TOPIC_MS = 1_000;

/**
 * The background work of a member: sends heartbeats while it is in a generation, leaves the group when the program stops
 * polling, and, as the leader, checks whether topics have more partitions. Its timer does not keep the process alive.
 */
export class Heartbeats {
  private timer: NodeJS.Timeout | undefined;
  private isClosed = false;
  private lookedAt = performance.now();
  private failingSince: number | undefined;
  private readonly closing = new AbortController();

  constructor(
    private readonly client: Client,
    private readonly settings: GroupSettings,
    private readonly coordinator: GroupCoordinator,
    private readonly membership: GroupMembership,
  ) {}

  /** Send a heartbeat after a pause, and further ones for as long as the coordinator expects them. */
  start(pauseMs = this.settings.heartbeatIntervalMs): void {
    if (this.isClosed) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.run(), pauseMs).unref();
  }

  close(): void {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.closing.abort(new Error("the consumer is closed"));
  }

  private async run(): Promise<void> {
    const { generation } = this.membership.identity;
    let pauseMs = RETRY_MS;
    try {
      if (!this.membership.isBeating) return; // The next generation starts the timer again.
      pauseMs = await this.beat();
      await this.lookForPartitions();
    } catch (error) {
      this.note(error);
    }
    // A new generation has started its own timer.
    if (this.membership.identity.generation === generation) this.start(pauseMs);
  }

  /** Send one heartbeat and return the pause until the next. */
  private async beat(): Promise<number> {
    const { settings, membership } = this;
    const { groupId, groupInstanceId, heartbeatIntervalMs, maxPollIntervalMs, sessionTimeoutMs } = settings;
    const idleMs = performance.now() - membership.polledAt;
    if (idleMs > maxPollIntervalMs) {
      const detail = `no poll for ${Math.round(idleMs)} ms, so the member leaves; poll more often or raise maxPollIntervalMs`;
      this.client.onRetry(new PacelineError(`keeping the place in group ${groupId}`, "ILLEGAL_GENERATION", detail), idleMs);
      await membership.leaveUnpolled();
      return heartbeatIntervalMs;
    }
    const { memberId, generation } = membership.identity;
    const request = { groupId, groupInstanceId, memberId, generationId: generation };
    const timeoutMs = Math.max(SHORTEST_TIMEOUT_MS, Math.min(sessionTimeoutMs / 3, 2 * heartbeatIntervalMs));
    try {
      // Find the coordinator first: after it has moved, the look-up may take longer than a heartbeat may.
      await this.coordinator.connection(Limit.in(Math.max(LONGEST_LOOKUP_MS, timeoutMs), this.closing.signal));
      await this.coordinator.callOnce(Limit.in(timeoutMs, this.closing.signal), (connection, within) =>
        connection.unary(`sending a heartbeat to group ${groupId}`, GroupService.method.heartbeat, request, within),
      );
      this.failingSince = undefined;
    } catch (error) {
      if (!(error instanceof PacelineError)) throw error;
      if (!membership.refused(generation, error)) {
        this.note(error);
        return RETRY_MS;
      }
    }
    return heartbeatIntervalMs;
  }

  private note(error: unknown): void {
    if (this.isClosed || !(error instanceof PacelineError)) return;
    this.failingSince ??= performance.now();
    this.client.onRetry(error, performance.now() - this.failingSince);
  }

  /** As the leader, start a rebalance when the partition count of a topic differs from the assigned count. */
  private async lookForPartitions(): Promise<void> {
    const { assignedCounts, identity } = this.membership;
    const isMissing = [...assignedCounts.values()].includes(0);
    const pauseMs = isMissing ? MISSING_TOPIC_MS : this.settings.metadataMaxAgeMs;
    if (assignedCounts.size === 0 || performance.now() - this.lookedAt < pauseMs) return;
    this.lookedAt = performance.now();
    const limit = Limit.in(LOOK_TIMEOUT_MS, this.closing.signal);
    const present = await this.client.cluster.partitionCounts(assignedCounts.keys(), limit);
    // A topic that is not found keeps its count: the broker that answered may not know the topic yet.
    if ([...assignedCounts].some(([topic, count]) => (present.get(topic) ?? count) !== count)) {
      this.membership.rejoin(identity.generation);
    }
  }
}
