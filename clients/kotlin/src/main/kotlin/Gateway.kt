// Connects to the gateways that the environment names; README.md lists the variables.
import io.grpc.ChannelCredentials
import io.grpc.Grpc
import io.grpc.InsecureChannelCredentials
import io.grpc.Status.Code
import io.grpc.StatusException
import io.grpc.TlsChannelCredentials
import io.paceline.v1.GatewayServiceGrpcKt.GatewayServiceCoroutineStub
import java.io.File
import kotlin.system.exitProcess
import kotlin.time.Duration.Companion.seconds
import kotlinx.coroutines.delay

private val PASSING = setOf(Code.UNAVAILABLE, Code.ABORTED, Code.DEADLINE_EXCEEDED)
private const val MOST_FAILURES = 60

/** Returns stubs without end: one of each gateway in turn. */
fun gateways(): Iterator<GatewayServiceCoroutineStub> {
    val addresses = (System.getenv("PACELINE_GATEWAYS") ?: "localhost:9095").split(",")
    val stubs = addresses.map { GatewayServiceCoroutineStub(Grpc.newChannelBuilder(it, credentials()).build()) }
    return generateSequence { stubs }.flatten().iterator()
}

private fun credentials(): ChannelCredentials {
    fun file(name: String) = System.getenv("PACELINE_SSL_${name}_FILE")?.let(::File)
    val ca = file("CA") ?: return InsecureChannelCredentials.create()
    val tls = TlsChannelCredentials.newBuilder().trustManager(ca)
    file("CERTIFICATE")?.let { tls.keyManager(it, file("KEY")) }
    return tls.build()
}

/**
 * Waits for a second after an error that may be over at the next attempt. Throws any other error, and the last of too
 * many failures in a row.
 */
suspend fun pauseAfter(error: StatusException, failures: Int) {
    if (error.status.code !in PASSING || failures >= MOST_FAILURES) throw error
    System.err.println("${error.message}; trying the next gateway")
    delay(1.seconds)
}

/** Prints the reason and ends the program. */
fun fail(reason: String): Nothing {
    System.err.println(reason)
    exitProcess(1)
}
