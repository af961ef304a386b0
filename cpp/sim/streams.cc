#include "streams.h"

#include <chrono>
#include <map>
#include <utility>

namespace hmc::sim {
namespace {

struct Event {
  int device = 0;
  Ticket ticket;
};

struct Streams {
  std::mutex mutex;
  std::map<void*, StreamRef> created;
  std::map<int, StreamRef> null_streams;  // by device, made at first use
  std::map<void*, Event> events;
  std::uintptr_t next_event = 0;
};
Streams& streams() {
  static Streams& instance = *new Streams;  // never destroyed: the threads may outlive main()
  return instance;
}

std::vector<StreamRef> all_streams() {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  std::vector<StreamRef> list;
  for (const auto& [handle, stream] : all.created) list.push_back(stream);
  for (const auto& [device, stream] : all.null_streams) list.push_back(stream);
  return list;
}

}  // namespace

std::chrono::microseconds delay() {
  static const std::chrono::microseconds value(static_cast<std::int64_t>(environment_number("HMC_SIM_DELAY_US", 0)));
  return value;
}

Error Ticket::query() const { return stream ? stream->query(number) : Error::ok; }
Error Ticket::wait() const { return stream ? stream->wait(number) : Error::ok; }

std::uint64_t Stream::submit(std::function<Error()> work, std::vector<Ticket> waits) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(work), std::move(waits)});
  const std::uint64_t number = ++submitted_;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
  return number;
}

std::uint64_t Stream::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

Error Stream::outcome(std::uint64_t number) const { return failed_at_ != 0 && failed_at_ <= number ? failure_ : Error::ok; }

Error Stream::query(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return completed_ < number ? Error::not_ready : outcome(number);
}

Error Stream::wait(std::uint64_t number) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= number; });
  return outcome(number);
}

void Stream::forget_failure() {
  const std::lock_guard lock(mutex_);
  failed_at_ = 0;
  failure_ = Error::ok;
}

void Stream::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    const bool failed = failed_at_ != 0;
    lock.unlock();
    for (const Ticket& ticket : task.waits) static_cast<void>(ticket.wait());
    if (task.work && delay().count() > 0) std::this_thread::sleep_for(delay());
    const Error error = failed || !task.work ? Error::ok : task.work();
    task = {};  // memory that only this operation held is gone before anybody sees it complete
    lock.lock();
    ++completed_;
    if (error != Error::ok && failed_at_ == 0) {
      failed_at_ = completed_;
      failure_ = error;
    }
    changed_.notify_all();
  }
}

StreamRef find_stream(void* handle, int device) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  if (reinterpret_cast<std::uintptr_t>(handle) > 2) {
    const auto found = all.created.find(handle);
    return found == all.created.end() ? nullptr : found->second;
  }
  if (!device_exists(device)) return nullptr;
  StreamRef& stream = all.null_streams[device];
  if (!stream) stream = std::make_shared<Stream>(device, true);
  return stream;
}

Error create_stream(int device, bool blocking, void** handle) {
  if (handle == nullptr) return Error::invalid_value;
  if (!device_exists(device)) return Error::invalid_device;
  auto stream = std::make_shared<Stream>(device, blocking);
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  *handle = stream.get();
  all.created.emplace(stream.get(), stream);
  return Error::ok;
}

Error destroy_stream(void* handle) {
  Streams& all = streams();
  StreamRef stream;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.created.find(handle);
    if (found == all.created.end()) return Error::invalid_handle;
    stream = std::move(found->second);
    all.created.erase(found);
  }
  stream->shut_down();
  return Error::ok;
}

Ticket submit(const StreamRef& stream, std::function<Error()> work, std::vector<Ticket> waits) {
  Streams& all = streams();
  // Held until the end: two threads must not each wait for what the other submits after it.
  const std::lock_guard lock(all.mutex);
  const auto found = all.null_streams.find(stream->device());
  const StreamRef null_stream = found == all.null_streams.end() ? nullptr : found->second;
  if (stream == null_stream) {
    for (const auto& [handle, other] : all.created) {
      if (other->blocking() && other->device() == stream->device()) waits.push_back({other, other->submitted()});
    }
  } else if (stream->blocking() && null_stream) {
    waits.push_back({null_stream, null_stream->submitted()});
  }
  return {stream, stream->submit(std::move(work), std::move(waits))};
}

Error run_blocking(const StreamRef& stream, std::function<Error()> work) {
  Error result = Error::illegal_address;  // when the stream has failed before and the work is not done
  const Ticket ticket = submit(stream, [&result, work = std::move(work)] {
    result = work();
    return Error::ok;
  });
  static_cast<void>(ticket.wait());
  return result;
}

Ticket mark(const StreamRef& stream) { return {stream, stream->submitted()}; }

Ticket fence(const StreamRef& stream) { return stream->blocking() ? submit(stream, {}) : mark(stream); }

Error synchronize_device(int device) {
  Error result = Error::ok;
  for (const StreamRef& stream : all_streams()) {
    if (stream->device() != device) continue;
    const Error error = mark(stream).wait();
    if (result == Error::ok) result = error;
  }
  return result;
}

void forget_stream_failures() {
  for (const StreamRef& stream : all_streams()) stream->forget_failure();
}

Error create_event(int device, void** handle) {
  if (handle == nullptr) return Error::invalid_value;
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  // A number that no other event had: a destroyed one is never mistaken for a new one.
  *handle = reinterpret_cast<void*>(all.next_event += 16);
  all.events.emplace(*handle, Event{device, {}});
  return Error::ok;
}

Error destroy_event(void* handle) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  return all.events.erase(handle) == 1 ? Error::ok : Error::invalid_handle;
}

Error record_event(void* handle, const StreamRef& stream) {
  Ticket ticket = fence(stream);
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  const auto found = all.events.find(handle);
  if (found == all.events.end() || found->second.device != stream->device()) return Error::invalid_handle;
  found->second.ticket = std::move(ticket);
  return Error::ok;
}

// The event's ticket; false: no such event.
static bool find_event(void* handle, Ticket& ticket) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  const auto found = all.events.find(handle);
  if (found == all.events.end()) return false;
  ticket = found->second.ticket;
  return true;
}

Error query_event(void* handle) {
  Ticket ticket;
  return find_event(handle, ticket) ? ticket.query() : Error::invalid_handle;
}

Error synchronize_event(void* handle) {
  Ticket ticket;
  return find_event(handle, ticket) ? ticket.wait() : Error::invalid_handle;
}

Error wait_event(const StreamRef& stream, void* handle) {
  Ticket ticket;
  if (!find_event(handle, ticket)) return Error::invalid_handle;
  if (ticket.stream == stream) return Error::ok;  // in order already
  submit(stream, {}, {std::move(ticket)});
  return Error::ok;
}

}  // namespace hmc::sim
