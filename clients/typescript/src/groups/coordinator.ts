import type { Client } from "../client.js";
import { joined } from "../cluster.js";
import type { Connection } from "../connection.js";
import { PacelineError } from "../errors.js";
import { GroupService } from "../gen/paceline/v1/group_service_pb.js";
import type { Limit } from "../limit.js";

const ASK_TIMEOUT_MS = 5_000;
const MOVED = new Set(["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "SHUTTING_DOWN"]);
const STILL_THERE = new Set(["COORDINATOR_LOAD_IN_PROGRESS", "THROTTLED"]);

/** Finds the coordinator of one group and calls it. */
export class GroupCoordinator {
  private address: string | undefined;

  constructor(
    private readonly client: Client,
    private readonly groupId: string,
  ) {}

  /** Call the coordinator and follow it when it moves; throw the last cause when the limit ends. */
  async call<T>(limit: Limit, attempt: (connection: Connection, limit: Limit) => Promise<T>): Promise<T> {
    return this.client.retry(limit, (within) => this.callOnce(within, attempt));
  }

  /** Call the coordinator, found first where it is not known, and learn from its failure. */
  async callOnce<T>(limit: Limit, attempt: (connection: Connection, limit: Limit) => Promise<T>): Promise<T> {
    const connection = await this.connection(limit);
    try {
      return await attempt(connection, limit);
    } catch (error) {
      this.learnFrom(error);
      throw error;
    }
  }

  async connection(limit: Limit): Promise<Connection> {
    this.address ??= await this.find(limit);
    return this.client.cluster.connection(this.address);
  }

  /** Forget the coordinator when an error says that it has moved or cannot be reached. */
  learnFrom(error: unknown): void {
    if (!(error instanceof PacelineError)) return;
    if (MOVED.has(error.code) || (error.retriable && !STILL_THERE.has(error.code))) this.address = undefined;
  }

  private async find(limit: Limit): Promise<string> {
    const operation = `finding the coordinator of group ${this.groupId}`;
    let last: PacelineError | undefined;
    for (const address of await this.client.cluster.brokerAddresses(limit)) {
      try {
        const connection = this.client.cluster.connection(address);
        const request = { groupId: this.groupId };
        const answer = await connection.unary(operation, GroupService.method.findCoordinator, request, limit.within(ASK_TIMEOUT_MS));
        return joined(answer.host, answer.port);
      } catch (error) {
        if (!(error instanceof PacelineError)) throw error;
        if (last === undefined || error.hasAnswer) last = error;
        // Another broker knows no more.
        if (!error.retriable || error.code === "COORDINATOR_NOT_AVAILABLE" || limit.leftMs === 0) break;
      }
    }
    throw last ?? new PacelineError(operation, "BROKER_NOT_AVAILABLE", "the cluster has no broker");
  }
}
