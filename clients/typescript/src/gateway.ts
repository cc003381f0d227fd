// Connects to the gateways that the environment names; README.md lists the variables.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { credentials, status, type ServiceError } from "@grpc/grpc-js";
import { GatewayServiceClient } from "./gen/paceline/v1/gateway_service.js";

const PASSING = [status.UNAVAILABLE, status.ABORTED, status.DEADLINE_EXCEEDED];
const MOST_FAILURES = 60;

/** Ends the program. */
export function usage(text: string): never {
  console.error(`usage: ${text}`);
  process.exit(2);
}

/** Yields clients without end: one of each gateway in turn. */
export function* gateways(): Generator<GatewayServiceClient, never> {
  const addresses = (process.env.PACELINE_GATEWAYS ?? "localhost:9095").split(",");
  const clients = addresses.map((address) => new GatewayServiceClient(address, channelCredentials()));
  for (;;) yield* clients;
}

function channelCredentials() {
  const [ca, key, certificate] = ["CA", "KEY", "CERTIFICATE"].map((name) => {
    const path = process.env[`PACELINE_SSL_${name}_FILE`];
    return path ? readFileSync(path) : null;
  });
  return ca ? credentials.createSsl(ca, key, certificate) : credentials.createInsecure();
}

/**
 * Sleeps for a second after an error that may be over at the next attempt. Ends the program after any other error, and
 * after too many failures in a row.
 */
export async function pauseAfter(error: unknown, failures: number): Promise<void> {
  const { code, details } = error as ServiceError;
  if (!PASSING.includes(code) || failures >= MOST_FAILURES) {
    console.error(details ?? error);
    process.exit(1);
  }
  console.error(`${details}; trying the next gateway`);
  await sleep(1000);
}
