import type { MessageInitShape } from "@bufbuild/protobuf";
import { ErrorCode } from "../src/gen/paceline/v1/errors_pb.js";
import { GroupService, type JoinGroupRequest } from "../src/gen/paceline/v1/group_service_pb.js";
import { FakeBroker, Refusal } from "./fake_broker.js";

type Code = keyof typeof ErrorCode;

/** The coordinator of a group with one member, served by a FakeBroker. */
export class FakeGroup {
  generation = 0;
  readonly committed = new Map<string, bigint>();
  readonly joins: JoinGroupRequest[] = [];
  readonly left: string[] = [];
  finds = 0;
  heartbeats = 0;
  commits = 0;
  /** Refusals of the next calls. */
  readonly refusals: Record<"find" | "join" | "heartbeat" | "commit", Code[]> = { find: [], join: [], heartbeat: [], commit: [] };
  /** Partition errors in the answers to the next commits. */
  readonly commitErrors: Code[] = [];
  private memberIds = 0;

  constructor(broker: FakeBroker) {
    const { method } = GroupService;
    broker.serve(method.findCoordinator, () => {
      this.finds++;
      this.refuse("find");
      return { brokerId: 1, host: "127.0.0.1", port: broker.port };
    });
    broker.serve(method.joinGroup, (request) => this.join(request));
    broker.serve(method.syncGroup, ({ memberId, assignments }) => {
      const assignment = assignments.find((one) => one.memberId === memberId)?.assignment;
      return assignment === undefined ? {} : { assignment };
    });
    broker.serve(method.heartbeat, () => {
      this.heartbeats++;
      this.refuse("heartbeat");
      return {};
    });
    broker.serve(method.leaveGroup, ({ members }) => {
      this.left.push(...members.map(({ memberId }) => memberId));
      return {};
    });
    broker.serve(method.commitOffsets, ({ offsets }) => {
      this.commits++;
      this.refuse("commit");
      const code = this.commitErrors.shift();
      return {
        partitions: offsets.map(({ topic, partition, offset }) => {
          if (code !== undefined) return { topic, partition, error: { code: ErrorCode[code], message: "on purpose" } };
          this.committed.set(`${topic}/${partition}`, offset);
          return { topic, partition };
        }),
      };
    });
    broker.serve(method.fetchOffsets, ({ partitions }) => ({
      partitions: partitions.flatMap(({ topic, partitions: numbers }) =>
        numbers.map((partition) => {
          const offset = this.committed.get(`${topic}/${partition}`);
          return { topic, partition, ...(offset === undefined ? {} : { offset, leaderEpoch: 5 }) };
        }),
      ),
    }));
  }

  private refuse(call: keyof FakeGroup["refusals"]): void {
    const code = this.refusals[call].shift();
    if (code !== undefined) throw new Refusal(code);
  }

  private join(request: JoinGroupRequest): MessageInitShape<(typeof GroupService.method.joinGroup)["output"]> {
    this.joins.push(request);
    this.refuse("join");
    const { memberId } = request;
    if (memberId === "") throw new Refusal("MEMBER_ID_REQUIRED", { member_id: `member-${++this.memberIds}` });
    const { name, subscription } = request.protocols[0]!;
    return {
      generationId: ++this.generation,
      protocolType: "consumer",
      protocolName: name,
      leader: memberId,
      memberId,
      members: [{ memberId, ...(subscription === undefined ? {} : { subscription }) }],
    };
  }
}
