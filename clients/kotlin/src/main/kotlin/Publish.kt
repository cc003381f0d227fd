// Publishes each line of the standard input as a record: publish TOPIC < FILE
import com.google.protobuf.ByteString
import io.grpc.StatusException
import io.paceline.v1.PublishRecord
import io.paceline.v1.PublishRequest
import io.paceline.v1.PublishResponse
import java.util.concurrent.TimeUnit.SECONDS

private const val RECORDS_PER_CALL = 500

private val stubs = gateways()
private var stub = stubs.next()

suspend fun main(arguments: Array<String>) {
    val topic = arguments.singleOrNull() ?: fail("usage: publish TOPIC < FILE")
    var published = 0
    for (lines in generateSequence(::readLine).chunked(RECORDS_PER_CALL)) {
        // Records with equal keys stay in order: setKey(...)
        val records = lines.map { PublishRecord.newBuilder().setValue(ByteString.copyFromUtf8(it)).build() }
        val response = publish(PublishRequest.newBuilder().setTopic(topic).addAllRecords(records).build())
        response.resultsList.find { it.hasError() }?.let { fail("a record was not published: ${it.error.message}") }
        published += lines.size
    }
    println("$published records published")
}

private suspend fun publish(request: PublishRequest): PublishResponse {
    var failures = 0
    while (true) {
        try {
            return stub.withDeadlineAfter(60, SECONDS).publish(request)
        } catch (error: StatusException) {
            // If only the answer was lost, the next attempt appends the records twice; IdempotentProducer in the proto
            // prevents it.
            pauseAfter(error, ++failures)
            stub = stubs.next()
        }
    }
}
