// ContextImpl: beginning and progress.
#include "comm/context_impl.h"

#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/topology/discover.h"

namespace hmc {
namespace {

constexpr std::size_t max_context_name = 255;

ContextId random_id() {
  ContextId id{};
  do {
    random_bytes(std::as_writable_bytes(std::span(id)));
  } while (id == ContextId{});
  return id;
}

}  // namespace

std::string context_id_text(const ContextId& id) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t half : id) {
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[(half >> shift) & 15];
  }
  return text;
}

ContextImpl::ContextImpl(ContextOptions options, std::shared_ptr<Engine> engine)
    : options_(std::move(options)), id_(random_id()), engine_(std::move(engine)) {}

ContextImpl::~ContextImpl() = default;

Result<std::shared_ptr<ContextImpl>> ContextImpl::create(const ContextOptions& options) {
  ContextOptions checked = options;
  if (!(checked.heartbeat_seconds >= 0.1 && checked.heartbeat_seconds <= 3600)) {
    return Status(Code::invalid_argument,
                  "heartbeat_seconds is " + std::to_string(checked.heartbeat_seconds) + "; give 0.1 to 3600 seconds");
  }
  if (checked.name.size() > max_context_name) {
    return Status(Code::invalid_argument, "a name of " + std::to_string(checked.name.size()) + " bytes; at most 255");
  }
  if (checked.name.empty()) checked.name = host_name() + ":" + std::to_string(getpid());
  if (checked.key.empty()) checked.key = env_text("HMC_JOB_KEY").value_or("");
  if (checked.transports.empty()) checked.transports = env_text("HMC_TRANSPORTS").value_or("");
  install_fork_handler();
  HMC_ASSIGN(const auto filter, TransportFilter::parse(checked.transports, known_transports()));
  HMC_ASSIGN(auto engine, Engine::create(checked.progress));
  auto context = std::make_shared<ContextImpl>(std::move(checked), std::move(engine));
  if (const Status started = context->start(filter); !started.ok()) {
    static_cast<void>(context->closing().close(Deadline::after_seconds(0), true));
    return started;
  }
  return context;
}

Status ContextImpl::start(const TransportFilter& filter) {
  const auto lock = engine_->lock();
  HMC_TRY(joins_.start());
  TransportEnvironment environment;
  environment.engine = engine_;
  environment.listener = &joins_.listener();
  environment.listen_addresses = joins_.listener().addresses();
  transports_.start(environment, filter);
  engine_->add(*this);
  peers_.add_self();
  return {};
}

Status ContextImpl::usable() const {
  if (engine_->forked()) return forked_status();
  if (closing_.begun()) return ContextClosing::reason();
  return {};
}

const std::shared_ptr<WorkState>& ContextState::done_work() {
  if (!done_work_) done_work_ = completed_work(engine());
  return done_work_;
}

bool ContextImpl::poll() {
  const bool ran = tasks_.run();
  return peers_.pump() || ran;
}

bool ContextImpl::arm() { return !busy(); }
bool ContextImpl::busy() const { return peers_.to_pump() || tasks_.pending(); }

void ContextImpl::toss(std::function<void()> task) {
  if (engine_->forked()) return;
  if (tasks_.add(std::move(task))) engine_->wake();
}

}  // namespace hmc
