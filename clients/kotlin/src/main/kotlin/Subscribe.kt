// Prints the records of a topic as "partition offset value"; all programs of a group share them: subscribe TOPIC GROUP
import io.grpc.StatusException
import io.paceline.v1.Positions
import io.paceline.v1.SubscribeRequest
import io.paceline.v1.Subscription
import kotlin.concurrent.thread
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.Channel.Factory.UNLIMITED
import kotlinx.coroutines.flow.consumeAsFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking

@Volatile private var stopping = false
@Volatile private var requests = Channel<SubscribeRequest>(UNLIMITED)

fun main(arguments: Array<String>) = runBlocking {
    if (arguments.size != 2) fail("usage: subscribe TOPIC GROUP")
    val (topic, group) = arguments
    val reading = launch { read(Subscription.newBuilder().addTopics(topic).setGroup(group).build()) }
    Runtime.getRuntime().addShutdownHook(
        thread(start = false) {
            stopping = true
            requests.close() // Closes our side of the stream; the gateway commits and closes the other.
            runBlocking { reading.join() }
        },
    )
}

private suspend fun read(subscription: Subscription) {
    val stubs = gateways()
    var failures = 0
    while (!stopping) {
        requests = Channel(UNLIMITED)
        requests.trySend(SubscribeRequest.newBuilder().setSubscribe(subscription).build())
        if (stopping) requests.close()
        try {
            stubs.next().subscribe(requests.consumeAsFlow()).collect { response ->
                if (!response.hasRecords() || stopping) return@collect // Other responses are notices.
                val batch = response.records
                for (record in batch.recordsList) println("${batch.partition}\t${record.offset}\t${record.value.toStringUtf8()}")
                // Everything before this position is processed: after a failure the next stream begins here.
                val processed = Positions.newBuilder().addPositions(batch.next)
                requests.trySend(SubscribeRequest.newBuilder().setAcknowledge(processed).build())
                failures = 0
            }
        } catch (error: StatusException) {
            pauseAfter(error, ++failures)
        }
    }
}
