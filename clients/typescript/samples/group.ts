// Prints the records of a topic as a member of a group, until Ctrl-C: node dist/samples/group.js TOPIC [GROUP]
//
// Start it several times: the members share the partitions. A member that is started again continues after the last commit.
import { Client, configFromEnvironment, type TopicPartition } from "paceline";

const [topic, groupId = "rides-readers"] = process.argv.slice(2);
if (topic === undefined) {
  console.error("usage: group.js TOPIC [GROUP]");
  process.exit(2);
}
const stop = new AbortController();
process.once("SIGINT", () => stop.abort());
const named = (partitions: TopicPartition[]) => partitions.map((one) => `${one.topic}/${one.partition}`).join(" ") || "no partition";

using client = new Client(configFromEnvironment());
// At the end of the program the member leaves, so that the others need not wait for its session time-out.
await using consumer = client.groupConsumer({ groupId, autoCommit: false });
consumer.subscribe(topic, {
  onPartitionsAssigned: (partitions) => console.error(`assigned ${named(partitions)}`),
  onPartitionsRevoked: (partitions) => console.error(`revoked ${named(partitions)}`),
});
try {
  for (;;) {
    const records = await consumer.poll({ signal: stop.signal });
    for (const { partition, offset, value } of records) {
      console.log(`${partition}\t${offset}\t${value === null ? "null" : Buffer.from(value).toString()}`);
    }
    if (records.length > 0) await consumer.commit();
  }
} catch (error) {
  if (!stop.signal.aborted) throw error;
}
