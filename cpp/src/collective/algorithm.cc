#include "collective/algorithm.h"

#include <array>

#include "collective/choose.h"
#include "collective/fused/one_shot.h"

namespace hmc {
namespace {

constexpr std::string_view alone = "local";

struct Named {
  CallKind kind;
  Algorithm algorithm;
  std::string_view name;
};
constexpr std::string_view mapped = "one kernel over mapped memory", native = "vendor's library";
constexpr std::string_view shared_whole = "whole inputs through shared memory", shared_pass = "one pass over shared memory";
// Their places are codes on the wire.
constexpr std::array all_named{
    Named{CallKind::all_reduce, Algorithm::whole, "whole inputs to every rank"},
    Named{CallKind::all_reduce, Algorithm::divided, "reduce-scatter + all-gather"},
    Named{CallKind::all_reduce, Algorithm::shared_whole, shared_whole},
    Named{CallKind::all_reduce, Algorithm::shared_pass, shared_pass},
    Named{CallKind::all_reduce, Algorithm::hierarchical, "hierarchical"},
    Named{CallKind::all_reduce, Algorithm::mapped, mapped},
    Named{CallKind::all_reduce, Algorithm::native, native},
    Named{CallKind::reduce, Algorithm::whole, "whole inputs to the root"},
    Named{CallKind::reduce, Algorithm::divided, "reduce-scatter + gather"},
    Named{CallKind::reduce, Algorithm::shared_whole, shared_whole},
    Named{CallKind::reduce, Algorithm::shared_pass, shared_pass},
    Named{CallKind::reduce, Algorithm::hierarchical, "hierarchical"},
    Named{CallKind::reduce, Algorithm::mapped, mapped},
    Named{CallKind::reduce, Algorithm::native, native},
    Named{CallKind::reduce_scatter, Algorithm::direct, "direct"},
    Named{CallKind::reduce_scatter, Algorithm::shared_whole, shared_whole},
    Named{CallKind::reduce_scatter, Algorithm::shared_pass, shared_pass},
    Named{CallKind::reduce_scatter, Algorithm::hierarchical, "hierarchical"},
    Named{CallKind::reduce_scatter, Algorithm::mapped, mapped},
    Named{CallKind::reduce_scatter, Algorithm::native, native},
    Named{CallKind::all_gather, Algorithm::tree, "doubling"},
    Named{CallKind::all_gather, Algorithm::direct, "direct"},
    Named{CallKind::all_gather, Algorithm::hierarchical, "hierarchical"},
    Named{CallKind::all_gather, Algorithm::shared_whole, shared_whole},
    Named{CallKind::all_gather, Algorithm::shared_pass, shared_pass},
    Named{CallKind::all_gather, Algorithm::mapped, mapped},
    Named{CallKind::all_gather, Algorithm::native, native},
    Named{CallKind::broadcast, Algorithm::tree, "binomial tree"},
    Named{CallKind::broadcast, Algorithm::divided, "scatter + all-gather"},
    Named{CallKind::broadcast, Algorithm::direct, "direct"},
    Named{CallKind::broadcast, Algorithm::shared_whole, shared_whole},
    Named{CallKind::broadcast, Algorithm::shared_pass, shared_pass},
    Named{CallKind::broadcast, Algorithm::hierarchical, "hierarchical"},
    Named{CallKind::broadcast, Algorithm::mapped, mapped},
    Named{CallKind::broadcast, Algorithm::native, native},
    Named{CallKind::gather, Algorithm::direct, "direct"},
    Named{CallKind::scatter, Algorithm::direct, "direct"},
    Named{CallKind::all_to_all, Algorithm::relayed, "relayed"},
    Named{CallKind::all_to_all, Algorithm::direct, "direct"},
    Named{CallKind::all_to_all, Algorithm::shared_whole, shared_whole},
    Named{CallKind::all_to_all, Algorithm::shared_pass, shared_pass},
    Named{CallKind::all_to_all, Algorithm::mapped, mapped},
    Named{CallKind::all_to_all_relayed, Algorithm::relayed, "relayed"},
    Named{CallKind::barrier, Algorithm::tree, "dissemination"},
};

// Of named ones; smaller codes are kinds of calls whose algorithm HMC chooses.
constexpr std::size_t first_named_code = 32;
static_assert(first_named_code + all_named.size() <= 256 && static_cast<std::size_t>(CallKind::scatter) < first_named_code);

// Why the algorithm cannot carry out the call. Empty: it can.
std::string obstacle(const EqualCall& call, Algorithm algorithm, Sharing sharing) {
  if (call.size == 1) return "the group has one rank";
  if (algorithm == Algorithm::mapped && (call.exact || !sharing.devices)) {
    return "it takes memory of devices that map each other's, 2 to 8 ranks of one host in a Communicator that shares memory (a "
           "subgroup() after share_memory()) with HMC_FUSED not 0, and no exact sums";
  }
  if (algorithm == Algorithm::native && (call.exact || !sharing.library)) {
    return "it takes memory of devices of one vendor whose collective library HMC knows (NCCL, RCCL, MCCL, CNCL), and no exact "
           "sums";
  }
  if (is_shared(algorithm) && algorithm != Algorithm::mapped && algorithm != Algorithm::native && !sharing.cpu)
    return "it takes CPU memory, and ranks of one host in a Communicator that shares memory (a subgroup() after "
           "share_memory()) with HMC_FUSED not 0";
  if (algorithm == Algorithm::shared_whole && !fused::fits_one_shot(call.kind, call.size, call.bytes)) {
    return std::string(reduces(call.kind) ? "an input has " : "the blocks have ") + bytes_text(call.bytes) + ", more than " +
           bytes_text(fused::most_in_one_shot(call.kind, call.size));
  }
  if (algorithm == Algorithm::hierarchical && !call.islands)
    return "it takes several islands, one of which has several ranks, and sums that are not exact";
  if (algorithm == Algorithm::hierarchical) return {};
  const bool two = call.size == 2;
  if (call.kind == CallKind::broadcast && !is_shared(algorithm) && two != (algorithm == Algorithm::direct))
    return two ? "there is one receiver" : "there are several receivers";
  const bool doubling = call.kind == CallKind::all_gather && algorithm == Algorithm::tree;
  if (two && (doubling || algorithm == Algorithm::relayed)) return "it takes at least 3 ranks";
  return {};
}

std::string_view bare_name(std::string_view printed) {
  constexpr std::string_view before = "by messages: ", after = ", chunks of ";
  if (printed.starts_with(before)) printed.remove_prefix(before.size());
  return printed.substr(0, printed.find(after));
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "\"" : i + 1 == names.size() ? " and \"" : ", \"") + names[i] + "\"";
  return text;
}

}  // namespace

std::uint8_t code_of(CallKind kind, Algorithm algorithm) noexcept {
  if (algorithm == Algorithm::chosen) return static_cast<std::uint8_t>(kind);
  for (std::size_t i = 0; i < all_named.size(); ++i) {
    if (all_named[i].kind == kind && all_named[i].algorithm == algorithm) return static_cast<std::uint8_t>(first_named_code + i);
  }
  return static_cast<std::uint8_t>(kind);
}

CallKind kind_with_code(std::uint8_t code) noexcept {
  if (code < first_named_code) return static_cast<CallKind>(code);
  const std::size_t place = code - first_named_code;
  return place < all_named.size() ? all_named[place].kind : CallKind{0};
}

Algorithm algorithm_with_code(std::uint8_t code) noexcept {
  const std::size_t place = std::size_t{code} - first_named_code;
  return code >= first_named_code && place < all_named.size() ? all_named[place].algorithm : Algorithm::chosen;
}

std::string_view name_of(CallKind kind, Algorithm algorithm) noexcept {
  for (const Named& each : all_named) {
    if (each.kind == kind && each.algorithm == algorithm) return each.name;
  }
  return {};
}

std::vector<Algorithm> algorithms_of(const EqualCall& call, Sharing sharing) {
  if (call.size == 1) return {Algorithm::direct};
  std::vector<Algorithm> found;
  for (const Named& each : all_named) {
    if (each.kind == call.kind && obstacle(call, each.algorithm, sharing).empty()) found.push_back(each.algorithm);
  }
  return found;
}

std::vector<std::string> algorithm_names(const EqualCall& call, Sharing sharing) {
  if (call.size == 1) return {std::string(alone)};
  std::vector<std::string> names;
  for (const Named& each : all_named) {
    if (each.kind == call.kind && obstacle(call, each.algorithm, sharing).empty()) names.emplace_back(each.name);
  }
  return names;
}

Result<Algorithm> named_algorithm(const EqualCall& call, std::string_view name, Sharing sharing) {
  if (name.empty()) return Algorithm::chosen;
  const std::string_view asked = bare_name(name);
  if (call.size == 1 && asked == alone) return Algorithm::direct;
  std::string why = "it has no such algorithm";
  for (const Named& each : all_named) {
    if (each.kind != call.kind || each.name != asked) continue;
    why = obstacle(call, each.algorithm, sharing);
    if (why.empty()) return each.algorithm;
  }
  return Status(Code::invalid_argument, std::string(name_of(call.kind)) + " of " + bytes_text(call.bytes) + " among " +
                                            std::to_string(call.size) + " ranks by \"" + std::string(name) + "\": " + why +
                                            "; it can be carried out by " + listed(algorithm_names(call, sharing)));
}

}  // namespace hmc
