import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "../client.js";
import { FencedInstanceIdError, PacelineError } from "../errors.js";
import { GroupService, type JoinGroupResponse, type SyncGroupResponse } from "../gen/paceline/v1/group_service_pb.js";
import { NEW_TOPIC_MS } from "../cluster.js";
import { Limit } from "../limit.js";
import type { TopicPartition } from "./assignors.js";
import { bytewise } from "./assignors.js";
import type { GroupSettings, RebalanceListener } from "./config.js";
import type { GroupCoordinator } from "./coordinator.js";
import { byTopic, type Identity } from "./offsets.js";

const JOIN_GRACE_MS = 30_000;
const SYNC_TIMEOUT_MS = 60_000;
const LEAVE_TIMEOUT_MS = 5_000;
const LOOKUP_TIMEOUT_MS = 5_000;
/** Minimum time for finding the coordinator, so that polls with a short timeout can find it too. */
const SHORTEST_LOOKUP_MS = 1_000;
const PAUSE_MS = 100;

/** The part of the consumer that its membership uses. */
export interface GroupHost {
  assignment(): TopicPartition[];
  /** Assign exactly these partitions to the consumer. */
  take(partitions: TopicPartition[]): void;
  /** Commit before partitions are given up, if commits are automatic. It does not throw. */
  commitBeforeRevocation(timeoutMs: number): Promise<void>;
  /** End the wait of a poll. */
  wake(): void;
}

/** A call that outlasts a poll; a later poll processes its outcome. */
class Pending<T> {
  outcome: { answer: T } | { error: unknown } | undefined;
  readonly done: Promise<true>;

  constructor(call: Promise<T>) {
    this.done = call.then(
      (answer) => ((this.outcome = { answer }), true),
      (error: unknown) => ((this.outcome = { error }), true),
    );
  }
}

/**
 * The membership of a consumer in its group. A poll joins, assigns partitions if this member is the leader, and calls the
 * listener; heartbeats keep the session alive between polls. A JoinGroup or SyncGroup in flight outlasts the poll that sent
 * it, and the next poll processes the answer.
 */
export class GroupMembership {
  topics: ReadonlySet<string> = new Set();
  listener: RebalanceListener = {};
  /** The partition counts of the last assignment that this member made as the leader. */
  assignedCounts: ReadonlyMap<string, number> = new Map();
  polledAt = performance.now();
  private memberId = "";
  private generation = -1;
  private isJoinNeeded = true;
  private isLost = false;
  private fenced: PacelineError | undefined;
  private join: Pending<JoinGroupResponse> | undefined;
  private sync: Pending<SyncGroupResponse> | undefined;
  private isPrepared = false;
  private joinedTopics: ReadonlySet<string> = new Set();
  /** End of the pause before the next attempt to join. */
  private quietUntil = 0;
  /** Topics of a new subscription that no broker has returned yet. */
  private unseen = new Set<string>();
  private unseenSince: number | undefined;
  private nextLook = 0;
  private failingSince: number | undefined;
  /** Last error that the listener threw. */
  private listenerError: unknown;
  /** Cancels the calls in flight when the member leaves. */
  private calls = new AbortController();
  private isStopped = false;
  private endWait = () => {};

  constructor(
    private readonly client: Client,
    private readonly settings: GroupSettings,
    private readonly coordinator: GroupCoordinator,
    private readonly host: GroupHost,
    /** Called when heartbeats must start. */
    private readonly onJoined: () => void,
  ) {}

  get identity(): Identity {
    return { memberId: this.memberId, generation: this.generation };
  }

  /** Whether to send heartbeats; the coordinator expects none while a JoinGroup is in flight. */
  get isBeating(): boolean {
    return this.generation >= 0 && (this.join === undefined || this.join.outcome !== undefined);
  }

  /** Whether the next poll must join or report that the member is fenced. */
  get needsPoll(): boolean {
    return this.isJoinNeeded || this.fenced !== undefined;
  }

  subscribe(topics: Iterable<string>, listener: RebalanceListener): void {
    this.topics = new Set(topics);
    this.unseen = new Set(this.topics);
    this.unseenSince = undefined;
    this.listener = listener;
    this.isJoinNeeded = true;
    this.polledAt = performance.now();
  }

  /** Handle the error of a heartbeat or commit of a generation; return whether it changes the membership. */
  refused(seenGeneration: number, error: PacelineError): boolean {
    if (error.code === "REBALANCE_IN_PROGRESS") this.rejoin(seenGeneration);
    else if (error.code === "ILLEGAL_GENERATION") this.lose(seenGeneration, error, false);
    else if (error.code === "UNKNOWN_MEMBER_ID" || error.code === "FENCED_INSTANCE_ID") this.lose(seenGeneration, error, true);
    else return false;
    return true;
  }

  /** Make the next poll join again, if the generation is still `seenGeneration`. */
  rejoin(seenGeneration: number): void {
    if (this.generation !== seenGeneration) return;
    this.isJoinNeeded = true;
    this.host.wake();
  }

  /** Record a lost membership, if the generation is still `seenGeneration`: other members may own the partitions. */
  private lose(seenGeneration: number, error: PacelineError, forgetsMember: boolean): void {
    if (this.generation !== seenGeneration) return;
    if (error.code === "FENCED_INSTANCE_ID") this.fenced = error;
    // While a JoinGroup is in flight, the partitions are revoked already, and its answer decides about the membership.
    else if (!this.isBeating) return;
    this.generation = -1;
    if (forgetsMember) this.memberId = "";
    this.isLost = this.isJoinNeeded = true;
    this.host.wake();
  }

  /** End a running poll, because the consumer closes. */
  stop(): void {
    this.isStopped = true;
    this.endWait();
  }

  // Joining

  /**
   * Take part in a rebalance, if there is one; return whether the member has its partitions before the limit ends. Throw
   * an error of the coordinator that is not retriable, or an error for a topic of a new subscription that does not exist.
   */
  async poll(limit: Limit): Promise<boolean> {
    while (!this.isStopped) {
      this.polledAt = performance.now();
      if (this.fenced !== undefined) throw this.fenced;
      if (!this.isJoinNeeded) return true;
      if (!(await this.knowsTopics(limit))) return false;
      try {
        if (!(await this.step(limit))) return false;
        this.failingSince = undefined;
      } catch (error) {
        if (error === this.listenerError) throw error;
        this.noteFailure(error);
        if (limit.leftMs === 0) return false;
      }
    }
    return false;
  }

  /**
   * Check that the topics of a new subscription exist; return false when the next check must wait for a later poll. Throw
   * UNKNOWN_TOPIC_OR_PARTITION when brokers have not known a topic for five seconds. If no broker answers, the member joins
   * without the check.
   */
  private async knowsTopics(limit: Limit): Promise<boolean> {
    while (this.unseen.size > 0) {
      const pauseMs = this.nextLook - performance.now();
      if ((pauseMs > 0 && !(await limit.sleep(pauseMs))) || this.isStopped) return false;
      const { unseen } = this;
      try {
        const found = await this.client.cluster.partitionCounts(unseen, Limit.in(lookupMs(limit), limit.signal));
        for (const topic of found.keys()) unseen.delete(topic);
      } catch (error) {
        if (!(error instanceof PacelineError)) throw error;
        unseen.clear();
      }
      this.nextLook = performance.now() + PAUSE_MS;
      if (unseen !== this.unseen || unseen.size === 0) continue;
      this.unseenSince ??= performance.now();
      if (performance.now() - this.unseenSince >= NEW_TOPIC_MS) {
        this.unseenSince = undefined;
        const detail = `brokers do not know ${[...unseen].join(", ")}`;
        throw new PacelineError(`subscribing group ${this.settings.groupId}`, "UNKNOWN_TOPIC_OR_PARTITION", detail);
      }
    }
    return !this.isStopped;
  }

  /** Do one step of the join; return false if the limit ended before the step was complete. */
  private async step(limit: Limit): Promise<boolean> {
    const quietMs = this.quietUntil - performance.now();
    if (quietMs > 0 && !(await limit.sleep(quietMs))) return false;
    if (this.join === undefined && this.sync === undefined) {
      if (!this.isPrepared) {
        await this.prepare();
        this.isPrepared = true;
      }
      await this.sendJoin(limit);
    }
    const pending = this.join ?? this.sync!;
    const stopped = new Promise<void>((resolve) => (this.endWait = resolve));
    while (pending.outcome === undefined) {
      // The wait is part of a poll, so it does not count as time without a poll.
      this.polledAt = performance.now();
      if (limit.leftMs === 0 || this.isStopped) return false;
      await limit.race(Promise.race([pending.done, stopped]), Math.min(limit.leftMs, 1_000, this.settings.maxPollIntervalMs / 2));
    }
    const { join, sync } = this;
    this.join = this.sync = undefined;
    if (join !== undefined) await this.sendSync(answerOf(join));
    else await this.accept(answerOf(sync!));
    return true;
  }

  /** Prepare another attempt after an error that joining again may resolve; throw any other error. */
  private noteFailure(error: unknown): void {
    if (!(error instanceof PacelineError)) throw error;
    this.coordinator.learnFrom(error);
    switch (error.code) {
      case "MEMBER_ID_REQUIRED":
        this.memberId = error.metadata["member_id"] ?? "";
        return;
      case "UNKNOWN_MEMBER_ID":
        this.memberId = "";
        this.generation = -1;
        break;
      case "ILLEGAL_GENERATION":
        this.generation = -1;
        break;
      case "REBALANCE_IN_PROGRESS":
        break;
      default:
        if (error instanceof FencedInstanceIdError) this.fenced = error;
        if (!error.retriable) throw error;
    }
    this.failingSince ??= performance.now();
    this.client.onRetry(error, performance.now() - this.failingSince);
    this.quietUntil = performance.now() + Math.max(PAUSE_MS, error.retryAfterMs);
  }

  /** Before a join, commit unless the membership was lost, and revoke all partitions. */
  private async prepare(): Promise<void> {
    const wasLost = this.isLost;
    this.isLost = false;
    if (!wasLost) await this.host.commitBeforeRevocation(this.settings.sessionTimeoutMs / 2);
    await this.drop(wasLost);
  }

  private async drop(wasLost: boolean): Promise<void> {
    const owned = this.host.assignment();
    if (owned.length === 0) return;
    const isLoss = wasLost && this.listener.onPartitionsLost !== undefined;
    try {
      await this.tell(isLoss ? "onPartitionsLost" : "onPartitionsRevoked", owned);
    } finally {
      this.host.take([]);
    }
  }

  /** Call the listener and record its error, so that `poll` does not mistake it for an error of the coordinator. */
  private async tell(event: keyof RebalanceListener, partitions: TopicPartition[]): Promise<void> {
    try {
      await this.listener[event]?.(partitions);
    } catch (error) {
      this.listenerError = error;
      throw error;
    }
  }

  private async sendJoin(limit: Limit): Promise<void> {
    const connection = await this.coordinator.connection(Limit.in(lookupMs(limit), limit.signal));
    const { settings } = this;
    this.joinedTopics = this.topics;
    this.isLost = false;
    const subscription = { topics: [...this.topics].sort(bytewise) };
    const request = {
      groupId: settings.groupId,
      groupInstanceId: settings.groupInstanceId,
      memberId: this.memberId,
      clientId: settings.clientId,
      sessionTimeoutMs: settings.sessionTimeoutMs,
      rebalanceTimeoutMs: settings.maxPollIntervalMs,
      protocols: settings.assignors.map(({ name }) => ({ name, subscription })),
    };
    const withinMs = settings.maxPollIntervalMs + JOIN_GRACE_MS;
    const { signal } = this.calls;
    const call = connection.unary(this.joining, GroupService.method.joinGroup, request, Limit.in(withinMs, signal));
    // Apply member id and generation when the answer arrives, so that heartbeats start before the next poll.
    const noted = call.then((answer) => {
      if (!signal.aborted) {
        this.memberId = answer.memberId;
        this.generation = answer.generationId;
      }
      return answer;
    });
    this.join = new Pending(noted);
    void this.join.done.then(() => {
      if (!signal.aborted) this.onJoined();
    });
  }

  private get joining(): string {
    return `joining group ${this.settings.groupId}`;
  }

  /** Send SyncGroup for this member's partitions; the leader sends the assignments of all members with it. */
  private async sendSync(answer: JoinGroupResponse): Promise<void> {
    const { settings } = this;
    let assignments: MessageInitShape<(typeof GroupService.method.syncGroup)["input"]>["assignments"] = [];
    const counts = new Map<string, number>();
    if (answer.leader === answer.memberId) {
      const topics = new Set(answer.members.flatMap((member) => member.subscription?.topics ?? []));
      const existing = await this.client.retry(Limit.in(LOOKUP_TIMEOUT_MS), (within) =>
        this.client.cluster.partitionCounts(topics, within),
      );
      if (!answer.skipAssignment) assignments = this.assign(answer, existing);
      for (const topic of topics) counts.set(topic, existing.get(topic) ?? 0);
    }
    this.assignedCounts = counts;
    const connection = await this.coordinator.connection(Limit.in(LOOKUP_TIMEOUT_MS));
    const request = {
      groupId: settings.groupId,
      groupInstanceId: settings.groupInstanceId,
      generationId: answer.generationId,
      memberId: answer.memberId,
      protocolType: answer.protocolType,
      protocolName: answer.protocolName,
      assignments,
    };
    const limit = Limit.in(SYNC_TIMEOUT_MS, this.calls.signal);
    this.sync = new Pending(connection.unary(this.joining, GroupService.method.syncGroup, request, limit));
  }

  private assign(answer: JoinGroupResponse, counts: ReadonlyMap<string, number>) {
    const assignor = this.settings.assignors.find(({ name }) => name === answer.protocolName);
    if (assignor === undefined) {
      const detail = `the coordinator chose the assignor ${answer.protocolName}, which this member does not know`;
      throw new PacelineError(this.joining, "INCONSISTENT_GROUP_PROTOCOL", detail);
    }
    const members = answer.members.map(({ memberId, groupInstanceId, subscription }) => ({
      memberId,
      groupInstanceId,
      topics: new Set(subscription?.topics ?? []),
    }));
    const assigned = assignor.assign(members, counts);
    return [...assigned].map(([memberId, partitions]) => ({ memberId, assignment: { partitions: byTopic(partitions) } }));
  }

  private async accept(answer: SyncGroupResponse): Promise<void> {
    const assigned = (answer.assignment?.partitions ?? []).flatMap(({ topic, partitions }) =>
      partitions.map((partition) => ({ topic, partition })),
    );
    assigned.sort((one, other) => bytewise(one.topic, other.topic) || one.partition - other.partition);
    this.isJoinNeeded = this.isLost || this.topics !== this.joinedTopics;
    this.isPrepared = false;
    this.host.take(assigned);
    await this.tell("onPartitionsAssigned", assigned);
  }

  // Leaving

  /** Commit if commits are automatic, revoke the partitions, and leave the group. */
  async leave(limit: Limit): Promise<void> {
    this.calls.abort(new Error("the member leaves its group"));
    this.calls = new AbortController();
    this.join = this.sync = undefined;
    this.isPrepared = false;
    const wasLost = this.isLost;
    this.isLost = false;
    if (!wasLost) await this.host.commitBeforeRevocation(limit.leftMs / 2);
    try {
      await this.drop(wasLost);
    } finally {
      await this.sendLeave(limit);
    }
  }

  /** Leave the group because the program does not poll; the next poll joins again. */
  async leaveUnpolled(): Promise<void> {
    this.isLost = true;
    await this.sendLeave(Limit.in(this.settings.sessionTimeoutMs / 2));
  }

  /** Send LeaveGroup for a dynamic member; a static member stays in the group until its session timeout. */
  private async sendLeave(limit: Limit): Promise<void> {
    const { memberId } = this;
    this.memberId = "";
    this.generation = -1;
    this.isJoinNeeded = true;
    this.host.wake();
    if (memberId === "" || this.settings.groupInstanceId !== "") return;
    const { groupId } = this.settings;
    const request = { groupId, members: [{ memberId }] };
    try {
      await this.coordinator.callOnce(limit.within(LEAVE_TIMEOUT_MS), (connection, within) =>
        connection.unary(`leaving group ${groupId}`, GroupService.method.leaveGroup, request, within),
      );
    } catch (error) {
      if (!(error instanceof PacelineError)) throw error;
      // Ignored: the coordinator removes the member after its session timeout.
      this.client.onRetry(error, 0);
    }
  }
}

function lookupMs(limit: Limit): number {
  return Math.min(Math.max(limit.leftMs, SHORTEST_LOOKUP_MS), LOOKUP_TIMEOUT_MS);
}

function answerOf<T>(pending: Pending<T>): T {
  const { outcome } = pending;
  if (outcome === undefined) throw new Error("the call is under way");
  if ("error" in outcome) throw outcome.error;
  return outcome.answer;
}
