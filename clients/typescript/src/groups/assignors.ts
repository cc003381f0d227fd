/** A partition of a topic. */
export interface TopicPartition {
  topic: string;
  partition: number;
}

/** A member of a group, as the coordinator describes it to the leader of the group. */
export interface GroupMember {
  memberId: string;
  /** Name of a static member; empty for a dynamic one. */
  groupInstanceId: string;
  /** Topics of its subscription. */
  topics: ReadonlySet<string>;
}

/** A rule that divides partitions among the members of a group. The leader of the group applies it. */
export interface Assignor {
  /** Name in the group protocol. All members of a group must have an assignor in common. */
  readonly name: string;
  /** Return the partitions of every member by member id. `partitionCounts` contains only topics that exist. */
  assign(members: readonly GroupMember[], partitionCounts: ReadonlyMap<string, number>): Map<string, TopicPartition[]>;
}

/**
 * Divides each topic separately into runs of consecutive partitions. If the partitions cannot be divided evenly, the first
 * members get one more. The rules are those of Kafka's RangeAssignor: t0 and t1 with 3 partitions each and members c0, c1
 * give c0: t0/0 t0/1 t1/0 t1/1, c1: t0/2 t1/2.
 */
export const rangeAssignor: Assignor = {
  name: "range",
  assign(members, partitionCounts) {
    const { ordered, assigned, topics } = prepared(members, partitionCounts);
    for (const [topic, count] of topics) {
      const takers = ordered.filter((member) => member.topics.has(topic));
      const each = Math.floor(count / takers.length);
      let partition = 0;
      takers.forEach((taker, place) => {
        const end = partition + each + (place < count % takers.length ? 1 : 0);
        for (; partition < end; partition++) assigned.get(taker.memberId)!.push({ topic, partition });
      });
    }
    return assigned;
  },
};

/**
 * Deals the sorted partitions of all topics to the members in turn and skips members that do not subscribe. The rules are
 * those of Kafka's RoundRobinAssignor: t0 and t1 with 3 partitions each and members c0, c1 give c0: t0/0 t0/2 t1/1,
 * c1: t0/1 t1/0 t1/2.
 */
export const roundRobinAssignor: Assignor = {
  name: "roundrobin",
  assign(members, partitionCounts) {
    const { ordered, assigned, topics } = prepared(members, partitionCounts);
    let turn = 0;
    for (const [topic, count] of topics) {
      for (let partition = 0; partition < count; partition++) {
        while (!ordered[turn % ordered.length]!.topics.has(topic)) turn++;
        assigned.get(ordered[turn++ % ordered.length]!.memberId)!.push({ topic, partition });
      }
    }
    return assigned;
  },
};

/** Return the members in Kafka's order, an empty assignment for each, and the subscribed topics that exist, sorted. */
function prepared(members: readonly GroupMember[], partitionCounts: ReadonlyMap<string, number>) {
  const ordered = [...members].sort(inOrder);
  const assigned = new Map(ordered.map(({ memberId }): [string, TopicPartition[]] => [memberId, []]));
  const subscribed = new Set(ordered.flatMap((member) => [...member.topics]));
  const topics = [...partitionCounts].filter(([topic]) => subscribed.has(topic)).sort(([one], [other]) => bytewise(one, other));
  return { ordered, assigned, topics };
}

/** Compare members: static members first, by instance id; then dynamic members, by member id. */
function inOrder(one: GroupMember, other: GroupMember): number {
  const isStatic = one.groupInstanceId !== "";
  if (isStatic !== (other.groupInstanceId !== "")) return isStatic ? -1 : 1;
  return isStatic ? bytewise(one.groupInstanceId, other.groupInstanceId) : bytewise(one.memberId, other.memberId);
}

export function bytewise(one: string, other: string): number {
  return Buffer.compare(Buffer.from(one), Buffer.from(other));
}
