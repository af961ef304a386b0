// No ranks: a server publishes a buffer, a client connects, looks it up by name, reads it and says thanks.
#include <cstring>

#include "example.h"

using example::expect;
using example::must;

namespace {

constexpr std::size_t size = 1 << 20;

void serve(const std::string& address) {
  hmc::ContextOptions options;
  options.listen = {address};  // beyond this host: "tcp://[::]:7000" and a key
  const hmc::Context context = must(hmc::Context::create(options));
  const hmc::ConnBuffer cache = must(context.buffer(size, hmc::Device::cpu(), hmc::Access::read));
  std::memset(cache.memory().data(), 0x5a, size);
  must(context.publish("kv", cache));

  const hmc::Peer client = must(context.accept(hmc::Deadline::after_seconds(30)));
  const auto notes = must(client.notifications(hmc::Deadline::after_seconds(30)));
  std::printf("%s says: %.*s\n", client.name().c_str(), static_cast<int>(notes.front().payload.size()),
              reinterpret_cast<const char*>(notes.front().payload.data()));
  must(context.close());
}

void use(const std::string& address) {
  const hmc::Context context = must(hmc::Context::create());
  hmc::Result<hmc::Peer> server = context.connect(address);
  for (int attempt = 0; !server && attempt < 200; ++attempt) {  // the server may not be up yet
    usleep(20'000);
    server = context.connect(address);
  }
  const hmc::Peer peer = must(server);
  const hmc::RemoteBuffer cache = must(peer.lookup("kv", hmc::Deadline::after_seconds(30)));  // waits until it is published
  const hmc::ConnBuffer copy = must(context.buffer(cache.size()));
  must(must(peer.get(copy, cache)).wait());
  const auto* bytes = static_cast<const unsigned char*>(copy.memory().data());
  for (std::size_t i = 0; i < size; ++i) expect(bytes[i] == 0x5a, "a byte of the published buffer");
  expect(!peer.put(copy, cache).ok(), "a read-only buffer refuses a put");

  const char thanks[] = "got it";
  must(peer.notify(hmc::Notify(std::as_bytes(std::span(thanks).first(sizeof thanks - 1)))));
  must(context.close());
}

}  // namespace

int main() {
  const std::string address = "unix:/tmp/hmc-serving-" + std::to_string(getpid());
  return example::run_processes(2, [&](const hmc::InitOptions& process) { process.rank == 0 ? serve(address) : use(address); });
}
