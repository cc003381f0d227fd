// Prints the events of the cluster (elections, ISR changes, brokers) until Ctrl-C: node dist/samples/watch.js
import { Client, configFromEnvironment } from "paceline";

const stop = new AbortController();
process.once("SIGINT", () => stop.abort());

using client = new Client(configFromEnvironment());
try {
  for await (const event of client.admin.watchEvents({ signal: stop.signal })) {
    console.log(JSON.stringify(event, (key, value) => (key === "$typeName" ? undefined : typeof value === "bigint" ? String(value) : value)));
  }
} catch (error) {
  if (!stop.signal.aborted) throw error;
}
