import { create, fromBinary, toBinary, type DescMethodUnary, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import {
  Metadata,
  Server,
  ServerCredentials,
  status,
  type ServerWritableStream,
  type ServiceDefinition,
  type UntypedServiceImplementation,
} from "@grpc/grpc-js";
import { ErrorInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../src/gen/google/rpc/status_pb.js";
import { ErrorCode } from "../src/gen/paceline/v1/errors_pb.js";
import { LogService, type OffsetSpec, type FetchRequest, type ProducePartition } from "../src/gen/paceline/v1/log_service_pb.js";
import { MetadataService, type EventBatchSchema, type WatchEventsRequest } from "../src/gen/paceline/v1/metadata_service_pb.js";
import type { RecordList as Records } from "../src/gen/paceline/v1/record_pb.js";

/** The fate of one Produce call: it is refused, or its records are appended and its answer is lost. */
export type Obstacle = { code: ErrorCode } | Refusal | "lose answer";

/** Refuses a whole call with a code. */
export class Refusal extends Error {
  constructor(
    private readonly code: keyof typeof ErrorCode,
    private readonly facts: Record<string, string> = {},
    /** Encoded status details that replace the details with the code. */
    private readonly garbled?: Buffer,
  ) {
    super(code);
  }

  status(): object {
    const info = create(ErrorInfoSchema, { domain: "paceline", reason: this.code, metadata: this.facts });
    const packed = create(StatusSchema, { code: status.FAILED_PRECONDITION, message: "on purpose", details: [anyPack(ErrorInfoSchema, info)] });
    const metadata = new Metadata();
    metadata.set("grpc-status-details-bin", this.garbled ?? Buffer.from(toBinary(StatusSchema, packed)));
    return { code: status.FAILED_PRECONDITION, details: "on purpose", metadata };
  }
}

/** The broker of a cluster with one broker and one topic, on real gRPC. It appends a repeated idempotent batch only once. */
export class FakeBroker {
  readonly calls: ProducePartition[] = [];
  readonly values: string[][];
  readonly obstacles: Obstacle[] = [];
  readonly fetches: FetchRequest[] = [];
  /** Error of a partition's next fetch, by partition. */
  readonly fetchErrors = new Map<number, ErrorCode>();
  divergingOnce: { epoch: number; endOffset: bigint } | undefined;
  /** Id of the topic; a fetch with another id is refused. */
  topicId = "topic-id";
  /** Topic ids of the next descriptions of the topic, instead of `topicId`: outdated metadata. */
  readonly oldTopicIds: string[] = [];
  leaderEpoch = 5;
  /** Maximum number of partitions in a description of the topic. */
  describedPartitions = Infinity;
  /** Called at the begin of a Fetch call. */
  onFetch: (() => void) | undefined;
  /** Answers ListOffsets. */
  offsetOf: (spec: OffsetSpec) => bigint | undefined = () => 0n;
  private readonly server = new Server();
  private readonly known = new Map<string, bigint>();
  private nextProducerId = 100n;
  port = 0;

  constructor(
    readonly topic: string,
    readonly partitionCount: number,
  ) {
    this.values = Array.from({ length: partitionCount }, () => []);
    this.serve(MetadataService.method.describeCluster, () => ({
      brokers: [{ id: 1, host: "127.0.0.1", port: this.port }],
      controllerHost: "127.0.0.1",
      controllerPort: this.port,
    }));
    this.serve(MetadataService.method.describeTopics, (request) => ({
      topics: request.topics.map((name) =>
        name === this.topic && this.values.length > 0
          ? {
              name,
              topicId: this.oldTopicIds.shift() ?? this.topicId,
              partitions: this.values.slice(0, this.describedPartitions).map((_, partition) => ({ partition, leader: 1, leaderEpoch: this.leaderEpoch, replicas: [1], isr: [1] })),
            }
          : { name, error: { code: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message: "no such topic" } },
      ),
    }));
    this.serve(LogService.method.initProducerId, () => ({ producerId: this.nextProducerId++, producerEpoch: 0 }));
    this.serve(LogService.method.produce, (request) => this.produce(request.partitions[0]!));
    this.serve(LogService.method.listOffsets, ({ partitions }) => ({
      partitions: partitions.map(({ currentLeaderEpoch = 0, spec }) => {
        if (currentLeaderEpoch > this.leaderEpoch) return { error: { code: ErrorCode.UNKNOWN_LEADER_EPOCH, message: "the epoch is newer" } };
        const offset = this.offsetOf(spec);
        return offset === undefined ? {} : { offset };
      }),
    }));
    this.serve(LogService.method.fetch, (request) => this.fetch(request));
  }

  async start(): Promise<string> {
    this.port = await new Promise((resolve, reject) =>
      this.server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) => (error ? reject(error) : resolve(port))),
    );
    return `127.0.0.1:${this.port}`;
  }

  stop(): void {
    this.server.forceShutdown();
  }

  private produce(partition: ProducePartition): MessageInitShape<(typeof LogService.method.produce)["output"]> {
    this.calls.push(partition);
    const obstacle = this.obstacles.shift();
    const place = { topic: partition.topic, partition: partition.partition };
    if (obstacle instanceof Refusal) throw obstacle;
    if (typeof obstacle === "object") return { partitions: [{ ...place, error: { code: obstacle.code, message: "refused" } }] };
    const list = partition.data.value as Records;
    const number = `${partition.partition} ${list.producerId} ${list.baseSequence}`;
    const log = this.values[partition.partition]!;
    if (!this.known.has(number)) {
      this.known.set(number, BigInt(log.length));
      log.push(...list.records.map((record) => Buffer.from(record.value ?? []).toString()));
    }
    if (obstacle === "lose answer") throw new Error("lost");
    return { partitions: [{ ...place, baseOffset: this.known.get(number)! }] };
  }

  private fetch(request: FetchRequest): MessageInitShape<(typeof LogService.method.fetch)["output"]> {
    this.fetches.push(request);
    this.onFetch?.();
    const asked = request.partitions[0]!;
    const place = { topic: asked.topic, partition: asked.partition };
    if (asked.topicId !== this.topicId) {
      return { partitions: [{ ...place, error: { code: ErrorCode.INCONSISTENT_TOPIC_ID, message: "another topic" } }] };
    }
    const code = this.fetchErrors.get(asked.partition);
    if (code !== undefined) {
      this.fetchErrors.delete(asked.partition);
      return { partitions: [{ ...place, error: { code, message: "on purpose" } }] };
    }
    const divergingEpoch = this.divergingOnce;
    if (divergingEpoch !== undefined && asked.lastFetchedEpoch !== undefined) {
      this.divergingOnce = undefined;
      return { partitions: [{ ...place, divergingEpoch }] };
    }
    const from = Number(asked.fetchOffset);
    const records = this.values[asked.partition]!.slice(from).map((value, index) => ({ value: Buffer.from(value), offset: BigInt(from + index) }));
    return { partitions: [{ ...place, data: { case: "records", value: { records } } }] };
  }

  /**
   * Register WatchEvents; call this before `start`. A call receives the batches that `answer` returns, and then
   * NOT_CONTROLLER; after "silence" it receives nothing.
   */
  serveEvents(answer: (request: WatchEventsRequest) => MessageInitShape<typeof EventBatchSchema>[] | "silence"): void {
    const { watchEvents: method } = MetadataService.method;
    const definition: ServiceDefinition = {
      watchEvents: {
        path: `/${method.parent.typeName}/${method.name}`,
        requestStream: false,
        responseStream: true,
        requestSerialize: (message: WatchEventsRequest) => Buffer.from(toBinary(method.input, message)),
        requestDeserialize: (bytes: Buffer) => fromBinary(method.input, bytes),
        responseSerialize: (message: MessageShape<typeof method.output>) => Buffer.from(toBinary(method.output, message)),
        responseDeserialize: (bytes: Buffer) => fromBinary(method.output, bytes),
      },
    };
    const implementation: UntypedServiceImplementation = {
      watchEvents: (call: ServerWritableStream<WatchEventsRequest, unknown>) => {
        const batches = answer(call.request);
        if (batches === "silence") return;
        for (const batch of batches) call.write(create(method.output, { batch }));
        call.emit("error", new Refusal("NOT_CONTROLLER").status());
      },
    };
    this.server.addService(definition, implementation);
  }

  /** Register a method; call this before `start`. `answer` may throw a Refusal. */
  serve<M extends DescMethodUnary>(
    method: M,
    answer: (request: MessageShape<M["input"]>) => MessageInitShape<M["output"]>,
  ): void {
    const definition: ServiceDefinition = {
      [method.localName]: {
        path: `/${method.parent.typeName}/${method.name}`,
        requestStream: false,
        responseStream: false,
        requestSerialize: (message: MessageShape<M["input"]>) => Buffer.from(toBinary(method.input, message)),
        requestDeserialize: (bytes: Buffer) => fromBinary(method.input, bytes),
        responseSerialize: (message: MessageShape<M["output"]>) => Buffer.from(toBinary(method.output, message)),
        responseDeserialize: (bytes: Buffer) => fromBinary(method.output, bytes),
      },
    };
    const implementation: UntypedServiceImplementation = {
      [method.localName]: (call: { request: MessageShape<M["input"]> }, respond: (error: object | null, answer?: unknown) => void) => {
        try {
          respond(null, create(method.output, answer(call.request)));
        } catch (error) {
          if (error instanceof Refusal) respond(error.status());
          else respond({ code: status.UNAVAILABLE, details: String(error), metadata: new Metadata() });
        }
      },
    };
    this.server.addService(definition, implementation);
  }
}
