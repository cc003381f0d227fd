import type { ConsumerConfig } from "../consumer.js";
import { rangeAssignor, roundRobinAssignor, type Assignor, type TopicPartition } from "./assignors.js";

const LARGEST_MS = 0x7fffffff;
const ASSIGNORS = { range: rangeAssignor, roundrobin: roundRobinAssignor };

/** Settings of a group's member. Times are in milliseconds. */
export interface GroupConfig extends ConsumerConfig {
  groupId: string;
  /**
   * Makes this a static member: it keeps its partitions when its process restarts within the session time-out. Unique in the
   * group.
   */
  groupInstanceId?: string | undefined;
  /** Name of the program, for people; it begins the member id. */
  clientId?: string | undefined;
  /** The group continues without this member when its heartbeats stay away for so long; 45,000 by default. */
  sessionTimeoutMs?: number | undefined;
  /** Pause between heartbeats; 3,000 by default, and a third of the session time-out at most. */
  heartbeatIntervalMs?: number | undefined;
  /** The member leaves when the program does not poll for so long; 300,000 by default. */
  maxPollIntervalMs?: number | undefined;
  /** Commit from time to time, before every rebalance and in `close`; true by default. */
  autoCommit?: boolean | undefined;
  /** Pause between automatic commits; 5,000 by default. */
  autoCommitIntervalMs?: number | undefined;
  /** How often new partitions of the topics are looked for; 300,000 by default. A missing topic is looked for more often. */
  metadataMaxAgeMs?: number | undefined;
  /** Assignors that this member knows, the best first; ["range"] by default. All members need one in common. */
  assignors?: readonly (keyof typeof ASSIGNORS | Assignor)[] | undefined;
}

/** Receives the rebalances of a consumer, in `poll`, the loop, or `close`, which wait for the promises. */
export interface RebalanceListener {
  /** Partitions were assigned; none when the group has more members than partitions. */
  onPartitionsAssigned?(partitions: TopicPartition[]): void | Promise<void>;
  /** Partitions are about to be given up; their offsets can still be committed. */
  onPartitionsRevoked?(partitions: TopicPartition[]): void | Promise<void>;
  /**
   * The membership was lost, and other members may own the partitions: a commit would fail. Without this method
   * onPartitionsRevoked is called.
   */
  onPartitionsLost?(partitions: TopicPartition[]): void | Promise<void>;
}

export interface GroupSettings {
  groupId: string;
  groupInstanceId: string;
  clientId: string;
  sessionTimeoutMs: number;
  heartbeatIntervalMs: number;
  maxPollIntervalMs: number;
  autoCommit: boolean;
  autoCommitIntervalMs: number;
  metadataMaxAgeMs: number;
  assignors: readonly Assignor[];
}

/** Fill in the defaults. Throw a TypeError or RangeError for settings that cannot work. */
export function groupSettings(config: GroupConfig): GroupSettings {
  const { sessionTimeoutMs = 45_000, heartbeatIntervalMs = 3_000, maxPollIntervalMs = 300_000 } = config;
  const { autoCommitIntervalMs = 5_000, metadataMaxAgeMs = 300_000 } = config;
  if (config.groupId === "") throw new TypeError("groupId is empty: name the group");
  const times = { sessionTimeoutMs, heartbeatIntervalMs, maxPollIntervalMs, autoCommitIntervalMs, metadataMaxAgeMs };
  for (const [name, ms] of Object.entries(times)) {
    if (!Number.isInteger(ms) || ms < 1 || ms > LARGEST_MS) {
      throw new RangeError(`${name} is a whole number from 1 to ${LARGEST_MS}, not ${ms}`);
    }
  }
  if (heartbeatIntervalMs >= sessionTimeoutMs) {
    throw new RangeError(`heartbeatIntervalMs has to be below sessionTimeoutMs, not ${heartbeatIntervalMs} and ${sessionTimeoutMs}`);
  }
  return {
    groupId: config.groupId,
    groupInstanceId: config.groupInstanceId ?? "",
    clientId: config.clientId ?? "paceline-typescript",
    autoCommit: config.autoCommit ?? true,
    assignors: assignorsOf(config.assignors ?? ["range"]),
    ...times,
  };
}

function assignorsOf(wanted: readonly (keyof typeof ASSIGNORS | Assignor)[]): Assignor[] {
  const found = wanted.map((one) => {
    const known = typeof one === "string" ? ASSIGNORS[one] : one;
    if (known === undefined) throw new TypeError(`assignor ${String(one)} is not known; there are ${Object.keys(ASSIGNORS).join(", ")}`);
    return known;
  });
  if (found.length === 0) throw new TypeError("a group needs an assignor");
  if (new Set(found.map(({ name }) => name)).size < found.length) throw new TypeError("an assignor is named twice");
  return found;
}
