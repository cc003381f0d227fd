import { Admin } from "./admin.js";
import { Cluster, type Leader } from "./cluster.js";
import { channelCredentials, type Connection, type TlsFiles } from "./connection.js";
import { Consumer, type ConsumerConfig } from "./consumer.js";
import { PacelineError } from "./errors.js";
import { GroupConsumer } from "./groups/group_consumer.js";
import type { GroupConfig } from "./groups/config.js";
import { Limit } from "./limit.js";
import { Producer, type ProducerConfig } from "./producer.js";

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 1_000;
/** Attempts and pauses end within the second after this time, so that a failure that lasts is written within two seconds. */
const QUIET_MS = 1_000;
/** A producer reports an attempt without an answer after this time. */
const SLOW_MS = 1_500;
const REMIND_MS = 10_000;
/** An attempt with less time than this would hardly be answered, and would make a known outcome unknown. */
export const SHORTEST_ATTEMPT_MS = 200;

/** How to reach a cluster. */
export interface ClientConfig {
  /** Addresses (host:port) of any brokers or controllers of the cluster. */
  bootstrap: string | readonly string[];
  /** Longest time for one request in milliseconds; 10,000 by default. */
  requestTimeoutMs?: number | undefined;
  /** With these files connections use TLS. They are read once, by the constructor. */
  tls?: TlsFiles | undefined;
  /**
   * Called for every failure that is about to be retried, and when a producer has waited 1.5 seconds for an answer, with the
   * time since the first attempt. By default a failure that lasts is written to the console within two seconds and every ten
   * seconds from then on.
   */
  onRetry?: ((error: PacelineError, elapsedMs: number) => void) | undefined;
}

/**
 * Return the configuration in PACELINE_BOOTSTRAP_SERVERS (127.0.0.1:9102 without it) and PACELINE_SSL_*_FILE, which
 * `paceline dev up` prints.
 */
export function configFromEnvironment(environment: NodeJS.ProcessEnv = process.env): ClientConfig {
  const caFile = environment["PACELINE_SSL_CA_FILE"];
  if (!caFile && (environment["PACELINE_SSL_CERTIFICATE_FILE"] || environment["PACELINE_SSL_KEY_FILE"])) {
    throw new TypeError("TLS needs PACELINE_SSL_CA_FILE, too"); // Without it the client would connect in plain text.
  }
  return {
    bootstrap: environment["PACELINE_BOOTSTRAP_SERVERS"] ?? "127.0.0.1:9102",
    tls:
      caFile === undefined || caFile === ""
        ? undefined
        : {
            caFile,
            certFile: environment["PACELINE_SSL_CERTIFICATE_FILE"] || undefined,
            keyFile: environment["PACELINE_SSL_KEY_FILE"] || undefined,
          },
  };
}

/** A cluster: makes producers and consumers, which share its connections. It connects with the first call. */
export class Client {
  readonly admin: Admin;
  /** @internal */
  readonly cluster: Cluster;
  /** @internal */
  readonly requestTimeoutMs: number;
  /** @internal */
  readonly onRetry: (error: PacelineError, elapsedMs: number) => void;

  constructor(config: ClientConfig) {
    const addresses = typeof config.bootstrap === "string" ? config.bootstrap.split(",") : config.bootstrap;
    const bootstrap = addresses.map((address) => address.trim()).filter((address) => address !== "");
    if (bootstrap.length === 0) throw new TypeError("bootstrap names no address");
    for (const address of bootstrap) {
      const port = Number(/^(?:\[[^[\]\s]+\]|[^:[\]\s]+):(\d{1,5})$/.exec(address)?.[1]);
      if (!(port >= 1 && port <= 65_535)) throw new TypeError(`bootstrap: ${JSON.stringify(address)} is not host:port`);
    }
    this.cluster = new Cluster(bootstrap, channelCredentials(config.tls));
    this.requestTimeoutMs = config.requestTimeoutMs ?? 10_000;
    this.onRetry = config.onRetry ?? warnOfLastingFailures();
    this.admin = new Admin(this);
  }

  /** Return a producer of this cluster. */
  producer(config: ProducerConfig = {}): Producer {
    return new Producer(this, config);
  }

  /** Return a consumer of this cluster that has no partitions yet. */
  consumer(config: ConsumerConfig = {}): Consumer {
    return new Consumer(this, config);
  }

  /** Return a member of a consumer group; subscribe it to topics. */
  groupConsumer(config: GroupConfig): GroupConsumer {
    return new GroupConsumer(this, config);
  }

  /** End every connection; calls in flight fail. Close producers and members of groups first. */
  close(): void {
    this.cluster.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** @internal Attempt until success, a failure that stays, or the end of the limit; then throw the last real cause. */
  async retry<T>(limit: Limit, attempt: (limit: Limit) => Promise<T>, isRepeated = isRepeatable): Promise<T> {
    const start = performance.now();
    let pauseMs = FIRST_PAUSE_MS;
    let cause: PacelineError | undefined;
    for (;;) {
      try {
        return await attempt(limit.within(this.requestTimeoutMs));
      } catch (error) {
        if (!(error instanceof PacelineError) || !isRepeated(error)) throw error;
        // An answer says more than a call without one.
        if (cause === undefined || error.hasAnswer || !cause.hasAnswer) cause = error;
        this.onRetry(error, performance.now() - start);
        const chosenMs = pauseMs * (0.8 + 0.4 * Math.random());
        const allowedMs = limit.leftMs - SHORTEST_ATTEMPT_MS;
        limit.signal?.throwIfAborted();
        if (allowedMs <= error.retryAfterMs) throw cause;
        await limit.sleep(Math.min(Math.max(error.retryAfterMs, chosenMs), allowedMs));
        pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
      }
    }
  }

  /** @internal Retry as `retry` does, and report a wait of SLOW_MS, which may be that for the first answer. */
  async retryOfProducer<T>(
    operation: string,
    limit: Limit,
    attempt: (limit: Limit) => Promise<T>,
    isRepeated: (error: PacelineError) => boolean,
  ): Promise<T> {
    const start = performance.now();
    let last = new PacelineError(operation, "REQUEST_TIMED_OUT", "no answer yet", { hasAnswer: false });
    const timer = setTimeout(() => this.onRetry(last, performance.now() - start), SLOW_MS);
    const noted = (error: PacelineError) => {
      last = error;
      return isRepeated(error);
    };
    try {
      return await this.retry(limit, attempt, noted);
    } finally {
      clearTimeout(timer);
    }
  }

  /** @internal Attempt a call once at the leader of a partition, and learn from its failure. */
  async onLeader<T>(
    topic: string,
    partition: number,
    limit: Limit,
    call: (connection: Connection, leader: Leader, topicId: string) => Promise<T>,
  ): Promise<T> {
    const { leader, address, topicId } = await this.cluster.leader(topic, partition, limit);
    try {
      return await call(this.cluster.connection(address), leader, topicId);
    } catch (error) {
      if (error instanceof PacelineError) this.cluster.learnFrom(error, topic, partition, leader);
      throw error;
    }
  }
}

/** Whether an idempotent request is sent again after an error. */
export function isRepeatable(error: PacelineError): boolean {
  return error.retriable || error.refresh;
}

function warnOfLastingFailures(): (error: PacelineError, elapsedMs: number) => void {
  let nextMs = 0;
  return (error, elapsedMs) => {
    if (elapsedMs < QUIET_MS || performance.now() < nextMs) return;
    nextMs = performance.now() + REMIND_MS;
    console.warn(`paceline: waiting for ${(elapsedMs / 1000).toFixed(1)} s: ${error.message}`);
  };
}
