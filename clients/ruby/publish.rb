# Publishes each line of the standard input as a record: ruby publish.rb TOPIC < FILE
require_relative "gateway"
include Paceline::V1

RECORDS_PER_CALL = 500

topic = ARGV.fetch(0) { abort "usage: ruby publish.rb TOPIC < FILE" }
stubs = gateways
stub = stubs.next
published = 0

$stdin.binmode.each_line(chomp: true).each_slice(RECORDS_PER_CALL) do |lines|
  # Records with equal keys stay in order: PublishRecord.new(key: ..., value: ...)
  records = lines.map { |line| PublishRecord.new(value: line) }
  failures = 0
  begin
    response = stub.publish(PublishRequest.new(topic: topic, records: records), deadline: Time.now + 60)
  rescue GRPC::BadStatus => error
    pause_after error, failures += 1
    stub = stubs.next
    retry # If only the answer was lost, this appends the records twice; IdempotentProducer in the proto prevents it.
  end
  failed = response.results.find(&:error)
  abort "a record was not published: #{failed.error.code}: #{failed.error.message}" if failed
  published += lines.size
end
puts "#{published} records published"
