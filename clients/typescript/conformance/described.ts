import { PacelineError } from "paceline";

/** Return an error as an answer has it. */
export function described(error: unknown): object {
  if (error instanceof PacelineError) return { code: error.code, message: error.message, definite: error.definite };
  // The client refuses bad arguments by itself.
  if (error instanceof TypeError || error instanceof RangeError) return { code: "INVALID_REQUEST", message: error.message, definite: true };
  return { code: "UNKNOWN_SERVER_ERROR", message: String(error), definite: false };
}
