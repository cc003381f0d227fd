/// The client library of Paceline. Begin with paceline::Client.
#pragma once

#include "paceline/client.hpp"
#include "paceline/consumer.hpp"
#include "paceline/errors.hpp"
#include "paceline/group_consumer.hpp"
#include "paceline/options.hpp"
#include "paceline/partitioner.hpp"
#include "paceline/producer.hpp"
#include "paceline/record.hpp"
