"""gRPC glue: servers, channels, conversion between proto and model, errors to statuses, the one retry policy."""
