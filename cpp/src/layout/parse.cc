#include <algorithm>
#include <bitset>
#include <charconv>

#include "hmc/layout.h"
#include "layout/limits.h"

namespace hmc {
namespace {

constexpr std::array<std::string_view, layout_axes> axis_names{"L", "B", "N", "H", "kv", "D"};

Status refuse(const std::string& what) { return {Code::invalid_argument, "layout: " + what}; }
std::string quoted(std::string_view text) { return "\"" + std::string(text.substr(0, 40)) + "\""; }

bool read_number(std::string_view& text, std::uint64_t& value) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

std::optional<DataType> element_type(std::string_view name) noexcept {
  const auto type = data_type(name);
  if (!type || !is_floating(*type) || *type == DataType::f64) return std::nullopt;
  return type;
}

std::optional<LayoutAxis> axis_of(std::string_view& text) noexcept {
  for (std::size_t i = 0; i < layout_axes; ++i) {
    const std::string_view name = axis_names[i];
    if (!text.starts_with(name)) continue;
    const char next = text.size() > name.size() ? text[name.size()] : ':';
    if (next != '=' && next != '/' && next != '%' && next != ':') continue;
    text.remove_prefix(name.size());
    return static_cast<LayoutAxis>(i);
  }
  return std::nullopt;
}

bool usable(float scale) noexcept { return scale >= 1e-30F && scale <= 1e30F; }

std::string number_text(float value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::string(text.data(), end) : "1";
}

}  // namespace

// Reads one text. Errors name the token.
class LayoutParser {
 public:
  explicit LayoutParser(const LayoutGiven& given) : given_(given) {}

  Result<Layout> parse(std::string_view text) {
    if (text.size() > max_layout_text) return refuse("a description has at most " + std::to_string(max_layout_text) + " bytes");
    HMC_TRY(read_tokens(text));
    HMC_TRY(resolve_bare_numbers());
    HMC_TRY(take_given());
    HMC_TRY(check_axes());
    HMC_TRY(place());
    return std::move(layout_);
  }

 private:
  using Step = Layout::Step;

  Status read_tokens(std::string_view text) {
    int open = 0;
    while (!text.empty()) {
      const char c = text.front();
      if (c == ' ' || c == '(' || c == ')') {
        open += c == '(' ? 1 : c == ')' ? -1 : 0;
        if (open < 0 || open > 1) return refuse("parentheses do not match");
        text.remove_prefix(1);
        continue;
      }
      const std::size_t end = std::min(text.find_first_of(" ()"), text.size());
      HMC_TRY(read_token(text.substr(0, end)));
      text.remove_prefix(end);
    }
    return open == 0 ? Status() : refuse("parentheses do not match");
  }

  Status read_token(std::string_view token) {
    if (token == "|") return end_buffers();
    if (token.starts_with("scale=")) return read_scales(token.substr(6));
    if (const auto type = element_type(token)) {
      if (has_type_) return refuse("more than one element type: " + quoted(token));
      has_type_ = true;
      layout_.type_ = *type;
      return {};
    }
    return read_axis(token);
  }

  Status end_buffers() {
    if (split_) return refuse("more than one \"|\"");
    split_ = true;
    for (Step& step : layout_.steps_) {
      if (step.axis != LayoutAxis::layer && step.axis != LayoutAxis::kv)
        return refuse("only L and kv may stand left of \"|\", not " + std::string(axis_names[index_of(step.axis)]));
      if (step.part != 0 || step.stride != 0) return refuse("an axis left of \"|\" has no parts and no stride");
      step.across = true;
    }
    return {};
  }

  Status read_scales(std::string_view text) {
    if (!layout_.scales_.empty()) return refuse("more than one scale=");
    while (true) {
      float value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || !usable(value)) return refuse("a scale is a number from 1e-30 to 1e30, not " + quoted(text));
      layout_.scales_.push_back(value);
      text.remove_prefix(static_cast<std::size_t>(end - text.data()));
      if (text.empty()) return {};
      if (text.front() != ',') return refuse("scales are separated by commas: " + quoted(text));
      text.remove_prefix(1);
    }
  }

  Status read_axis(const std::string_view token) {
    std::string_view rest = token;
    Step step;
    std::uint64_t bare = 0;
    bool is_bare = false;
    if (const auto axis = axis_of(rest)) {
      step.axis = *axis;
      HMC_TRY(read_extent(token, rest, step));
    } else if (read_number(rest, bare)) {
      if (bare == 0) return refuse("an axis is divided by a number from 1 on: " + quoted(token));
      is_bare = true;
      step.part = bare;
      step.remainder = true;
    } else {
      return refuse("unknown axis or element type " + quoted(token) + "; axes are L, B, N, H, kv, D");
    }
    if (rest.starts_with(':')) {
      rest.remove_prefix(1);
      if (!read_number(rest, step.stride) || step.stride == 0 || step.stride > max_layout_bytes)
        return refuse("a stride is a number from 1 to 2^50: " + quoted(token));
    }
    if (!rest.empty()) return refuse("cannot read " + quoted(token));
    if (layout_.steps_.size() == max_layout_steps) return refuse("too many axes");
    bare_.set(layout_.steps_.size(), is_bare);
    layout_.steps_.push_back(step);
    return {};
  }

  Status read_extent(std::string_view token, std::string_view& rest, Step& step) {
    if (rest.starts_with('=')) {
      rest.remove_prefix(1);
      std::uint64_t extent = 0;
      if (!read_number(rest, extent) || extent == 0) return refuse("an extent is a number from 1 on: " + quoted(token));
      std::uint64_t& known = layout_.extents_[index_of(step.axis)];
      if (known != 0) return refuse("two extents of one axis: " + quoted(token));
      known = extent;
    }
    if (rest.starts_with('@')) {
      rest.remove_prefix(1);
      std::uint64_t& first = step.axis == LayoutAxis::layer ? layout_.first_layer_ : layout_.first_head_;
      if ((step.axis != LayoutAxis::layer && step.axis != LayoutAxis::head) || !read_number(rest, first) ||
          first > max_layout_first)
        return refuse("\"@\" is the first layer or head, at most " + std::to_string(max_layout_first) + ": " + quoted(token));
      (step.axis == LayoutAxis::layer ? has_first_layer_ : has_first_head_) = true;
    }
    if (rest.starts_with('/') || rest.starts_with('%')) {
      step.remainder = rest.front() == '%';
      rest.remove_prefix(1);
      if (!read_number(rest, step.part) || step.part == 0) return refuse("an axis is divided by a number: " + quoted(token));
      if (step.axis != LayoutAxis::token && step.axis != LayoutAxis::dim)
        return refuse("only N and D are divided: " + quoted(token));
    }
    return {};
  }

  Status resolve_bare_numbers() {
    for (std::size_t i = 0; i < layout_.steps_.size(); ++i) {
      if (!bare_[i]) continue;
      int matches = 0;
      for (const Step& other : layout_.steps_) {
        if (other.part != layout_.steps_[i].part || other.remainder) continue;
        layout_.steps_[i].axis = other.axis;
        ++matches;
      }
      const std::string number = std::to_string(layout_.steps_[i].part);
      if (matches == 0) return refuse("no axis is divided by " + number);
      if (matches > 1) return refuse("several axes are divided by " + number + ": write N%" + number + " or D%" + number);
    }
    return {};
  }

  Status take_given() {
    for (std::size_t i = 0; i < layout_axes; ++i) {
      const std::uint64_t given = given_.extents[i];
      if (given == 0) continue;
      if (layout_.extents_[i] != 0 && layout_.extents_[i] != given)
        return refuse(std::string(axis_names[i]) + " is " + std::to_string(layout_.extents_[i]) + " in the text and " +
                      std::to_string(given) + " beside it");
      layout_.extents_[i] = given;
    }
    if (!has_first_layer_) layout_.first_layer_ = given_.first_layer;
    if (!has_first_head_) layout_.first_head_ = given_.first_head;
    if (layout_.first_layer_ > max_layout_first || layout_.first_head_ > max_layout_first)
      return refuse("the first layer or head is too large");
    if (!has_type_) {
      if (!given_.type) return refuse("the element type is missing: f16, bf16, f32, f8_e4m3fn, f8_e4m3fnuz or f8_e5m2");
      if (!element_type(name_of(*given_.type)))
        return refuse("elements of type " + std::string(name_of(*given_.type)) + " are unsupported");
      layout_.type_ = *given_.type;
    }
    if (layout_.scales_.empty()) layout_.scales_ = given_.scales;
    for (const float scale : layout_.scales_) {
      if (!usable(scale)) return refuse("a scale is a number from 1e-30 to 1e30");
    }
    return {};
  }

  Status check_axes() {
    for (std::size_t i = 0; i < layout_axes; ++i) {
      const std::string name(axis_names[i]);
      std::uint64_t& extent = layout_.extents_[i];
      const Step *whole = nullptr, *divided = nullptr, *remainder = nullptr;
      for (const Step& step : layout_.steps_) {
        if (index_of(step.axis) != i) continue;
        const Step*& place = step.part == 0 ? whole : step.remainder ? remainder : divided;
        if (place != nullptr) return refuse("axis " + name + " stands there twice");
        place = &step;
      }
      if (whole != nullptr && (divided != nullptr || remainder != nullptr)) return refuse("axis " + name + " stands there twice");
      if ((divided == nullptr) != (remainder == nullptr) || (divided != nullptr && divided->part != remainder->part))
        return refuse("axis " + name + " requires both " + name + "/n and " + name + "%n");
      const bool found = whole != nullptr || divided != nullptr;
      const auto axis = static_cast<LayoutAxis>(i);
      if (!found) {
        if (axis == LayoutAxis::block || axis == LayoutAxis::token || axis == LayoutAxis::dim)
          return refuse("axis " + name + " is missing");
        if (extent > 1) return refuse("axis " + name + " has an extent, but is missing");
        const std::uint64_t first = axis == LayoutAxis::layer  ? layout_.first_layer_
                                    : axis == LayoutAxis::head ? layout_.first_head_
                                                               : 0;
        if (first != 0) return refuse("axis " + name + " begins at " + std::to_string(first) + ", but is missing");
        extent = 1;
        continue;
      }
      if (axis == LayoutAxis::kv && extent == 0) extent = 2;
      if (extent == 0) return refuse("the extent of axis " + name + " is missing");
      if (extent > max_layout_extents[i]) return refuse("axis " + name + " is at most " + std::to_string(max_layout_extents[i]));
      if (divided != nullptr && extent % divided->part != 0)
        return refuse(name + "=" + std::to_string(extent) + " is not a multiple of " + std::to_string(divided->part));
    }
    const std::size_t scales = layout_.scales_.size();
    const std::uint64_t pairs = 2 * layout_.extents_[index_of(LayoutAxis::layer)];
    if (scales > 2 && scales != pairs)
      return refuse("there are " + std::to_string(scales) + " scales; give 1, 2 or 2 for each layer");
    return {};
  }

  [[nodiscard]] std::uint64_t count(const Step& step) const noexcept {
    const std::uint64_t extent = layout_.extents_[index_of(step.axis)];
    return step.part == 0 ? extent : step.remainder ? step.part : extent / step.part;
  }

  // Strides, buffers and the check that no two elements share memory.
  Status place() {
    struct Digit {
      std::uint64_t stride, count;
    };
    std::vector<Digit> digits;
    std::uint64_t span = 1;  // elements, of everything further right
    const std::uint64_t element = layout_.element();
    for (auto step = layout_.steps_.rbegin(); step != layout_.steps_.rend(); ++step) {
      const std::uint64_t n = count(*step);
      Layout::Map& map = layout_.maps_[index_of(step->axis)];
      if (step->across) {
        map.buffer = layout_.buffers_;
        layout_.buffers_ *= n;
        continue;
      }
      const std::uint64_t stride = step->stride != 0 ? step->stride : span;
      if (stride > max_layout_bytes / n / element) return refuse("a buffer has at most 2^50 bytes");
      span = std::max(span, stride * n);
      map.part = step->part == 0 ? 1 : step->part;
      (step->remainder ? map.inner : map.outer) = stride * element;
      if (n > 1) digits.push_back({stride, n});
    }
    std::ranges::sort(digits, {}, &Digit::stride);
    std::uint64_t last = 0;  // the last element that the smaller strides reach
    for (const Digit& digit : digits) {
      if (digit.stride <= last)
        return refuse("two elements share memory: stride " + std::to_string(digit.stride) + " is too small");
      last += digit.stride * (digit.count - 1);
    }
    if (last >= max_layout_bytes / element) return refuse("a buffer has at most 2^50 bytes");
    layout_.buffer_bytes_ = (last + 1) * element;
    return {};
  }

  const LayoutGiven& given_;
  Layout layout_;
  std::bitset<max_layout_steps> bare_;
  bool has_type_ = false, has_first_layer_ = false, has_first_head_ = false, split_ = false;
};

Result<Layout> Layout::parse(std::string_view text, const LayoutGiven& given) { return LayoutParser(given).parse(text); }

std::string Layout::str() const {
  std::string text;
  bool across = false;
  std::bitset<layout_axes> named;
  for (const Step& step : steps_) {
    if (across && !step.across) text += "| ";
    across = step.across;
    const std::size_t axis = index_of(step.axis);
    text += axis_names[axis];
    if (!named[axis]) {
      text += "=" + std::to_string(extents_[axis]);
      if (step.axis == LayoutAxis::layer && first_layer_ != 0) text += "@" + std::to_string(first_layer_);
      if (step.axis == LayoutAxis::head && first_head_ != 0) text += "@" + std::to_string(first_head_);
    }
    named.set(axis);
    if (step.part != 0) text += (step.remainder ? "%" : "/") + std::to_string(step.part);
    if (step.stride != 0) text += ":" + std::to_string(step.stride);
    text += " ";
  }
  if (across) text += "| ";
  text += name_of(type_);
  for (std::size_t i = 0; i < scales_.size(); ++i) text += (i == 0 ? " scale=" : ",") + number_text(scales_[i]);
  return text;
}

Result<Layout> Layout::packed(LayoutRange layers, LayoutRange heads, std::uint64_t blocks) const {
  const auto inside = [](LayoutRange range, LayoutRange all) {
    return range.count != 0 && range.first >= all.first && range.count <= all.count &&
           range.first - all.first <= all.count - range.count;
  };
  if (!inside(layers, this->layers()) || !inside(heads, this->heads())) return refuse("these layers or heads are not in " + str());
  LayoutGiven given;
  given.type = type_;
  given.extents = extents_;
  given.extents[index_of(LayoutAxis::layer)] = layers.count;
  given.extents[index_of(LayoutAxis::head)] = heads.count;
  given.extents[index_of(LayoutAxis::block)] = blocks;
  given.first_layer = layers.first;
  given.first_head = heads.first;
  given.scales = scales_;
  if (scales_.size() > 2) {
    const std::size_t first = 2 * static_cast<std::size_t>(layers.first - first_layer_);
    given.scales.assign(scales_.begin() + static_cast<std::ptrdiff_t>(first),
                        scales_.begin() + static_cast<std::ptrdiff_t>(first + 2 * layers.count));
  }
  std::string text;
  for (const Step& step : steps_) {
    text += axis_names[index_of(step.axis)];
    if (step.part != 0) text += (step.remainder ? "%" : "/") + std::to_string(step.part);
    text += " ";
  }
  return parse(text, given);
}

float Layout::scale(std::uint64_t layer, std::uint64_t kv) const noexcept {
  if (scales_.empty()) return 1;
  if (scales_.size() == 1) return scales_[0];
  return scales_[static_cast<std::size_t>(scales_.size() == 2 ? kv : 2 * layer + kv)];
}

}  // namespace hmc
