import type { ChannelCredentials } from "@grpc/grpc-js";
import { Connection } from "./connection.js";
import { PacelineError, throwTopicError } from "./errors.js";
import type { LeaderHint } from "./gen/paceline/v1/errors_pb.js";
import { MetadataService, type DescribeClusterResponse, type TopicDescription } from "./gen/paceline/v1/metadata_service_pb.js";
import { Limit } from "./limit.js";

const ASK_TIMEOUT_MS = 2_000;
/** Timeout of further requests after the first answer. */
const ASK_AGAIN_TIMEOUT_MS = 1_000;
/** Number of brokers that are asked for partition counts. */
const DESCRIBERS = 3;
const OLD_AFTER_MS = 300_000;
/** Longer than any call takes, so that a connection that is closed has no call in flight. */
const CONNECTION_MAX_AGE_MS = 3_600_000;

/** Time for which brokers may not know a topic before it counts as missing: a new topic reaches them with a delay. */
export const NEW_TOPIC_MS = 5_000;

/** The time for which brokers have not known a topic or partition. */
export class Absence {
  private since: number | undefined;

  /** Begin again, because a broker knows the topic and the partition. */
  end(): void {
    this.since = undefined;
  }

  /**
   * Note a failed attempt. Return whether the topic or partition counts as missing: brokers have not known it for NEW_TOPIC_MS,
   * all of them after `startedAt`, a time of performance.now().
   */
  isMissing(error: PacelineError, startedAt = 0): boolean {
    if (error.code === "LEADER_NOT_AVAILABLE") this.end();
    if (error.code !== "UNKNOWN_TOPIC_OR_PARTITION") return false;
    this.since ??= performance.now();
    return performance.now() - Math.max(this.since, startedAt) >= NEW_TOPIC_MS;
  }
}

/** The leader of a partition. Without an address, the next call asks a broker for the leader. */
export interface Leader {
  address?: string | undefined;
  epoch: number;
}

export interface TopicState {
  id: string;
  partitionCount: number;
  leaders: Map<number, Leader>;
  learnedAt: number;
}

/** The connections of a client and its metadata: brokers, leaders and the active controller. */
export class Cluster {
  private readonly connections = new Map<string, Connection>();
  /** Time of the last use of a connection, by address. */
  private readonly usedAt = new Map<string, number>();
  /**
   * Largest known number of partitions by topic. A topic never loses partitions; with the smaller number of an outdated
   * answer, keys would move to other partitions.
   */
  private readonly counts = new Map<string, { topicId: string; count: number }>();
  private readonly topics = new Map<string, TopicState>();
  private readonly refreshes = new Map<string, Promise<TopicState>>();
  private brokers = new Map<number, string>();
  private isClosed = false;
  /** Address of the active controller. */
  controller: string | undefined;

  constructor(
    private readonly bootstrap: readonly string[],
    private readonly security: ChannelCredentials,
    private readonly connectionMaxAgeMs = CONNECTION_MAX_AGE_MS,
  ) {}

  close(): void {
    this.isClosed = true;
    for (const connection of this.connections.values()) connection.close();
    this.connections.clear();
  }

  connection(address: string): Connection {
    if (this.isClosed) throw new Error("the client is closed");
    let found = this.connections.get(address);
    if (found === undefined) {
      found = new Connection(address, this.security);
      this.connections.set(address, found);
    }
    this.usedAt.set(address, performance.now());
    return found;
  }

  /** Close connections, unused for `connectionMaxAgeMs`, to addresses that no broker or controller has any more. */
  private leaveAddresses(): void {
    const known = new Set([...this.bootstrap, ...this.brokers.values(), this.controller]);
    for (const [address, connection] of this.connections) {
      if (known.has(address) || performance.now() - this.usedAt.get(address)! <= this.connectionMaxAgeMs) continue;
      this.connections.delete(address);
      this.usedAt.delete(address);
      connection.close();
    }
  }

  /** Return the largest number of partitions in any answer about this topic: an answer with fewer is outdated. */
  private largestCount({ name, topicId, partitions }: TopicDescription): number {
    const before = this.counts.get(name);
    const count = Math.max(partitions.length, before?.topicId === topicId ? before.count : 0);
    this.counts.set(name, { topicId, count });
    return count;
  }

  /**
   * Ask the known addresses in random order until a process answers; throw the last failure if none does. The bootstrap
   * addresses are always among them: a broker that is cut off answers with outdated metadata, perhaps without other brokers.
   */
  private async askAny<T>(limit: Limit, ask: (connection: Connection, limit: Limit) => Promise<T>): Promise<T> {
    return (await this.askSome(1, limit, ask))[0]!;
  }

  /** Ask as `askAny` does until `wanted` processes have answered. Return fewer answers if the others do not answer in time. */
  private async askSome<T>(wanted: number, limit: Limit, ask: (connection: Connection, limit: Limit) => Promise<T>): Promise<T[]> {
    const found: T[] = [];
    let last: unknown;
    for (const address of shuffled(new Set([...this.bootstrap, ...this.brokers.values()]))) {
      try {
        found.push(await ask(this.connection(address), limit.within(found.length === 0 ? ASK_TIMEOUT_MS : ASK_AGAIN_TIMEOUT_MS)));
      } catch (error) {
        if (!(error instanceof PacelineError)) throw error;
        // Prefer the error of a server to that of a call without an answer.
        if (error.hasAnswer || !(last instanceof PacelineError && last.hasAnswer)) last = error;
      }
      if (found.length === wanted || limit.leftMs === 0) break;
    }
    if (found.length === 0) throw last;
    return found;
  }

  /** Ask for the brokers and the active controller, once. */
  async describe(limit: Limit): Promise<DescribeClusterResponse> {
    return (await this.describeFrom(limit)).found;
  }

  private async describeFrom(limit: Limit): Promise<{ found: DescribeClusterResponse; from: Connection }> {
    const operation = "describing the cluster";
    const ask = async (connection: Connection, within: Limit) => {
      const answer = await connection.unary(operation, MetadataService.method.describeCluster, {}, within);
      if (answer.brokers.length === 0 && answer.controllerHost === "") {
        throw new PacelineError(operation, "NOT_CONTROLLER", "the process knows no cluster yet");
      }
      return { found: answer, from: connection };
    };
    let { found, from } = await this.askAny(limit, ask);
    const controller = found.controllerHost === "" ? undefined : joined(found.controllerHost, found.controllerPort);
    if (found.brokers.length === 0 && controller !== undefined) {
      ({ found, from } = await ask(this.connection(controller), limit)); // A standby returns only the active controller's address.
    }
    this.controller = controller;
    if (found.brokers.length > 0) {
      this.brokers = new Map(found.brokers.map((broker) => [broker.id, joined(broker.host, broker.port)]));
    }
    this.leaveAddresses();
    return { found, from };
  }

  /** Ask for the brokers and return their addresses in random order. */
  async brokerAddresses(limit: Limit): Promise<string[]> {
    await this.describe(limit);
    return shuffled(this.brokers.values());
  }

  /**
   * Ask several brokers for topics and return their partition counts; omit topics that none of them knows. A broker that is
   * cut off from the cluster knows neither new topics nor added partitions.
   */
  async partitionCounts(topics: Iterable<string>, limit: Limit): Promise<Map<string, number>> {
    const names = [...topics];
    if (names.length === 0) return new Map();
    const answers = await this.askSome(DESCRIBERS, limit, async (connection, within) => {
      const found: TopicDescription[] = [];
      let pageToken = "";
      do {
        const request = { topics: names, pageToken };
        const answer = await connection.unary("describing topics", MetadataService.method.describeTopics, request, within);
        found.push(...answer.topics.filter(({ error }) => error === undefined));
        pageToken = answer.nextPageToken;
      } while (pageToken !== "");
      return found;
    });
    const byName = new Map<string, TopicDescription[]>();
    for (const found of answers.flat()) byName.set(found.name, [...(byName.get(found.name) ?? []), found]);
    const counts = new Map<string, number>();
    for (const [name, descriptions] of byName) {
      // A topic that was deleted and created again has the id that most brokers return.
      const votes = ({ topicId }: TopicDescription) => descriptions.filter((other) => other.topicId === topicId).length;
      const { topicId } = descriptions.reduce((best, other) => (votes(other) > votes(best) ? other : best));
      for (const description of descriptions) {
        if (description.topicId === topicId) counts.set(name, this.largestCount(description));
      }
    }
    return counts;
  }

  /** Ask one process, once, for the brokers and the partitions of a topic: the answers of two processes may contradict. */
  async describeTopic(topic: string, limit: Limit): Promise<TopicDescription> {
    const operation = `describing topic ${topic}`;
    const { from } = await this.describeFrom(limit);
    const within = limit.within(ASK_TIMEOUT_MS);
    const answer = await from.unary(operation, MetadataService.method.describeTopics, { topics: [topic] }, within);
    const description = answer.topics[0];
    if (description === undefined || answer.topics.length !== 1) {
      throw new PacelineError(operation, "UNKNOWN_SERVER_ERROR", `the answer has ${answer.topics.length} topics instead of one`);
    }
    throwTopicError(operation, description.error);
    return description;
  }

  /** Return the cached state of a topic; ask for it if there is none. */
  async topic(name: string, limit: Limit): Promise<TopicState> {
    const known = this.known(name);
    return known ?? this.refresh(name, limit);
  }

  /** Return the cached state of a topic at once, undefined if there is none. Refresh an old state in the background. */
  known(name: string): TopicState | undefined {
    const state = this.topics.get(name);
    if (state !== undefined && performance.now() - state.learnedAt > OLD_AFTER_MS) {
      state.learnedAt = performance.now();
      this.refreshOnce(name).catch(() => undefined); // The old state remains in use until a call fails with it.
    }
    return state;
  }

  /** Return the leader of a partition and the id of its topic. */
  async leader(topic: string, partition: number, limit: Limit): Promise<{ leader: Leader; address: string; topicId: string }> {
    let state = this.known(topic);
    let leader = state?.leaders.get(partition);
    if (state === undefined || leader?.address === undefined) {
      state = await this.refresh(topic, limit);
      leader = state.leaders.get(partition);
    }
    const operation = `finding the leader of ${topic}/${partition}`;
    if (partition >= state.partitionCount) {
      throw new PacelineError(operation, "UNKNOWN_TOPIC_OR_PARTITION", `the topic has ${state.partitionCount} partitions`);
    }
    if (leader?.address === undefined) {
      throw new PacelineError(operation, "LEADER_NOT_AVAILABLE", "the partition has no leader");
    }
    return { leader, address: leader.address, topicId: state.id };
  }

  /** Follow the hint of a failure, or forget the address of the leader that failed, so that the next attempt asks again. */
  learnFrom(error: PacelineError, topic: string, partition: number, used: Leader): void {
    const state = this.topics.get(topic);
    // The epochs of a re-created topic begin at 0, so an epoch that the leader does not know may be of the deleted topic.
    const isOld = error.refresh || error.code === "UNKNOWN_LEADER_EPOCH";
    if (!isOld || state === undefined || state.leaders.get(partition) !== used) return;
    const hint = error.leader;
    const address = hintAddress(hint);
    const isForTopic = hint !== undefined && (hint.topicId === "" || hint.topicId === state.id);
    // A hint with a lower epoch comes from a broker with outdated metadata.
    if (isForTopic && address !== undefined && hint.leaderEpoch >= used.epoch) {
      state.leaders.set(partition, { address, epoch: hint.leaderEpoch });
    } else {
      state.leaders.set(partition, { epoch: used.epoch });
    }
  }

  private async refresh(topic: string, limit: Limit): Promise<TopicState> {
    const state = await limit.race(this.refreshOnce(topic));
    if (state === undefined) {
      throw new PacelineError(`describing topic ${topic}`, "REQUEST_TIMED_OUT", "no answer in time", { hasAnswer: false });
    }
    return state;
  }

  /** Ask for a topic; callers that ask at the same time share the answer. */
  private refreshOnce(topic: string): Promise<TopicState> {
    let running = this.refreshes.get(topic);
    if (running === undefined) {
      running = this.learn(topic).finally(() => this.refreshes.delete(topic));
      this.refreshes.set(topic, running);
    }
    return running;
  }

  private async learn(topic: string): Promise<TopicState> {
    const limit = Limit.in(5 * ASK_TIMEOUT_MS);
    const description = await this.describeTopic(topic, limit);
    if (description.partitions.length === 0) {
      throw new PacelineError(`describing topic ${topic}`, "LEADER_NOT_AVAILABLE", "the topic has no partitions yet");
    }
    const earlier = this.topics.get(topic);
    const before = earlier?.id === description.topicId ? earlier : undefined;
    const state: TopicState = {
      id: description.topicId,
      partitionCount: this.largestCount(description),
      leaders: new Map(before?.leaders),
      learnedAt: performance.now(),
    };
    for (const { partition, leader, leaderEpoch } of description.partitions) {
      const known = before?.leaders.get(partition);
      if (known !== undefined && known.epoch > leaderEpoch) {
        state.leaders.set(partition, known); // The answer is outdated.
      } else {
        state.leaders.set(partition, { address: leader === undefined ? undefined : this.brokers.get(leader), epoch: leaderEpoch });
      }
    }
    this.topics.set(topic, state);
    return state;
  }
}

function hintAddress(hint: LeaderHint | undefined): string | undefined {
  return hint === undefined || hint.host === "" || hint.port === 0 ? undefined : joined(hint.host, hint.port);
}

/** Join host and port; an IPv6 address is put in brackets. */
export function joined(host: string, port: number): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

function shuffled<T>(values: Iterable<T>): T[] {
  const found = [...values];
  for (let at = found.length - 1; at > 0; at--) {
    const other = Math.floor(Math.random() * (at + 1));
    [found[at], found[other]] = [found[other]!, found[at]!];
  }
  return found;
}
