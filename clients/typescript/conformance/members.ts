// The group commands of the driver: members of groups that are polled in the background.
import { GroupConsumer, type Client, type OffsetToCommit, type ResetPolicy, type TopicPartition } from "paceline";
import { described } from "./described.js";

const SLICE_MS = 100;

type Topics = Record<string, number[]>;

export interface GroupCommand {
  command: string;
  member: string;
  group_id: string;
  group_instance_id?: string;
  topics: string[];
  assignors?: ("range" | "roundrobin")[];
  session_timeout_ms?: number;
  heartbeat_interval_ms?: number;
  max_poll_interval_ms?: number;
  auto_commit?: boolean;
  auto_commit_interval_ms?: number;
  reset?: ResetPolicy;
  offsets?: { topic: string; partition: number; offset: string; metadata?: string; leader_epoch?: number | null }[] | null;
}

export class Members {
  private readonly members = new Map<string, Member>();

  /** Return the answer to a command; undefined if it is not a group command. */
  async run(command: GroupCommand, client: Client | undefined): Promise<object | undefined> {
    switch (command.command) {
      case "group_open":
        if (client === undefined) throw new Error("nothing is open");
        this.members.set(command.member, new Member(opened(client, command), command.topics));
        return {};
      case "group_state":
        return this.member(command).state();
      case "group_commit":
        await this.member(command).inTurn((consumer) => consumer.commit(command.offsets?.map(toCommit)));
        return {};
      case "group_committed":
        return { offsets: await this.committed(command) };
      case "group_pause":
        await this.member(command).inTurn(() => void (this.member(command).isPaused = true));
        return {};
      case "group_resume":
        this.member(command).isPaused = false;
        return {};
      case "group_close": {
        const member = this.member(command);
        this.members.delete(command.member);
        await member.close();
        return {};
      }
      default:
        return undefined;
    }
  }

  async close(): Promise<void> {
    const open = [...this.members.values()];
    this.members.clear();
    await Promise.all(open.map((member) => member.close().catch((error: unknown) => console.error(error))));
  }

  private member({ member }: GroupCommand): Member {
    const found = this.members.get(member);
    if (found === undefined) throw new Error(`no member ${member}`);
    return found;
  }

  private async committed(command: GroupCommand): Promise<object[]> {
    const { partitions: topics } = command as unknown as { partitions: Topics };
    const asked = Object.keys(topics)
      .sort()
      .flatMap((topic) => [...topics[topic]!].sort((one, other) => one - other).map((partition) => ({ topic, partition })));
    const found = await this.member(command).inTurn((consumer) => consumer.committed(asked));
    return found.map(({ topic, partition, offset, leaderEpoch = null, metadata }) => ({
      topic,
      partition,
      offset: offset === undefined ? null : String(offset),
      metadata,
      leader_epoch: leaderEpoch,
    }));
  }
}

function opened(client: Client, command: GroupCommand): GroupConsumer {
  return client.groupConsumer({
    groupId: command.group_id,
    groupInstanceId: command.group_instance_id,
    assignors: command.assignors,
    sessionTimeoutMs: command.session_timeout_ms ?? 30_000,
    heartbeatIntervalMs: command.heartbeat_interval_ms ?? 100,
    maxPollIntervalMs: command.max_poll_interval_ms ?? 60_000,
    autoCommit: command.auto_commit ?? false,
    autoCommitIntervalMs: command.auto_commit_interval_ms,
    reset: command.reset,
  });
}

function toCommit(one: NonNullable<GroupCommand["offsets"]>[number]): OffsetToCommit {
  const { topic, partition, offset, metadata, leader_epoch: leaderEpoch } = one;
  return { topic, partition, offset: BigInt(offset), metadata, leaderEpoch: leaderEpoch ?? undefined };
}

/** A member that is polled in the background; commands run between two polls. */
class Member {
  isPaused = false;
  private isClosed = false;
  private error: unknown;
  private readonly read: Record<string, string[]> = {};
  private readonly events: [string, Topics][] = [];
  private last: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly consumer: GroupConsumer,
    topics: string[],
  ) {
    const note = (event: string) => (partitions: TopicPartition[]) => {
      if (partitions.length > 0) this.events.push([event, byTopic(partitions)]);
    };
    consumer.subscribe(topics, {
      onPartitionsAssigned: note("assigned"),
      onPartitionsRevoked: note("revoked"),
      onPartitionsLost: note("lost"),
    });
    void this.poll();
  }

  private async poll(): Promise<void> {
    while (!this.isClosed && this.error === undefined) {
      await this.inTurn(async (consumer) => {
        if (this.isPaused || this.isClosed) return;
        try {
          for (const { topic, partition, offset } of await consumer.poll({ timeoutMs: SLICE_MS })) {
            (this.read[`${topic}/${partition}`] ??= []).push(String(offset));
          }
        } catch (error) {
          this.error = error;
        }
      });
      await new Promise((resolve) => setTimeout(resolve, this.isPaused ? 20 : 0));
    }
  }

  /** Run a function between two polls and return its result. */
  inTurn<T>(command: (consumer: GroupConsumer) => T | Promise<T>): Promise<T> {
    const mine = this.last.then(() => command(this.consumer));
    this.last = mine.catch(() => undefined);
    return mine;
  }

  state(): Promise<object> {
    return this.inTurn((consumer) => {
      const { generation, memberId } = consumer;
      const positions = consumer.assignment().flatMap(({ topic, partition }) => {
        const offset = consumer.position(topic, partition);
        return offset === undefined ? [] : [[`${topic}/${partition}`, String(offset)]];
      });
      return {
        member_id: generation < 0 ? "" : memberId,
        generation,
        assignment: byTopic(consumer.assignment()),
        positions: Object.fromEntries(positions) as object,
        read: this.read,
        events: this.events,
        error: this.error === undefined ? null : described(this.error),
      };
    });
  }

  async close(): Promise<void> {
    this.isClosed = true;
    await this.inTurn((consumer) => consumer.close({ timeoutMs: 10_000 }));
  }
}

function byTopic(partitions: TopicPartition[]): Topics {
  const topics: Topics = {};
  for (const { topic, partition } of partitions) (topics[topic] ??= []).push(partition);
  return topics;
}
