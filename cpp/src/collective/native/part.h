// Part: one rank's part in a call of the vendor's library, in a group whose ranks share no memory: those of several hosts.
//
// No rank calls the library before all have said, by messages of the collective, that they make that call: a byte from each to all,
// in log2 n rounds. The first call connects the ranks as well. Each gives all its offer, and rank 0 the communicator's number; each
// judges all offers, which are alike everywhere, and joins; then each tells all whether it could. The calls of one rank take turns:
// the next one begins once the device has been given the one before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "collective/areas.h"
#include "collective/plan.h"
#include "native/rank_communicator.h"
#include "progress/work_state.h"

namespace hmc {

class Group;

namespace native {

class Ranks;

// A call that names the library. None: the rank cannot make it.
struct Request {
  std::optional<Call> call;
};

// Owned by its CollectiveWork. Engine lock held throughout.
class Part {
 public:
  Part(Group& group, std::uint32_t rank, Request request, RankCommunicator::Points after);

  // What comes next: messages, with rounds from first_round() on; a Work to wait for; the rank's turn; that the call is
  // unsupported, on all ranks alike.
  struct Messages {
    std::shared_ptr<const Schedule> schedule;
    CollectiveBuffers buffers;  // the Part's
  };
  struct Turn {};
  using Next = std::variant<Messages, std::shared_ptr<WorkState>, Turn, Status>;

  // Once, before next(). `resume`: it is the rank's turn.
  void begin(std::function<void()> resume);
  // Once what came before is over.
  Next next();
  // The Work that next() returned has ended.
  void ended(const Status& outcome) noexcept;
  // The collective has failed. What the device does for it ends soon.
  void stop() noexcept;
  // next() returned a Work or a turn, which has not come.
  [[nodiscard]] bool waits() const noexcept { return waits_; }
  [[nodiscard]] std::string_view awaited() const noexcept;  // for errors; empty: it does not wait
  [[nodiscard]] bool on_device() const noexcept { return stage_ == Stage::device; }
  [[nodiscard]] std::uint8_t first_round() const noexcept;
  // A message has come.
  void received() noexcept;
  // What a wait step waits for, which may be cancelled, and how it has ended.
  [[nodiscard]] std::shared_ptr<WorkState> joining() const noexcept;
  void joined(const Status& status);

 private:
  enum class Stage : std::uint8_t { turn, number, offers, joining, agreeing, device, over };
  class Joining;
  [[nodiscard]] Ranks& ranks() const noexcept;
  Next to_all(std::vector<std::byte> own);
  Next between(std::vector<std::byte> own, Schedule&& schedule);
  [[nodiscard]] std::span<const std::byte> block(std::uint32_t rank) const noexcept;
  Next begin_turn();
  Next offer(bool able);
  Next judge();  // what all have offered
  Next join();
  Next connected();
  // The first rank that said no; empty: all are able.
  [[nodiscard]] std::string unable() const;
  Next start();
  Next end(const Status& status);
  void leave_turn() noexcept;

  Group& group_;
  const std::uint32_t rank_;
  const std::optional<Call> call_;
  RankCommunicator::Points after_;
  std::function<void()> resume_;
  Stage stage_ = Stage::turn;
  bool waits_ = false;
  Status outcome_;                    // of the Work that was waited for
  std::vector<std::byte> own_, all_;  // blocks of the messages
  std::shared_ptr<Joining> joining_;
};

}  // namespace native
}  // namespace hmc
