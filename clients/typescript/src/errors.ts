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
  controller?: string | undefined;
  cause?: unknown;
}

/** A failure with the code that a server sent, or the nearest code for a call without an answer. */
export class PacelineError extends Error {
  override readonly name: string = "PacelineError";
  /** The same call may succeed later. */
  readonly retriable: boolean;
  /** The operation surely did not happen. False means that the outcome is unknown. */
  readonly definite: boolean;
  /** @internal The client knew an old leader or controller. */
  readonly refresh: boolean;
  /** @internal A server sent this error. */
  readonly hasAnswer: boolean;
  /** @internal */
  readonly retryAfterMs: number;
  /** @internal */
  readonly leader: LeaderHint | undefined;
  /** @internal Address of the active controller. */
  readonly controller: string | undefined;

  constructor(
    /** What was tried, for example "producing to orders/0". */
    readonly operation: string,
    /** The server's code; REQUEST_TIMED_OUT or BROKER_NOT_AVAILABLE when no server answered. */
    readonly code: ErrorName,
    /** One sentence for a person. */
    readonly detail: string,
    facts: Facts = {},
  ) {
    super(`${operation}: ${code}: ${detail}`, facts.cause === undefined ? undefined : { cause: facts.cause });
    const options = codeOptions(code);
    this.retriable = facts.retriable ?? options.retriable;
    this.definite = facts.definite ?? options.definite;
    this.refresh = facts.refresh ?? options.refresh;
    this.hasAnswer = facts.hasAnswer ?? true;
    this.retryAfterMs = facts.retryAfterMs ?? 0;
    this.leader = facts.leader;
    this.controller = facts.controller;
  }

  /** @internal Return the same error with some facts changed. */
  with(facts: Facts): PacelineError {
    return new PacelineError(this.operation, this.code, this.detail, { ...this, cause: this.cause, ...facts });
  }
}

/**
 * Records that the consumer had read are not in the log any more (KIP-320). The next poll continues at
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

/** Read the options of a code from the descriptor of the contract; a code that is not there has none. */
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

/** Turn the failure of a call as a whole into an error with a code. */
export function callError(operation: string, failure: ServiceError): PacelineError {
  let code: ErrorName | undefined;
  const facts: Facts = { cause: failure };
  const packed = failure.metadata?.get("grpc-status-details-bin")[0];
  const details = packed instanceof Buffer ? fromBinary(StatusSchema, packed).details : [];
  for (const detail of details) {
    const info = anyUnpack(detail, ErrorInfoSchema);
    if (info?.domain === ERROR_DOMAIN) {
      code = info.reason in ErrorCode ? (info.reason as ErrorName) : "UNKNOWN_SERVER_ERROR";
      facts.controller = info.metadata["address"];
    }
    const delay = anyUnpack(detail, RetryInfoSchema)?.retryDelay;
    if (delay !== undefined) facts.retryAfterMs = Number(delay.seconds) * 1000 + delay.nanos / 1e6;
  }
  if (code !== undefined) return new PacelineError(operation, code, failure.details, facts);
  return withoutAnswer(operation, failure);
}

/** Return the failure of a call that no server of ours answered. */
function withoutAnswer(operation: string, failure: ServiceError): PacelineError {
  const facts = { cause: failure, hasAnswer: false, definite: false, retriable: true, refresh: true };
  const final = { ...facts, retriable: false, refresh: false };
  if (failure.code === status.RESOURCE_EXHAUSTED && /larger than|too large/i.test(failure.details)) {
    return new PacelineError(operation, "MESSAGE_TOO_LARGE", failure.details, final);
  }
  switch (failure.code) {
    case status.DEADLINE_EXCEEDED:
      return new PacelineError(operation, "REQUEST_TIMED_OUT", "no answer in time", facts);
    // gRPC itself ends calls with any of these when a connection breaks.
    case status.RESOURCE_EXHAUSTED:
    case status.UNAVAILABLE:
    case status.CANCELLED:
    case status.INTERNAL:
    case status.UNKNOWN: {
      // grpc-js says these before anything was sent.
      const isUnsent = /^(No connection established|Name resolution failed)/.test(failure.details);
      return new PacelineError(operation, "BROKER_NOT_AVAILABLE", failure.details, { ...facts, definite: isUnsent });
    }
    default:
      return new PacelineError(operation, "UNKNOWN_SERVER_ERROR", failure.details, final);
  }
}
