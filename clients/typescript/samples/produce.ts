// Writes lines from stdin to a topic, one record per line: node dist/samples/produce.js TOPIC < FILE
import { createInterface } from "node:readline";
import { Client, configFromEnvironment, PacelineError } from "paceline";

const [topic] = process.argv.slice(2);
if (topic === undefined) {
  console.error("usage: produce.js TOPIC < FILE");
  process.exit(2);
}
using client = new Client(configFromEnvironment());
await using producer = client.producer({ lingerMs: 5 });
let written = 0;
let failed = 0;
for await (const value of createInterface({ input: process.stdin })) {
  await producer.ready(); // Bounds the memory: waits while 50,000 records have no outcome.
  producer.send({ topic, value }).then(
    () => written++,
    (error: unknown) => {
      if (failed++ === 0) console.error(error instanceof PacelineError ? error.message : error);
    },
  );
}
await producer.flush();
console.log(`${written} records written, ${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
