// Creates, describes and deletes topics: node dist/samples/admin.js create|describe|delete TOPIC, or: admin.js cluster
import { Client, configFromEnvironment, PacelineError } from "paceline";

const [verb, name] = process.argv.slice(2);
using client = new Client(configFromEnvironment());
const { admin } = client;
try {
  if (verb === "cluster") {
    const { brokers, controllerId } = await admin.describeCluster();
    for (const broker of brokers) console.log(`broker ${broker.id} at ${broker.host}:${broker.port}`);
    console.log(`controller ${controllerId ?? "none"}`);
  } else if (verb === "create" && name !== undefined) {
    console.log(`created, topic id ${await admin.createTopic({ name, partitions: 3, replicationFactor: 3 })}`);
  } else if (verb === "describe" && name !== undefined) {
    for (const { partition, leader, isr } of (await admin.describeTopic(name)).partitions) {
      console.log(`partition ${partition}: leader ${leader ?? "none"}, in sync ${isr.join(",")}`);
    }
  } else if (verb === "delete" && name !== undefined) {
    await admin.deleteTopic(name);
    console.log("deleted");
  } else {
    console.error("usage: admin.js cluster | create TOPIC | describe TOPIC | delete TOPIC");
    process.exitCode = 2;
  }
} catch (error) {
  if (!(error instanceof PacelineError)) throw error;
  console.error(error.message);
  process.exitCode = 1;
}
