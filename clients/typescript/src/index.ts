/** The Paceline client for Node. Start with `new Client({ bootstrap: "127.0.0.1:9102" })`. */
export { Admin, type NewTopic, type Place } from "./admin.js";
export { Client, configFromEnvironment, type ClientConfig } from "./client.js";
export type { TlsFiles } from "./connection.js";
export { Consumer, type ConsumerConfig, type ConsumerRecord, type PollOptions, type ResetPolicy } from "./consumer.js";
export {
  CommitFailedError,
  FencedInstanceIdError,
  PacelineError,
  RebalanceInProgressError,
  TruncatedError,
  type ErrorName,
} from "./errors.js";
export type { ClusterEvent } from "./gen/paceline/v1/cluster_event_pb.js";
export type {
  BrokerInfo,
  DescribeClusterResponse,
  EventBatch,
  EventGap,
  PartitionDescription,
  TopicDescription,
} from "./gen/paceline/v1/metadata_service_pb.js";
export { rangeAssignor, roundRobinAssignor, type Assignor, type GroupMember, type TopicPartition } from "./groups/assignors.js";
export type { GroupConfig, RebalanceListener } from "./groups/config.js";
export { GroupConsumer } from "./groups/group_consumer.js";
export type { CommittedOffset, OffsetToCommit } from "./groups/offsets.js";
export type { CallOptions } from "./limit.js";
export { partitionForKey } from "./partitioner.js";
export { Producer, type Bytes, type ProducerConfig, type ProducerRecord, type RecordPlace } from "./producer.js";
