const LONGEST_SERVER_WAIT_MS = 600_000;

/** Options of every call that waits. */
export interface CallOptions {
  /** Ends the call early: it rejects with the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** Longest time for the call, retries included, in milliseconds. */
  timeoutMs?: number | undefined;
}

/** Let the event loop run once, so that answers can arrive. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** The deadline of an operation, and the signal that ends it early. */
export class Limit {
  private constructor(
    private readonly deadline: number,
    readonly signal: AbortSignal | undefined,
  ) {}

  static of(options: CallOptions, defaultMs: number): Limit {
    return Limit.in(options.timeoutMs ?? defaultMs, options.signal);
  }

  static in(timeoutMs: number, signal?: AbortSignal): Limit {
    return new Limit(performance.now() + timeoutMs, signal);
  }

  /** Return a limit that also ends after a time. */
  within(timeoutMs: number): Limit {
    return new Limit(Math.min(this.deadline, performance.now() + timeoutMs), this.signal);
  }

  get leftMs(): number {
    return Math.max(0, this.deadline - performance.now());
  }

  /** Return the longest wait of a server whose answer must arrive in time; at most ten minutes, the servers' own limit. */
  get serverWaitMs(): number {
    return Math.max(1, Math.floor(Math.min(this.leftMs * 0.8, LONGEST_SERVER_WAIT_MS)));
  }

  /** Pause. Return false when the limit ends first; throw the reason of the signal when it fires. */
  async sleep(pauseMs: number): Promise<boolean> {
    const isWhole = pauseMs <= this.leftMs;
    await this.race(undefined, Math.min(pauseMs, this.leftMs));
    return isWhole;
  }

  /** Wait for a promise. Return undefined when the limit ends first; throw the reason of the signal when it fires. */
  async race<T>(promise: Promise<T> | undefined, atMostMs: number = this.leftMs): Promise<T | undefined> {
    promise?.catch(() => undefined); // If the limit or the signal ends the race, a later rejection must not be unhandled.
    this.signal?.throwIfAborted();
    let timer: NodeJS.Timeout | undefined;
    let onAbort: (() => void) | undefined;
    const ended = new Promise<undefined>((resolve, reject) => {
      timer = setTimeout(() => resolve(undefined), Math.min(Math.ceil(atMostMs), 0x7fffffff));
      onAbort = () => reject(this.signal?.reason);
      this.signal?.addEventListener("abort", onAbort, { once: true });
    });
    try {
      return await (promise === undefined ? ended : Promise.race([promise, ended]));
    } finally {
      clearTimeout(timer);
      if (onAbort !== undefined) this.signal?.removeEventListener("abort", onAbort);
    }
  }
}
