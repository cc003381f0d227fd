# Prints the records of a topic as "partition offset value"; all programs of a group share them:
#   ruby subscribe.rb TOPIC GROUP
require_relative "gateway"
include Paceline::V1

topic, group = ARGV
abort "usage: ruby subscribe.rb TOPIC GROUP" unless group
stubs = gateways
failures = 0
stopping = false
requests = Queue.new
%w[INT TERM].each do |signal|
  trap(signal) do
    stopping = true
    requests << nil # Closes our side of the stream; the gateway commits and closes the other.
  end
end

until stopping
  requests = Queue.new([SubscribeRequest.new(subscribe: Subscription.new(topics: [topic], group: group))])
  requests << nil if stopping
  begin
    responses = stubs.next.subscribe(Enumerator.produce { requests.pop || raise(StopIteration) })
    responses.each do |response|
      batch = response.records
      next if batch.nil? || stopping # Other responses are notices.

      batch.records.each { |record| puts [batch.partition, record.offset, record.value].join("\t") }
      $stdout.flush
      # Everything before this position is processed: after a failure the next stream begins here.
      requests << SubscribeRequest.new(acknowledge: Positions.new(positions: [batch.next]))
      failures = 0
    end
  rescue GRPC::BadStatus => error
    requests << nil # Ends the thread that sends.
    pause_after error, failures += 1
  end
end
