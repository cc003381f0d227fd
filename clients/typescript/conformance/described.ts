import { PacelineError } from "paceline";

/** Return the JSON form of an error in an answer of the driver. */
export function described(error: unknown): object {
  if (error instanceof PacelineError) return { code: error.code, message: error.message, definite: error.definite };
  // The client throws these errors for invalid arguments, without a request.
  if (error instanceof TypeError || error instanceof RangeError) return { code: "INVALID_REQUEST", message: error.message, definite: true };
  return { code: "UNKNOWN_SERVER_ERROR", message: String(error), definite: false };
}
