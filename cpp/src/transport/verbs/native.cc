#include "transport/verbs/native.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "transport/verbs/route.h"

namespace hmc::verbs {
namespace {

constexpr std::uint64_t mtu_bytes(std::uint8_t mtu) { return std::uint64_t{128} << mtu; }  // of an ibv_mtu

// As the kernel writes it: eight groups of four digits.
std::string gid_text(const Gid& gid) {
  std::string text;
  for (std::size_t i = 0; i < gid_bytes; i += 2) {
    std::array<char, 6> group{};
    std::snprintf(group.data(), group.size(), i == 0 ? "%02x%02x" : ":%02x%02x", gid[i], gid[i + 1]);
    text += group.data();
  }
  return text;
}

Status bad_field(std::string_view name, const std::string& wanted) {
  return Status(Code::invalid_argument, "field \"" + std::string(name) + "\" of a native verbs peer: " + wanted);
}

Status take_number(const NativeFields& fields, std::string_view name, std::uint64_t most, std::uint64_t& out) {
  const auto found = fields.find(name);
  if (found == fields.end()) return {};
  const auto* number = std::get_if<std::uint64_t>(&found->second);
  if (number == nullptr || *number > most) return bad_field(name, "a number up to " + std::to_string(most) + " is needed");
  out = *number;
  return {};
}

}  // namespace

NativeFields native_port(const Nic& nic) {
  NativeFields fields;
  fields["device"] = nic.name();
  fields["port"] = std::uint64_t{nic.port()};
  fields["gid"] = gid_text(nic.info().gid);
  fields["gid_index"] = std::uint64_t{nic.gid_index()};
  fields["lid"] = std::uint64_t{nic.info().lid};
  fields["mtu"] = mtu_bytes(nic.info().mtu);
  return fields;
}

Result<NativePeer> native_peer(const NativeFields& fields) {
  constexpr std::array<std::string_view, 5> known{"gid", "lid", "mtu", "psn", "qp_num"};
  for (const auto& [name, value] : fields) {
    if (!std::ranges::count(known, name)) return bad_field(name, "unknown; gid or lid, mtu, psn and qp_num say where it is");
  }
  NativePeer peer;
  std::uint64_t number = 0, sequence = 0, mtu = 4096, lid = 0;
  HMC_TRY(take_number(fields, "qp_num", number_mask, number));
  HMC_TRY(take_number(fields, "psn", number_mask, sequence));
  HMC_TRY(take_number(fields, "lid", 0xFFFF, lid));
  HMC_TRY(take_number(fields, "mtu", mtu, mtu));
  if (number == 0) return bad_field("qp_num", "the number of its queue pair is needed");
  peer.port.mtu = 1;
  while (peer.port.mtu < max_mtu && mtu_bytes(peer.port.mtu) < mtu) ++peer.port.mtu;
  if (mtu_bytes(peer.port.mtu) != mtu) return bad_field("mtu", "256, 512, 1024, 2048 or 4096 is needed");
  if (const auto found = fields.find("gid"); found != fields.end()) {
    const auto* text = std::get_if<std::string>(&found->second);
    if (text == nullptr || inet_pton(AF_INET6, text->c_str(), peer.port.gid.data()) != 1) {
      return bad_field("gid", "an address is needed, as ::ffff:10.0.0.1 or 0000:0000:0000:0000:0000:ffff:0a00:0001");
    }
  } else if (lid == 0) {
    return bad_field("gid", "it or, on InfiniBand, \"lid\" is needed");
  }
  peer.port.ethernet = lid == 0;
  peer.port.lid = static_cast<std::uint16_t>(lid);
  peer.number = static_cast<std::uint32_t>(number);
  peer.sequence = static_cast<std::uint32_t>(sequence);
  return peer;
}

Result<std::vector<NativeFields>> VerbsLocalRegion::native(std::size_t offset, std::size_t bytes) const {
  std::vector<NativeFields> ports;
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i] == nullptr) continue;
    NativeFields& fields = ports.emplace_back(native_port(*(*nics_)[i]));
    fields["address"] = reinterpret_cast<std::uintptr_t>(view_.span.data) + offset;
    fields["length"] = std::uint64_t{bytes};
    fields["rkey"] = std::uint64_t{handles_[i]->rkey};
  }
  return ports;
}

Result<std::unique_ptr<NativeLink>> VerbsNativeLink::create(const std::shared_ptr<Shared>& shared, const NativeFields& peer) {
  HMC_ASSIGN(const NativePeer there, native_peer(peer));
  std::vector<PortInfo> own;
  for (const auto& nic : *shared->nics) own.push_back(nic->info());
  const auto pairings = choose_ports(own, {&there.port, 1}, 1);
  if (pairings.empty()) return Status(Code::unsupported, "no port here speaks the peer's network");
  Nic& nic = *(*shared->nics)[pairings.front().own];
  // Some devices know no queue of none.
  HMC_ASSIGN(auto pair, QueuePair::create(nic, QueuePair::Role::target, 1, 1, 0));
  HMC_TRY(pair->connect(there.port, there.number, there.sequence, shared->patience));
  return std::unique_ptr<NativeLink>(new VerbsNativeLink(shared, nic, std::move(pair), std::min(there.port.mtu, nic.info().mtu)));
}

NativeFields VerbsNativeLink::fields() const {
  NativeFields fields = native_port(nic_);
  fields["mtu"] = mtu_bytes(mtu_);
  fields["qp_num"] = std::uint64_t{pair_->number()};
  fields["max_dest_rd_atomic"] = std::uint64_t{nic_.info().read_atom};
  return fields;
}

}  // namespace hmc::verbs
