#include "comm/routing/local_transports.h"

#include <algorithm>

#include "base/env.h"
#include "comm/context_impl.h"

namespace hmc {
namespace {

// Every transport compiled in, made for `environment`. Engine lock held.
std::vector<std::unique_ptr<TransportSlot>> make_transports(TransportEnvironment environment, const TransportFilter& filter) {
  std::vector<std::unique_ptr<TransportSlot>> slots;
  for (const TransportFactory* factory : all_transports()) {
    auto& slot = slots.emplace_back(std::make_unique<TransportSlot>());
    slot->name = std::string(factory->name);
    slot->bit = TransportSet{1} << (slots.size() - 1);
    slot->on_carriers = factory->on_carriers;
    if (!filter.allows(factory->name)) {
      // Somebody who names the transports between processes still expects a process to reach itself.
      if (factory->name != "local" || filter.excludes(factory->name)) {
        slot->capabilities.available = false;
        slot->capabilities.reason = "left out by transports \"" + filter.text() + "\"";
        continue;
      }
      slot->self_only = true;
    }
    if (factory->named_only && !filter.names(factory->name)) {
      slot->capabilities.available = false;
      slot->capabilities.reason =
          "used only where it is named: HMC_TRANSPORTS or Context(transports=...), as in \"shm," + slot->name + "\"";
      continue;
    }
    auto made = factory->create(environment);
    if (!made.ok()) {
      slot->capabilities.available = false;
      slot->capabilities.reason = std::string(made.status().message());
      continue;
    }
    slot->transport = std::move(*made);
    slot->capabilities = slot->transport->capabilities();
    slot->domain = slot->transport->domain();
    if (!factory->on_carriers && slot->capabilities.available) environment.carriers.push_back(slot->transport.get());
  }
  return slots;
}

}  // namespace

std::vector<const TransportFactory*>& all_transports() {
  static std::vector<const TransportFactory*> all(transport_factories().begin(), transport_factories().end());
  return all;
}

std::vector<std::string> known_transports() {
  std::vector<std::string> names;
  for (const TransportFactory* factory : all_transports()) names.emplace_back(factory->name);
  return names;
}

bool shares_memory(ContextState& context) {
  const auto lock = context.engine()->lock();
  const LocalTransports& all = impl_of(context).transports();
  return std::any_of(all.begin(), all.end(),
                     [](const auto& slot) { return slot->capabilities.available && slot->capabilities.shares_memory; });
}

std::string available_transports(ContextState& context) {
  const auto lock = context.engine()->lock();
  std::string names;
  for (const auto& slot : impl_of(context).transports()) {
    if (slot->capabilities.available) names += (names.empty() ? "" : ",") + slot->name;
  }
  return names;
}

void LocalTransports::start(const TransportEnvironment& environment, const TransportFilter& filter) {
  slots_ = make_transports(environment, filter);
  for (const auto& slot : slots_) {
    if (slot->transport) environment.engine->add(*slot->transport);
  }
}

void LocalTransports::stop(Engine& engine) {
  for (const auto& slot : slots_) {
    if (slot->transport) engine.remove(*slot->transport);
  }
  // Those that build on others come after them in the table.
  for (auto slot = slots_.rbegin(); slot != slots_.rend(); ++slot) (*slot)->transport.reset();
}

TransportSlot* LocalTransports::find(std::string_view name) const noexcept {
  for (const auto& slot : slots_) {
    if (slot->name == name) return slot.get();
  }
  return nullptr;
}

void LocalTransports::add_counters(std::map<std::string, std::uint64_t>& counters) const {
  for (const auto& slot : slots_) {
    if (!slot->transport) continue;
    counters["put.count." + slot->name] += slot->puts;
    counters["put.bytes." + slot->name] += slot->put_bytes;
    counters["get.count." + slot->name] += slot->gets;
    counters["get.bytes." + slot->name] += slot->get_bytes;
    counters["bytes_staged"] += slot->staged_bytes;
  }
}

std::vector<TransportInfo> list_transports() {
  std::vector<TransportInfo> infos;
  const auto names = known_transports();
  const auto failed = [&](const Status& status) {
    infos.clear();
    for (const auto& name : names) infos.push_back({name, false, status.str()});
    return infos;
  };
  const auto filter = TransportFilter::parse(env_text("HMC_TRANSPORTS").value_or(""), names);
  if (!filter.ok()) return failed(filter.status());
  auto engine = Engine::create(Progress::manual);
  if (!engine.ok()) return failed(engine.status());
  {
    const auto lock = (*engine)->lock();
    auto listener = Listener::create(*engine);
    if (!listener.ok()) return failed(listener.status());
    TransportEnvironment environment;
    environment.engine = *engine;
    environment.listener = listener->get();
    for (const auto& slot : make_transports(environment, *filter)) {
      infos.push_back({slot->name, slot->capabilities.available, slot->capabilities.reason});
    }
  }
  (*engine)->stop();
  return infos;
}

}  // namespace hmc
