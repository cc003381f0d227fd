import { fromBinary, getOption } from "@bufbuild/protobuf";
import { anyUnpack } from "@bufbuild/protobuf/wkt";
import { status, type ServiceError } from "@grpc/grpc-js";
import { ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "./gen/google/rpc/status_pb.js";
import {
  definite,
  ErrorCode,
  ErrorCodeSchema,
  refresh_metadata,
  retriable,
  type LeaderHint,
  type PartitionError,
  type TopicError,
} from "./gen/paceline/v1/errors_pb.js";

/** Name of an error code of the contract, for example "NOT_CONTROLLER". */
export type ErrorName = keyof typeof ErrorCode;

const ERROR_DOMAIN = "paceline";

interface Facts {
  retriable?: boolean | undefined;
  definite?: boolean | undefined;
  refresh?: boolean | undefined;
  hasAnswer?: boolean | undefined;
  retryAfterMs?: number | undefined;
  leader?: LeaderHint | undefined;
  metadata?: Record<string, string> | undefined;
  cause?: unknown;
}

/** A failure with the code that a server sent, or the nearest code for a call without an answer. */
export class PacelineError extends Error {
  override readonly name: string;
  /** Whether the same call may succeed later. */
  readonly retriable: boolean;
  /** Whether the operation was certainly not carried out; false means that its outcome is unknown. */
  readonly definite: boolean;
  /** @internal Whether to refresh the client's metadata, because it may contain an old leader or controller. */
  readonly refresh: boolean;
  /** @internal Whether a server sent this error. */
  readonly hasAnswer: boolean;
  /** @internal */
  readonly retryAfterMs: number;
  /** @internal */
  readonly leader: LeaderHint | undefined;
  /** @internal Data that the server sent with the code, for example the member id of MEMBER_ID_REQUIRED. */
  readonly metadata: Record<string, string>;

  constructor(
    /** The failed operation, for example "producing to orders/0". */
    readonly operation: string,
    /** The server's code; REQUEST_TIMED_OUT or BROKER_NOT_AVAILABLE when no server answered. */
    readonly code: ErrorName,
    /** The reason, in one sentence. */
    readonly detail: string,
    facts: Facts = {},
  ) {
    super(`${operation}: ${code}: ${detail}`, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = new.target.name;
    const options = codeOptions(code);
    this.retriable = facts.retriable ?? options.retriable;
    this.definite = facts.definite ?? options.definite;
    this.refresh = facts.refresh ?? options.refresh;
    this.hasAnswer = facts.hasAnswer ?? true;
    this.retryAfterMs = facts.retryAfterMs ?? 0;
    this.leader = facts.leader;
    this.metadata = facts.metadata ?? {};
  }

  /** @internal Return a copy of the error with these properties changed. */
  with(facts: Facts): PacelineError {
    return failure(this.operation, this.code, this.detail, { ...this, cause: this.cause, ...facts });
  }

  /** @internal Address of the active controller. */
  get controller(): string | undefined {
    return this.metadata["address"];
  }
}

/**
 * Offsets were not committed because the group has removed this member; other members may own its partitions. The code is
 * ILLEGAL_GENERATION, and the next poll joins the group again.
 */
export class CommitFailedError extends PacelineError {}

/** Another process has taken over the group instance id of this static member: close the consumer. */
export class FencedInstanceIdError extends PacelineError {}

/** The group rebalances and accepts no offsets until the rebalance ends; poll, so that this member takes part in it. */
export class RebalanceInProgressError extends PacelineError {}

const CLASSES: Partial<Record<ErrorName, typeof PacelineError>> = {
  ILLEGAL_GENERATION: CommitFailedError,
  FENCED_INSTANCE_ID: FencedInstanceIdError,
  REBALANCE_IN_PROGRESS: RebalanceInProgressError,
};

/** Create an error of the class for its code. */
function failure(operation: string, code: ErrorName, detail: string, facts: Facts = {}): PacelineError {
  return new (CLASSES[code] ?? PacelineError)(operation, code, detail, facts);
}

/**
 * Records that the consumer had read are no longer in the log (KIP-320). The next poll continues at
 * `divergentOffset`.
 */
export class TruncatedError extends Error {
  override readonly name = "TruncatedError";

  constructor(
    readonly topic: string,
    readonly partition: number,
    readonly position: bigint,
    readonly divergentOffset: bigint,
  ) {
    super(`${topic}/${partition} was truncated: read up to offset ${position}, the log diverges at ${divergentOffset}`);
  }
}

/** Read the options of a code from the descriptor of errors.proto; all are false for a code that it does not list. */
function codeOptions(code: ErrorName): { retriable: boolean; definite: boolean; refresh: boolean } {
  const value = ErrorCodeSchema.value[ErrorCode[code]];
  if (value === undefined) return { retriable: false, definite: false, refresh: false };
  return {
    retriable: getOption(value, retriable),
    definite: getOption(value, definite),
    refresh: getOption(value, refresh_metadata),
  };
}

function nameOf(code: ErrorCode): ErrorName {
  return (ErrorCode[code] ?? "UNKNOWN_SERVER_ERROR") as ErrorName;
}

/** Throw the error of a partition, if there is one. */
export function throwPartitionError(operation: string, error: PartitionError | undefined): void {
  if (error === undefined) return;
  throw new PacelineError(operation, nameOf(error.code), error.message, {
    leader: error.currentLeader,
    retryAfterMs: error.retryAfterMs,
  });
}

/** Throw the error of a topic, if there is one. */
export function throwTopicError(operation: string, error: TopicError | undefined): void {
  if (error !== undefined) throw new PacelineError(operation, nameOf(error.code), error.message);
}

/** Throw the error of one entry in an answer of GroupService, if there is one. */
export function throwGroupError(operation: string, error: PartitionError | undefined): void {
  if (error !== undefined) throw failure(operation, nameOf(error.code), error.message);
}

/** Convert the gRPC error of a call to an error with a code. */
export function callError(operation: string, ended: ServiceError): PacelineError {
  let code: ErrorName | undefined;
  const facts: Facts = { cause: ended };
  const packed = ended.metadata?.get("grpc-status-details-bin")[0];
  try {
    const details = packed instanceof Buffer ? fromBinary(StatusSchema, packed).details : [];
    for (const detail of details) {
      const info = anyUnpack(detail, ErrorInfoSchema);
      if (info?.domain === ERROR_DOMAIN) {
        code = info.reason in ErrorCode ? (info.reason as ErrorName) : "UNKNOWN_SERVER_ERROR";
        facts.metadata = info.metadata;
      }
      const delay = anyUnpack(detail, RetryInfoSchema)?.retryDelay;
      if (delay !== undefined) facts.retryAfterMs = Number(delay.seconds) * 1000 + delay.nanos / 1e6;
    }
  } catch {
    // Details that cannot be decoded come from a proxy, not from a Paceline server; the status is used instead.
  }
  if (code !== undefined) return failure(operation, code, ended.details, facts);
  return withoutAnswer(operation, ended);
}

/** Return the error of a call that no Paceline server answered. */
function withoutAnswer(operation: string, ended: ServiceError): PacelineError {
  const facts = { cause: ended, hasAnswer: false, definite: false, retriable: true, refresh: true };
  const final = { ...facts, retriable: false, refresh: false };
  if (ended.code === status.RESOURCE_EXHAUSTED && /larger than|too large/i.test(ended.details)) {
    // A server that refuses a request writes "(9 vs. 8)"; grpc-js writes "(9 vs 8)" when it refuses an answer.
    const isUnread = /Received message larger than max.* vs\. /.test(ended.details);
    return new PacelineError(operation, "MESSAGE_TOO_LARGE", ended.details, { ...final, definite: isUnread });
  }
  switch (ended.code) {
    case status.DEADLINE_EXCEEDED:
      return new PacelineError(operation, "REQUEST_TIMED_OUT", "no answer in time", facts);
    // gRPC itself ends calls with any of these when a connection breaks.
    case status.RESOURCE_EXHAUSTED:
    case status.UNAVAILABLE:
    case status.CANCELLED:
    case status.INTERNAL:
    case status.UNKNOWN: {
      // grpc-js uses these texts only when it has sent nothing.
      const isUnsent = /^(No connection established|Name resolution failed)/.test(ended.details);
      return new PacelineError(operation, "BROKER_NOT_AVAILABLE", ended.details, { ...facts, definite: isUnsent });
    }
    default:
      return new PacelineError(operation, "UNKNOWN_SERVER_ERROR", ended.details, final);
  }
}
