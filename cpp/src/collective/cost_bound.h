// The least time that a collective can take, by any algorithm. Pure.
#pragma once

#include <cstdint>

#include "collective/call.h"
#include "collective/cost.h"

namespace hmc {

// The largest of three bounds, for n ranks and `bytes` = N, the size of a rank's largest buffer in the call, in n equal blocks
// where it has blocks. s(r) and t(r) are the bytes that rank r at least sends and receives, V those that all ranks send.
//
// Volume: the least latency + max over ranks of s(r), t(r) / bandwidth, and V / the bandwidth of all ranks. The bandwidth of a rank
// is its injection bandwidth, or that of its links together where that is less.
//   all_reduce      s = t = N, V = 2N(n-1): an element takes 2(n-1) messages (Harary and Schwenk 1974). For equal ranks this is
//                   2N(n-1)/n each (Patarasuk and Yuan 2009).
//   reduce_scatter  s = N(n-1)/n, t = N/n, V = N(n-1)        all_gather  the same with s and t exchanged
//   broadcast       t = N, of the root s = N, V = N(n-1)     reduce      the same with s and t exchanged
//   scatter         t = N/n, of the root s = V = N(n-1)/n    gather      the same with s and t exchanged
//   all_to_all      s = t = N(n-1)/n, V = N(n-1)             barrier     nothing
// (Chan, Heimlich, Purkayastha, van de Geijn 2007 have those of equal ranks.)
//
// Latency: n ranks are informed by one (in reduce and gather: one by n) in the time of the optimal broadcast in the LogP model
// (Karp, Sahay, Santos, Schauser 1993), which is log2 n latencies where ranks are busy for as long as a message travels.
//
// Reduction: nN bytes of inputs / the reduction rate of all ranks.
//
// `kind` is one of these, `root` a rank of `model`, and CostModel::check() accepts `model`.
[[nodiscard]] double lower_bound(CallKind kind, std::uint64_t bytes, std::uint32_t root, const CostModel& model);

}  // namespace hmc
