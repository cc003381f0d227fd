import { readFileSync } from "node:fs";
import {
  create,
  fromBinary,
  toBinary,
  type DescMessage,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  type MessageInitShape,
  type MessageShape,
} from "@bufbuild/protobuf";
import { Client as GrpcClient, credentials, Metadata, type ChannelCredentials, type ServiceError } from "@grpc/grpc-js";
import { callError, PacelineError } from "./errors.js";
import type { Limit } from "./limit.js";

const LARGEST_MESSAGE_BYTES = 64 * 1024 * 1024;

/** PEM files of a connection with TLS. */
export interface TlsFiles {
  /** Certificates of the authorities that the client trusts. */
  caFile: string;
  /** Certificate that identifies this client; together with keyFile. */
  certFile?: string | undefined;
  keyFile?: string | undefined;
}

/** Read the files and return credentials for all connections of a client. Later changes of the files have no effect. */
export function channelCredentials(tls: TlsFiles | undefined): ChannelCredentials {
  if (tls === undefined) return credentials.createInsecure();
  if ((tls.certFile === undefined) !== (tls.keyFile === undefined)) {
    throw new TypeError("tls.certFile and tls.keyFile must be given together");
  }
  const read = (file: string | undefined) => (file === undefined ? null : readFileSync(file));
  return credentials.createSsl(read(tls.caFile), read(tls.keyFile), read(tls.certFile));
}

/** One gRPC channel to one process. */
export class Connection {
  private readonly grpc: GrpcClient;

  constructor(
    readonly address: string,
    security: ChannelCredentials,
  ) {
    this.grpc = new GrpcClient(address, security, {
      "grpc.max_receive_message_length": LARGEST_MESSAGE_BYTES,
      "grpc.keepalive_time_ms": 30_000,
      "grpc.keepalive_timeout_ms": 10_000,
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 1_000,
      "grpc.enable_retries": 0, // The client retries, because gRPC does not know which calls may be repeated.
      "grpc.service_config_disable_resolution": 1,
    });
  }

  close(): void {
    this.grpc.close();
  }

  /** Call a method and return the answer. Throw a PacelineError, or the reason of the limit's signal. */
  async unary<I extends DescMessage, O extends DescMessage>(
    operation: string,
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    limit: Limit,
  ): Promise<MessageShape<O>> {
    limit.signal?.throwIfAborted();
    const bytes = encoded(operation, method.input, request);
    let onAbort: (() => void) | undefined;
    try {
      return await new Promise<MessageShape<O>>((resolve, reject) => {
        const call = this.grpc.makeUnaryRequest(
          path(method),
          (message: Buffer) => message,
          (answer: Buffer) => fromBinary(method.output, answer),
          bytes,
          new Metadata(),
          { deadline: Date.now() + limit.leftMs },
          (failure, answer) => {
            if (failure !== null) reject(callError(operation, failure));
            else if (answer === undefined) reject(new PacelineError(operation, "UNKNOWN_SERVER_ERROR", "the answer is empty"));
            else resolve(answer);
          },
        );
        onAbort = () => {
          call.cancel();
          reject(limit.signal?.reason);
        };
        limit.signal?.addEventListener("abort", onAbort, { once: true });
      });
    } finally {
      if (onAbort !== undefined) limit.signal?.removeEventListener("abort", onAbort);
    }
  }

  /**
   * Call a method and yield its answers until the server ends the stream, the signal fires, or the caller stops. Throw
   * REQUEST_TIMED_OUT when the server sends nothing for `silenceMs`.
   */
  async *serverStream<I extends DescMessage, O extends DescMessage>(
    operation: string,
    method: DescMethodServerStreaming<I, O>,
    request: MessageInitShape<I>,
    silenceMs: number,
    signal?: AbortSignal,
  ): AsyncGenerator<MessageShape<O>, void> {
    signal?.throwIfAborted();
    const call = this.grpc.makeServerStreamRequest(
      path(method),
      (message: Buffer) => message,
      (answer: Buffer) => fromBinary(method.output, answer),
      encoded(operation, method.input, request),
    );
    const onAbort = () => call.cancel();
    signal?.addEventListener("abort", onAbort, { once: true });
    const answers = call[Symbol.asyncIterator]();
    let isSilent = false;
    const onSilence = () => {
      isSilent = true;
      call.cancel();
    };
    try {
      for (;;) {
        // The timer runs only during this wait: while the caller handles an answer, the server is not silent.
        const timer = setTimeout(onSilence, silenceMs);
        const next = await answers.next().finally(() => clearTimeout(timer));
        if (next.done === true) break;
        yield next.value as MessageShape<O>;
      }
    } catch (failure) {
      signal?.throwIfAborted();
      if (isSilent) {
        const facts = { hasAnswer: false, definite: false, retriable: true, refresh: true };
        throw new PacelineError(operation, "REQUEST_TIMED_OUT", `no message for ${silenceMs} ms`, facts);
      }
      throw callError(operation, failure as ServiceError);
    } finally {
      signal?.removeEventListener("abort", onAbort);
      await answers.return?.();
      call.cancel();
    }
    signal?.throwIfAborted();
  }
}

/** Encode a request. Throw INVALID_REQUEST for an invalid value, which gRPC would report as a failure of the connection. */
function encoded<I extends DescMessage>(operation: string, schema: I, request: MessageInitShape<I>): Buffer {
  try {
    return Buffer.from(toBinary(schema, create(schema, request)));
  } catch (error) {
    const detail = error instanceof Error ? error.message : String(error);
    throw new PacelineError(operation, "INVALID_REQUEST", detail, { hasAnswer: false, cause: error });
  }
}

function path(method: { name: string; parent: { typeName: string } }): string {
  return `/${method.parent.typeName}/${method.name}`;
}
