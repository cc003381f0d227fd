# Connects to the gateways that the environment names; README.md lists the variables.
$LOAD_PATH.unshift File.join(__dir__, "gen")
require "paceline/v1/gateway_service_services_pb"

PASSING = [GRPC::Unavailable, GRPC::Aborted, GRPC::DeadlineExceeded].freeze
MOST_FAILURES = 60

# Returns an endless enumerator of stubs: one of each gateway in turn.
def gateways
  addresses = ENV.fetch("PACELINE_GATEWAYS", "localhost:9095").split(",")
  addresses.map { |address| Paceline::V1::GatewayService::Stub.new(address, credentials) }.cycle
end

# Sleeps for a second after an error that may be over at the next attempt. Ends the program after any other error, and
# after too many failures in a row.
def pause_after(error, failures)
  abort error.details unless PASSING.any? { |kind| error.is_a?(kind) } && failures < MOST_FAILURES
  warn "#{error.details}; trying the next gateway"
  sleep 1
end

def credentials
  ca, key, certificate = %w[CA KEY CERTIFICATE].map do |name|
    path = ENV["PACELINE_SSL_#{name}_FILE"]
    File.read(path) if path
  end
  ca ? GRPC::Core::ChannelCredentials.new(ca, key, certificate) : :this_channel_is_insecure
end
