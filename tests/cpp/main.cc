// Test main: every test has a deadline (HMC_TEST_TIMEOUT seconds, default 180) after which all stacks are printed and the program
// dies.
#include <execinfo.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace {

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void print_stack(int) {
  void* frames[64];
  const int depth = backtrace(frames, 64);
  say("---- thread stack ----\n");
  backtrace_symbols_fd(frames, depth, STDERR_FILENO);
}

std::atomic<bool> dumping{false};

void on_deadline(int) {
  if (dumping.exchange(true)) return;
  say("\ntest deadline passed; stacks of every thread:\n");
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const auto tid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    syscall(SYS_tgkill, getpid(), tid, SIGUSR2);
    usleep(100'000);
  }
  _exit(124);
}

class DeadlineListener : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& info) override {
    const char* text = std::getenv("HMC_TEST_TIMEOUT");
    alarm(text ? static_cast<unsigned>(std::atoi(text)) : 180U);
    last_ = std::string(info.test_suite_name()) + "." + info.name();
  }
  void OnTestEnd(const testing::TestInfo&) override { alarm(0); }
  std::string last_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  void* warm[1];
  backtrace(warm, 1);  // loads libgcc now, not inside a signal handler
  signal(SIGUSR2, print_stack);
  signal(SIGALRM, on_deadline);
  ::testing::UnitTest::GetInstance()->listeners().Append(new DeadlineListener);
  return RUN_ALL_TESTS();
}
