// Prints the records of a topic as "partition offset value"; all programs of a group share them:
//   node dist/subscribe.js TOPIC GROUP
import { gateways, pauseAfter, usage } from "./gateway.js";
import { SubscribeRequest, type GatewayServiceClient } from "./gen/paceline/v1/gateway_service.js";

const USAGE = "node dist/subscribe.js TOPIC GROUP";

const [topic = usage(USAGE), group = usage(USAGE)] = process.argv.slice(2);
const clients = gateways();
let stream: ReturnType<GatewayServiceClient["subscribe"]> | undefined;
let stopping = false;
let failures = 0;

for (const signal of ["SIGINT", "SIGTERM"]) {
  process.on(signal, () => {
    stopping = true;
    stream?.end(); // Closes our side of the stream; the gateway commits and closes the other.
  });
}

while (!stopping) {
  try {
    stream = clients.next().value.subscribe();
    stream.write(SubscribeRequest.fromPartial({ subscribe: { topics: [topic], group } }));
    for await (const { records: batch } of stream) {
      if (batch === undefined || stopping) continue; // Other responses are notices.
      for (const { offset, value } of batch.records) {
        console.log(`${batch.partition}\t${offset}\t${value ?? ""}`);
      }
      // Everything before this position is processed: after a failure the next stream begins here.
      stream.write(SubscribeRequest.fromPartial({ acknowledge: { positions: [batch.next!] } }));
      failures = 0;
    }
  } catch (error) {
    await pauseAfter(error, ++failures);
  }
}
process.exit(0);
