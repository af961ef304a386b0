// What is paid before and beside the data: making a Context, connecting, a control round trip, idling, starting many ranks; with
// raw sockets in the same run. Prints one JSON object per point: {"operation": ..., "seconds": ...}. Usage: hmc_startup [repeat]
// [ranks] [idle seconds]
#include <arpa/inet.h>
#include <hmc/hmc.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

constexpr int round_trips = 300;

using bench::check;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(int repeat, const std::function<double()>& sample) {
  std::vector<double> all;
  for (int i = 0; i < repeat; ++i) all.push_back(sample());
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

void report(const char* operation, double seconds) {
  std::printf("{\"operation\": \"%s\", \"seconds\": %.9g}\n", operation, seconds);
  std::fflush(stdout);
}

// ---- raw sockets: a request of 64 bytes, an answer of 256, both ends blocking ----
void exchange(int fd, bool asks) {
  char request[64] = {}, answer[256] = {};
  for (int i = 0; i < round_trips; ++i) {
    if (asks && write(fd, request, sizeof request) < 0) std::_Exit(1);
    if (recv(fd, asks ? answer : request, asks ? sizeof answer : sizeof request, MSG_WAITALL) <= 0) return;
    if (!asks && write(fd, answer, sizeof answer) < 0) std::_Exit(1);
  }
}

double raw_round_trip(int asking, int answering) {
  const pid_t child = fork();
  if (child == 0) {
    exchange(answering, false);
    std::_Exit(0);
  }
  const double start = now();
  exchange(asking, true);
  const double each = (now() - start) / round_trips;
  close(asking);
  close(answering);
  waitpid(child, nullptr, 0);
  return each;
}

double raw_unix() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::_Exit(1);
  return raw_round_trip(ends[0], ends[1]);
}

double raw_tcp() {
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listening, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listening, 1) != 0) std::_Exit(1);
  getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size);
  const int asking = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(asking, reinterpret_cast<sockaddr*>(&address), size) != 0) std::_Exit(1);
  const int answering = accept(listening, nullptr, nullptr);
  close(listening);
  const int one = 1;
  for (const int fd : {asking, answering}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return raw_round_trip(asking, answering);
}

// ---- HMC: a process that publishes a buffer, and one that connects to it and looks it up ----
struct Server {
  pid_t pid = 0;
  int alive = -1;  // closing it ends the server
  std::string address;
};

Server serve(const hmc::ContextOptions& options) {
  int address[2], alive[2];
  if (pipe(address) != 0 || pipe(alive) != 0) std::_Exit(1);
  Server server;
  server.pid = fork();
  if (server.pid == 0) {
    close(alive[1]);
    const auto context = check(hmc::Context::create(options));
    const auto buffer = check(context.buffer(4096));
    check(context.publish("weights", buffer));
    const std::string text = context.addresses().back();
    if (write(address[1], text.c_str(), text.size()) < 0) std::_Exit(1);
    close(address[1]);
    char end = 0;
    static_cast<void>(read(alive[0], &end, 1));
    std::_Exit(0);
  }
  close(alive[0]);
  close(address[1]);
  char text[256];
  for (ssize_t n = 0; (n = read(address[0], text, sizeof text)) > 0;) server.address.append(text, static_cast<std::size_t>(n));
  close(address[0]);
  server.alive = alive[1];
  return server;
}

void end(const Server& server) {
  close(server.alive);
  waitpid(server.pid, nullptr, 0);
}

hmc::ContextOptions over(const std::string& listen, const std::string& key) {
  hmc::ContextOptions options;
  if (!listen.empty()) options.listen = {listen};
  options.key = key;
  return options;
}

void connections(const char* name, const std::string& listen, const std::string& key, int repeat) {
  const Server server = serve(over(listen, key));
  report((std::string("connect ") + name).c_str(), median(repeat, [&] {
           const auto context = check(hmc::Context::create(over("", key)));
           const double start = now();
           const auto peer = check(context.connect(server.address));
           const double took = now() - start;
           check(context.close());
           return took;
         }));
  const auto context = check(hmc::Context::create(over("", key)));
  const auto peer = check(context.connect(server.address));
  const auto keep = check(peer.lookup("weights"));  // known from now on: a lookup is one question and one answer
  report((std::string("round trip ") + name).c_str(), median(repeat, [&] {
           const double start = now();
           for (int i = 0; i < round_trips; ++i) static_cast<void>(check(peer.lookup("weights")));
           return (now() - start) / round_trips;
         }));
  check(context.close());
  end(server);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void idle(double seconds) {
  const Server server = serve({});
  const auto context = check(hmc::Context::create({}));
  const auto peer = check(context.connect(server.address));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  report("idle CPU", cpu_seconds() - before);
  end(server);
}

void many(int ranks) {
  const std::string rendezvous = "unix:/tmp/hmc-startup-" + std::to_string(getpid());
  const double start = now();
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    hmc::InitOptions options;
    options.rank = rank;
    options.size = ranks;
    options.rendezvous = rendezvous;
    auto comm = check(hmc::Communicator::init(options));
    check(comm.barrier());
    std::vector<char> out(static_cast<std::size_t>(ranks) * 64), in(out.size(), static_cast<char>(rank));
    check(check(comm.self()).all_to_all({out.data(), out.size()}, {in.data(), in.size()}));
    check(comm.barrier());
    for (int from = 0; from < ranks; ++from) {
      if (out[static_cast<std::size_t>(from) * 64 + 63] != static_cast<char>(from)) std::_Exit(1);
    }
    check(comm.close());
    std::_Exit(0);
  }
  bool ok = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ok = ok && status == 0;
  }
  if (ok) report((std::to_string(ranks) + " ranks").c_str(), now() - start);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeat = argc > 1 ? std::atoi(argv[1]) : 9;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 64;
  const double idle_seconds = argc > 3 ? std::atof(argv[3]) : 10;
  report("raw unix round trip", median(repeat, raw_unix));
  report("raw tcp round trip", median(repeat, raw_tcp));
  report("create a Context", median(repeat, [] {
           const double start = now();
           const auto context = check(hmc::Context::create({}));
           const double took = now() - start;
           check(context.close());
           return took;
         }));
  connections("unix", "", "", repeat);
  connections("tcp with a key", "tcp://127.0.0.1:0", hmc::generate_job_key(), repeat);
  many(ranks);
  idle(idle_seconds);
}
