#include "collective/link_figures.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "base/wire.h"

namespace hmc {
namespace {

constexpr std::string_view first_line = "hmc links 1\n";
constexpr std::int64_t latest_time = 253'402'300'799;  // the last second of the year 9999

bool is_time(std::int64_t time) noexcept { return time >= 0 && time <= latest_time; }

// The shortest text that reads back as the same number, in any locale.
template <class Number>
std::string number(Number value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

// Takes the text apart from its front; after the first misfit nothing fits.
class TextReader {
 public:
  explicit TextReader(std::string_view text) noexcept : left_(text) {}

  void expect(std::string_view text) noexcept {
    ok_ = ok_ && left_.starts_with(text);
    if (ok_) left_.remove_prefix(text.size());
  }
  template <class Number>
  Number read() noexcept {
    Number value{};
    if (!ok_) return value;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    ok_ = error == std::errc();
    if (ok_) left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
    return value;
  }
  [[nodiscard]] bool finish() const noexcept { return ok_ && left_.empty(); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

std::string ends_of(const RankPair& pair) { return "link " + std::to_string(pair.first) + " " + std::to_string(pair.second) + " "; }

}  // namespace

bool are_plausible(const PairFigures& figures) noexcept {
  const auto is_rate = [](double rate) { return rate >= lowest_rate && rate <= highest_rate; };  // false for NaN
  return figures.latency >= 0 && figures.latency <= longest_latency && is_rate(figures.forward) && is_rate(figures.backward);
}

Bytes encode(const LinkFigures& figures) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.i64(figures.time);
  for (const PairFigures& pair : figures.pairs) writer.f64(pair.latency).f64(pair.forward).f64(pair.backward);
  return bytes;
}

std::optional<LinkFigures> decode_link_figures(ByteSpan bytes, std::size_t pairs) {
  WireReader reader(bytes);
  LinkFigures figures;
  figures.time = reader.i64();
  for (std::size_t i = 0; i < pairs && reader.ok(); ++i) {
    PairFigures pair;
    pair.latency = reader.f64();
    pair.forward = reader.f64();
    pair.backward = reader.f64();
    figures.pairs.push_back(pair);
  }
  if (!reader.finish() || !is_time(figures.time) || !std::ranges::all_of(figures.pairs, are_plausible)) return std::nullopt;
  return figures;
}

std::string cache_text(std::string_view key, std::span<const RankPair> pairs, const LinkFigures& figures) {
  std::string text(first_line);
  text += std::string(key) + "measured " + number(figures.time) + "\n";
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const PairFigures& pair = figures.pairs[i];
    text += ends_of(pairs[i]) + number(pair.latency) + " " + number(pair.forward) + " " + number(pair.backward) + "\n";
  }
  return text + "end\n";
}

std::optional<LinkFigures> parse_cache(std::string_view text, std::string_view key, std::span<const RankPair> pairs) {
  TextReader reader(text);
  LinkFigures figures;
  reader.expect(first_line);
  reader.expect(key);
  reader.expect("measured ");
  figures.time = reader.read<std::int64_t>();
  reader.expect("\n");
  for (const RankPair& ends : pairs) {
    PairFigures pair;
    reader.expect(ends_of(ends));
    pair.latency = reader.read<double>();
    reader.expect(" ");
    pair.forward = reader.read<double>();
    reader.expect(" ");
    pair.backward = reader.read<double>();
    reader.expect("\n");
    figures.pairs.push_back(pair);
  }
  reader.expect("end\n");
  if (!reader.finish() || !is_time(figures.time) || !std::ranges::all_of(figures.pairs, are_plausible)) return std::nullopt;
  return figures;
}

Measurement measurement_of(std::span<const RankPair> pairs, const LinkFigures& figures, bool cached) {
  Measurement measurement{.time = figures.time, .cached = cached, .links = {}};
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const PairFigures& found = figures.pairs[i];
    const int first = static_cast<int>(pairs[i].first), second = static_cast<int>(pairs[i].second);
    measurement.links.push_back({first, second, found.latency * 1e6, found.forward});
    measurement.links.push_back({second, first, found.latency * 1e6, found.backward});
  }
  return measurement;
}

std::string Measurement::origin() const {
  const std::time_t seconds = time;
  std::tm parts{};
  std::array<char, 64> text{};
  gmtime_r(&seconds, &parts);
  std::strftime(text.data(), text.size(), "measured %Y-%m-%d %H:%M UTC", &parts);
  return text.data() + std::string(cached ? ", from the cache" : "");
}

std::string Measurement::str() const {
  std::string text = origin() + "\n  link                  latency        bandwidth\n";
  for (const MeasuredLink& link : links) {
    std::array<char, 96> row{};
    const std::string ends = std::to_string(link.source) + " -> " + std::to_string(link.target);
    std::snprintf(row.data(), row.size(), "  %-14s %10.3g us %10.4g GB/s\n", ends.c_str(), link.latency_us, link.bandwidth / 1e9);
    text += row.data();
  }
  return text;
}

}  // namespace hmc
