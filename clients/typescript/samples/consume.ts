// Prints the records of a topic from its beginning until Ctrl-C: node dist/samples/consume.js TOPIC
import { Client, configFromEnvironment } from "paceline";

const [topic] = process.argv.slice(2);
if (topic === undefined) {
  console.error("usage: consume.js TOPIC");
  process.exit(2);
}
const stop = new AbortController();
process.once("SIGINT", () => stop.abort());

using client = new Client(configFromEnvironment());
using consumer = client.consumer({ reset: "earliest" });
try {
  await consumer.assignTopic(topic, "earliest", { signal: stop.signal });
  for await (const { partition, offset, value } of consumer.records({ signal: stop.signal })) {
    console.log(`${partition}\t${offset}\t${value === null ? "null" : Buffer.from(value).toString()}`);
  }
} catch (error) {
  if (!stop.signal.aborted) throw error;
}
