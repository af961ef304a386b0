#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "transport/transport.h"

extern char** environ;

namespace hmc::testing {

Context make_context(const std::string& transports, std::vector<std::string> listen, ContextOptions options) {
  options.transports = transports;
  options.listen = std::move(listen);
  auto context = Context::create(options);
  EXPECT_TRUE(context.ok()) << context.status().str();
  return context.ok() ? *context : Context();
}

std::vector<std::string> peer_transports() {
  const auto known = list_transports();
  std::vector<std::string> names;
  for (const TransportFactory* factory : transport_factories()) {
    // Those that build on others serve no peer by themselves; one without its hardware or library serves nobody.
    if (factory->name == "local" || factory->on_carriers) continue;
    const auto info = std::ranges::find(known, factory->name, &TransportInfo::name);
    if (info != known.end() && info->available) names.emplace_back(factory->name);
  }
  return names;
}

Pair::Pair(const std::string& transports) : a(make_context(transports)), b(make_context(transports)) {
  if (!a.valid() || !b.valid()) return;
  auto connected = a.connect(b.addresses().front(), soon());
  EXPECT_TRUE(connected.ok()) << connected.status().str();
  auto accepted = b.accept(soon());
  EXPECT_TRUE(accepted.ok()) << accepted.status().str();
  if (!connected.ok() || !accepted.ok()) return;
  ab = *connected;
  ba = *accepted;
}

Role::Role(const std::string& name, const std::string& arguments, std::vector<std::string> environment) {
  std::array<int, 2> to{}, from{};
  if (pipe2(to.data(), O_CLOEXEC) != 0 || pipe2(from.data(), O_CLOEXEC) != 0) return;
  std::vector<std::string> all{"HMC_TEST_ROLE=" + arguments};
  for (auto& e : environment) all.push_back(std::move(e));
  for (char** e = environ; *e != nullptr; ++e) {
    if (!std::string_view(*e).starts_with("GTEST_")) all.emplace_back(*e);  // a part of the tests may be without the role
  }
  std::vector<char*> env;
  for (auto& e : all) env.push_back(e.data());
  env.push_back(nullptr);
  std::vector<std::string> args{"role", "--gtest_also_run_disabled_tests", "--gtest_filter=Role.DISABLED_" + name,
                                "--gtest_brief=1"};
  std::vector<char*> argv;
  for (auto& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], 0);
  posix_spawn_file_actions_adddup2(&actions, from[1], 3);
  EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), env.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  in_ = to[1];
  out_ = from[0];
}

Role::~Role() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    kill(pid_, SIGCONT);
    wait();
  }
  if (in_ >= 0) close(in_);
  if (out_ >= 0) close(out_);
}

void Role::signal(int number) const {
  if (number == SIGSTOP) return stop_process(pid_);
  kill(pid_, number);
}

int Role::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string Role::read_line() {
  while (buffered_.find('\n') == std::string::npos) {
    char chunk[256];
    const ssize_t n = read(out_, chunk, sizeof chunk);
    if (n <= 0) {
      ADD_FAILURE() << "the other process ended early";
      return {};
    }
    buffered_.append(chunk, static_cast<std::size_t>(n));
  }
  const auto end = buffered_.find('\n');
  std::string line = buffered_.substr(0, end);
  buffered_.erase(0, end + 1);
  return line;
}

void Role::write_line(const std::string& line) const {
  const std::string text = line + "\n";
  EXPECT_EQ(write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

std::string role_arguments() {
  const char* text = std::getenv("HMC_TEST_ROLE");
  return text == nullptr ? "" : text;
}

void tell(const std::string& line) {
  const std::string text = line + "\n";
  if (write(3, text.data(), text.size()) < 0) _exit(3);
}

std::string hear() {
  std::string line;
  if (!std::getline(std::cin, line)) _exit(4);
  return line;
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace hmc::testing
