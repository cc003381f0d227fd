// Publishes each line of the standard input as a record: node dist/publish.js TOPIC < FILE
import { createInterface } from "node:readline";
import { Metadata } from "@grpc/grpc-js";
import { gateways, pauseAfter, usage } from "./gateway.js";
import { PublishRecord, PublishRequest, type PublishResponse } from "./gen/paceline/v1/gateway_service.js";

const RECORDS_PER_CALL = 500;

const [topic = usage("node dist/publish.js TOPIC < FILE")] = process.argv.slice(2);
const clients = gateways();
let client = clients.next().value;
let records: PublishRecord[] = [];
let published = 0;

for await (const line of createInterface({ input: process.stdin })) {
  // Records with equal keys stay in order: { key: ..., value: ... }
  records.push(PublishRecord.fromPartial({ value: Buffer.from(line) }));
  if (records.length === RECORDS_PER_CALL) await publishRecords();
}
if (records.length > 0) await publishRecords();
console.log(`${published} records published`);

async function publishRecords(): Promise<void> {
  const { results } = await publish(PublishRequest.fromPartial({ topic, records }));
  const error = results.find((result) => result.error)?.error;
  if (error) throw new Error(`a record was not published: ${error.message}`);
  published += records.length;
  records = [];
}

async function publish(request: PublishRequest): Promise<PublishResponse> {
  for (let failures = 1; ; failures++) {
    try {
      return await publishOnce(request);
    } catch (error) {
      // If only the answer was lost, the next attempt appends the records twice; IdempotentProducer in the proto prevents it.
      await pauseAfter(error, failures);
      client = clients.next().value;
    }
  }
}

function publishOnce(request: PublishRequest): Promise<PublishResponse> {
  return new Promise((resolve, reject) => {
    client.publish(request, new Metadata(), { deadline: Date.now() + 60_000 }, (error, response) =>
      error ? reject(error) : resolve(response),
    );
  });
}
