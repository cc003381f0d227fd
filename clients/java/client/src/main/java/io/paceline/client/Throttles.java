package io.paceline.client;

import com.google.protobuf.Any;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Duration;
import com.google.protobuf.Message;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.paceline.v1.AdminServiceGrpc;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** Keeps the pauses that servers ask for with throttle_ms, because this client is above a quota. */
final class Throttles {
    /** End of the pause in {@link System#nanoTime}, by address and method. */
    private final Map<String, Long> untilNanos = new ConcurrentHashMap<>();
    private final AtomicLong totalMs = new AtomicLong();

    /** Returns the sum of all pauses. */
    long totalMs() {
        return totalMs.get();
    }

    /** Returns an interceptor of the calls to an address: it fails a call before the pause is over, without sending it. */
    ClientInterceptor at(String address) {
        return new ClientInterceptor() {
            @Override
            public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
                // A pause of the controller is for all changes of partitions.
                boolean isAdmin = AdminServiceGrpc.SERVICE_NAME.equals(method.getServiceName());
                String key = address + " " + (isAdmin ? method.getServiceName() : method.getFullMethodName());
                Long until = untilNanos.get(key);
                long leftNanos = until == null ? 0 : until - System.nanoTime();
                if (leftNanos > 0) {
                    throw throttled(leftNanos);
                }
                return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
                    @Override
                    public void start(Listener<A> listener, Metadata headers) {
                        super.start(new SimpleForwardingClientCallListener<A>(listener) {
                            @Override
                            public void onMessage(A answer) {
                                note(key, throttleMs(answer));
                                super.onMessage(answer);
                            }
                        }, headers);
                    }
                };
            }
        };
    }

    private void note(String key, int pauseMs) {
        if (pauseMs > 0) {
            untilNanos.put(key, System.nanoTime() + pauseMs * 1_000_000L);
            totalMs.addAndGet(pauseMs);
        }
    }

    private static int throttleMs(Object answer) {
        Message message = (Message) answer;
        FieldDescriptor field = message.getDescriptorForType().findFieldByName("throttle_ms");
        return field == null ? 0 : (int) message.getField(field);
    }

    /** Makes the status THROTTLED, which says when to repeat the call. */
    private static StatusRuntimeException throttled(long nanos) {
        ErrorInfo info = ErrorInfo.newBuilder().setDomain("paceline").setReason("THROTTLED").build();
        Duration delay = Duration.newBuilder().setSeconds(nanos / 1_000_000_000).setNanos((int) (nanos % 1_000_000_000)).build();
        return StatusProto.toStatusRuntimeException(com.google.rpc.Status.newBuilder()
                .setCode(Status.Code.RESOURCE_EXHAUSTED.value())
                .setMessage("this client is above a quota; the request was not sent yet")
                .addDetails(Any.pack(info))
                .addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(delay).build()))
                .build());
    }
}
