// Measurement: latency and bandwidth of the links of a Communicator, as Communicator::measure() found them. Plain data. Thread
// rules: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hmc/export.h"

namespace hmc {

struct MeasuredLink {
  int source = 0, target = 0;  // ranks
  double latency_us = 0;       // one way, small message
  double bandwidth = 0;        // bytes per second, from source to target, with nothing else on the links
};

struct Measurement {
  std::int64_t time = 0;            // when the links were measured, in seconds since 1970 UTC, by rank 0's clock
  bool cached = false;              // read from rank 0's cache file, not measured by this call
  std::vector<MeasuredLink> links;  // both directions of every measured pair of ranks

  // "measured 2026-11-26 12:31 UTC", ", from the cache" if it was.
  [[nodiscard]] HMC_API std::string origin() const;
  // A table within 80 columns.
  [[nodiscard]] HMC_API std::string str() const;
};

struct MeasureOptions {
  // Measure even if the cache file has figures; if any rank says so, all measure.
  bool refresh = false;
};

}  // namespace hmc
