// Measured figures in messages and in the cache file: damage is found, and no file keeps ranks from measuring.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collective/figure_cache.h"
#include "collective/link_figures.h"
#include "testing.h"

namespace hmc {
namespace {

namespace fs = std::filesystem;

const std::vector<RankPair> pairs{{0, 1}, {0, 2}, {1, 2}};
constexpr const char* key = "hmc 1.2.3\nrank 0 on host 0: a\nrank 1 on host 0: b\nrank 2 on host 1: c\n";

LinkFigures figures(double seed = 1) {
  return {.time = 1'795'695'060,
          .pairs = {{1.25e-6 * seed, 9.87654321e9, 1e10 / 3}, {0, 1, 1e15}, {1e3, 0.1 + 7e8, 12345.678 * seed}}};
}

TEST(LinkFigures, BytesAreReadBack) {
  const Bytes bytes = encode(figures());
  EXPECT_EQ(decode_link_figures(bytes, 3), figures());
  EXPECT_EQ(decode_link_figures(encode(LinkFigures{.time = 7, .pairs = {}}), 0), (LinkFigures{.time = 7, .pairs = {}}));
  EXPECT_FALSE(decode_link_figures(bytes, 2) || decode_link_figures(bytes, 4) || decode_link_figures({}, 0));
  for (std::size_t length = 0; length < bytes.size(); ++length)
    ASSERT_FALSE(decode_link_figures(ByteSpan(bytes).first(length), 3)) << length;
}

TEST(LinkFigures, FiguresThatNoLinkHasAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const PairFigures& bad : std::vector<PairFigures>{{nan, 1e9, 1e9},
                                                         {-1e-9, 1e9, 1e9},
                                                         {infinity, 1e9, 1e9},
                                                         {1e-6, nan, 1e9},
                                                         {1e-6, 1e9, 0},
                                                         {1e-6, -5, 1e9},
                                                         {1e-6, 1e9, infinity},
                                                         {1e-6, 1e16, 1e9}}) {
    LinkFigures all = figures();
    all.pairs[1] = bad;
    EXPECT_FALSE(are_plausible(bad));
    EXPECT_FALSE(decode_link_figures(encode(all), 3));
    EXPECT_FALSE(parse_cache(cache_text(key, pairs, all), key, pairs));
  }
  for (const std::int64_t time : {std::int64_t{-1}, std::int64_t{253'402'300'800}, std::numeric_limits<std::int64_t>::max()}) {
    LinkFigures all = figures();
    all.time = time;
    EXPECT_FALSE(decode_link_figures(encode(all), 3)) << time;
    EXPECT_FALSE(parse_cache(cache_text(key, pairs, all), key, pairs)) << time;
  }
}

TEST(LinkFigures, TextIsReadBackByItsOwnGroupOnly) {
  const std::string text = cache_text(key, pairs, figures());
  EXPECT_EQ(parse_cache(text, key, pairs), figures());
  EXPECT_FALSE(parse_cache(text, "hmc 1.2.4\nrank 0 on host 0: a\nrank 1 on host 0: b\nrank 2 on host 1: c\n", pairs));
  EXPECT_FALSE(parse_cache(text, key, std::vector<RankPair>{{0, 1}, {0, 2}}));
  EXPECT_FALSE(parse_cache(text, key, std::vector<RankPair>{{0, 1}, {0, 2}, {2, 1}}));
  EXPECT_FALSE(parse_cache(text + "\n", key, pairs) || parse_cache("\n" + text, key, pairs));
  for (std::size_t length = 0; length < text.size(); ++length) ASSERT_FALSE(parse_cache(text.substr(0, length), key, pairs));
}

// Whatever a byte becomes, the text is refused, or its numbers are those of some link.
TEST(LinkFigures, DamageIsFoundOrHarmless) {
  const std::string text = cache_text(key, pairs, figures());
  std::mt19937 random(5);
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int i = 0; i < 20; ++i) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(random());
      const auto read = parse_cache(damaged, key, pairs);
      if (!read) continue;
      ASSERT_EQ(read->pairs.size(), 3U);
      for (const PairFigures& pair : read->pairs) ASSERT_TRUE(are_plausible(pair)) << damaged;
    }
  }
}

TEST(LinkFigures, SaysWhenAndHow) {
  Measurement found = measurement_of(pairs, figures(), true);
  ASSERT_EQ(found.links.size(), 6U);
  EXPECT_EQ(found.links[1].source, 1);
  EXPECT_EQ(found.links[1].target, 0);
  EXPECT_DOUBLE_EQ(found.links[0].latency_us, 1.25);
  EXPECT_DOUBLE_EQ(found.links[0].bandwidth, 9.87654321e9);
  EXPECT_DOUBLE_EQ(found.links[1].bandwidth, 1e10 / 3);
  EXPECT_EQ(found.origin(), "measured 2026-11-26 12:11 UTC, from the cache");
  found.cached = false;
  EXPECT_EQ(found.origin(), "measured 2026-11-26 12:11 UTC");
  EXPECT_NE(found.str().find("1 -> 0"), std::string::npos);
}

// Points HMC_CACHE at an empty folder while it lives.
class FigureCache : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (fs::temp_directory_path() / "hmc-cache-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    top_ = folder;
    use(top_ / "new" / "hmc");
    for (const char* name : variables) {
      if (const char* value = std::getenv(name)) before_[name] = value;
    }
  }
  void TearDown() override {
    unsetenv("HMC_CACHE");
    for (const char* name : variables) before_.contains(name) ? setenv(name, before_[name].c_str(), 1) : unsetenv(name);
    fs::remove_all(top_);
  }
  void use(const fs::path& folder) {
    folder_ = folder;
    setenv("HMC_CACHE", folder.c_str(), 1);
  }
  [[nodiscard]] fs::path file() const { return figure_cache_file(folder_.string(), key); }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static std::optional<LinkFigures> read() { return read_cached_figures(key, pairs); }

  static constexpr std::array variables{"HOME", "XDG_CACHE_HOME"};
  std::map<std::string, std::string> before_;
  fs::path top_, folder_;
};

TEST_F(FigureCache, KeepsTheLastFiguresOfEachGroup) {
  EXPECT_FALSE(read());
  write_cached_figures(key, pairs, figures());
  EXPECT_EQ(read(), figures());
  write_cached_figures(key, pairs, figures(2));
  EXPECT_EQ(read(), figures(2));
  EXPECT_EQ(files(), 1U);
  struct stat info{};
  ASSERT_EQ(stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  write_cached_figures("hmc 9\n", pairs, figures(3));
  EXPECT_EQ(files(), 2U);
  EXPECT_EQ(read(), figures(2));
}

TEST_F(FigureCache, CanBeSwitchedOffAndMoved) {
  setenv("HMC_CACHE", "off", 1);
  EXPECT_EQ(figure_cache_folder(), "");
  write_cached_figures(key, pairs, figures());
  EXPECT_FALSE(read());
  EXPECT_FALSE(fs::exists("off"));
  unsetenv("HMC_CACHE");
  setenv("XDG_CACHE_HOME", "/x", 1);
  setenv("HOME", "/y", 1);
  EXPECT_EQ(figure_cache_folder(), "/x/hmc");
  setenv("XDG_CACHE_HOME", "not/absolute", 1);
  EXPECT_EQ(figure_cache_folder(), "/y/.cache/hmc");
  unsetenv("HOME");
  EXPECT_EQ(figure_cache_folder(), "");
}

TEST_F(FigureCache, OtherThingsInItsPlaceAreNotUsed) {
  fs::create_directories(folder_);
  const auto put = [&](const std::string& text) { std::ofstream(file(), std::ios::trunc) << text; };
  for (const std::string& text : {std::string(), std::string("garbage"), std::string(2 << 20, 'x'), std::string(100, '\0'),
                                  cache_text("hmc 0.0.1\n", pairs, figures())}) {
    put(text);
    EXPECT_FALSE(read()) << text.size();
  }
  fs::remove(file());
  fs::create_directory(file());
  EXPECT_FALSE(read());
  write_cached_figures(key, pairs, figures());  // no file can replace a folder
  EXPECT_FALSE(read());
  EXPECT_EQ(files(), 1U) << "a temporary file was left";
  fs::remove(file());
  ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
  EXPECT_FALSE(read());  // and does not wait for a writer
  fs::remove(file());
  const fs::path elsewhere = top_ / "elsewhere";
  std::ofstream(elsewhere) << cache_text(key, pairs, figures());
  fs::create_symlink(elsewhere, file());
  EXPECT_FALSE(read());
  write_cached_figures(key, pairs, figures(2));  // replaces the link, not what it names
  EXPECT_EQ(read(), figures(2));
  EXPECT_FALSE(fs::is_symlink(file()));
}

TEST_F(FigureCache, FoldersThatCannotBeWrittenAreNoError) {
  std::ofstream(top_ / "file") << "x";
  use(top_ / "file" / "below");
  write_cached_figures(key, pairs, figures());
  EXPECT_FALSE(read());
  use("/proc/no/such/folder");
  write_cached_figures(key, pairs, figures());
  EXPECT_FALSE(read());
}

// A process that is killed while it writes leaves its temporary file.
TEST_F(FigureCache, OldTemporaryFilesAreRemoved) {
  fs::create_directories(folder_);
  const fs::path killed = folder_ / ".hmc-0123456789abcdef.tmp", writing = folder_ / ".hmc-0123456789abcde0.tmp";
  const fs::path others = folder_ / "notes.tmp", folder = folder_ / ".hmc-0123456789abcde1.tmp";
  for (const fs::path& each : {killed, writing, others}) std::ofstream(each) << "hmc links";
  fs::create_directories(folder / "below");
  for (const fs::path& each : {killed, others, folder}) {
    fs::last_write_time(each, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  write_cached_figures(key, pairs, figures());
  EXPECT_EQ(read(), figures());
  EXPECT_FALSE(fs::exists(killed));
  for (const fs::path& each : {writing, others, folder}) EXPECT_TRUE(fs::exists(each)) << each;
}

// The name that the file of a killed writer has.
TEST_F(FigureCache, TemporaryFilesHaveTheNameThatIsRemoved) {
  fs::create_directories(file());
  const pid_t child = fork();
  if (child == 0) {
    // No file can replace a folder, and this one is not to remove its temporary file.
    signal(SIGXFSZ, SIG_DFL);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_FSIZE, &none);
    write_cached_figures(key, pairs, figures());  // killed by its first byte
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  ASSERT_EQ(files(), 2U);
  for (const auto& each : fs::directory_iterator(folder_)) {
    if (each.is_regular_file()) fs::last_write_time(each, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  write_cached_figures(key, pairs, figures());
  EXPECT_EQ(files(), 1U);
}

// Readers see one writer's file as a whole or another one's.
TEST_F(FigureCache, ProcessesMayWriteAtOnce) {
  std::vector<pid_t> writers;
  for (int w = 1; w <= 3; ++w) {
    const pid_t child = fork();
    if (child == 0) {
      for (int i = 0; i < 200; ++i) write_cached_figures(key, pairs, figures(w));
      _exit(0);
    }
    writers.push_back(child);
  }
  while (!fs::exists(file())) usleep(1000);
  for (int i = 0; i < 500; ++i) {
    const auto found = read();
    ASSERT_TRUE(found);
    ASSERT_TRUE(*found == figures(1) || *found == figures(2) || *found == figures(3));
  }
  for (const pid_t writer : writers) {
    int status = 0;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace hmc
