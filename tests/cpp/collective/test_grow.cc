// Communicator::invite, grow and join: the C++ calls. What deaths and deadlines at every moment mean: tests/python/test_grow.py.
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include "collective/communicator_state.h"
#include "collective/invitation.h"
#include "collective/job.h"
#include "collective/records.h"
#include "collective/shrinks.h"
#include "comm/context_state.h"
#include "comm/session/group_events.h"

namespace hmc {
namespace {

using testing::Process;
using testing::run_job;
using testing::soon;

// A text that processes of a job see, for what users pass by ways of their own.
class SharedText {
 public:
  SharedText() { text_ = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)); }
  ~SharedText() { munmap(text_, size); }
  SharedText(const SharedText&) = delete;
  SharedText& operator=(const SharedText&) = delete;
  void write(const std::string& text) const { std::memcpy(text_, text.c_str(), text.size() + 1); }
  [[nodiscard]] std::string read() const { return text_; }

 private:
  static constexpr std::size_t size = 8192;
  char* text_;
};

// Words of the blackboard.
enum : std::size_t { invited = 0, finished = 1 };

void expect_sum_of_ranks(const Communicator& communicator, std::size_t count) {
  const int size = communicator.size();
  for (const Member& member : communicator.local()) EXPECT_EQ(member.size(), size);
  std::vector<std::vector<std::int64_t>> values;
  std::vector<MemberBuffers> buffers;
  for (const Member& member : communicator.local()) {
    auto& one = values.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i) one[i] = static_cast<std::int64_t>(i + 1) * (member.rank() + 3);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const MemoryView view(values[i].data(), count * sizeof(std::int64_t));
    buffers.push_back({communicator.local()[i], view, view});
  }
  HMC_ASSERT_OK(communicator.all_reduce(buffers, {DataType::i64, ReduceOp::sum}, soon()));
  const std::int64_t ranks = size * (size - 1) / 2 + 3 * size;
  for (const auto& one : values) {
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(one[i], static_cast<std::int64_t>(i + 1) * ranks) << "element " << i;
  }
}

TEST(Invitation, TextAndBack) {
  Invitation invitation{{}, "host:12", "kernel", {"unix:/run/hmc/x", "tcp://[::1]:7000"}};
  for (std::size_t i = 0; i < invitation.ticket.size(); ++i) invitation.ticket[i] = static_cast<std::byte>(i * 37 + 200);
  const auto read = Invitation::parse(invitation.str());
  HMC_ASSERT_OK(read.status());
  EXPECT_EQ(read->ticket, invitation.ticket);
  EXPECT_EQ(read->name, "host:12");
  EXPECT_EQ(read->kernel, "kernel");
  EXPECT_EQ(read->addresses, invitation.addresses);
}

TEST(Invitation, AnyOtherTextIsRefused) {
  const std::string text = Invitation{{}, "host:12", "kernel", {"unix:/run/hmc/x"}}.str();
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_EQ(Invitation::parse(text.substr(0, length)).status().code(), Code::invalid_argument) << length;
  for (const std::string& wrong : {text + "00", text + "0", " " + text, text + "\n", "hmcjoin2-" + text.substr(9)})
    EXPECT_EQ(Invitation::parse(wrong).status().code(), Code::invalid_argument) << wrong;
  EXPECT_EQ(Invitation::parse(Invitation{{}, "a", "b", {}}.str()).status().code(), Code::invalid_argument);
}

// The first `old` processes are a job, the others join it.
void run_growth(int old, int newcomers, const std::function<void(const Process&, const Communicator&)>& body) {
  const SharedText text;
  run_job(old + newcomers, [&](const Process& process) {
    if (process.rank >= old) {
      ASSERT_TRUE(process.board.wait(invited, 1));
      const auto joined = Communicator::join(text.read(), {.devices = {}, .context = {}, .timeout_seconds = 60});
      HMC_ASSERT_OK(joined.status());
      return body(process, *joined);
    }
    Process own = process;
    own.size = old;
    const Communicator world = own.init();
    if (own.rank == 0) {
      const auto invitation = world.invite(newcomers);
      HMC_ASSERT_OK(invitation.status());
      text.write(*invitation);
      process.board[invited].store(1);
    }
    const auto grown = world.grow(soon());
    HMC_ASSERT_OK(grown.status());
    expect_sum_of_ranks(world, 1000);
    body(process, *grown);
  });
}

TEST(Grow, NewcomersHaveTheLastRanks) {
  for (const auto& [old, newcomers] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 3), std::pair(3, 2)}) {
    SCOPED_TRACE(std::to_string(old) + " and " + std::to_string(newcomers));
    run_growth(old, newcomers, [old = old, newcomers = newcomers](const Process& process, const Communicator& grown) {
      EXPECT_EQ(grown.size(), old + newcomers);
      std::vector<int> before(static_cast<std::size_t>(old));
      std::iota(before.begin(), before.end(), 0);
      before.resize(static_cast<std::size_t>(old + newcomers), -1);
      EXPECT_EQ(grown.old_ranks(), before);
      const int rank = grown.self()->rank();
      EXPECT_TRUE(process.rank < old ? rank == process.rank : rank >= old) << rank;
      expect_sum_of_ranks(grown, 1);
      expect_sum_of_ranks(grown, 100'001);
      const auto islands = grown.islands();
      HMC_ASSERT_OK(islands.status());
      EXPECT_EQ(islands->size(), 1U);
      process.board[finished].fetch_add(1);
      EXPECT_TRUE(process.board.wait(finished, process.size));
    });
  }
}

TEST(Grow, AllMayLeaveAtOnce) {
  for (int round = 0; round < 10; ++round) {
    run_growth(2, 2, [](const Process&, const Communicator& grown) {
      HMC_EXPECT_OK(grown.barrier(soon()));
      HMC_EXPECT_OK(grown.close(soon()));
    });
  }
}

TEST(Grow, TheContextEndsWithTheLastCommunicator) {
  run_growth(2, 1, [](const Process& process, const Communicator& grown) {
    const auto smaller = grown.shrink(soon());
    HMC_ASSERT_OK(smaller.status());
    HMC_EXPECT_OK(grown.close(soon()));
    expect_sum_of_ranks(*smaller, 50);
    process.board[finished].fetch_add(1);
    EXPECT_TRUE(process.board.wait(finished, process.size));
    HMC_EXPECT_OK(smaller->close(soon()));
    EXPECT_EQ(smaller->context().buffer(10).status().code(), process.rank == 2 ? Code::closed : Code::ok);
  });
}

TEST(Grow, SplitsAndSubgroupsOfTheGrown) {
  run_growth(2, 2, [](const Process& process, const Communicator& grown) {
    const int rank = grown.self()->rank();
    const int color = rank % 2, key = -rank;
    const auto part = grown.split(std::span(&color, 1), std::span(&key, 1), soon());
    HMC_ASSERT_OK(part.status());
    EXPECT_EQ(part->old_ranks(), (std::vector<int>{color + 2, color}));
    expect_sum_of_ranks(*part, 4097);
    if (rank >= 2) {
      const auto pair = grown.subgroup(std::vector<int>{3, 2}, 77);
      HMC_ASSERT_OK(pair.status());
      HMC_EXPECT_OK(grown.barrier(soon()));
      expect_sum_of_ranks(*pair, 33);
    } else {
      HMC_EXPECT_OK(grown.barrier(soon()));
    }
    process.board[finished].fetch_add(1);
    EXPECT_TRUE(process.board.wait(finished, process.size));
  });
}

TEST(Grow, SeveralMembersOfAProcess) {
  const SharedText text;
  run_job(3, [&](const Process& process) {
    const std::vector<Device> two(2, Device::cpu());
    if (process.rank == 2) {
      ASSERT_TRUE(process.board.wait(invited, 1));
      const auto joined = Communicator::join(text.read(), {.devices = two, .context = {}, .timeout_seconds = 60});
      HMC_ASSERT_OK(joined.status());
      EXPECT_EQ(joined->size(), 5);
      EXPECT_EQ(joined->local().front().rank(), 3);
      expect_sum_of_ranks(*joined, 1003);
      process.board[finished].fetch_add(1);
      EXPECT_TRUE(process.board.wait(finished, process.size));
      return;
    }
    InitOptions options = process.options();
    options.size = 2;
    if (process.rank == 0) options.devices = two;
    const Communicator world = process.init(options);  // ranks (0, 1), 2
    const std::vector<int> colors(world.local().size(), 0);
    std::vector<int> keys;
    for (const Member& member : world.local()) keys.push_back(member.rank() == 0 ? 5 : -member.rank());
    const auto turned = world.split(colors, keys, soon());  // old ranks 2, 1, 0
    HMC_ASSERT_OK(turned.status());
    EXPECT_EQ(turned->old_ranks(), (std::vector<int>{2, 1, 0}));
    if (process.rank == 1) {
      text.write(*turned->invite());
      process.board[invited].store(1);
    } else {
      EXPECT_EQ(turned->invite().status().code(), Code::invalid_argument);  // rank 0 invites
    }
    const auto grown = turned->grow(soon());
    HMC_ASSERT_OK(grown.status());
    EXPECT_EQ(grown->old_ranks(), (std::vector<int>{0, 1, 2, -1, -1}));
    EXPECT_EQ(grown->local().size(), process.rank == 0 ? 2U : 1U);
    expect_sum_of_ranks(*grown, 1003);
    process.board[finished].fetch_add(1);
    EXPECT_TRUE(process.board.wait(finished, process.size));
  });
}

// The coordinator may die when it has sent the table to some only. They ask the others, which do not know them.
TEST(Grow, AProcessWithoutTheTableRefusesTheAgreement) {
  const SharedText address;
  run_job(2, [&](const Process& process) {
    if (process.rank == 0) {
      Process own = process;
      own.size = 1;
      const Communicator world = own.init();
      address.write(world.context().addresses().front());
      process.board[invited].store(1);
      EXPECT_TRUE(process.board.wait(finished, 1));
      expect_sum_of_ranks(world, 10);
      return;
    }
    ASSERT_TRUE(process.board.wait(invited, 1));
    const auto context = Context::create({});
    HMC_ASSERT_OK(context.status());
    const auto peer = context->connect(address.read(), soon());
    HMC_ASSERT_OK(peer.status());
    const auto engine = context->state()->engine();
    for (const auto kind : {job::ShrinkKind::join, job::ShrinkKind::ask}) {
      std::optional<job::Shrink> answer;
      {
        const auto lock = engine->lock();
        context->state()->group_events().set_message_handler(
            [&](PeerState&, MessageType type, ByteSpan payload, const std::vector<UniqueFd>&) {
              if (type == control_shrink) answer = job::decode_shrink(payload);
            });
        HMC_ASSERT_OK(peer->state()->send_control(control_shrink, encode(job::Shrink{kind, {}, 0x1234, 0})));
      }
      ASSERT_TRUE(engine->drive(soon(), [&] { return answer.has_value(); }));
      EXPECT_EQ(answer->kind, job::ShrinkKind::left);
      EXPECT_EQ(answer->group_id, 0x1234U);
    }
    process.board[finished].store(1);
    HMC_EXPECT_OK(context->close(soon()));
  });
}

TEST(Grow, ANewcomerThatGivesUpIsNotToldThatItIsMissing) {
  const SharedText text;
  run_job(3, [&](const Process& process) {
    if (process.rank == 2) {
      ASSERT_TRUE(process.board.wait(invited, 1));
      const Status status = Communicator::join(text.read(), {.devices = {}, .context = {}, .timeout_seconds = 3}).status();
      process.board[finished].store(1);
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(status.message().find("invited"), std::string::npos) << status.str();
      return;
    }
    InitOptions options = process.options();
    options.size = 2;
    const Communicator world = process.init(options);
    if (process.rank == 0) {
      const auto invitation = world.invite();
      HMC_ASSERT_OK(invitation.status());
      text.write(*invitation);
      process.board[invited].store(1);
      EXPECT_EQ(world.grow(soon()).status().code(), Code::timeout);
    } else {
      EXPECT_TRUE(process.board.wait(finished, 1));
      EXPECT_EQ(world.grow(Deadline::after_seconds(0)).status().code(), Code::timeout);
    }
    process.board[2].fetch_add(1);
    EXPECT_TRUE(process.board.wait(2, 2));
  });
}

TEST(Grow, ARankThatClosesTheCommunicatorIsNamedOnAll) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const int color = 0, key = 0;
    const auto group = world.split(std::span(&color, 1), std::span(&key, 1), soon());
    HMC_ASSERT_OK(group.status());
    if (process.rank == 0) HMC_ASSERT_OK(group->invite().status());
    std::thread closing;
    if (process.rank == 1) {
      closing = std::thread([&group, known = group->state()->group->world()] {
        for (bool begun = false; !begun; std::this_thread::yield()) {
          const auto lock = known->engine()->lock();
          begun = known->growths().known() > 0;
        }
        HMC_EXPECT_OK(group->close(soon()));
      });
    }
    const Status status = group->grow(soon()).status();
    EXPECT_EQ(status.code(), Code::closed) << status.str();
    EXPECT_NE(status.message().find("rank 1 ("), std::string::npos) << status.str();
    if (closing.joinable()) closing.join();
    process.board[finished].fetch_add(1);
    EXPECT_TRUE(process.board.wait(finished, process.size));
  });
}

TEST(Grow, WithoutAnInvitationAllFail) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    EXPECT_EQ(world.grow(soon()).status().code(), Code::invalid_argument);
    EXPECT_EQ(world.invite(0).status().code(), Code::invalid_argument);
    expect_sum_of_ranks(world, 10);
    process.board[finished].fetch_add(1);
    EXPECT_TRUE(process.board.wait(finished, process.size));
  });
}

// A job may go on for ever by new Communicators.
TEST(Grow, NothingIsKeptOfClosedCommunicators) {
  run_job(2, [](const Process& process) {
    Communicator current = process.init();
    const auto world = current.state()->group->world();
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(current.grow(soon()).status().code(), Code::invalid_argument) << "no invitation";
      auto next = current.shrink(soon());
      HMC_ASSERT_OK(next.status());
      if (i % 2 == 0) {
        HMC_EXPECT_OK(current.barrier(soon()));
        HMC_EXPECT_OK(current.abort("enough"));
      }
      HMC_EXPECT_OK(current.close(soon()));
      current = std::move(*next);
      expect_sum_of_ranks(current, 10);
    }
    const auto lock = world->engine()->lock();
    EXPECT_EQ(world->shrinks().known(), 0U);
    EXPECT_EQ(world->growths().known(), 0U);
  });
}

TEST(Grow, AnInvitationBesideACloseIsNotKept) {
  run_job(1, [](const Process& process) {
    const Communicator all = process.init();
    const auto world = all.state()->group->world();
    for (int i = 0; i < 50; ++i) {
      const auto part = all.split(std::vector{0}, std::vector{0}, soon());
      HMC_ASSERT_OK(part.status());
      auto lock = world->engine()->lock();
      std::thread inviting([&] {
        const auto invitation = part->invite();
        EXPECT_TRUE(invitation.ok() || invitation.status().code() == Code::closed) << invitation.status().str();
      });
      while (!world->engine()->posting().contended()) std::this_thread::yield();  // the Communicator was open
      std::thread closing([&] { HMC_EXPECT_OK(part->close(soon())); });
      lock.unlock();
      inviting.join();
      closing.join();
      lock.lock();
      ASSERT_EQ(world->growths().known(), 0U) << i;
    }
  });
}

TEST(Grow, AnEmptyCommunicatorRefuses) {
  EXPECT_EQ(Communicator().invite().status().code(), Code::invalid_argument);
  EXPECT_EQ(Communicator().grow().status().code(), Code::invalid_argument);
  EXPECT_EQ(Communicator::join("").status().code(), Code::invalid_argument);
  EXPECT_EQ(Communicator::join("x", {.devices = {}, .context = {}, .timeout_seconds = -1}).status().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace hmc
