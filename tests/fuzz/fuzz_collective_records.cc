// What the processes of a job tell each other. The first byte chooses the decoder. What decodes must encode to the same bytes
// again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "collective/records.h"
#include "round_trip.h"

namespace {

using namespace hmc;

void check(bool holds) {
  if (!holds) std::abort();
}

// For records with text in a canonical form of their own ("cpu:00", an unknown code): the second round is the same as the first.
template <class Decode>
void settles(ByteSpan in, Decode decode) {
  const auto first = decode(in);
  if (!first) return;
  const Bytes once = encode(*first);
  const auto second = decode(once);
  check(second.has_value() && encode(*second) == once);
}

template <class Decode>
void same(ByteSpan in, Decode decode) {
  check(round_trips(in, decode, [](const auto& m) { return encode(m); }));
}

void gathered(ByteSpan in) {
  settles(in, job::decode_gathered);
  const auto m = job::decode_gathered(in);
  if (!m) return;
  check(m->values.size() <= max_processes && m->status.message().size() <= job::max_reason);
  for (const Bytes& value : m->values) {
    check(value.size() <= max_bootstrap_value);
    settles(value, job::decode_registration);
  }
}

void registration(ByteSpan in) {
  settles(in, job::decode_registration);
  const auto m = job::decode_registration(in);
  if (!m) return;
  check(m->addresses.size() <= job::max_addresses && !m->devices.empty() && m->devices.size() <= job::max_devices);
}

void breakage(ByteSpan in) {
  settles(in, job::decode_breakage);
  const auto m = job::decode_breakage(in);
  if (m) check(!m->reason.ok());
}

void shrink(ByteSpan in) {
  settles(in, job::decode_shrink);
  const auto m = job::decode_shrink(in);
  if (!m) return;
  check(std::ranges::is_sorted(m->processes) && (m->processes.empty() || m->processes.back() < max_processes));
  const bool explains = m->kind == job::ShrinkKind::refuse || m->kind == job::ShrinkKind::give_up;
  check(m->reason.ok() != explains);
}

void grow(ByteSpan in) {
  settles(in, job::decode_grow);
  const auto m = job::decode_grow(in);
  if (m) check(m->reason.ok() != (m->kind == job::GrowKind::give_up) && m->value.size() <= max_bootstrap_value);
}

void table(ByteSpan in) {
  settles(in, job::decode_table);
  const auto m = job::decode_table(in);
  if (!m) return;
  check(m->status.ok() != m->processes.empty() && m->old_size <= m->owners.size());
  for (const std::uint32_t owner : m->owners) check(owner < m->processes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 11) {
    case 0:
      same(in, job::decode_arrival);
      break;
    case 1:
      gathered(in);
      break;
    case 2:
      registration(in);
      break;
    case 3:
      same(in, job::decode_process_lost);
      break;
    case 4:
      breakage(in);
      break;
    case 5:
      settles(in, job::decode_offer);
      break;
    case 6:
      same(in, job::decode_wish);
      break;
    case 7:
      shrink(in);
      break;
    case 8:
      grow(in);
      break;
    case 9:
      same(in, job::decode_application);
      break;
    default:
      table(in);
      break;
  }
  return 0;
}
