// Runs a fuzz target over its corpus and over mutations of it, without libFuzzer. The same inputs on every run; when one of them
// ends the program, that input is printed and kept in a file, which belongs into the corpus once the fault is mended. Usage:
// replay_<target> CORPUS [MUTATIONS]; the mutations are shared out among the inputs.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// There when the program is built with a sanitizer, which ends it without a signal.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Input = std::vector<std::uint8_t>;
constexpr std::size_t largest = 64 << 10;
constexpr unsigned deadline_seconds = 300;  // of the whole program: an input that loops is found too

struct Seed {
  std::string name;
  Input bytes;
};

// What runs now, for the report.
const char* running = "";
std::uint8_t* running_bytes = nullptr;
std::size_t running_size = 0;

void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void report() {
  static const char path[] = "replay-crash.bin";
  say("\nended by an input made from ");
  say(running);
  const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, running_bytes, running_size) < 0) return say(", which could not be written to a file\n");
  close(fd);
  say(", now in replay-crash.bin of the working directory\n");
}

void on_signal(int number) {
  report();
  signal(number, SIG_DFL);
  raise(number);
}

// A copy of exactly this size on the heap, so that a sanitizer sees a read past the end.
void run(const std::string& name, const Input& input) {
  Input exact(input);
  exact.shrink_to_fit();
  running = name.c_str();
  running_bytes = exact.data();
  running_size = exact.size();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

class Mutator {
 public:
  explicit Mutator(const std::vector<Seed>& seeds) : seeds_(seeds) {}

  Input mutate(Input input) {
    for (std::uint64_t steps = 1 + below(5); steps > 0; --steps) step(input);
    if (input.size() > largest) input.resize(largest);
    return input;
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  void step(Input& input) {
    static constexpr std::uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    if (input.empty()) return input.push_back(static_cast<std::uint8_t>(random_()));
    const std::size_t at = below(input.size());
    const std::size_t length = std::min(std::size_t{1} << below(4), input.size() - at);
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(8)) {
      case 0:
        input[at] = static_cast<std::uint8_t>(random_());
        break;
      case 1:
        input[at] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 2:
        input[at] = static_cast<std::uint8_t>(input[at] + (below(2) == 0 ? 1 : -1));
        break;
      case 3:  // a number of 1, 2, 4 or 8 bytes that is nothing, everything, or an edge
        std::fill_n(place, length, edges[below(std::size(edges))]);
        break;
      case 4:
        input.resize(at);
        break;
      case 5:
        input.erase(place, place + static_cast<std::ptrdiff_t>(length));
        break;
      case 6:
        for (std::size_t i = 0; i < length; ++i) input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), edges[below(5)]);
        break;
      default: {  // the rest of another input
        const Input& other = seeds_[below(seeds_.size())].bytes;
        input.resize(at);
        const std::size_t from = other.empty() ? 0 : below(other.size());
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
    }
  }

  const std::vector<Seed>& seeds_;
  std::mt19937_64 random_{20240607};
};

std::vector<Seed> read_corpus(const char* folder) {
  std::vector<Seed> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.push_back({entry.path().filename().string(), Input(std::istreambuf_iterator<char>(file), {})});
  }
  std::ranges::sort(seeds, {}, &Seed::name);
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS]\n", argv[0]);
    return 2;
  }
  const auto seeds = read_corpus(argv[1]);
  const std::size_t mutations = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 50'000;
  if (seeds.empty()) {
    std::fprintf(stderr, "no inputs in %s\n", argv[1]);
    return 1;
  }
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) signal(number, on_signal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(report);
  alarm(deadline_seconds);
  Mutator mutator(seeds);
  run("nothing", {});
  for (const Seed& seed : seeds) {
    run(seed.name, seed.bytes);
    for (std::size_t i = 0; i < mutations / seeds.size(); ++i) run(seed.name, mutator.mutate(seed.bytes));
  }
  std::printf("%zu inputs, %zu mutations\n", seeds.size(), mutations / seeds.size() * seeds.size());
  return 0;
}
